//! Whom a connection is made to.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The host.
    pub host: Host,
    /// The port, also where it is the usual one.
    pub port: u16,
}

/// The host of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name, which has to be looked up.
    Name(String),
    /// An IP address.
    Ip(IpAddr),
}

impl Origin {
    /// The origin of an address, or why a request cannot go there. An address with a user or a password is refused; `instead`
    /// says what to do about it.
    pub fn of(uri: &Uri, instead: &str) -> Result<Self, String> {
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err("it has no http:// or no host".to_owned());
        };
        let (tls, usual) = match scheme {
            "https" => (true, 443),
            "http" => (false, 80),
            _ => return Err("only http and https are spoken".to_owned()),
        };
        if authority.as_str().contains('@') {
            return Err(format!("it has a name or password; {instead}"));
        }
        let host = match authority.host().trim_matches(['[', ']']) {
            "" => return Err("it has no host".to_owned()),
            host => host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip),
        };
        Ok(Self { tls, host, port: authority.port_u16().unwrap_or(usual) })
    }

    /// Host and port, the latter where it is not the usual one: what the `host` header says.
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
    fn an_address_has_an_origin_or_says_why_not() {
        for (uri, expected) in [
            ("http://example.org/a?b", Ok("http://example.org")),
            ("https://example.org:443", Ok("https://example.org")),
            ("https://example.org:80", Ok("https://example.org:80")),
            ("http://[::1]:81", Ok("http://[::1]:81")),
            ("http://127.0.0.1:80", Ok("http://127.0.0.1")),
            ("127.0.0.1:99", Err("it has no http:// or no host")),
            ("/a", Err("it has no http:// or no host")),
            ("ftp://a", Err("only http and https are spoken")),
            ("http://me:pw@a", Err("it has a name or password; use a header")),
        ] {
            let origin = Origin::of(&uri.parse().unwrap(), "use a header");
            let origin = origin.map(|origin| origin.to_string());
            assert_eq!(origin, expected.map(str::to_owned).map_err(str::to_owned), "{uri}");
        }
    }
}
