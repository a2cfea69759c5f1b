//! Answers that are JSON.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::refusal::Refusal;

/// A status and a body.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match lines(body) {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            tracing::error!("an answer cannot be written: {error}");
            Refusal::internal().into_response()
        }
    }
}

/// Most answers are not longer, so they need not be moved while they are written.
const USUAL_BYTES: usize = 256;

/// JSON as it is sent: with a line break at its end, for terminals.
pub(crate) fn lines(body: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    serde_json::to_writer(&mut bytes, body)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// It went well.
pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

/// The same, and where to look.
pub(crate) fn located(status: StatusCode, place: &str, body: &impl Serialize) -> Response {
    let mut response = json(status, body);
    if let Ok(value) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}
