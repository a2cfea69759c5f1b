//! Sends one signed notification to the receiver that the operator configured.

use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::header;
use sha2::Sha256;
use windlass_http::{Connector, Origin};

/// Time-out of the connection. The response has a time-out of its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of the receiver.
#[derive(Clone)]
pub(super) struct Target {
    origin: Origin,
    /// Path and query of the request.
    path: String,
    connector: Connector,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("`{url}` is not a valid address: {error}"))?;
        let origin = Origin::of(&uri, "leave them out, notifications are signed instead");
        let origin = origin.map_err(|problem| format!("the address `{url}` cannot be used: {problem}"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { origin, path, connector: Connector::system(CONNECT_TIMEOUT) })
    }

    /// Posts a body and returns the status of the response.
    pub(super) async fn post(&self, secret: &[u8], id: &str, body: Vec<u8>) -> Result<u16, String> {
        let seconds = jiff::Timestamp::now().as_second();
        let request = hyper::Request::post(&self.path)
            .header(header::HOST, self.origin.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .header("windlass-id", id)
            .header("idempotency-key", id)
            .header("windlass-signature", format!("t={seconds},v1={}", signature(secret, seconds, &body)?))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        // Redirects are not followed, because the operator chose the receiver.
        let answer = self.connector.send(&self.origin, request).await.map_err(|error| error.to_string())?;
        Ok(answer.status().as_u16())
    }
}

fn signature(secret: &[u8], seconds: i64, body: &[u8]) -> Result<String, String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|error| error.to_string())?;
    mac.update(seconds.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    Ok(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w02_only_http_addresses_without_credentials_are_accepted() {
        let target = Target::parse("https://hooks.example/a?b=1").unwrap();
        let parts = (target.origin.to_string(), target.origin.port, target.path);
        assert_eq!(parts, ("https://hooks.example".to_owned(), 443, "/a?b=1".to_owned()));
        assert_eq!(Target::parse("http://[::1]:81").unwrap().origin.to_string(), "http://[::1]:81");
        for bad in ["ftp://x", "/path", "https://u:p@x/", "", "file:///etc/passwd", "http://"] {
            assert!(Target::parse(bad).is_err_and(|problem| problem.contains("address")), "{bad}");
        }
    }

    #[test]
    fn w02_the_signature_is_the_hmac_of_time_and_body() {
        let expected = "e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e";
        assert_eq!(signature(b"0123456789abcdef", 1_700_000_000, b"{}").unwrap(), expected);
    }
}
