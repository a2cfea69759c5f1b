//! Commands on runs: cancel, resume, finish, fork, signal, check, import and purge.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use windlass::run::explain::Why;
use windlass::run::record::{Event, Settler};
use windlass::run::{Cut, ForkChange, RunState};
use windlass::store::StoreError;
use windlass::{Error, Output, RunId, ToolError, ToolResult};

use super::calls::accepted;
use super::runs::{full_run, info};
use crate::access::{Admin, Authorized, Call};
use crate::app::Shared;
use crate::extract::{Document, IdempotencyKey, Json, MaybeJson, PathParam, RunParam, run_id};
use crate::refusal::{ApiResult, Refusal};
use crate::response::{located, ok};
use crate::show;
use crate::wire::{
    Accepted, CancelRequest, ErrorRequest, FinishRequest, ForkRequest, Forked, Imported, ReplayCheck, Run,
    SignalRequest,
};

/// Longest reason, in characters.
const REASON_CHARS: usize = 4_096;

/// Checks the reason of a request. A request without one gets a default.
pub(super) fn reason(given: Option<String>) -> ApiResult<String> {
    let given = given.unwrap_or_else(|| "no reason given".to_owned());
    if given.chars().count() > REASON_CHARS {
        return Err(Refusal::invalid(format!("`reason` is too long; use at most {REASON_CHARS} characters")));
    }
    Ok(given)
}

/// An error that a client supplies.
pub(super) fn tool_error(error: ErrorRequest) -> ToolError {
    let ErrorRequest { code, message, data } = error;
    let failed = ToolError::failed(message);
    let failed = if let Some(code) = code { failed.with_code(code) } else { failed };
    if let Some(data) = data { failed.with_data(data) } else { failed }
}

/// Cancel a run
///
/// Attempts in flight are asked to stop. The run cleans up and then ends.
#[utoipa::path(post, path = "/v1/runs/{run}/cancel", tag = "runs", params(("run" = String, Path, format = "uuid")),
    request_body = Option<CancelRequest>,
    responses((status = 202, description = "The cancellation is recorded", body = Accepted)))]
pub(super) async fn cancel(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    key: IdempotencyKey,
    RunParam(run): RunParam,
    MaybeJson(request): MaybeJson<CancelRequest>,
) -> ApiResult {
    let reason = reason(request.reason)?;
    authorized.identity.may_act_on(&app, run).await?;
    app.windlass.runtime().cancel_under(key.as_deref(), run, &authorized.identity.name, &reason).await?;
    accepted(&app, &authorized.identity, run, None).await
}

/// Resume a held run
///
/// First remove the cause of the hold. For a run that is not held, this is a conflict, and the response says what it waits
/// for.
#[utoipa::path(post, path = "/v1/runs/{run}/resume", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 202, description = "The run continues", body = Accepted)))]
pub(super) async fn resume(
    State(app): State<Shared>,
    authorized: Authorized<Admin>,
    _key: IdempotencyKey,
    RunParam(run): RunParam,
) -> ApiResult {
    let explanation = app.windlass.runtime().explain(run).await?;
    let is_left = explanation.moves.iter().any(|one| matches!(one.why, Why::OwnerGone));
    match explanation.state {
        RunState::Finished { .. } => return Err(StoreError::Finished(run).into()),
        RunState::Held { .. } => {}
        _ if is_left => {}
        _ => return Err(Error::Conflict(format!("the run is not held. {}", explanation.sentence)).into()),
    }
    app.windlass.runtime().resume(run).await?;
    accepted(&app, &authorized.identity, run, None).await
}

/// Finish a held run with a given outcome
///
/// For a run that cannot be resumed, because no version of the code fits its journal.
#[utoipa::path(post, path = "/v1/runs/{run}/finish", tag = "runs", params(("run" = String, Path, format = "uuid")),
    request_body = FinishRequest, responses((status = 200, description = "The finished run", body = Run)))]
pub(super) async fn finish(
    State(app): State<Shared>,
    authorized: Authorized<Admin>,
    key: IdempotencyKey,
    RunParam(run): RunParam,
    Json(request): Json<FinishRequest>,
) -> ApiResult {
    let reason = reason(Some(request.reason))?;
    let result: ToolResult<Output> = match (request.value, request.error) {
        (Some(value), None) => Ok(Output::value(value)),
        (None, Some(error)) => Err(tool_error(error)),
        _ => {
            return Err(Refusal::invalid(
                "the outcome of a run is either `value` or `error`; send exactly one of them",
            ));
        }
    };
    let done = app.windlass.runtime().finish_by_hand(run, result, &authorized.identity.name, &reason).await;
    match done {
        Err(Error::Conflict(_))
            if key.0.is_some() && was_finished(&app, run, &authorized.identity.name, &reason).await? => {}
        done => done?,
    }
    Ok(ok(&match app.windlass.runtime().attach(run).await {
        // The run is finished, but its journal cannot be read.
        Err(Error::Store(StoreError::Damaged { place, .. })) => {
            let mut shown = show::run(&info(&app, run).await?);
            let sentence = app.windlass.runtime().explain(run).await?.sentence;
            shown.sentence = Some(format!("{sentence}; its journal is damaged ({place}) and cannot be shown"));
            shown
        }
        _ => full_run(&app, &authorized.identity, run).await?,
    }))
}

/// Whether the same sender finished the run for the same reason: then this request is a repetition.
async fn was_finished(app: &Shared, run: RunId, by: &str, why: &str) -> ApiResult<bool> {
    let journal = match app.windlass.runtime().journal(run).await {
        // A run with a damaged journal can only be finished by hand. Who did it can no longer be read.
        Err(Error::Store(StoreError::Damaged { .. })) => return Ok(true),
        journal => journal?,
    };
    Ok(journal.iter().rev().any(|record| match &record.event {
        Event::Finished(finished) if record.path.is_root() => finished
            .settled
            .as_ref()
            .is_some_and(|settled| matches!(&settled.by, Settler::Person(name) if name == by) && settled.reason == why),
        _ => false,
    }))
}

/// Fork a run
///
/// The fork starts with a copy of the operations before `at`, and continues with the tools of this server.
#[utoipa::path(post, path = "/v1/runs/{run}/fork", tag = "runs", params(("run" = String, Path, format = "uuid")),
    request_body = ForkRequest, responses((status = 201, description = "The new run", body = Forked)))]
pub(super) async fn fork(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    key: IdempotencyKey,
    RunParam(run): RunParam,
    Json(request): Json<ForkRequest>,
) -> ApiResult {
    let at: Cut =
        request.at.parse().map_err(|error| Refusal::invalid(format!("`at`: {error}; use a path, `start` or `end`")))?;
    let change = match request.change {
        None => None,
        Some(change) => {
            let (by, reason) = (authorized.identity.name.to_string(), reason(change.reason)?);
            Some(match (change.input, change.value, change.error) {
                (Some(input), None, None) => ForkChange::Input(input),
                (None, Some(value), None) => ForkChange::Outcome { result: Ok(Output::value(value)), by, reason },
                (None, None, Some(error)) => ForkChange::Outcome { result: Err(tool_error(error)), by, reason },
                _ => return Err(Refusal::invalid("`change` must have exactly one of `input`, `value` and `error`")),
            })
        }
    };
    authorized.identity.may_act_on(&app, run).await?;
    let forked = match app.windlass.runtime().fork_under(key.as_deref().map(Arc::from), run, at, change).await {
        Ok(forked) => forked,
        Err(error) => return Err(authorized.identity.refusal(&app, error).await),
    };
    let body = Forked { run: forked, from: run };
    Ok(located(StatusCode::CREATED, &format!("/v1/runs/{forked}"), &body))
}

/// Send a signal to a run
///
/// The run's tool has to declare the signal.
#[utoipa::path(post, path = "/v1/runs/{run}/signals/{name}", tag = "runs",
    params(("run" = String, Path, format = "uuid"), ("name" = String, Path)), request_body = Option<SignalRequest>,
    responses((status = 202, description = "The signal is in the run's mailbox", body = Accepted)))]
pub(super) async fn signal(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    key: IdempotencyKey,
    PathParam((run, name)): PathParam<(String, String)>,
    MaybeJson(request): MaybeJson<SignalRequest>,
) -> ApiResult {
    let run = run_id(&run)?;
    authorized.identity.run(&app, run).await?;
    authorized.identity.may_act_on(&app, run).await?;
    app.windlass.runtime().signal(run, &name, request.value, key.as_deref()).await?;
    accepted(&app, &authorized.identity, run, None).await
}

/// Check a run's journal against the tools of this server
///
/// Replays the journal. Nothing is executed or written.
#[utoipa::path(post, path = "/v1/runs/{run}/replay-check", tag = "runs",
    params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "Whether the journal fits the tools", body = ReplayCheck)))]
pub(super) async fn replay_check(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    _key: IdempotencyKey,
    RunParam(run): RunParam,
) -> ApiResult {
    authorized.identity.may_act_on(&app, run).await?;
    Ok(ok(&show::replay_check(run, &app.windlass.runtime().replay_check(run).await?)))
}

/// Import a run from a document
///
/// An unfinished run is held after the import. Make sure that the original does not continue before you resume it.
#[utoipa::path(post, path = "/v1/runs/import", tag = "runs",
    request_body(content = Object, content_type = "application/json"),
    responses((status = 201, description = "The imported run", body = Imported)))]
pub(super) async fn import(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    key: IdempotencyKey,
    Document(document, _held): Document,
) -> ApiResult<Response> {
    let run = match app.windlass.import(&document).await {
        // The run may have been imported by an earlier request with the same key.
        Err(error @ (Error::Exists { .. } | Error::Conflict(_))) if key.0.is_some() => {
            imported_before(&app, &document).await?.ok_or(error)?
        }
        imported => imported?,
    };
    let state = show::state(&info(&app, run).await?.state);
    Ok(located(StatusCode::CREATED, &format!("/v1/runs/{run}"), &Imported { run, state }))
}

/// The run of a document, if the store has it with a journal that starts with the document's: then it was imported
/// before.
async fn imported_before(app: &Shared, document: &str) -> ApiResult<Option<RunId>> {
    let Ok(imported) = windlass::store::read_json::<Exported>(document.as_bytes()) else { return Ok(None) };
    let run = imported.run;
    if app.windlass.runtime().info(run).await?.is_none() {
        return Ok(None);
    }
    let Ok(stored) = serde_json::from_value::<Exported>(app.windlass.runtime().export(run).await?) else {
        return Ok(None);
    };
    Ok(stored.journal.starts_with(&imported.journal).then_some(run))
}

/// The parts of an exported run that identify it.
#[derive(serde::Deserialize)]
struct Exported {
    run: RunId,
    journal: Vec<ExportedRecord>,
}

#[derive(PartialEq, serde::Deserialize)]
struct ExportedRecord {
    event: serde_json::Value,
}

/// Purge a finished run
///
/// Removes its journal, its mailbox and its summary.
#[utoipa::path(delete, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 204, description = "The run was removed")))]
pub(super) async fn purge(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    RunParam(run): RunParam,
) -> ApiResult {
    app.windlass.runtime().purge(run).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
