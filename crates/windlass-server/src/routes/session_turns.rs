//! Sessions: waiting until they are idle, and what fills the context of their model.

use std::pin::pin;
use std::time::Duration;

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::session::{ContextReport, SessionSettings, SettingsChange, TurnPolicy, Unfinished, Wake, WakePolicy};

use super::sessions::{existing, session};
use crate::access::{Authorized, Read};
use crate::app::{Shared, wait_time};
use crate::extract::{PathParam, Query};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::wire::{
    ContextSectionView, ContextView, IdleResponse, SettingsRequest, SettingsView, TurnMode, UnfinishedRun, WakeMode,
};

/// Unfinished runs that a response names.
const NAMED_RUNS: usize = 10;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct IdleQuery {
    /// Longest time to wait until the session is idle; 0 by default.
    #[param(maximum = 300_000)]
    wait_ms: Option<u64>,
}

/// Wait until a session is idle
///
/// A session is idle if none of its runs is unfinished. A run that waits for a person, is held or is in doubt is
/// unfinished. The response comes as soon as the session is idle, or after `wait_ms`; it then names unfinished runs and
/// what they wait for.
#[utoipa::path(get, path = "/v1/sessions/{session}/idle", tag = "sessions",
    params(("session" = String, Path), IdleQuery),
    responses((status = 200, description = "Whether the session is idle", body = IdleResponse)))]
pub(super) async fn idle(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
    Query(query): Query<IdleQuery>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    existing(&session).await?;
    let wait = wait_time(query.wait_ms, 0)?;
    // A little longer than the wait itself, which says what the runs wait for.
    let waited = app.within(wait + Duration::from_secs(5), pin!(session.unfinished_after(wait))).await;
    let mut unfinished = match waited {
        Some(unfinished) => unfinished?,
        None => session.unfinished_after(Duration::ZERO).await?,
    };
    let more = unfinished.len() > NAMED_RUNS;
    unfinished.truncate(NAMED_RUNS);
    let named = |Unfinished { run, sentence }| UnfinishedRun { run, sentence };
    let unfinished: Vec<UnfinishedRun> = unfinished.into_iter().map(named).collect();
    Ok(ok(&IdleResponse { session: name, idle: unfinished.is_empty(), unfinished, more }))
}

/// Show what fills a session's context
///
/// The tokens are an estimate: bytes of JSON divided by four. The messages are counted with their whole content, the
/// tools as a model sees them, and the values of the session's data without secrets.
#[utoipa::path(get, path = "/v1/sessions/{session}/context", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, description = "The report", body = ContextView)))]
pub(super) async fn context(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    // The same words for a session of another principal and for none.
    existing(&session).await?;
    let report = session.context().await?;
    let used_percent = report.used_percent();
    let ContextReport { model, window, input_tokens, sections } = report;
    let sections = sections.into_iter().map(|section| ContextSectionView {
        name: section.name.to_owned(),
        items: section.items,
        bytes: section.bytes,
        tokens: section.tokens,
    });
    let (model, sections) = (model.map(|model| model.to_string()), sections.collect());
    Ok(ok(&ContextView { session: name, model, window, input_tokens, used_percent, sections }))
}

/// The change that a request asks for.
pub(super) fn settings_change(request: SettingsRequest) -> SettingsChange {
    let SettingsRequest { model, window, agent, wake, turns, unfinished_runs } = request;
    SettingsChange {
        model: model.map(|model| model.map(Into::into)),
        window,
        agent: agent.map(|agent| agent.map(Into::into)),
        wake: wake.map(|wake| match wake {
            WakeMode::Asked => WakePolicy::Asked,
            WakeMode::User => WakePolicy::User,
        }),
        turns: turns.map(|turns| match turns {
            TurnMode::Queue => TurnPolicy::Queue,
            TurnMode::Refuse => TurnPolicy::Refuse,
        }),
        unfinished_runs,
    }
}

pub(super) fn settings_view(settings: &SessionSettings) -> SettingsView {
    let SessionSettings { model, window, agent, wake, turns, unfinished_runs } = settings;
    SettingsView {
        model: model.as_ref().map(ToString::to_string),
        window: *window,
        agent: agent.as_ref().map(ToString::to_string),
        wake: match wake {
            WakePolicy::Asked => WakeMode::Asked,
            WakePolicy::User => WakeMode::User,
        },
        turns: match turns {
            TurnPolicy::Queue => TurnMode::Queue,
            TurnPolicy::Refuse => TurnMode::Refuse,
        },
        unfinished_runs: *unfinished_runs,
    }
}

/// Whether a message wakes its session.
pub(super) fn wake(wake: Option<bool>, turn: Option<TurnMode>) -> ApiResult<Wake> {
    match (wake, turn) {
        (None, None) => Ok(Wake::BySession),
        (Some(false), None) => Ok(Wake::No),
        (Some(true), None) => Ok(Wake::Yes),
        (Some(true), Some(TurnMode::Queue)) => Ok(Wake::Queue),
        (Some(true), Some(TurnMode::Refuse)) => Ok(Wake::Refuse),
        (_, Some(_)) => Err(Refusal::invalid("`turn` is for a message that wakes the session; set `wake` to true")),
    }
}
