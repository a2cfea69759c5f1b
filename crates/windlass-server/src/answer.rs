//! Answers that are JSON.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::given::Pieces;
use crate::refusal::Refusal;

/// A status and a body.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match lines(body) {
        Ok(pieces) => {
            let mut response = Response::new(pieces.into_body());
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

/// JSON as it is sent: with a line break at its end, for terminals.
pub(crate) fn lines(body: &impl Serialize) -> serde_json::Result<Pieces> {
    let mut pieces = Pieces::new();
    serde_json::to_writer(&mut pieces, body)?;
    std::io::Write::write_all(&mut pieces, b"\n").map_err(serde_json::Error::io)?;
    Ok(pieces)
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
