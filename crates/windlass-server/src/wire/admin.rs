//! Administration of the store and the configuration.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What retention removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TidyResponse {
    /// Number of runs whose journal was removed. Their summary is kept.
    pub summarized: u64,
    /// Number of runs that were removed completely.
    pub removed: u64,
    /// Number of artifacts that were removed.
    pub artifacts: u64,
}

/// A request for a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// Absolute path of a new file on the server's machine.
    #[schema(pattern = "^/[^\\x00]*$")]
    pub to: String,
}

/// A backup that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupResponse {
    /// Path of the backup.
    pub to: String,
    /// Path of the file with the keys that secrets in the backup are sealed with, if it may have any. The keys are not
    /// part of the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
}

/// The result of a check of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileCheck {
    /// True if there are no problems.
    pub ok: bool,
    /// The problems that were found.
    pub problems: Vec<String>,
}

/// The result of reading the configuration again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadResponse {
    /// Number of tools in the new configuration.
    pub tools: u64,
    /// One sentence for each change.
    pub changes: Vec<String>,
}
