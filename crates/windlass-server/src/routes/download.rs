//! Responses with stored bytes: ranges, entity tags, and the content in chunks.

use std::future::Future;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::range::{ByteRange, parse_range};
use crate::guard::BufferedBytes;
use crate::refusal::{ApiResult, Refusal};

/// Stored bytes, and how they are presented.
pub(super) struct Shown {
    /// What it is, for an error.
    pub(super) what: &'static str,
    /// The entity tag, with its quotes.
    pub(super) tag: String,
    pub(super) size: u64,
    pub(super) disposition: &'static str,
    pub(super) media_type: String,
    pub(super) cache: &'static str,
}

impl Shown {
    /// The response to a request with these headers. `read` reads bytes from an offset on.
    pub(super) fn respond<R, E>(
        self,
        headers: &HeaderMap,
        read: impl Fn(u64, usize) -> R + Clone + Send + 'static,
    ) -> ApiResult
    where
        R: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
        E: Into<axum::BoxError> + Send + 'static,
    {
        let Self { what, tag, size, disposition, media_type, cache } = self;
        let value = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let matches_tag = |list: &str| {
            list.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == "*" || one == tag)
        };
        if value(header::IF_NONE_MATCH).is_some_and(matches_tag) {
            return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
        }
        let range = value(header::RANGE).filter(|_| value(header::IF_RANGE).is_none_or(|seen| seen.trim() == tag));
        let (status, first, end) = match parse_range(range, size) {
            ByteRange::Whole => (StatusCode::OK, 0, size),
            ByteRange::Part(first, last) => (StatusCode::PARTIAL_CONTENT, first, last + 1),
            ByteRange::Unsatisfiable => {
                let detail = format!("the range starts after the end of the {what}, which has {size} bytes");
                let (status, title) = (StatusCode::RANGE_NOT_SATISFIABLE, "Range not satisfiable");
                return Err(Refusal::new(status, "range_not_satisfiable", title, detail)
                    .header(header::CONTENT_RANGE, &format!("bytes */{size}")));
            }
        };
        let mut response = Response::new(Body::from_stream(chunks(read, first, end)));
        *response.status_mut() = status;
        let text = |text: String| HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
        let into = response.headers_mut();
        // Keeps a browser from executing the content.
        into.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
        into.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
        into.insert(header::CONTENT_TYPE, text(media_type));
        into.insert(header::CONTENT_LENGTH, text((end - first).to_string()));
        into.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        into.insert(header::ETAG, text(tag));
        into.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
        if status == StatusCode::PARTIAL_CONTENT {
            into.insert(header::CONTENT_RANGE, text(format!("bytes {first}-{}/{size}", end - 1)));
        }
        let most = windlass::limits::ARTIFACT_PIECE * 2;
        response.extensions_mut().insert(BufferedBytes(usize::try_from(end - first).unwrap_or(most).min(most)));
        Ok(response)
    }
}

/// The content in chunks. An error ends the response early, which the client notices by its length.
fn chunks<R, E>(
    read: impl Fn(u64, usize) -> R + Clone + Send + 'static,
    first: u64,
    end: u64,
) -> impl futures_util::Stream<Item = Result<Bytes, E>> + Send
where
    R: Future<Output = Result<Vec<u8>, E>> + Send,
    E: Send + 'static,
{
    futures_util::stream::unfold(first, move |at| {
        let read = read.clone();
        async move {
            if at >= end {
                return None;
            }
            let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(windlass::limits::ARTIFACT_PIECE);
            match read(at, length).await {
                Ok(bytes) if bytes.is_empty() => None,
                Ok(bytes) => {
                    let next = at + bytes.len() as u64;
                    Some((Ok(Bytes::from(bytes)), next))
                }
                Err(error) => Some((Err(error), end)),
            }
        }
    })
}
