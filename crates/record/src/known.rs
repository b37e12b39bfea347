//! A value that is known, or the reason why it is not and how to get it: what is missing is never 0, "" or null.
//! Numbers with units are in `quantity.rs`.

use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A value, or why there is none.
///
/// In JSON either the value itself or `{"unavailable": "why", "how_to_get": "..."}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Known<T> {
    Is(T),
    Unavailable(Unavailable),
}

/// Why something is missing, and what would supply it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unavailable {
    pub unavailable: String,
    pub how_to_get: String,
}

impl<T> Known<T> {
    /// What is missing because of `why`, and what the reader can do to get it.
    pub fn unavailable(why: impl Into<String>, how_to_get: impl Into<String>) -> Known<T> {
        Known::Unavailable(Unavailable { unavailable: why.into(), how_to_get: how_to_get.into() })
    }

    /// The value, if there is one.
    pub fn known(&self) -> Option<&T> {
        match self {
            Known::Is(value) => Some(value),
            Known::Unavailable(_) => None,
        }
    }

    /// The reason, if there is no value.
    pub fn missing(&self) -> Option<&Unavailable> {
        match self {
            Known::Is(_) => None,
            Known::Unavailable(missing) => Some(missing),
        }
    }
}

// By hand, because serde's untagged enums answer every mistake with "did not match any variant".
impl<'de, T: DeserializeOwned> Deserialize<'de> for Known<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Known<T>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.is_null() {
            return Err(D::Error::custom("null stands where a value or {\"unavailable\": why} was expected"));
        }
        let missing = value.as_object().is_some_and(|fields| fields.contains_key("unavailable"));
        if missing {
            let reason: Unavailable = serde_json::from_value(value).map_err(D::Error::custom)?;
            if reason.unavailable.trim().is_empty() {
                return Err(D::Error::custom("\"unavailable\" is empty: it must say why the value is missing"));
            }
            return Ok(Known::Unavailable(reason));
        }
        serde_json::from_value(value).map(Known::Is).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn missing_stays_missing_through_a_round_trip() {
        let missing: Known<String> = Known::unavailable("no git here", "build in a checkout");
        let text = serde_json::to_string(&missing).unwrap();
        assert_eq!(text, r#"{"unavailable":"no git here","how_to_get":"build in a checkout"}"#);
        assert_eq!(serde_json::from_str::<Known<String>>(&text).unwrap(), missing);
        let known = Known::Is("abc".to_owned());
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(text, "\"abc\"");
        assert_eq!(serde_json::from_str::<Known<String>>(&text).unwrap(), known);
    }

    #[test]
    fn null_and_an_empty_reason_are_refused() {
        for text in ["null", r#"{"unavailable":" ","how_to_get":"x"}"#, r#"{"unavailable":"x"}"#] {
            assert!(serde_json::from_str::<Known<String>>(text).is_err(), "{text}");
        }
    }
}
