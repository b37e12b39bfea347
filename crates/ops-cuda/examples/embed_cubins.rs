//! Compiles every kernel for every generation of GPU and packs them into the archive that the next build takes in: what
//! `cargo xtask cubins` runs. Needs NVRTC (peers/cuda/setup.sh), no GPU.

use ops_cuda::embedded::{Archive, options};
use ops_cuda::{Compiler, sources::Source};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    match make(&here.join("../../peers/cuda/lib"), &here.join("cubins/cubins.gz")) {
        Ok((path, bytes)) => {
            println!("{}: {:.1} MB; build again to take it in", path.display(), bytes as f64 / 1e6);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn make(library: &Path, to: &Path) -> Result<(PathBuf, usize), String> {
    let how = |why| format!("{why}; run peers/cuda/setup.sh (95 MB from PyPI), or install the CUDA toolkit");
    let compiler = Compiler::open(library).or_else(|_| Compiler::find()).map_err(how)?;
    let compile = |source: &Source, architecture: &str| {
        compiler.compile_with(source, &options(architecture), architecture).map(|compiled| compiled.cubin)
    };
    let archive = Archive::make(compile)?;
    let beside = to.with_extension("part");
    std::fs::write(&beside, &archive).and_then(|()| std::fs::rename(&beside, to)).map_err(|error| error.to_string())?;
    Ok((to.to_path_buf(), archive.len()))
}
