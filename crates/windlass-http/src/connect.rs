//! Connections, to addresses that were looked up and checked.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::origin::{Host, Origin};
use crate::resolve::{Resolve, System};
use crate::tls::Trust;

/// Most addresses of one name that are tried.
const TRIED: usize = 8;
/// Most bytes of an answer's head: far more than any has.
const HEAD: usize = 64 * 1024;
/// Most headers of an answer, likewise.
const HEADERS: usize = 128;

/// One connection, to send requests over.
pub type Sender<B> = http1::SendRequest<B>;

/// The body of a request.
pub trait Payload: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static {}
impl<B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static> Payload for B {}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An address of an origin that passed the filter. Made by [`Connector::resolve`] alone, so a connection leads to nothing that
/// was not checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pinned {
    origin: Origin,
    address: SocketAddr,
}

/// Why there is no connection; from [`Connector::send`] also why there is no answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The filter refused an address that the host has, or the host cannot have a certificate.
    #[error("{0}")]
    Refused(String),
    /// The host has no address, or none that takes a connection and keeps it.
    #[error("{0}")]
    Unreachable(String),
}

/// Opens connections. Cloning shares what is known of certificates.
#[derive(Clone)]
pub struct Connector {
    within: Duration,
    resolver: Arc<dyn Resolve>,
    trust: Arc<Trust>,
}

impl Connector {
    /// Gives a lookup and each connection so much time, and believes the authorities in these files, in PEM, beside the
    /// system's. Fails where a file has none.
    pub fn new(within: Duration, resolver: Arc<dyn Resolve>, authorities: &[PathBuf]) -> Result<Self, String> {
        Ok(Self { within, resolver, trust: Arc::new(Trust::new(authorities)?) })
    }

    /// With the resolver and the authorities of the system.
    pub fn system(within: Duration) -> Self {
        Self { within, resolver: Arc::new(System), trust: Arc::default() }
    }

    /// Looks the host up, once, and lets the filter see every address that it has. One that is refused refuses all: which of
    /// several addresses is used is not up to the caller.
    pub async fn resolve(
        &self,
        origin: &Origin,
        allow: impl Fn(IpAddr) -> Result<(), String>,
    ) -> Result<Vec<Pinned>, ConnectError> {
        let found = match &origin.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => {
                let late = |_| Err(io::Error::other(format!("no answer within {:?}", self.within)));
                let found = timeout(self.within, self.resolver.resolve(name)).await.unwrap_or_else(late);
                found.map_err(|error| ConnectError::Unreachable(format!("`{name}` cannot be looked up: {error}")))?
            }
        };
        if found.is_empty() {
            return Err(ConnectError::Unreachable(format!("`{}` has no address", origin.host)));
        }
        for ip in &found {
            allow(*ip).map_err(ConnectError::Refused)?;
        }
        // An IPv4 address that is mapped into IPv6 is reached by IPv4.
        let addresses = found.iter().take(TRIED).map(|ip| SocketAddr::new(ip.to_canonical(), origin.port));
        Ok(addresses.map(|address| Pinned { origin: origin.clone(), address }).collect())
    }

    /// Connects to the first of these that takes a connection. Nothing of a request is sent before this returns.
    pub async fn connect<B: Payload>(&self, to: &[Pinned]) -> Result<(Sender<B>, Pinned), ConnectError> {
        let mut problem = ConnectError::Unreachable("there is no address".to_owned());
        for pinned in to {
            match self.handshake(pinned).await {
                Ok(sender) => return Ok((sender, pinned.clone())),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    /// Sends one request over a connection of its own, to any address that the host has, and returns the head of its answer,
    /// whatever its status. How long the answer may take is up to the caller. Dropping the future, or the body of the answer,
    /// ends the connection.
    pub async fn send<B: Payload>(&self, to: &Origin, request: Request<B>) -> Result<Response<Incoming>, ConnectError> {
        let (mut sender, _) = self.connect(&self.resolve(to, |_| Ok(())).await?).await?;
        sender.send_request(request).await.map_err(|error| ConnectError::Unreachable(causes(&error)))
    }

    async fn handshake<B: Payload>(&self, to: &Pinned) -> Result<Sender<B>, ConnectError> {
        let address = to.address;
        let unreachable = |problem: String| ConnectError::Unreachable(format!("{address}: {problem}"));
        let stream = match timeout(self.within, self.open(to)).await {
            Ok(stream) => stream?,
            Err(_) => return Err(unreachable(format!("no connection within {:?}", self.within))),
        };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD).max_headers(HEADERS);
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| unreachable(error.to_string()))?;
        // Ends with its sender, or when the other side closes it; what waits for an answer is told by the sender.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, "a connection ended: {error}");
            }
        });
        Ok(sender)
    }

    async fn open(&self, to: &Pinned) -> Result<Box<dyn Stream>, ConnectError> {
        let Pinned { origin, address } = to;
        let failed = |error: io::Error| ConnectError::Unreachable(format!("{address}: {error}"));
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if !origin.tls {
            return Ok(Box::new(stream));
        }
        let name = match &origin.host {
            Host::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| ConnectError::Refused(format!("`{name}` is no name a certificate could be for")))?,
            Host::Ip(ip) => ServerName::from(*ip),
        };
        let config = self.trust.config().map_err(ConnectError::Unreachable)?;
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await.map_err(failed)?))
    }
}

/// An error with its causes.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// One name, whatever is asked for.
    struct Found(Vec<IpAddr>);

    impl Resolve for Found {
        fn resolve(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            let found = self.0.clone();
            Box::pin(async move { Ok(found) })
        }
    }

    fn connector(found: &[&str]) -> Connector {
        let found = found.iter().map(|ip| ip.parse().unwrap()).collect();
        Connector::new(Duration::from_secs(5), Arc::new(Found(found)), &[]).unwrap()
    }

    fn origin(port: u16) -> Origin {
        Origin { tls: false, host: Host::Name("a.example".to_owned()), port }
    }

    #[tokio::test]
    async fn one_refused_address_refuses_the_host() {
        let connector = connector(&["192.0.2.1", "127.0.0.1"]);
        let allow = |ip: IpAddr| if ip.is_loopback() { Err(format!("{ip} is inside")) } else { Ok(()) };
        let refused = connector.resolve(&origin(80), allow).await;
        assert_eq!(refused, Err(ConnectError::Refused("127.0.0.1 is inside".to_owned())));
    }

    #[tokio::test]
    async fn a_request_goes_to_the_first_address_that_answers_and_follows_no_redirection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = origin(listener.local_addr().unwrap().port());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = vec![0; 1024];
            let length = stream.read(&mut read).await.unwrap();
            stream.write_all(b"HTTP/1.1 302 Found\r\nlocation: /b\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
            String::from_utf8_lossy(&read[..length]).into_owned()
        });
        let request = Request::get("/a").body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        // Nothing listens at the first.
        let answer = connector(&["127.0.0.2", "::ffff:127.0.0.1"]).send(&origin, request).await.unwrap();
        assert_eq!(answer.status(), 302);
        let read = crate::read(answer.into_body(), 1).await.unwrap_err();
        assert_eq!(read.to_string(), "larger than 1 bytes");
        assert!(server.await.unwrap().starts_with("GET /a HTTP/1.1\r\n"));
    }
}
