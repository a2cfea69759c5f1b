//! The server itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// In a word.
    pub status: HealthStatus,
    /// What is wrong, each in a sentence.
    pub problems: Vec<String>,
    /// The version of the program.
    pub version: String,
    /// How long it has been up.
    pub uptime_ms: u64,
}

/// How the server is, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Nothing is wrong.
    Ok,
    /// It works, and somebody should look.
    Degraded,
    /// What the store holds of some runs is not what was written. Those are not answered; all others go on.
    Damaged,
    /// It cannot do its work.
    Failing,
}

/// Whether the server takes work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// Whether it does.
    pub ready: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What is served here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Index {
    /// `windlass`.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// The API.
    pub api: String,
    /// Its description.
    pub openapi: String,
}
