//! Requests: looked up once, checked, and sent to what was checked.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, StatusCode};

use super::address::plain;
use super::connect::{Connector, Sender};
use super::pool::{Place, Pool};
use super::redirect;
use super::resolve::{Resolve, System};
use super::rules::Rules;
use super::unpack::{self, unpack};
use super::url::{Host, Url};

/// Most addresses of one name that are tried.
const TRIED: usize = 8;

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
    resolver: Arc<dyn Resolve>,
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
        let connector = Connector::new(limits.connect, &authorities)?;
        Ok(Self(Arc::new(Inner { rules, limits, resolver, connector, pool: Pool::default() })))
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
        let addresses = self.checked(trip).await?;
        let (mut sender, place, mut fresh) = self.connection(trip, &addresses).await?;
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
                    sender = self.connect(trip, &place).await?;
                    continue;
                }
            }
            let text = format!("{}: the connection broke: {}", trip.request.url.place(), reasons(error.error()));
            return Err(trip.trouble(Trouble::Broken, text));
        }
    }

    /// The addresses of the host, every one of them checked. Nobody looks it up again.
    async fn checked(&self, trip: &Trip) -> Result<Vec<SocketAddr>, NetError> {
        let url = &trip.request.url;
        let refused = |problem: String| trip.trouble(Trouble::Refused, format!("{}: {problem}", url.place()));
        self.rules.check(url).map_err(refused)?;
        let found: Vec<IpAddr> = match url.host() {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => {
                let within = self.limits.connect;
                let late = |_| Err(std::io::Error::other(format!("no answer within {within:?}")));
                let found = tokio::time::timeout(within, self.resolver.resolve(name)).await.unwrap_or_else(late);
                found.map_err(|error| {
                    let text = format!("{}: `{name}` cannot be looked up: {error}", url.place());
                    trip.trouble(Trouble::Unreachable, text)
                })?
            }
        };
        if found.is_empty() {
            let text = format!("{}: `{}` has no address", url.place(), url.host());
            return Err(trip.trouble(Trouble::Unreachable, text));
        }
        for ip in &found {
            self.rules.check_address(url, *ip).map_err(refused)?;
        }
        Ok(found.iter().take(TRIED).map(|ip| SocketAddr::new(plain(*ip), url.port())).collect())
    }

    /// A kept connection to one of these addresses, or a new one.
    async fn connection(&self, trip: &Trip, addresses: &[SocketAddr]) -> Result<(Sender, Place, bool), NetError> {
        let url = &trip.request.url;
        let place = |address: &SocketAddr| Place { tls: url.is_tls(), host: url.host().clone(), address: *address };
        for address in addresses {
            let place = place(address);
            if let Some(sender) = self.pool.take(&place).await {
                return Ok((sender, place, false));
            }
        }
        let mut problem = None;
        for address in addresses {
            let place = place(address);
            match self.connect(trip, &place).await {
                Ok(sender) => return Ok((sender, place, true)),
                Err(error) => problem = Some(error),
            }
        }
        Err(problem.unwrap_or_else(|| trip.trouble(Trouble::Unreachable, "there is no address")))
    }

    async fn connect(&self, trip: &Trip, place: &Place) -> Result<Sender, NetError> {
        let url = &trip.request.url;
        let connected = self.connector.connect(url, place.address).await;
        connected.map_err(|problem| trip.trouble(Trouble::Unreachable, format!("{}: {problem}", url.place())))
    }

    async fn read(
        &self,
        trip: &Trip,
        response: hyper::Response<hyper::body::Incoming>,
        sender: Sender,
        place: Place,
    ) -> Result<Answer, NetError> {
        let url = trip.request.url.clone();
        let (parts, body) = response.into_parts();
        let limit = self.limits.answer;
        let too_large = || {
            let text = format!("{}: the answer ({}) is larger than {limit} bytes", url.place(), parts.status);
            trip.trouble(Trouble::Unusable, text)
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large());
        }
        let body = match Limited::new(body, limit).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(error) => {
                let text = format!("{}: the answer ({}) broke off: {error}", url.place(), parts.status);
                return Err(trip.trouble(Trouble::Broken, text));
            }
        };
        self.pool.put(place, sender);
        let encoding = parts.headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
        let unpacked = unpack(&body, encoding, limit).map_err(|problem| {
            trip.trouble(Trouble::Unusable, format!("{}: {} ({})", url.place(), problem, parts.status))
        })?;
        Ok(Answer { status: parts.status, headers: parts.headers, body: unpacked.map_or(body, Bytes::from), url })
    }
}

/// A request as it goes over a connection.
fn message(request: &Outgoing) -> Result<hyper::Request<Full<Bytes>>, String> {
    let mut message = hyper::Request::new(Full::new(request.body.clone()));
    *message.method_mut() = request.method.clone();
    let unfit = |problem: &dyn std::fmt::Display| format!("{} cannot be asked for: {problem}", request.url.place());
    *message.uri_mut() = request.url.target().parse().map_err(|error| unfit(&error))?;
    let headers = message.headers_mut();
    *headers = request.headers.clone();
    headers.insert(HOST, HeaderValue::from_str(&request.url.authority()).map_err(|error| unfit(&error))?);
    headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(unpack::ACCEPTED));
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    Ok(message)
}

/// An error with its causes.
fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
