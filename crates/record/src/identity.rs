//! One spelling of a JSON value and its SHA-256: what workloads and conditions are compared by.
//! What goes into a workload is in `workload.rs`.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// JSON with sorted keys and no spaces: equal values have equal text.
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

/// Lower-case hexadecimal SHA-256 of the value's canonical JSON.
pub fn identity(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("records hold only strings, finite numbers and string keys");
    hex(&Sha256::digest(canonical_json(&value)))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// The map's own order is not relied on: another crate of the build may switch serde_json to insertion order.
fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (index, (key, field)) in fields.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(field, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_spaces_gone() {
        let value = serde_json::json!({"b": [1, {"z": null, "a": "x \"y\""}], "a": 2.5});
        assert_eq!(canonical_json(&value), r#"{"a":2.5,"b":[1,{"a":"x \"y\"","z":null}]}"#);
    }

    #[test]
    fn the_hash_is_the_one_of_the_text() {
        // printf '{"a":1}' | sha256sum
        let expected = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862";
        assert_eq!(identity(&serde_json::json!({"a": 1})), expected);
    }
}
