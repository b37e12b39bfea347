//! Every command in README.md is run, with the built binary in place of `cargo run --release --` and `hourglass`, in an
//! empty directory that holds stand-ins for what the README supposes to be there. The library example is the file it says.
//! The commands of the documents and of the handbook are read by the command line. Not here: whether the commands' answers are right.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{hourglass as program, quoted_words, root, stand_in_model};

/// The contents of each fenced block of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    text.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Shell lines, continuations joined, comments and empty lines left out.
fn commands(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// A hub cache that holds the stand-in under the name that `qwen3-0.6b` stands for.
fn hub_cache(directory: &Path) {
    let repository = directory.join("models--Qwen--Qwen3-0.6B-MLX-4bit");
    stand_in_model(&repository.join("snapshots/0"));
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), "0").unwrap();
}

#[test]
fn every_command_runs() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let here = tempfile::tempdir().unwrap();
    stand_in_model(&here.path().join("Qwen3-0.6B"));
    hub_cache(&here.path().join("hub"));
    let has_downloads = support::download("SmolLM2-135M-Instruct.Q4_1.gguf").is_some();
    if has_downloads {
        std::os::unix::fs::symlink(root().join("downloads"), here.path().join("downloads")).unwrap();
    }
    let mut count = 0;
    for command in blocks(&readme, "sh").into_iter().flat_map(commands) {
        count += 1;
        if command.contains("downloads/") && !has_downloads {
            continue;
        }
        if let Some(verb) = command.strip_prefix("cargo xtask ") {
            // Running the tests from a test would not end; that the verb exists can be asked.
            let xtask = std::fs::read_to_string(root().join("xtask/src/main.rs")).unwrap();
            assert!(xtask.contains(&format!("[\"{}\"]", verb.replace(' ', "\", \""))), "{command}");
            continue;
        }
        let mut process = if let Some(example) =
            command.strip_prefix("cargo run --release -p hourglass-model --example ")
        {
            // cargo would compile everything again for this one package; the workspace's tests have built it.
            let (name, arguments) = example.split_once(" -- ").unwrap();
            let built = Path::new(env!("CARGO_BIN_EXE_hourglass")).with_file_name("examples").join(name);
            if !built.exists() {
                println!("skipped: {command}: the example is built by `cargo xtask test`");
                continue;
            }
            let mut process = Command::new(built);
            process.args(quoted_words(arguments));
            process
        } else {
            let rest = command.strip_prefix("cargo run --release --").or_else(|| command.strip_prefix("hourglass "));
            let rest = rest.unwrap_or_else(|| panic!("neither cargo nor hourglass: {command}"));
            let mut arguments = quoted_words(rest);
            let measures = ["find", "bench", "replay"].contains(&arguments[0].as_str());
            if measures && !arguments.iter().any(|word| word == "--model") {
                // The default model would take minutes; its measuring is tested elsewhere.
                arguments.extend(["--model".to_owned(), "synthetic:tiny".to_owned()]);
            }
            program(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let process = process.current_dir(here.path()).env("HF_HUB_CACHE", here.path().join("hub"));
        let output = process.stdin(std::process::Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {}: {error}", output.status);
        assert!(!output.stdout.is_empty() || command.contains(" chat "), "{command} said nothing");
    }
    assert!(count >= 12, "only {count} commands were found");
}

/// Markdown files below a folder.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(documents(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Everything before `|`, `>`, `&&` and a comment: the command itself.
fn first_command(words: Vec<String>) -> Vec<String> {
    words.into_iter().take_while(|word| !["|", ">", "&&", "#"].contains(&word.as_str())).collect()
}

#[test]
fn every_command_of_the_documents_can_be_typed() {
    let xtask = std::fs::read_to_string(root().join("xtask/src/main.rs")).unwrap();
    let mut files = documents(&root().join("docs"));
    files.extend(documents(&root().join("book")));
    files.push(root().join("README.md"));
    let mut count = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let shown = ["sh", "console"].into_iter().flat_map(|language| blocks(&text, language));
        for command in shown.flat_map(commands) {
            let own = ["cargo run --release -- ", "./target/release/hourglass "];
            let own =
                own.iter().find_map(|prefix| command.strip_prefix(prefix)).map(|rest| format!("hourglass {rest}"));
            let command = own.unwrap_or(command);
            let fault = match command.split_once(' ') {
                Some(("hourglass", _)) => hourglass::handbook::fault(&first_command(quoted_words(&command))),
                Some(("cargo", rest)) if rest.starts_with("xtask ") => {
                    let verb = rest.split(' ').nth(1).unwrap();
                    (!xtask.contains(&format!("[\"{verb}\""))).then(|| format!("xtask has no verb '{verb}'"))
                }
                _ => None,
            };
            assert_eq!(fault, None, "{}: {command}", file.display());
            count += 1;
        }
    }
    assert!(count >= 60, "only {count} commands were found");
}

#[test]
fn a_command_that_cannot_be_typed_is_seen() {
    for command in ["hourglass find --quik", "hourglass fnd", "hourglass decide open --accept"] {
        assert!(hourglass::handbook::fault(&quoted_words(command)).is_some(), "{command}");
    }
    assert_eq!(hourglass::handbook::fault(&quoted_words("hourglass decide metrics")), None);
}

#[test]
fn the_library_example_is_the_file_it_names() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let shown = blocks(&readme, "rust");
    let [shown] = shown[..] else { panic!("expected one example, found {}", shown.len()) };
    let file = std::fs::read_to_string(root().join("crates/model/examples/stream.rs")).unwrap();
    assert!(file.ends_with(shown), "README.md and crates/model/examples/stream.rs differ");
}

#[test]
fn the_table_names_only_verbs_that_exist() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let help = support::stdout(&["--help"]);
    // One row may name several verbs; the first decides.
    let exists = |verb: &str| help.lines().any(|line| line.trim_start().split(' ').next() == Some(verb));
    let mut found = 0;
    for line in readme.lines().filter(|line| line.starts_with("| `") && line.contains("`hourglass ")) {
        let verb = line.split("`hourglass ").nth(1).unwrap().split(['`', ' ']).next().unwrap();
        assert!(exists(verb), "{verb} does not exist: {line}");
        found += 1;
    }
    assert!(found >= 6, "{found} rows were found");
}
