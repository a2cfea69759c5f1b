//! Requests to a server on this machine, over persistent connections.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    to: SocketAddr,
}

impl Connection {
    /// Opens a connection.
    pub(crate) async fn open(to: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).await.with_context(|| format!("cannot connect to {to}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the sender, which reports its errors too.
        tokio::spawn(connection);
        Ok(Self { sender, to })
    }

    /// Whether the server responds to a GET with success.
    pub(crate) async fn healthy(to: SocketAddr, path: &str) -> bool {
        let response = async { Self::open(to).await?.send(Method::GET, path, None).await };
        response.await.is_ok()
    }

    /// Posts JSON and returns the body of the response.
    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> anyhow::Result<Bytes> {
        self.send(Method::POST, path, Some(body)).await
    }

    async fn send(&mut self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Bytes> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, self.to.to_string());
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        self.sender.ready().await?;
        let response = self.sender.send_request(request.body(Full::new(body.into()))?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path} returned {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}
