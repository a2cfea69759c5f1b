//! An HTTP client with one connection, which it reopens when it breaks.

use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::world::PATIENCE;

/// How long a client waits before it repeats a request.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

pub(crate) struct Client {
    /// Host and port.
    address: String,
    token: Option<String>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        Self { address: url.trim_start_matches("http://").to_owned(), token: None, connection: None }
    }

    pub(crate) fn bearing(url: &str, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::new(url) }
    }

    /// Sends a request once. After an error it is unknown whether the request arrived.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, key: Option<&str>, body: &str) -> io::Result<Answer> {
        let asked = tokio::time::timeout(PATIENCE, self.exchange(method, path, key, body)).await;
        let answer = asked.unwrap_or_else(|_| panic!("{method} {path}: no response within {PATIENCE:?}"));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// Repeats a request with the same key until a server answers that is not shutting down.
    pub(crate) async fn insist(&mut self, method: &str, path: &str, key: Option<&str>, body: &str) -> Answer {
        let insisting = async {
            loop {
                match self.ask(method, path, key, body).await {
                    Ok(answer) if answer.status != 503 => return answer,
                    _ => tokio::time::sleep(RETRY_INTERVAL).await,
                }
            }
        };
        let answered = tokio::time::timeout(PATIENCE, insisting).await;
        answered.unwrap_or_else(|_| panic!("{method} {path}: no response within {PATIENCE:?}"))
    }

    async fn exchange(&mut self, method: &str, path: &str, key: Option<&str>, body: &str) -> io::Result<Answer> {
        let mut request = Request::builder().method(method).uri(path).header("host", &self.address);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let request = request.body(body).map_err(io::Error::other)?;
        let sender = self.connected().await?;
        sender.ready().await.map_err(io::Error::other)?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
        Ok(Answer { status, body })
    }

    async fn connected(&mut self) -> io::Result<&mut SendRequest<Full<Bytes>>> {
        let connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => {
                let stream = TcpStream::connect(&self.address).await?;
                let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
                // Its errors are reported to the pending request.
                tokio::spawn(async move { drop(connection.await) });
                sender
            }
        };
        Ok(self.connection.insert(connection))
    }
}
