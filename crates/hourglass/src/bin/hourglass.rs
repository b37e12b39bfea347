//! The program: the library's command line with this repository's lab. Not here: anything else; see `lib.rs`.

fn main() -> std::process::ExitCode {
    hourglass::main(lab::registry)
}
