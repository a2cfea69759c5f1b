//! Responses with a JSON body.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::body::ChunkBuffer;
use crate::refusal::Refusal;
use crate::wire::Accepted;

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match json_line(body) {
        Ok(chunks) => {
            let mut response = Response::new(chunks.into_body());
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            tracing::error!("a response could not be serialized: {error}");
            Refusal::internal().into_response()
        }
    }
}

/// JSON with a line break at its end, so that a terminal's prompt starts on a line of its own.
pub(crate) fn json_line(body: &impl Serialize) -> serde_json::Result<ChunkBuffer> {
    let mut chunks = ChunkBuffer::new();
    serde_json::to_writer(&mut chunks, body)?;
    std::io::Write::write_all(&mut chunks, b"\n").map_err(serde_json::Error::io)?;
    Ok(chunks)
}

pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

/// A 202 response, with the address of the run as its `Location`.
pub(crate) fn accepted(body: &Accepted) -> Response {
    let access = body.access.as_ref().map(|access| format!("?access={access}")).unwrap_or_default();
    located(StatusCode::ACCEPTED, &format!("/v1/runs/{}{access}", body.run), body)
}

/// A JSON response with a `Location` header.
pub(crate) fn located(status: StatusCode, location: &str, body: &impl Serialize) -> Response {
    let mut response = json(status, body);
    if let Ok(value) = HeaderValue::from_str(location) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}
