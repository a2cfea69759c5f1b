//! Artifacts that were stored.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An artifact in the store. The same object in the arguments of a call, or in its output, refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactAnswer {
    /// Names its content: `b3:` and 64 hexadecimal digits.
    pub artifact: String,
    /// How many bytes it has.
    pub size: u64,
    /// Its media type.
    pub media_type: String,
    /// Its file name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
