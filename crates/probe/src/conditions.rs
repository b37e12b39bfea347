//! Under what a measurement is made: this binary, this machine, this engine's threads and kernels.
//! What this machine could have and lacks is `doctor`'s to say.

use model::{Engine, LoadOptions};
use ops::{Bound, Resolved};
use record::{Binary, BoundKernel, Conditions, Host, Known, Mechanisms, Phase, Subject};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Read;

/// The conditions of a measurement of `engine` that bound `kernels`.
pub fn conditions(engine: &Engine, kernels: Vec<BoundKernel>) -> Conditions {
    conditions_of(engine.options(), kernels)
}

/// The same without an engine, for what is planned and not run.
pub fn conditions_of(options: &LoadOptions, kernels: Vec<BoundKernel>) -> Conditions {
    let mut host = host();
    if let Some(device) = &options.device {
        (host.device, host.driver) = (device.label(), Known::Is(device.driver()));
    }
    Conditions {
        binary: binary(),
        host,
        threads: options.threads as u64,
        pinned: options.pin,
        features: options.features.iter().map(|feature| feature.name().to_owned()).collect(),
        kernels,
    }
}

/// What is measured: `solution` names the registry, `weights_form` what the file holds.
pub fn subject(engine: &Engine, solution: &str, weights_form: &str) -> Subject {
    subject_of(engine.checkpoint(), solution, weights_form, engine.notes().to_vec())
}

/// The same without an engine; `conversions` are those that loading would make, if that is known.
pub fn subject_of(checkpoint: &Resolved, solution: &str, weights_form: &str, conversions: Vec<String>) -> Subject {
    let controls = checkpoint.controls;
    Subject {
        solution: solution.to_owned(),
        checkpoint: checkpoint.name.to_owned(),
        mechanisms: Mechanisms {
            capacity_cache: controls.capacity_cache == Some(true),
            register_cached_rmsnorm: controls.register_cached_rmsnorm == Some(true),
            tiled_prefill: controls.tiled_prefill == Some(true),
        },
        engine: "hourglass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        weights_form: weights_form.to_owned(),
        conversions,
    }
}

/// Which kernel each operator of a pass is bound to, and how many calls.
pub fn bound_kernels(phase: Phase, bound: &Bound) -> Vec<BoundKernel> {
    let mut kernels: Vec<BoundKernel> = Vec::new();
    for call in bound.calls() {
        let (operator, kernel) = (call.kernel.operator, call.kernel.label());
        match kernels.iter_mut().find(|known| known.operator == operator && known.kernel == kernel) {
            Some(known) => known.calls += 1,
            None => kernels.push(BoundKernel {
                phase,
                operator: operator.to_owned(),
                kernel,
                calls: 1,
                source: format!("{}:{}", call.kernel.file, call.kernel.line),
            }),
        }
    }
    kernels
}

/// The time, as records state it.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// This program.
pub fn binary() -> Binary {
    let no_git = || ("the build was not made in a git checkout", "build in a checkout with git installed");
    let commit = option_env!("HOURGLASS_COMMIT").map(str::to_owned);
    let dirty = option_env!("HOURGLASS_DIRTY").map(|dirty| dirty == "true");
    Binary {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build_id: executable_hash(),
        commit: commit.map_or_else(|| Known::unavailable(no_git().0, no_git().1), Known::Is),
        dirty: dirty.map_or_else(|| Known::unavailable(no_git().0, no_git().1), Known::Is),
    }
}

fn executable_hash() -> Known<String> {
    let hash = || -> std::io::Result<String> {
        let mut file = fs::File::open(std::env::current_exe()?)?;
        let (mut hash, mut block) = (Sha256::new(), vec![0; 1 << 16]);
        loop {
            match file.read(&mut block)? {
                0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
                read => hash.update(&block[..read]),
            }
        }
    };
    hash().map_or_else(
        |error| {
            Known::unavailable(format!("the executable file cannot be read: {error}"), "keep it where it was started")
        },
        Known::Is,
    )
}

/// This machine, from `/proc` and `/sys`.
pub fn host() -> Host {
    Host {
        device: "cpu".to_owned(),
        cpu_model: field("/proc/cpuinfo", ':', "model name"),
        processors: ops::processors() as u64,
        memory_bytes: meminfo("MemTotal"),
        operating_system: match field("/etc/os-release", '=', "PRETTY_NAME") {
            Known::Is(name) => Known::Is(name.trim_matches('"').to_owned()),
            missing => missing,
        },
        kernel_release: whole("/proc/sys/kernel/osrelease"),
        huge_pages: match whole("/sys/kernel/mm/transparent_hugepage/enabled") {
            Known::Is(text) => match chosen(&text) {
                Some(mode) => Known::Is(mode.to_owned()),
                None => {
                    Known::unavailable(format!("transparent huge pages: no mode is marked in '{text}'"), "look there")
                }
            },
            missing => missing,
        },
        driver: Known::unavailable("the kernels ran on the CPU, which has no driver", "nothing is missing"),
    }
}

/// A line of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(key: &str) -> Known<u64> {
    match field("/proc/meminfo", ':', key) {
        Known::Is(text) => {
            let kibibytes = text.strip_suffix("kB").and_then(|number| number.trim().parse::<u64>().ok());
            kibibytes.and_then(|number| number.checked_mul(1024)).map_or_else(
                || Known::unavailable(format!("{key} in /proc/meminfo is '{text}', not in kB"), "look there"),
                Known::Is,
            )
        }
        Known::Unavailable(missing) => Known::Unavailable(missing),
    }
}

/// Bytes that the system could still give out; a small number if it does not say.
pub fn available_memory() -> u64 {
    match meminfo("MemAvailable") {
        Known::Is(bytes) => bytes,
        Known::Unavailable(_) => 1 << 30,
    }
}

/// The bracketed word of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(mode, _)| mode)
}

fn whole(path: &str) -> Known<String> {
    match fs::read_to_string(path) {
        Ok(text) => Known::Is(text.trim().to_owned()),
        Err(error) => Known::unavailable(format!("{path} cannot be read: {error}"), "run on Linux with it mounted"),
    }
}

/// The first line `key <separator> value` of a file.
fn field(path: &str, separator: char, key: &str) -> Known<String> {
    match whole(path) {
        Known::Is(text) => {
            let found = text.lines().filter_map(|line| line.split_once(separator)).find(|(name, _)| name.trim() == key);
            found.map_or_else(
                || Known::unavailable(format!("{path} has no line '{key}'"), "look there"),
                |(_, value)| Known::Is(value.trim().to_owned()),
            )
        }
        missing => missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_mode_is_read() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("always madvise never"), None);
    }

    #[test]
    fn what_cannot_be_read_says_so() {
        let missing = field("/nonexistent/file", ':', "key");
        assert!(missing.missing().is_some_and(|reason| reason.unavailable.contains("/nonexistent/file")));
        let missing = field("/proc/meminfo", ':', "NoSuchKey");
        assert!(missing.missing().is_some_and(|reason| reason.unavailable.contains("NoSuchKey")));
    }

    #[test]
    fn this_machine_has_memory_and_the_time_is_utc() {
        assert!(host().memory_bytes.known().is_some_and(|bytes| *bytes > 1 << 20));
        let now = now();
        assert!(now.len() == 20 && now.ends_with('Z'), "{now}");
    }
}
