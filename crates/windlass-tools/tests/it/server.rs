//! A test server: it records its requests, and replies as the test says.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass_tools::net::{Client, Limits, NetError, Options, Outgoing, Resolve, Response, Rules, Url};

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
    /// The number of its connection, counting from one.
    pub(crate) connection: usize,
}

/// What the server sends.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Sends these bytes and keeps the connection open.
    Raw(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Cut(Vec<u8>),
    /// Sends these bytes without end.
    Endless(Vec<u8>),
    /// Sends nothing.
    Silence,
}

/// A complete response.
pub(crate) fn response(status: u16, headers: &str, body: &str) -> Reply {
    let length = body.len();
    Reply::Raw(format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes())
}

pub(crate) fn json(status: u16, body: &str) -> Reply {
    response(status, "content-type: application/json\r\n", body)
}

type Handler = dyn Fn(&Request, usize) -> Reply + Send + Sync;

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server that sends the nth request, counting from one, to the handler.
    pub(crate) async fn start(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", handler).await
    }

    pub(crate) async fn at(address: &str, handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(address, None, Arc::new(handler)).await
    }

    pub(crate) async fn listen(address: &str, tls: Option<tokio_rustls::TlsAcceptor>, handler: Arc<Handler>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = Self { address, requests: Arc::default(), connections: Arc::default() };
        let this = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (this, handler, tls) = (this.clone(), handler.clone(), tls.clone());
                let connection = this.connections.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::spawn(async move {
                    match tls {
                        None => this.serve(stream, connection, &*handler).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => this.serve(stream, connection, &*handler).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        server
    }

    async fn serve(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        connection: usize,
        handler: &Handler,
    ) -> Option<()> {
        let mut buffer = Vec::new();
        loop {
            let request = read(&mut stream, &mut buffer, connection).await?;
            let n = {
                let mut all = self.requests.lock().expect("no panic");
                all.push(request.clone());
                all.len()
            };
            match handler(&request, n) {
                Reply::Raw(bytes) => stream.write_all(&bytes).await.ok()?,
                Reply::Cut(bytes) => {
                    stream.write_all(&bytes).await.ok()?;
                    stream.shutdown().await.ok()?;
                    return None;
                }
                Reply::Endless(bytes) => loop {
                    stream.write_all(&bytes).await.ok()?;
                },
                Reply::Silence => {}
            }
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The URL of a target on it.
    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    /// Rules under which it can be reached.
    pub(crate) fn rules(&self) -> Rules {
        Rules { allow: vec![self.address.to_string().parse().expect("an entry")], ports: None }
    }

    /// A client that can reach it.
    pub(crate) fn client(&self) -> Client {
        client(self.rules(), Names::default())
    }
}

async fn read(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>, connection: usize) -> Option<Request> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let pairs = lines.filter_map(|line| line.split_once(": "));
    let headers: BTreeMap<String, String> =
        pairs.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().expect("a number"));
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(buffer.drain(..length).collect()).ok()?;
    Some(Request { method, target, headers, body, connection })
}

/// A resolver with given answers: each is used once, the last one for ever.
#[derive(Clone, Default)]
pub(crate) struct Names {
    table: Arc<Mutex<BTreeMap<String, VecDeque<Vec<IpAddr>>>>>,
    lookups: Arc<AtomicUsize>,
}

impl Names {
    pub(crate) fn set(self, name: &str, answers: &[&[&str]]) -> Self {
        let parse = |ips: &&[&str]| ips.iter().map(|ip| ip.parse().expect("an address")).collect();
        self.table.lock().expect("no panic").insert(name.to_owned(), answers.iter().map(parse).collect());
        self
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolve for Names {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let mut table = self.table.lock().expect("no panic");
        let answer = match table.get_mut(name) {
            Some(answers) if answers.len() > 1 => answers.pop_front().ok_or(io::ErrorKind::NotFound.into()),
            Some(answers) => answers.front().cloned().ok_or(io::ErrorKind::NotFound.into()),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "no such name")),
        };
        Box::pin(std::future::ready(answer))
    }
}

pub(crate) fn client(rules: Rules, names: Names) -> Client {
    bounded(rules, names, Limits::default())
}

pub(crate) fn bounded(rules: Rules, names: Names, limits: Limits) -> Client {
    Client::new(Options { rules, limits, resolver: Arc::new(names), authorities: Vec::new() }).expect("a client")
}

/// Sends a GET request, if the URL is accepted.
pub(crate) async fn get(client: &Client, url: &str) -> Result<Response, String> {
    let url: Url = url.parse().map_err(|bad: windlass_tools::net::BadUrl| bad.to_string())?;
    send(client, "GET", url, "").await.map_err(|error| error.to_string())
}

pub(crate) async fn send(client: &Client, method: &str, url: Url, body: &str) -> Result<Response, NetError> {
    let headers = windlass_tools::net::HeaderMap::new();
    client
        .send(Outgoing { method: method.parse().expect("a method"), url, headers, body: body.to_owned().into() })
        .await
}
