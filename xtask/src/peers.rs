//! `cargo xtask peers [NAME...]`: the engines that ours is compared with, into `.venv/`, each from its own pinned list
//! (llama.cpp for AVX2 only, which is another build of one package, into `.venv-avx2/`).
//! Not here: how an engine is run (one adapter per engine in `peers/`).

use std::process::Command;

use anyhow::{Context, Result, bail};

/// What can be asked for; the lists are `peers/requirements-NAME.txt`.
struct Peer {
    name: &'static str,
    list: &'static str,
    /// Compiled here, with these instructions.
    source: Option<&'static str>,
    /// Where it is installed, in the repository's root.
    environment: &'static str,
}

const fn wheels(name: &'static str) -> Peer {
    Peer { name, list: name, source: None, environment: ".venv" }
}

const AVX2: &str = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
    -DGGML_AVX512=OFF -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF";

const PEERS: [Peer; 6] = [
    Peer { source: Some("-DGGML_NATIVE=ON"), ..wheels("llama.cpp") },
    Peer { list: "llama.cpp", source: Some(AVX2), environment: ".venv-avx2", ..wheels("llama.cpp-avx2") },
    wheels("openvino"),
    wheels("mlx"),
    wheels("transformers"),
    // What the fixtures' scripts need.
    wheels("oracle"),
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
    let mut failed = Vec::new();
    for peer in chosen {
        println!("xtask: {}", peer.name);
        let python = root.join(peer.environment).join("bin/python");
        if !python.exists() {
            let mut venv = Command::new("python3");
            crate::finish("python3 -m venv", venv.args(["-m", "venv", peer.environment]).current_dir(&root))?;
        }
        let pip = |arguments: &[&str]| {
            let mut command = Command::new(&python);
            command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(arguments);
            command.current_dir(&root);
            command
        };
        let result = install(peer, pip);
        if let Err(error) = result {
            eprintln!("xtask: {}: {error:#}", peer.name);
            failed.push(peer.name);
        }
    }
    if !failed.is_empty() {
        bail!("not installed: {}; see above, then `cargo xtask peers {}`", failed.join(", "), failed.join(" "));
    }
    println!("xtask: ready in {}", root.display());
    Ok(())
}

fn find(name: &str) -> Result<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name).with_context(|| {
        let known: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
        format!("peers {name}: unknown; expected some of {}", known.join(", "))
    })
}

fn install(peer: &Peer, pip: impl Fn(&[&str]) -> Command) -> Result<()> {
    let list = format!("peers/requirements-{}.txt", peer.list);
    let Some(instructions) = peer.source else {
        return crate::finish("pip", &mut pip(&["-r", &list]));
    };
    // A wheel for every machine has no AVX-512, and one cached by an earlier build may be another machine's: a comparison
    // against either would flatter us.
    let mut build = pip(&["--no-cache-dir", "--no-binary", "llama-cpp-python", "-r", &list]);
    build.env("CMAKE_ARGS", format!("-DCMAKE_BUILD_TYPE=Release {instructions} -DLLAVA_BUILD=OFF"));
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
            let list = std::fs::read_to_string(folder.join(format!("requirements-{}.txt", peer.list))).unwrap();
            let packages = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
            assert!(packages.clone().count() > 0, "{}", peer.name);
            for package in packages {
                assert!(package.contains("=="), "{}: {package} is not pinned", peer.name);
            }
        }
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(peer) = name.strip_prefix("requirements-").and_then(|rest| rest.strip_suffix(".txt")) {
                assert!(find(peer).is_ok(), "{name} belongs to no peer");
            }
        }
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let error = run(&["vllm"]).unwrap_err().to_string();
        assert!(error.contains("vllm") && error.contains("openvino"), "{error}");
    }
}
