//! Server-sent events: ordered, resumable, with exactly one `end` as the last of them.
//!
//! A stream is pulled: it reads from the store when its reader has room, so a slow one costs little: the events it was handed
//! last. One that was behind for too long is told so as soon as it reads on, and one that takes nothing at all is cut off;
//! either goes on from where it was, without a gap.

use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use futures_util::Stream;
use serde::Serialize;
use tokio::time::Sleep;

use crate::app::Shared;
use crate::given::PIECE;
use crate::guard::Asker;
use crate::metrics::Open;
use crate::rate::Client;
use crate::refusal::{Answer, Refusal};
use crate::shares::Share;
use crate::wire::{End, EndReason};

/// Where the events come from.
pub(crate) trait Source: Send + 'static {
    /// The next event. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Next> + Send;

    /// Where a reader goes on that has seen everything so far.
    fn place(&self) -> String;
}

/// What a source has.
pub(crate) enum Next {
    /// Something to say.
    Event(Bytes),
    /// Nothing, ever again.
    Over(EndReason),
}

/// One event as it is written.
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
    // JSON has no line breaks of its own, so it is one line whatever is in it.
    if serde_json::to_writer(&mut text, data).is_err() {
        text.extend_from_slice(b"null");
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

struct Reader<S> {
    app: Shared,
    source: S,
    beat: Pin<Box<Sleep>>,
    /// When something was last handed on.
    handed: Instant,
    over: bool,
    client: Option<Client>,
    /// What is left of an event that is longer than a piece, and the room it takes.
    rest: Bytes,
    held: Option<Share>,
    _open: (Open, Option<Share>),
}

/// The stream of a source.
pub(crate) fn stream<S: Source>(app: Shared, Asker(client): Asker, source: S) -> Answer {
    let share = match &client {
        Some(client) => Some(app.streams.take(client, 1).ok_or_else(|| too_many(&app))?),
        None => None,
    };
    let heartbeat = app.options.limits.heartbeat;
    let open = (app.metrics.streams.one(), share);
    let beat = Box::pin(tokio::time::sleep(heartbeat));
    let (handed, rest) = (Instant::now(), Bytes::new());
    let reader = Reader { app, source, beat, handed, over: false, client, rest, held: None, _open: open };
    let mut response = Body::from_stream(frames(reader)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some proxies keep answers back until they are whole, unless they are told not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn too_many(app: &Shared) -> Refusal {
    let most = app.streams.each();
    let why = format!(
        "{most} event streams of this client are open, which is as many as it may have, or too many of all clients; close some first"
    );
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", "Too many streams", why)
        .with("limit", most)
        .header(header::RETRY_AFTER, "1")
}

fn frames<S: Source>(reader: Reader<S>) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
    futures_util::stream::unfold(reader, |mut reader| async move {
        let frame = reader.frame().await?;
        reader.handed = Instant::now();
        Some((Ok(frame), reader))
    })
}

impl<S: Source> Reader<S> {
    async fn frame(&mut self) -> Option<Bytes> {
        if !self.rest.is_empty() {
            return Some(self.piece());
        }
        self.held = None;
        if self.over {
            return None;
        }
        // Nobody asks for the next frame while the last ones are not taken.
        if self.handed.elapsed() > self.app.options.limits.slow {
            return Some(self.end(EndReason::Slow));
        }
        let heartbeat = self.app.options.limits.heartbeat;
        let (app, place) = (self.app.clone(), self.source.place());
        tokio::select! {
            biased;
            () = app.stopped() => Some(self.end(EndReason::Shutdown)),
            next = self.source.next() => {
                rest(&mut self.beat, heartbeat);
                Some(match next {
                    Next::Event(bytes) => self.room_for(bytes, place),
                    Next::Over(reason) => self.end(reason),
                })
            }
            () = &mut self.beat => {
                rest(&mut self.beat, heartbeat);
                Some(Bytes::from_static(b": still here\n\n"))
            }
        }
    }

    /// The first piece of an event. Where too much is on its way to this client, the stream ends before it.
    fn room_for(&mut self, event: Bytes, place: String) -> Bytes {
        if event.len() <= PIECE {
            return event;
        }
        if let Some(client) = &self.client {
            self.held = self.app.bytes.take(client, event.len());
            if self.held.is_none() {
                return self.end_at(EndReason::Slow, place);
            }
        }
        self.rest = event;
        self.piece()
    }

    fn piece(&mut self) -> Bytes {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        if self.rest.is_empty() {
            self.rest = Bytes::new();
        }
        piece
    }

    fn end(&mut self, reason: EndReason) -> Bytes {
        let place = self.source.place();
        self.end_at(reason, place)
    }

    fn end_at(&mut self, reason: EndReason, next: String) -> Bytes {
        self.over = true;
        event(None, "end", &End { reason, next })
    }
}

fn rest(beat: &mut Pin<Box<Sleep>>, heartbeat: Duration) {
    beat.as_mut().reset(tokio::time::Instant::now() + heartbeat);
}
