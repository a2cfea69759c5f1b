//! A server somewhere: HTTP/1.1, a connection for each request.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, Uri, header};
use windlass_http::{ConnectError, Connector, Origin};

use crate::exit::{Exit, Failure, Result};

/// A server that does not take a connection within this time is not there.
const CONNECT: Duration = Duration::from_secs(5);

/// A server's address.
#[derive(Clone)]
pub(super) struct Remote {
    url: String,
    origin: Origin,
    /// What the host header says.
    authority: HeaderValue,
    connector: Connector,
}

impl Remote {
    pub(super) fn new(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Failure::usage(format!("`{}` is no address of a server: {why}; write http://127.0.0.1:7117", url.trim()))
        };
        let url = url.trim().trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|_| wrong("it cannot be read"))?;
        let origin = Origin::of(&uri, "use --token").map_err(|why| wrong(&why))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("it has a path, and the API begins at /v1 of its host"));
        }
        let authority = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let authority = authority.ok_or_else(|| wrong("its host cannot be read"))?;
        Ok(Self { url: url.to_owned(), origin, authority, connector: Connector::system(CONNECT) })
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
        match self.connector.send(&self.origin, request).await {
            Ok(response) => Ok(response.map(Body::new)),
            Err(ConnectError::Refused(problem)) => Err(Failure::usage(problem)),
            Err(ConnectError::Unreachable(problem)) => Err(self.unreachable(&problem)),
        }
    }

    fn unreachable(&self, why: &str) -> Failure {
        let sentence = format!(
            "the server at {} cannot be reached: {why}; start it with `windlass serve`, or name another one with --server",
            self.url
        );
        Failure::new(Exit::Unreachable, sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_mistakes_are_named() {
        let remote = Remote::new("http://[::1]:99/").unwrap();
        assert_eq!((remote.origin.to_string().as_str(), remote.url()), ("http://[::1]:99", "http://[::1]:99"));
        assert_eq!(Remote::new("http://example.org").unwrap().origin.port, 80);
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
