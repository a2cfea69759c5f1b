//! Connections to addresses that were resolved and checked.

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
const MAX_ADDRESSES: usize = 8;
/// Most bytes of a response's head: far more than servers send.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most headers of a response: far more than servers send.
const MAX_HEADERS: usize = 128;

/// Sends requests over one connection.
pub type Sender<B> = http1::SendRequest<B>;

/// The body of a request.
pub trait Payload: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static {}
impl<B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static> Payload for B {}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An address of an origin that passed the filter. Only [`Connector::resolve`] creates it, so every connection goes to
/// a checked address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pinned {
    origin: Origin,
    address: SocketAddr,
}

/// A connection failed; from [`Connector::send`] also a request without a response.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The filter refused an address of the host, or the host name is not valid in a certificate.
    #[error("{0}")]
    Refused(String),
    /// The host has no address, none of its addresses accepts a connection, or the program there does not speak HTTP.
    #[error("{0}")]
    Unreachable(String),
    /// The connection was lost after the request was sent: the server may have acted on it.
    #[error("{0}")]
    Lost(String),
}

/// Opens connections. Clones share the loaded certificates.
#[derive(Clone)]
pub struct Connector {
    timeout: Duration,
    resolver: Arc<dyn Resolve>,
    trust: Arc<Trust>,
}

impl Connector {
    /// `timeout` applies to the lookup and to each connection. Certificates are trusted if they are signed by an authority
    /// of the system or of these PEM files. Fails if a file cannot be read or has no certificate.
    pub fn new(timeout: Duration, resolver: Arc<dyn Resolve>, authorities: &[PathBuf]) -> Result<Self, String> {
        Ok(Self { timeout, resolver, trust: Arc::new(Trust::new(authorities)?) })
    }

    /// A connector with the resolver and the certificate authorities of the system.
    pub fn system(timeout: Duration) -> Self {
        Self { timeout, resolver: Arc::new(System), trust: Arc::default() }
    }

    /// Looks the host up once and checks every address with the filter. If one address is refused, the host is refused,
    /// because the caller cannot choose which of the addresses is used.
    pub async fn resolve(
        &self,
        origin: &Origin,
        allow: impl Fn(IpAddr) -> Result<(), String>,
    ) -> Result<Vec<Pinned>, ConnectError> {
        let ips = match &origin.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => {
                let late =
                    |_| Err(io::Error::other(format!("no response from the resolver within {:?}", self.timeout)));
                let ips = timeout(self.timeout, self.resolver.resolve(name)).await.unwrap_or_else(late);
                ips.map_err(|error| ConnectError::Unreachable(format!("`{name}` cannot be looked up: {error}")))?
            }
        };
        if ips.is_empty() {
            return Err(ConnectError::Unreachable(format!("`{}` has no address", origin.host)));
        }
        for ip in &ips {
            allow(*ip).map_err(ConnectError::Refused)?;
        }
        // An IPv4 address that is mapped to IPv6 is connected over IPv4.
        let addresses = ips.iter().take(MAX_ADDRESSES).map(|ip| SocketAddr::new(ip.to_canonical(), origin.port));
        Ok(addresses.map(|address| Pinned { origin: origin.clone(), address }).collect())
    }

    /// Connects to the first address that accepts a connection. No part of a request is sent before this returns.
    pub async fn connect<B: Payload>(&self, to: &[Pinned]) -> Result<(Sender<B>, Pinned), ConnectError> {
        let mut problem = ConnectError::Unreachable("no address to connect to".to_owned());
        for pinned in to {
            match self.handshake(pinned).await {
                Ok(sender) => return Ok((sender, pinned.clone())),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    /// Sends one request over a new connection, without a filter, and returns the response, whatever its status. The
    /// caller sets the time-out of the response. Dropping the future or the response's body closes the connection.
    pub async fn send<B: Payload>(&self, to: &Origin, request: Request<B>) -> Result<Response<Incoming>, ConnectError> {
        let (mut sender, _) = self.connect(&self.resolve(to, |_| Ok(())).await?).await?;
        let failed = |error: hyper::Error| match () {
            // The connection was closed before the request was sent.
            () if error.is_canceled() => ConnectError::Unreachable(causes(&error)),
            () if error.is_parse() => {
                ConnectError::Unreachable(format!("the response is not HTTP: {}", causes(&error)))
            }
            () => ConnectError::Lost(causes(&error)),
        };
        sender.send_request(request).await.map_err(failed)
    }

    async fn handshake<B: Payload>(&self, to: &Pinned) -> Result<Sender<B>, ConnectError> {
        let address = to.address;
        let unreachable = |problem: String| ConnectError::Unreachable(format!("{address}: {problem}"));
        let stream = match timeout(self.timeout, self.open(to)).await {
            Ok(stream) => stream?,
            Err(_) => return Err(unreachable(format!("no connection within {:?}", self.timeout))),
        };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| unreachable(error.to_string()))?;
        // Ends when the sender is dropped or the server closes the connection. Pending requests fail through the
        // sender.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, "connection closed with an error: {error}");
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
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(|_| {
                ConnectError::Refused(format!("`{name}` is not a valid host name for a TLS certificate"))
            })?,
            Host::Ip(ip) => ServerName::from(*ip),
        };
        let config = self.trust.config().map_err(ConnectError::Unreachable)?;
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await.map_err(failed)?))
    }
}

/// The text of an error and its causes.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Resolves every name to the same addresses.
    struct Fixed(Vec<IpAddr>);

    impl Resolve for Fixed {
        fn resolve(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            let ips = self.0.clone();
            Box::pin(async move { Ok(ips) })
        }
    }

    fn connector(ips: &[&str]) -> Connector {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Connector::new(Duration::from_secs(5), Arc::new(Fixed(ips)), &[]).unwrap()
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
    async fn a_request_goes_to_the_first_reachable_address_and_redirects_are_not_followed() {
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
        // Nothing listens on the first address.
        let answer = connector(&["127.0.0.2", "::ffff:127.0.0.1"]).send(&origin, request).await.unwrap();
        assert_eq!(answer.status(), 302);
        let read = crate::read(answer.into_body(), 1).await.unwrap_err();
        assert_eq!(read.to_string(), "larger than 1 bytes");
        assert!(server.await.unwrap().starts_with("GET /a HTTP/1.1\r\n"));
    }
}
