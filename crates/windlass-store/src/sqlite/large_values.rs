//! Stores large values separately from the lines they are in: rows stay small, and a value that occurs again is stored
//! once.
//!
//! In a large encoded record or message, each large value is replaced by a placeholder that names it by its content. A
//! line with placeholders starts with a character that no JSON text starts with, so small lines are never searched for
//! placeholders.

use serde_json::{Map, Value};

use super::read::decode;

/// Values with more encoded bytes than this are extracted.
const LARGE: usize = 16 << 10;
/// The prefix of a line with placeholders.
const PREFIX: char = '@';
/// The only key of a placeholder object.
const PLACEHOLDER_KEY: &str = "$windlass";

/// Extracts the large values of an encoded line and returns the shortened line, or `None` if it has none. `take` stores
/// a value and returns its name.
pub(super) fn extract(line: &str, take: impl FnMut(&[u8]) -> String) -> serde_json::Result<Option<String>> {
    if line.len() <= LARGE {
        return Ok(None);
    }
    let mut value: Value = decode(line)?;
    let mut cut = Extractor { take, found: false };
    cut.walk(&mut value)?;
    Ok(cut.found.then(|| format!("{PREFIX}{value}")))
}

/// Whether a line has placeholders.
pub(super) fn has_placeholders(line: &str) -> bool {
    line.starts_with(PREFIX)
}

/// The JSON of a line, including placeholders.
pub(super) fn json(line: &str) -> &str {
    line.strip_prefix(PREFIX).unwrap_or(line)
}

/// Puts the values back. `read` loads one by its name.
pub(super) fn restore<E: From<serde_json::Error>>(
    line: &str,
    mut read: impl FnMut(&str) -> Result<Vec<u8>, E>,
) -> Result<Value, E> {
    let mut value: Value = decode(json(line))?;
    put_back(&mut value, &mut read)?;
    Ok(value)
}

fn put_back<E: From<serde_json::Error>>(
    value: &mut Value,
    read: &mut impl FnMut(&str) -> Result<Vec<u8>, E>,
) -> Result<(), E> {
    match value {
        Value::Object(map) => match map.get(PLACEHOLDER_KEY) {
            // An extracted value is complete. It is not searched for placeholders.
            Some(Value::String(name)) => *value = parse(&read(name)?)?,
            _ => map.values_mut().try_for_each(|value| put_back(value, read))?,
        },
        Value::Array(list) => list.iter_mut().try_for_each(|value| put_back(value, read))?,
        _ => {}
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    let text = std::str::from_utf8(bytes).map_err(serde::de::Error::custom)?;
    decode(text)
}

struct Extractor<T> {
    take: T,
    /// Whether a value was extracted.
    found: bool,
}

impl<T: FnMut(&[u8]) -> String> Extractor<T> {
    /// Extracts large values, the innermost first: a record with one long text keeps the rest. Returns the bytes that
    /// are left.
    fn walk(&mut self, value: &mut Value) -> serde_json::Result<usize> {
        let looks_like_placeholder = matches!(value, Value::Object(map) if map.contains_key(PLACEHOLDER_KEY));
        let size = match value {
            Value::String(text) => text.len() + 2,
            Value::Array(list) => {
                let mut size = 2 + list.len();
                for value in list.iter_mut() {
                    size += self.walk(value)?;
                }
                size
            }
            // Extracted as a whole.
            Value::Object(_) if looks_like_placeholder => 0,
            Value::Object(map) => {
                let mut size = 2;
                for (key, value) in map.iter_mut() {
                    size += key.len() + 4 + self.walk(value)?;
                }
                size
            }
            _ => 8,
        };
        if size <= LARGE && !looks_like_placeholder {
            return Ok(size);
        }
        let name = (self.take)(&serde_json::to_vec(value)?);
        let left = PLACEHOLDER_KEY.len() + name.len() + 8;
        *value = Value::Object(Map::from_iter([(PLACEHOLDER_KEY.to_owned(), Value::String(name))]));
        self.found = true;
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn name(bytes: &[u8]) -> String {
        format!("{}-{}", bytes.len(), bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>())
    }

    /// Extracts and restores; returns the length of the shortened line and the number of extracted values.
    #[track_caller]
    fn extract_and_restore(value: &Value) -> (usize, usize) {
        let text = value.to_string();
        let (mut stored, mut taken) = (BTreeMap::new(), 0);
        let take = |bytes: &[u8]| {
            stored.insert(name(bytes), bytes.to_vec());
            taken += 1;
            name(bytes)
        };
        let Some(line) = extract(&text, take).unwrap() else { return (text.len(), 0) };
        assert!(has_placeholders(&line) && !line.contains('\n'));
        let back = restore(&line, |name| Ok::<_, serde_json::Error>(stored[name].clone())).unwrap();
        assert_eq!(back, *value);
        (line.len(), taken)
    }

    #[test]
    fn w09_large_values_are_extracted_and_restored() {
        let long = "ü\n\"x".repeat(LARGE);
        assert_eq!(extract_and_restore(&json!({"a": "short"})).1, 0);
        let (left, taken) =
            extract_and_restore(&json!({"path": "1", "event": {"input": {"a": long, "b": 1}, "n": 0.1}}));
        assert!(left < 300 && taken == 1, "{left} {taken}");
        let many: Vec<Value> = (0..3_000).map(|n| json!({"number": n})).collect();
        let (left, taken) = extract_and_restore(&json!({"list": many, "text": [long, long]}));
        assert!(left < 500 && taken == 3, "{left} {taken}");
        let middling: Map<String, Value> = (0..9).map(|n| (n.to_string(), json!("x".repeat(LARGE / 4)))).collect();
        assert_eq!(extract_and_restore(&json!({"path": "1", "input": middling})).1, 1, "large only as a whole");
    }

    #[test]
    fn a_value_that_looks_like_a_placeholder_is_restored() {
        let long = "x".repeat(LARGE + 1);
        let similar = json!({PLACEHOLDER_KEY: "no", "more": [1]});
        assert_eq!(extract_and_restore(&json!({"similar": similar, "long": long})).1, 2);
        assert_eq!(extract_and_restore(&json!({PLACEHOLDER_KEY: long})).1, 1);
        assert_eq!(extract_and_restore(&json!({"similar": similar})).1, 0, "small lines are not searched");
    }
}
