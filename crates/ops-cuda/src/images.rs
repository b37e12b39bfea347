//! The machine code that a GPU is given: compiled now, from the cache, or compiled ahead.
//! Not here: any of the three (`compiler.rs`, `embedded.rs`), and loading it (`gpu.rs`).

use crate::compiler::Compiler;
use crate::gpu::OpenError;
use crate::{embedded, sources};

/// What the compiler calls a GPU of this capability: with the instructions of that generation alone where there are such.
fn architecture(major: i32, minor: i32) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

/// Machine code of every file.
type Images = Vec<(&'static str, Vec<u8>)>;

/// All files, compiled side by side or taken from the cache; without a compiler those that were compiled ahead. And what a person
/// should know of it.
pub(crate) fn images(major: i32, minor: i32) -> Result<(Images, Vec<String>), OpenError> {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(why) => {
            let none = |ahead| OpenError::Compiler { why: format!("{why}; and {ahead}") };
            return Ok((embedded::images(major, minor).map_err(none)?, Vec::new()));
        }
    };
    let architecture = architecture(major, minor);
    let cached = |source| compiler.cached(source, &architecture);
    let compiled: Vec<(&'static str, Result<_, String>)> = std::thread::scope(|scope| {
        let started: Vec<_> =
            sources::ALL.iter().map(|source| (source.name, scope.spawn(move || cached(source)))).collect();
        let joined = started.into_iter().map(|(name, thread)| {
            (name, thread.join().unwrap_or_else(|_| Err(format!("compiling {name} ended without a result"))))
        });
        joined.collect()
    });
    let (mut images, mut notes) = (Vec::new(), Vec::new());
    for (name, image) in compiled {
        let (image, note) = image.map_err(|why| OpenError::Compile { why })?;
        images.push((name, image));
        notes.extend(note);
    }
    Ok((images, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_named_as_the_compiler_does() {
        let names = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)].map(|(major, minor)| architecture(major, minor));
        assert_eq!(names, ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]);
    }
}
