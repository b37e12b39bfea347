//! How Python writes values: `json.dumps` and `str`, which chat templates were written against.
//! Not here: the templates, or reading JSON.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Values nested deeper are refused: writing them recurses.
const MAX_DEPTH: usize = 100;

/// The keyword arguments of `json.dumps` that templates use.
pub(crate) struct JsonStyle {
    pub(crate) ensure_ascii: bool,
    /// Spaces per level; None writes one line.
    pub(crate) indent: Option<usize>,
    /// Between items, and between key and value.
    pub(crate) separators: (String, String),
    pub(crate) sort_keys: bool,
}

/// `json.dumps(value)`. Errors: an undefined value or one nested too deep.
pub(crate) fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    json(&mut out, value, style, 0)?;
    Ok(out)
}

fn json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            bracket(out, ('[', ']'), items.len(), style, depth, |out, i| json(out, &items[i], style, depth + 1))?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort_by_key(|key| key.to_string());
            }
            bracket(out, ('{', '}'), keys.len(), style, depth, |out, i| {
                json_string(out, &keys[i].to_string(), style.ensure_ascii);
                out.push_str(&style.separators.1);
                json(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        kind => return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} is not JSON serializable"))),
    }
    Ok(())
}

fn bracket(
    out: &mut String,
    (open, close): (char, char),
    count: usize,
    style: &JsonStyle,
    depth: usize,
    mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.separators.0);
        }
        if let Some(width) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * (depth + 1)));
        }
        item(out, i)?;
    }
    if let Some(width) = style.indent.filter(|_| count > 0) {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', width * depth));
    }
    out.push(close);
    Ok(())
}

/// With `ensure_ascii`, the two private planes stay as they are: the escaper of user text (`escape`) borrows their
/// characters and must find them again.
fn json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !c.is_ascii() && c < '\u{f0000}') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a String cannot fail");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `str(value)`, as `{{ value }}` prints it; undefined prints nothing.
pub(crate) fn to_text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_string()),
        _ => {
            let mut out = String::new();
            repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => repr_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                repr(out, &item, depth + 1)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").expect("writing to a String cannot fail"),
    }
    Ok(())
}

fn repr_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if u32::from(c) < 0x100 && c.is_control() => {
                write!(out, "\\x{:02x}", u32::from(c)).expect("writing to a String cannot fail");
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Integers as they are, floats as Python's `repr`: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(v) = f64::try_from(value.clone()) else { return value.to_string() };
    if !v.is_finite() {
        return if v.is_nan() { "NaN".into() } else { format!("{}Infinity", if v < 0.0 { "-" } else { "" }) };
    }
    if v == 0.0 || (1e-4..1e16).contains(&v.abs()) {
        return format!("{v:?}");
    }
    let text = format!("{v:e}");
    let (digits, exponent) = text.split_once('e').expect("the e format has an exponent");
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let detail = format!("values nested more than {MAX_DEPTH} deep cannot be written");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        let pairs = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e-4, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e300, "1e+300"),
        ];
        for (value, expected) in pairs {
            assert_eq!(number(&Value::from(value)), expected);
        }
    }

    #[test]
    fn str_of_containers() {
        let value =
            Value::from(minijinja::value::Serde(serde_json::json!({"a": [1, 2.5, null, true, "x'y"], "b": {}})));
        assert_eq!(to_text(&value).unwrap(), r#"{'a': [1, 2.5, None, True, "x'y"], 'b': {}}"#);
    }
}
