//! Artifacts: upload, and download of a whole artifact or a range of it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::Artifact;
use windlass::store::{Access, ArtifactError, ArtifactId, Stored};

use super::calls::check_session;
use super::download::Shown;
use super::sessions::session;
use crate::access::{Authorized, Call, Identity, Read};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, PathParam, Query, content_length, drain_body, incomplete_body, shortened};
use crate::guard::{QuotaClient, too_many_bytes};
use crate::refusal::{ApiResult, Refusal};
use crate::response::located;
use crate::wire::ArtifactResponse;

/// Media type of content of unknown type.
const UNKNOWN_TYPE: &str = "application/octet-stream";

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StoreQuery {
    /// Session whose runs may refer to the artifact.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    session: String,
    /// Media type; by default the `Content-Type` of the request.
    #[param(min_length = 1, max_length = 255, pattern = "^[0-9A-Za-z!#$&^_.+-]+/[0-9A-Za-z!#$&^_.+-]+( *;[ -~]*)?$")]
    media_type: Option<String>,
    /// File name.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    name: Option<String>,
}

/// Store an artifact
///
/// It is kept for an hour, and longer if a run of the session refers to it. Its id is the digest of the content, so it
/// can be stored repeatedly.
#[utoipa::path(post, path = "/v1/artifacts", tag = "artifacts", params(StoreQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "The stored artifact", body = ArtifactResponse)))]
pub(super) async fn store(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    _key: IdempotencyKey,
    QuotaClient(client): QuotaClient,
    Query(query): Query<StoreQuery>,
    request: Request,
) -> ApiResult {
    session(&app, &authorized.identity, &query.session).await?;
    let content_type =
        request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let media_type = query.media_type.or(content_type).unwrap_or_else(|| UNKNOWN_TYPE.to_owned());
    check_media_type(&media_type)?;
    let access = access(&authorized.identity, Some(query.session.as_str().into()));
    let mut writer = app.windlass.new_artifact_by(access, media_type.as_str());
    let limit = writer.limit();
    if content_length(request.headers()).is_some_and(|length| length > limit) {
        let (parts, body) = request.into_parts();
        drain_body(&parts.headers, body).await;
        return Err(artifact_refusal(ArtifactError::TooLarge { limit }));
    }
    // For the part that has arrived and is not stored yet.
    let _permit = match &client {
        Some(client) => {
            let permit = app.bytes.take(client, windlass::limits::ARTIFACT_PIECE);
            Some(permit.ok_or_else(|| too_many_bytes(&app).header(header::CONNECTION, "close"))?)
        }
        None => None,
    };
    if let Some(name) = &query.name {
        if name.is_empty() || name.chars().count() > 255 || name.chars().any(char::is_control) {
            return Err(Refusal::invalid("`name` must have 1 to 255 visible characters"));
        }
        writer = writer.named(name.as_str());
    }
    let mut stream = request.into_body().into_data_stream();
    loop {
        let chunk = tokio::time::timeout(app.options.limits.body_timeout, stream.next()).await.map_err(|_| {
            let detail = "the next part of the body did not arrive in time; send the artifact again from the beginning";
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "Request body timed out", detail)
                .header(header::CONNECTION, "close")
        })?;
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|error| incomplete_body(&error))?;
        writer.write(&chunk).await.map_err(artifact_refusal)?;
    }
    let artifact = writer.finish().await.map_err(artifact_refusal)?;
    let (Some(id), size) = (artifact.id(), artifact.size()) else { return Err(Refusal::internal()) };
    // The same content may be stored under several media types, so the location names the one of this request.
    let location =
        format!("/v1/artifacts/{id}?session={}&media_type={}", escaped(&query.session), escaped(&media_type));
    let answer = ArtifactResponse { artifact: id.to_string(), size, media_type, name: query.name };
    Ok(located(StatusCode::CREATED, &location, &answer))
}

/// On whose behalf a request stores or reads an artifact.
fn access(sender: &Identity, session: Option<Arc<str>>) -> Access {
    match (sender.restriction(), session) {
        (Some(principal), session) => Access::Principal { name: principal.clone(), session },
        (None, Some(session)) => Access::Session(session),
        (None, None) => Access::Owner,
    }
}

fn check_media_type(text: &str) -> ApiResult<()> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let kind = text.split(';').next().unwrap_or_default().trim_end_matches(' ');
    let is_kind = kind.split_once('/').is_some_and(|(kind, sort)| is_name(kind) && is_name(sort));
    if !is_kind || text.len() > 255 || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let detail = "the media type is not valid; use a type and a subtype, such as text/csv or text/plain; \
                      charset=utf-8, of at most 255 characters";
        return Err(Refusal::invalid(detail));
    }
    Ok(())
}

/// Percent-encodes a value of a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Whether a browser displays the type without executing scripts. Everything else is sent as a download.
fn is_inline(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(
        kind.as_str(),
        "text/plain" | "text/csv" | "application/json" | "image/png" | "image/jpeg" | "image/gif" | "image/webp"
    )
}

fn artifact_refusal(error: ArtifactError) -> Refusal {
    match error {
        ArtifactError::TooLarge { limit } => {
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Artifact too large", error.to_string())
                .with("limit", limit)
                .header(header::CONNECTION, "close")
        }
        ArtifactError::Store(error) => error.into(),
        ArtifactError::Missing(_) => Refusal::not_found(error.to_string()),
        other => Refusal::run_conflict("conflict", other.to_string()),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadQuery {
    /// Session that reads the artifact: it must have been stored for this session, or a run of the session must refer
    /// to it. Without a session every artifact can be read. A token without the scope `admin` reads only what was stored
    /// for its principal, or what a run of its principal refers to.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    session: Option<String>,
    /// Media type of the response; by default the type under which the artifact was first stored.
    #[param(min_length = 1, max_length = 255, pattern = "^[0-9A-Za-z!#$&^_.+-]+/[0-9A-Za-z!#$&^_.+-]+( *;[ -~]*)?$")]
    media_type: Option<String>,
}

/// Read an artifact
///
/// The whole content or a range of it. Types that a browser might execute are sent as a download.
#[utoipa::path(get, path = "/v1/artifacts/{id}", tag = "artifacts",
    params(ReadQuery, ("id" = String, Path, pattern = "^b3:[0-9a-f]{64}$"), ("range" = Option<String>, Header),
        ("if-none-match" = Option<String>, Header), ("if-range" = Option<String>, Header)),
    responses(
        (status = 200, description = "The whole content", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "The requested range", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "The content has not changed"),
    ))]
pub(super) async fn read(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(id): PathParam<String>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let id: ArtifactId = id.parse().map_err(|_| {
        let detail = format!("`{}` is not an artifact id; use `b3:` and 64 hexadecimal digits", shortened(&id));
        Refusal::bad_request("bad_artifact_id", detail)
    })?;
    let tag = format!("\"{id}\"");
    query.session.as_deref().map_or(Ok(()), check_session)?;
    let access = access(&authorized.identity, query.session.map(Into::into));
    query.media_type.as_deref().map_or(Ok(()), check_media_type)?;
    let artifact = Artifact::stored(UNKNOWN_TYPE, Stored { id, size: 0 });
    let reader = app.windlass.open_artifact(&artifact, access).await?;
    let media_type = match query.media_type {
        Some(media_type) => media_type,
        // The library does not check media types, so the stored one may not be valid.
        None => match reader.media_type().await.map_err(artifact_refusal)? {
            Some(stored) if check_media_type(&stored).is_ok() => stored.to_string(),
            _ => UNKNOWN_TYPE.to_owned(),
        },
    };
    let shown = Shown {
        what: "artifact",
        tag,
        size: reader.size(),
        disposition: if is_inline(&media_type) { "inline" } else { "attachment" },
        media_type,
        cache: "private, max-age=31536000, immutable",
    };
    let reader = Arc::new(reader);
    shown.respond(&headers, move |at, length| {
        let reader = reader.clone();
        async move { reader.read_at(at, length).await }
    })
}
