//! Housekeeping.

use axum::extract::State;

use crate::access::{Admin, May};
use crate::answer::ok;
use crate::app::Shared;
use crate::extract::{Json, Key};
use crate::refusal::{Answer, Refusal};
use crate::wire::{BackupAnswer, BackupRequest, FileCheck, ReloadAnswer, TidyAnswer};

/// Let go of what is kept no longer
#[utoipa::path(post, path = "/v1/admin/tidy", tag = "admin",
    responses((status = 200, description = "What went", body = TidyAnswer)))]
pub(super) async fn tidy(State(app): State<Shared>, _may: May<Admin>, _key: Key) -> Answer {
    let tidied = app.windlass.tidy().await?;
    let mut artifacts = 0;
    loop {
        let swept = app.windlass.sweep_artifacts().await?;
        artifacts += swept.collected as u64;
        if !swept.more {
            break;
        }
    }
    let answer = TidyAnswer { summarized: tidied.summarized as u64, removed: tidied.removed as u64, artifacts };
    Ok(ok(&answer))
}

/// Write a copy of the database file
///
/// While work goes on. It appears when it is whole, and overwrites nothing.
#[utoipa::path(post, path = "/v1/admin/backup", tag = "admin", request_body = BackupRequest,
    responses((status = 200, description = "Where the copy is", body = BackupAnswer)))]
pub(super) async fn backup(
    State(app): State<Shared>,
    _may: May<Admin>,
    _key: Key,
    Json(request): Json<BackupRequest>,
) -> Answer {
    let path = std::path::Path::new(&request.to);
    if !path.is_absolute() || request.to.contains('\0') {
        return Err(Refusal::invalid("`to` is an absolute path on the machine of the server"));
    }
    app.windlass.backup(path).await?;
    let key_file = app.windlass.key_file().map(|path| path.display().to_string());
    Ok(ok(&BackupAnswer { to: request.to, key_file }))
}

/// Look through the whole store
#[utoipa::path(post, path = "/v1/admin/check", tag = "admin",
    responses((status = 200, description = "What was found", body = FileCheck)))]
pub(super) async fn check(State(app): State<Shared>, _may: May<Admin>, _key: Key) -> Answer {
    let windlass = app.windlass.clone();
    // It reads the whole file, and must not hold up requests meanwhile.
    let checked = tokio::task::spawn_blocking(move || windlass.check()).await;
    let checked = checked.map_err(|error| {
        tracing::error!("the check of the file ended early: {error}");
        Refusal::internal()
    })?;
    let Some(report) = checked? else { return Ok(ok(&FileCheck { ok: true, problems: Vec::new() })) };
    let missing = report.missing_keys(&report.path);
    let mut problems = report.problems;
    problems.extend(missing);
    Ok(ok(&FileCheck { ok: problems.is_empty(), problems }))
}

/// Read the configuration anew
///
/// Runs go on meanwhile. If it has a problem, everything stays as it is.
#[utoipa::path(post, path = "/v1/admin/reload", tag = "admin",
    responses((status = 200, description = "What changed", body = ReloadAnswer)))]
pub(super) async fn reload(State(app): State<Shared>, _may: May<Admin>, _key: Key) -> Answer {
    let Some(reload) = &app.options.reload else {
        return Err(Refusal::conflict("nothing_to_reload", "this server was started without a configuration file"));
    };
    match reload().await {
        Ok(answer) => Ok(ok(&answer)),
        Err(problems) => Err(Refusal::invalid(problems)),
    }
}
