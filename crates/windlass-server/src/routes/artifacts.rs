//! Artifacts: streamed in, streamed out, whole or in parts.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::{Access, Artifact, ArtifactError, ArtifactId, ArtifactReader, Stored};

use super::calls::check_session;
use super::range::{Wanted, wanted};
use crate::access::{Call, May, Read};
use crate::answer::located;
use crate::app::Shared;
use crate::extract::{Key, Place, Query, announced, linger, shortened};
use crate::guard::{Asker, Takes, too_much_held};
use crate::refusal::{Answer, Refusal};
use crate::wire::ArtifactAnswer;

/// What content is that nothing more is known of.
const BYTES: &str = "application/octet-stream";

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StoreQuery {
    /// The session whose runs may refer to it.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    session: String,
    /// Its media type; the `Content-Type` of the request unless said.
    #[param(min_length = 1, max_length = 255, pattern = "^[0-9A-Za-z!#$&^_.+-]+/[0-9A-Za-z!#$&^_.+-]+( *;[ -~]*)?$")]
    media_type: Option<String>,
    /// Its file name.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    name: Option<String>,
}

/// Store an artifact
///
/// For a run of a session to be started with, within an hour; that run keeps it from then on. The name is the digest of the
/// content, so storing the same again is harmless.
#[utoipa::path(post, path = "/v1/artifacts", tag = "artifacts", params(StoreQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "It is stored", body = ArtifactAnswer)))]
pub(super) async fn store(
    State(app): State<Shared>,
    _may: May<Call>,
    _key: Key,
    Asker(client): Asker,
    Query(query): Query<StoreQuery>,
    request: Request,
) -> Answer {
    check_session(&query.session)?;
    let given = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let media_type = query.media_type.or(given).unwrap_or_else(|| BYTES.to_owned());
    check_media_type(&media_type)?;
    let mut writer = app.windlass.new_artifact(query.session.as_str(), media_type.as_str());
    let limit = writer.limit();
    if announced(request.headers()).is_some_and(|length| length > limit) {
        let (parts, body) = request.into_parts();
        linger(&parts.headers, body).await;
        return Err(refused(ArtifactError::TooLarge { limit }));
    }
    // What has arrived of it and is not stored yet.
    let _held = match &client {
        Some(client) => {
            let held = app.bytes.take(client, windlass::limits::ARTIFACT_PIECE);
            Some(held.ok_or_else(|| too_much_held(&app).header(header::CONNECTION, "close"))?)
        }
        None => None,
    };
    if let Some(name) = &query.name {
        if name.is_empty() || name.chars().count() > 255 || name.chars().any(char::is_control) {
            return Err(Refusal::invalid("name has 1 to 255 visible characters"));
        }
        writer = writer.named(name.as_str());
    }
    let mut stream = request.into_body().into_data_stream();
    loop {
        let piece = tokio::time::timeout(app.options.limits.body, stream.next()).await.map_err(|_| {
            let why = "the next piece did not arrive in time; send it again from the beginning";
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "The request took too long to arrive", why)
                .header(header::CONNECTION, "close")
        })?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|error| {
            Refusal::bad_request("broken_body", format!("the body broke off: {error}"))
                .header(header::CONNECTION, "close")
        })?;
        writer.write(&piece).await.map_err(refused)?;
    }
    let artifact = writer.finish().await.map_err(refused)?;
    let (Some(id), size) = (artifact.id(), artifact.size()) else { return Err(Refusal::internal()) };
    // The content has a place of its own whatever it is called, so its address says that.
    let place = format!("/v1/artifacts/{id}?session={}&media_type={}", escaped(&query.session), escaped(&media_type));
    let answer = ArtifactAnswer { artifact: id.to_string(), size, media_type, name: query.name };
    Ok(located(StatusCode::CREATED, &place, &answer))
}

fn check_media_type(text: &str) -> Answer<()> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let kind = text.split(';').next().unwrap_or_default().trim_end_matches(' ');
    let is_kind = kind.split_once('/').is_some_and(|(kind, sort)| is_name(kind) && is_name(sort));
    if !is_kind || text.len() > 255 || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let why = "media_type is a type and a subtype, such as text/csv or text/plain; charset=utf-8, of at most 255 characters";
        return Err(Refusal::invalid(why));
    }
    Ok(())
}

/// Text as it may stand in a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// What a browser shows without running it. Everything else is a file to it, whatever its type.
fn is_shown(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(
        kind.as_str(),
        "text/plain" | "text/csv" | "application/json" | "image/png" | "image/jpeg" | "image/gif" | "image/webp"
    )
}

fn refused(error: ArtifactError) -> Refusal {
    match error {
        ArtifactError::TooLarge { limit } => {
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The artifact is too large", error.to_string())
                .with("limit", limit)
                .header(header::CONNECTION, "close")
        }
        ArtifactError::Store(error) => error.into(),
        ArtifactError::Missing(_) => Refusal::not_found(error.to_string()),
        other => Refusal::conflict("refused", other.to_string()),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadQuery {
    /// The session on whose behalf it is read: only what was stored for it, or what its runs refer to. Everything unless said.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    session: Option<String>,
    /// As what it is sent; as what it was first stored as unless said.
    #[param(min_length = 1, max_length = 255, pattern = "^[0-9A-Za-z!#$&^_.+-]+/[0-9A-Za-z!#$&^_.+-]+( *;[ -~]*)?$")]
    media_type: Option<String>,
}

/// Read an artifact
///
/// Whole, or a range of it. Its content never changes. It is sent as `media_type` says, or as what it was first stored as; a type
/// that a browser might run is sent as a file.
#[utoipa::path(get, path = "/v1/artifacts/{id}", tag = "artifacts",
    params(ReadQuery, ("id" = String, Path, pattern = "^b3:[0-9a-f]{64}$"), ("range" = Option<String>, Header), ("if-none-match" = Option<String>, Header),
           ("if-range" = Option<String>, Header)),
    responses(
        (status = 200, description = "All of it", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "A part of it", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "The reader has it"),
    ))]
pub(super) async fn read(
    State(app): State<Shared>,
    _may: May<Read>,
    Place(id): Place<String>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> Answer {
    let id: ArtifactId = id.parse().map_err(|_| {
        let why = format!("`{}` names no artifact: it is `b3:` and 64 hexadecimal digits", shortened(&id));
        Refusal::bad_request("bad_artifact_id", why)
    })?;
    let tag = format!("\"{id}\"");
    let by = match query.session {
        Some(session) => {
            check_session(&session)?;
            Access::Session(session.into())
        }
        None => Access::Owner,
    };
    query.media_type.as_deref().map_or(Ok(()), check_media_type)?;
    let named = Artifact::stored(BYTES, Stored { id, size: 0 });
    let reader = app.windlass.open_artifact(&named, by).await?;
    let media_type = match query.media_type {
        Some(media_type) => media_type,
        // A program may have stored it as anything.
        None => match reader.media_type().await.map_err(refused)? {
            Some(kept) if check_media_type(&kept).is_ok() => kept.to_string(),
            _ => BYTES.to_owned(),
        },
    };
    let has = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let known = |list: &str| {
        list.split(',')
            .any(|one| matches!(one.trim().trim_start_matches("W/"), "*") || one.trim().trim_start_matches("W/") == tag)
    };
    if has(header::IF_NONE_MATCH).is_some_and(known) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let size = reader.size();
    let range = has(header::RANGE).filter(|_| has(header::IF_RANGE).is_none_or(|seen| seen.trim() == tag));
    let (status, first, end) = match wanted(range, size) {
        Wanted::Whole => (StatusCode::OK, 0, size),
        Wanted::Part(first, last) => (StatusCode::PARTIAL_CONTENT, first, last + 1),
        Wanted::Nothing => {
            let why = format!("the artifact has {size} bytes, and none where the range begins");
            let title = "There is nothing there";
            return Err(Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", title, why)
                .header(header::CONTENT_RANGE, &format!("bytes */{size}")));
        }
    };
    let mut response = Response::new(Body::from_stream(pieces(reader, first, end)));
    *response.status_mut() = status;
    let text = |text: String| HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
    let into = response.headers_mut();
    // A browser guesses nothing and runs nothing of it.
    into.insert(header::CONTENT_DISPOSITION, text(disposition(&media_type)));
    into.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    into.insert(header::CONTENT_TYPE, text(media_type));
    into.insert(header::CONTENT_LENGTH, text((end - first).to_string()));
    into.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    into.insert(header::ETAG, text(tag));
    into.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    if status == StatusCode::PARTIAL_CONTENT {
        into.insert(header::CONTENT_RANGE, text(format!("bytes {first}-{}/{size}", end - 1)));
    }
    let takes = windlass::limits::ARTIFACT_PIECE * 2;
    response.extensions_mut().insert(Takes(usize::try_from(end - first).unwrap_or(takes).min(takes)));
    Ok(response)
}

fn disposition(media_type: &str) -> String {
    if is_shown(media_type) { "inline" } else { "attachment" }.to_owned()
}

/// A piece at a time; an error cuts the answer off, which its reader notices by the length.
fn pieces(
    reader: ArtifactReader,
    first: u64,
    end: u64,
) -> impl futures_util::Stream<Item = Result<Bytes, ArtifactError>> + Send {
    futures_util::stream::unfold((reader, first), move |(reader, at)| async move {
        if at >= end {
            return None;
        }
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(windlass::limits::ARTIFACT_PIECE);
        match reader.read_at(at, length).await {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => {
                let next = at + bytes.len() as u64;
                Some((Ok(Bytes::from(bytes)), (reader, next)))
            }
            Err(error) => Some((Err(error), (reader, end))),
        }
    })
}
