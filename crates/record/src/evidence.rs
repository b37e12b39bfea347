//! How one record names another: by the SHA-256 of its file's bytes, of which people type the first twelve digits.
//! Not here: where records are kept and how a name is looked up (the binary's store).

use crate::identity::hex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Digits of a digest that make an evidence id.
pub const EVIDENCE_ID_DIGITS: usize = 12;

/// A record that something rests on. The digest says which one; schema and file only help to find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Raw")]
pub struct EvidenceRef {
    /// `name/version`.
    pub schema: String,
    /// Where the file was: relative to the folder of whoever refers to it if it lay in there, else as it was given.
    pub file: String,
    /// SHA-256 of the file's bytes, 64 lower-case hexadecimal digits.
    sha256: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Raw {
    schema: String,
    file: String,
    sha256: String,
}

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sha256 \"{found}\": expected 64 lower-case hexadecimal digits")]
pub struct NoDigest {
    found: String,
}

impl EvidenceRef {
    /// A reference to the file `file` that holds `bytes`.
    pub fn of(schema: impl Into<String>, file: impl Into<String>, bytes: &[u8]) -> EvidenceRef {
        EvidenceRef { schema: schema.into(), file: file.into(), sha256: file_digest(bytes) }
    }

    /// A reference by a digest that is known already.
    ///
    /// # Errors
    /// A text that is no digest.
    pub fn by_digest(
        schema: impl Into<String>,
        file: impl Into<String>,
        sha256: &str,
    ) -> Result<EvidenceRef, NoDigest> {
        let digest = sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !digest {
            return Err(NoDigest { found: sha256.chars().take(80).collect() });
        }
        Ok(EvidenceRef { schema: schema.into(), file: file.into(), sha256: sha256.to_owned() })
    }

    /// SHA-256 of the file's bytes, 64 lower-case hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The evidence id: the digest's first twelve digits.
    pub fn id(&self) -> &str {
        &self.sha256[..EVIDENCE_ID_DIGITS]
    }

    /// Whether these are the bytes that are meant.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        file_digest(bytes) == self.sha256
    }
}

/// SHA-256 of a file's bytes, 64 lower-case hexadecimal digits; its first [`EVIDENCE_ID_DIGITS`] are the evidence id.
pub fn file_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

impl TryFrom<Raw> for EvidenceRef {
    type Error = NoDigest;

    fn try_from(raw: Raw) -> Result<EvidenceRef, NoDigest> {
        EvidenceRef::by_digest(raw.schema, raw.file, &raw.sha256)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_id_is_the_head_of_the_files_digest() {
        // printf 'abc' | sha256sum
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let evidence = EvidenceRef::of("find/1", "find.json", b"abc");
        assert_eq!((evidence.sha256(), evidence.id()), (expected, "ba7816bf8f01"));
        assert!(evidence.is_of(b"abc") && !evidence.is_of(b"abd"));
        let text = serde_json::to_string(&evidence).unwrap();
        assert_eq!(serde_json::from_str::<EvidenceRef>(&text).unwrap(), evidence);
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for digest in ["", "abc", &"A".repeat(64), &"g".repeat(64), &"é".repeat(32)] {
            let text = format!(r#"{{"schema":"find/1","file":"a.json","sha256":"{digest}"}}"#);
            let error = serde_json::from_str::<EvidenceRef>(&text).unwrap_err().to_string();
            assert!(error.contains("64 lower-case"), "{error}");
        }
    }
}
