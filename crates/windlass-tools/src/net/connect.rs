//! Connections, to addresses that were checked.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::url::{Host, Url};

/// Most bytes of an answer's head: far more than any has.
const HEAD: usize = 64 * 1024;
/// Most headers of an answer, likewise.
const HEADERS: usize = 128;

pub(crate) type Sender = http1::SendRequest<Full<Bytes>>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens connections.
pub(crate) struct Connector {
    within: Duration,
    authorities: Vec<CertificateDer<'static>>,
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Connector {
    /// One that believes these authorities, beside the system's.
    pub(crate) fn new(within: Duration, authorities: &[PathBuf]) -> Result<Self, String> {
        let mut certificates = Vec::new();
        for path in authorities {
            certificates.extend(read_authorities(path)?);
        }
        Ok(Self { within, authorities: certificates, tls: OnceLock::new() })
    }

    /// Connects to one address, as the host of the url. Nothing of a request is sent before this returns.
    pub(crate) async fn connect(&self, url: &Url, address: SocketAddr) -> Result<Sender, String> {
        let stream = match tokio::time::timeout(self.within, self.open(url, address)).await {
            Ok(stream) => stream?,
            Err(_) => return Err(format!("{address}: no connection within {:?}", self.within)),
        };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD).max_headers(HEADERS);
        let (sender, connection) = builder
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| format!("{address}: {error}"))?;
        // Ends with its sender, or when the other side closes it; whoever waits for an answer is told by the sender.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, "a connection ended: {error}");
            }
        });
        Ok(sender)
    }

    async fn open(&self, url: &Url, address: SocketAddr) -> Result<Box<dyn Stream>, String> {
        let failed = |error: io::Error| format!("{address}: {error}");
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if !url.is_tls() {
            return Ok(Box::new(stream));
        }
        let name = match url.host() {
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(|error| format!("{name}: {error}"))?,
            Host::Ip(ip) => ServerName::from(*ip),
        };
        let stream = TlsConnector::from(self.tls()?).connect(name, stream).await.map_err(failed)?;
        Ok(Box::new(stream))
    }

    /// Made when it is first needed: reading the system's authorities takes a while.
    fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        self.tls.get_or_init(|| configuration(&self.authorities)).clone()
    }
}

fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |problem: String| format!("{}: {problem}; a file of authorities has certificates in PEM", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(|error| bad(error.to_string()))?;
    if certificates.is_empty() { Err(bad("it has no certificate".to_owned())) } else { Ok(certificates) }
}

fn configuration(authorities: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    let (_, unusable) = roots.add_parsable_certificates(native.certs.into_iter().chain(authorities.iter().cloned()));
    if unusable > 0 || !native.errors.is_empty() {
        tracing::debug!(unusable, errors = ?native.errors, "some authorities of this system are not usable");
    }
    if roots.is_empty() {
        return Err("this system has no certificates of authorities: install `ca-certificates`, or set SSL_CERT_FILE \
                    to a file of them"
            .to_owned());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
