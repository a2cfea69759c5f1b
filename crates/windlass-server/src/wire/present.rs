//! Fields that may be left out, and for which `null` is a value like any other.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// What is there is there, also if it is `null`.
pub(super) fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
