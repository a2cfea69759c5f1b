//! Extractors: bodies, queries, path parameters and idempotency keys. What cannot be read is refused with a problem
//! that names the position.

use std::pin::pin;
use std::str::FromStr;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use windlass::RunId;
use windlass::tool::nearest;

use crate::app::Shared;
use crate::body::CHUNK_BYTES;
use crate::guard::{QuotaClient, too_many_bytes};
use crate::quota::QuotaPermit;
use crate::refusal::{ApiResult, Refusal};

/// How much of a refused body is still read. A client that is cut off while it sends does not read the response.
const DRAIN_BYTES: usize = 128 << 20;
/// How long a refused body is still read.
const DRAIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
/// A client that sends nothing for this long can read the response.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Longest idempotency key.
const KEY_CHARS: usize = 255;

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        let (bytes, _permit) = read(app, &parts, body, app.options.limits.body_bytes).await?;
        if bytes.is_empty() {
            let detail = "the request has no body; send a JSON object, `{}` at least";
            return Err(Refusal::bad_request("malformed_json", detail));
        }
        check_json(&parts.headers)?;
        Ok(Self(parse(&bytes)?))
    }
}

/// A JSON body that may be missing.
pub(crate) struct MaybeJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Shared> for MaybeJson<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        let (bytes, _permit) = read(app, &parts, body, app.options.limits.body_bytes).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        check_json(&parts.headers)?;
        Ok(Self(parse::<Option<T>>(&bytes)?.unwrap_or_default()))
    }
}

/// The text of an exported run, with the permit for its bytes.
pub(crate) struct Document(pub(crate) String, pub(crate) Option<QuotaPermit>);

impl FromRequest<Shared> for Document {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        let (bytes, permit) = read(app, &parts, body, app.options.limits.import_bytes).await?;
        check_json(&parts.headers)?;
        let text = String::from_utf8(bytes.into());
        text.map(|text| Self(text, permit)).map_err(|_| {
            Refusal::bad_request("malformed_json", "the document is not UTF-8; send it as it was exported")
        })
    }
}

pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
}

/// Reads a body within its limits of size, time and quota.
async fn read(app: &Shared, parts: &Parts, body: Body, limit: usize) -> ApiResult<(Bytes, Option<QuotaPermit>)> {
    let length = content_length(&parts.headers);
    if length.is_some_and(|length| length > limit as u64) {
        Box::pin(drain_body(&parts.headers, body)).await;
        return Err(too_large(limit));
    }
    // A body of unknown length may be as long as the limit.
    let most = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(limit);
    let permit = || match parts.extensions.get::<QuotaClient>() {
        Some(QuotaClient(Some(client))) => app.bytes.take(client, most).map(Some).ok_or_else(|| too_many_bytes(app)),
        _ => Ok(None),
    };
    let time = app.options.limits.body_timeout;
    match tokio::time::timeout(time, pin!(collect(body, limit, permit))).await {
        Ok(read) => read,
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            "Request body timed out",
            format!("the body did not arrive within {} s; send it faster, or in smaller parts", time.as_secs()),
        )
        .header(header::CONNECTION, "close")),
    }
}

/// Takes the permit only if the body is longer than one chunk.
async fn collect(
    body: Body,
    limit: usize,
    take_permit: impl Fn() -> ApiResult<Option<QuotaPermit>>,
) -> ApiResult<(Bytes, Option<QuotaPermit>)> {
    let mut stream = body.into_data_stream();
    let mut first: Option<Bytes> = None;
    let mut all: Vec<u8> = Vec::new();
    let mut permit = None;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| incomplete_body(&error))?;
        let so_far = first.as_ref().map_or(all.len(), Bytes::len);
        if so_far + chunk.len() > limit {
            Box::pin(drain_stream(stream)).await;
            return Err(too_large(limit));
        }
        if permit.is_none() && so_far + chunk.len() > CHUNK_BYTES {
            match take_permit() {
                Ok(taken) => permit = taken,
                Err(refusal) => {
                    Box::pin(drain_stream(stream)).await;
                    return Err(refusal.header(header::CONNECTION, "close"));
                }
            }
        }
        // Most bodies arrive in one chunk, which is not copied.
        match first.take() {
            None if all.is_empty() => first = Some(chunk),
            None => all.extend_from_slice(&chunk),
            Some(before) => {
                all.extend_from_slice(&before);
                all.extend_from_slice(&chunk);
            }
        }
    }
    Ok((first.unwrap_or_else(|| all.into()), permit))
}

pub(crate) fn incomplete_body(error: &axum::Error) -> Refusal {
    let detail = format!("the body ended before it was complete: {error}; send the request again");
    Refusal::bad_request("incomplete_body", detail).header(header::CONNECTION, "close")
}

/// Reads and drops a refused body, unless the client waits for `100 Continue` before it sends one.
pub(crate) async fn drain_body(headers: &HeaderMap, body: Body) {
    let waits = headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if !waits {
        drain_stream(body.into_data_stream()).await;
    }
}

/// Reads and drops the rest of a refused body, until the client pauses: a connection that is cut while the client sends
/// loses the response too.
async fn drain_stream(mut stream: axum::body::BodyDataStream) {
    let mut bytes = 0;
    let drain = async {
        while let Ok(Some(Ok(chunk))) = tokio::time::timeout(PAUSE, stream.next()).await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES {
                return;
            }
        }
    };
    drop(tokio::time::timeout(DRAIN_TIMEOUT, drain).await);
}

fn too_large(limit: usize) -> Refusal {
    let detail = format!("the body is larger than {limit} bytes; store large content at /v1/artifacts and refer to it");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Request too large", detail)
        .with("limit", limit)
        .header(header::CONNECTION, "close")
}

/// Requires a JSON content type. A foreign web page can send a form without a preflight request, but not JSON.
fn check_json(headers: &HeaderMap) -> ApiResult<()> {
    let value = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let kind = value.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") || is_json_like(&kind.to_ascii_lowercase()) {
        return Ok(());
    }
    let found = value.map_or_else(|| "missing".to_owned(), |value| format!("`{}`", shortened(value)));
    Err(Refusal::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "Unsupported media type",
        format!("the `Content-Type` of the request is {found}; send JSON with `Content-Type: application/json`"),
    ))
}

fn is_json_like(kind: &str) -> bool {
    kind.starts_with("application/") && kind.ends_with("+json")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    // serde would read an array as the fields of a struct, in their order.
    if let Some(b'[') = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        return Err(Refusal::invalid("the body is a JSON array; send an object"));
    }
    windlass::store::read_json(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let detail = format!("body, line {line}, column {column}: {what}{}", did_you_mean(what));
        let refusal = match error.classify() {
            serde_json::error::Category::Data => Refusal::invalid(detail),
            _ => Refusal::bad_request("malformed_json", detail),
        };
        refusal.with("line", line).with("column", column)
    })
}

/// `; did you mean …?` for a message of the parser that lists the expected names; empty if none of them is similar.
fn did_you_mean(message: &str) -> String {
    let Some(begin) = message.find("unknown ") else { return String::new() };
    let mut quoted = message[begin..].split('`').skip(1).step_by(2);
    let (Some(wrong), expected) = (quoted.next(), quoted) else { return String::new() };
    nearest(wrong, expected).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl FromRequestParts<Shared> for QuotaClient {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> ApiResult<Self> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or(Self(None)))
    }
}

/// The query parameters.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> ApiResult<Self> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(query) => Ok(Self(query.0)),
            Err(error) => {
                let text = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Err(Refusal::bad_request("bad_query", format!("query: {text}{}", did_you_mean(&text))))
            }
        }
    }
}

/// The path parameters.
pub(crate) struct PathParam<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for PathParam<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> ApiResult<Self> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(path) => Ok(Self(path.0)),
            Err(error) => Err(Refusal::bad_request("bad_path", format!("path: {error}"))),
        }
    }
}

/// The path parameter `run`.
pub(crate) struct RunParam(pub(crate) RunId);

impl FromRequestParts<Shared> for RunParam {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> ApiResult<Self> {
        let PathParam(names) =
            PathParam::<std::collections::BTreeMap<String, String>>::from_request_parts(parts, state).await?;
        run_id(names.get("run").map_or("", String::as_str)).map(Self)
    }
}

pub(crate) fn run_id(text: &str) -> ApiResult<RunId> {
    RunId::from_str(text).map_err(|_| {
        let detail =
            format!("`{}` is not a run id; use a UUID, such as 01900000-0000-7000-8000-000000000000", shortened(text));
        Refusal::bad_request("bad_run_id", detail)
    })
}

/// The `Idempotency-Key` header: a request can be repeated under the same key.
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

impl IdempotencyKey {
    pub(crate) fn as_deref(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromRequestParts<Shared> for IdempotencyKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> ApiResult<Self> {
        let mut values = parts.headers.get_all("idempotency-key").iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let text = value.to_str().ok().filter(|text| (1..=KEY_CHARS).contains(&text.len()));
        match text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic())) {
            Some(text) if values.next().is_none() => Ok(Self(Some(text.to_owned()))),
            _ => {
                let detail = format!(
                    "`Idempotency-Key` is not valid; send one value of 1 to {KEY_CHARS} visible ASCII characters"
                );
                Err(Refusal::bad_request("bad_key", detail))
            }
        }
    }
}

/// Text of a request, shortened for a problem's detail.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_field_gets_a_suggestion() {
        let message = "unknown field `tol`, expected one of `tool`, `args`, `session`";
        assert_eq!(did_you_mean(message), "; did you mean `tool`?");
        assert_eq!(did_you_mean("unknown field `zzz`, expected `tool` or `args`"), "");
        assert_eq!(did_you_mean("missing field `tool`"), "");
        assert_eq!(
            did_you_mean("unknown variant `aproval`, expected one of `approval`, `doubt`"),
            "; did you mean `approval`?"
        );
    }
}
