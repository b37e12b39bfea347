//! The texts of stubs: a kernel that begins as a copy of the reference, a checkpoint that begins as its parent.
//! Not here: where they are written (`edit.rs`).

/// A stub and what the rest of the file calls it.
pub(super) struct Stub {
    /// Ends with a line end.
    pub(super) code: String,
    /// The line in the list.
    pub(super) entry: String,
    /// What it defines.
    pub(super) names: Vec<String>,
}

/// What references are written with, besides what `ops` has at its root.
const PARTS: [&str; 8] = ["columns", "normed", "part_of", "placed", "position", "projected", "sequence_of", "LANES"];

/// A kernel of `operator` called `name`, whose function is `reference` under another name.
pub(super) fn kernel(operator: &str, name: &str, reference: &str) -> Stub {
    let (function, constant) = (name.replace('-', "_"), name.replace('-', "_").to_uppercase());
    let mut body = reference.replacen("fn reference(", &format!("fn {function}("), 1);
    body = body.trim_start_matches("pub(super) ").to_owned();
    let uses = |part: &&&str| body.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == **part);
    let parts: Vec<_> = PARTS.iter().filter(uses).copied().collect();
    if let (false, Some(brace)) = (parts.is_empty(), body.find("{\n")) {
        let list = if let [part] = parts[..] { part.to_owned() } else { format!("{{{}}}", parts.join(", ")) };
        body.insert_str(brace + 2, &format!("    use ops::operators::parts::{list};\n"));
    }
    let code = format!(
        "/// {name}: what it does otherwise than the kernel in use, and why that should be faster.\n\
         ///\n\
         /// Floor: the bytes of its calls (`hourglass wiring`) over the bandwidth (`hourglass ceilings`).\n\
         /// Outcome: not measured yet.\n\
         {body}\n\
         static {constant}: Kernel = kernel! {{\n    \
             operator: \"{operator}\", name: \"{name}\", isa: \"portable\", features: &[],\n    \
             nmse: 1.6e-5, because: \"one bfloat16 rounding of each result\", run: {function},\n\
         }};\n"
    );
    Stub { code, entry: format!("&{constant},"), names: vec![function, constant] }
}

/// A checkpoint called `name`, made from the constant at `parent`, which prefers these (operator, kernel) pairs.
pub(super) fn checkpoint(name: &str, parent: &str, prefers: &[(&str, &str)]) -> Stub {
    let constant = name.replace('-', "_").to_uppercase();
    let choices: Vec<_> =
        prefers.iter().map(|(operator, kernel)| format!("ladder::choose(\"{operator}\", \"{kernel}\")")).collect();
    let (prefers, change) = if choices.is_empty() {
        (
            "    // prefers: &[ladder::choose(\"operator\", \"kernel\")],\n".to_owned(),
            "nothing yet: say what is different from the parent".to_owned(),
        )
    } else {
        let kernels: Vec<_> = prefers.iter().map(|(operator, kernel)| format!("{operator} is {kernel}")).collect();
        (format!("    prefers: &[{}],\n", choices.join(", ")), kernels.join(", "))
    };
    let code = format!(
        "/// Floor: what it could save at most. Outcome: not measured yet.\n\
         const {constant}: Checkpoint = Checkpoint {{\n    \
             name: \"{name}\",\n    \
             parent: Some(&{parent}),\n    \
             change: \"{change}\",\n    \
             hypothesis: \"say what a profile of the parent shows if this is to pay\",\n\
         {prefers}    \
             tolerance: Tolerance {{ nmse: 4e-3, reason: \"bfloat16 roundings fall elsewhere\" }},\n    \
             file: file!(),\n    \
             line: line!(),\n    \
             ..{parent}\n\
         }};\n"
    );
    Stub { code, entry: format!("&{constant},"), names: vec![constant] }
}

/// The text of a function at the outermost level of a formatted file, from `fn` to its closing brace and line end.
pub(super) fn function(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines();
    let first = lines.find(|line| {
        let line = line.strip_prefix("pub(super) ").unwrap_or(line);
        line.strip_prefix("fn ").is_some_and(|rest| rest.starts_with(&format!("{name}(")))
    })?;
    let mut function = format!("{first}\n");
    for line in lines {
        function += line;
        function.push('\n');
        if line == "}" {
            return Some(function);
        }
    }
    None
}

/// The name of the checkpoint constant whose definition contains line `line` (from 1) of a file.
pub(super) fn constant_before(text: &str, line: usize) -> Option<&str> {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let definition = lines.iter().rev().find(|line| line.contains(": Checkpoint = "))?;
    let mut words = definition.split(':').next()?.split_whitespace();
    words.find(|word| ["const", "static"].contains(word))?;
    words.next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_function_is_found_whole_and_renamed() {
        let text = "use x;\n\nfn other() {\n}\n\npub(super) fn reference(i: &Invocation<'_>) {\n    if i {\n    }\n    columns(1);\n}\n\nfn last() {\n}\n";
        let reference = function(text, "reference").unwrap();
        assert!(
            reference.starts_with("pub(super) fn reference(") && reference.ends_with("columns(1);\n}\n"),
            "{reference}"
        );
        let stub = kernel("rope", "my-rope", &reference);
        let expected = "fn my_rope(i: &Invocation<'_>) {\n    use ops::operators::parts::columns;\n    if i {\n";
        assert!(stub.code.contains(expected), "{}", stub.code);
        assert_eq!(stub.entry, "&MY_ROPE,");
        assert_eq!(function(text, "missing"), None);
        assert_eq!(function("fn reference(", "reference"), None);
    }

    #[test]
    fn every_operators_reference_is_found_in_its_file() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        for operator in ops::Registry::standard().operators() {
            let text = std::fs::read_to_string(root.join(operator.kernels()[0].file)).unwrap();
            assert!(function(&text, "reference").is_some(), "{}", operator.name());
        }
    }

    #[test]
    fn every_rungs_constant_is_found_by_its_line() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for rung in ops::ladder::ALL {
            let text = std::fs::read_to_string(root.join(rung.file)).unwrap();
            let constant = constant_before(&text, rung.line as usize).unwrap().to_owned();
            let definition = text.split(&format!("pub const {constant}: Checkpoint")).nth(1).unwrap();
            assert!(
                definition.split("name: ").nth(1).unwrap().starts_with(&format!("\"{}\"", rung.name)),
                "{constant}"
            );
            assert!(seen.insert(constant), "{}", rung.name);
        }
    }
}
