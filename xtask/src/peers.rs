//! `cargo xtask peers [NAME...]`: the engines that ours is compared with, into `.venv/`, each from its own pinned list.
//! Not here: how an engine is run (one adapter per engine in `peers/`).

use std::process::Command;

use anyhow::{Context, Result, bail};

/// What can be asked for; the lists are `peers/requirements-NAME.txt`.
struct Peer {
    name: &'static str,
    /// torch comes without its dependencies first, see its list.
    torch: bool,
    /// Compiled here, for this machine.
    source: bool,
}

const PEERS: [Peer; 5] = [
    Peer { name: "llama.cpp", torch: false, source: true },
    Peer { name: "openvino", torch: false, source: false },
    Peer { name: "mlx", torch: false, source: false },
    Peer { name: "transformers", torch: true, source: false },
    // What the fixtures' scripts need.
    Peer { name: "oracle", torch: true, source: false },
];

/// Without a name: all that need no gigabyte.
pub(crate) const DEFAULT: &[&str] = &["llama.cpp", "openvino", "mlx"];

/// Makes `.venv/` if it is not there, and gets the named peers. One that fails does not stop the others.
///
/// # Errors
/// An unknown name; no Python; what failed, by name, its installer's own message being above.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let chosen: Vec<&Peer> = names.iter().map(|name| find(name)).collect::<Result<_>>()?;
    let root = crate::root();
    let python = root.join(".venv/bin/python");
    if !python.exists() {
        crate::finish("python3 -m venv", Command::new("python3").args(["-m", "venv", ".venv"]).current_dir(&root))?;
    }
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(arguments);
        command.current_dir(&root);
        command
    };
    let mut failed = Vec::new();
    for peer in chosen {
        println!("xtask: {}", peer.name);
        let result = install(peer, pip);
        if let Err(error) = result {
            eprintln!("xtask: {}: {error:#}", peer.name);
            failed.push(peer.name);
        }
    }
    if !failed.is_empty() {
        bail!("not installed: {}; see above, then `cargo xtask peers {}`", failed.join(", "), failed.join(" "));
    }
    println!("xtask: ready in {}", root.join(".venv").display());
    Ok(())
}

fn find(name: &str) -> Result<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name).with_context(|| {
        let known: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
        format!("peers {name}: unknown; expected some of {}", known.join(", "))
    })
}

fn install(peer: &Peer, pip: impl Fn(&[&str]) -> Command) -> Result<()> {
    if peer.torch {
        crate::finish("pip", &mut pip(&["--no-deps", "-r", "peers/requirements-torch.txt"]))?;
    }
    let list = format!("peers/requirements-{}.txt", peer.name);
    if !peer.source {
        return crate::finish("pip", &mut pip(&["-r", &list]));
    }
    // A wheel for every machine has no AVX-512, and one cached by an earlier build may be another machine's: a comparison
    // against either would flatter us.
    let mut build = pip(&["--no-cache-dir", "--no-binary", "llama-cpp-python", "-r", &list]);
    build.env("CMAKE_ARGS", "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF");
    if std::env::var_os("CMAKE_BUILD_PARALLEL_LEVEL").is_none() {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        build.env("CMAKE_BUILD_PARALLEL_LEVEL", workers.to_string());
    }
    if std::env::var_os("CC").is_none()
        && let Some((c, cpp)) = compiler_for_amx()?
    {
        build.envs([("CC", c), ("CXX", cpp)]);
    }
    crate::finish("pip (which compiles llama.cpp: some minutes)", &mut build)
}

/// gcc before 13 miscompiles the AMX tile configuration: the built engine dies with SIGILL. None: the default compiler does.
///
/// # Errors
/// The machine has AMX, and no compiler that can be used.
fn compiler_for_amx() -> Result<Option<(&'static str, &'static str)>> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !cpus.split_whitespace().any(|word| word == "amx_tile") {
        return Ok(None);
    }
    let answer = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    if answer("clang++", "--version").is_some() {
        return Ok(Some(("clang", "clang++")));
    }
    let major = answer("gcc", "-dumpversion").and_then(|text| text.trim().split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 13) {
        return Ok(None);
    }
    bail!(
        "this machine has AMX, and gcc before 13 (found {}) builds an engine that crashes on it; install clang or gcc 13, \
         or set CC and CXX",
        major.map_or_else(|| "none".to_owned(), |major| major.to_string())
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn every_peer_has_a_pinned_list_and_every_list_a_peer() {
        let folder = crate::root().join("peers");
        for peer in &PEERS {
            let list = std::fs::read_to_string(folder.join(format!("requirements-{}.txt", peer.name))).unwrap();
            let packages = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
            assert!(packages.clone().count() > 0, "{}", peer.name);
            for package in packages {
                assert!(package.contains("=="), "{}: {package} is not pinned", peer.name);
                assert!(!package.starts_with("torch=="), "{}: torch has its own list", peer.name);
            }
        }
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(peer) = name.strip_prefix("requirements-").and_then(|rest| rest.strip_suffix(".txt")) {
                assert!(peer == "torch" || find(peer).is_ok(), "{name} belongs to no peer");
            }
        }
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let error = run(&["vllm"]).unwrap_err().to_string();
        assert!(error.contains("vllm") && error.contains("openvino"), "{error}");
    }
}
