//! Places in a record: JSON pointers whose steps may also choose an element by its fields, or take all of them.
//! Not here: what is made of the values (`value.rs`).

use anyhow::{Result, bail};
use serde_json::Value;

/// The values at `pointer`, each with the name of the field that it stands in.
///
/// A step is a field, an index, `*` for every element of a list, or `[KEY=WORDS;KEY=WORDS]` for the one element of a list whose
/// fields say so; KEY may go deeper with dots.
///
/// # Errors
/// A step that leads nowhere, named with what there is instead; a selector that fits several elements.
pub(crate) fn resolve<'a>(record: &'a Value, pointer: &str) -> Result<Vec<(String, &'a Value)>> {
    let mut found = vec![(String::new(), record)];
    for step in steps(pointer)? {
        let mut next = Vec::new();
        for (name, value) in found {
            if step == "*" {
                let Some(items) = value.as_array() else { bail!("{pointer}: '*' needs a list, found {}", kind(value)) };
                next.extend(items.iter().map(|item| (name.clone(), item)));
            } else if let Some(conditions) = step.strip_prefix('[').and_then(|step| step.strip_suffix(']')) {
                next.push((name, select(value, conditions).map_err(|why| anyhow::anyhow!("{pointer}: {why}"))?));
            } else {
                let (value, named) = match value {
                    Value::Object(fields) => (fields.get(&step), true),
                    Value::Array(items) => (step.parse().ok().and_then(|index: usize| items.get(index)), false),
                    _ => (None, false),
                };
                let Some(value) = value else {
                    bail!("{pointer}: '{step}' is not there; there is {}", kind(found_in(record, pointer, &step)))
                };
                next.push((if named { step.clone() } else { name }, value));
            }
        }
        found = next;
    }
    if found.is_empty() {
        bail!("{pointer}: '*' went over an empty list");
    }
    Ok(found)
}

/// The value in which a step was looked up, for a message; the record itself where the way to it has selectors.
fn found_in<'a>(record: &'a Value, pointer: &str, step: &str) -> &'a Value {
    let before = pointer.split(&format!("/{step}")).next().unwrap_or_default();
    resolve(record, before).ok().and_then(|found| found.first().map(|(_, value)| *value)).unwrap_or(record)
}

/// The steps of a pointer: what stands between slashes that are in no brackets.
fn steps(pointer: &str) -> Result<Vec<String>> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let Some(rest) = pointer.strip_prefix('/') else { bail!("{pointer}: a place in a record begins with '/'") };
    let mut steps = vec![String::new()];
    let mut depth = 0_usize;
    for c in rest.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (c, steps.last_mut()) {
            ('/', _) if depth == 0 => steps.push(String::new()),
            (c, Some(step)) => step.push(c),
            (_, None) => {}
        }
    }
    Ok(steps)
}

fn select<'a>(list: &'a Value, conditions: &str) -> Result<&'a Value> {
    let Some(items) = list.as_array() else { bail!("[{conditions}] needs a list, found {}", kind(list)) };
    let conditions = conditions.split(';').map(|condition| match condition.split_once('=') {
        Some((key, words)) => Ok((key.trim(), words.trim())),
        None => bail!("[{condition}]: expected KEY=WORDS"),
    });
    let conditions = conditions.collect::<Result<Vec<_>>>()?;
    let field = |item: &'a Value, key: &str| -> Option<&'a Value> {
        key.split('.').try_fold(item, |value, part| value.get(part))
    };
    let fits = |item: &&'a Value| {
        conditions.iter().all(|(key, words)| match field(item, key) {
            Some(Value::String(text)) => text == words,
            Some(value) => {
                let shown = value.to_string();
                shown == *words
            }
            None => false,
        })
    };
    let mut fitting = items.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => bail!("{conditions:?} fit several elements; say more of the one that is meant"),
        (None, _) => {
            let seen = items.iter().take(60).filter_map(|item| field(item, conditions[0].0)).map(Value::to_string);
            bail!(
                "no element with {conditions:?}; there, {} is {}",
                conditions[0].0,
                seen.collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// What a value is, for a message.
fn kind(value: &Value) -> String {
    match value {
        Value::Object(fields) => format!("an object with {}", fields.keys().cloned().collect::<Vec<_>>().join(", ")),
        Value::Array(items) => format!("a list of {}", items.len()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn record() -> Value {
        json!({"rows": [
            {"name": "a/b", "kernel": {"operator": "x"}, "us": 1, "phase": "decode"},
            {"name": "c", "kernel": {"operator": "y"}, "us": 2, "phase": "decode"},
        ]})
    }

    #[test]
    fn steps_choose_by_field_index_and_all() {
        let record = record();
        let at =
            |pointer: &str| resolve(&record, pointer).unwrap().into_iter().map(|(_, v)| v.clone()).collect::<Vec<_>>();
        assert_eq!(at("/rows/1/us"), [json!(2)]);
        assert_eq!(at("/rows/[name=a/b]/us"), [json!(1)]);
        assert_eq!(at("/rows/[phase=decode;kernel.operator=y]/us"), [json!(2)]);
        assert_eq!(at("/rows/*/us"), [json!(1), json!(2)]);
        assert_eq!(resolve(&record, "/rows/*/us").unwrap()[0].0, "us");
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        let record = record();
        let fault = |pointer: &str| resolve(&record, pointer).unwrap_err().to_string();
        assert!(fault("/row").contains("'row'") && fault("/row").contains("rows"), "{}", fault("/row"));
        assert!(fault("/rows/[name=z]").contains("\"c\""), "{}", fault("/rows/[name=z]"));
        assert!(fault("/rows/[phase=decode]").contains("several"));
        assert!(fault("/rows/7").contains("a list of 2"), "{}", fault("/rows/7"));
        assert!(fault("rows").contains("begins with"));
    }
}
