//! One run, and very many who watch it: what happens in it, to all of them, in order.

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

/// How long readers may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a reader has seen to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    events: usize,
    /// Of their places, in order.
    digest: u64,
}

pub(crate) fn measure(readers: usize, steps: u32) -> anyhow::Result<FanOut> {
    let server = Server::start()?;
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(watched(server.address, readers, steps))
}

async fn watched(address: SocketAddr, readers: usize, steps: u32) -> anyhow::Result<FanOut> {
    let call = json!({ "tool": STORY, "args": {}, "wait_ms": 0 });
    let run = json(ask(address, "POST", "/v1/calls", Some(call)).await?).await?;
    let run = run["run"].as_str().context("the run has no name")?.to_owned();
    let (events, there) = (format!("/v1/runs/{run}/events"), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::with_capacity(readers);
    for _ in 0..readers {
        let answer = ask(address, "GET", &events, None).await?;
        tasks.push(tokio::spawn(read(answer, there.clone())));
    }
    let all_there = async {
        while there.load(Ordering::Relaxed) < readers {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_there).await.context("not every reader was told of the run's beginning")?;
    let begin = Instant::now();
    ask(address, "POST", &format!("/v1/runs/{run}/signals/{GO}"), Some(json!({ "value": steps }))).await?;
    let mut seen: Option<Seen> = None;
    for task in tasks {
        let one = task.await.context("a reader panicked")??;
        let first = seen.get_or_insert(one);
        ensure!(*first == one, "two readers have seen different things: {first:?} and {one:?}");
    }
    let elapsed = begin.elapsed();
    let seen = seen.context("nobody has read")?;
    ensure!(seen.events > steps as usize, "a run of {steps} steps had {} events", seen.events);
    let received = readers * seen.events;
    Ok(FanOut {
        readers,
        events: seen.events,
        seconds: elapsed.as_secs_f64(),
        events_per_s: received as f64 / elapsed.as_secs_f64(),
    })
}

/// Reads to the end of the stream. Places must go up.
async fn read(answer: Response<Incoming>, there: Arc<AtomicUsize>) -> anyhow::Result<Seen> {
    let (mut body, mut text, mut reader) = (answer.into_body(), Vec::new(), Reader::default());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        text.extend_from_slice(&data);
        let before = reader.events;
        let taken = reader.take(&text)?;
        text.drain(..taken);
        if before == 0 && reader.events > 0 {
            there.fetch_add(1, Ordering::Relaxed);
        }
    }
    ensure!(reader.ended, "a stream ended without a word");
    Ok(Seen { events: reader.events, digest: reader.places.finish() })
}

#[derive(Default)]
struct Reader {
    events: usize,
    last: Option<(u64, u64)>,
    places: DefaultHasher,
    ended: bool,
}

impl Reader {
    /// Takes in all whole events; returns how many bytes they are.
    fn take(&mut self, text: &[u8]) -> anyhow::Result<usize> {
        let mut taken = 0;
        while let Some(length) = text[taken..].windows(2).position(|two| two == b"\n\n") {
            self.event(std::str::from_utf8(&text[taken..taken + length])?)?;
            taken += length + 2;
        }
        Ok(taken)
    }

    fn event(&mut self, block: &str) -> anyhow::Result<()> {
        ensure!(!self.ended, "something came after the end: {block}");
        self.ended = block.lines().any(|line| line == "event: end");
        let Some(id) = block.lines().find_map(|line| line.strip_prefix("id: ")) else { return Ok(()) };
        let (record, index) = id.split_once('.').with_context(|| format!("an event has the id {id}"))?;
        let place = (record.parse()?, index.parse()?);
        ensure!(self.last.is_none_or(|last| last < place), "{place:?} came after {:?}", self.last);
        self.last = Some(place);
        place.hash(&mut self.places);
        self.events += 1;
        Ok(())
    }
}

async fn ask(address: SocketAddr, method: &str, path: &str, body: Option<Value>) -> anyhow::Result<Response<Incoming>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // How it ends is told to whoever reads.
    tokio::spawn(async move { drop(connection.await) });
    let mut request = Request::builder().method(method).uri(path).header("host", address.to_string());
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
    let answer = sender.send_request(request.body(Full::new(body))?).await?;
    ensure!(answer.status().is_success(), "{method} {path} was answered with {}", answer.status());
    Ok(answer)
}

async fn json(answer: Response<Incoming>) -> anyhow::Result<Value> {
    Ok(serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?)
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
