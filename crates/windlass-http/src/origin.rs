//! The origin of an address: scheme, host and port.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// The host.
    pub host: Host,
    /// The port, also if it is the default port of the scheme.
    pub port: u16,
}

/// The host of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A host name.
    Name(String),
    /// An IP address.
    Ip(IpAddr),
}

impl Origin {
    /// The origin of an address, or why the address is not valid. An address with a user or a password is refused;
    /// `instead` tells the user what to do about it.
    pub fn of(uri: &Uri, instead: &str) -> Result<Self, String> {
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err("it has no scheme or no host; use http://HOST or https://HOST".to_owned());
        };
        let (tls, default_port) = match scheme {
            "https" => (true, 443),
            "http" => (false, 80),
            _ => return Err("its scheme is not supported; use http or https".to_owned()),
        };
        if authority.as_str().contains('@') {
            return Err(format!("it has a user or a password; {instead}"));
        }
        let host = match authority.host().trim_matches(['[', ']']) {
            "" => return Err("it has no host".to_owned()),
            host => host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip),
        };
        Ok(Self { tls, host, port: authority.port_u16().unwrap_or(default_port) })
    }

    /// The value of the `Host` header: the host, and the port unless it is the default port of the scheme.
    pub fn authority(&self) -> String {
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => self.host.to_string(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_address_has_no_origin_but_a_reason() {
        for (uri, expected) in [
            ("http://example.org/a?b", Ok("http://example.org")),
            ("https://example.org:443", Ok("https://example.org")),
            ("https://example.org:80", Ok("https://example.org:80")),
            ("http://[::1]:81", Ok("http://[::1]:81")),
            ("http://127.0.0.1:80", Ok("http://127.0.0.1")),
            ("127.0.0.1:99", Err("it has no scheme or no host; use http://HOST or https://HOST")),
            ("/a", Err("it has no scheme or no host; use http://HOST or https://HOST")),
            ("ftp://a", Err("its scheme is not supported; use http or https")),
            ("http://me:pw@a", Err("it has a user or a password; use a header")),
        ] {
            let origin = Origin::of(&uri.parse().unwrap(), "use a header");
            let origin = origin.map(|origin| origin.to_string());
            assert_eq!(origin, expected.map(str::to_owned).map_err(str::to_owned), "{uri}");
        }
    }
}
