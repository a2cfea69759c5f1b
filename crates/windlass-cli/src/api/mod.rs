//! One client for both ways: requests go to a server over HTTP, or to the very same router in this process, on the file
//! this process opened. Commands do not know which.

mod events;
mod ids;
mod open;
mod remote;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;
use windlass::Windlass;
use windlass_server::wire::Problem;

pub use events::{Event, Events};
pub use ids::{ambiguous, enough};
pub use open::{
    Open, config_path, driving, launcher, misconfigured, open, place, place_with, place_without_tools, served, server,
    unknown_tool, unopened,
};

use crate::exit::{Exit, Failure, Result};
use crate::style::plain;
use remote::Remote;

/// More than any answer has: an export of a whole run is the largest.
const MOST_BYTES: usize = 1024 * 1024 * 1024;

/// Where requests go.
enum Way {
    Remote(Remote),
    Here { router: axum::Router, windlass: Windlass },
}

/// The API, wherever it is.
pub struct Api {
    way: Way,
    token: Option<String>,
}

/// An answer whose body was not looked at yet.
pub struct Answer {
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
        matches!(self.way, Way::Remote(_))
    }

    /// Where it is, for people: a URL, or nothing.
    pub fn url(&self) -> Option<&str> {
        match &self.way {
            Way::Remote(remote) => Some(remote.url()),
            Way::Here { .. } => None,
        }
    }

    /// Lets go of the file, if this process has it open.
    pub async fn close(self) -> Result<()> {
        match self.way {
            Way::Remote(_) => Ok(()),
            Way::Here { windlass, .. } => {
                windlass.shutdown().await.map_err(|error| Failure::new(Exit::Unreachable, error.to_string()))
            }
        }
    }

    /// Asks for something.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.send(request(Method::GET, path, None)?).await?).await
    }

    /// Says something.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, key: Option<&str>) -> Result<T> {
        self.read(self.post_raw(path, json_bytes(body)?, key).await?).await
    }

    /// Says something, and looks at the answer itself.
    pub async fn post_raw(&self, path: &str, body: Vec<u8>, key: Option<&str>) -> Result<Answer> {
        let mut request = request(Method::POST, path, Some(body))?;
        if let Some(key) = key {
            let value = key.parse().map_err(|_| {
                Failure::usage("a key has 1 to 255 visible characters: no blanks, no line breaks, no accents")
            })?;
            request.headers_mut().insert("idempotency-key", value);
        }
        self.send(request).await
    }

    /// Takes something away.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.send(request(Method::DELETE, path, None)?).await.map(drop)
    }

    /// Follows a stream of events, after the event `after` if that is given.
    pub async fn events(&self, path: &str, after: Option<&str>) -> Result<Events> {
        let mut request = request(Method::GET, path, None)?;
        let accept = header::HeaderValue::from_static("text/event-stream");
        request.headers_mut().insert(header::ACCEPT, accept);
        if let Some(after) = after {
            let value = after.parse().map_err(|_| Failure::usage(format!("`{}` is no place", plain(after))))?;
            request.headers_mut().insert("last-event-id", value);
        }
        Ok(Events::new(self.send(request).await?.body))
    }

    /// All of an answer, as JSON.
    pub async fn read<T: DeserializeOwned>(&self, answer: Answer) -> Result<T> {
        let bytes = bytes(answer.body).await?;
        windlass::read_json(&bytes).map_err(|error| {
            let what = "the server answered something this program does not understand";
            Failure::new(Exit::Unreachable, format!("{what}: {error}; is it another version of windlass?"))
        })
    }

    /// All of an answer, as text.
    pub async fn text(&self, path: &str) -> Result<String> {
        let answer = self.send(request(Method::GET, path, None)?).await?;
        Ok(String::from_utf8_lossy(&bytes(answer.body).await?).into_owned())
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Answer> {
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse();
            let mut value: header::HeaderValue =
                value.map_err(|_| Failure::usage("the token has characters no token has"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let response = match &self.way {
            Way::Remote(remote) => remote.send(request).await?,
            Way::Here { router, .. } => match router.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        let (parts, body) = response.into_parts();
        if parts.status.as_u16() >= 400 {
            return Err(problem(parts.status, &bytes(body).await?));
        }
        Ok(Answer { status: parts.status, headers: parts.headers, body })
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
    let broken = |error| Failure::new(Exit::Unreachable, format!("the answer broke off: {error}; ask again"));
    Ok(read.map_err(broken)?.to_vec())
}

/// What a refusal means for a command.
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
    let sentence = match problem {
        Some(problem) => sentence(&problem),
        None => {
            let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
            format!("the server answered {status}: {}", plain(text.trim()))
        }
    };
    Failure { exit, sentence, problem: name }
}

fn sentence(problem: &Problem) -> String {
    let detail = plain(&problem.detail);
    let violations = problem.extra.get("violations").and_then(|violations| violations.as_array());
    let lines = violations.into_iter().flatten().map(|violation| {
        let text = |field: &str| plain(violation[field].as_str().unwrap_or_default());
        let pointer = text("pointer");
        let place = if pointer.is_empty() { "the whole".to_owned() } else { pointer };
        format!("\n    {place}: {}", text("message"))
    });
    std::iter::once(detail).chain(lines).collect()
}

/// A piece of a path or of a query, with what has a meaning there escaped.
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

/// A query of the pairs that are there.
pub fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let there = pairs.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={}", escaped(value))));
    let joined: Vec<String> = there.collect();
    if joined.is_empty() { String::new() } else { format!("?{}", joined.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_end_a_command_with_the_number_for_them() {
        let check = |status: u16, name: &str, exit: Exit| {
            let body = serde_json::to_vec(&Problem::new(status, name, "title", "the detail")).unwrap();
            let failure = problem(StatusCode::from_u16(status).unwrap(), &body);
            assert_eq!((failure.exit, failure.sentence.as_str()), (exit, "the detail"), "{status}");
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
        assert_eq!(raw.sentence, "the server answered 502 Bad Gateway: <html>□[31mno</html>");
    }

    #[test]
    fn what_has_a_meaning_in_an_address_is_escaped() {
        assert_eq!(escaped("a b/ü?&"), "a%20b%2F%C3%BC%3F%26");
        assert_eq!(query(&[("a", Some("1&2")), ("b", None), ("c", Some("x"))]), "?a=1%262&c=x");
        assert_eq!(query(&[("b", None)]), "");
    }
}
