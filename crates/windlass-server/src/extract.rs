//! Reading requests: bodies, queries, places, keys. Whatever cannot be read is refused with a problem that says where.

use std::pin::pin;
use std::str::FromStr;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use windlass::RunId;
use windlass::tools::nearest;

use crate::app::Shared;
use crate::given::PIECE;
use crate::guard::{Asker, too_much_held};
use crate::refusal::{Answer, Refusal};
use crate::shares::Share;

/// How much of a body that is too large is still taken in, so that whoever sends it gets to read the answer.
const LINGER_BYTES: usize = 128 << 20;
const LINGER: std::time::Duration = std::time::Duration::from_secs(2);
/// A sender that pauses for so long is answered sooner.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Longest idempotency key.
const KEY_CHARS: usize = 255;

/// The body of a request, as JSON.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        let (bytes, _held) = whole(app, &parts, body, app.options.limits.body_bytes).await?;
        if bytes.is_empty() {
            let why = "the request has no body; send JSON, `{}` at least";
            return Err(Refusal::bad_request("malformed_json", why));
        }
        check_json(&parts.headers)?;
        Ok(Self(parse(&bytes)?))
    }
}

/// The same where everything in it may be left out, and the body with it.
pub(crate) struct MaybeJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Shared> for MaybeJson<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        let (bytes, _held) = whole(app, &parts, body, app.options.limits.body_bytes).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        check_json(&parts.headers)?;
        Ok(Self(parse::<Option<T>>(&bytes)?.unwrap_or_default()))
    }
}

/// A document that is imported, as text, and the room it takes for as long as it is worked on.
pub(crate) struct Document(pub(crate) String, pub(crate) Option<Share>);

impl FromRequest<Shared> for Document {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        let (bytes, held) = whole(app, &parts, body, app.options.limits.import_bytes).await?;
        check_json(&parts.headers)?;
        let text = String::from_utf8(bytes.into());
        text.map(|text| Self(text, held))
            .map_err(|_| Refusal::bad_request("malformed_json", "the document is not UTF-8"))
    }
}

/// How long the body of a request says that it is.
pub(crate) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
}

/// Takes in a body, within its limits.
async fn whole(app: &Shared, parts: &Parts, body: Body, limit: usize) -> Answer<(Bytes, Option<Share>)> {
    let length = announced(&parts.headers);
    if length.is_some_and(|length| length > limit as u64) {
        Box::pin(linger(&parts.headers, body)).await;
        return Err(too_large(limit));
    }
    // One that does not say how long it is may be as long as it may be.
    let most = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(limit);
    let room = || match parts.extensions.get::<Asker>() {
        Some(Asker(Some(client))) => app.bytes.take(client, most).map(Some).ok_or_else(|| too_much_held(app)),
        _ => Ok(None),
    };
    let time = app.options.limits.body;
    match tokio::time::timeout(time, pin!(collect(body, limit, room))).await {
        Ok(read) => read,
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            "The request took too long to arrive",
            format!("the body did not arrive within {} s; send it faster, or in smaller parts", time.as_secs()),
        )
        .header(header::CONNECTION, "close")),
    }
}

/// `room`: taken once there is more than one piece of it.
async fn collect(body: Body, limit: usize, room: impl Fn() -> Answer<Option<Share>>) -> Answer<(Bytes, Option<Share>)> {
    let mut stream = body.into_data_stream();
    let mut first: Option<Bytes> = None;
    let mut all: Vec<u8> = Vec::new();
    let mut held = None;
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| {
            Refusal::bad_request("broken_body", format!("the body broke off: {error}"))
                .header(header::CONNECTION, "close")
        })?;
        let so_far = first.as_ref().map_or(all.len(), Bytes::len);
        if so_far + piece.len() > limit {
            Box::pin(take_rest(stream)).await;
            return Err(too_large(limit));
        }
        if held.is_none() && so_far + piece.len() > PIECE {
            match room() {
                Ok(taken) => held = taken,
                Err(refusal) => {
                    Box::pin(take_rest(stream)).await;
                    return Err(refusal.header(header::CONNECTION, "close"));
                }
            }
        }
        // Most bodies come in one piece, which need not be copied.
        match first.take() {
            None if all.is_empty() => first = Some(piece),
            None => all.extend_from_slice(&piece),
            Some(before) => {
                all.extend_from_slice(&before);
                all.extend_from_slice(&piece);
            }
        }
    }
    Ok((first.unwrap_or_else(|| all.into()), held))
}

/// Takes in a body that is not wanted, unless its sender waits to be told that it is.
pub(crate) async fn linger(headers: &HeaderMap, body: Body) {
    let waits = headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if !waits {
        take_rest(body.into_data_stream()).await;
    }
}

/// Takes in what is on its way of a body that is not wanted: a connection that is cut in the middle of it loses the answer
/// too. A sender that pauses can read it.
async fn take_rest(mut stream: axum::body::BodyDataStream) {
    let mut taken = 0;
    let drain = async {
        while let Ok(Some(Ok(piece))) = tokio::time::timeout(PAUSE, stream.next()).await {
            taken += piece.len();
            if taken > LINGER_BYTES {
                return;
            }
        }
    };
    // Whoever is slower than that does without the answer.
    drop(tokio::time::timeout(LINGER, drain).await);
}

fn too_large(limit: usize) -> Refusal {
    let detail = format!("the body is larger than {limit} bytes; store large content at /v1/artifacts and refer to it");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The request is too large", detail)
        .with("limit", limit)
        .header(header::CONNECTION, "close")
}

/// A page elsewhere can send a form without asking, but no JSON.
fn check_json(headers: &HeaderMap) -> Answer<()> {
    let value = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let kind = value.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") || is_json_like(&kind.to_ascii_lowercase()) {
        return Ok(());
    }
    let said = value.map_or_else(|| "nothing".to_owned(), |value| format!("`{}`", shortened(value)));
    Err(Refusal::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "Send JSON",
        format!("the body should be `Content-Type: application/json`; the request says {said}"),
    ))
}

fn is_json_like(kind: &str) -> bool {
    kind.starts_with("application/") && kind.ends_with("+json")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    // The parser would take a list for the fields of an object, one after the other.
    if let Some(b'[') = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        return Err(Refusal::invalid("the body is a list, and should be an object"));
    }
    windlass::read_json(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let detail = format!("line {line}, column {column}: {what}{}", did_you_mean(what));
        let refusal = match error.classify() {
            serde_json::error::Category::Data => Refusal::invalid(detail),
            _ => Refusal::bad_request("malformed_json", detail),
        };
        refusal.with("line", line).with("column", column)
    })
}

/// `; did you mean …?` for a message of the parser that names what was expected; nothing where no name is near.
fn did_you_mean(message: &str) -> String {
    let Some(begin) = message.find("unknown ") else { return String::new() };
    let mut quoted = message[begin..].split('`').skip(1).step_by(2);
    let (Some(wrong), expected) = (quoted.next(), quoted) else { return String::new() };
    nearest(wrong, expected).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl FromRequestParts<Shared> for Asker {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Answer<Self> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or(Self(None)))
    }
}

/// What stands behind the question mark.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Answer<Self> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(query) => Ok(Self(query.0)),
            Err(error) => {
                let text = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Err(Refusal::bad_request(
                    "bad_query",
                    format!("the query cannot be read: {text}{}", did_you_mean(&text)),
                ))
            }
        }
    }
}

/// What stands in the path.
pub(crate) struct Place<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Place<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Answer<Self> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(place) => Ok(Self(place.0)),
            Err(error) => Err(Refusal::bad_request("bad_path", format!("the path cannot be read: {error}"))),
        }
    }
}

/// The run that a path names.
pub(crate) struct InRun(pub(crate) RunId);

impl FromRequestParts<Shared> for InRun {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Answer<Self> {
        let Place(names) =
            Place::<std::collections::BTreeMap<String, String>>::from_request_parts(parts, state).await?;
        run_id(names.get("run").map_or("", String::as_str)).map(Self)
    }
}

/// Reads the id of a run.
pub(crate) fn run_id(text: &str) -> Answer<RunId> {
    RunId::from_str(text).map_err(|_| {
        let why =
            format!("`{}` is no run id: it is a UUID, such as 01900000-0000-7000-8000-000000000000", shortened(text));
        Refusal::bad_request("bad_run_id", why)
    })
}

/// The key under which a request may be repeated.
pub(crate) struct Key(pub(crate) Option<String>);

impl Key {
    pub(crate) fn as_deref(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromRequestParts<Shared> for Key {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Answer<Self> {
        let mut values = parts.headers.get_all("idempotency-key").iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let text = value.to_str().ok().filter(|text| (1..=KEY_CHARS).contains(&text.len()));
        match text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic())) {
            Some(text) if values.next().is_none() => Ok(Self(Some(text.to_owned()))),
            _ => {
                let why = format!("Idempotency-Key is one value of 1 to {KEY_CHARS} visible ASCII characters");
                Err(Refusal::bad_request("bad_key", why))
            }
        }
    }
}

/// As much of what somebody sent as an answer should repeat.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_named() {
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
