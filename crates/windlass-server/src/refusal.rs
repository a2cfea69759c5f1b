//! Why a request is refused: every problem the API knows, and how errors of the kernel become one.

use std::sync::LazyLock;
use std::time::Instant;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use windlass::troubles::Troubles;
use windlass::{Error, StoreError};

use crate::answer::lines;
use crate::wire::Problem;

/// A refusal on its way out. Boxed, because results that carry it should stay small.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    problem: Problem,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Says in the log what the store does not do. Every request meets it, so it is told once, and then now and then.
pub(crate) fn troubled(problem: &dyn std::fmt::Display) {
    static TOLD: Troubles = Troubles::new();
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    let problem = problem.to_string();
    if let Some(untold) = TOLD.met(&problem, FIRST.elapsed()) {
        tracing::error!(untold, "{problem}");
    }
}

/// What handlers return.
pub(crate) type Answer<T = Response> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(status: StatusCode, name: &str, title: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner { problem: Problem::new(status.as_u16(), name, title, detail), headers: Vec::new() }))
    }

    pub(crate) fn bad_request(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, name, "The request cannot be read", detail)
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "The request does not fit", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "There is no such thing", detail)
    }

    pub(crate) fn conflict(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, name, "Conflict with the run's state", detail)
    }

    pub(crate) fn unavailable(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, name, "Not now", detail).header(header::RETRY_AFTER, "1")
    }

    pub(crate) fn internal() -> Self {
        let detail = "something broke here; the log of the server says what. Ask again, with the same Idempotency-Key if \
                      the request had one";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "The server failed", detail)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.0.problem.extra.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers.push((name, value));
        }
        self
    }

    pub(crate) fn problem(self) -> Problem {
        self.0.problem
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> &str {
        self.0.problem.name()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Inner { problem, headers } = *self.0;
        let body = lines(&problem).unwrap_or_default();
        let mut response = Response::new(body.into_body());
        *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        for (name, value) in headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Store(error) => Self::from(error),
            Error::KeyReused { run, .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", "The key belongs to another request", text)
                    .with("run", run.to_string())
            }
            Error::Tool(error) => Self::invalid(windlass::activity::Failure::of(&error).message),
            Error::Held { run, .. } => Self::conflict("held", text).with("run", run.to_string()),
            Error::Unknown { run, source } => {
                let detail = format!(
                    "whether the store took it is not known yet; ask for run {run}, or ask again with the same \
                     Idempotency-Key"
                );
                troubled(&source);
                Self::unavailable("unknown_outcome", detail).with("run", run.to_string())
            }
            Error::Elsewhere { run } => Self::unavailable("shutting_down", text).with("run", run.to_string()),
            Error::Closed => Self::unavailable("shutting_down", text),
            Error::Register(_) | Error::Invalid(_) => Self::invalid(text),
            Error::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The request is too large", text)
            }
            Error::NotFound(_) => Self::not_found(text),
            Error::StillRunning { run, wait, .. } => {
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                Self::conflict("too_early", text)
                    .with("run", run.to_string())
                    .header(header::RETRY_AFTER, &seconds.to_string())
            }
            Error::Exists { run } => Self::conflict("exists", text).with("run", run.to_string()),
            Error::Conflict(_) | Error::NotDriving(_) => Self::conflict("refused", text),
            // The machine's trouble, and not the request's: a full disk, a file that cannot be written.
            Error::System(_) => {
                troubled(&text);
                Self::unavailable("system", text)
            }
            other => {
                tracing::error!("{other}");
                Self::internal()
            }
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        match error {
            StoreError::NoSuchRun(run) => {
                Self::not_found(format!("there is no run {run} here; it may have been purged, or kept no longer"))
            }
            StoreError::NoArtifact { .. } => Self::not_found(text),
            StoreError::Finished(_) => Self::conflict("finished", text),
            StoreError::KeySpent { .. } => Self::conflict("key_spent", text),
            StoreError::Unfinished(_) => Self::conflict("unfinished", text),
            StoreError::Doubted(_) => Self::conflict("doubted", text),
            StoreError::Sealed { .. } => Self::conflict("sealed", text),
            StoreError::Damaged { run, place } => {
                troubled(&text);
                let refusal =
                    Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", "What is stored is damaged", text);
                run.into_iter().fold(refusal.with("place", place), |refusal, run| refusal.with("run", run.to_string()))
            }
            StoreError::Busy { .. } | StoreError::Leased { .. } | StoreError::Duplicate { .. } => {
                Self::conflict("busy", text)
            }
            StoreError::JournalGone(_) => Self::new(StatusCode::GONE, "journal_gone", "It is no longer kept", text),
            StoreError::Invalid(_) => Self::invalid(text),
            // What the store says of its file is for whoever looks after it: health has it too.
            error => {
                troubled(&error);
                Self::unavailable("store_unavailable", "the store does not answer; see /v1/health, and ask again")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn l23_every_kind_of_error_has_its_status_and_name() {
        let run = windlass::RunId::from_bytes([1; 16]);
        let (why, path) = (|| "why".to_owned(), windlass::Path::root());
        for (error, status, name) in [
            (Error::Invalid(why()), 422, "invalid_request"),
            (Error::TooLarge(why()), 413, "too_large"),
            (Error::NotFound(why()), 404, "not_found"),
            (Error::Conflict(why()), 409, "refused"),
            (Error::StillRunning { run, path, wait: Duration::from_secs(5) }, 409, "too_early"),
            (Error::Exists { run }, 409, "exists"),
            (Error::NotDriving(why()), 409, "refused"),
            (Error::System(why().into()), 503, "system"),
            (Error::Closed, 503, "shutting_down"),
            (Error::Elsewhere { run }, 503, "shutting_down"),
            (Error::KeyReused { run, what: why() }, 422, "key_reused"),
            (Error::Decode { run, problem: why() }, 500, "internal"),
        ] {
            let text = error.to_string();
            let refusal = Refusal::from(error);
            assert_eq!((refusal.0.problem.status, refusal.name()), (status, name), "{text}");
        }
    }
    #[test]
    fn l23_what_is_too_early_says_when_to_ask_again() {
        let (run, path) = (windlass::RunId::from_bytes([1; 16]), windlass::Path::root());
        let early = Error::StillRunning { run, path, wait: Duration::from_millis(4_200) };
        let response = Refusal::from(early).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "5");
    }
}
