//! What is looked for, where, and what it means.
//! Not here: how it is printed.

use std::fs;
use std::path::{Path, PathBuf};

use ops::{Feature, Features};
use record::{Host, Known};

use super::Finding;

/// Everything, in the order in which it is printed.
pub(crate) fn all() -> Vec<Finding> {
    let host = probe::host();
    let mut findings = processor(&host);
    findings.extend(instructions());
    findings.extend(memory(&host));
    findings.extend(profiling());
    findings.push(hub_cache());
    findings.extend(gpu());
    findings
}

fn shown(fact: &Known<String>) -> String {
    match fact {
        Known::Is(text) => text.clone(),
        Known::Unavailable(missing) => format!("unknown: {}", missing.unavailable),
    }
}

fn processor(host: &Host) -> Vec<Finding> {
    let online = fs::read_to_string("/proc/cpuinfo")
        .map(|text| text.lines().filter(|line| line.starts_with("processor")).count() as u64)
        .unwrap_or(host.processors);
    let limited = online > host.processors;
    vec![
        Finding {
            area: "processor",
            name: "model".to_owned(),
            present: host.cpu_model.known().is_some(),
            found: format!(
                "{}; {}, kernel {}",
                shown(&host.cpu_model),
                shown(&host.operating_system),
                shown(&host.kernel_release)
            ),
            means: "figures of different models cannot be compared; records name it".to_owned(),
            how_to_get: host.cpu_model.missing().map(|missing| missing.how_to_get.clone()),
        },
        Finding {
            area: "processor",
            name: "threads".to_owned(),
            present: true,
            found: format!("{} of {online} processors may be used by this process", host.processors),
            means: format!(
                "{} workers by default; --threads N for another number, --pin to keep each on one processor",
                host.processors
            ),
            how_to_get: limited.then(|| {
                "an affinity mask or a container quota holds the others back: see taskset and the cgroup's cpu.max"
                    .to_owned()
            }),
        },
    ]
}

fn instructions() -> Vec<Finding> {
    let detected = Features::detect();
    Feature::ALL
        .iter()
        .map(|feature| {
            let present = detected.contains(*feature);
            let (what, hardware) = explain(*feature);
            Finding {
                area: "instructions",
                name: feature.name().to_owned(),
                present,
                found: if present { "the processor and the system offer it" } else { "not offered" }.to_owned(),
                means: what.to_owned(),
                how_to_get: (!present).then(|| {
                    format!("it needs {hardware}; in a virtual machine also a host that passes it through. Kernels that need it are not \
                         bound without it")
                }),
            }
        })
        .collect()
}

/// What the feature is used for, and the hardware that has it.
fn explain(feature: Feature) -> (&'static str, &'static str) {
    match feature {
        Feature::Avx2 => ("256-bit integer and float vectors", "an x86-64 processor of 2013 or later"),
        Feature::Fma => ("multiply and add in one instruction", "an x86-64 processor of 2013 or later"),
        Feature::F16c => ("conversion of half-precision scales", "an x86-64 processor of 2012 or later"),
        Feature::Avx512f => {
            ("512-bit vectors: one cache line per instruction", "Intel Skylake-SP or AMD Zen 4, or later")
        }
        Feature::Avx512bw => {
            ("512-bit vectors of bytes and words: unpacking codes", "Intel Skylake-SP or AMD Zen 4, or later")
        }
        Feature::Avx512vl => ("the AVX-512 instructions on shorter vectors", "Intel Skylake-SP or AMD Zen 4, or later"),
        Feature::Avx512dq => {
            ("further AVX-512 integer and float instructions", "Intel Skylake-SP or AMD Zen 4, or later")
        }
        Feature::Avx512vnni => (
            "sums of four byte products per lane: the packed decode kernel",
            "Intel Cascade Lake or AMD Zen 4, or later",
        ),
        Feature::Avx512bf16 => {
            ("sums of two bfloat16 products per lane: the matrix kernels", "Intel Cooper Lake or AMD Zen 4, or later")
        }
        Feature::Avx512vbmi => {
            ("byte permutes across 512 bits: unpacking codes", "Intel Ice Lake or AMD Zen 4, or later")
        }
        Feature::AmxTile => {
            ("tile registers, which the two matrix units below work on", "Intel Sapphire Rapids or later")
        }
        Feature::AmxInt8 => {
            ("matrix products of bytes by tiles; no kernel uses it yet", "Intel Sapphire Rapids or later")
        }
        Feature::AmxBf16 => (
            "matrix products of bfloat16 by tiles: projections of more than eight rows",
            "Intel Sapphire Rapids or later",
        ),
        Feature::SideAdds => ("additions that cost products nothing: sequences decoded together", "AMD Zen 4 or later"),
    }
}

fn memory(host: &Host) -> Vec<Finding> {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let ram = Finding {
        area: "memory",
        name: "memory".to_owned(),
        present: host.memory_bytes.known().is_some(),
        found: match (&host.memory_bytes, available) {
            (Known::Is(total), Some(free)) => format!("{:.1} GiB, {:.1} GiB of it available", gib(*total), gib(free)),
            (Known::Is(total), None) => format!("{:.1} GiB", gib(*total)),
            (Known::Unavailable(missing), _) => format!("unknown: {}", missing.unavailable),
        },
        means:
            "4-bit weights take about 0.53 bytes each: 0.3 GiB for Qwen3-0.6B, 2.0 for 4B, 4.1 for 8B, and the cache \
                beside them; the dense rungs need almost four times that"
                .to_owned(),
        how_to_get: host.memory_bytes.missing().map(|missing| missing.how_to_get.clone()),
    };
    let usable = host.huge_pages.known().is_some_and(|mode| mode != "never");
    let pages = Finding {
        area: "memory",
        name: "huge pages".to_owned(),
        present: usable,
        found: format!("transparent huge pages: {}", shown(&host.huge_pages)),
        means: "weights are streamed from end to end at every decoded token; with 2 MiB pages that costs few address \
                translations, with 4 KiB pages many"
            .to_owned(),
        how_to_get: (!usable).then(|| "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".to_owned()),
    };
    vec![ram, pages]
}

fn profiling() -> Vec<Finding> {
    // Hybrid processors have one unit per kind of core.
    let units = ["/sys/bus/event_source/devices/cpu", "/sys/bus/event_source/devices/cpu_core"];
    let unit = units.into_iter().find(|path| Path::new(path).exists());
    let counters = Finding {
        area: "profiling",
        name: "PMU".to_owned(),
        present: unit.is_some(),
        found: match unit {
            Some(path) => format!("hardware counters at {path}"),
            None => format!("no hardware counters: {} does not exist", units[0]),
        },
        means: match unit {
            Some(_) => "cycles, instructions and cache events can be counted and sampled",
            None => {
                "cycles, instructions and cache events are unavailable; profilers can still sample by clock (cpu-clock)"
            }
        }
        .to_owned(),
        how_to_get: unit.is_none().then(|| {
            "run on the machine itself, or in a virtual machine whose host passes the performance counters on"
                .to_owned()
        }),
    };
    let path = "/proc/sys/kernel/perf_event_paranoid";
    let level = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i64>().ok());
    let permitted = level.is_some_and(|level| level <= 2);
    let permission = Finding {
        area: "profiling",
        name: "perf events".to_owned(),
        present: permitted,
        found: level
            .map_or_else(|| format!("{path} cannot be read"), |level| format!("perf_event_paranoid is {level}")),
        means: match level {
            Some(..=0) => "everything may be measured, the whole machine included",
            Some(1) => "this user's processes may be measured, their time in the kernel included",
            Some(2) => {
                "this user's processes may be measured outside the kernel, which is where the engine's time goes"
            }
            Some(_) => "only root, or a process with CAP_PERFMON, may measure",
            None => "whether perf events may be used is not known",
        }
        .to_owned(),
        how_to_get: (!permitted).then(|| format!("as root: sysctl kernel.perf_event_paranoid=2 (see {path})")),
    };
    vec![counters, permission]
}

/// Where named models are looked up, by the same variables that the hub's own tools read.
fn hub_cache() -> Finding {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty()).map(PathBuf::from);
    let home = || {
        let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        set("HF_HOME").or_else(|| cache.map(|cache| cache.join("huggingface")))
    };
    let cache = set("HF_HUB_CACHE").or_else(|| home().map(|home| home.join("hub")));
    let models = cache.as_ref().and_then(|cache| fs::read_dir(cache).ok()).map(|entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("models--")).count()
    });
    let place = cache.map_or_else(|| "no home directory is set".to_owned(), |cache| cache.display().to_string());
    Finding {
        area: "models",
        name: "hub cache".to_owned(),
        present: models.is_some(),
        found: match models {
            Some(count) => format!("{place}, {count} model{} in it", if count == 1 { "" } else { "s" }),
            None => format!("{place}: not there yet"),
        },
        means: "names like qwen3-0.6b are looked up there and downloaded to it unless --offline; synthetic models need none"
            .to_owned(),
        how_to_get: models.is_none().then(|| "hourglass pull qwen3-0.6b makes it; HF_HUB_CACHE moves it".to_owned()),
    }
}

fn gpu() -> Vec<Finding> {
    let found = ops_cuda::availability();
    let row = |name: &str, answer: Result<String, ops_cuda::Missing>, means: &str| {
        let (present, found, how_to_get) = match answer {
            Ok(found) => (true, found, None),
            Err(missing) => (false, missing.why, Some(missing.how_to_get)),
        };
        Finding { area: "gpu", name: name.to_owned(), present, found, means: means.to_owned(), how_to_get }
    };
    let driver = found.driver.map(|driver| {
        let names: Vec<_> = driver.devices.iter().map(|device| device.name.as_str()).collect();
        format!("supports CUDA {}; {} device(s): {}", driver.version, names.len(), names.join(", "))
    });
    let version = |version: String| format!("version {version}");
    let ahead = ops_cuda::embedded::available().map_err(|why| ops_cuda::Missing {
        why,
        how_to_get: "`cargo xtask cubins`, and build again; not needed where nvrtc is".to_owned(),
    });
    let ncu = crate::capture::ncu_version().map_err(|why| ops_cuda::Missing {
        why,
        how_to_get: "install NVIDIA's Nsight Compute (it is part of the CUDA toolkit)".to_owned(),
    });
    vec![
        row("driver", driver, "--device cuda runs models on the GPU through it"),
        row("nvrtc", found.compiler.map(version), "compiles the GPU kernels when --device cuda first uses them"),
        row("cubins", ahead, "kernels compiled ahead, for a machine that has a driver and no nvrtc"),
        row("cupti", found.profiler.map(version), "hourglass timeline --device cuda records every kernel with it"),
        row("ncu", ncu, "hourglass capture --device cuda profiles every kernel of a pass with it"),
    ]
}
