//! A server somewhere: HTTP/1.1, a connection for each request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::exit::{Exit, Failure, Result};

/// A server that does not take a connection within this time is not there.
const CONNECT: Duration = Duration::from_secs(5);

/// A server's address.
#[derive(Clone)]
pub(super) struct Remote {
    url: String,
    host: String,
    port: u16,
    /// What the host header says.
    authority: HeaderValue,
    tls: Option<Arc<ClientConfig>>,
}

impl Remote {
    pub(super) fn new(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Failure::usage(format!("`{}` is no address of a server: {why}; write http://127.0.0.1:7117", url.trim()))
        };
        let url = url.trim().trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|_| wrong("it cannot be read"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong("it has no http:// or no host"));
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("it has a path, and the API begins at /v1 of its host"));
        }
        if authority.as_str().contains('@') {
            return Err(wrong("it has a name or password; use --token"));
        }
        let (tls, standard) = match scheme {
            "http" => (None, 80),
            "https" => (Some(Arc::new(trust()?)), 443),
            _ => return Err(wrong("only http and https are spoken")),
        };
        let value = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("its host cannot be read"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(standard);
        Ok(Self { url: url.to_owned(), host, port, authority: value, tls })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether anybody answers there at all, within the time that a connection may take.
    pub(super) async fn answers(&self) -> bool {
        let request = Request::get("/v1/health").body(Body::empty());
        match request {
            Ok(request) => matches!(tokio::time::timeout(CONNECT, self.send(request)).await, Ok(Ok(_))),
            Err(_) => false,
        }
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        request.headers_mut().insert(header::HOST, self.authority.clone());
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect((self.host.as_str(), self.port))).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(&error.to_string())),
            Err(_) => return Err(self.unreachable("it does not answer")),
        };
        // Requests are small, and nobody wants to wait for more of them.
        stream.set_nodelay(true).map_err(|error| self.unreachable(&error.to_string()))?;
        let Some(config) = &self.tls else { return self.over(stream, request).await };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| Failure::usage(format!("`{}` is no name a certificate could be for", self.host)))?;
        let secured = TlsConnector::from(config.clone()).connect(name, stream).await;
        let secured = secured.map_err(|error| self.unreachable(&error.to_string()))?;
        self.over(secured, request).await
    }

    async fn over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Body>,
    ) -> Result<Response<Body>> {
        let broken = |error: hyper::Error| self.unreachable(&error.to_string());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Ends with the answer. What goes wrong with it is told to whoever reads that.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(broken)?;
        Ok(response.map(Body::new))
    }

    fn unreachable(&self, why: &str) -> Failure {
        let sentence = format!(
            "the server at {} cannot be reached: {why}; start it with `windlass serve`, or name another one with --server",
            self.url
        );
        Failure::new(Exit::Unreachable, sentence)
    }
}

/// Whom the machine trusts.
fn trust() -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = "this machine has no list of authorities to trust, so no https server can be checked";
        return Err(Failure::new(Exit::Unreachable, format!("{why}; install its package ca-certificates")));
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_mistakes_are_named() {
        let remote = Remote::new("http://[::1]:99/").unwrap();
        assert_eq!((remote.host.as_str(), remote.port, remote.url()), ("::1", 99, "http://[::1]:99"));
        assert_eq!(Remote::new("http://example.org").unwrap().port, 80);
        for (url, why) in [
            ("127.0.0.1:99", "no http://"),
            ("ftp://a", "only http and https"),
            ("http://a/v1", "it has a path"),
            ("http://me:pw@a", "use --token"),
            ("", "cannot be read"),
        ] {
            let failure = Remote::new(url).err().expect(url);
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.sentence.contains(why), "{url}: {}", failure.sentence);
        }
    }
}
