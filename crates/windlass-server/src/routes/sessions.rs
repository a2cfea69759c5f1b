//! Sessions: open, show, list, messages, close and purge.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::session::{
    Author, NewMessage, Session, SessionCursor, SessionFilter, SessionInfo, SessionMessage, SessionRefusal,
    UnfinishedRuns,
};

use windlass::{Content, Error, Timestamp};

use super::calls::check_session;
use super::paging::{PAGE_BYTES, json_bytes, page_size};
use super::session_turns::{settings_change, settings_view, wake};
use crate::access::{Admin, Authorized, Call, Identity, Read};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, Json, MaybeJson, PathParam, Query};
use crate::refusal::{ApiResult, Refusal};
use crate::response::{json, ok};
use crate::wire::{
    CloseRequest, CloseResponse, MessageAuthor, MessagePage, MessageRequest, MessageView, PostedMessage, SessionPage,
    SessionRequest, SessionView,
};

/// Sessions that are open, or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OpenFilter {
    Open,
    Closed,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionsQuery {
    /// Only `open` or only `closed` sessions.
    #[param(inline)]
    state: Option<OpenFilter>,
    /// Only sessions of this principal.
    owner: Option<String>,
    /// Most sessions in the page.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MessagesQuery {
    /// Only messages after this position.
    after: Option<u64>,
    /// Only this many of the latest messages; not together with `after`.
    #[param(minimum = 1, maximum = 500)]
    last: Option<u64>,
    /// Most messages in the page.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
}

/// The session of a request. One that belongs to another principal looks missing to a sender that may not see it.
///
/// Writes to it are checked by the store: the session may get its owner after it was looked up here.
pub(super) async fn session(app: &Shared, sender: &Identity, name: &str) -> ApiResult<Session> {
    check_session(name)?;
    let session = app.windlass.session(name);
    let Some(principal) = sender.restriction() else { return Ok(session) };
    if session.info().await?.is_some_and(|info| info.owner.as_ref() != Some(principal)) {
        return Err(missing(&session));
    }
    Ok(session.as_principal(principal.clone()))
}

/// The same words as for a write to a session that does not exist.
fn missing(session: &Session) -> Refusal {
    Refusal::not_found(SessionRefusal::Missing.sentence(session.name()))
}

/// The refusal for a write that the session itself refused.
pub(super) fn refused(error: Error) -> Refusal {
    match error {
        Error::Conflict(why) => Refusal::session_conflict("conflict", why),
        error => error.into(),
    }
}

/// The session, which must exist.
pub(super) async fn existing(session: &Session) -> ApiResult<SessionInfo> {
    session.info().await?.ok_or_else(|| missing(session))
}

/// List sessions
///
/// Newest first. A session is listed from its first run on, or from the moment it was opened. A token without the scope
/// `admin` sees the sessions of its principal only.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(SessionsQuery),
    responses((status = 200, description = "A page of sessions", body = SessionPage)))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    Query(query): Query<SessionsQuery>,
) -> ApiResult {
    let limit = page_size(query.limit, 500)?;
    let before = query.cursor.as_deref().map(read_cursor).transpose()?;
    let open = query.state.map(|state| state == OpenFilter::Open);
    let owner = match (authorized.identity.restriction(), query.owner) {
        // Those of other principals look missing.
        (Some(own), Some(asked)) if **own != *asked => {
            return Ok(ok(&SessionPage { sessions: Vec::new(), next: None }));
        }
        (Some(own), _) => Some(own.clone()),
        (None, asked) => asked.map(Into::into),
    };
    let filter = SessionFilter { open, owner };
    let sessions = app.windlass.sessions(filter, before, limit).await?;
    let next = sessions.last().filter(|_| sessions.len() == limit).map(|last| cursor(&last.cursor()));
    Ok(ok(&SessionPage { sessions: sessions.iter().map(view).collect(), next }))
}

/// Show a session
#[utoipa::path(get, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, description = "The session", body = SessionView)))]
pub(super) async fn get(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
) -> ApiResult {
    Ok(ok(&view(&existing(&session(&app, &authorized.identity, &name).await?).await?)))
}

/// Open a session, or change its title and settings
///
/// A session need not be opened: the first run in it does the same, without a title. A closed session cannot be opened
/// again.
#[utoipa::path(put, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    request_body = Option<SessionRequest>,
    responses((status = 200, description = "The session was open already", body = SessionView),
              (status = 201, description = "The session is open now", body = SessionView)))]
pub(super) async fn put(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam(name): PathParam<String>,
    MaybeJson(request): MaybeJson<SessionRequest>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    // A token without the scope `admin` opens sessions for its own principal.
    let owner = match (authorized.identity.restriction(), request.owner.as_deref()) {
        (Some(own), _) => Some(&**own),
        (None, Some(named)) => Some(named),
        // With the scope, a session of another principal keeps its owner.
        (None, None) if session.info().await?.is_some_and(|info| info.owner.is_some()) => None,
        (None, None) => authorized.identity.principal.as_deref(),
    };
    let settings = settings_change(request.settings.unwrap_or_default());
    let created = session.open_with(request.title.as_deref(), owner, settings).await.map_err(refused)?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json(status, &view(&existing(&session).await?)))
}

/// Purge a session
///
/// Removes the title, messages, data and secrets of a closed session whose runs have all ended.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    responses((status = 204, description = "The content of the session is removed")))]
pub(super) async fn purge(
    State(app): State<Shared>,
    authorized: Authorized<Admin>,
    PathParam(name): PathParam<String>,
) -> ApiResult {
    session(&app, &authorized.identity, &name).await?.purge().await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Close a session
///
/// From now on it refuses calls, messages and other writes. The reply keys of its unfinished runs are void; the runs go
/// on, or are cancelled. Closing it again tells the runs that were not told.
#[utoipa::path(post, path = "/v1/sessions/{session}/close", tag = "sessions", params(("session" = String, Path)),
    request_body = Option<CloseRequest>,
    responses((status = 200, description = "The closed session", body = CloseResponse)))]
pub(super) async fn close(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    _key: IdempotencyKey,
    PathParam(name): PathParam<String>,
    MaybeJson(request): MaybeJson<CloseRequest>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    authorized.identity.may_act_on_all()?;
    let runs = if request.cancel { UnfinishedRuns::Cancel } else { UnfinishedRuns::Leave };
    let told = session.close(request.reason.as_deref().unwrap_or("no reason given"), runs).await?;
    let session = view(&existing(&session).await?);
    Ok(ok(&CloseResponse { session, unfinished_runs: told as u64 }))
}

/// Post a message
///
/// With an `Idempotency-Key` the session gets it once: the same request again returns the first message. With `wake`
/// it starts a turn of the session's agent, in the same commit; the response names the run. A message that is refused,
/// because the session has a turn (`busy`) or too many unfinished runs (`session_full`), is not posted.
#[utoipa::path(post, path = "/v1/sessions/{session}/messages", tag = "sessions", params(("session" = String, Path)),
    request_body = MessageRequest,
    responses((status = 200, description = "The message was posted before", body = PostedMessage),
              (status = 201, description = "The message is posted", body = PostedMessage)))]
pub(super) async fn post(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    key: IdempotencyKey,
    PathParam(name): PathParam<String>,
    Json(request): Json<MessageRequest>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    let content = content(request.text, request.content)?;
    let author = match request.author {
        MessageAuthor::User => Author::User,
        MessageAuthor::Agent => Author::Agent,
        MessageAuthor::Tool => Author::Tool,
        MessageAuthor::System => Author::System,
    };
    let (cause, dedupe) = (request.cause.map(Into::into), key.as_deref().map(Into::into));
    let wake = wake(request.wake, request.turn)?;
    let session = match &authorized.identity.principal {
        Some(principal) => session.acting_for(principal.clone()),
        None => session,
    };
    let posted = session.post(NewMessage { author, content, cause, dedupe, wake }).await.map_err(refused)?;
    let status = if posted.repeated { StatusCode::OK } else { StatusCode::CREATED };
    let (position, at, repeated, run) = (posted.position, posted.at.into(), posted.repeated, posted.run);
    Ok(json(status, &PostedMessage { position, at, repeated, run }))
}

fn content(text: Option<String>, content: Option<Vec<serde_json::Value>>) -> ApiResult<Vec<Content>> {
    match (text, content) {
        (Some(text), None) => Ok(vec![Content::text(text)]),
        (None, Some(blocks)) => blocks
            .into_iter()
            .enumerate()
            .map(|(index, block)| {
                let bad = |error| Refusal::invalid(format!("content block {index} cannot be read: {error}"));
                serde_json::from_value(block).map_err(bad)
            })
            .collect(),
        _ => Err(Refusal::invalid("a message has either `text` or `content`")),
    }
}

/// Read messages
///
/// In order: those after a position, or the latest ones. A page may have fewer messages than `limit` and not be the last
/// one. The last page has no `next`.
#[utoipa::path(get, path = "/v1/sessions/{session}/messages", tag = "sessions",
    params(("session" = String, Path), MessagesQuery),
    responses((status = 200, description = "A page of messages", body = MessagePage)))]
pub(super) async fn messages(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
    Query(query): Query<MessagesQuery>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    let limit = page_size(query.last.or(query.limit), 500)?;
    let latest = existing(&session).await?.messages;
    let after = match (query.after, query.last) {
        (Some(_), Some(_)) => {
            return Err(Refusal::bad_request("bad_query", "query: use either `after` or `last`"));
        }
        (_, Some(_)) => latest.saturating_sub(limit as u64),
        (after, None) => after.unwrap_or(0),
    };
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for message in session.messages(after, limit).await? {
        let message = message_view(message)?;
        bytes += json_bytes(&message);
        if bytes > PAGE_BYTES && !shown.is_empty() {
            break;
        }
        shown.push(message);
    }
    let next = shown.last().map(|last| last.position).filter(|last| *last < latest);
    Ok(ok(&MessagePage { messages: shown, next }))
}

fn view(session: &SessionInfo) -> SessionView {
    let text = |text: &std::sync::Arc<str>| text.to_string();
    SessionView {
        session: session.name.to_string(),
        title: session.title.as_ref().map(text),
        owner: session.owner.as_ref().map(text),
        created: session.created.into(),
        closed: session.closed.as_ref().map(|closing| closing.at.into()),
        reason: session.closed.as_ref().map(|closing| closing.reason.to_string()),
        messages: session.messages,
        settings: settings_view(&session.settings),
    }
}

pub(super) fn message_view(message: SessionMessage) -> ApiResult<MessageView> {
    let SessionMessage { position, at, author, content, cause, woke, run } = message;
    let content =
        content.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(|_| Refusal::internal())?;
    let (author, cause) = (author.as_str().to_owned(), cause.map(|cause| cause.to_string()));
    Ok(MessageView { position, at: at.into(), author, content, cause, woke, run })
}

/// A cursor has the time and the name of the last session of a page.
fn cursor(at: &SessionCursor) -> String {
    format!("s{}.{}", at.created.as_micros(), at.name)
}

fn read_cursor(text: &str) -> ApiResult<SessionCursor> {
    let parsed = || {
        let (micros, name) = text.strip_prefix('s')?.split_once('.')?;
        Some(SessionCursor { created: Timestamp::from_micros(micros.parse().ok()?), name: name.into() })
    };
    let detail = "query: `cursor` does not belong to this list; use `next` of the previous page, or leave it out to \
                  start with the first page";
    parsed().ok_or_else(|| Refusal::bad_request("bad_cursor", detail))
}
