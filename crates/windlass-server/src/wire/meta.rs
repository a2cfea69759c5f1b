//! Health and version of the server.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Health of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Overall status.
    pub status: HealthStatus,
    /// One sentence for each problem.
    pub problems: Vec<String>,
    /// Version of the server.
    pub version: String,
    /// Time since the server started.
    pub uptime_ms: u64,
}

/// Overall status of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// There are no problems.
    Ok,
    /// The server works, but an operator should look at the problems.
    Degraded,
    /// The stored data of some runs is damaged. Requests about them fail; all other runs continue.
    Damaged,
    /// The server cannot work.
    Failing,
}

/// Readiness of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// Whether the server accepts work.
    pub ready: bool,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Name and addresses of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Index {
    /// Always `windlass`.
    pub name: String,
    /// Version of the server.
    pub version: String,
    /// Path of the API.
    pub api: String,
    /// Path of the OpenAPI description.
    pub openapi: String,
}
