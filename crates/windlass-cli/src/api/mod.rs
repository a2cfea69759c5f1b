//! The API client. Requests go to a server over HTTP, or to the same router in this process, on the file that this process
//! opened. Commands do not know which.

mod events;
mod ids;
mod open;
mod remote;

use std::sync::OnceLock;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;
use windlass::{RunId, Windlass};
use windlass_server::wire::{Health, Problem};

pub use events::{Event, Events};
pub use ids::{ambiguous, prefix_len};
pub use open::{
    OpenMode, config_path, driving, existing_config, invalid_config, launcher, open, open_failed, served, server,
    target, target_with, target_without_tools, unknown_tool,
};

use crate::exit::{Exit, Failure, Result};
use crate::style::plain;
use remote::Remote;

/// The size limit of a response, above that of the largest one: the export of a whole run.
const MOST_BYTES: usize = 1024 * 1024 * 1024;

/// Where requests go.
enum Transport {
    Remote(Remote),
    Local { router: axum::Router, windlass: Windlass },
}

/// The API client.
pub struct Api {
    transport: Transport,
    token: Option<String>,
    /// The run whose end the command waits for.
    waits_for: OnceLock<RunId>,
    /// The principal for whom the requests act, if that is not the token's.
    principal: OnceLock<header::HeaderValue>,
}

/// A successful response whose body is not read yet.
pub struct ApiResponse {
    /// Its status; below 400.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Body,
}

impl Api {
    /// Whether a server answers, as opposed to this process.
    pub fn is_remote(&self) -> bool {
        matches!(self.transport, Transport::Remote(_))
    }

    /// Makes every later request act for this principal.
    pub fn act_for(&self, principal: &str) -> Result<()> {
        let value = header::HeaderValue::from_bytes(principal.as_bytes());
        let value = value.map_err(|_| Failure::usage("--principal must not have control characters"))?;
        // One command names one principal.
        self.principal.get_or_init(|| value);
        Ok(())
    }

    /// The URL of the server; `None` if this process answers.
    pub fn url(&self) -> Option<&str> {
        match &self.transport {
            Transport::Remote(remote) => Some(remote.url()),
            Transport::Local { .. } => None,
        }
    }

    /// The run whose end the command waits for, once that is known.
    pub fn waits_for(&self) -> Option<RunId> {
        self.waits_for.get().copied()
    }

    /// Notes the run whose end the command waits for. The first one counts.
    pub fn set_waits_for(&self, run: RunId) {
        self.waits_for.get_or_init(|| run);
    }

    /// Closes the file, if this process has it open.
    pub async fn close(self) -> Result<()> {
        match self.transport {
            Transport::Remote(_) => Ok(()),
            Transport::Local { windlass, .. } => {
                windlass.shutdown().await.map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))
            }
        }
    }

    /// Sends a GET request.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.send(request(Method::GET, path, None)?).await?).await
    }

    /// Sends a GET request, and leaves it to the caller to read the response.
    pub async fn get_raw(&self, path: &str) -> Result<ApiResponse> {
        self.send(request(Method::GET, path, None)?).await
    }

    /// Sends a POST request.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, key: Option<&str>) -> Result<T> {
        self.read(self.post_raw(path, json_bytes(body)?, key).await?).await
    }

    /// Sends a POST request, and leaves it to the caller to read the response.
    pub async fn post_raw(&self, path: &str, body: Vec<u8>, key: Option<&str>) -> Result<ApiResponse> {
        let mut request = request(Method::POST, path, Some(body))?;
        if let Some(key) = key {
            let value = key.parse().map_err(|_| {
                Failure::usage("the key is not valid (expected 1 to 255 visible ASCII characters without blanks)")
            })?;
            request.headers_mut().insert("idempotency-key", value);
        }
        self.send(request).await
    }

    /// Sends a PUT request.
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.read(self.send(request(Method::PUT, path, Some(json_bytes(body)?))?).await?).await
    }

    /// Sends a PUT request whose response has no body.
    pub async fn put_nothing(&self, path: &str, body: &impl Serialize) -> Result<()> {
        self.send(request(Method::PUT, path, Some(json_bytes(body)?))?).await.map(drop)
    }

    /// Sends a file as the body of a PUT request, with a condition on the current one.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        condition: Option<(header::HeaderName, header::HeaderValue)>,
        length: Option<u64>,
        content: Body,
    ) -> Result<T> {
        let mut request = request(Method::PUT, path, None)?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/octet-stream"));
        headers.extend(length.map(|length| (header::CONTENT_LENGTH, length.into())));
        headers.extend(condition);
        *request.body_mut() = content;
        self.read(self.send(request).await?).await
    }

    /// Sends a DELETE request.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.send(request(Method::DELETE, path, None)?).await.map(drop)
    }

    /// Opens a stream of events, which continues after the event `after` if given.
    pub async fn events(&self, path: &str, after: Option<&str>) -> Result<Events> {
        let mut request = request(Method::GET, path, None)?;
        let accept = header::HeaderValue::from_static("text/event-stream");
        request.headers_mut().insert(header::ACCEPT, accept);
        if let Some(after) = after {
            let invalid = |_| Failure::usage(format!("`{}` is not a valid event position", plain(after)));
            let value = after.parse().map_err(invalid)?;
            request.headers_mut().insert("last-event-id", value);
        }
        Ok(Events::new(self.send(request).await?.body))
    }

    /// Reads the body of a response as JSON.
    pub async fn read<T: DeserializeOwned>(&self, answer: ApiResponse) -> Result<T> {
        let bytes = bytes(answer.body).await?;
        windlass::store::read_json(&bytes).map_err(|error| {
            let what = "could not parse the server's response";
            Failure::new(Exit::Unreachable, format!("{what}: {error}; the server may be another version of windlass"))
        })
    }

    /// Sends a GET request, and reads the response as text.
    pub async fn text(&self, path: &str) -> Result<String> {
        let answer = self.send(request(Method::GET, path, None)?).await?;
        Ok(String::from_utf8_lossy(&bytes(answer.body).await?).into_owned())
    }

    /// GET: the body as it is.
    pub async fn bytes(&self, path: &str) -> Result<Vec<u8>> {
        let answer = self.send(request(Method::GET, path, None)?).await?;
        Ok(bytes(answer.body).await?.to_vec())
    }

    async fn send(&self, request: Request<Body>) -> Result<ApiResponse> {
        let (parts, body) = self.dispatch(request).await?.into_parts();
        if parts.status.as_u16() < 400 {
            return Ok(ApiResponse { status: parts.status, headers: parts.headers, body });
        }
        let mut failure = problem(parts.status, &bytes(body).await?);
        if failure.problem.as_deref() == Some("store_unavailable") {
            self.add_cause(&mut failure).await;
        }
        Err(failure)
    }

    /// Adds why the store is unavailable, which only the server's health says.
    async fn add_cause(&self, failure: &mut Failure) {
        let Ok(request) = request(Method::GET, "/v1/health", None) else { return };
        let Ok(response) = self.dispatch(request).await else { return };
        let Ok(body) = bytes(response.into_body()).await else { return };
        let Ok(health) = serde_json::from_slice::<Health>(&body) else { return };
        for problem in &health.problems {
            failure.message.push_str(&format!("\n    {}", plain(problem)));
        }
    }

    async fn dispatch(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse();
            let mut value: header::HeaderValue =
                value.map_err(|_| Failure::usage("the token has characters that are not valid in a token"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        if let Some(principal) = self.principal.get() {
            request.headers_mut().insert("windlass-principal", principal.clone());
        }
        match &self.transport {
            Transport::Remote(remote) => remote.send(request).await,
            Transport::Local { router, .. } => match router.clone().oneshot(request).await {
                Ok(response) => Ok(response),
                Err(never) => match never {},
            },
        }
    }
}

fn json_bytes(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|error| Failure::usage(error.to_string()))
}

fn request(method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Request<Body>> {
    let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    let request = request.header(header::ACCEPT, "application/json");
    let built = match body {
        Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body)),
        None => request.body(Body::empty()),
    };
    built.map_err(|error| Failure::usage(format!("{}: {error}", plain(path))))
}

async fn bytes(body: Body) -> Result<Vec<u8>> {
    let read = windlass_http::read(body, MOST_BYTES).await;
    let broken = |error| Failure::new(Exit::Unreachable, format!("could not read the response: {error}; try again"));
    Ok(read.map_err(broken)?.to_vec())
}

/// Turns an error response into a failure of the command.
fn problem(status: StatusCode, body: &[u8]) -> Failure {
    let problem: Option<Problem> = serde_json::from_slice(body).ok();
    let name = problem.as_ref().map(|problem| problem.name().to_owned());
    let exit = match (status.as_u16(), name.as_deref()) {
        (422, Some("key_reused")) => Exit::Refused,
        (400 | 405 | 406 | 411 | 413 | 414 | 415 | 422, _) => Exit::Usage,
        (404, _) => Exit::NotFound,
        (408 | 504, _) => Exit::TimedOut,
        (401 | 403 | 409 | 410 | 412 | 423 | 429, _) => Exit::Refused,
        _ => Exit::Unreachable,
    };
    let message = match problem {
        Some(problem) => message(&problem),
        None => {
            let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
            format!("the server answered {status}: {}", plain(text.trim()))
        }
    };
    Failure { exit, message, problem: name }
}

fn message(problem: &Problem) -> String {
    let detail = plain(&problem.detail);
    let violations = problem.extra.get("violations").and_then(|violations| violations.as_array());
    let lines = violations.into_iter().flatten().map(|violation| {
        let text = |field: &str| plain(violation[field].as_str().unwrap_or_default());
        let pointer = text("pointer");
        let pointer = if pointer.is_empty() { "the whole value".to_owned() } else { pointer };
        format!("\n    {pointer}: {}", text("message"))
    });
    std::iter::once(detail).chain(lines).collect()
}

/// Percent-encodes a segment of a path or a value of a query.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// A query string of the pairs that have a value.
pub fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let present = pairs.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={}", escaped(value))));
    let joined: Vec<String> = present.collect();
    if joined.is_empty() { String::new() } else { format!("?{}", joined.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_status_has_its_exit_code() {
        let check = |status: u16, name: &str, exit: Exit| {
            let body = serde_json::to_vec(&Problem::new(status, name, "title", "the detail")).unwrap();
            let failure = problem(StatusCode::from_u16(status).unwrap(), &body);
            assert_eq!((failure.exit, failure.message.as_str()), (exit, "the detail"), "{status}");
            assert_eq!(failure.problem.as_deref(), Some(name));
        };
        check(400, "bad_request", Exit::Usage);
        check(401, "unauthorized", Exit::Refused);
        check(404, "not_found", Exit::NotFound);
        check(409, "conflict", Exit::Refused);
        check(422, "key_reused", Exit::Refused);
        check(422, "invalid", Exit::Usage);
        check(429, "too_many", Exit::Refused);
        check(503, "unavailable", Exit::Unreachable);
        let raw = problem(StatusCode::BAD_GATEWAY, b"<html>\x1b[31mno</html>");
        assert_eq!(raw.exit, Exit::Unreachable);
        assert_eq!(raw.message, "the server answered 502 Bad Gateway: <html>□[31mno</html>");
    }

    #[test]
    fn paths_and_queries_are_percent_encoded() {
        assert_eq!(escaped("a b/ü?&"), "a%20b%2F%C3%BC%3F%26");
        assert_eq!(query(&[("a", Some("1&2")), ("b", None), ("c", Some("x"))]), "?a=1%262&c=x");
        assert_eq!(query(&[("b", None)]), "");
    }
}
