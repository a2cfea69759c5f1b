//! Who may be meant by `Host`, and which pages may ask: against names that somebody else points at this machine.

use std::net::{IpAddr, SocketAddr};

/// The names and origins that are let in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    /// Where the server listens; nothing where requests do not come over a socket.
    pub(crate) bound: Option<SocketAddr>,
    /// In lower case, with or without a port. First of all the address: most requests say it.
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

    /// Whether a `Host` header means this server.
    pub(crate) fn is_ours(&self, host: &str) -> bool {
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
        // No name server has a say about an address.
        match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(address) if bound.ip().is_unspecified() => !address.is_unspecified() || address == bound.ip(),
            Ok(address) => address == bound.ip() || (address.is_loopback() && bound.ip().is_loopback()),
            Err(_) => false,
        }
    }

    /// Whether a page of this origin may use the API. `host` is what the request was addressed to.
    pub(crate) fn admits(&self, origin: &str, host: Option<&str>) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.is_listed(&origin) {
            return true;
        }
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        matches!((authority, host), (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host))
    }

    /// Whether an origin other than our own is let in, and must be told so.
    pub(crate) fn is_listed(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }
}

/// The name and the port of an authority; nothing if it is none.
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
    fn l23_a_name_that_points_here_is_not_enough() {
        let local = hosts("127.0.0.1:7000", &["windlass.test", "other.test:9"]);
        for ours in [
            "127.0.0.1:7000",
            "localhost:7000",
            "LOCALHOST:7000",
            "[::1]:7000",
            "windlass.test",
            "windlass.test:7000",
            "other.test:9",
        ] {
            assert!(local.is_ours(ours), "{ours}");
        }
        for stranger in [
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
            assert!(!local.is_ours(stranger), "{stranger}");
        }
        let open = hosts("0.0.0.0:80", &[]);
        assert!(open.is_ours("192.168.1.5") && open.is_ours("localhost") && !open.is_ours("evil.example"));
        assert!(!Hosts::default().is_ours("localhost:7000"));
    }

    #[test]
    fn l23_only_the_servers_own_pages_and_listed_ones_are_let_in() {
        let local = hosts("127.0.0.1:7000", &[]);
        let host = Some("127.0.0.1:7000");
        assert!(local.admits("http://127.0.0.1:7000", host) && local.admits("https://app.example", host));
        for stranger in
            ["null", "http://evil.example", "http://127.0.0.1:7001", "https://app.example.evil", "file://", ""]
        {
            assert!(!local.admits(stranger, host), "{stranger}");
        }
    }
}
