//! `hourglass new` and `--solution lab` through the binary: stubs that compile, hold and are listed, in the repository's file and
//! in a project elsewhere; what a wrong signature says. Not here: what kernels are held to (`ops`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{hourglass, json, refusal, root, stdout};

const TINY: [&str; 2] = ["--model", "synthetic:tiny"];

/// A copy of the user's file, where the repository has it.
fn copy_of_lab(directory: &Path) -> PathBuf {
    let file = directory.join("crates/lab/src/lib.rs");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::copy(root().join("crates/lab/src/lib.rs"), &file).unwrap();
    file
}

#[test]
fn stubs_are_inserted_once_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let file = copy_of_lab(directory.path());
    let before = std::fs::read_to_string(&file).unwrap();
    let within = |arguments: &[&str]| {
        let output = hourglass(arguments).current_dir(directory.path().join("crates")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text, error) = within(&["new", "kernel", "rope", "my-rope"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        text.contains("crates/lab/src/lib.rs:") && text.contains("cargo test --release -p hourglass-lab"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 5, "{text}");
    // The newest rung that calls it: the next one has a coarser call in its place.
    assert!(text.contains("new checkpoint my-rope-rung --from one-call-attention --with rope:my-rope"), "{text}");
    let with = ["new", "checkpoint", "my-rung", "--from", "fast", "--with", "rope:my-rope", "--json"];
    let (code, text, error) = within(&with);
    assert_eq!(code, Some(0), "{error}");
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&written["what"], written["next"].as_array().unwrap().len()), (&"checkpoint".into(), 3));
    let after = std::fs::read_to_string(&file).unwrap();
    // Taking the new lines out gives the file as it was.
    let mut old = before.lines().peekable();
    let new: Vec<&str> = after.lines().filter(|line| old.next_if_eq(line).is_none()).collect();
    assert_eq!(old.next(), None, "every old line is there, in order");
    let new = new.join("\n");
    for expected in
        ["fn my_rope(", "static MY_ROPE: Kernel", "    &MY_ROPE,", "const MY_RUNG: Checkpoint", "    &MY_RUNG,"]
    {
        assert_eq!(new.matches(expected).count(), 1, "{expected} in\n{new}");
    }
    assert!(new.contains("prefers: &[ladder::choose(\"rope\", \"my-rope\")],") && new.contains("..ladder::"), "{new}");
    let line = written["line"].as_u64().unwrap() as usize;
    assert!(after.lines().nth(line - 1).unwrap().starts_with("/// Floor"), "{after}");
    let (code, _, error) = within(&["new", "kernel", "rope", "my-rope"]);
    assert!(code == Some(2) && error.contains("`my_rope` already") && error.contains("nothing was written"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), after);
}

#[test]
fn what_cannot_be_written_is_refused_and_nothing_changes() {
    let directory = tempfile::tempdir().unwrap();
    let file = copy_of_lab(directory.path());
    let marker = "// hourglass new: kernels' names go above this line";
    let without = std::fs::read_to_string(&file).unwrap().replace(marker, "// mine");
    let broken = directory.path().join("broken.rs");
    std::fs::write(&broken, &without).unwrap();
    let (file, broken) = (file.to_str().unwrap(), broken.to_str().unwrap());
    let elsewhere = directory.path().join("taken");
    std::fs::create_dir(&elsewhere).unwrap();
    for (arguments, expected) in [
        (&["kernel", "rmsnorm", "mine", "--file", file][..], "known ones are"),
        (&["kernel", "rms_norm", "Mine", "--file", file], "lower-case words"),
        (&["kernel", "rms_norm", "two-pass", "--file", file], "already"),
        (&["kernel", "rms_norm", "mine", "--file", broken], marker),
        (&["kernel", "rms_norm", "mine", "--file", "nowhere.rs"], "--file nowhere.rs"),
        (&["checkpoint", "selected", "--from", "week1", "--file", file], "is taken"),
        (&["kernel", "rope", "fn", "--file", file], "is a word of Rust"),
        (
            &["checkpoint", "mine", "--from", "week1", "--with", "rope:nope", "--file", file],
            "has no kernel of this name",
        ),
        (&["checkpoint", "fast", "--from", "week1", "--file", file], "is taken"),
        (&["checkpoint", "split-k", "--from", "week1", "--file", file], "is taken"),
        (&["checkpoint", "mine", "--from", "nonsense", "--file", file], "--from"),
        (&["checkpoint", "mine", "--from", "week1", "--with", "rope", "--file", file], "OPERATOR:KERNEL"),
        (&["checkpoint", "mine", "--from", "week1", "--with", "hope:x", "--file", file], "no operator"),
        (&["project", elsewhere.to_str().unwrap()], "never overwritten"),
        (&["project", "hourglass"], "in use"),
        (&["project", "mine", "--checkout", "nowhere"], "--checkout nowhere"),
    ] {
        let message = refusal(&[&["new"], arguments].concat(), 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    assert_eq!(std::fs::read_to_string(broken).unwrap(), without);
    assert_eq!(std::fs::read(file).unwrap(), std::fs::read(root().join("crates/lab/src/lib.rs")).unwrap());
    let output = hourglass(&["new", "kernel", "rope", "mine"]).current_dir("/").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("give --file"), "{message}");
}

#[test]
fn every_verb_that_runs_a_model_takes_the_lab() {
    for verb in ["bench", "chat", "find", "ladder", "replay", "run", "score", "timeline", "wiring"] {
        let help = stdout(&[verb, "--help"]);
        assert!(help.contains("--solution"), "{verb}: {help}");
    }
}

/// The example in crates/lab, as anybody's own change would be seen.
#[test]
fn the_labs_example_is_listed_bound_replayed_and_clocked() {
    let lab = ["--solution", "lab"];
    let ladder = json(&[&["ladder", "--json"][..], &lab].concat());
    let rungs = ladder["checkpoints"].as_array().unwrap();
    let rung = rungs.iter().find(|rung| rung["name"] == "wider-norm").unwrap();
    assert!(rung["source"].as_str().unwrap().starts_with("crates/lab/src/lib.rs:"), "{rung}");
    // Made from an older rung, it is not the newest.
    assert_eq!(ladder["aliases"], json(&["ladder", "--json"])["aliases"]);
    let changed = stdout(&[&["wiring", "wider-norm", "--diff"], &TINY[..], &lab].concat());
    assert!(changed.contains("wide-sums"), "{changed}");
    let quick = ["--iterations", "1", "--warmup", "0", "--threads", "1", "--ceilings", "none"];
    let replay = [&["replay", "--case", "wider-norm:decode:16", "--json"], &TINY[..], &lab, &quick].concat();
    let replay = json(&replay);
    assert_eq!(replay["cases"][0]["subject"]["solution"], "lab", "{replay}");
    let bench = ["bench", "--variant", "selected", "--variant", "wider-norm", "--json"];
    let short = ["--repeats", "2", "--input-len", "8", "--output-len", "3", "--threads", "1"];
    let bench = json(&[&bench, &TINY[..], &lab, &short].concat());
    assert!(bench.to_string().contains("wide-sums/"), "what was bound is in the record");
}

/// A project in `directory` with a kernel of every operator and a checkpoint.
fn full_project(directory: &Path) -> PathBuf {
    let project = directory.join("my-own-lab");
    let made = stdout(&["new", "project", project.to_str().unwrap()]);
    assert!(made.contains("project 'my-own-lab'"), "{made}");
    let within = |arguments: &[&str]| {
        let output = hourglass(arguments).current_dir(&project).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for operator in ops::Registry::standard().operators() {
        within(&["new", "kernel", operator.name(), &format!("own-{}", operator.name().replace('_', "-"))]);
    }
    within(&["new", "checkpoint", "own-rung", "--from", "fast", "--with", "linear:own-linear"]);
    project
}

/// What a command that must succeed says.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (text, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}{error}", output.status);
    text
}

/// The compiler on a file of a project, with the libraries that this test run has built. Cargo would build them again for a
/// workspace of its own, which takes minutes; that it finds them all can be asked (`tree`).
fn rustc(project: &Path, arguments: &[&str], libraries: &[&str]) -> Command {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let newest = |name: &str| {
        let prefix = format!("lib{name}-");
        let files = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
        let ours = files.filter(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with(&prefix) && name.ends_with(".rlib")
        });
        ours.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).unwrap()
    };
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(project).args(["--edition", "2024", "-O", "-L"]).arg(format!("dependency={}", deps.display()));
    for library in libraries {
        command.arg("--extern").arg(format!("{library}={}", newest(library).display()));
    }
    command.args(arguments);
    command
}

#[test]
fn a_project_elsewhere_is_the_same_program_with_its_own_registry() {
    let directory = tempfile::tempdir().unwrap();
    let project = full_project(directory.path());
    let lib = ["src/lib.rs", "--crate-name", "my_own_lab"];
    said(&mut rustc(&project, &[&lib[..], &["--test", "-o", "tests"]].concat(), &["ops", "model"]));
    let tests = said(Command::new(project.join("tests")).current_dir(&project).arg("--nocapture"));
    assert!(tests.contains("2 passed") && tests.contains("own-norm-rope-append/portable"), "{tests}");

    said(&mut rustc(&project, &[&lib[..], &["--crate-type", "lib", "-o", "libmy_own_lab.rlib"]].concat(), &["ops"]));
    let main = ["src/main.rs", "--extern", "my_own_lab=libmy_own_lab.rlib", "-L", ".", "-o", "program"];
    said(&mut rustc(&project, &main, &["hourglass", "ops"]));
    let ladder = said(Command::new(project.join("program")).args(["ladder", "--solution", "lab", "--json"]));
    let ladder: serde_json::Value = serde_json::from_str(&ladder).unwrap();
    assert_eq!(ladder["aliases"][0]["checkpoint"], "own-rung", "made from the newest rung, it is the newest");

    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let tree = said(cargo.args(["tree", "--offline", "--depth", "1"]).current_dir(&project));
    assert!(
        tree.starts_with("my-own-lab ") && tree.contains("hourglass ") && tree.contains("hourglass-ops "),
        "{tree}"
    );
}

#[test]
fn mistakes_that_do_not_compile_say_what_is_expected() {
    let directory = tempfile::tempdir().unwrap();
    let project = directory.path().join("my-own-lab");
    stdout(&["new", "project", project.to_str().unwrap()]);
    let file = project.join("src/lib.rs");
    let good = std::fs::read_to_string(&file).unwrap();
    let fields = "isa: \"portable\", features: &[], nmse: 1.6e-5, because: \"it is wrong\", run: wrong";
    let message = |function: &str, fields: &str| {
        let kernel = format!("kernel! {{ operator: \"add\", name: \"wrong\", {fields} }}");
        std::fs::write(&file, format!("{good}\n{function}\npub static WRONG: Kernel = {kernel};\n")).unwrap();
        let lib = ["src/lib.rs", "--crate-name", "my_own_lab", "--crate-type", "lib", "--emit", "metadata"];
        let output = rustc(&project, &lib, &["ops"]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let right = message("fn wrong(_call: &Invocation<'_>) {}", fields);
    assert!(right.0, "{}", right.1);
    let (compiled, text) = message("fn wrong(_call: &mut Invocation<'_>, _rows: usize) {}", fields);
    assert!(!compiled && text.contains("mismatched types") && text.contains("run: wrong"), "{text}");
    assert!(text.contains("expected fn pointer `for<'a, 'b> fn(&'a ops::Invocation<'b>)`"), "{text}");
    let (compiled, text) =
        message("fn wrong(_call: &Invocation<'_>) {}", &fields.replace("because: \"it is wrong\", ", ""));
    assert!(!compiled && text.contains("expected these fields in this order") && text.contains("because:"), "{text}");
}

/// The same by cargo itself, which builds everything again.
#[test]
#[ignore = "takes minutes: a workspace elsewhere shares no crate of this one; run it by name after changing the template"]
fn a_project_elsewhere_builds_and_tests_with_cargo() {
    let directory = tempfile::tempdir().unwrap();
    let project = full_project(directory.path());
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        said(
            command
                .args(arguments)
                .args(["--release", "--offline"])
                .current_dir(&project)
                .env_remove("CARGO_TARGET_DIR"),
        )
    };
    cargo(&["test"]);
    let mut run = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    run.args(["run", "--release", "--offline", "--quiet", "--", "ladder", "--solution", "lab"]).current_dir(&project);
    assert!(said(run.env_remove("CARGO_TARGET_DIR")).contains("own-rung"));
}
