//! A small HTTP client: one connection for each request, and event streams.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest time that a test waits for something.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    token: Option<String>,
    /// The principal that its requests name.
    principal: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        assert!(self.body.ends_with(b"\n"), "no line break at the end: {:?}", self.body);
        assert_eq!(self.header("content-length"), self.body.len().to_string());
        windlass::store::read_json(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The body of a response with this status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        let text = String::from_utf8_lossy(&self.body).into_owned();
        assert_eq!(self.status, status, "{text}");
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// The problem with this status and name.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, name: &str) -> Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.is(status);
        assert_eq!(problem["type"], format!("urn:windlass:problem:{name}"), "{problem}");
        assert_eq!(problem["status"], status);
        assert!(!problem["detail"].as_str().unwrap().is_empty() && problem["title"].is_string(), "{problem}");
        problem
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, token: None, principal: None }
    }

    pub(crate) fn bearing(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same client, whose requests name this principal.
    pub(crate) fn acting_for(&self, principal: &str) -> Self {
        Self { principal: Some(principal.to_owned()), ..self.clone() }
    }

    pub(crate) fn token(&self) -> &str {
        self.token.as_deref().expect("it has one")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Bytes::new()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().into()).await
    }

    /// The same with an idempotency key.
    pub(crate) async fn post_as(&self, key: &str, path: &str, body: Value) -> Answer {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        self.send("POST", path, &headers, body.to_string().into()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Answer {
        collect(self.open(method, path, headers, body).await).await
    }

    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> hyper::Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(principal) = &self.principal {
            request = request.header("windlass-principal", principal);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).unwrap();
        tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.expect("in time").expect("a response")
    }

    /// Opens an event stream.
    pub(crate) async fn events(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let response = self.open("GET", path, headers, Bytes::new()).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body(), text: String::new(), ready: VecDeque::new(), comments: 0 }
    }
}

/// The whole response.
pub(crate) async fn collect(response: hyper::Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(TIMEOUT, body.collect()).await.expect("in time").unwrap().to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

pub(crate) struct Events {
    body: Incoming,
    text: String,
    ready: VecDeque<Event>,
    pub(crate) comments: usize,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.read().await?;
        }
    }

    /// Reads the next frame, which may have events and comments.
    pub(crate) async fn read(&mut self) -> Option<()> {
        let frame = tokio::time::timeout(TIMEOUT, self.body.frame()).await.expect("in time")?;
        let data = frame.ok()?.into_data().ok()?;
        // Earlier text has no complete event, so it is not searched again.
        let mut from = self.text.len().saturating_sub(1);
        self.text.push_str(std::str::from_utf8(&data).unwrap());
        while let Some(end) = self.text.as_bytes()[from..].windows(2).position(|pair| pair == b"\n\n") {
            let block: String = self.text.drain(..from + end + 2).collect();
            self.take(&block);
            from = 0;
        }
        Some(())
    }

    fn take(&mut self, block: &str) {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        match field("data: ") {
            Some(data) => self.ready.push_back(Event {
                id: field("id: "),
                name: field("event: ").expect("every event has a name"),
                data: serde_json::from_str(&data).unwrap(),
            }),
            None => self.comments += usize::from(block.starts_with(':')),
        }
    }

    /// Everything up to the end of the stream.
    pub(crate) async fn rest(mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }

    /// The next event of this name.
    pub(crate) async fn until(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ended before {name}"));
            if event.name == name {
                return event;
            }
        }
    }
}

/// Polls until a condition is met.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(mut look: impl FnMut() -> F) -> T {
    let begun = tokio::time::Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "the condition was not met in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
