//! Opaque data of a model provider that belongs to a call.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Opaque data that a model provider wants back with the outcome of a call, such as a reasoning signature or an item id.
/// It is JSON whose text is kept byte for byte: number formats, white space and the order of fields included. Windlass
/// never looks into it.
///
/// A value is written as JSON once (`Metadata::from(json!({…}))`); a text of the provider stays as it is
/// ([`Metadata::raw`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(
    // Recorded as a JSON text within a JSON text: whatever reads a record in between keeps a text as it is.
    Arc<String>,
);

impl Metadata {
    /// Keeps a JSON text.
    ///
    /// # Errors
    ///
    /// If it is not JSON.
    pub fn raw(text: &str) -> serde_json::Result<Self> {
        Ok(serde_json::from_str::<&RawValue>(text)?.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&RawValue> for Metadata {
    fn from(raw: &RawValue) -> Self {
        Self(Arc::new(raw.get().to_owned()))
    }
}

impl From<Value> for Metadata {
    fn from(value: Value) -> Self {
        Self(Arc::new(value.to_string()))
    }
}
