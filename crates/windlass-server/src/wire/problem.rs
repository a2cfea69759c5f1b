//! Why a request was refused.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// What every name of a problem begins with.
const PREFIX: &str = "urn:windlass:problem:";

/// A refusal, by RFC 9457 (`application/problem+json`). Some have further fields, such as `violations` or `line`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Which problem, for programs: `urn:windlass:problem:` and a name.
    #[serde(rename = "type")]
    #[schema(example = "urn:windlass:problem:not_found")]
    pub kind: String,
    /// Which problem, for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is the matter, where, and what to do.
    pub detail: String,
    /// What was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// More, where there is more to say.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub extra: Map<String, Value>,
}

impl Problem {
    /// A problem of this name.
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

    /// Says more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    /// Its name without what all of them begin with.
    pub fn name(&self) -> &str {
        self.kind.strip_prefix(PREFIX).unwrap_or(&self.kind)
    }
}
