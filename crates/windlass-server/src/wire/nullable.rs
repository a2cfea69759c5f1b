//! Optional fields for which `null` is a value.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::RawJson;

/// Reads a present field as `Some`, also if it is `null`.
pub(super) fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Like [`value`], for a field of any type: `null` is `Some(None)`.
pub(super) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(field).map(Some)
}

/// Like [`value`], byte for byte.
pub(super) fn raw<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(deserializer).map(Some)
}
