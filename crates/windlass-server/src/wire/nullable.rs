//! Optional fields for which `null` is a value.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Reads a present field as `Some`, also if it is `null`.
pub(super) fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
