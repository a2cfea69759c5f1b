//! Sends requests: the host is resolved once, its addresses are checked, and the request goes to a checked address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, StatusCode};
use windlass_http::{BodyError, ConnectError, Connector, Pinned, Resolve, System, causes};

use super::decompress::{self, decompress};
use super::pool::{Pool, Sender};
use super::redirect;
use super::rules::Rules;
use super::url::Url;

const AGENT: &str = concat!("windlass/", env!("CARGO_PKG_VERSION"));

/// Limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Timeout for resolving a name, and for connecting to one address.
    pub connect: Duration,
    /// Timeout for the whole request, including redirects. The attempt's own timeout applies too.
    pub total: Duration,
    /// Largest response in bytes, compressed and decompressed.
    pub answer: usize,
    /// Most redirects that are followed.
    pub redirects: usize,
}

impl Default for Limits {
    /// Ten seconds to connect, an hour in total (attempts are shorter), 8 MiB, five redirects.
    fn default() -> Self {
        let (connect, total) = (Duration::from_secs(10), Duration::from_secs(3_600));
        Self { connect, total, answer: 8 * 1024 * 1024, redirects: 5 }
    }
}

/// The settings of a client.
pub struct Options {
    /// Which hosts and addresses it may reach.
    pub rules: Rules,
    /// The limits of each request.
    pub limits: Limits,
    /// The name resolver.
    pub resolver: Arc<dyn Resolve>,
    /// Files with certificates of authorities, in PEM, that are trusted in addition to the system's.
    pub authorities: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let (rules, limits) = (Rules::default(), Limits::default());
        Self { rules, limits, resolver: Arc::new(System), authorities: Vec::new() }
    }
}

/// Sends requests under the rules. Clones share its connections. Proxies named in the environment are ignored: they
/// would resolve names themselves.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    rules: Rules,
    limits: Limits,
    connector: Connector,
    pool: Pool,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its method.
    pub method: Method,
    /// Its URL.
    pub url: Url,
    /// Headers besides `host` and those of the connection.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// A complete response, decompressed.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// The URL that responded, after redirects.
    pub url: Url,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetErrorKind {
    /// The rules forbid it.
    Refused,
    /// No connection could be made.
    Unreachable,
    /// The connection closed before the response was complete.
    Broken,
    /// It took too long.
    TimedOut,
    /// The response is too large, or cannot be decoded.
    Unusable,
}

/// A request without a response.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct NetError {
    /// What kind of error it is.
    pub kind: NetErrorKind,
    /// Whether the server may have received it. If not, the request certainly had no effect.
    pub sent: bool,
    message: String,
}

/// A request in progress.
struct PendingRequest {
    request: Outgoing,
    sent: bool,
}

impl PendingRequest {
    fn error(&self, kind: NetErrorKind, message: impl Into<String>) -> NetError {
        NetError { kind, sent: self.sent, message: message.into() }
    }
}

impl Client {
    /// Creates a client. Fails if a file of authorities cannot be read.
    pub fn new(options: Options) -> Result<Self, String> {
        let Options { rules, limits, resolver, authorities } = options;
        let connector = Connector::new(limits.connect, resolver, &authorities)?;
        Ok(Self(Arc::new(Inner { rules, limits, connector, pool: Pool::default() })))
    }

    /// Sends a request and reads the response, whatever its status. Redirects are followed within the rules. Dropping
    /// the future closes the connection; whether the server has acted by then is unknown.
    pub async fn send(&self, request: Outgoing) -> Result<Response, NetError> {
        let mut pending = PendingRequest { request, sent: false };
        let total = self.0.limits.total;
        match tokio::time::timeout(total, self.0.follow_redirects(&mut pending)).await {
            Ok(result) => result,
            Err(_) => {
                let message = format!("{}: no response within {total:?}", pending.request.url.without_query());
                Err(pending.error(NetErrorKind::TimedOut, message))
            }
        }
    }
}

impl Inner {
    async fn follow_redirects(&self, pending: &mut PendingRequest) -> Result<Response, NetError> {
        for _ in 0..=self.limits.redirects {
            let before = pending.sent;
            let response = self.hop(pending).await?;
            if redirect::is_untouched(&pending.request, response.status) {
                pending.sent = before;
            }
            let next = redirect::follow(&pending.request, &response);
            match next.map_err(|problem| pending.error(NetErrorKind::Refused, problem))? {
                None => return Ok(response),
                Some(next) => pending.request = next,
            }
        }
        let (last, most) = (pending.request.url.without_query(), self.limits.redirects);
        Err(pending.error(NetErrorKind::Refused, format!("more than {most} redirects, the last to {last}")))
    }

    /// Sends one request to one host.
    async fn hop(&self, pending: &mut PendingRequest) -> Result<Response, NetError> {
        let (mut sender, mut address, mut fresh) = self.connection(pending).await?;
        let before = pending.sent;
        loop {
            let message = message(&pending.request).map_err(|problem| pending.error(NetErrorKind::Refused, problem))?;
            pending.sent = true;
            let error = match sender.try_send_request(message).await {
                Ok(response) => return self.read(pending, response, sender, address).await,
                Err(error) => error,
            };
            // A pooled connection may close when it is used. The request then comes back unsent and is sent on a new
            // one.
            if error.message().is_some() {
                pending.sent = before;
                if !fresh {
                    fresh = true;
                    (sender, address) = self.connect(pending, &[address]).await?;
                    continue;
                }
            }
            let url = pending.request.url.without_query();
            let text = format!("{url}: the connection was lost: {}", causes(error.error()));
            return Err(pending.error(NetErrorKind::Broken, text));
        }
    }

    /// A pooled connection to an address of the host, or a new one, and whether it is new. The host is resolved only
    /// here, and all of its addresses are checked.
    async fn connection(&self, pending: &PendingRequest) -> Result<(Sender, Pinned, bool), NetError> {
        let origin = pending.request.url.origin();
        let failed = |error| not_connected(pending, error);
        self.rules.check(origin).map_err(ConnectError::Refused).map_err(failed)?;
        let allow = |ip| self.rules.check_address(origin, ip);
        let addresses = self.connector.resolve(origin, allow).await.map_err(failed)?;
        for address in &addresses {
            if let Some(sender) = self.pool.take(address).await {
                return Ok((sender, address.clone(), false));
            }
        }
        self.connect(pending, &addresses).await.map(|(sender, address)| (sender, address, true))
    }

    async fn connect(&self, pending: &PendingRequest, addresses: &[Pinned]) -> Result<(Sender, Pinned), NetError> {
        self.connector.connect(addresses).await.map_err(|error| not_connected(pending, error))
    }

    async fn read(
        &self,
        pending: &PendingRequest,
        response: hyper::Response<hyper::body::Incoming>,
        sender: Sender,
        address: Pinned,
    ) -> Result<Response, NetError> {
        let url = pending.request.url.clone();
        let (parts, body) = response.into_parts();
        let limit = self.limits.answer;
        let body = windlass_http::read(body, limit).await.map_err(|error| {
            let (kind, problem) = match error {
                BodyError::TooLarge(_) => (NetErrorKind::Unusable, format!("is {error}")),
                BodyError::Broken(_) => (NetErrorKind::Broken, format!("is incomplete: {error}")),
            };
            pending.error(kind, format!("{}: the response ({}) {problem}", url.without_query(), parts.status))
        })?;
        self.pool.put(address, sender);
        let encoding = parts.headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
        let decompressed = decompress(&body, encoding, limit).map_err(|problem| {
            pending.error(NetErrorKind::Unusable, format!("{}: {problem} ({})", url.without_query(), parts.status))
        })?;
        Ok(Response { status: parts.status, headers: parts.headers, body: decompressed.map_or(body, Bytes::from), url })
    }
}

fn not_connected(pending: &PendingRequest, error: ConnectError) -> NetError {
    let is_refused = matches!(error, ConnectError::Refused(_));
    let kind = if is_refused { NetErrorKind::Refused } else { NetErrorKind::Unreachable };
    pending.error(kind, format!("{}: {error}", pending.request.url.without_query()))
}

/// The request as hyper sends it.
fn message(request: &Outgoing) -> Result<hyper::Request<Full<Bytes>>, String> {
    let mut message = hyper::Request::new(Full::new(request.body.clone()));
    *message.method_mut() = request.method.clone();
    let invalid = |problem: &dyn std::fmt::Display| format!("{} is not valid: {problem}", request.url.without_query());
    *message.uri_mut() = request.url.target().parse().map_err(|error| invalid(&error))?;
    let headers = message.headers_mut();
    *headers = request.headers.clone();
    headers.insert(HOST, HeaderValue::from_str(&request.url.origin().authority()).map_err(|error| invalid(&error))?);
    headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(decompress::ACCEPTED));
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    Ok(message)
}
