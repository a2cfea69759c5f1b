//! The URL of a request: its host is fixed, and arguments fill segments of the path and values of the query, without
//! being able to change the rest.

use std::fmt;

use windlass::ToolError;

use super::template::{BadTemplate, Filled, Scope, Template};
use crate::encode;
use crate::net::Url;

/// A URL with placeholders in its path and query: `https://api.example/users/{args.id}?full={args.full}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    base: Url,
    segments: Vec<Template>,
    query: Vec<(String, Template)>,
}

impl std::str::FromStr for Address {
    type Err = BadTemplate;

    fn from_str(source: &str) -> Result<Self, BadTemplate> {
        let bad = |problem: String| BadTemplate(problem);
        let after_scheme = source.find("://").map(|at| at + 3);
        let start = after_scheme.ok_or_else(|| bad("a URL begins with `https://` or `http://`".to_owned()))?;
        let end = source[start..].find(['/', '?', '#']).map_or(source.len(), |at| start + at);
        if source[..end].contains(['{', '}', '$']) {
            return Err(bad(
                "the host of a URL is fixed; placeholders and secrets are allowed in its path and query".to_owned()
            ));
        }
        let base: Url = source[..end].parse().map_err(|error: crate::net::BadUrl| bad(error.to_string()))?;
        if source.contains('#') {
            return Err(bad("a fragment (`#…`) is never sent; remove it".to_owned()));
        }
        let (path, query) = source[end..].split_once('?').unwrap_or((&source[end..], ""));
        let segments = path.split('/').skip(1).map(str::parse).collect::<Result<Vec<Template>, _>>()?;
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect::<Result<Vec<_>, _>>()?;
        let address = Self { base, segments, query };
        address.check_literals()?;
        Ok(address)
    }
}

/// Parses a parameter of the query.
fn pair(text: &str) -> Result<(String, Template), BadTemplate> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if name.contains(['{', '}', '$']) || name.is_empty() {
        return Err(BadTemplate(format!("`{name}`: the name of a query parameter is fixed")));
    }
    Ok((name.to_owned(), value.parse()?))
}

/// The target of requests to this address, for its circuit breaker: host and port.
pub(crate) fn target_of(base: &Url) -> std::sync::Arc<str> {
    let origin = base.origin();
    format!("{}:{}", origin.host, origin.port).into()
}

impl Address {
    /// Scheme, host and port.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// All of its templates.
    pub(crate) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.segments.iter().chain(self.query.iter().map(|(_, value)| value))
    }

    /// Checks the literal parts. The parts that are filled in are encoded.
    fn check_literals(&self) -> Result<(), BadTemplate> {
        for segment in &self.segments {
            let text = segment.to_string();
            if segment.is_plain() && matches!(text.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..") {
                return Err(BadTemplate(format!("`{text}` in a path leads to another path; write that path")));
            }
        }
        let plain = |template: &Template| template.sample();
        let path: String = self.segments.iter().map(|segment| format!("/{}", plain(segment))).collect();
        let query: Vec<String> = self.query.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
        let target = format!("{path}?{}", query.join("&"));
        let target = if path.is_empty() { format!("/{target}") } else { target };
        let read = self.base.with_target(&target).map_err(|error| BadTemplate(error.to_string()))?;
        if read.target() == target {
            Ok(())
        } else {
            Err(BadTemplate(format!("`{target}` is not in normal form; write `{}`", read.target())))
        }
    }

    /// The URL with its placeholders filled in.
    pub(crate) fn fill(&self, scope: &mut Scope<'_>) -> Result<Url, ToolError> {
        let mut target = String::new();
        for segment in &self.segments {
            target.push('/');
            target.push_str(&fill_segment(segment, scope)?);
        }
        if target.is_empty() {
            target.push('/');
        }
        let mut separator = '?';
        for (name, value) in &self.query {
            // A parameter whose value is a missing argument is omitted.
            if matches!(value.exact(scope), Some(None | Some(serde_json::Value::Null))) {
                continue;
            }
            target.push(separator);
            separator = '&';
            target.push_str(name);
            target.push('=');
            value.fill(scope)?.iter().for_each(|piece| target.push_str(&encoded(piece)));
        }
        exactly(&self.base, &target)
    }
}

/// The URL with this target, which must be in normal form.
pub(crate) fn exactly(base: &Url, target: &str) -> Result<Url, ToolError> {
    let url = base.with_target(target).map_err(|error| ToolError::invalid("", error.to_string()))?;
    if url.target() != target {
        return Err(ToolError::invalid("", format!("the path would lead to {}", url.without_query())));
    }
    Ok(url)
}

fn encoded<'p>(piece: &'p Filled<'_>) -> std::borrow::Cow<'p, str> {
    match piece {
        Filled::Plain(text) => (*text).into(),
        Filled::Foreign(text) => encode::strict(text).into(),
    }
}

fn fill_segment(segment: &Template, scope: &mut Scope<'_>) -> Result<String, ToolError> {
    let filled = segment.fill(scope)?;
    if !segment.is_plain() {
        let raw: String = filled.iter().map(Filled::as_str).collect();
        check_segment(&raw)?;
    }
    Ok(filled.iter().map(encoded).collect())
}

/// Refuses segments that some servers take for another path even if they are encoded: many decode before they parse.
pub(crate) fn check_segment(raw: &str) -> Result<(), ToolError> {
    let refuse = |problem: &str| Err(ToolError::invalid("", format!("a part of the path {problem}")));
    if raw.is_empty() {
        return refuse("is empty");
    }
    if raw.chars().any(char::is_control) {
        return refuse("has a control character");
    }
    let climbs = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
    if raw.split(['/', '\\']).any(climbs) {
        return refuse("leads to another folder (`.` or `..`)");
    }
    Ok(())
}

/// The URL as written.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base.origin())?;
        self.segments.iter().try_for_each(|segment| write!(f, "/{segment}"))?;
        let mut separator = '?';
        for (name, value) in &self.query {
            write!(f, "{separator}{name}={value}")?;
            separator = '&';
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::secret::{Redactor, Secrets};

    fn fill(address: &str, args: &Value) -> Result<String, ToolError> {
        let secrets = Secrets::default();
        let mut scope = Scope { args, key: "run.0", secrets: &secrets, seen: Redactor::default() };
        address.parse::<Address>().unwrap().fill(&mut scope).map(|url| url.to_string())
    }

    #[test]
    fn placeholders_are_filled_in_and_encoded() {
        let args = json!({"id": "a/b ?#&=%", "n": 5, "yes": true, "gone": null});
        for (address, expected) in [
            ("https://a.example", "https://a.example/"),
            ("https://a.example/v1/{args.n}.json", "https://a.example/v1/5.json"),
            ("https://a.example/u/{args.id}", "https://a.example/u/a%2Fb%20%3F%23%26%3D%25"),
            ("https://a.example/?q={args.id}&x=1", "https://a.example/?q=a%2Fb%20%3F%23%26%3D%25&x=1"),
            ("https://a.example/?a={args.gone}&b={args.none}&c={args.yes}", "https://a.example/?c=true"),
            ("http://a.example:81/k/{key}", "http://a.example:81/k/run.0"),
        ] {
            assert_eq!(fill(address, &args).unwrap(), expected);
        }
    }

    #[test]
    fn e26_an_argument_cannot_change_the_path() {
        for id in ["..", ".", "", "../admin", "a/../b", "..\\x", "..;a", "x/..;a/y", "a\0b", "a\r\nb"] {
            let error = fill("https://a.example/u/{args.id}/x", &json!({"id": id})).unwrap_err();
            assert_eq!(error.kind(), "invalid_arguments", "{id:?}");
        }
        let error = fill("https://a.example/.{args.id}", &json!({"id": "."})).unwrap_err();
        assert!(error.to_string().contains("another folder"), "{error}");
    }

    #[test]
    fn e26_the_host_is_fixed() {
        for (address, expected) in [
            ("https://{args.host}/x", "host of a URL is fixed"),
            ("{args.scheme}://a.example/", "host of a URL is fixed"),
            ("https://a.example{args.x}/", "host of a URL is fixed"),
            ("https://${secret:x}.example/", "host of a URL is fixed"),
            ("https://a.example:{args.port}/", "host of a URL is fixed"),
            ("https://a.example/?{args.name}=1", "name of a query parameter is fixed"),
            ("https://a.example/../x", "leads to another path"),
            ("https://a.example/%2e%2E/x", "leads to another path"),
            ("https://a.example/a b", "a space"),
            ("https://a.example/#x", "never sent"),
            ("https://u:p@a.example/", "user or password"),
            ("/x", "begins with"),
            ("ftp://a.example/", "only `https:`"),
        ] {
            let error = address.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(expected), "{address}: {error}");
        }
    }

    proptest! {
        #[test]
        fn e26_an_argument_stays_within_its_placeholder(a in any::<String>(), b in any::<String>()) {
            let args = json!({"a": a, "b": b});
            let filled = fill("https://api.example:8443/v1/{args.a}/x-{args.a}?q={args.b}&r=1", &args);
            let Ok(filled) = filled else { return Ok(()) };
            let rest = filled.strip_prefix("https://api.example:8443/v1/").expect("scheme, host and port stay");
            prop_assert!(!rest.contains(['#', '\\', ' ', '@']));
            let (path, query) = rest.split_once('?').expect("the query stays");
            let segments: Vec<&str> = path.split('/').collect();
            prop_assert_eq!(segments.len(), 2);
            prop_assert_eq!(segments[0].to_owned(), encode::strict(&a));
            prop_assert_eq!(segments[1].to_owned(), format!("x-{}", encode::strict(&a)));
            prop_assert_eq!(query.to_owned(), format!("q={}&r=1", encode::strict(&b)));
        }
    }
}
