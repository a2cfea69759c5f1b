//! Refused requests: every problem of the API, and the mapping from errors of the kernel to problems.

use std::sync::LazyLock;
use std::time::Instant;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use windlass::Error;
use windlass::store::StoreError;
use windlass::store::troubles::Troubles;

use crate::response::json_line;
use crate::wire::Problem;

/// A problem and the headers that go with it. Boxed, to keep the results that carry it small.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    problem: Problem,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Logs a failure of the store, at a limited rate: every request runs into the same one.
pub(crate) fn log_throttled(problem: &dyn std::fmt::Display) {
    static LOGGED: Troubles = Troubles::new();
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let problem = problem.to_string();
    if let Some(suppressed) = LOGGED.met(&problem, START.elapsed()) {
        tracing::error!(suppressed, "{problem}");
    }
}

/// The result of a handler.
pub(crate) type ApiResult<T = Response> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(status: StatusCode, name: &str, title: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner { problem: Problem::new(status.as_u16(), name, title, detail), headers: Vec::new() }))
    }

    pub(crate) fn bad_request(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, name, "Malformed request", detail)
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "Invalid request", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "Resource not found", detail)
    }

    /// The request does not fit the state of a run.
    pub(crate) fn run_conflict(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, name, "Conflict with the run's state", detail)
    }

    /// The request does not fit the state of the session.
    pub(crate) fn session_conflict(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, name, "Conflict with the session's state", detail)
    }

    /// The request does not fit the state of the server: its tokens, clients, layers or configuration.
    pub(crate) fn conflict(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, name, "Conflict with the server's state", detail)
    }

    pub(crate) fn unavailable(name: &str, title: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, name, title, detail).header(header::RETRY_AFTER, "1")
    }

    pub(crate) fn internal() -> Self {
        let detail = "the server failed while it handled the request, and logged the cause; send the request again, \
                      with the same Idempotency-Key if it had one";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal server error", detail)
    }

    pub(crate) fn shutting_down(detail: impl Into<String>) -> Self {
        Self::unavailable("shutting_down", "Server shutting down", detail)
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
        let body = json_line(&problem).unwrap_or_default();
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
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", "Idempotency key of another request", text)
                    .with("run", run.to_string())
            }
            Error::Tool(error) => Self::invalid(windlass::run::activity::Failure::of(&error).message),
            Error::Held { run, .. } => Self::run_conflict("held", text).with("run", run.to_string()),
            Error::Unknown { run, source } => {
                let detail = format!(
                    "run {run} may or may not have been recorded, because the store failed during the write; look the \
                     run up, or send the request again with the same Idempotency-Key"
                );
                log_throttled(&source);
                Self::unavailable("unknown_outcome", "Outcome not yet known", detail).with("run", run.to_string())
            }
            Error::Elsewhere { run } => Self::shutting_down(text).with("run", run.to_string()),
            Error::Closed => Self::shutting_down(text),
            Error::Register(_) | Error::Invalid(_) => Self::invalid(text),
            Error::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Request too large", text),
            Error::NotFound(_) => Self::not_found(text),
            Error::StillRunning { run, wait, .. } => {
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                Self::run_conflict("still_running", text)
                    .with("run", run.to_string())
                    .header(header::RETRY_AFTER, &seconds.to_string())
            }
            Error::Exists { run } => Self::run_conflict("run_exists", text).with("run", run.to_string()),
            Error::NotIdle(_) => Self::session_conflict("not_idle", text),
            Error::Overloaded(_) => Self::unavailable("too_many_unfinished_runs", "Too many unfinished runs", text)
                .header(header::RETRY_AFTER, "5"),
            Error::Conflict(_) | Error::NotDriving(_) => Self::run_conflict("conflict", text),
            // The machine is at fault, not the request: a full disk, a file that cannot be written.
            Error::System(_) => {
                log_throttled(&text);
                Self::unavailable("system_error", "System error", text)
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
                Self::not_found(format!("run {run} does not exist; it may have been purged or removed by retention"))
            }
            StoreError::NoArtifact { .. } => Self::not_found(text),
            StoreError::NoSession { .. } => Self::not_found(text),
            StoreError::SessionClosed { .. } => Self::session_conflict("session_closed", text),
            StoreError::SessionOpen { .. } => Self::session_conflict("session_open", text),
            StoreError::SessionBusy { run, .. } => {
                Self::session_conflict("session_busy", text).with("run", run.to_string())
            }
            // The cause names the key file, which is for the operator.
            StoreError::Unsealable { session, name, .. } => {
                log_throttled(&text);
                let detail = format!("the secret {name:?} of session {session:?} cannot be opened; set it again");
                Self::session_conflict("secrets_sealed", detail)
            }
            StoreError::UnsealableCredential { connection, .. } => {
                log_throttled(&text);
                let detail = format!("the credential of {connection} cannot be opened; connect again");
                Self::session_conflict("secrets_sealed", detail)
            }
            StoreError::Finished(_) => Self::run_conflict("finished", text),
            StoreError::KeySpent { .. } => Self::run_conflict("key_spent", text),
            StoreError::Unfinished(_) => Self::run_conflict("not_finished", text),
            StoreError::Doubted(_) => Self::run_conflict("in_doubt", text),
            StoreError::Sealed { .. } => Self::run_conflict("secrets_sealed", text),
            StoreError::Damaged { run, place } => {
                log_throttled(&text);
                let refusal =
                    Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", "Damaged data in the store", text);
                run.into_iter()
                    .fold(refusal.with("location", place), |refusal, run| refusal.with("run", run.to_string()))
            }
            StoreError::SessionFull { most, run, .. } => {
                Self::session_conflict("session_full", text).with("limit", most).with("run", run.to_string())
            }
            StoreError::Busy { turn, since, .. } => {
                Self::session_conflict("busy", text).with("run", turn.to_string()).with("since", since.to_string())
            }
            StoreError::Leased { .. } | StoreError::Duplicate { .. } => Self::run_conflict("busy", text),
            StoreError::JournalGone(_) => {
                Self::new(StatusCode::GONE, "journal_gone", "Journal removed by retention", text)
            }
            StoreError::Invalid(_) => Self::invalid(text),
            // Details about the store's file are for the operator, who finds them in the log and in /v1/health.
            error => {
                log_throttled(&error);
                let detail =
                    "the store cannot be used at the moment; /v1/health has the cause. Send the request again later";
                Self::unavailable("store_unavailable", "Store unavailable", detail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn l23_every_error_maps_to_a_status_and_a_problem_name() {
        let run = windlass::RunId::from_bytes([1; 16]);
        let (why, path) = (|| "why".to_owned(), windlass::Path::root());
        for (error, status, name) in [
            (Error::Invalid(why()), 422, "invalid_request"),
            (Error::TooLarge(why()), 413, "too_large"),
            (Error::NotFound(why()), 404, "not_found"),
            (Error::Conflict(why()), 409, "conflict"),
            (Error::StillRunning { run, path, wait: Duration::from_secs(5) }, 409, "still_running"),
            (Error::Exists { run }, 409, "run_exists"),
            (Error::NotDriving(why()), 409, "conflict"),
            (Error::NotIdle(why()), 409, "not_idle"),
            (Error::Overloaded(why()), 503, "too_many_unfinished_runs"),
            (Error::System(why().into()), 503, "system_error"),
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
    fn l23_a_problem_about_a_running_attempt_has_a_retry_after_header() {
        let (run, path) = (windlass::RunId::from_bytes([1; 16]), windlass::Path::root());
        let early = Error::StillRunning { run, path, wait: Duration::from_millis(4_200) };
        let response = Refusal::from(early).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "5");
    }
}
