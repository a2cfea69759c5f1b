//! Stored artifacts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A stored artifact. The same object in the arguments or the output of a call refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactResponse {
    /// Digest of the content: `b3:` and 64 hexadecimal digits.
    pub artifact: String,
    /// Size in bytes.
    pub size: u64,
    /// Media type.
    pub media_type: String,
    /// File name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
