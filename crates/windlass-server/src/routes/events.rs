//! Event streams of runs.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::Error;
use windlass::run::{Cursor, Watch};

use super::paging::{PAGE_BYTES, json_bytes, page_size};
use crate::access::{Authorized, Read};
use crate::app::Shared;
use crate::body::CHUNK_BYTES;
use crate::extract::{Query, RunParam};
use crate::guard::QuotaClient;
use crate::refusal::{ApiResult, Refusal, log_throttled};
use crate::response::ok;
use crate::show::{self, cursor, parse_cursor};
use crate::sse::{self, Next, Source, event};
use crate::wire::{EndReason, EventPage};

/// A page ends when there is no further event within this time.
pub(super) const CAUGHT_UP: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FromQuery {
    /// Position of the first event, `RECORD.INDEX`, such as `next` of a page. By default the first event of the stream.
    #[param(pattern = "^[0-9]+\\.[0-9]+$")]
    from: Option<String>,
    /// Most events in a page. Streams have no limit.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

/// Watch a run
///
/// A stream of server-sent events: recorded events first, then new ones as they happen, in order and without gaps,
/// until the run ends. Recorded events have an `id`; a client that reconnects with `Last-Event-ID` resumes after that
/// event. The last event is `end`. With `Accept: application/json` the response is one page of recorded events.
#[utoipa::path(get, path = "/v1/runs/{run}/events", tag = "events",
    params(("run" = String, Path, format = "uuid"), FromQuery, ("last-event-id" = Option<String>, Header)),
    responses((status = 200, description = "The events", content(
        (EventPage = "application/json"), (String = "text/event-stream")))))]
pub(super) async fn of_run(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    quota_client: QuotaClient,
    RunParam(run): RunParam,
    Query(query): Query<FromQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let from = start_position(&query, &headers)?;
    // Reads the run and its journal first, so that an error is a problem and not a broken stream.
    authorized.identity.run(&app, run).await?;
    app.windlass.runtime().journal_page(run, from.record, 1).await?;
    let watch = app.windlass.runtime().watch(run, from).await?;
    respond(app, quota_client, watch, &query, &headers).await
}

/// The position of the first event that a reader wants.
fn start_position(query: &FromQuery, headers: &HeaderMap) -> ApiResult<Cursor> {
    let bad = |name: &str| {
        let detail = format!(
            "`{name}` is not a position; use RECORD.INDEX, such as 3.0: the `id` of an event, or `next` of a page or \
             of an `end` event"
        );
        Refusal::bad_request("bad_cursor", detail)
    };
    // The header first: a browser that reconnects repeats the address with its `from`.
    if let Some(seen) = headers.get("last-event-id").filter(|seen| !seen.is_empty()) {
        let seen = seen.to_str().ok().and_then(parse_cursor).ok_or_else(|| bad("Last-Event-ID"))?;
        return Ok(seen.next());
    }
    match &query.from {
        Some(from) => parse_cursor(from).ok_or_else(|| bad("from")),
        None => Ok(Cursor::START),
    }
}

async fn respond(
    app: Shared,
    quota_client: QuotaClient,
    watch: Watch,
    query: &FromQuery,
    headers: &HeaderMap,
) -> ApiResult {
    let limit = page_size(query.limit, 1_000)?;
    if wants_page(headers) {
        return page(&app, quota_client, watch, limit).await;
    }
    sse::stream(app, quota_client, Watched(watch))
}

/// Whether a reader wants a page instead of a stream.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let wants = |kind: &str| accept.split(',').any(|one| one.split(';').next().unwrap_or_default().trim() == kind);
    wants("application/json") && !wants("text/event-stream")
}

/// A page of events. Collecting them may wait, so the bytes are counted meanwhile; without quota the page ends.
async fn page(app: &Shared, QuotaClient(client): QuotaClient, mut watch: Watch, limit: usize) -> ApiResult {
    let mut permit = None;
    let (mut events, mut bytes, mut ended) = (Vec::new(), 0, false);
    while events.len() < limit && bytes < PAGE_BYTES {
        match tokio::time::timeout(CAUGHT_UP, watch.next()).await {
            Ok(Some(activity)) => {
                let activity = activity?;
                let event = show::activity(&activity);
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
    Ok(ok(&EventPage { events, next: cursor(watch.cursor()), ended }))
}

struct Watched(Watch);

impl Source for Watched {
    async fn next(&mut self) -> Next {
        match self.0.next().await {
            Some(Ok(activity)) => {
                let shown = show::activity(&activity);
                Next::Event(event(shown.position.as_deref(), &shown.kind, &shown))
            }
            None => Next::End(EndReason::Finished),
            Some(Err(Error::Closed)) => Next::End(EndReason::Shutdown),
            Some(Err(error)) => {
                log_throttled(&format_args!("an event stream failed: {error}"));
                Next::End(EndReason::Failed)
            }
        }
    }

    fn position(&self) -> String {
        cursor(self.0.cursor())
    }
}
