//! `cargo xtask cubins`: the GPU kernels, compiled ahead for every generation, into the archive that the next build takes in.
//! Not here: compiling and packing, which is `ops-cuda`'s.

use anyhow::{Result, bail};

/// # Errors
/// No compiler (peers/cuda/setup.sh), or a kernel that does not compile.
pub(crate) fn run() -> Result<()> {
    let mut command = crate::cargo();
    command.args(["run", "--release", "--quiet", "--package", "hourglass-ops-cuda", "--example", "embed_cubins"]);
    if !command.status()?.success() {
        bail!("the kernels were not compiled ahead; the message is above");
    }
    Ok(())
}
