//! Large values lie out of line: what is written often stays small, and a value that comes again is there already.
//!
//! An encoded record or message that is large has its large values replaced by marks that name them by content. A line
//! with marks begins with a sign that no JSON text begins with, so nothing that is small is ever looked through for marks.

use serde_json::{Map, Value};

use super::read::decode;

/// Values of more bytes than this, encoded.
const LARGE: usize = 16 << 10;
/// Begins a line that has marks in it.
const SIGN: char = '@';
/// The one key of a mark.
const MARK: &str = "$windlass";

/// Takes the large values out of an encoded line, and returns what is left. Nothing if it has none. `take` keeps a value
/// and names it by its content.
pub(super) fn outline(line: &str, take: impl FnMut(&[u8]) -> String) -> serde_json::Result<Option<String>> {
    if line.len() <= LARGE {
        return Ok(None);
    }
    let mut value: Value = decode(line)?;
    let mut cut = Cut { take, any: false };
    cut.walk(&mut value)?;
    Ok(cut.any.then(|| format!("{SIGN}{value}")))
}

/// Whether a line has marks.
pub(super) fn is_outlined(line: &str) -> bool {
    line.starts_with(SIGN)
}

/// The JSON of a line, marks and all.
pub(super) fn json(line: &str) -> &str {
    line.strip_prefix(SIGN).unwrap_or(line)
}

/// Puts the values back. `read` finds one by its name.
pub(super) fn inline<E: From<serde_json::Error>>(
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
        Value::Object(map) => match map.get(MARK) {
            // What was taken out is not looked through: it is as it was.
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

struct Cut<T> {
    take: T,
    /// Whether anything was taken out.
    any: bool,
}

impl<T: FnMut(&[u8]) -> String> Cut<T> {
    /// Takes what is large out of a value, the innermost first: a record with one long text in it keeps all else.
    /// Returns the bytes of what is left.
    fn walk(&mut self, value: &mut Value) -> serde_json::Result<usize> {
        let looks_like_mark = matches!(value, Value::Object(map) if map.contains_key(MARK));
        let size = match value {
            Value::String(text) => text.len() + 2,
            Value::Array(list) => {
                let mut size = 2 + list.len();
                for value in list.iter_mut() {
                    size += self.walk(value)?;
                }
                size
            }
            // Left whole: it is taken out as it is.
            Value::Object(_) if looks_like_mark => 0,
            Value::Object(map) => {
                let mut size = 2;
                for (key, value) in map.iter_mut() {
                    size += key.len() + 4 + self.walk(value)?;
                }
                size
            }
            _ => 8,
        };
        if size <= LARGE && !looks_like_mark {
            return Ok(size);
        }
        let name = (self.take)(&serde_json::to_vec(value)?);
        let left = MARK.len() + name.len() + 8;
        *value = Value::Object(Map::from_iter([(MARK.to_owned(), Value::String(name))]));
        self.any = true;
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

    /// Takes out and puts back; returns how much was left in the line and how many values were taken out.
    #[track_caller]
    fn there_and_back(value: &Value) -> (usize, usize) {
        let text = value.to_string();
        let (mut known, mut taken) = (BTreeMap::new(), 0);
        let take = |bytes: &[u8]| {
            known.insert(name(bytes), bytes.to_vec());
            taken += 1;
            name(bytes)
        };
        let Some(line) = outline(&text, take).unwrap() else { return (text.len(), 0) };
        assert!(is_outlined(&line) && !line.contains('\n'));
        let back = inline(&line, |name| Ok::<_, serde_json::Error>(known[name].clone())).unwrap();
        assert_eq!(back, *value);
        (line.len(), taken)
    }

    #[test]
    fn w09_large_values_are_taken_out_and_come_back() {
        let long = "ü\n\"x".repeat(LARGE);
        assert_eq!(there_and_back(&json!({"a": "short"})).1, 0);
        let (left, taken) = there_and_back(&json!({"path": "1", "event": {"input": {"a": long, "b": 1}, "n": 0.1}}));
        assert!(left < 300 && taken == 1, "{left} {taken}");
        let many: Vec<Value> = (0..3_000).map(|n| json!({"number": n})).collect();
        let (left, taken) = there_and_back(&json!({"list": many, "text": [long, long]}));
        assert!(left < 500 && taken == 3, "{left} {taken}");
        let middling: Map<String, Value> = (0..9).map(|n| (n.to_string(), json!("x".repeat(LARGE / 4)))).collect();
        assert_eq!(there_and_back(&json!({"path": "1", "input": middling})).1, 1, "large only as a whole");
    }

    #[test]
    fn a_value_that_looks_like_a_mark_comes_back_too() {
        let long = "x".repeat(LARGE + 1);
        let like = json!({MARK: "no", "more": [1]});
        assert_eq!(there_and_back(&json!({"like": like, "long": long})).1, 2);
        assert_eq!(there_and_back(&json!({MARK: long})).1, 1);
        assert_eq!(there_and_back(&json!({"like": like})).1, 0, "small lines are not looked through");
    }
}
