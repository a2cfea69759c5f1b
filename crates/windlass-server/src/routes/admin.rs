//! Administration of the store and the configuration.

use axum::extract::State;

use crate::access::{Admin, Authorized};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, Json};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::wire::{BackupRequest, BackupResponse, FileCheck, ReloadResponse, TidyResponse};

/// Remove runs and artifacts that retention no longer keeps
#[utoipa::path(post, path = "/v1/admin/tidy", tag = "admin",
    responses((status = 200, description = "What was removed", body = TidyResponse)))]
pub(super) async fn tidy(State(app): State<Shared>, _authorized: Authorized<Admin>, _key: IdempotencyKey) -> ApiResult {
    let tidied = app.windlass.tidy().await?;
    let mut artifacts = 0;
    loop {
        let swept = app.windlass.sweep_artifacts().await?;
        artifacts += swept.collected as u64;
        if !swept.more {
            break;
        }
    }
    let answer = TidyResponse { summarized: tidied.summarized as u64, removed: tidied.removed as u64, artifacts };
    Ok(ok(&answer))
}

/// Back up the database file
///
/// The server continues to work meanwhile. The file appears when the backup is complete; an existing file is not
/// overwritten.
#[utoipa::path(post, path = "/v1/admin/backup", tag = "admin", request_body = BackupRequest,
    responses((status = 200, description = "The path of the backup", body = BackupResponse)))]
pub(super) async fn backup(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    _key: IdempotencyKey,
    Json(request): Json<BackupRequest>,
) -> ApiResult {
    let path = std::path::Path::new(&request.to);
    if !path.is_absolute() || request.to.contains('\0') {
        return Err(Refusal::invalid("`to` must be an absolute path on the server's machine"));
    }
    let Some(file) = app.windlass.file() else {
        return Err(Refusal::invalid(
            "only a database file can be backed up, and this server keeps its runs in memory",
        ));
    };
    file.backup(path).await?;
    let key_file = file.key_file().map(|path| path.display().to_string());
    Ok(ok(&BackupResponse { to: request.to, key_file }))
}

/// Check the whole store for damage
#[utoipa::path(post, path = "/v1/admin/check", tag = "admin",
    responses((status = 200, description = "The problems that were found", body = FileCheck)))]
pub(super) async fn check(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    _key: IdempotencyKey,
) -> ApiResult {
    let Some(file) = app.windlass.file() else { return Ok(ok(&FileCheck { ok: true, problems: Vec::new() })) };
    // Reads the whole file, so it must not block a thread of the executor.
    let checked = tokio::task::spawn_blocking(move || file.check()).await;
    let checked = checked.map_err(|error| {
        tracing::error!("the check of the store panicked: {error}");
        Refusal::internal()
    })?;
    let report = checked?;
    let missing = report.missing_keys(&report.path);
    let mut problems = report.problems;
    problems.extend(missing);
    Ok(ok(&FileCheck { ok: problems.is_empty(), problems }))
}

/// Reload the configuration
///
/// Runs continue meanwhile. If the new configuration has a problem, the old one stays in effect.
#[utoipa::path(post, path = "/v1/admin/reload", tag = "admin",
    responses((status = 200, description = "What changed", body = ReloadResponse)))]
pub(super) async fn reload(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    _key: IdempotencyKey,
) -> ApiResult {
    let Some(reload) = &app.options.reload else {
        let detail = "the server was started without a configuration file, so there is nothing to reload";
        return Err(Refusal::conflict("no_config_file", detail));
    };
    match reload().await {
        Ok(answer) => Ok(ok(&answer)),
        Err(problems) => Err(Refusal::invalid(problems)),
    }
}
