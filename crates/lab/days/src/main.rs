//! Hourglass with the days' kernels and checkpoints as its lab. Not here: anything else.

fn main() -> std::process::ExitCode {
    hourglass::main(days::registry)
}
