//! Making calls.

use std::pin::pin;
use std::sync::Arc;

use axum::extract::State as With;
use axum::http::StatusCode;
use axum::response::Response;
use windlass::{Error, RunId, Start, Submitted, ToolCall, Windlass, Work};

use crate::access::{Call, May};
use crate::answer::{located, ok};
use crate::app::{Shared, patience};
use crate::extract::{Json, Key};
use crate::given;
use crate::guard::Instead;
use crate::refusal::{Answer, Refusal};
use crate::show;
use crate::wire::{Accepted, BatchAnswer, BatchRequest, CallAnswer, CallRequest, State};

/// How long a call is waited for unless its request says otherwise, in milliseconds.
const WAIT_MS: u64 = 30_000;
/// Longest name of a session.
const SESSION_CHARS: usize = 255;
/// Longest id of a call, and longest name of a tool that is looked for.
const ID_CHARS: usize = 255;
/// Most calls in one batch of this API.
const BATCH_CALLS: usize = 1_000;

/// Make one call
///
/// 200 with its outcome, also of a call that failed, or 202 if it takes longer than `wait_ms`. With an `Idempotency-Key` the
/// same request is the same run.
#[utoipa::path(
    post, path = "/v1/calls", tag = "calls", request_body = CallRequest,
    responses(
        (status = 200, description = "It has its outcome", body = CallAnswer),
        (status = 202, description = "It goes on", body = Accepted),
    )
)]
pub(super) async fn call(
    With(app): With<Shared>,
    may: May<Call>,
    Key(key): Key,
    Json(request): Json<CallRequest>,
) -> Answer {
    let wait = patience(request.wait_ms, WAIT_MS)?;
    let how = start(key, request.session)?;
    let (windlass, layer) = may.who.caller(&app, request.layer.as_deref(), how.key.as_deref()).await?;
    let tool = named(&windlass, &request.tool);
    let work = Work::Call(in_layer(to_call(tool.clone(), request.args, request.call_id)?, layer));
    let mut submitted = windlass.submit(work, how).await?;
    let told = app.within(wait, pin!(submitted.outcomes())).await;
    match told {
        Some(Ok((run, mut outcomes))) => {
            app.metrics.outcomes(std::iter::once(&*tool), &outcomes);
            let outcome = outcomes.pop().ok_or_else(Refusal::internal)?;
            Ok(or_later(run, ok(&CallAnswer { run, outcome: show::outcome(outcome) })))
        }
        told => Box::pin(unfinished(&app, &mut submitted, told.and_then(Result::err))).await,
    }
}

/// Make several calls as one run
///
/// Their outcomes come back in order. With an `Idempotency-Key` the same request is the same run.
#[utoipa::path(
    post, path = "/v1/batches", tag = "calls", request_body = BatchRequest,
    responses(
        (status = 200, description = "They have their outcomes", body = BatchAnswer),
        (status = 202, description = "The run goes on", body = Accepted),
    )
)]
pub(super) async fn batch(
    With(app): With<Shared>,
    may: May<Call>,
    Key(key): Key,
    Json(request): Json<BatchRequest>,
) -> Answer {
    let wait = patience(request.wait_ms, WAIT_MS)?;
    let how = start(key, request.session)?;
    let (windlass, layer) = may.who.caller(&app, request.layer.as_deref(), how.key.as_deref()).await?;
    if request.calls.is_empty() || request.calls.len() > BATCH_CALLS {
        return Err(Refusal::invalid(format!("a batch has 1 to {BATCH_CALLS} calls")));
    }
    let tools: Vec<Arc<str>> = request.calls.iter().map(|call| named(&windlass, &call.tool)).collect();
    let calls = request.calls.into_iter().zip(&tools);
    let calls = calls.map(|(call, tool)| Ok(in_layer(to_call(tool.clone(), call.args, call.call_id)?, layer.clone())));
    let calls = calls.collect::<Answer<Vec<ToolCall>>>()?;
    let work = Work::Batch { calls, stop_on_failure: request.stop_on_failure };
    let mut submitted = windlass.submit(work, how).await?;
    let told = app.within(wait, pin!(submitted.outcomes())).await;
    match told {
        Some(Ok((run, outcomes))) => {
            app.metrics.outcomes(tools.iter().map(|tool| &**tool), &outcomes);
            Ok(or_later(run, ok(&BatchAnswer { run, outcomes: show::outcomes(outcomes) })))
        }
        told => Box::pin(unfinished(&app, &mut submitted, told.and_then(Result::err))).await,
    }
}

/// An answer that may be too large to be held now: then it is 202, because the call was made all the same.
fn or_later(run: RunId, mut response: Response) -> Response {
    if given::size(&response).is_some_and(|size| size > given::PIECE as u64) {
        let sentence = format!(
            "it has ended, and too much is on its way to this client to send what it came to; take what was answered \
             already, then ask for /v1/runs/{run}/outcome"
        );
        response.extensions_mut().insert(Instead(Accepted { run, state: State::Finished, sentence: Some(sentence) }));
    }
    response
}

/// The name of the tool that is meant, which a model may know by another; see [`windlass::tools::model_name`].
fn named(windlass: &Windlass, name: &str) -> Arc<str> {
    windlass::tools::called(windlass.toolbox(), name).map_or_else(|| name.into(), |tool| tool.spec().name.clone())
}

fn to_call(tool: Arc<str>, args: serde_json::Value, call_id: Option<String>) -> Answer<ToolCall> {
    if tool.is_empty() || tool.chars().count() > ID_CHARS {
        return Err(Refusal::invalid(format!("the name of a tool has 1 to {ID_CHARS} characters")));
    }
    if !args.is_object() {
        return Err(Refusal::invalid("args: the arguments of a call are an object"));
    }
    let call = ToolCall::new(tool, args);
    match call_id {
        Some(id) if id.chars().count() > ID_CHARS => {
            Err(Refusal::invalid(format!("call_id has at most {ID_CHARS} characters")))
        }
        Some(id) => Ok(call.with_id(id)),
        None => Ok(call),
    }
}

fn in_layer(call: ToolCall, layer: Option<Arc<str>>) -> ToolCall {
    match layer {
        Some(layer) => call.in_layer(layer),
        None => call,
    }
}

fn start(key: Option<String>, session: Option<String>) -> Answer<Start> {
    let session = session.map(|name| check_session(&name).map(|()| Arc::from(name))).transpose()?;
    Ok(Start { key: key.map(Arc::from), session, ..Start::default() })
}

pub(super) fn check_session(name: &str) -> Answer<()> {
    if name.is_empty() || name.chars().count() > SESSION_CHARS || name.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!("the name of a session has 1 to {SESSION_CHARS} visible characters")));
    }
    Ok(())
}

/// The run has no outcome yet: it takes longer than it is waited for, is held, or somebody else goes on with it.
async fn unfinished(app: &Shared, submitted: &mut Submitted, error: Option<Error>) -> Answer {
    match error {
        Some(Error::Held { run, .. }) => accepted(app, run).await,
        None | Some(Error::Elsewhere { .. }) => accepted(app, submitted.accepted().await?).await,
        Some(error) => Err(error.into()),
    }
}

/// 202, and where to look.
pub(super) async fn accepted(app: &Shared, run: RunId) -> Answer<Response> {
    let info = app.windlass.info(run).await?.ok_or(windlass::StoreError::NoSuchRun(run))?;
    let sentence = match &info.state {
        windlass::RunState::Held { hold } => Some(hold.to_string()),
        _ => None,
    };
    let body = Accepted { run, state: show::state(&info.state), sentence };
    Ok(located(StatusCode::ACCEPTED, &format!("/v1/runs/{run}"), &body))
}
