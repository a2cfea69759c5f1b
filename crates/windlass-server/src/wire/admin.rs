//! Housekeeping.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What tidying came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TidyAnswer {
    /// Runs of which only the summary is left now.
    pub summarized: u64,
    /// Runs that are gone now.
    pub removed: u64,
    /// Artifacts that are gone now.
    pub artifacts: u64,
}

/// Where a copy is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// A path on the server's machine where nothing is yet.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub to: String,
}

/// Where the copy is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupAnswer {
    /// The path.
    pub to: String,
    /// Where the keys are that secrets in it are sealed with, if it may have any: they are not in the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
}

/// Whether the store is sound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileCheck {
    /// Whether nothing was found.
    pub ok: bool,
    /// What was found.
    pub problems: Vec<String>,
}

/// What the configuration is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadAnswer {
    /// How many tools there are now.
    pub tools: u64,
    /// What changed, in words.
    pub changes: Vec<String>,
}
