//! What can be done to runs.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use windlass::record::{Event, Settler};
use windlass::{Change, Cut, Error, Output, RunId, RunState, StoreError, ToolError, ToolResult};

use super::calls::accepted;
use super::runs::{info, whole};
use crate::access::{Admin, Call, May};
use crate::answer::{located, ok};
use crate::app::Shared;
use crate::extract::{Document, InRun, Json, Key, MaybeJson, Place, run_id};
use crate::refusal::{Answer, Refusal};
use crate::show;
use crate::wire::{
    Accepted, CancelRequest, ErrorRequest, FinishRequest, ForkRequest, Forked, Imported, ReplayCheck, Run,
    SignalRequest,
};

/// Longest reason.
const REASON_CHARS: usize = 4_096;

/// What somebody gave as a reason, or what stands for none.
pub(super) fn reason(given: Option<String>) -> Answer<String> {
    let given = given.unwrap_or_else(|| "no reason given".to_owned());
    if given.chars().count() > REASON_CHARS {
        return Err(Refusal::invalid(format!("reason has at most {REASON_CHARS} characters")));
    }
    Ok(given)
}

/// An error as somebody outside gives it.
pub(super) fn tool_error(error: ErrorRequest) -> ToolError {
    match error.code {
        Some(code) => ToolError::rejected(code, error.message),
        None => ToolError::failed(error.message),
    }
}

/// Cancel a run
///
/// Attempts in flight are asked to stop. With an `Idempotency-Key` cancelling again is harmless.
#[utoipa::path(post, path = "/v1/runs/{run}/cancel", tag = "runs", params(("run" = String, Path, format = "uuid")),
    request_body = Option<CancelRequest>,
    responses((status = 202, description = "It is told, and ends by itself", body = Accepted)))]
pub(super) async fn cancel(
    State(app): State<Shared>,
    may: May<Call>,
    key: Key,
    InRun(run): InRun,
    MaybeJson(request): MaybeJson<CancelRequest>,
) -> Answer {
    let reason = reason(request.reason)?;
    may.who.may_act_on(&app, run).await?;
    app.windlass.cancel_under(key.as_deref(), run, &may.who.name, &reason).await?;
    accepted(&app, run).await
}

/// Take up a held run again
///
/// Once its cause is gone. A run that goes on already is left alone.
#[utoipa::path(post, path = "/v1/runs/{run}/resume", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 202, description = "It goes on", body = Accepted)))]
pub(super) async fn resume(State(app): State<Shared>, _may: May<Admin>, _key: Key, InRun(run): InRun) -> Answer {
    match info(&app, run).await?.state {
        RunState::Finished { .. } => return Err(StoreError::Finished(run).into()),
        RunState::Held { .. } => app.windlass.resume(run).await?,
        _ => {}
    }
    accepted(&app, run).await
}

/// End a held run by hand
///
/// The way out where no code will ever fit its journal.
#[utoipa::path(post, path = "/v1/runs/{run}/finish", tag = "runs", params(("run" = String, Path, format = "uuid")),
    request_body = FinishRequest, responses((status = 200, description = "It is finished", body = Run)))]
pub(super) async fn finish(
    State(app): State<Shared>,
    may: May<Admin>,
    key: Key,
    InRun(run): InRun,
    Json(request): Json<FinishRequest>,
) -> Answer {
    let reason = reason(Some(request.reason))?;
    let result: ToolResult<Output> = match (request.value, request.error) {
        (Some(value), None) => Ok(Output::value(value)),
        (None, Some(error)) => Err(tool_error(error)),
        _ => return Err(Refusal::invalid("a run is finished with either `value` or `error`")),
    };
    let done = app.windlass.finish_by_hand(run, result, &may.who.name, &reason).await;
    match done {
        Err(Error::Conflict(_)) if key.0.is_some() && was_finished(&app, run, &may.who.name, &reason).await? => {}
        done => done?,
    }
    Ok(ok(&match app.windlass.attach(run).await {
        // It is finished all the same, and nothing of its journal can be shown.
        Err(Error::Store(StoreError::Damaged { place, .. })) => {
            let mut shown = show::run(&info(&app, run).await?);
            let sentence = app.windlass.explain(run).await?.sentence;
            shown.sentence = Some(format!("{sentence}; its journal is damaged ({place}) and cannot be shown"));
            shown
        }
        _ => whole(&app, run).await?,
    }))
}

/// Whether this person finished the run by hand, for this reason: then the request was made before.
async fn was_finished(app: &Shared, run: RunId, by: &str, why: &str) -> Answer<bool> {
    let journal = match app.windlass.journal(run).await {
        // Only by hand does a run end whose journal cannot be read; by which hand is not known any more.
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
/// The fork begins with what the run had finished before the cut, and goes on under the tools of this server.
#[utoipa::path(post, path = "/v1/runs/{run}/fork", tag = "runs", params(("run" = String, Path, format = "uuid")),
    request_body = ForkRequest, responses((status = 201, description = "The fork", body = Forked)))]
pub(super) async fn fork(
    State(app): State<Shared>,
    may: May<Call>,
    key: Key,
    InRun(run): InRun,
    Json(request): Json<ForkRequest>,
) -> Answer {
    let at: Cut = request.at.parse().map_err(|error| Refusal::invalid(format!("at: {error}; or `start` or `end`")))?;
    let change = match request.change {
        None => None,
        Some(change) => {
            let (by, reason) = (may.who.name.to_string(), reason(change.reason)?);
            Some(match (change.input, change.value, change.error) {
                (Some(input), None, None) => Change::Input(input),
                (None, Some(value), None) => Change::Outcome { result: Ok(Output::value(value)), by, reason },
                (None, None, Some(error)) => Change::Outcome { result: Err(tool_error(error)), by, reason },
                _ => return Err(Refusal::invalid("change has exactly one of `input`, `value` and `error`")),
            })
        }
    };
    may.who.may_act_on(&app, run).await?;
    let forked = app.windlass.fork_under(key.as_deref(), run, at, change).await?;
    let body = Forked { run: forked, from: run };
    Ok(located(StatusCode::CREATED, &format!("/v1/runs/{forked}"), &body))
}

/// Send a run a signal
///
/// One that its tool declares. With an `Idempotency-Key` it arrives once, however often it is sent.
#[utoipa::path(post, path = "/v1/runs/{run}/signals/{name}", tag = "runs",
    params(("run" = String, Path, format = "uuid"), ("name" = String, Path)), request_body = Option<SignalRequest>,
    responses((status = 202, description = "It is in the run's mailbox", body = Accepted)))]
pub(super) async fn signal(
    State(app): State<Shared>,
    may: May<Call>,
    key: Key,
    Place((run, name)): Place<(String, String)>,
    MaybeJson(request): MaybeJson<SignalRequest>,
) -> Answer {
    let run = run_id(&run)?;
    info(&app, run).await?;
    may.who.may_act_on(&app, run).await?;
    app.windlass.signal(run, &name, request.value, key.as_deref()).await?;
    accepted(&app, run).await
}

/// Check a run's journal against the tools of this server
///
/// Nothing is performed, and nothing is written.
#[utoipa::path(post, path = "/v1/runs/{run}/replay-check", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "How far they fit", body = ReplayCheck)))]
pub(super) async fn replay_check(State(app): State<Shared>, may: May<Call>, _key: Key, InRun(run): InRun) -> Answer {
    may.who.may_act_on(&app, run).await?;
    Ok(ok(&show::replay_check(run, &app.windlass.replay_check(run).await?)))
}

/// Import a run from a document
///
/// A finished one is finished; any other is held until somebody resumes it who made sure that the original will not go on.
#[utoipa::path(post, path = "/v1/runs/import", tag = "runs", request_body(content = Object, content_type = "application/json"),
    responses((status = 201, description = "It is here", body = Imported)))]
pub(super) async fn import(
    State(app): State<Shared>,
    _may: May<Admin>,
    key: Key,
    Document(document, _held): Document,
) -> Answer<Response> {
    let run = match app.windlass.import(&document).await {
        // Under a key it may be this very request that was made before.
        Err(error @ (Error::Exists { .. } | Error::Conflict(_))) if key.0.is_some() => {
            imported_before(&app, &document).await?.ok_or(error)?
        }
        imported => imported?,
    };
    let state = show::state(&info(&app, run).await?.state);
    Ok(located(StatusCode::CREATED, &format!("/v1/runs/{run}"), &Imported { run, state }))
}

/// The run of a document whose journal is the beginning of what is here: then it was imported before.
async fn imported_before(app: &Shared, document: &str) -> Answer<Option<RunId>> {
    let Some(run) = named_in(document) else { return Ok(None) };
    if app.windlass.info(run).await?.is_none() {
        return Ok(None);
    }
    let here = app.windlass.export(run).await?;
    let read: Option<serde_json::Value> = windlass::read_json(document.as_bytes()).ok();
    let Some(read) = read else { return Ok(None) };
    let journal = |document: &serde_json::Value| document.get("journal").and_then(|list| list.as_array().cloned());
    let (Some(there), Some(here)) = (journal(&read), journal(&here)) else { return Ok(None) };
    let same = there.len() <= here.len() && there.iter().zip(&here).all(|(a, b)| a.get("event") == b.get("event"));
    Ok(same.then_some(run))
}

fn named_in(document: &str) -> Option<RunId> {
    let document: serde_json::Value = windlass::read_json(document.as_bytes()).ok()?;
    document.get("run")?.as_str()?.parse().ok()
}

/// Purge a finished run
///
/// Its journal, its mail, its row: nothing of it can be read any more.
#[utoipa::path(delete, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 204, description = "It is gone")))]
pub(super) async fn purge(State(app): State<Shared>, _may: May<Admin>, InRun(run): InRun) -> Answer {
    app.windlass.purge(run).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
