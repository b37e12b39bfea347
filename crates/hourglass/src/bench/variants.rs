//! What a name on the command line stands for: a rung, the control again, another engine, a server; and the suites.
//! Not here: how any of them is started (`commands.rs`).

use anyhow::Result;
use clap::ValueEnum;
use ops::Registry;
use record::bench::ArmKind;

use crate::failure::usage;

/// The control against itself.
const SAME_AGAIN: &str = "A/A";

/// An engine with an adapter in peers/.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
    /// What `cargo xtask peers` calls what it needs.
    pub(crate) package: &'static str,
    /// Where that is installed, beside the folder of the adapters.
    pub(crate) environment: &'static str,
}

const fn peer(name: &'static str, script: &'static str) -> Peer {
    Peer { name, script, package: name, environment: ".venv" }
}

const PEERS: [Peer; 6] = [
    peer("mlx", "mlx.py"),
    peer("llama.cpp", "llama_cpp.py"),
    Peer { package: "llama.cpp-avx2", environment: ".venv-avx2", ..peer("llama.cpp-avx2", "llama_cpp.py") },
    peer("openvino", "openvino.py"),
    peer("transformers", "transformers.py"),
    Peer { package: "transformers", ..peer("transformers-bf16", "transformers_bf16.py") },
];

/// A set of variants with a name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// Every rung
    Ladder,
    /// The rungs from kv-cache to selected
    Week2,
    /// week1, the rungs of week2, and mlx
    Course,
}

/// One arm to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Resolved; no two of a run share it.
    pub(crate) name: String,
    /// As typed.
    pub(crate) given: String,
    pub(crate) what: What,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A checkpoint, by its name.
    Checkpoint(&'static str),
    SameAgain,
    Peer(Peer),
    /// A server's address.
    Endpoint(String),
}

impl What {
    pub(crate) fn kind(&self) -> ArmKind {
        match self {
            What::Checkpoint(_) => ArmKind::Checkpoint,
            What::SameAgain => ArmKind::SameAgain,
            What::Peer(_) => ArmKind::Peer,
            What::Endpoint(_) => ArmKind::Endpoint,
        }
    }
}

impl Suite {
    fn names(self, registry: &Registry) -> Vec<String> {
        // The listing has the oracle and what stands beside the ladder too.
        let rungs = registry.checkpoints().map(|rung| rung.name);
        let rungs: Vec<&str> = rungs.filter(|name| *name != "reference" && !ops::ladder::beside::has(name)).collect();
        let place = |name: &str| rungs.iter().position(|rung| *rung == name);
        let week2 = match (place("kv-cache"), place("selected")) {
            (Some(first), Some(last)) if first <= last => &rungs[first..=last],
            _ => &rungs[..],
        };
        let names = match self {
            Suite::Ladder => rungs.clone(),
            Suite::Week2 => week2.to_vec(),
            Suite::Course => [&["week1"], week2, &["mlx"]].concat(),
        };
        names.into_iter().map(str::to_owned).collect()
    }
}

/// The arms of a run, the control first: those named, else the suite's, else `selected` and `fast`.
///
/// # Errors
/// A name that stands for nothing, twice for the same thing, or `A/A` as the control.
pub(crate) fn resolve(given: &[String], suite: Option<Suite>, registry: &Registry) -> Result<Vec<Variant>> {
    let names = match (given, suite) {
        ([], Some(suite)) => suite.names(registry),
        ([], None) => vec!["selected".to_owned(), "fast".to_owned()],
        (given, _) => given.to_vec(),
    };
    let mut variants: Vec<Variant> = Vec::with_capacity(names.len());
    for text in &names {
        let mut variant = parse(text, registry)?;
        if let Some(known) = variants.iter().find(|known| known.name == variant.name) {
            if given.is_empty() {
                // The newest rung is the control itself: what is left to measure is the machine's noise.
                variant = Variant { name: SAME_AGAIN.to_owned(), given: text.clone(), what: What::SameAgain };
            } else {
                return Err(usage(format!(
                    "--variant {text}: this is {}, which --variant {} names already; to measure the control against \
                     itself use --variant {SAME_AGAIN}",
                    known.name, known.given
                )));
            }
        }
        variants.push(variant);
    }
    if variants[0].what == What::SameAgain {
        return Err(usage(format!(
            "--variant {SAME_AGAIN}: the first variant is the control, and {SAME_AGAIN} is the control again; name the \
             control first"
        )));
    }
    Ok(variants)
}

fn parse(text: &str, registry: &Registry) -> Result<Variant> {
    let variant = |name: &str, what| Ok(Variant { name: name.to_owned(), given: text.to_owned(), what });
    if text == SAME_AGAIN {
        return variant(text, What::SameAgain);
    }
    if let Some(url) = text.strip_prefix("endpoint:") {
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            return Err(usage(format!(
                "--variant {text}: expected endpoint:http://HOST:PORT or endpoint:https://HOST"
            )));
        }
        return variant(text, What::Endpoint(url.to_owned()));
    }
    if let Some(peer) = PEERS.iter().find(|peer| peer.name == text) {
        return variant(text, What::Peer(*peer));
    }
    // The chapter calls a rung of its second week week2-NAME.
    match registry.checkpoint(text.strip_prefix("week2-").unwrap_or(text)) {
        Ok(checkpoint) => variant(checkpoint.name, What::Checkpoint(checkpoint.name)),
        Err(why) => {
            let peers: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
            Err(usage(format!(
                "--variant {text}: {why}; other variants: {}, endpoint:URL, {SAME_AGAIN} (the control again)",
                peers.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn names(given: &[&str], suite: Option<Suite>) -> Result<Vec<String>> {
        let given: Vec<String> = given.iter().map(|name| (*name).to_owned()).collect();
        Ok(resolve(&given, suite, &Registry::standard())?.into_iter().map(|variant| variant.name).collect())
    }

    #[test]
    fn suites_are_the_ladders_parts() {
        let week2 = names(&[], Some(Suite::Week2)).unwrap();
        assert_eq!(week2.first().unwrap(), "kv-cache");
        assert_eq!(week2.last().unwrap(), "selected");
        assert_eq!(week2.len(), 9);
        let course = names(&[], Some(Suite::Course)).unwrap();
        assert_eq!((course[0].as_str(), course.last().unwrap().as_str(), course.len()), ("week1", "mlx", 11));
        let ladder = names(&[], Some(Suite::Ladder)).unwrap();
        assert!(ladder.len() >= 10 && !ladder.contains(&"reference".to_owned()), "{ladder:?}");
    }

    #[test]
    fn the_chapters_names_are_ours() {
        let named = names(&["week2-capacity-cache", "mlx"], Some(Suite::Week2)).unwrap();
        assert_eq!(named, ["capacity-cache", "mlx"], "--variant chooses, whatever the suite");
    }

    #[test]
    fn a_default_that_is_the_control_becomes_the_control_again() {
        let newest = Registry::standard().checkpoint("fast").unwrap().name;
        let default = names(&[], None).unwrap();
        assert_eq!(default[0], "selected");
        assert_eq!(default[1], if newest == "selected" { "A/A" } else { newest });
    }

    #[test]
    fn wrong_names_say_what_there_is() {
        for (given, words) in [
            (&["selected", "nonsense"][..], &["--variant nonsense", "kv-cache", "llama.cpp", "A/A"][..]),
            (&["selected", "split-k"], &["split-k", "retired"]),
            (&["A/A"], &["control first"]),
            (&["selected", "week2-selected"], &["--variant selected names already"]),
            (&["selected", "endpoint:localhost"], &["endpoint:http"]),
        ] {
            let message = names(given, None).unwrap_err().to_string();
            for word in words {
                assert!(message.contains(word), "{word} in {message}");
            }
        }
    }
}
