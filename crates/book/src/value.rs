//! Single values in sentences: arithmetic over places in records, with units that must fit.
//! Not here: places (`pointer.rs`), how a number is written (`unit.rs`).

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::pointer;
use crate::records::Records;
use crate::unit::{self, Amount};

/// The words that stand for `EXPRESSION | FORM`. Without a form the expression is a place that holds a text.
///
/// An expression is made of places (`RECORD:/POINTER`), numbers with or without a unit (`2`, `128B`), `+ - * /` and parentheses,
/// all of them apart by spaces. A place that fits many values is their sum, and a list is how many it holds.
///
/// # Errors
/// A place that is not there or was not measured, units that do not fit, a form that is none.
pub(crate) fn words(records: &Records, given: &str) -> Result<String> {
    let parts = parts(given);
    let Some(bar) = parts.iter().position(|part| part == "|") else {
        let [place] = &parts[..] else { bail!("expected a place that holds a text, or `EXPRESSION | FORM`") };
        return text(records, place);
    };
    let [form] = &parts[bar + 1..] else { bail!("expected one form after '|'") };
    if let ([place], "json") = (&parts[..bar], form.as_str()) {
        return Ok(json(records, place)?.to_string());
    }
    let mut rest = &parts[..bar];
    let amount = sum(records, &mut rest)?;
    if let Some(more) = rest.first() {
        bail!("'{more}' is too much");
    }
    unit::write(amount, form)
}

/// Whether `EXPRESSION < EXPRESSION` (or `>`) holds: for prose that says which of two is larger.
///
/// # Errors
/// It does not, with both values; or as [`words`].
pub(crate) fn expect(records: &Records, given: &str) -> Result<()> {
    let parts = parts(given);
    let Some(at) = parts.iter().position(|part| part == "<" || part == ">") else {
        bail!("expected `EXPRESSION < EXPRESSION`, or `>`");
    };
    let [left, right] = [&parts[..at], &parts[at + 1..]].map(|mut side| {
        let amount = sum(records, &mut side)?;
        match side.first() {
            Some(more) => bail!("'{more}' is too much"),
            None => Ok(amount),
        }
    });
    let (left, right) = (left?, right?);
    if left.dimension != right.dimension {
        bail!("both sides of '{}' must be of one unit", parts[at]);
    }
    let holds = if parts[at] == "<" { left.value < right.value } else { left.value > right.value };
    if !holds {
        bail!("the words around it suppose this, and it is {} and {}: say it in another way", left.value, right.value);
    }
    Ok(())
}

/// The file and line that a row of source lines names.
///
/// # Errors
/// A place that is no such row.
pub(crate) fn source_line(records: &Records, place: &str) -> Result<(String, usize)> {
    let row = json(records, place)?;
    let file = row.get("file").and_then(Value::as_str);
    let line = row.get("line").and_then(Value::as_u64).and_then(|line| usize::try_from(line).ok());
    match (file, line) {
        (Some(file), Some(line)) if line > 0 => Ok((file.to_owned(), line)),
        _ => bail!("{place} names no source line"),
    }
}

/// Words apart by spaces that are in no brackets.
fn parts(given: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0_usize;
    for c in given.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c.is_whitespace() && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn sum(records: &Records, rest: &mut &[String]) -> Result<Amount> {
    let mut total = product(records, rest)?;
    while let Some(sign @ ("+" | "-")) = rest.first().map(String::as_str) {
        *rest = &rest[1..];
        let next = product(records, rest)?;
        if next.dimension != total.dimension {
            bail!("both sides of '{sign}' must be of one unit");
        }
        total.value += if sign == "+" { next.value } else { -next.value };
    }
    Ok(total)
}

fn product(records: &Records, rest: &mut &[String]) -> Result<Amount> {
    let mut total = factor(records, rest)?;
    while let Some(sign @ ("*" | "/")) = rest.first().map(String::as_str) {
        *rest = &rest[1..];
        let next = factor(records, rest)?;
        let power = if sign == "*" { 1 } else { -1 };
        total.value = if sign == "*" { total.value * next.value } else { total.value / next.value };
        for (of, by) in total.dimension.iter_mut().zip(next.dimension) {
            *of += power * by;
        }
    }
    Ok(total)
}

fn factor(records: &Records, rest: &mut &[String]) -> Result<Amount> {
    let Some((first, after)) = rest.split_first() else { bail!("expected a value at the end") };
    *rest = after;
    if first == "(" {
        let inside = sum(records, rest)?;
        match rest.split_first() {
            Some((close, after)) if close == ")" => *rest = after,
            _ => bail!("a parenthesis is not closed"),
        }
        return Ok(inside);
    }
    if first.contains(":/") {
        return place(records, first);
    }
    let split = first.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(first.len());
    let number: f64 =
        first[..split].parse().with_context(|| format!("'{first}': expected RECORD:/POINTER or a number"))?;
    unit::amount(number, &first[split..])
}

/// What stands at a place, each value with its field's name.
fn found(records: &Records, place: &str) -> Result<Vec<(String, Value)>> {
    let (name, pointer) = place.split_once(":/").with_context(|| format!("'{place}': expected RECORD:/POINTER"))?;
    let record = records.value(name)?;
    let found = pointer::resolve(&record, &format!("/{pointer}")).with_context(|| format!("record '{name}'"))?;
    Ok(found.into_iter().map(|(field, value)| (field, value.clone())).collect())
}

/// The same, of what was measured.
fn measured(records: &Records, place: &str) -> Result<Vec<(String, Value)>> {
    let found = found(records, place)?;
    for (_, value) in &found {
        if let Some(why) = value.get("unavailable").and_then(Value::as_str) {
            bail!("{place} was not measured: {why}");
        }
    }
    Ok(found)
}

/// The one value at a place, as the record has it, even if it says why there is none.
fn json(records: &Records, place: &str) -> Result<Value> {
    let mut found = found(records, place)?;
    match (found.pop(), found.is_empty()) {
        (Some((_, value)), true) => Ok(value),
        _ => bail!("{place} fits several values; as JSON there may be one"),
    }
}

fn place(records: &Records, place: &str) -> Result<Amount> {
    let mut total: Option<Amount> = None;
    for (field, value) in measured(records, place)? {
        let amount = match &value {
            Value::Array(items) => unit::amount(items.len() as f64, "")?,
            Value::Object(reading) => match (reading.get("value").and_then(Value::as_f64), reading.get("unit")) {
                (Some(number), Some(Value::String(unit))) => unit::amount(number, unit)?,
                // An interval's middle, as a share.
                (Some(number), None) => unit::amount(number, "")?,
                _ => bail!("{place} is an object without a value: name one of its fields"),
            },
            value => match value.as_f64() {
                Some(number) => unit::amount(number, unit::of_field(&field))?,
                None => bail!("{place} is {value}, no number"),
            },
        };
        match &mut total {
            Some(total) if total.dimension == amount.dimension => total.value += amount.value,
            Some(_) => bail!("{place} fits values of several units"),
            None => total = Some(amount),
        }
    }
    total.with_context(|| format!("{place} fits nothing"))
}

fn text(records: &Records, place: &str) -> Result<String> {
    match &measured(records, place)?[..] {
        [(_, Value::String(text))] => Ok(text.clone()),
        [(_, value)] => bail!("{place} is no text but {}: say how it is written, `{place} | FORM`", cut(value)),
        several => bail!("{place} fits {} values; a text is one", several.len()),
    }
}

/// The beginning of a value, for a message.
fn cut(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn records() -> Records {
        Records::of([(
            "r",
            json!({
                "name": "x",
                "time": {"value": 2.0, "unit": "s", "n": 3},
                "lost": {"unavailable": "no PMU", "how_to_get": "bare metal"},
                "rows": [{"group": "a, b", "bytes_read": 1000, "calls": 2}, {"group": "c", "bytes_read": 500, "calls": 3}],
            }),
        )])
    }

    #[test]
    fn arithmetic_keeps_units() {
        let records = records();
        let said = |given: &str| words(&records, given).unwrap();
        assert_eq!(said("r:/name"), "x");
        assert_eq!(said("r:/time | ms"), "2,000\u{a0}ms");
        assert_eq!(said("r:/rows/*/bytes_read | kB"), "1.50\u{a0}kB");
        assert_eq!(said("r:/rows/[group=a, b]/bytes_read / r:/time * 1000000 | GB/s"), "0.500\u{a0}GB/s");
        assert_eq!(said("( r:/rows/*/bytes_read - 500B ) / r:/rows/*/bytes_read | %"), "66.7\u{a0}%");
        assert_eq!(said("r:/rows | n"), "2");
        assert_eq!(said("2 + 3 * 4 | n"), "14");
        assert!(said("r:/lost | json").contains("\"unavailable\":\"no PMU\""));
    }

    #[test]
    fn what_prose_supposes_is_checked() {
        let records = records();
        assert!(expect(&records, "r:/time > 1s").is_ok());
        for (given, part) in [("r:/time < 1s", "suppose this"), ("r:/time > 1B", "one unit"), ("r:/time", "expected")] {
            let fault = format!("{:#}", expect(&records, given).unwrap_err());
            assert!(fault.contains(part), "{given}: {fault}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let records = records();
        for (given, part) in [
            ("r:/lost | s", "no PMU"),
            ("r:/time | GB", "seconds"),
            ("r:/time + r:/rows/0/bytes_read | s", "one unit"),
            ("r:/time", "FORM"),
            ("q:/time | s", "'q'"),
            ("r:/tim | s", "'tim'"),
            ("( r:/time | s", "not closed"),
            ("r:/time r:/time | s", "too much"),
            ("r:/name | s", "no number"),
        ] {
            let fault = format!("{:#}", words(&records, given).unwrap_err());
            assert!(fault.contains(part), "{given}: {fault}");
        }
    }
}
