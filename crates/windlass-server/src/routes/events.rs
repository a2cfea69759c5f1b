//! Event streams of runs and sessions.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::{Activity, Cursor, Error, Watch};

use super::calls::check_session;
use super::paging::{PAGE_BYTES, json_bytes, page_size};
use super::runs::info;
use crate::access::{May, Read};
use crate::answer::ok;
use crate::app::Shared;
use crate::extract::{InRun, Place, Query};
use crate::given::PIECE;
use crate::guard::Asker;
use crate::refusal::{Answer, Refusal, troubled};
use crate::show::{self, cursor, parse_cursor};
use crate::sse::{self, Next, Source, event};
use crate::wire::{EndReason, EventPage};

/// A page that nothing comes for within this time has all there is.
const CAUGHT_UP: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FromQuery {
    /// The first event wanted, `RECORD.INDEX`: what `next` said. From the beginning unless said.
    #[param(pattern = "^[0-9]+\\.[0-9]+$")]
    from: Option<String>,
    /// Most events of a page; streams have no limit.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

/// Watch a run
///
/// As server-sent events: first what happened, then what happens, in order and without gaps, to the run's end. Each event
/// that is recorded has an `id`; reconnecting with `Last-Event-ID` goes on behind it. The last one is `end`. With
/// `Accept: application/json` the answer is one page of what is there.
#[utoipa::path(get, path = "/v1/runs/{run}/events", tag = "events",
    params(("run" = String, Path, format = "uuid"), FromQuery, ("last-event-id" = Option<String>, Header)),
    responses((status = 200, description = "The events", content(
        (EventPage = "application/json"), (String = "text/event-stream")))))]
pub(super) async fn of_run(
    State(app): State<Shared>,
    _may: May<Read>,
    asker: Asker,
    InRun(run): InRun,
    Query(query): Query<FromQuery>,
    headers: HeaderMap,
) -> Answer {
    let from = place(&query, &headers)?;
    // Its journal must be there, too: an event stream that cannot begin says so instead.
    info(&app, run).await?;
    app.windlass.journal_page(run, from.record, 1).await?;
    let watch = app.windlass.watch(run, from).await?;
    answer(app, asker, watch, &query, &headers).await
}

/// Watch every run of a session
///
/// The same for a session, in the order in which the store took it. It has no end of its own.
#[utoipa::path(get, path = "/v1/sessions/{session}/events", tag = "events",
    params(("session" = String, Path), FromQuery, ("last-event-id" = Option<String>, Header)),
    responses((status = 200, description = "The events", content(
        (EventPage = "application/json"), (String = "text/event-stream")))))]
pub(super) async fn of_session(
    State(app): State<Shared>,
    _may: May<Read>,
    asker: Asker,
    Place(session): Place<String>,
    Query(query): Query<FromQuery>,
    headers: HeaderMap,
) -> Answer {
    check_session(&session)?;
    let from = place(&query, &headers)?;
    let watch = app.windlass.watch_session(Arc::<str>::from(session), from);
    answer(app, asker, watch, &query, &headers).await
}

/// Where a reader begins.
fn place(query: &FromQuery, headers: &HeaderMap) -> Answer<Cursor> {
    let bad = |what: &str| {
        let why = format!("{what} is RECORD.INDEX, such as 3.0: the `id` of an event, or `next` of a page or an `end`");
        Refusal::bad_request("bad_cursor", why)
    };
    // A browser that reconnects repeats the address, and says what it saw last.
    if let Some(seen) = headers.get("last-event-id").filter(|seen| !seen.is_empty()) {
        let seen = seen.to_str().ok().and_then(parse_cursor).ok_or_else(|| bad("Last-Event-ID"))?;
        return Ok(seen.next());
    }
    match &query.from {
        Some(from) => parse_cursor(from).ok_or_else(|| bad("from")),
        None => Ok(Cursor::START),
    }
}

async fn answer(app: Shared, asker: Asker, watch: Watch, query: &FromQuery, headers: &HeaderMap) -> Answer {
    let limit = page_size(query.limit, 1_000)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let wants = |kind: &str| accept.split(',').any(|one| one.split(';').next().unwrap_or_default().trim() == kind);
    if wants("application/json") && !wants("text/event-stream") {
        return page(&app, asker, watch, limit).await;
    }
    sse::stream(app, asker, Watched(watch))
}

/// A page of what is there. It waits for a moment, so what it holds meanwhile is counted; where there is no room it ends.
async fn page(app: &Shared, Asker(client): Asker, mut watch: Watch, limit: usize) -> Answer {
    let mut held = None;
    let (mut events, mut bytes, mut ended) = (Vec::new(), 0, false);
    while events.len() < limit && bytes < PAGE_BYTES {
        match tokio::time::timeout(CAUGHT_UP, watch.next()).await {
            Ok(Some(activity)) => {
                let activity = activity?;
                let event = placed(&watch, &activity);
                bytes += json_bytes(&event);
                events.push(event);
                if let Some(client) = client.as_ref().filter(|_| held.is_none() && bytes > PIECE) {
                    held = app.bytes.take(client, PAGE_BYTES);
                    if held.is_none() {
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
    Ok(ok(&EventPage { events, next: cursor(watch.cursor()), ended }))
}

/// An activity that a watch has just returned, with its place in that stream: that of a session counts the records of all
/// its runs.
fn placed(watch: &Watch, activity: &Activity) -> crate::wire::Activity {
    let mut shown = show::activity(activity);
    if shown.position.is_some() {
        let next = watch.cursor();
        shown.position = Some(cursor(Cursor { index: next.index.saturating_sub(1), ..next }));
    }
    shown
}

struct Watched(Watch);

impl Source for Watched {
    async fn next(&mut self) -> Next {
        match self.0.next().await {
            Some(Ok(activity)) => {
                let shown = placed(&self.0, &activity);
                Next::Event(event(shown.position.as_deref(), &shown.kind, &shown))
            }
            None => Next::Over(EndReason::Finished),
            // Shut down, but for the last word.
            Some(Err(Error::Closed)) => Next::Over(EndReason::Shutdown),
            Some(Err(error)) => {
                troubled(&format_args!("a stream ends early: {error}"));
                Next::Over(EndReason::Failed)
            }
        }
    }

    fn place(&self) -> String {
        cursor(self.0.cursor())
    }
}
