//! The event stream of a session: what its runs do, and the messages that are posted to it.

use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::run::Cursor;
use windlass::session::{SessionEvent, SessionPosition, SessionWatch};
use windlass::{Error, Timestamp};

use super::calls::check_session;
use super::events::{CAUGHT_UP, wants_page};
use super::paging::{PAGE_BYTES, json_bytes, page_size};
use super::sessions::message_view;
use crate::access::{Authorized, Read};
use crate::app::Shared;
use crate::body::CHUNK_BYTES;
use crate::extract::{PathParam, Query};
use crate::guard::QuotaClient;
use crate::refusal::{ApiResult, Refusal, log_throttled};
use crate::response::ok;
use crate::show::{self, parse_cursor};
use crate::sse::{self, Next, Source, event};
use crate::wire::{self, EndReason, MessageEvent, SessionEventPage};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionFromQuery {
    /// Position to continue at: `next` of a page or of an `end` event, or the `id` of an event to continue after it. By
    /// default the beginning of the stream.
    from: Option<String>,
    /// Most events in a page. Streams have no limit.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

/// Watch a session
///
/// A stream of server-sent events: the events of all runs of the session in the order in which they were stored, and
/// `message_posted` for each message. The `id` of an event is the position after it; a client that reconnects with
/// `Last-Event-ID` misses nothing and gets nothing twice. Positions are opaque. The stream ends when the session is
/// purged; its `end` event says so. With `Accept: application/json` the response is one page of recorded events. A token
/// without the scope `admin` sees the runs of its principal, and the messages if the session is its own.
#[utoipa::path(get, path = "/v1/sessions/{session}/events", tag = "events",
    params(("session" = String, Path), SessionFromQuery, ("last-event-id" = Option<String>, Header)),
    responses((status = 200, description = "The events", content(
        (SessionEventPage = "application/json"), (String = "text/event-stream")))))]
pub(super) async fn of_session(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    quota_client: QuotaClient,
    PathParam(session): PathParam<String>,
    Query(query): Query<SessionFromQuery>,
    headers: HeaderMap,
) -> ApiResult {
    check_session(&session)?;
    let from = start_position(&query, &headers)?;
    let mut watch = app.windlass.session(session).watch(from);
    if let Some(principal) = authorized.identity.restriction() {
        watch = watch.only_of(principal.clone());
    }
    let limit = page_size(query.limit, 1_000)?;
    if wants_page(&headers) {
        return page(&app, quota_client, watch, limit).await;
    }
    sse::stream(app, quota_client, Watched(watch))
}

/// The position at which a reader wants to continue.
fn start_position(query: &SessionFromQuery, headers: &HeaderMap) -> ApiResult<SessionPosition> {
    let bad = |name: &str| {
        let detail = format!(
            "`{name}` is not a position in the events of a session; use the `id` of an event, or `next` of a page or \
             of an `end` event"
        );
        Refusal::bad_request("bad_cursor", detail)
    };
    // The header first: a browser that reconnects repeats the address with its `from`.
    if let Some(seen) = headers.get("last-event-id").filter(|seen| !seen.is_empty()) {
        return seen.to_str().ok().and_then(parse_position).ok_or_else(|| bad("Last-Event-ID"));
    }
    match &query.from {
        Some(from) => parse_position(from).ok_or_else(|| bad("from")),
        None => Ok(SessionPosition::START),
    }
}

/// A position as text: that of the activities, the messages seen, and the time of the session.
fn position(position: SessionPosition) -> String {
    let created = position.created.map_or(0, Timestamp::as_micros);
    format!("{}.{}.{created}", show::cursor(position.activities), position.messages)
}

fn parse_position(text: &str) -> Option<SessionPosition> {
    let (rest, created) = text.trim().rsplit_once('.')?;
    let (activities, messages) = rest.rsplit_once('.')?;
    let number = |text: &str| -> Option<i64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    };
    let created = match number(created)? {
        0 => None,
        micros => Some(Timestamp::from_micros(micros)),
    };
    let activities: Cursor = parse_cursor(activities)?;
    Some(SessionPosition { activities, messages: number(messages)?.cast_unsigned(), created })
}

/// An event that a watch has just returned, with the position after it.
fn shown(watch: &SessionWatch, event: SessionEvent) -> ApiResult<wire::SessionEvent> {
    let position = position(watch.position());
    Ok(match event {
        SessionEvent::Activity(activity) => {
            let mut shown = show::activity(&activity);
            shown.position = shown.position.map(|_| position);
            wire::SessionEvent::Activity(shown)
        }
        SessionEvent::Message(message) => {
            let at = message.at.into();
            let message = message_view(message)?;
            wire::SessionEvent::Message(MessageEvent { position, at, kind: "message_posted".to_owned(), message })
        }
        _ => return Err(Refusal::internal()),
    })
}

/// A page of events. Collecting them may wait, so the bytes are counted meanwhile; without quota the page ends.
async fn page(app: &Shared, QuotaClient(client): QuotaClient, mut watch: SessionWatch, limit: usize) -> ApiResult {
    let mut permit = None;
    let (mut events, mut bytes, mut ended) = (Vec::new(), 0, false);
    while events.len() < limit && bytes < PAGE_BYTES {
        match tokio::time::timeout(CAUGHT_UP, watch.next()).await {
            Ok(Some(event)) => {
                let event = shown(&watch, event?)?;
                bytes += json_bytes(&event);
                events.push(event);
                if let Some(client) = client.as_ref().filter(|_| permit.is_none() && bytes > CHUNK_BYTES) {
                    permit = app.bytes.take(client, PAGE_BYTES);
                    if permit.is_none() {
                        break;
                    }
                }
            }
            Ok(None) => {
                ended = true;
                break;
            }
            Err(_) => break,
        }
    }
    Ok(ok(&SessionEventPage { events, next: position(watch.position()), ended }))
}

struct Watched(SessionWatch);

impl Source for Watched {
    async fn next(&mut self) -> Next {
        let failed = |error: &dyn std::fmt::Display| {
            log_throttled(&format_args!("an event stream failed: {error}"));
            Next::End(EndReason::Failed)
        };
        match self.0.next().await {
            Some(Ok(found)) => match shown(&self.0, found) {
                Ok(shown) => Next::Event(event(shown.position(), shown.kind(), &shown)),
                Err(refusal) => failed(&refusal.problem().detail),
            },
            None => Next::End(EndReason::Purged),
            Some(Err(Error::Closed)) => Next::End(EndReason::Shutdown),
            Some(Err(error)) => failed(&error),
        }
    }

    fn position(&self) -> String {
        position(self.0.position())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l20_a_position_in_a_session_round_trips_and_a_malformed_one_is_refused() {
        let created = Some(Timestamp::from_micros(99));
        for there in [
            SessionPosition::START,
            SessionPosition { activities: Cursor { record: 12, index: 3 }, messages: 7, created },
        ] {
            assert_eq!(parse_position(&position(there)), Some(there));
        }
        for bad in ["", "1.0", "1.0.2", "1.0.-2.3", "1.0.2.", "1.0..3", "a.0.2.3", "1.0.2.3.4", "1.0.+2.3"] {
            assert_eq!(parse_position(bad), None, "{bad}");
        }
    }
}
