//! Problems of refused requests.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Prefix of all problem types.
const PREFIX: &str = "urn:windlass:problem:";

/// A problem as in RFC 9457 (`application/problem+json`). Some have further fields, such as `run`, `limit` or `line`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Problem type for programs: `urn:windlass:problem:` and a name.
    #[serde(rename = "type")]
    #[schema(example = "urn:windlass:problem:not_found")]
    pub kind: String,
    /// Problem type for people.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What failed, why, and what to do.
    pub detail: String,
    /// Address of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Fields that depend on the type.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub extra: Map<String, Value>,
}

impl Problem {
    /// A problem of the type `name`.
    pub fn new(status: u16, name: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{PREFIX}{name}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            instance: None,
            extra: Map::new(),
        }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    /// The problem type without the common prefix.
    pub fn name(&self) -> &str {
        self.kind.strip_prefix(PREFIX).unwrap_or(&self.kind)
    }
}
