//! What the text of `--model` means.
//! Not here: opening what it names (`files`, `hub`).

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, synthetic};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// Weights of a known model's shapes from a seed.
    Synthetic { name: String, seed: u64 },
    /// A `.gguf` file.
    Gguf(PathBuf),
    /// A directory in Hugging Face or MLX layout.
    Directory(PathBuf),
    /// A repository of the hub, `owner/name`.
    Hub { repo: String },
}

/// Short names and the repositories they stand for.
const KNOWN: [(&str, &str); 4] = [
    ("qwen3-0.6b", "Qwen/Qwen3-0.6B-MLX-4bit"),
    ("qwen3-1.7b", "Qwen/Qwen3-1.7B-MLX-4bit"),
    ("qwen3-4b", "Qwen/Qwen3-4B-MLX-4bit"),
    ("qwen3-8b", "Qwen/Qwen3-8B-MLX-4bit"),
];

impl ModelSource {
    /// Reads `synthetic:NAME[@SEED]`, an existing directory or `.gguf` file, a known name in any case, or `owner/name`,
    /// in this order. Errors: text that is none of these, saying what it looks like.
    pub fn parse(text: &str) -> Result<ModelSource> {
        let unknown = |reason: String| Err(Error::UnknownSource { text: text.to_string(), reason });
        if let Some(rest) = text.strip_prefix("synthetic:") {
            let (name, seed) = match rest.split_once('@') {
                Some((name, seed)) => match seed.parse() {
                    Ok(seed) => (name, seed),
                    Err(_) => return unknown(format!("the seed {seed:?} is not a whole number below 2^64")),
                },
                None => (rest, 0),
            };
            let name = name.to_ascii_lowercase();
            if !synthetic::NAMES.contains(&name.as_str()) {
                return unknown(format!("synthetic models are {}", synthetic::NAMES.join(", ")));
            }
            return Ok(ModelSource::Synthetic { name, seed });
        }
        if text.is_empty() {
            return unknown("it is empty".into());
        }
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(ModelSource::Directory(path.into()));
        }
        let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        if path.exists() {
            if is_gguf {
                return Ok(ModelSource::Gguf(path.into()));
            }
            return unknown("it is a file but not a .gguf; for safetensors give the directory that holds it".into());
        }
        if let Some((_, repo)) = KNOWN.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
            return Ok(ModelSource::Hub { repo: repo.to_string() });
        }
        if is_gguf || text.starts_with(['/', '.', '~']) || text.ends_with('/') {
            return unknown("there is no such file or directory".into());
        }
        match text.split('/').collect::<Vec<_>>()[..] {
            [owner, name] if is_repo_part(owner) && is_repo_part(name) => {
                Ok(ModelSource::Hub { repo: text.to_string() })
            }
            [_] => unknown("it is neither a file, a directory nor a known name".into()),
            _ => unknown("there is no such file or directory, and it is not of the form owner/name".into()),
        }
    }
}

/// What the hub allows in an owner or repository name; it also becomes a directory name, so nothing else passes.
pub(crate) fn is_repo_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 96
        && !part.starts_with(['.', '-'])
        && !part.ends_with(['.', '-'])
        && !part.contains("--")
        && !part.contains("..")
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Synthetic { name, seed } => write!(f, "synthetic:{name}@{seed}"),
            ModelSource::Gguf(path) | ModelSource::Directory(path) => write!(f, "{}", path.display()),
            ModelSource::Hub { repo } => f.write_str(repo),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn synthetic_names_and_seeds() {
        let tiny = |seed| ModelSource::Synthetic { name: "tiny".into(), seed };
        assert_eq!(ModelSource::parse("synthetic:tiny").unwrap(), tiny(0));
        assert_eq!(ModelSource::parse("synthetic:TINY@17").unwrap(), tiny(17));
        assert_eq!(ModelSource::parse("synthetic:tiny@17").unwrap().to_string(), "synthetic:tiny@17");
        for bad in ["synthetic:", "synthetic:qwen9", "synthetic:tiny@", "synthetic:tiny@-1", "synthetic:tiny@x"] {
            assert!(ModelSource::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn existing_paths_come_before_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, b"x").unwrap();
        let other = dir.path().join("m.safetensors");
        std::fs::write(&other, b"x").unwrap();
        assert_eq!(
            ModelSource::parse(dir.path().to_str().unwrap()).unwrap(),
            ModelSource::Directory(dir.path().into())
        );
        assert_eq!(ModelSource::parse(file.to_str().unwrap()).unwrap(), ModelSource::Gguf(file.clone()));
        let error = ModelSource::parse(other.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("give the directory"), "{error}");
    }

    #[test]
    fn names_and_repositories() {
        let hub = |repo: &str| ModelSource::Hub { repo: repo.into() };
        assert_eq!(ModelSource::parse("Qwen3-0.6B").unwrap(), hub("Qwen/Qwen3-0.6B-MLX-4bit"));
        assert_eq!(ModelSource::parse("qwen3-8b").unwrap(), hub("Qwen/Qwen3-8B-MLX-4bit"));
        assert_eq!(ModelSource::parse("Qwen/Qwen3-0.6B").unwrap(), hub("Qwen/Qwen3-0.6B"));
        for (bad, why) in [
            ("", "empty"),
            ("qwen4", "neither a file"),
            ("./nothing", "no such file"),
            ("/nothing/here", "no such file"),
            ("missing.gguf", "no such file"),
            ("a/b/c", "owner/name"),
            ("../x", "no such file"),
            ("owner/..", "owner/name"),
            ("ow ner/name", "owner/name"),
        ] {
            let error = ModelSource::parse(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
