//! Answers of bounded size: a page of a list with a cursor to the next, and a large value with what was left out named.
//! Not here: what is in them.

use anyhow::Result;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::failure::usage;

const MAX_ROWS: u32 = 200;
const MAX_BYTES: u32 = 256 << 10;
const ROWS: u32 = 50;
const BYTES: u32 = 24 << 10;
/// What naming a part that was left out takes at most.
const STUB: usize = 400;

/// How much of an answer is wanted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    /// `next_cursor` of the answer before; the other arguments must be as they were.
    pub(super) cursor: Option<String>,
    /// Rows at most: 1 to 200, 50 unless given.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Bytes of structured content at most: 1024 to 262144, 24576 unless given.
    #[schemars(range(min = 1024, max = 262144))]
    max_bytes: Option<u32>,
}

impl Page {
    fn rows(&self) -> Result<usize> {
        within("limit", self.limit.unwrap_or(ROWS), 1, MAX_ROWS)
    }

    /// # Errors
    /// A number outside its bounds.
    pub(super) fn bytes(&self) -> Result<usize> {
        within("max_bytes", self.max_bytes.unwrap_or(BYTES), 1024, MAX_BYTES)
    }

    /// The rows of `items` that this page has; `of` tells one list from another.
    ///
    /// # Errors
    /// A cursor of another list, a number outside its bounds.
    pub(super) fn of(&self, items: &[Value], of: &str) -> Result<Rows> {
        let (rows, bytes) = (self.rows()?, self.bytes()?);
        let mark = &record::file_digest(of.as_bytes())[..8];
        let from = match self.cursor.as_deref() {
            None => 0,
            Some(cursor) => cursor
                .split_once('.')
                .filter(|(_, other)| *other == mark)
                .and_then(|(from, _)| from.parse::<usize>().ok())
                .filter(|from| *from <= items.len())
                .ok_or_else(|| {
                    usage("cursor: not one of this list as it is now; call again without it, with the same arguments")
                })?,
        };
        let (mut taken, mut used) = (Vec::new(), 0);
        for (index, item) in items.iter().enumerate().skip(from).take(rows) {
            let left = bytes - used;
            let item = if size(item) <= left {
                item.clone()
            } else if taken.is_empty() {
                outline(item, &format!("/{index}"), left)
            } else {
                break;
            };
            used = (used + size(&item)).min(bytes);
            taken.push(item);
        }
        let next = from + taken.len();
        let next_cursor = (next < items.len()).then(|| format!("{next}.{mark}"));
        Ok(Rows { rows: taken, from, total: items.len(), next_cursor })
    }
}

fn within(name: &str, found: u32, least: u32, most: u32) -> Result<usize> {
    if !(least..=most).contains(&found) {
        return Err(usage(format!("{name} {found}: expected {least} to {most}")));
    }
    Ok(found as usize)
}

/// One page of a list.
pub(super) struct Rows {
    pub(super) rows: Vec<Value>,
    from: usize,
    total: usize,
    next_cursor: Option<String>,
}

impl Rows {
    /// Adds the page to an answer: `name`, `total`, `from`, and `next_cursor` unless this is the last.
    pub(super) fn put(self, name: &str, answer: &mut Map<String, Value>) {
        answer.insert("total".to_owned(), json!(self.total));
        answer.insert("from".to_owned(), json!(self.from));
        answer.insert(name.to_owned(), Value::Array(self.rows));
        if let Some(cursor) = self.next_cursor {
            answer.insert("next_cursor".to_owned(), cursor.into());
        }
    }

    /// Which rows of the list these are.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.from..self.from + self.rows.len()
    }

    /// In words, for the end of a text.
    pub(super) fn words(&self) -> String {
        let last = self.from + self.rows.len();
        match &self.next_cursor {
            Some(cursor) => format!("{} to {last} of {}; next_cursor {cursor}\n", self.from + 1, self.total),
            None => String::new(),
        }
    }
}

/// Bytes of a value as JSON without spaces.
pub(super) fn size(value: &Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).expect("counting bytes does not fail");
    counter.0
}

/// The value if it has at most `budget` bytes, else as much of it as fits, with `{"not_shown": ...}` where something is
/// left out and the JSON pointer by which it can be asked for. May exceed a small budget by the size of one such note.
pub(super) fn outline(value: &Value, pointer: &str, budget: usize) -> Value {
    if size(value) <= budget {
        return value.clone();
    }
    match value {
        Value::Object(fields) if budget > STUB => {
            let mut order: Vec<_> =
                fields.iter().map(|(key, field)| (size(field) + key.len() + 4, key, field)).collect();
            order.sort_unstable_by_key(|(bytes, key, _)| (*bytes, *key));
            let (mut shown, mut left) = (Map::new(), budget - STUB);
            for (index, (bytes, key, field)) in order.iter().enumerate() {
                let share = left / (order.len() - index);
                if *bytes > share && share < STUB {
                    let rest = order.len() - index;
                    shown.insert(
                        "(not shown)".to_owned(),
                        json!({"not_shown": format!("{rest} fields"), "pointer": pointer}),
                    );
                    break;
                }
                let field = outline(field, &format!("{pointer}/{}", escaped(key)), share.saturating_sub(key.len() + 4));
                left = left.saturating_sub(size(&field) + key.len() + 4);
                shown.insert((*key).clone(), field);
            }
            Value::Object(shown)
        }
        Value::Array(items) if budget > STUB => {
            let (mut shown, mut left) = (Vec::new(), budget - STUB);
            for item in items {
                let bytes = size(item) + 1;
                if bytes > left {
                    break;
                }
                left -= bytes;
                shown.push(item.clone());
            }
            let rest = items.len() - shown.len();
            shown.push(json!({"not_shown": format!("{rest} of {} items", items.len()), "pointer": pointer}));
            Value::Array(shown)
        }
        Value::String(text) => {
            let head: String = text.chars().take(budget.min(120) / 4).collect();
            json!({"not_shown": format!("text of {} bytes that begins '{head}'", text.len()), "pointer": pointer})
        }
        Value::Array(items) => json!({"not_shown": format!("{} items", items.len()), "pointer": pointer}),
        Value::Object(fields) => json!({"not_shown": format!("{} fields", fields.len()), "pointer": pointer}),
        scalar => scalar.clone(),
    }
}

/// A key as a JSON pointer spells it.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn page(cursor: Option<&str>, limit: u32, max_bytes: u32) -> Page {
        Page { cursor: cursor.map(str::to_owned), limit: Some(limit), max_bytes: Some(max_bytes) }
    }

    #[test]
    fn pages_cover_a_list_once_each_row() {
        let items: Vec<Value> = (0..47).map(|index| json!({"index": index, "text": "x".repeat(index * 10)})).collect();
        for (limit, bytes) in [(10, 262_144), (200, 1024), (1, 1024)] {
            let (mut seen, mut cursor) = (Vec::new(), None);
            loop {
                let rows = page(cursor.as_deref(), limit, bytes).of(&items, "list").unwrap();
                assert!(!rows.rows.is_empty() && rows.rows.iter().map(size).sum::<usize>() <= bytes as usize);
                let mut answer = Map::new();
                rows.put("rows", &mut answer);
                seen.extend(answer["rows"].as_array().unwrap().clone());
                cursor = answer.get("next_cursor").map(|cursor| cursor.as_str().unwrap().to_owned());
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(seen, items);
        }
    }

    #[test]
    fn a_cursor_of_another_list_is_refused() {
        let items = vec![json!(1), json!(2)];
        let mut answer = Map::new();
        page(None, 1, 1024).of(&items, "one").unwrap().put("rows", &mut answer);
        let cursor = answer["next_cursor"].as_str().unwrap();
        assert!(page(Some(cursor), 1, 1024).of(&items, "one").is_ok());
        for (cursor, of) in [(cursor, "other"), ("99.00000000", "one"), ("x", "one"), ("-1.", "one")] {
            assert!(page(Some(cursor), 1, 1024).of(&items, of).is_err());
        }
        assert!(page(None, 0, 1024).of(&items, "one").is_err() && page(None, 1, 9).of(&items, "one").is_err());
    }

    #[test]
    fn what_is_too_large_is_named_and_can_be_asked_for() {
        let value =
            json!({"small": 1, "samples": (0..10_000).collect::<Vec<_>>(), "deep": {"a/b": "x".repeat(50_000)}});
        let shown = outline(&value, "", 4096);
        assert!(size(&shown) <= 4096, "{}", size(&shown));
        assert_eq!(shown["small"], 1);
        let pointer = shown["samples"].as_array().unwrap().last().unwrap()["pointer"].as_str().unwrap();
        assert_eq!(value.pointer(pointer).unwrap(), &value["samples"]);
        let pointer = shown["deep"]["a/b"]["pointer"].as_str().unwrap();
        assert_eq!(value.pointer(pointer).unwrap(), &value["deep"]["a/b"]);
        let many: Map<String, Value> = (0..100_000).map(|index| (index.to_string(), json!("x"))).collect();
        let shown = outline(&Value::Object(many), "", 4096);
        assert!(size(&shown) <= 4096 && shown["(not shown)"]["not_shown"].as_str().unwrap().contains("fields"));
    }
}
