//! The tools that sessions show.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use windlass::session::{Session, SessionTools, ToolsChange};

use super::sessions::{existing, refused, session};
use crate::access::{Authorized, Call, Read};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, Json, PathParam};
use crate::refusal::ApiResult;
use crate::response::ok;
use crate::wire::{SessionToolsRequest, SessionToolsView};

/// Show which tools a session shows
#[utoipa::path(get, path = "/v1/sessions/{session}/tools", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, description = "The tools that the session shows", body = SessionToolsView)))]
pub(super) async fn get(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    existing(&session).await?;
    let tools = session.tools().await?;
    let windlass = authorized.identity.windlass(&app, None)?;
    Ok(ok(&view(&windlass.session(name), tools).await?))
}

/// Change which tools a session shows
///
/// The parts of the request are applied in this order: `reset`, `only`, `show`, `reveal`, `hide`. The same request again
/// changes nothing. A name need not be that of a tool, because a tool may be registered later; the response lists such
/// names in `unknown`. A tool that is not shown can be neither listed nor called in the session.
#[utoipa::path(put, path = "/v1/sessions/{session}/tools", tag = "sessions", params(("session" = String, Path)),
    request_body = SessionToolsRequest,
    responses((status = 200, description = "The tools that the session shows now", body = SessionToolsView)))]
pub(super) async fn put(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    _key: IdempotencyKey,
    PathParam(name): PathParam<String>,
    Json(request): Json<SessionToolsRequest>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    // Before the request is checked: a session of another principal and none are refused alike.
    existing(&session).await?;
    let names = |names: Vec<String>| names.into_iter().map(Arc::from).collect::<Vec<_>>();
    let SessionToolsRequest { reset, only, show, reveal, hide } = request;
    let (only, show, reveal, hide) = (only.map(names), names(show), names(reveal), names(hide));
    let tools = session.change_tools(ToolsChange { reset, only, show, reveal, hide }).await.map_err(refused)?;
    let windlass = authorized.identity.windlass(&app, None)?;
    Ok(ok(&view(&windlass.session(name), tools).await?))
}

async fn view(session: &Session, chosen: SessionTools) -> ApiResult<SessionToolsView> {
    let names = |names: &BTreeSet<Arc<str>>| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let toolbox = session.toolbox().await?;
    let all = toolbox.of_session(session.name()).snapshot();
    let unknown = chosen.names().into_iter().filter(|name| all.by_name(name).is_none());
    Ok(SessionToolsView {
        session: session.name().to_owned(),
        shown: chosen.shown.as_ref().map(names),
        hidden: names(&chosen.hidden),
        revealed: names(&chosen.revealed),
        unknown: unknown.map(|name| name.to_string()).collect(),
        tools: toolbox.tools().iter().map(|tool| tool.spec().name.to_string()).collect(),
    })
}
