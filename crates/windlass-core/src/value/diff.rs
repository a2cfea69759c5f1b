//! Finds where two values differ, for people who investigate what changed.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tool::HIDDEN;

/// How many differences are reported. A person acts on the first ones.
const MAX_DIFFERENCES: usize = 5;
/// How many characters of a differing value are shown.
const SHOWN_CHARS: usize = 80;

/// One location where the requested value differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// JSON pointer of the location; empty for the whole value.
    pub pointer: String,
    /// The recorded value; `None` if the journal has none there.
    pub recorded: Option<String>,
    /// The requested value; `None` if the code passes none there.
    pub asked: Option<String>,
}

impl Difference {
    /// Hides the values and keeps the location.
    pub(crate) fn hide(&mut self) {
        for side in [&mut self.recorded, &mut self.asked].into_iter().flatten() {
            HIDDEN.clone_into(side);
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = if self.pointer.is_empty() { "(whole value)" } else { &self.pointer };
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{location}: recorded {}, asked {}", side(&self.recorded), side(&self.asked))
    }
}

/// The first few differences, sorted by key.
pub(crate) fn differences(recorded: &Value, asked: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(&mut String::new(), Some(recorded), Some(asked), &mut found);
    found
}

fn compare(pointer: &mut String, recorded: Option<&Value>, asked: Option<&Value>, found: &mut Vec<Difference>) {
    if found.len() >= MAX_DIFFERENCES || recorded == asked {
        return;
    }
    match (recorded, asked) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))).collect();
            keys.sort_unstable();
            for key in keys {
                below(pointer, &key.replace('~', "~0").replace('/', "~1"), old.get(key), new.get(key), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            for index in 0..old.len().max(new.len()) {
                below(pointer, &index.to_string(), old.get(index), new.get(index), found);
            }
        }
        _ => found.push(Difference { pointer: pointer.clone(), recorded: recorded.map(show), asked: asked.map(show) }),
    }
}

fn below(pointer: &mut String, step: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Difference>) {
    let length = pointer.len();
    pointer.push('/');
    pointer.push_str(step);
    compare(pointer, old, new, found);
    pointer.truncate(length);
}

fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(recorded: Value, asked: Value, expected: &[&str]) {
        let found: Vec<String> = differences(&recorded, &asked).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn differing_locations_are_named() {
        check(json!({"a": 1}), json!({"a": 1}), &[]);
        check(json!(1), json!("1"), &["(whole value): recorded 1, asked \"1\""]);
        check(
            json!({"to": "Oslo", "seats": [1, 2], "x/y": 1}),
            json!({"to": "Rome", "seats": [1], "z": true}),
            &[
                "/seats/1: recorded 2, asked nothing",
                "/to: recorded \"Oslo\", asked \"Rome\"",
                "/x~1y: recorded 1, asked nothing",
                "/z: recorded nothing, asked true",
            ],
        );
    }

    #[test]
    fn only_the_first_differences_are_listed_and_long_values_are_cut() {
        let old: Vec<u32> = (0..20).collect();
        let new: Vec<u32> = (20..40).collect();
        assert_eq!(differences(&json!(old), &json!(new)).len(), MAX_DIFFERENCES);
        let found = differences(&json!("ü".repeat(200)), &json!(null));
        assert_eq!(found[0].recorded.as_ref().unwrap().chars().count(), SHOWN_CHARS + 1);
    }
}
