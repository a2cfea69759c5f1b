//! Digests of JSON values. The encoding is type-tagged, key-sorted, length-prefixed and versioned, so that the digest
//! does not depend on the build, the JSON library or the order of map keys.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Part of every digest; changes with the encoding.
const VERSION: u8 = 1;

/// A 256-bit digest of a JSON value. Printed as `d1:` and 64 hexadecimal digits; the `1` is the version of the
/// encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of one JSON value.
    pub fn of(value: &Value) -> Self {
        let mut encoder = Encoder::new();
        encoder.value(value);
        encoder.finish()
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The first 64 bits, where a collision only costs a comparison that comes out wrong.
    pub(crate) fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The first 32 bits, for short forms.
    pub(crate) fn prefix(&self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

/// Encodes typed values into a digest. Most parts are a few bytes, so they are collected before they are hashed.
pub(crate) struct Encoder {
    hasher: blake3::Hasher,
    buffer: [u8; BUFFER_BYTES],
    used: usize,
}

/// A multiple of the block of the hash, and enough for the arguments of most calls.
const BUFFER_BYTES: usize = 256;

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    pub(crate) fn new() -> Self {
        let mut buffer = [0; BUFFER_BYTES];
        buffer[0] = VERSION;
        Self { hasher: blake3::Hasher::new(), buffer, used: 1 }
    }

    pub(crate) fn finish(mut self) -> Digest {
        self.flush();
        Digest(*self.hasher.finalize().as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) {
        if bytes.len() > BUFFER_BYTES - self.used {
            self.flush();
        }
        match self.buffer.get_mut(self.used..self.used + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.used += bytes.len();
            }
            // Longer than the buffer, which is empty now.
            None => drop(self.hasher.update(bytes)),
        }
    }

    fn flush(&mut self) {
        self.hasher.update(&self.buffer[..self.used]);
        self.used = 0;
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.tagged(b's', text.as_bytes());
    }

    pub(crate) fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.byte(b'n'),
            Value::Bool(false) => self.byte(b'f'),
            Value::Bool(true) => self.byte(b't'),
            Value::Number(number) => self.number(number),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.length(b'a', items.len());
                items.iter().for_each(|item| self.value(item));
            }
            Value::Object(map) => {
                // Sorted here, because the map may keep another order.
                let mut keys: Vec<&String> = map.keys().collect();
                keys.sort_unstable();
                self.length(b'o', keys.len());
                for key in keys {
                    self.text(key);
                    self.value(&map[key]);
                }
            }
        }
    }

    fn number(&mut self, number: &serde_json::Number) {
        if let Some(n) = number.as_u64() {
            self.byte(b'u');
            self.write(&n.to_be_bytes());
        } else if let Some(n) = number.as_i64() {
            self.byte(b'i');
            self.write(&n.to_be_bytes());
        } else if let Some(n) = number.as_f64() {
            self.byte(b'd');
            self.write(&n.to_bits().to_be_bytes());
        } else {
            self.tagged(b'N', number.to_string().as_bytes());
        }
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.length(tag, bytes.len());
        self.write(bytes);
    }

    fn length(&mut self, tag: u8, length: usize) {
        self.byte(tag);
        self.write(&(length as u64).to_be_bytes());
    }

    fn byte(&mut self, byte: u8) {
        self.write(&[byte]);
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{VERSION}:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a digest of version {VERSION}")))
    }
}

fn parse(text: &str) -> Option<Digest> {
    let hex = text.strip_prefix("d1:")?.as_bytes();
    if hex.len() != 64 {
        return None;
    }
    let mut bytes = [0u8; 32];
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Digest(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_and_boundaries_never_collide() {
        let values = [
            json!(null),
            json!(false),
            json!(0),
            json!(0.0),
            json!("0"),
            json!(""),
            json!([]),
            json!({}),
            json!([[]]),
            json!(["ab", "c"]),
            json!(["a", "bc"]),
            json!({"a": "b"}),
            json!(["a", "b"]),
            json!(-1),
            json!(1),
            json!(u64::MAX),
        ];
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate() {
                assert_eq!(Digest::of(a) == Digest::of(b), i == j, "{a} and {b}");
            }
        }
    }

    #[test]
    fn key_order_does_not_matter() {
        let a: Value = serde_json::from_str(r#"{"x":1,"y":{"b":2,"a":3}}"#).unwrap();
        let b: Value = serde_json::from_str(r#"{"y":{"a":3,"b":2},"x":1}"#).unwrap();
        assert_eq!(Digest::of(&a), Digest::of(&b));
    }

    #[test]
    fn text_form_round_trips() {
        let digest = Digest::of(&json!({"a": [1, 2.5, "ü"]}));
        assert_eq!(serde_json::from_value::<Digest>(serde_json::to_value(digest).unwrap()).unwrap(), digest);
        assert!(serde_json::from_value::<Digest>(json!("d2:00")).is_err());
    }
}
