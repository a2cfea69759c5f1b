//! Limits on the size and depth of values, measured without serialising them.

use std::fmt;

use serde_json::Value;

use crate::limits::VALUE_DEPTH;

/// Why a value is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooBig {
    Bytes,
    Depth,
}

/// Whether a value is at most `bytes` long (about its compact JSON text) and within the depth limit. Stops at the first
/// excess, so refusing a huge value costs no more than accepting the largest allowed one.
pub(crate) fn check(value: &Value, bytes: usize) -> Result<(), TooBig> {
    spend(value, &mut { bytes }, VALUE_DEPTH)
}

/// Refuses a value that is nested too deeply, with a message about `what`. Every output is checked, so it only measures
/// the depth.
pub(crate) fn check_depth(value: &Value, what: impl fmt::Display) -> Result<(), String> {
    if !is_deeper(value, VALUE_DEPTH) {
        return Ok(());
    }
    Err(format!("{what} is nested deeper than {VALUE_DEPTH} levels; pass it as text, or as an artifact"))
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, below)),
        Value::Object(map) => map.values().any(|item| is_deeper(item, below)),
        _ => false,
    }
}

/// The approximate number of bytes of the compact JSON text.
pub(crate) fn of(value: &Value) -> usize {
    let mut left = usize::MAX;
    match spend(value, &mut left, usize::MAX) {
        Ok(()) => usize::MAX - left,
        Err(_) => usize::MAX,
    }
}

/// Subtracts the size of a value from what is left. Every call walks its arguments here, so this is a plain loop.
fn spend(value: &Value, left: &mut usize, depth: usize) -> Result<(), TooBig> {
    let Some(depth) = depth.checked_sub(1) else { return Err(TooBig::Depth) };
    match value {
        Value::Null | Value::Bool(_) => take(left, 4),
        Value::Number(_) => take(left, 8),
        Value::String(text) => take(left, text.len() + 2),
        Value::Array(items) => {
            take(left, items.len() + 2)?;
            items.iter().try_for_each(|item| spend(item, left, depth))
        }
        Value::Object(map) => {
            take(left, 2)?;
            for (key, item) in map {
                take(left, key.len() + 4)?;
                spend(item, left, depth)?;
            }
            Ok(())
        }
    }
}

fn take(left: &mut usize, bytes: usize) -> Result<(), TooBig> {
    *left = left.checked_sub(bytes).ok_or(TooBig::Bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn size_and_depth_are_bounded() {
        assert_eq!(check(&json!({"a": [1, "two", null]}), 40), Ok(()));
        assert_eq!(check(&json!("x".repeat(100)), 99), Err(TooBig::Bytes));
        let mut deep = json!(0);
        for _ in 0..VALUE_DEPTH {
            deep = json!([deep]);
        }
        assert_eq!(check(&deep, 1 << 20), Err(TooBig::Depth));
        assert!(check_depth(&deep, "it").unwrap_err().starts_with("it is nested deeper than 128"));
        assert_eq!(check_depth(&deep[0], "it"), Ok(()));
    }
}
