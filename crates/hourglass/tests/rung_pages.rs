//! What the handbook's rung pages (book/src/rungs/) say of the wiring, which no record holds: the differences that they print are
//! the verb's, and the calls and barriers that they count are the program's.
//! Not here: the other inclusions and links of the handbook, which its builder checks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::PathBuf;

use model::{Engine, Keep, LoadOptions};
use ops::Registry;
use support::{root, stdout};
use weights::{ModelSource, OpenOptions};

fn pages() -> Vec<(PathBuf, String)> {
    let mut pages: Vec<_> = std::fs::read_dir(root().join("book/src/rungs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    pages.sort();
    pages
}

/// The block that follows `hourglass wiring RUNG --diff` is what that prints.
#[test]
fn differences_are_what_the_verb_prints() {
    let opening = "```sh\nhourglass wiring ";
    let mut shown = Vec::new();
    for (path, text) in pages() {
        for part in text.split(opening).skip(1) {
            let (command, after) = part.split_once("\n```").unwrap();
            // A command whose output is not shown is only read, like every other (`readme.rs`).
            let Some(rest) = after.strip_prefix("\n\n```text\n") else { continue };
            let block = rest.split("\n```").next().unwrap();
            let words: Vec<&str> = ["wiring"].into_iter().chain(command.split(' ')).collect();
            assert_eq!(block, stdout(&words).trim_end(), "{}: hourglass {}", path.display(), words.join(" "));
            shown.push(words[1].to_owned());
        }
    }
    let registry = Registry::standard();
    let rungs = registry.checkpoints().filter(|checkpoint| !ops::ladder::beside::has(checkpoint.name));
    for rung in rungs.filter(|checkpoint| checkpoint.parent.is_some()) {
        assert!(
            shown.iter().any(|shown| shown == rung.name),
            "no page of book/src/rungs shows what '{}' rewires",
            rung.name
        );
    }
}

/// Rows `| rung | calls | barriers |` of a decode step's layer, wherever a page has them.
#[test]
fn calls_and_barriers_of_a_layer_are_the_programs() {
    let source = ModelSource::parse("synthetic:tiny").unwrap();
    let files = weights::open(&source, &OpenOptions::default()).unwrap();
    // The second of two: a fusion across layers is in it, as it is in most.
    let layer = Some(files.config().layers / 2);
    let mut counted = 0;
    for (path, text) in pages() {
        for line in text.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let ["", name, calls, barriers, ""] = cells[..] else { continue };
            let (Ok(calls), Ok(barriers)) = (calls.parse::<usize>(), barriers.parse::<usize>()) else { continue };
            let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else { continue };
            let Ok(checkpoint) = Registry::standard().checkpoint(name) else { continue };
            let mut options = LoadOptions::new(checkpoint);
            options.threads = 2;
            let mut engine = Engine::load(&files, options).unwrap();
            let bound = engine.kernels(1, Keep::Last, 30).unwrap();
            let of_layer: Vec<_> = bound.calls().iter().filter(|call| call.layer == layer).collect();
            let waits = of_layer.iter().filter(|call| call.barrier_before).count();
            assert_eq!((calls, barriers), (of_layer.len(), waits), "{}: {name}", path.display());
            counted += 1;
        }
    }
    assert!(counted > 0, "no page counts calls and barriers any more; take this test away with the last one");
}
