//! Bounds on values, measured without serialising them.

use serde_json::Value;

use crate::limits::VALUE_DEPTH;

/// Why a value is too big to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooBig {
    Bytes,
    Depth,
}

/// Whether `value` stays within `bytes` (roughly its compact JSON text) and within the depth limit. Stops at the first
/// excess, so refusing a huge value costs no more than accepting the largest allowed one.
pub(crate) fn check(value: &Value, bytes: usize) -> Result<(), TooBig> {
    spend(value, bytes, VALUE_DEPTH).map(drop)
}

fn spend(value: &Value, left: usize, depth: usize) -> Result<usize, TooBig> {
    let Some(depth) = depth.checked_sub(1) else { return Err(TooBig::Depth) };
    let take = |left: usize, n: usize| left.checked_sub(n).ok_or(TooBig::Bytes);
    match value {
        Value::Null | Value::Bool(_) => take(left, 4),
        Value::Number(_) => take(left, 8),
        Value::String(text) => take(left, text.len() + 2),
        Value::Array(items) => items.iter().try_fold(take(left, 2)?, |left, item| spend(item, take(left, 1)?, depth)),
        Value::Object(map) => {
            map.iter().try_fold(take(left, 2)?, |left, (key, item)| spend(item, take(left, key.len() + 4)?, depth))
        }
    }
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
    }
}
