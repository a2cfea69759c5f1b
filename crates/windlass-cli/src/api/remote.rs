//! A remote server: HTTP/1.1, one connection per request.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, Uri, header};
use windlass_http::{ConnectError, Connector, Origin};

use crate::exit::{Exit, Failure, Result};

/// A server that does not accept a connection within this time is unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's address.
#[derive(Clone)]
pub(super) struct Remote {
    url: String,
    origin: Origin,
    /// The value of the Host header.
    authority: HeaderValue,
    connector: Connector,
}

impl Remote {
    pub(super) fn new(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            let url = url.trim();
            Failure::usage(format!(
                "`{url}` is not a valid server URL: {why} (expected for example http://127.0.0.1:7117)"
            ))
        };
        let url = url.trim().trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|_| wrong("it cannot be parsed"))?;
        let origin = Origin::of(&uri, "use --token").map_err(|why| wrong(&why))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("it has a path; give only scheme, host and port"));
        }
        let authority = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let authority = authority.ok_or_else(|| wrong("its host cannot be parsed"))?;
        Ok(Self { url: url.to_owned(), origin, authority, connector: Connector::system(CONNECT_TIMEOUT) })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether a server responds there at all, within the connection timeout.
    pub(super) async fn answers(&self) -> bool {
        let request = Request::get("/v1/health").body(Body::empty());
        match request {
            Ok(request) => matches!(tokio::time::timeout(CONNECT_TIMEOUT, self.send(request)).await, Ok(Ok(_))),
            Err(_) => false,
        }
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        request.headers_mut().insert(header::HOST, self.authority.clone());
        match self.connector.send(&self.origin, request).await {
            Ok(response) => Ok(response.map(Body::new)),
            Err(ConnectError::Refused(problem)) => Err(Failure::usage(problem)),
            Err(ConnectError::Unreachable(problem)) => Err(self.unreachable(&problem)),
            Err(ConnectError::Lost(problem)) => Err(self.lost(&problem)),
        }
    }

    fn lost(&self, why: &str) -> Failure {
        let message = format!(
            "the connection to the server at {} was lost before it responded: {why}; it may have acted on the request. Start it \
             again with `windlass serve`, then look at `windlass runs list` and `windlass inbox` before you repeat the command, \
             or repeat it with the same --key",
            self.url
        );
        Failure::new(Exit::Unreachable, message)
    }

    fn unreachable(&self, why: &str) -> Failure {
        let message = format!(
            "could not reach the server at {}: {why}; start it with `windlass serve`, or name another with --server",
            self.url
        );
        Failure::new(Exit::Unreachable, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_urls_are_parsed_and_invalid_ones_are_refused() {
        let remote = Remote::new("http://[::1]:99/").unwrap();
        assert_eq!((remote.origin.to_string().as_str(), remote.url()), ("http://[::1]:99", "http://[::1]:99"));
        assert_eq!(Remote::new("http://example.org").unwrap().origin.port, 80);
        for (url, why) in [
            ("127.0.0.1:99", "no scheme"),
            ("ftp://a", "use http or https"),
            ("http://a/v1", "it has a path"),
            ("http://me:pw@a", "use --token"),
            ("", "cannot be parsed"),
        ] {
            let failure = Remote::new(url).err().expect(url);
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(why), "{url}: {}", failure.message);
        }
    }
}
