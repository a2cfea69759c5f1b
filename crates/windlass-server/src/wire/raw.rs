//! JSON that is passed on as it is.

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A JSON value that is passed on byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Keeps a JSON text.
    ///
    /// # Errors
    ///
    /// If it is not JSON.
    pub fn new(text: String) -> serde_json::Result<Self> {
        RawValue::from_string(text).map(Self)
    }
}

impl Deref for RawJson {
    type Target = RawValue;

    fn deref(&self) -> &RawValue {
        &self.0
    }
}

/// Equal if the bytes are.
impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}
