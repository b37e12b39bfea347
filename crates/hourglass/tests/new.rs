//! `hourglass new` and `--solution lab` through the binary: stubs that compile, hold and are listed, in the repository's file and
//! in a project elsewhere; what a wrong signature says. Not here: what kernels are held to (`ops`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
    let short = ["--repeats", "1", "--input-len", "8", "--output-len", "3", "--threads", "1"];
    let bench = json(&[&bench, &TINY[..], &lab, &short].concat());
    assert!(bench.to_string().contains("wide-sums/"), "what was bound is in the record");
}

/// Cargo, at home in a project elsewhere, sharing what this test run has built.
fn cargo(project: &Path, arguments: &[&str]) -> Output {
    let target = Path::new(env!("CARGO_BIN_EXE_hourglass")).ancestors().nth(2).unwrap();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo set for this test is not meant for the one inside.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG") || name.starts_with("CARGO_MANIFEST") || name == "RUSTC_WORKSPACE_WRAPPER" {
            command.env_remove(name);
        }
    }
    command.args(arguments).args(["--release", "--offline"]).current_dir(project).env("CARGO_TARGET_DIR", target);
    command.output().unwrap()
}

/// From nothing to a program with a kernel of every operator and a checkpoint; then two mistakes that do not compile.
#[test]
fn a_project_elsewhere_builds_the_same_program_with_its_own_registry() {
    let directory = tempfile::tempdir().unwrap();
    let project = directory.path().join("my-own-lab");
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
    let error = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let tests = cargo(&project, &["test"]);
    assert!(tests.status.success(), "{}{}", String::from_utf8_lossy(&tests.stdout), error(&tests));
    let ladder = cargo(&project, &["run", "--quiet", "--", "ladder", "--solution", "lab", "--json"]);
    assert!(ladder.status.success(), "{}", error(&ladder));
    let ladder: serde_json::Value = serde_json::from_slice(&ladder.stdout).unwrap();
    assert_eq!(ladder["aliases"][0]["checkpoint"], "own-rung", "made from the newest rung, it is the newest");

    let file = project.join("src/lib.rs");
    let good = std::fs::read_to_string(&file).unwrap();
    let kernel = |function: &str, fields: &str| {
        format!(
            "{good}\n{function}\nstatic WRONG: Kernel = kernel! {{ operator: \"add\", name: \"wrong\", {fields} }};\n"
        )
    };
    let fields = "isa: \"portable\", features: &[], nmse: 1.6e-5, because: \"it is wrong\", run: wrong";
    std::fs::write(&file, kernel("fn wrong(call: &mut Invocation<'_>, rows: usize) {}", fields)).unwrap();
    let message = error(&cargo(&project, &["build", "--lib"]));
    assert!(message.contains("mismatched types") && message.contains("run: wrong"), "{message}");
    assert!(message.contains("expected fn pointer `for<'a, 'b> fn(&'a Invocation<'b>)`"), "{message}");
    std::fs::write(
        &file,
        kernel("fn wrong(call: &Invocation<'_>) {}", &fields.replace("because: \"it is wrong\", ", "")),
    )
    .unwrap();
    let message = error(&cargo(&project, &["build", "--lib"]));
    assert!(message.contains("expected these fields in this order") && message.contains("because:"), "{message}");
}
