//! Calls and batches.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::State as With;
use axum::response::Response;
use windlass::run::{Start, Submitted, Work};
use windlass::tool::batch_identity;
use windlass::{Error, RunId, ToolCall, Toolbox, Windlass};

use crate::access::{Authorized, Call, Identity};
use crate::app::{Shared, wait_time};
use crate::body;
use crate::extract::{IdempotencyKey, Json};
use crate::guard::FallbackResponse;
use crate::refusal::{ApiResult, Refusal};
use crate::response::{accepted as accepted_response, ok};
use crate::show;
use crate::wire::{Accepted, BatchRequest, BatchResponse, CallRequest, CallResponse, RawJson, RunState};

/// Default of `wait_ms`.
const WAIT_MS: u64 = 30_000;
/// Longest name of a session, in characters.
const SESSION_CHARS: usize = 255;
/// Longest id of a call and longest name of a tool, in characters.
const ID_CHARS: usize = 255;
/// Most calls in one batch.
const BATCH_CALLS: usize = 1_000;

/// Call a tool
///
/// The response is 200 with the outcome, even if the call failed, or 202 if it takes longer than `wait_ms`. A request
/// that is repeated with the same `Idempotency-Key` gets the same run. `Location` of a 202 response is the address of
/// the run; a token without the scope `read` can read the run there, because the address has a permission for this
/// token and this run (`access`).
#[utoipa::path(
    post, path = "/v1/calls", tag = "calls", request_body = CallRequest,
    responses(
        (status = 200, description = "The outcome of the call", body = CallResponse),
        (status = 202, description = "The run has not finished", body = Accepted),
    )
)]
pub(super) async fn call(
    With(app): With<Shared>,
    authorized: Authorized<Call>,
    IdempotencyKey(key): IdempotencyKey,
    Json(request): Json<CallRequest>,
) -> ApiResult {
    let wait = wait_time(request.wait_ms, WAIT_MS)?;
    let start = start(&authorized.identity, key, request.session, request.cause)?;
    let (windlass, layer) =
        authorized.identity.call_runtime(&app, request.layer.as_deref(), start.key.as_deref()).await?;
    let tool = tool_name(&windlass, start.session.as_ref(), &request.tool);
    let work = Work::Call(in_layer(to_call(tool.clone(), request.args, request.call_id, request.metadata)?, layer));
    let mut submitted = match windlass.runtime().submit(work, start).await {
        Ok(submitted) => submitted,
        Err(error) => return Err(authorized.identity.refusal(&app, error).await),
    };
    let waited = app.within(wait, pin!(submitted.outcomes())).await;
    match waited {
        Some(Ok((run, mut outcomes))) => {
            app.metrics.outcomes(std::iter::once(&*tool), &outcomes);
            let outcome = outcomes.pop().ok_or_else(Refusal::internal)?;
            let response = ok(&CallResponse { run, outcome: show::outcome(outcome) });
            Ok(or_later(&app, &authorized.identity, run, response))
        }
        waited => {
            let error = waited.and_then(Result::err);
            Box::pin(unfinished(&app, &authorized.identity, &mut submitted, error)).await
        }
    }
}

/// Call several tools as one run
///
/// The outcomes are in the order of the calls. A request that is repeated with the same `Idempotency-Key` gets the same
/// run.
#[utoipa::path(
    post, path = "/v1/batches", tag = "calls", request_body = BatchRequest,
    responses(
        (status = 200, description = "The outcomes of the calls", body = BatchResponse),
        (status = 202, description = "The run has not finished", body = Accepted),
    )
)]
pub(super) async fn batch(
    With(app): With<Shared>,
    authorized: Authorized<Call>,
    IdempotencyKey(key): IdempotencyKey,
    Json(request): Json<BatchRequest>,
) -> ApiResult {
    let wait = wait_time(request.wait_ms, WAIT_MS)?;
    let start = start(&authorized.identity, key, request.session, request.cause)?;
    let (windlass, layer) =
        authorized.identity.call_runtime(&app, request.layer.as_deref(), start.key.as_deref()).await?;
    if request.calls.is_empty() || request.calls.len() > BATCH_CALLS {
        let count = request.calls.len();
        return Err(Refusal::invalid(format!("`calls` has {count} entries; send 1 to {BATCH_CALLS} calls")));
    }
    let tools: Vec<Arc<str>> =
        request.calls.iter().map(|call| tool_name(&windlass, start.session.as_ref(), &call.tool)).collect();
    let calls = request.calls.into_iter().zip(&tools);
    let calls = calls.map(|(call, tool)| {
        Ok(in_layer(to_call(tool.clone(), call.args, call.call_id, call.metadata)?, layer.clone()))
    });
    let calls = calls.collect::<ApiResult<Vec<ToolCall>>>()?;
    let identity = Some(batch_identity(&toolbox(&windlass, start.session.as_ref()), &calls).to_string());
    let work = Work::Batch { calls, stop_on_failure: request.stop_on_failure };
    let mut submitted = match windlass.runtime().submit(work, start).await {
        Ok(submitted) => submitted,
        Err(error) => return Err(authorized.identity.refusal(&app, error).await),
    };
    let waited = app.within(wait, pin!(submitted.outcomes())).await;
    match waited {
        Some(Ok((run, outcomes))) => {
            app.metrics.outcomes(tools.iter().map(|tool| &**tool), &outcomes);
            let response = BatchResponse { run, identity, settled: Vec::new(), outcomes: show::outcomes(outcomes) };
            let response = ok(&response);
            Ok(or_later(&app, &authorized.identity, run, response))
        }
        waited => {
            let error = waited.and_then(Result::err);
            Box::pin(unfinished(&app, &authorized.identity, &mut submitted, error)).await
        }
    }
}

/// Adds a 202 response, which is sent if the client has no quota left for a large outcome: the call was made in any
/// case.
fn or_later(app: &Shared, sender: &Identity, run: RunId, mut response: Response) -> Response {
    if body::size(&response).is_some_and(|size| size > body::CHUNK_BYTES as u64) {
        let sentence = format!(
            "the run has finished, but this client has too many bytes in flight for the outcome; read the pending \
             responses, then get /v1/runs/{run}/outcome"
        );
        response.extensions_mut().insert(FallbackResponse(Accepted {
            run,
            state: RunState::Finished,
            sentence,
            moves: Vec::new(),
            access: sender.run_access(app, run),
        }));
    }
    response
}

/// The name of the tool. A model may know it by another name; see [`windlass::tool::model_name`].
fn tool_name(windlass: &Windlass, session: Option<&Arc<str>>, name: &str) -> Arc<str> {
    let tool = windlass::tool::called(&toolbox(windlass, session), name);
    tool.map_or_else(|| name.into(), |tool| tool.spec().name.clone())
}

/// The tools, with those that belong to the session.
fn toolbox<'w>(windlass: &'w Windlass, session: Option<&Arc<str>>) -> Cow<'w, Toolbox> {
    match session {
        Some(session) => Cow::Owned(windlass.toolbox().of_session(session.clone())),
        None => Cow::Borrowed(windlass.toolbox()),
    }
}

fn to_call(
    tool: Arc<str>,
    args: serde_json::Value,
    call_id: Option<String>,
    metadata: Option<RawJson>,
) -> ApiResult<ToolCall> {
    if tool.is_empty() || tool.chars().count() > ID_CHARS {
        return Err(Refusal::invalid(format!("`tool` must have 1 to {ID_CHARS} characters")));
    }
    if !args.is_object() {
        return Err(Refusal::invalid("`args` must be a JSON object"));
    }
    let mut call = ToolCall::new(tool, args);
    if let Some(metadata) = metadata {
        let most = windlass::limits::METADATA_BYTES;
        if metadata.get().len() > most {
            return Err(Refusal::invalid(format!("`metadata` is too large; send at most {most} bytes of JSON")));
        }
        call = call.metadata(&*metadata);
    }
    match call_id {
        Some(id) if id.chars().count() > ID_CHARS => {
            Err(Refusal::invalid(format!("`call_id` is too long; use at most {ID_CHARS} characters")))
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

fn start(sender: &Identity, key: Option<String>, session: Option<String>, cause: Option<String>) -> ApiResult<Start> {
    let session = session.map(|name| check_session(&name).map(|()| Arc::from(name))).transpose()?;
    let (key, principal, cause) = (key.map(Arc::from), sender.principal.clone(), cause.map(Arc::from));
    // A tool could read the messages and secrets of another principal's session. The store refuses that.
    let own_session = sender.restriction().is_some();
    Ok(Start { key, session, principal, cause, own_session, ..Start::default() })
}

pub(super) fn check_session(name: &str) -> ApiResult<()> {
    if name.is_empty() || name.chars().count() > SESSION_CHARS || name.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!("`session` must have 1 to {SESSION_CHARS} visible characters")));
    }
    Ok(())
}

/// The response for a run without an outcome: the wait timed out, the run is held, or another process continues it.
async fn unfinished(app: &Shared, sender: &Identity, submitted: &mut Submitted, error: Option<Error>) -> ApiResult {
    let run = match error {
        Some(Error::Held { run, .. }) => run,
        None | Some(Error::Elsewhere { .. }) => match submitted.accepted().await {
            Ok(run) => run,
            Err(error) => return Err(sender.refusal(app, error).await),
        },
        Some(error) => return Err(sender.refusal(app, error).await),
    };
    accepted(app, sender, run, sender.run_access(app, run)).await
}

/// A 202 response with the location of the run. `access`: the permission to read it, for a token that needs one.
pub(super) async fn accepted(
    app: &Shared,
    sender: &Identity,
    run: RunId,
    access: Option<String>,
) -> ApiResult<Response> {
    let explanation = sender.explain(app, run).await?;
    let (state, moves) = (show::state(&explanation.state), show::moves(&explanation));
    Ok(accepted_response(&Accepted { run, state, sentence: explanation.sentence, moves, access }))
}
