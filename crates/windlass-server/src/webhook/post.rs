//! One signed request to an address that the owner of the server named.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::header;
use hyper_util::rt::TokioIo;
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    host: String,
    port: u16,
    tls: bool,
    /// As the request line has it.
    path: String,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("`{url}` is no address: {error}"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            other => return Err(format!("its address begins with {other:?}; it may be http or https")),
        };
        let authority = uri.authority().ok_or("its address names no server")?;
        if authority.as_str().contains('@') {
            return Err("its address has a name or a password in it; what is posted is signed instead".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { host, port, tls, path })
    }

    /// Posts a body; the status of the answer, or what went wrong.
    pub(super) async fn post(&self, secret: &[u8], id: &str, body: Vec<u8>) -> Result<u16, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| error.to_string())?;
        if !self.tls {
            return self.send(stream, secret, id, body).await;
        }
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(config()?).connect(name, stream).await.map_err(|error| error.to_string())?;
        self.send(stream, secret, id, body).await
    }

    async fn send(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        secret: &[u8],
        id: &str,
        body: Vec<u8>,
    ) -> Result<u16, String> {
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        let driving = tokio::spawn(connection);
        let host = match self.port {
            443 if self.tls => self.host.clone(),
            80 if !self.tls => self.host.clone(),
            port if self.host.contains(':') => format!("[{}]:{port}", self.host),
            port => format!("{}:{port}", self.host),
        };
        let seconds = jiff::Timestamp::now().as_second();
        let request = hyper::Request::post(&self.path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .header("windlass-id", id)
            .header("idempotency-key", id)
            .header("windlass-signature", format!("t={seconds},v1={}", signature(secret, seconds, &body)?))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        // Redirects are not followed: where this goes was said by whoever looks after the server.
        let answer = sender.send_request(request).await.map_err(|error| error.to_string());
        driving.abort();
        Ok(answer?.status().as_u16())
    }
}

fn signature(secret: &[u8], seconds: i64, body: &[u8]) -> Result<String, String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|error| error.to_string())?;
    mac.update(seconds.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    Ok(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Trusts whom the machine trusts. Read once.
fn config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    let made = CONFIG.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    });
    made.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w02_only_plain_addresses_are_posted_to() {
        let target = Target::parse("https://hooks.example/a?b=1").unwrap();
        assert_eq!((&*target.host, target.port, target.tls, &*target.path), ("hooks.example", 443, true, "/a?b=1"));
        assert_eq!(Target::parse("http://[::1]:81").unwrap().host, "::1");
        for bad in ["ftp://x", "/path", "https://u:p@x/", "", "file:///etc/passwd", "http://"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn w02_a_signature_is_the_one_everybody_else_computes() {
        let expected = "e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e";
        assert_eq!(signature(b"0123456789abcdef", 1_700_000_000, b"{}").unwrap(), expected);
    }
}
