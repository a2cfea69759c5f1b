//! Requests: looked up once, checked, and sent to what was checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, StatusCode};
use windlass_http::{BodyError, ConnectError, Connector, Pinned, Resolve, System, causes};

use super::pool::{Pool, Sender};
use super::redirect;
use super::rules::Rules;
use super::unpack::{self, unpack};
use super::url::Url;

const AGENT: &str = concat!("windlass/", env!("CARGO_PKG_VERSION"));

/// Bounds on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest looking up a name may take, and a connection to one address.
    pub connect: Duration,
    /// Longest everything may take, redirections included. The attempt's own timeout counts too.
    pub total: Duration,
    /// Most bytes of an answer, packed and unpacked.
    pub answer: usize,
    /// Most redirections that are followed.
    pub redirects: usize,
}

impl Default for Limits {
    /// Ten seconds to connect, an hour in all (attempts are shorter), 8 MiB, five redirections.
    fn default() -> Self {
        let (connect, total) = (Duration::from_secs(10), Duration::from_secs(3_600));
        Self { connect, total, answer: 8 * 1024 * 1024, redirects: 5 }
    }
}

/// What a client is made of.
pub struct Options {
    /// Where it may go.
    pub rules: Rules,
    /// How much it may take.
    pub limits: Limits,
    /// Who looks up names.
    pub resolver: Arc<dyn Resolve>,
    /// Files of certificates, in PEM, of authorities that are believed beside the system's.
    pub authorities: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let (rules, limits) = (Rules::default(), Limits::default());
        Self { rules, limits, resolver: Arc::new(System), authorities: Vec::new() }
    }
}

/// Sends requests under the rules. Cloning shares it, and the connections it keeps. Proxies named in the environment are
/// ignored: they would look up names themselves.
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
    /// What to do.
    pub method: Method,
    /// Where.
    pub url: Url,
    /// Headers besides `host` and what belongs to the connection.
    pub headers: HeaderMap,
    /// All of the body.
    pub body: Bytes,
}

/// An answer, read to its end and unpacked.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// All of the body.
    pub body: Bytes,
    /// Who answered, after redirections.
    pub url: Url,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The rules forbid it.
    Refused,
    /// No connection could be made.
    Unreachable,
    /// The connection ended before the answer did.
    Broken,
    /// It took too long.
    TimedOut,
    /// The answer is too large, or cannot be read.
    Unusable,
}

/// A request without an answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct NetError {
    /// What kind of trouble it is.
    pub trouble: Trouble,
    /// Whether a server may have acted on it. If not, nothing has happened for certain.
    pub sent: bool,
    message: String,
}

/// A request on its way.
struct Trip {
    request: Outgoing,
    sent: bool,
}

impl Trip {
    fn trouble(&self, trouble: Trouble, message: impl Into<String>) -> NetError {
        NetError { trouble, sent: self.sent, message: message.into() }
    }
}

impl Client {
    /// A client. Fails where a file of authorities cannot be read.
    pub fn new(options: Options) -> Result<Self, String> {
        let Options { rules, limits, resolver, authorities } = options;
        let connector = Connector::new(limits.connect, resolver, &authorities)?;
        Ok(Self(Arc::new(Inner { rules, limits, connector, pool: Pool::default() })))
    }

    /// Sends a request and reads its answer, whatever its status. Redirections are followed within the rules. Dropping the
    /// future ends the connection; whether the server has acted by then is not known.
    pub async fn send(&self, request: Outgoing) -> Result<Answer, NetError> {
        let mut trip = Trip { request, sent: false };
        let total = self.0.limits.total;
        match tokio::time::timeout(total, self.0.travel(&mut trip)).await {
            Ok(result) => result,
            Err(_) => {
                let message = format!("{}: no answer within {total:?}", trip.request.url.place());
                Err(trip.trouble(Trouble::TimedOut, message))
            }
        }
    }
}

impl Inner {
    async fn travel(&self, trip: &mut Trip) -> Result<Answer, NetError> {
        for _ in 0..=self.limits.redirects {
            let before = trip.sent;
            let answer = self.hop(trip).await?;
            if redirect::is_untouched(&trip.request, answer.status) {
                trip.sent = before;
            }
            let next = redirect::follow(&trip.request, &answer);
            match next.map_err(|problem| trip.trouble(Trouble::Refused, problem))? {
                None => return Ok(answer),
                Some(next) => trip.request = next,
            }
        }
        let place = trip.request.url.place();
        Err(trip.trouble(Trouble::Refused, format!("{} redirections, the last to {place}", self.limits.redirects + 1)))
    }

    /// One request to one place.
    async fn hop(&self, trip: &mut Trip) -> Result<Answer, NetError> {
        let (mut sender, mut place, mut fresh) = self.connection(trip).await?;
        let before = trip.sent;
        loop {
            let message = message(&trip.request).map_err(|problem| trip.trouble(Trouble::Refused, problem))?;
            trip.sent = true;
            let error = match sender.try_send_request(message).await {
                Ok(response) => return self.read(trip, response, sender, place).await,
                Err(error) => error,
            };
            // A kept connection may end when it is taken; then the request comes back unsent, and a new one has it.
            if error.message().is_some() {
                trip.sent = before;
                if !fresh {
                    fresh = true;
                    (sender, place) = self.connect(trip, &[place]).await?;
                    continue;
                }
            }
            let text = format!("{}: the connection broke: {}", trip.request.url.place(), causes(error.error()));
            return Err(trip.trouble(Trouble::Broken, text));
        }
    }

    /// A kept connection to an address of the host, or a new one, and whether it is new. The host is looked up here and nowhere
    /// else, and every address it has is checked.
    async fn connection(&self, trip: &Trip) -> Result<(Sender, Pinned, bool), NetError> {
        let origin = trip.request.url.origin();
        let failed = |error| unconnected(trip, error);
        self.rules.check(origin).map_err(ConnectError::Refused).map_err(failed)?;
        let allow = |ip| self.rules.check_address(origin, ip);
        let places = self.connector.resolve(origin, allow).await.map_err(failed)?;
        for place in &places {
            if let Some(sender) = self.pool.take(place).await {
                return Ok((sender, place.clone(), false));
            }
        }
        self.connect(trip, &places).await.map(|(sender, place)| (sender, place, true))
    }

    async fn connect(&self, trip: &Trip, places: &[Pinned]) -> Result<(Sender, Pinned), NetError> {
        self.connector.connect(places).await.map_err(|error| unconnected(trip, error))
    }

    async fn read(
        &self,
        trip: &Trip,
        response: hyper::Response<hyper::body::Incoming>,
        sender: Sender,
        place: Pinned,
    ) -> Result<Answer, NetError> {
        let url = trip.request.url.clone();
        let (parts, body) = response.into_parts();
        let limit = self.limits.answer;
        let body = windlass_http::read(body, limit).await.map_err(|error| {
            let (trouble, problem) = match error {
                BodyError::TooLarge(_) => (Trouble::Unusable, format!("is {error}")),
                BodyError::Broken(_) => (Trouble::Broken, format!("broke off: {error}")),
            };
            trip.trouble(trouble, format!("{}: the answer ({}) {problem}", url.place(), parts.status))
        })?;
        self.pool.put(place, sender);
        let encoding = parts.headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
        let unpacked = unpack(&body, encoding, limit).map_err(|problem| {
            trip.trouble(Trouble::Unusable, format!("{}: {} ({})", url.place(), problem, parts.status))
        })?;
        Ok(Answer { status: parts.status, headers: parts.headers, body: unpacked.map_or(body, Bytes::from), url })
    }
}

fn unconnected(trip: &Trip, error: ConnectError) -> NetError {
    let trouble = if matches!(error, ConnectError::Refused(_)) { Trouble::Refused } else { Trouble::Unreachable };
    trip.trouble(trouble, format!("{}: {error}", trip.request.url.place()))
}

/// A request as it goes over a connection.
fn message(request: &Outgoing) -> Result<hyper::Request<Full<Bytes>>, String> {
    let mut message = hyper::Request::new(Full::new(request.body.clone()));
    *message.method_mut() = request.method.clone();
    let unfit = |problem: &dyn std::fmt::Display| format!("{} cannot be asked for: {problem}", request.url.place());
    *message.uri_mut() = request.url.target().parse().map_err(|error| unfit(&error))?;
    let headers = message.headers_mut();
    *headers = request.headers.clone();
    headers.insert(HOST, HeaderValue::from_str(&request.url.origin().authority()).map_err(|error| unfit(&error))?);
    headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(unpack::ACCEPTED));
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    Ok(message)
}
