//! Any record as names and values, for kinds that have no table of their own: `request.prefill`, `12.5 ms (n=5)`.
//! Not here: what every record has (workload, conditions, checks); those are shown apart.

use serde_json::{Map, Value};

/// What is shown apart, at the top level.
const APART: [&str; 11] = [
    "schema",
    "created",
    "workload",
    "workload_id",
    "conditions",
    "conditions_id",
    "subject",
    "checks",
    "void",
    "host",
    "binary",
];
/// Lists up to this length are shown item by item.
const LISTED: usize = 8;
/// Levels below the top that are opened.
const DEEPEST: usize = 4;

/// One value with its place, names joined by dots.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Of a measured number.
    pub(crate) unit: String,
}

/// Every fact of a record, in the record's order.
pub(crate) fn facts(record: &Value) -> Vec<Fact> {
    let mut found = Vec::new();
    if let Value::Object(fields) = record {
        for (key, value) in fields.iter().filter(|(key, _)| !APART.contains(&key.as_str())) {
            walk(key, value, DEEPEST, &mut found);
        }
    }
    found
}

fn walk(name: &str, value: &Value, depth: usize, found: &mut Vec<Fact>) {
    let mut add = |value: String, unit: &str| found.push(Fact { name: name.to_owned(), value, unit: unit.to_owned() });
    match value {
        Value::Object(fields) => match (reading(fields), missing(fields)) {
            (Some((value, unit)), _) => add(value, unit),
            (_, Some(why)) => add(why, ""),
            _ if depth == 0 => add(format!("{} fields", fields.len()), ""),
            _ => {
                for (key, value) in fields {
                    walk(&format!("{name}.{key}"), value, depth - 1, found);
                }
            }
        },
        Value::Array(items) if items.is_empty() => add("none".to_owned(), ""),
        Value::Array(items) if items.len() > LISTED || depth == 0 => add(format!("{} items", items.len()), ""),
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            add(items.iter().map(scalar).collect::<Vec<_>>().join(", "), "");
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&format!("{name}[{index}]"), item, depth - 1, found);
            }
        }
        other => add(scalar(other), ""),
    }
}

fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A measured number and its unit.
fn reading(fields: &Map<String, Value>) -> Option<(String, &str)> {
    let (value, unit) = (fields.get("value")?.as_f64()?, fields.get("unit")?.as_str()?);
    Some((format!("{value}"), unit))
}

/// Why something is missing.
fn missing(fields: &Map<String, Value>) -> Option<String> {
    let (why, how) = (fields.get("unavailable")?.as_str()?, fields.get("how_to_get")?.as_str()?);
    Some(format!("unavailable: {why}; to get it: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_names_and_values() {
        let record = serde_json::json!({
            "schema": "x/1",
            "wall": {"value": 12.5, "unit": "ms", "n": 3},
            "peak": {"unavailable": "no counter", "how_to_get": "another machine"},
            "rows": [{"name": "a"}, {"name": "b"}],
            "samples": [1, 2, 3, 4, 5, 6, 7, 8, 9],
            "flag": false,
        });
        let found: Vec<_> =
            facts(&record).into_iter().map(|fact| format!("{}={} {}", fact.name, fact.value, fact.unit)).collect();
        let mut expected = [
            "wall=12.5 ms",
            "peak=unavailable: no counter; to get it: another machine ",
            "rows[0].name=a ",
            "rows[1].name=b ",
            "samples=9 items ",
            "flag=false ",
        ];
        expected.sort_unstable();
        let mut found_sorted = found;
        found_sorted.sort_unstable();
        assert_eq!(found_sorted, expected);
    }
}
