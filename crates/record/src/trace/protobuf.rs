//! Protocol buffers as far as a writer needs them: fields appended to a message that is a vector of bytes.
//! Not here: reading, and which fields any message has.

/// A message under construction.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Starts again, keeping the memory.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A varint field: unsigned, boolean or enumeration.
    pub(crate) fn uint(&mut self, field: u32, value: u64) -> &mut Message {
        self.tag(field, 0).varint(value)
    }

    /// A varint field of type int64 (not zigzag).
    pub(crate) fn int(&mut self, field: u32, value: i64) -> &mut Message {
        self.uint(field, value as u64)
    }

    /// A field of type fixed64.
    pub(crate) fn fixed(&mut self, field: u32, value: u64) -> &mut Message {
        self.tag(field, 1).0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A field of type double.
    pub(crate) fn double(&mut self, field: u32, value: f64) -> &mut Message {
        self.fixed(field, value.to_bits())
    }

    /// A field of type string or bytes.
    pub(crate) fn text(&mut self, field: u32, value: &str) -> &mut Message {
        self.sized(field, value.as_bytes())
    }

    /// A field that is a message, filled by `fill`.
    pub(crate) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) -> &mut Message {
        let mut inner = Message::default();
        fill(&mut inner);
        self.sized(field, inner.bytes())
    }

    fn sized(&mut self, field: u32, bytes: &[u8]) -> &mut Message {
        self.tag(field, 2).varint(bytes.len() as u64).0.extend_from_slice(bytes);
        self
    }

    fn tag(&mut self, field: u32, wire: u64) -> &mut Message {
        self.varint(u64::from(field) << 3 | wire)
    }

    fn varint(&mut self, mut value: u64) -> &mut Message {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }
}

/// The bytes that start a length-delimited field of a message that is written piece by piece.
pub(crate) fn header(field: u32, length: usize) -> Message {
    let mut header = Message::default();
    header.tag(field, 2).varint(length as u64);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_the_specifications() {
        // The examples of the encoding guide: 150 in field 1, "testing" in field 2, a message in field 3; and int64 -2.
        let mut message = Message::default();
        message.uint(1, 150);
        assert_eq!(message.bytes(), [0x08, 0x96, 0x01]);
        message.clear();
        message.text(2, "testing");
        assert_eq!(message.bytes(), [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
        message.clear();
        message.message(3, |inner| {
            inner.uint(1, 150);
        });
        assert_eq!(message.bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        message.clear();
        message.int(1, -2);
        assert_eq!(message.bytes(), [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        message.clear();
        message.double(47, 1.0);
        assert_eq!(message.bytes(), [0xf9, 0x02, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
}
