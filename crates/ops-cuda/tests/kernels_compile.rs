//! Every kernel compiles to machine code for every generation of GPU, without spills and without the compiler's warnings that
//! it has put tensor-core instructions one after the other; and the fast ones hold the instructions that they claim.
//! Needs no GPU: the compiler and the disassembler come from `peers/cuda/setup.sh`.

#![allow(clippy::unwrap_used, reason = "tests")]

use ops_cuda::embedded::ARCHITECTURES;
use ops_cuda::{Compiler, sources};
use std::path::{Path, PathBuf};
use std::process::Command;

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/cuda")
}

/// None without the compiler, which CI must have.
fn compiler() -> Option<Compiler> {
    let how = "run peers/cuda/setup.sh (95 MB from PyPI)";
    match Compiler::open(&tools().join("lib")) {
        Ok(compiler) => Some(compiler),
        Err(why) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{why}; {how}"),
        Err(why) => {
            println!("skipped: {why}; {how}");
            None
        }
    }
}

/// What is wrong in the compiler's report.
fn faults(log: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut kernel = "";
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            kernel = name.split('\'').next().unwrap_or_default();
        }
        let clean = line.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
        if line.contains("bytes stack frame") && !clean {
            faults.push(format!("{kernel}: {}", line.trim()));
        }
        if line.contains("warning") || line.contains("C75") {
            faults.push(line.trim().to_owned());
        }
    }
    faults
}

#[test]
fn every_kernel_compiles_for_every_generation_without_spills_or_warnings() {
    let Some(compiler) = compiler() else { return };
    for source in sources::ALL {
        std::thread::scope(|scope| {
            let compiler = &compiler;
            let started = ARCHITECTURES.map(|architecture| {
                scope.spawn(move || {
                    let compiled = compiler.compile(source, architecture, &["--ptxas-options=-v"]).unwrap();
                    // A file of one generation's kernels is empty for the others, and so is one of newer ones' for those before.
                    let hopper = ["linear_tiles.cu", "attention_cluster.cu"];
                    let newer = ["linear_ahead.cu", "linear_ahead_plain.cu"];
                    let empty = hopper.contains(&source.name) && architecture != "sm_90a"
                        || newer.contains(&source.name) && architecture.starts_with("sm_8");
                    assert!(
                        empty || compiled.log.contains("registers"),
                        "{}: no report:\n{}",
                        source.name,
                        compiled.log
                    );
                    assert_eq!(faults(&compiled.log), Vec::<String>::new(), "{} for {architecture}", source.name);
                })
            });
            for thread in started {
                thread.join().unwrap();
            }
        });
    }
}

#[test]
fn a_spill_and_a_warning_are_noticed() {
    let spill = "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
    assert_eq!(faults(spill).len(), 1);
    assert_eq!(
        faults("ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized").len(),
        1
    );
    assert!(faults("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads").is_empty());
}

/// An instruction and the fewest of it.
type Least = (&'static str, usize);

/// (file, kernel, what its code holds).
const CLAIMS: &[(&str, &str, &[Least])] = &[
    // A unit of 128 columns: eight products and eight sums, weights in loads of 16 bytes.
    ("linear_matvec.cu", "matvec_g128_t1u2", &[("HMMA.16816.F32.BF16", 32), ("LDG.E.NA.128", 8), ("ACQBULK", 1)]),
    ("linear_plain.cu", "matvec_plain_r1o1d8", &[("LDG.E.NA.128", 16), ("FFMA", 64), ("ACQBULK", 1)]),
    (
        "linear_matmul.cu",
        "matmul_128x128",
        &[("HMMA.16816.F32.BF16", 32), ("LDSM.16.M88.4", 12), ("LDGSTS.E.BYPASS.128", 4)],
    ),
    ("attention_tiled.cu", "attention_tiles_d128", &[("HMMA.16816.F32.BF16", 128), ("LDSM.16.MT88.4", 32)]),
    ("attention_decode.cu", "attention_split_d128_g2", &[("LDG.E.128", 8), ("ACQBULK", 1)]),
    // Weights come as bulk copies; a unit of 128 columns is four products of bytes, and a code costs no shift.
    ("linear_ahead.cu", "norm_ahead_g128_u2", &[("UBLKCP", 2), ("IMMA.16832.U8.S8", 8), ("REDUX", 4), ("ACQBULK", 1)]),
    // A head says its largest by an atomic that nothing waits for.
    ("linear_ahead.cu", "head_ahead_g128_u2", &[("IMMA.16832.U8.S8", 8), ("REDG.E.MAX.64", 1), ("ACQBULK", 1)]),
    ("linear_ahead_plain.cu", "head_ahead_plain_d2", &[("UBLKCP", 1), ("REDG.E.MAX.64", 1), ("ACQBULK", 1)]),
    ("linear_ahead.cu", "norm_ahead_8", &[("UBLKCP", 2), ("IMMA.16832.U8.S8", 4), ("REDUX", 2), ("ACQBULK", 1)]),
    ("linear_ahead.cu", "ahead_16", &[("UBLKCP", 2), ("IMMA.16832.U8.S8", 8), ("REDUX", 4), ("ACQBULK", 1)]),
    ("linear_ahead_plain.cu", "ahead_plain_d1", &[("UBLKCP", 1), ("FFMA", 32), ("LDS.128", 4), ("ACQBULK", 1)]),
    // Keys and values are copied ahead, and what warps found is sent without a fence.
    (
        "attention_cluster.cu",
        "placed_cluster_b4w5s2_d128_g2",
        &[
            ("LDGSTS.E.BYPASS.128", 32),
            ("HMMA.16816.F32.BF16", 17),
            ("MOVM.16.MT88", 2),
            ("STAS.64", 1),
            ("STAS.128", 1),
        ],
    ),
    ("linear_tiles.cu", "tiles_256", &[("HGMMA.64x256x16.F32.BF16", 4), ("UTMALDG.2D", 2), ("ACQBULK", 1)]),
];

/// The most instructions after the wait for the input, of kernels that are made to have few: what is run once is fetched once.
const MOST_AFTER_THE_WAIT: &[(&str, usize)] = &[("norm_ahead_8", 230), ("ahead_16", 320)];

#[test]
fn fast_kernels_hold_the_instructions_that_they_claim() {
    let Some(compiler) = compiler() else { return };
    let directory = std::env::temp_dir().join(format!("hourglass-cubins-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let files: std::collections::BTreeSet<&str> = CLAIMS.iter().map(|(file, _, _)| *file).collect();
    for file in files {
        let source = sources::ALL.iter().find(|source| source.name == file).unwrap();
        let path = directory.join(file);
        std::fs::write(&path, compiler.compile(source, "sm_90a", &[]).unwrap().cubin).unwrap();
        let output = Command::new(tools().join("bin/nvdisasm")).arg("-c").arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        for (_, kernel, claims) in CLAIMS.iter().filter(|(of, _, _)| *of == file) {
            let start = text.find(&format!(".text.{kernel}:")).unwrap_or_else(|| panic!("no {kernel} in {file}"));
            let body = &text[start..];
            let end = body[1..].find("\n.section").or_else(|| body[1..].find("\n\t.section"));
            let body = &body[..end.map_or(body.len(), |end| end + 1)];
            for (instruction, least) in *claims {
                let found = body.matches(instruction).count();
                assert!(found >= *least, "{kernel}: {found} of {instruction}, expected {least} or more");
            }
            assert!(!body.contains("STL") && !body.contains("LDL"), "{kernel} uses local memory");
            if let Some((_, most)) = MOST_AFTER_THE_WAIT.iter().find(|(of, _)| of == kernel) {
                let after = &body[body.find("ACQBULK").unwrap_or_else(|| panic!("{kernel} waits for nothing"))..];
                // A line of code begins with its address; what pads a kernel's end does nothing.
                let code =
                    |line: &&str| line.trim_start().starts_with("/*") && line.contains(';') && !line.contains("NOP");
                let found = after.lines().filter(code).count();
                assert!(
                    (1..=*most).contains(&found),
                    "{kernel}: {found} instructions after the wait, expected at most {most}"
                );
            }
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
