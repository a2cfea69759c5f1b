//! Which hosts and addresses requests may reach: the public internet, and what a configuration allows in addition.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use windlass_http::{Host, Origin};

use super::special::{contains, special};
use super::url::{BadUrl, Url};

/// Names of this machine or of its cloud's metadata service, whatever their addresses are.
const INTERNAL_NAMES: [&str; 4] = ["localhost", "metadata.google.internal", "metadata.goog", "instance-data"];

/// Which hosts and addresses requests may reach. By default, every address of the public internet on every port.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// What may be reached although it is not on the public internet.
    pub allow: Vec<Allow>,
    /// The only ports that may be reached, unless `allow` names another one. All ports if not set.
    pub ports: Option<BTreeSet<u16>>,
}

/// An internal host or network that may be reached: `intranet.example`, `127.0.0.1:8080`, `10.0.0.0/8`, `[::1]:80`.
///
/// A name allows any private address that it resolves to, but no metadata service and nothing on the local link: those
/// must be allowed by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    target: AllowedTarget,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedTarget {
    Name(String),
    Network(IpAddr, u8),
}

impl std::str::FromStr for Allow {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        let bad = |problem: &str| {
            BadUrl(format!(
                "`{text}` {problem}; write a name (`intranet.example`), an address (`127.0.0.1:8080`, `[::1]:80`) or a \
                 network (`10.0.0.0/8`)"
            ))
        };
        if let Some((network, length)) = text.split_once('/') {
            let network: IpAddr = network.parse().map_err(|_| bad("does not begin with an IP address"))?;
            let most = if network.is_ipv4() { 32 } else { 128 };
            let length = length.parse().ok().filter(|length| *length <= most);
            let length = length.ok_or_else(|| bad(&format!("does not end in a length from 0 to {most}")))?;
            return Ok(Self { target: AllowedTarget::Network(network, length), port: None });
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self { target: AllowedTarget::one(ip), port: None });
        }
        // An entry is parsed like the URL of a request, so that both mean the same host.
        let url: Url =
            format!("http://{text}").parse().map_err(|BadUrl(problem)| bad(&format!("is not valid: {problem}")))?;
        if text.contains(['?', '#']) {
            return Err(bad("has more than a host and a port"));
        }
        let port = text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map(|_| url.origin().port);
        let target = match &url.origin().host {
            Host::Name(name) => AllowedTarget::Name(name.clone()),
            Host::Ip(ip) => AllowedTarget::one(*ip),
        };
        Ok(Self { target, port })
    }
}

impl AllowedTarget {
    fn one(ip: IpAddr) -> Self {
        Self::Network(ip, if ip.is_ipv4() { 32 } else { 128 })
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            AllowedTarget::Name(name) => f.write_str(name)?,
            AllowedTarget::Network(ip, 32) if ip.is_ipv4() => write!(f, "{ip}")?,
            AllowedTarget::Network(ip, 128) => write!(f, "[{ip}]")?,
            AllowedTarget::Network(ip, length) => write!(f, "{ip}/{length}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl<'de> serde::Deserialize<'de> for Allow {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <String as serde::Deserialize>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Allow {
    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
    }

    fn names(&self, host: &Host, port: u16) -> bool {
        matches!((&self.target, host), (AllowedTarget::Name(name), Host::Name(host)) if name == host)
            && self.has_port(port)
    }

    fn covers(&self, ip: IpAddr, port: u16) -> bool {
        let AllowedTarget::Network(network, length) = self.target else { return false };
        (contains(network, length, ip) || contains(network, length, ip.to_canonical())) && self.has_port(port)
    }
}

impl Rules {
    /// Checks host and port before the host is resolved.
    pub(crate) fn check(&self, origin: &Origin) -> Result<(), String> {
        let (host, port) = (&origin.host, origin.port);
        let named = self.allow.iter().any(|allow| allow.names(host, port));
        if let Host::Name(name) = host
            && !named
            && INTERNAL_NAMES.iter().any(|internal| name == internal || name.ends_with(&format!(".{internal}")))
        {
            return Err(format!("`{name}` is a name of this machine or its cloud; {}", remedy(name, port)));
        }
        let port_named = |allow: &Allow| {
            allow.port == Some(port)
                && match host {
                    Host::Name(_) => allow.names(host, port),
                    Host::Ip(ip) => allow.covers(*ip, port),
                }
        };
        match &self.ports {
            Some(ports) if !ports.contains(&port) && !self.allow.iter().any(port_named) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                Err(format!("port {port} is not in the `ports` of [net] ({})", ports.join(", ")))
            }
            _ => Ok(()),
        }
    }

    /// Checks an address that the host resolves to.
    pub(crate) fn check_address(&self, origin: &Origin, ip: IpAddr) -> Result<(), String> {
        let Some(special) = special(ip) else { return Ok(()) };
        let (host, port) = (&origin.host, origin.port);
        let allowed =
            |allow: &Allow| allow.covers(ip, port) || (special.is_allowed_by_name() && allow.names(host, port));
        if self.allow.iter().any(allowed) {
            return Ok(());
        }
        let shown = Host::Ip(ip);
        let subject =
            if *host == shown { format!("{shown}") } else { format!("`{host}` has the address {shown}, which") };
        Err(format!("{subject} is {special}, not the public internet; {}", remedy(&shown.to_string(), port)))
    }

    /// Checks everything that is known without resolving the host: what is refused here is refused for every request.
    pub fn allows(&self, url: &Url) -> Result<(), String> {
        self.check(url.origin())?;
        match &url.origin().host {
            Host::Ip(ip) => self.check_address(url.origin(), *ip),
            Host::Name(_) => Ok(()),
        }
    }
}

fn remedy(host: &str, port: u16) -> String {
    format!("to allow it, set [net] allow = [\"{host}:{port}\"]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(allow: &[&str], url: &str, ip: &str) -> Result<(), String> {
        let rules = Rules { allow: allow.iter().map(|text| text.parse().unwrap()).collect(), ports: None };
        let url: Url = url.parse().unwrap();
        rules.check(url.origin())?;
        rules.check_address(url.origin(), ip.parse().unwrap())
    }

    #[test]
    fn e26_an_entry_allows_its_target_and_nothing_else() {
        for (allow, url, ip, fine) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1", true),
            ("127.0.0.1:8080", "http://127.0.0.1:8081", "127.0.0.1", false),
            ("127.0.0.1:8080", "http://127.0.0.2:8080", "127.0.0.2", false),
            ("127.0.0.1:8080", "http://[::ffff:127.0.0.1]:8080", "::ffff:127.0.0.1", true),
            ("127.0.0.1", "http://x.example:9", "127.0.0.1", true),
            ("10.0.0.0/8", "http://x.example", "10.9.8.7", true),
            ("10.0.0.0/8", "http://x.example", "11.9.8.7", true),
            ("10.0.0.0/8", "http://x.example", "192.168.0.1", false),
            ("::1", "http://[::1]", "::1", true),
            ("[::1]:80", "http://[::1]:81", "::1", false),
            ("fd00::/8", "http://x.example", "fd12::1", true),
            ("x.example", "http://x.example", "10.0.0.1", true),
            ("x.example", "http://y.x.example", "10.0.0.1", false),
            ("x.example", "http://x.example", "169.254.169.254", false),
            ("x.example", "http://x.example", "::", false),
            ("169.254.169.254", "http://x.example", "169.254.169.254", true),
            ("localhost:3000", "http://localhost:3000", "127.0.0.1", true),
            ("localhost:3000", "http://localhost:3001", "127.0.0.1", false),
            ("localhost:3000", "http://a.localhost:3000", "127.0.0.1", false),
        ] {
            let verdict = verdict(&[allow], url, ip);
            assert_eq!(verdict.is_ok(), fine, "{allow} {url} {ip}: {verdict:?}");
        }
    }

    #[test]
    fn e26_ports_can_be_limited() {
        let allow = vec!["10.0.0.1:8080".parse().unwrap(), "x.example".parse().unwrap()];
        let rules = Rules { allow, ports: Some([443].into()) };
        for (url, fine) in [
            ("https://a.example", true),
            ("http://a.example", false),
            ("http://10.0.0.1:8080", true),
            ("http://x.example:8080", false),
        ] {
            assert_eq!(rules.allows(&url.parse().unwrap()).is_ok(), fine, "{url}");
        }
        let refusal = rules.allows(&"http://a.example:22".parse().unwrap()).unwrap_err();
        assert_eq!(refusal, "port 22 is not in the `ports` of [net] (443)");
    }

    #[test]
    fn an_invalid_entry_reports_the_expected_syntax() {
        for text in [
            "10.0.0.0/33",
            "x.example/8",
            "http://x.example",
            "127.1",
            "x.example:0",
            "a b",
            "",
            "x/y",
            "a?",
            "::1:80]",
        ] {
            let error = text.parse::<Allow>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` ")) && error.contains("write a name"), "{error}");
        }
        for text in ["x.example", "x.example:81", "127.0.0.1", "10.0.0.0/8", "[::1]:80", "[::1]", "fd00::/8"] {
            assert_eq!(text.parse::<Allow>().unwrap().to_string(), text);
        }
    }
}
