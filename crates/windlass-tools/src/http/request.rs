//! A request as a configuration defines it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::tool::spec::Breaker;
use windlass::tool::{Atomic, Schemas};
use windlass::{Call, Effect, Output, Tool, ToolError, ToolResult, ToolSpec};

use super::address::{Address, target_of};
use super::body::{Body, Json};
use super::exchange::{Exchange, exchange};
use super::template::{Scope, Template};
use crate::net::{Client, HeaderMap, HeaderName, HeaderValue, Method, Outgoing};
use crate::secret::{Redactor, Secrets};

/// Headers of the connection, and headers that the client sets itself.
const RESERVED: [&str; 11] = [
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

/// A problem of a request, and its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// `method`, `url`, `headers.NAME`, `form.NAME`, or `body` and a JSON pointer.
    pub place: String,
    /// The problem.
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

/// A request with placeholders for arguments.
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

/// The effect class that HTTP gives a method: reading changes nothing, putting and deleting may be repeated.
pub fn effect_of(method: &Method) -> Effect {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Effect::Readonly,
        Method::PUT | Method::DELETE => Effect::Idempotent,
        _ => Effect::Once,
    }
}

/// Parses a method that requests may use.
pub(crate) fn method_of(text: &str) -> Result<Method, String> {
    match text.to_ascii_uppercase().as_str() {
        known @ ("GET" | "HEAD" | "OPTIONS" | "POST" | "PUT" | "PATCH" | "DELETE") => {
            known.parse().map_err(|_| format!("`{text}` is not a method"))
        }
        _ => Err(format!("`{text}` is not a method; use GET, HEAD, OPTIONS, POST, PUT, PATCH or DELETE")),
    }
}

/// Parses the name of a header that a request may set.
pub(crate) fn header_name(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| format!("`{text}` is not a valid header name"))?;
    if RESERVED.contains(&name.as_str()) || name.as_str().starts_with("proxy-") {
        return Err(format!("`{name}` belongs to the connection and cannot be set"));
    }
    Ok(name)
}

/// A header value, refused if it would begin another header.
pub(crate) fn header_value(name: &HeaderName, text: &str) -> Result<HeaderValue, ToolError> {
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err(ToolError::invalid(
            "",
            format!("the header `{name}` would contain a line break or control character"),
        ));
    }
    let value = HeaderValue::from_bytes(text.as_bytes());
    value.map_err(|_| {
        ToolError::invalid("", format!("the header `{name}` would contain a character that headers may not have"))
    })
}

impl Request {
    /// A request with this method and URL.
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

    /// Adds a header. It is omitted if its value is an argument that is not given.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Problem> {
        let at = |problem: String| Problem { place: format!("headers.{name}"), message: problem };
        let header = header_name(name).map_err(at)?;
        let template: Template = value.parse().map_err(|bad: super::BadTemplate| at(bad.to_string()))?;
        if template.sample().chars().any(|c| c.is_control() && c != '\t') {
            return Err(at("the value contains a line break or control character".to_owned()));
        }
        self.headers.retain(|(other, _)| *other != header);
        self.headers.push((header, template));
        Ok(self)
    }

    /// Sends JSON, in which every string is a template.
    pub fn json(mut self, body: &Value) -> Result<Self, Problem> {
        self.body = Some(Body::Json(Json::parse(body, "body")?));
        self.check_body_allowed()
    }

    /// Sends a form.
    pub fn form<'f>(mut self, fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> Result<Self, Problem> {
        let field = |(name, value): (&str, &str)| match value.parse() {
            Ok(template) => Ok((name.to_owned(), template)),
            Err(bad) => Err(Problem::at(&format!("form.{name}"), bad as super::BadTemplate)),
        };
        self.body = Some(Body::Form(fields.into_iter().map(field).collect::<Result<_, _>>()?));
        self.check_body_allowed()
    }

    fn check_body_allowed(self) -> Result<Self, Problem> {
        match self.method {
            Method::GET | Method::HEAD => Err(Problem::at("body", format!("a {} request has no body", self.method))),
            _ => Ok(self),
        }
    }

    /// The secrets that its templates name.
    #[must_use]
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = secrets;
        self
    }

    /// Returns status, these headers and the body as an object, instead of the body alone.
    pub fn show_headers<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, Problem> {
        for name in names {
            let header = name
                .parse()
                .map_err(|_| Problem::at("show_headers", format!("`{name}` is not a valid header name")))?;
            self.exchange.shown.push(header);
        }
        Ok(self)
    }

    /// Sends the idempotency key in this header, instead of `Idempotency-Key`.
    pub fn key_header(mut self, name: &str) -> Result<Self, Problem> {
        self.exchange.key_header = header_name(name).map_err(|problem| Problem::at("key_header", problem))?;
        Ok(self)
    }

    /// If the server answers 401, the call waits until a person has connected this provider, and sends the request
    /// again. Otherwise such a call is `denied`.
    #[must_use]
    pub fn connection_on_401(mut self, provider: impl Into<String>) -> Self {
        self.exchange.unauthorized = Some(provider.into());
        self
    }

    /// The effect class of its method. A tool's own class is in its spec.
    pub fn effect(&self) -> Effect {
        effect_of(&self.method)
    }

    fn templates(&self) -> impl Iterator<Item = (String, &Template)> {
        let address = self.address.templates().map(|template| ("url".to_owned(), template));
        let headers = self.headers.iter().map(|(name, template)| (format!("headers.{name}"), template));
        let body = self.body.iter().flat_map(Body::templates).map(|template| ("body".to_owned(), template));
        address.chain(headers).chain(body)
    }

    /// Finds undefined names in its templates: secrets that are not configured, arguments that the schema does not
    /// have.
    pub fn problems(&self, input: &Value) -> Vec<Problem> {
        let properties: BTreeSet<&str> =
            input["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let open = properties.is_empty() || input.get("$ref").is_some() || input.get("allOf").is_some();
        let mut problems = Vec::new();
        for (place, template) in self.templates() {
            for name in template.secrets().filter(|name| !self.secrets.contains(name)) {
                problems.push(Problem::at(&place, format!("there is no secret `{name}`")));
            }
            for name in template.arguments().filter(|name| !open && !properties.contains(name)) {
                problems.push(Problem::at(&place, format!("the schema has no argument `{name}`")));
            }
        }
        problems
    }

    /// The request for these arguments, and a redactor with the secrets it contains.
    pub(super) async fn fill(&self, call: &Call) -> Result<(Outgoing, Redactor), ToolError> {
        let names: Vec<&str> = self.templates().flat_map(|(_, template)| template.secrets()).collect();
        let secrets = self.secrets.for_call(names.into_iter(), call).await?;
        let key = call.idempotency_key();
        let mut scope = Scope { args: call.args(), key: &key, secrets: &secrets, seen: Redactor::default() };
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

    /// The request as a tool. It returns the body of the response: JSON as it is, text as text, anything else as a file
    /// with its media type and size; for a `HEAD` request, status and headers. The result is marked as coming from
    /// outside.
    pub fn tool(self, client: Client, mut spec: ToolSpec, schemas: Schemas) -> Tool {
        spec.hints.open_world = true;
        if spec.guards.breaker == Breaker::Auto {
            spec.guards.breaker = Breaker::Target(target_of(self.address.base()));
        }
        Tool::atomic(spec, schemas, RequestBody(Arc::new((self, client))))
    }
}

struct RequestBody(Arc<(Request, Client)>);

impl Atomic for RequestBody {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let this = self.0.clone();
        Box::pin(async move {
            let (request, client) = &*this;
            let (outgoing, seen) = request.fill(&call).await?;
            exchange(client, &call, outgoing, &request.exchange, &seen).await
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_invalid_request_reports_the_location_of_the_problem() {
        let fine = || Request::new("post", "https://a.example/").unwrap();
        for (result, expected) in [
            (Request::new("FETCH", "https://a.example/"), "method: `FETCH` is not a method"),
            (Request::new("GET", "https://{args.h}/"), "url: the host of a URL is fixed"),
            (fine().header("Host", "b"), "headers.Host: `host` belongs to the connection"),
            (fine().header("Content-Length", "5"), "headers.Content-Length: `content-length` belongs"),
            (fine().header("a b", "x"), "headers.a b: `a b` is not a valid header name"),
            (fine().header("x", "a\r\nb"), "headers.x: the value contains a line break"),
            (fine().header("x", "{nope}"), "headers.x: `{nope}` is not a placeholder"),
            (fine().json(&json!({"a": ["{nope}"]})), "body/a/0: `{nope}` is not a placeholder"),
            (fine().form([("f", "{nope}")]), "form.f: `{nope}` is not a placeholder"),
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
    fn methods_have_the_effect_class_that_http_defines() {
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
