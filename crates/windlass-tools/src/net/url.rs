//! URLs, parsed strictly. Attackers use URLs that programs parse differently, so every form that two parsers could take
//! for two hosts is refused instead of corrected.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_http::{Host, Origin};

/// Longest URL that is accepted, as most servers do.
const LONGEST: usize = 8 * 1024;

/// An `http` or `https` URL without user, password or fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    origin: Origin,
    /// Path and query. Begins with `/`.
    target: String,
}

/// A URL that is not accepted, and why.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct BadUrl(pub(crate) String);

fn bad<T>(problem: impl Into<String>) -> Result<T, BadUrl> {
    Err(BadUrl(problem.into()))
}

impl std::str::FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        check_characters(text)?;
        let Some((scheme, rest)) = text.split_once("://") else {
            return bad("a URL begins with `https://` or `http://`");
        };
        let tls = scheme_is_tls(scheme)?;
        let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = authority_of(authority)?;
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = split_query(target);
        let target = format!("{}{query}", without_dots(if path.is_empty() { "/" } else { path }));
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { origin: Origin { tls, host, port }, target })
    }
}

/// Splits into path and query, the latter with its `?`.
fn split_query(target: &str) -> (&str, &str) {
    target.split_at(target.find('?').unwrap_or(target.len()))
}

fn scheme_is_tls(scheme: &str) -> Result<bool, BadUrl> {
    match scheme.to_ascii_lowercase().as_str() {
        "https" => Ok(true),
        "http" => Ok(false),
        _ => bad(format!("`{scheme}:` is not allowed: only `https:` and `http:` are")),
    }
}

fn check_characters(text: &str) -> Result<(), BadUrl> {
    if text.len() > LONGEST {
        return bad(format!("the URL has more than {LONGEST} bytes"));
    }
    for c in text.chars() {
        match c {
            '\\' => return bad("the URL has a backslash, which some programs read as `/`"),
            c if c.is_ascii_control() || c == ' ' => {
                return bad("the URL has a space or a control character; percent-encode it, such as `%20`");
            }
            c if !c.is_ascii() => {
                return bad(format!(
                    "the URL has `{c}`, which is not ASCII; write host names in Punycode and percent-encode the rest"
                ));
            }
            '"' | '<' | '>' | '^' | '`' | '{' | '|' | '}' => {
                return bad(format!("the URL has `{c}`; percent-encode it"));
            }
            _ => {}
        }
    }
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('%') {
        if after.len() < 2 || !after.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit) {
            return bad("the URL has a `%` that is not followed by two hexadecimal digits");
        }
        rest = after;
    }
    Ok(())
}

fn authority_of(authority: &str) -> Result<(Host, Option<u16>), BadUrl> {
    if authority.contains('@') {
        return bad("the URL has a user or password before its host; put credentials into a header, as a secret");
    }
    if let Some(inside) = authority.strip_prefix('[') {
        let Some((ip, after)) = inside.split_once(']') else { return bad("the bracket before the host is not closed") };
        if ip.contains('%') {
            return bad("the host has a zone, which is valid on one machine only");
        }
        let Ok(ip) = ip.parse::<Ipv6Addr>() else { return bad(format!("`[{ip}]` is not an IPv6 address")) };
        let port = match after {
            "" => None,
            _ => Some(port_of(after.strip_prefix(':').unwrap_or(after))?),
        };
        return Ok((Host::Ip(IpAddr::V6(ip)), port));
    }
    if authority.contains('%') {
        return bad("the host has a `%`, which programs read in different ways; write it without percent-encoding");
    }
    let (host, port) = match authority.split_once(':') {
        Some((_, rest)) if rest.contains(':') => return bad("an IPv6 address is written in brackets: `[::1]`"),
        Some((host, port)) => (host, Some(port_of(port)?)),
        None => (authority, None),
    };
    Ok((host_of(host)?, port))
}

fn port_of(text: &str) -> Result<u16, BadUrl> {
    let is_number = text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port) if is_number && port > 0 => Ok(port),
        _ => bad(format!("`{text}` is not a port from 1 to 65535")),
    }
}

/// A host name or an IPv4 address in its usual notation.
fn host_of(text: &str) -> Result<Host, BadUrl> {
    if text.is_empty() {
        return bad("the URL has no host");
    }
    if text.ends_with('.') {
        return bad(format!("the host `{text}` ends in a dot; remove it"));
    }
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(IpAddr::V4(ip)));
    }
    let name = text.to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    // Browsers read a host whose last label is a number as an IPv4 address, in many notations.
    let hex = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    if hex || (!last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())) {
        return bad(format!("the host `{text}` is an IPv4 address in an unusual notation; write four decimal numbers"));
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(is_label) {
        return bad(format!("`{text}` is not a valid host name"));
    }
    Ok(Host::Name(name))
}

/// Removes `.` and `..` from a path. They never lead above its root.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut open = false;
    for segment in path.split('/').skip(1) {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        open = matches!(plain.as_str(), "." | "..");
        match plain.as_str() {
            "." => {}
            ".." => _ = kept.pop(),
            _ => kept.push(segment),
        }
    }
    let end = if open && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

impl Url {
    /// Scheme, host and port.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The URL without its query, which may have secrets: for errors.
    pub fn without_query(&self) -> String {
        format!("{}{}", self.origin, split_query(&self.target).0)
    }

    /// The same origin with another path and query.
    pub(crate) fn with_target(&self, target: &str) -> Result<Self, BadUrl> {
        format!("{}{target}", self.origin).parse()
    }

    /// The target of a redirect from this URL.
    pub fn join(&self, to: &str) -> Result<Self, BadUrl> {
        check_characters(to)?;
        let scheme = to.find([':', '/', '?', '#']).filter(|at| to[*at..].starts_with(':'));
        if scheme.is_some() {
            return to.parse();
        }
        if to.starts_with("//") {
            return format!("{}:{to}", if self.origin.tls { "https" } else { "http" }).parse();
        }
        let (path, _) = split_query(&self.target);
        match to.chars().next() {
            None | Some('#') => Ok(self.clone()),
            Some('/') => self.with_target(to),
            Some('?') => self.with_target(&format!("{path}{to}")),
            Some(_) => {
                let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
                self.with_target(&format!("{folder}{to}"))
            }
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.target)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_urls_are_accepted() {
        for (text, expected) in [
            ("https://Example.com", "https://example.com/"),
            ("http://example.com:80/a/./b/../c?x=1#frag", "http://example.com/a/c?x=1"),
            ("https://example.com:8443?x", "https://example.com:8443/?x"),
            ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
            ("http://192.0.2.1/..", "http://192.0.2.1/"),
            ("https://xn--bcher-kva.example/a/..", "https://xn--bcher-kva.example/"),
            ("https://a.example/x/%2E%2e/y/%2e", "https://a.example/y/"),
        ] {
            assert_eq!(text.parse::<Url>().map(|url| url.to_string()), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn redirects_are_resolved_relative_to_their_url() {
        let from: Url = "https://a.example/b/c?d".parse().unwrap();
        for (to, expected) in [
            ("/x", "https://a.example/x"),
            ("x?y", "https://a.example/b/x?y"),
            ("../x", "https://a.example/x"),
            ("?y", "https://a.example/b/c?y"),
            ("//b.example/x", "https://b.example/x"),
            ("http://b.example:81", "http://b.example:81/"),
            ("", "https://a.example/b/c?d"),
            ("#f", "https://a.example/b/c?d"),
            ("x/a:b", "https://a.example/b/x/a:b"),
        ] {
            assert_eq!(from.join(to).map(|url| url.to_string()), Ok(expected.to_owned()), "{to}");
        }
        for to in ["file:///etc/passwd", "javascript:alert(1)", "http:x", "/a\\b", "//u@b.example/"] {
            assert!(from.join(to).is_err(), "{to}");
        }
    }

    proptest! {
        #[test]
        fn e26_an_accepted_url_parses_to_itself(text in "(https?|HTTP)://[a-z0-9.\\[\\]:@%_-]{1,20}[a-z/.?#&=%]{0,12}") {
            if let Ok(url) = text.parse::<Url>() {
                prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
            }
        }
    }
}
