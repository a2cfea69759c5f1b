//! A request as a configuration writes it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::{Atomic, Call, Effect, Output, Schemas, Tool, ToolError, ToolResult, ToolSpec};

use super::body::{Body, Json};
use super::exchange::{Exchange, exchange};
use super::place::Address;
use super::template::{Scope, Template};
use crate::net::{Client, HeaderMap, HeaderName, HeaderValue, Method, Outgoing};
use crate::secret::{Redactor, Secrets};

/// Headers that belong to the connection, or are ours to set.
const OURS: [&str; 11] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What is wrong with a request, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// `method`, `url`, `headers.NAME`, `form.NAME`, or `body` and a JSON pointer.
    pub place: String,
    /// What is wrong there.
    pub message: String,
}

impl Problem {
    pub(crate) fn at(place: &str, message: impl ToString) -> Self {
        Self { place: place.to_owned(), message: message.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// A request with places for arguments.
///
/// ```
/// # use windlass_tools::http::Request;
/// # use serde_json::json;
/// let request = Request::new("POST", "https://api.example/charges/{args.customer}")?
///     .header("Authorization", "Bearer ${secret:payments}")?
///     .json(&json!({"amount": "{args.cents}", "currency": "chf"}))?;
/// # Ok::<(), windlass_tools::http::Problem>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) method: Method,
    address: Address,
    headers: Vec<(HeaderName, Template)>,
    body: Option<Body>,
    secrets: Secrets,
    exchange: Exchange,
}

/// The effect class of a method, as HTTP has it: asking changes nothing, putting and deleting may be repeated.
pub fn effect_of(method: &Method) -> Effect {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Effect::Readonly,
        Method::PUT | Method::DELETE => Effect::Idempotent,
        _ => Effect::Once,
    }
}

/// Reads a method that requests may have.
pub(crate) fn method_of(text: &str) -> Result<Method, String> {
    match text.to_ascii_uppercase().as_str() {
        known @ ("GET" | "HEAD" | "OPTIONS" | "POST" | "PUT" | "PATCH" | "DELETE") => {
            known.parse().map_err(|_| "no method".to_owned())
        }
        _ => Err(format!("`{text}` is no method: GET, HEAD, OPTIONS, POST, PUT, PATCH or DELETE")),
    }
}

/// Reads the name of a header that a request may set.
pub(crate) fn header_name(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| format!("`{text}` is no name of a header"))?;
    if OURS.contains(&name.as_str()) || name.as_str().starts_with("proxy-") {
        return Err(format!("`{name}` belongs to the connection and is not set by hand"));
    }
    Ok(name)
}

/// A header's value, unless it would begin another header.
pub(crate) fn header_value(name: &HeaderName, text: &str) -> Result<HeaderValue, ToolError> {
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err(ToolError::invalid(
            "",
            format!("the header `{name}` would have a line break or control character"),
        ));
    }
    let value = HeaderValue::from_bytes(text.as_bytes());
    value.map_err(|_| {
        ToolError::invalid("", format!("the header `{name}` would have a character that no header may have"))
    })
}

impl Request {
    /// A request by method and address.
    pub fn new(method: &str, url: &str) -> Result<Self, Problem> {
        Ok(Self {
            method: method_of(method).map_err(|problem| Problem::at("method", problem))?,
            address: url.parse().map_err(|bad| Problem::at("url", bad))?,
            headers: Vec::new(),
            body: None,
            secrets: Secrets::default(),
            exchange: Exchange::default(),
        })
    }

    /// Adds a header. One whose value is an argument that is not given is left out.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Problem> {
        let at = |problem: String| Problem { place: format!("headers.{name}"), message: problem };
        let header = header_name(name).map_err(at)?;
        let template: Template = value.parse().map_err(|bad: super::BadTemplate| at(bad.to_string()))?;
        if template.sample().chars().any(|c| c.is_control() && c != '\t') {
            return Err(at("the value has a line break or control character".to_owned()));
        }
        self.headers.retain(|(known, _)| *known != header);
        self.headers.push((header, template));
        Ok(self)
    }

    /// Sends JSON: every text in it is a template.
    pub fn json(mut self, body: &Value) -> Result<Self, Problem> {
        self.body = Some(Body::Json(Json::parse(body, "body")?));
        self.may_have_a_body()
    }

    /// Sends a form.
    pub fn form<'f>(mut self, fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> Result<Self, Problem> {
        let field = |(name, value): (&str, &str)| match value.parse() {
            Ok(template) => Ok((name.to_owned(), template)),
            Err(bad) => Err(Problem::at(&format!("form.{name}"), bad as super::BadTemplate)),
        };
        self.body = Some(Body::Form(fields.into_iter().map(field).collect::<Result<_, _>>()?));
        self.may_have_a_body()
    }

    fn may_have_a_body(self) -> Result<Self, Problem> {
        match self.method {
            Method::GET | Method::HEAD => Err(Problem::at("body", format!("a {} request has no body", self.method))),
            _ => Ok(self),
        }
    }

    /// Where its secrets come from.
    #[must_use]
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = secrets;
        self
    }

    /// Returns status, these headers and the body as an object, instead of the body alone.
    pub fn show_headers<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, Problem> {
        for name in names {
            let header =
                name.parse().map_err(|_| Problem::at("show_headers", format!("`{name}` is no name of a header")))?;
            self.exchange.shown.push(header);
        }
        Ok(self)
    }

    /// Sends the idempotency key in this header, instead of `Idempotency-Key`.
    pub fn key_header(mut self, name: &str) -> Result<Self, Problem> {
        self.exchange.key_header = header_name(name).map_err(|problem| Problem::at("key_header", problem))?;
        Ok(self)
    }

    /// The effect class its method suggests; what a tool has is in its spec.
    pub fn effect(&self) -> Effect {
        effect_of(&self.method)
    }

    fn templates(&self) -> impl Iterator<Item = (String, &Template)> {
        let address = self.address.templates().map(|template| ("url".to_owned(), template));
        let headers = self.headers.iter().map(|(name, template)| (format!("headers.{name}"), template));
        let body = self.body.iter().flat_map(Body::templates).map(|template| ("body".to_owned(), template));
        address.chain(headers).chain(body)
    }

    /// What its templates name and nobody has: secrets without a reference, arguments without a schema.
    pub fn problems(&self, input: &Value) -> Vec<Problem> {
        let known: BTreeSet<&str> =
            input["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let open = known.is_empty() || input.get("$ref").is_some() || input.get("allOf").is_some();
        let mut problems = Vec::new();
        for (place, template) in self.templates() {
            for name in template.secrets().filter(|name| !self.secrets.contains(name)) {
                problems.push(Problem::at(&place, format!("there is no secret `{name}`")));
            }
            for name in template.arguments().filter(|name| !open && !known.contains(name)) {
                problems.push(Problem::at(&place, format!("the schema has no argument `{name}`")));
            }
        }
        problems
    }

    /// The request for these arguments, and what must be redacted of whatever comes of it.
    pub(super) fn fill(&self, call: &Call) -> Result<(Outgoing, Redactor), ToolError> {
        let key = call.idempotency_key();
        let mut scope = Scope { args: call.args(), key: &key, secrets: &self.secrets, seen: Redactor::default() };
        let url = self.address.fill(&mut scope)?;
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static("application/json, text/*;q=0.9, */*;q=0.5"));
        let body = match &self.body {
            Some(body) => {
                let (media_type, bytes) = body.fill(&mut scope)?;
                headers.insert("content-type", HeaderValue::from_static(media_type));
                bytes
            }
            None => bytes::Bytes::new(),
        };
        for (name, template) in &self.headers {
            if let Some(text) = template.optional(&mut scope)? {
                headers.insert(name.clone(), header_value(name, &text)?);
            }
        }
        Ok((Outgoing { method: self.method.clone(), url, headers, body }, scope.seen))
    }

    /// The request as a tool. It returns the body of the answer: JSON as it is, text as text, anything else as a file beside
    /// its media type and size; of a `HEAD` request, status and headers. All of it comes from outside, and models are told so.
    pub fn tool(self, client: Client, mut spec: ToolSpec, schemas: Schemas) -> Tool {
        spec.hints.open_world = true;
        Tool::atomic(spec, schemas, Sends(Arc::new((self, client))))
    }
}

struct Sends(Arc<(Request, Client)>);

impl Atomic for Sends {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let this = self.0.clone();
        Box::pin(async move {
            let (request, client) = &*this;
            let (outgoing, seen) = request.fill(&call)?;
            exchange(client, &call, outgoing, &request.exchange, &seen).await
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_that_cannot_be_sent_says_where_it_is_wrong() {
        let fine = || Request::new("post", "https://a.example/").unwrap();
        for (result, expected) in [
            (Request::new("FETCH", "https://a.example/"), "method: `FETCH` is no method"),
            (Request::new("GET", "https://{args.h}/"), "url: the host of an address is literal"),
            (fine().header("Host", "b"), "headers.Host: `host` belongs to the connection"),
            (fine().header("Content-Length", "5"), "headers.Content-Length: `content-length` belongs"),
            (fine().header("a b", "x"), "headers.a b: `a b` is no name of a header"),
            (fine().header("x", "a\r\nb"), "headers.x: the value has a line break"),
            (fine().header("x", "{nope}"), "headers.x: `{nope}` is no place"),
            (fine().json(&json!({"a": ["{nope}"]})), "body/a/0: `{nope}` is no place"),
            (fine().form([("f", "{nope}")]), "form.f: `{nope}` is no place"),
            (Request::new("GET", "https://a.example/").unwrap().json(&json!(1)), "body: a GET request has no body"),
        ] {
            let problem = result.err().map(|problem| problem.to_string()).unwrap_or_default();
            assert!(problem.starts_with(expected), "{problem}");
        }
        let request = fine().header("x", "{args.a}${secret:s}").unwrap().json(&json!({"b": "{args.b}"})).unwrap();
        let problems = request.problems(&json!({"type": "object", "properties": {"a": {}}}));
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, ["headers.x: there is no secret `s`", "body: the schema has no argument `b`"]);
    }

    #[test]
    fn e26_a_header_cannot_be_split() {
        let name: HeaderName = "x-city".parse().unwrap();
        for text in ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "\u{7f}"] {
            let error = header_value(&name, text).unwrap_err();
            assert!(error.to_string().contains("`x-city`"), "{error}");
        }
        assert_eq!(header_value(&name, "Zürich").unwrap().as_bytes(), "Zürich".as_bytes());
    }

    #[test]
    fn methods_have_the_effect_http_gives_them() {
        for (method, effect) in [
            ("GET", Effect::Readonly),
            ("HEAD", Effect::Readonly),
            ("PUT", Effect::Idempotent),
            ("DELETE", Effect::Idempotent),
            ("POST", Effect::Once),
            ("PATCH", Effect::Once),
        ] {
            assert_eq!(Request::new(method, "https://a.example/").unwrap().effect(), effect, "{method}");
        }
    }
}
