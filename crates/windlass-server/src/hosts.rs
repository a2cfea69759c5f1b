//! Checks of `Host` and `Origin`, against DNS rebinding and requests from foreign web pages.

use std::net::{IpAddr, SocketAddr};

/// The host names and origins that are allowed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    /// The address that the server listens on; `None` for a router without a socket.
    pub(crate) bound: Option<SocketAddr>,
    /// In lower case, with or without a port. The address comes first, because most requests use it.
    names: Vec<String>,
    /// In lower case, without a slash at the end.
    pub(crate) origins: Vec<String>,
}

impl Hosts {
    pub(crate) fn new(bound: Option<SocketAddr>, names: &[String], origins: &[String]) -> Self {
        let lower = |text: &String| text.trim_end_matches('/').to_ascii_lowercase();
        let own = bound.iter().map(SocketAddr::to_string);
        let names = own.chain(names.iter().map(lower)).collect();
        Self { bound, names, origins: origins.iter().map(lower).collect() }
    }

    /// Whether a `Host` header names this server.
    pub(crate) fn is_own(&self, host: &str) -> bool {
        if self.names.iter().any(|allowed| allowed == host) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        let Some((name, port)) = split(&host) else { return false };
        if self.names.iter().any(|allowed| *allowed == host || *allowed == name) {
            return true;
        }
        let Some(bound) = self.bound else { return false };
        if port.unwrap_or(80) != bound.port() {
            return false;
        }
        if name == "localhost" {
            return bound.ip().is_loopback() || bound.ip().is_unspecified();
        }
        // An address cannot be redirected by a name server.
        match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(address) if bound.ip().is_unspecified() => !address.is_unspecified() || address == bound.ip(),
            Ok(address) => address == bound.ip() || (address.is_loopback() && bound.ip().is_loopback()),
            Err(_) => false,
        }
    }

    /// Whether a page of this origin may use the API. `host` is the host of the request.
    pub(crate) fn allows_origin(&self, origin: &str, host: Option<&str>) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.is_listed(&origin) {
            return true;
        }
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        matches!((authority, host), (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host))
    }

    /// Whether a foreign origin is allowed, and needs CORS headers.
    pub(crate) fn is_listed(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }
}

/// The name and the port of an authority; `None` if it is malformed.
fn split(host: &str) -> Option<(&str, Option<u16>)> {
    let end = match host.rfind(']') {
        Some(end) if host.starts_with('[') => end + 1,
        Some(_) => return None,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, rest) = host.split_at(end);
    if name.is_empty() {
        return None;
    }
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((name, None)),
        None => None,
        Some(port) => port.parse().ok().map(|port| (name, Some(port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(bound: &str, names: &[&str]) -> Hosts {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Hosts::new(Some(bound.parse().unwrap()), &names, &["https://app.example".to_owned()])
    }

    #[test]
    fn l23_a_host_name_that_is_not_listed_is_refused() {
        let local = hosts("127.0.0.1:7000", &["windlass.test", "other.test:9"]);
        for own in [
            "127.0.0.1:7000",
            "localhost:7000",
            "LOCALHOST:7000",
            "[::1]:7000",
            "windlass.test",
            "windlass.test:7000",
            "other.test:9",
        ] {
            assert!(local.is_own(own), "{own}");
        }
        for foreign in [
            "evil.example:7000",
            "127.0.0.1",
            "127.0.0.1:7001",
            "localhost",
            "localhost.evil:7000",
            "10.0.0.1:7000",
            "",
            ":7000",
            "[::1:7000",
            "other.test",
            "127.0.0.1:7000:1",
            "0x7f000001:7000",
            "2130706433:7000",
        ] {
            assert!(!local.is_own(foreign), "{foreign}");
        }
        let open = hosts("0.0.0.0:80", &[]);
        assert!(open.is_own("192.168.1.5") && open.is_own("localhost") && !open.is_own("evil.example"));
        assert!(!Hosts::default().is_own("localhost:7000"));
    }

    #[test]
    fn l23_only_the_own_origin_and_listed_origins_are_allowed() {
        let local = hosts("127.0.0.1:7000", &[]);
        let host = Some("127.0.0.1:7000");
        assert!(local.allows_origin("http://127.0.0.1:7000", host) && local.allows_origin("https://app.example", host));
        for foreign in
            ["null", "http://evil.example", "http://127.0.0.1:7001", "https://app.example.evil", "file://", ""]
        {
            assert!(!local.allows_origin(foreign, host), "{foreign}");
        }
    }
}
