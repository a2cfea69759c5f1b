//! One run and very many readers: all of its events, to all readers, in order.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use windlass_bench_http::{GO, STORY};

use crate::report::FanOut;
use crate::server::Server;

pub(crate) const READERS: usize = 1_000;
/// Steps of the run.
pub(crate) const STEPS: u32 = 200;

/// How long the readers may take to receive the first event.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// What a reader received.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Received {
    events: usize,
    /// Digest of the positions, in order.
    digest: u64,
}

pub(crate) fn measure(readers: usize, steps: u32) -> anyhow::Result<FanOut> {
    let server = Server::start()?;
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(watched(server.address, readers, steps))
}

async fn watched(address: SocketAddr, readers: usize, steps: u32) -> anyhow::Result<FanOut> {
    let call = json!({ "tool": STORY, "args": {}, "wait_ms": 0 });
    let run = json(request(address, "POST", "/v1/calls", Some(call)).await?).await?;
    let run = run["run"].as_str().context("the response has no run id")?.to_owned();
    let (events, ready) = (format!("/v1/runs/{run}/events"), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::with_capacity(readers);
    for _ in 0..readers {
        let response = request(address, "GET", &events, None).await?;
        tasks.push(tokio::spawn(read(response, ready.clone())));
    }
    let all_ready = async {
        while ready.load(Ordering::Relaxed) < readers {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(READY_TIMEOUT, all_ready).await.context("not every reader received the first event")?;
    let begin = Instant::now();
    request(address, "POST", &format!("/v1/runs/{run}/signals/{GO}"), Some(json!({ "value": steps }))).await?;
    let mut received: Option<Received> = None;
    for task in tasks {
        let one = task.await.context("a reader panicked")??;
        let first = received.get_or_insert(one);
        ensure!(*first == one, "two readers received different events: {first:?} and {one:?}");
    }
    let elapsed = begin.elapsed();
    let received = received.context("there are no readers")?;
    ensure!(received.events > steps as usize, "a run of {steps} steps had {} events", received.events);
    let total = readers * received.events;
    Ok(FanOut {
        readers,
        events: received.events,
        seconds: elapsed.as_secs_f64(),
        events_per_s: total as f64 / elapsed.as_secs_f64(),
    })
}

/// Reads to the end of the stream. Positions must increase.
async fn read(response: Response<Incoming>, ready: Arc<AtomicUsize>) -> anyhow::Result<Received> {
    let (mut body, mut text, mut reader) = (response.into_body(), Vec::new(), Reader::default());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        text.extend_from_slice(&data);
        let before = reader.events;
        let taken = reader.take(&text)?;
        text.drain(..taken);
        if before == 0 && reader.events > 0 {
            ready.fetch_add(1, Ordering::Relaxed);
        }
    }
    ensure!(reader.ended, "a stream ended without an `end` event");
    Ok(Received { events: reader.events, digest: reader.positions.finish() })
}

#[derive(Default)]
struct Reader {
    events: usize,
    last: Option<(u64, u64)>,
    positions: DefaultHasher,
    ended: bool,
}

impl Reader {
    /// Parses all complete events, and returns their length in bytes.
    fn take(&mut self, text: &[u8]) -> anyhow::Result<usize> {
        let mut taken = 0;
        while let Some(length) = text[taken..].windows(2).position(|two| two == b"\n\n") {
            self.event(std::str::from_utf8(&text[taken..taken + length])?)?;
            taken += length + 2;
        }
        Ok(taken)
    }

    fn event(&mut self, block: &str) -> anyhow::Result<()> {
        ensure!(!self.ended, "an event came after the end: {block}");
        self.ended = block.lines().any(|line| line == "event: end");
        let Some(id) = block.lines().find_map(|line| line.strip_prefix("id: ")) else { return Ok(()) };
        let (record, index) = id.split_once('.').with_context(|| format!("an event has the invalid id {id}"))?;
        let position = (record.parse()?, index.parse()?);
        ensure!(self.last.is_none_or(|last| last < position), "{position:?} came after {:?}", self.last);
        self.last = Some(position);
        position.hash(&mut self.positions);
        self.events += 1;
        Ok(())
    }
}

async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<Response<Incoming>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The reader of the response gets its errors.
    tokio::spawn(async move { drop(connection.await) });
    let mut request = Request::builder().method(method).uri(path).header("host", address.to_string());
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
    let response = sender.send_request(request.body(Full::new(body))?).await?;
    ensure!(response.status().is_success(), "{method} {path} returned {}", response.status());
    Ok(response)
}

async fn json(response: Response<Incoming>) -> anyhow::Result<Value> {
    Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_and_their_order_is_checked() {
        let mut reader = Reader::default();
        let text = b"id: 1.0\nevent: a\ndata: {}\n\n: nothing new\n\nid: 1.1\nevent: b\ndata: {}\n\nid: 2";
        assert_eq!(reader.take(text).unwrap(), text.len() - 5);
        assert_eq!((reader.events, reader.last, reader.ended), (2, Some((1, 1)), false));
        assert!(reader.event("id: 1.1\nevent: b").unwrap_err().to_string().contains("came after"));
        reader.event("event: end\ndata: {}").unwrap();
        assert!(reader.event("id: 9.0\nevent: b").unwrap_err().to_string().contains("after the end"));
    }
}
