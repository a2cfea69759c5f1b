//! Server-sent events: ordered, resumable, with exactly one `end` as the last event.
//!
//! A stream is pulled: it reads from the store when its reader has room, so a slow reader costs no more than the last
//! events that were sent to it. A reader that was behind for too long gets an `end` event when it reads again, and one
//! that reads nothing at all is disconnected. Both can resume without a gap.

use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use futures_util::Stream;
use serde::Serialize;
use tokio::time::Sleep;

use crate::app::Shared;
use crate::body::CHUNK_BYTES;
use crate::guard::QuotaClient;
use crate::metrics::GaugeGuard;
use crate::quota::QuotaPermit;
use crate::rate::Client;
use crate::refusal::{ApiResult, Refusal};
use crate::wire::{End, EndReason};

/// A source of events.
pub(crate) trait Source: Send + 'static {
    /// The next event. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Next> + Send;

    /// The position after the last event, from which a reader resumes.
    fn position(&self) -> String;
}

/// The next item of a source.
pub(crate) enum Next {
    Event(Bytes),
    End(EndReason),
}

/// One event in the wire format.
pub(crate) fn event(id: Option<&str>, name: &str, data: &impl Serialize) -> Bytes {
    let mut text = Vec::with_capacity(256);
    if let Some(id) = id {
        text.extend_from_slice(b"id: ");
        text.extend_from_slice(id.as_bytes());
        text.push(b'\n');
    }
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    // Compact JSON escapes line breaks, so it is always one line.
    if serde_json::to_writer(&mut text, data).is_err() {
        text.extend_from_slice(b"null");
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

struct Reader<S> {
    app: Shared,
    source: S,
    heartbeat: Pin<Box<Sleep>>,
    /// When the last frame was passed on.
    last_frame: Instant,
    ended: bool,
    client: Option<Client>,
    /// The unsent part of an event that is longer than a chunk, and the permit for its bytes.
    rest: Bytes,
    permit: Option<QuotaPermit>,
    _open: (GaugeGuard, Option<QuotaPermit>),
}

/// The response with the events of a source.
pub(crate) fn stream<S: Source>(app: Shared, QuotaClient(client): QuotaClient, source: S) -> ApiResult {
    let permit = match &client {
        Some(client) => Some(app.streams.take(client, 1).ok_or_else(|| too_many(&app))?),
        None => None,
    };
    let heartbeat = app.options.limits.heartbeat;
    let open = (app.metrics.streams.increment(), permit);
    let heartbeat = Box::pin(tokio::time::sleep(heartbeat));
    let (last_frame, rest) = (Instant::now(), Bytes::new());
    let reader = Reader { app, source, heartbeat, last_frame, ended: false, client, rest, permit: None, _open: open };
    let mut response = Body::from_stream(frames(reader)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Disables the response buffering of nginx.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn too_many(app: &Shared) -> Refusal {
    let limit = app.streams.per_client();
    let detail = format!(
        "this client has {limit} open event streams, which is its limit, or all clients together have reached theirs; \
         close some of them first"
    );
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", "Too many event streams", detail)
        .with("limit", limit)
        .header(header::RETRY_AFTER, "1")
}

fn frames<S: Source>(reader: Reader<S>) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
    futures_util::stream::unfold(reader, |mut reader| async move {
        let frame = reader.frame().await?;
        reader.last_frame = Instant::now();
        Some((Ok(frame), reader))
    })
}

impl<S: Source> Reader<S> {
    async fn frame(&mut self) -> Option<Bytes> {
        if !self.rest.is_empty() {
            return Some(self.next_chunk());
        }
        self.permit = None;
        if self.ended {
            return None;
        }
        // The next frame is not polled while earlier ones wait to be sent, so a long pause means a slow reader.
        if self.last_frame.elapsed() > self.app.options.limits.slow_reader_timeout {
            return Some(self.end(EndReason::Slow));
        }
        let heartbeat = self.app.options.limits.heartbeat;
        let (app, position) = (self.app.clone(), self.source.position());
        tokio::select! {
            biased;
            () = app.stopped() => Some(self.end(EndReason::Shutdown)),
            next = self.source.next() => {
                reset(&mut self.heartbeat, heartbeat);
                Some(match next {
                    Next::Event(bytes) => self.first_chunk(bytes, position),
                    Next::End(reason) => self.end(reason),
                })
            }
            () = &mut self.heartbeat => {
                reset(&mut self.heartbeat, heartbeat);
                Some(Bytes::from_static(b": heartbeat\n\n"))
            }
        }
    }

    /// The first chunk of an event. If the client has no quota left for it, the stream ends at `position`, before the
    /// event.
    fn first_chunk(&mut self, event: Bytes, position: String) -> Bytes {
        if event.len() <= CHUNK_BYTES {
            return event;
        }
        if let Some(client) = &self.client {
            self.permit = self.app.bytes.take(client, event.len());
            if self.permit.is_none() {
                return self.end_at(EndReason::Slow, position);
            }
        }
        self.rest = event;
        self.next_chunk()
    }

    fn next_chunk(&mut self) -> Bytes {
        let chunk = self.rest.split_to(self.rest.len().min(CHUNK_BYTES));
        if self.rest.is_empty() {
            self.rest = Bytes::new();
        }
        chunk
    }

    fn end(&mut self, reason: EndReason) -> Bytes {
        let position = self.source.position();
        self.end_at(reason, position)
    }

    fn end_at(&mut self, reason: EndReason, next: String) -> Bytes {
        self.ended = true;
        event(None, "end", &End { reason, next })
    }
}

fn reset(timer: &mut Pin<Box<Sleep>>, interval: Duration) {
    timer.as_mut().reset(tokio::time::Instant::now() + interval);
}
