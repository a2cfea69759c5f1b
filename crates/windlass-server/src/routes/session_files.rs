//! The files of sessions: list, download, upload, delete and search.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::session::{ArtifactId, FileError, FileExpectation, FileInfo, FileRefusal, Grep, Session, SessionPath};

use super::download::Shown;
use super::paging::page_size;
use super::sessions::{existing, refused, session};
use crate::access::{Authorized, Call, Identity, Read};
use crate::app::Shared;
use crate::extract::{PathParam, Query, content_length, drain_body, incomplete_body, shortened};
use crate::guard::{QuotaClient, too_many_bytes};
use crate::refusal::{ApiResult, Refusal};
use crate::response::{json, ok};
use crate::wire::{FileEntry, FileKind, FileLine, FilePage, FileSearch};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Directory; the root `/` by default.
    directory: Option<String>,
    /// Everything below the directory, instead of what is directly in it.
    recursive: Option<bool>,
    /// `next` of the previous page.
    after: Option<String>,
    /// Most files and directories in the page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteQuery {
    /// Create a directory instead of a file. The request has no body then.
    directory: Option<bool>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// Delete a directory with everything in it.
    recursive: Option<bool>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SearchQuery {
    /// Regular expression for lines.
    pattern: String,
    /// Only files whose name, or path if it has a `/`, matches: `*.md`, `src/**`, `{a,b}.txt`.
    paths: Option<String>,
    /// Only files below this directory.
    directory: Option<String>,
    /// Without regard to upper and lower case.
    ignore_case: Option<bool>,
    /// Most matches.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

fn entry(file: FileInfo) -> FileEntry {
    let kind = if file.is_directory() { FileKind::Directory } else { FileKind::File };
    FileEntry {
        kind,
        hash: file.content.map(|content| content.to_string()),
        size: file.size,
        encoding: file.content.map(|_| file.encoding.as_str().to_owned()),
        readonly: file.is_readonly,
        created: file.created.into(),
        updated: file.updated.into(),
        path: file.path.as_str().to_owned(),
    }
}

/// The refusal for a file that was not read or written.
fn file_refused(error: FileError) -> Refusal {
    let text = error.to_string();
    let Some(refusal) = error.refusal() else {
        return match error {
            FileError::Path(_) => Refusal::bad_request("bad_path", text),
            FileError::Pattern(_) => Refusal::bad_request("bad_query", text),
            error => refused(error.into()),
        };
    };
    let code = refusal.code();
    match refusal {
        FileRefusal::Missing { .. } | FileRefusal::NoContent { .. } => Refusal::not_found(text),
        FileRefusal::FileBytes { limit, .. } => {
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, code, "File too large", text).with("limit", *limit)
        }
        FileRefusal::SessionBytes { limit, used } => {
            Refusal::session_conflict(code, text).with("limit", *limit).with("used", *used)
        }
        FileRefusal::Count { limit } => Refusal::session_conflict(code, text).with("limit", *limit),
        FileRefusal::Stale { current, .. } => {
            let refusal = Refusal::new(StatusCode::PRECONDITION_FAILED, code, "The file is not as required", text);
            match current {
                Some(hash) => refusal.with("hash", hash.to_string()).header(header::ETAG, &tag(hash)),
                None => refusal.with("hash", serde_json::Value::Null),
            }
        }
        _ => Refusal::session_conflict(code, text),
    }
}

fn no_file(path: &str, session: &Session) -> Refusal {
    let session = session.name();
    Refusal::not_found(format!("there is no file {:?} in session {session:?}", shortened(path)))
}

/// The `ETag` of a content.
fn tag(hash: &ArtifactId) -> String {
    format!("\"{hash}\"")
}

/// The session of a request that reads, which must exist.
async fn to_read(app: &Shared, sender: &Identity, name: &str) -> ApiResult<Session> {
    let session = session(app, sender, name).await?;
    existing(&session).await?;
    Ok(session)
}

/// List the files of a session
///
/// What is in a directory, in the order of the paths.
#[utoipa::path(get, path = "/v1/sessions/{session}/files", tag = "sessions",
    params(ListQuery, ("session" = String, Path)),
    responses((status = 200, description = "A page of files and directories", body = FilePage)))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
    Query(query): Query<ListQuery>,
) -> ApiResult {
    let limit = page_size(query.limit, windlass::limits::FILE_PAGE as u64)?;
    let files = to_read(&app, &authorized.identity, &name).await?.files();
    let (directory, after) = (query.directory.as_deref().unwrap_or("/"), query.after.as_deref());
    let found = match query.recursive {
        Some(true) => files.tree(directory, after, limit).await,
        _ => files.list(directory, after, limit).await,
    };
    let found = found.map_err(file_refused)?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.path.as_str().to_owned());
    Ok(ok(&FilePage { files: found.into_iter().map(entry).collect(), next }))
}

/// Search the text files of a session
///
/// For lines that match a regular expression.
#[utoipa::path(get, path = "/v1/sessions/{session}/files-search", tag = "sessions",
    params(SearchQuery, ("session" = String, Path)),
    responses((status = 200, description = "The lines that match", body = FileSearch)))]
pub(super) async fn search(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
    Query(query): Query<SearchQuery>,
) -> ApiResult {
    let limit = page_size(query.limit, windlass::limits::GREP_MATCHES_MAX as u64)?;
    let files = to_read(&app, &authorized.identity, &name).await?.files();
    let mut search = Grep::new(query.pattern).limit(limit);
    if let Some(paths) = query.paths {
        search = search.paths(paths);
    }
    if let Some(directory) = query.directory {
        search = search.directory(directory);
    }
    if query.ignore_case == Some(true) {
        search = search.ignore_case();
    }
    let found = files.grep(&search).await.map_err(file_refused)?;
    let line = |found: windlass::session::GrepMatch| FileLine {
        path: found.path.as_str().to_owned(),
        line: found.line,
        text: found.text,
    };
    let matches = found.matches.into_iter().map(line).collect();
    Ok(ok(&FileSearch { matches, complete: found.is_complete, files: found.files, binary: found.binary }))
}

/// Read a file of a session
///
/// The whole content or a range of it. The `ETag` is the hash of the content. A directory is listed by
/// `/v1/sessions/{session}/files`.
#[utoipa::path(get, path = "/v1/sessions/{session}/files/{*path}", tag = "sessions",
    params(("session" = String, Path), ("path" = String, Path, description = "Path of the file; it may contain `/`"),
        ("range" = Option<String>, Header), ("if-none-match" = Option<String>, Header),
        ("if-range" = Option<String>, Header)),
    responses(
        (status = 200, description = "The whole content", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "The requested range", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "The content has not changed"),
    ))]
pub(super) async fn read(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam((name, path)): PathParam<(String, String)>,
    headers: HeaderMap,
) -> ApiResult {
    let session = to_read(&app, &authorized.identity, &name).await?;
    let reader = session.files().open(&path).await.map_err(file_refused)?.ok_or_else(|| no_file(&path, &session))?;
    let tag = reader.file().content.as_ref().map(tag).unwrap_or_default();
    let shown = Shown {
        what: "file",
        tag,
        size: reader.size(),
        disposition: "attachment",
        media_type: "application/octet-stream".to_owned(),
        cache: "private, no-cache",
    };
    let reader = Arc::new(reader);
    shown.respond(&headers, move |at, length| {
        let reader = reader.clone();
        async move { reader.read_at(at, length).await }
    })
}

/// What `If-Match` and `If-None-Match` of a write require of the current file.
fn expectation(headers: &HeaderMap) -> ApiResult<FileExpectation> {
    let bad = |detail: &str| Err(Refusal::bad_request("bad_precondition", detail));
    let one = |name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        let first = values.next();
        (first.map(|value| value.to_str().unwrap_or_default().trim()), values.next().is_some())
    };
    match (one(header::IF_MATCH), one(header::IF_NONE_MATCH)) {
        ((None, _), (None, _)) => Ok(FileExpectation::Any),
        ((None, _), (Some("*"), false)) => Ok(FileExpectation::Missing),
        ((None, _), _) => bad("`If-None-Match` of a write must be `*`: the file is written if there is none"),
        ((Some(tag), false), (None, _)) => {
            let hash = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            match hash.and_then(|hash| hash.parse().ok()) {
                Some(hash) => Ok(FileExpectation::Content(hash)),
                None => bad("`If-Match` must be one `ETag` in quotes, such as \"b3:…\" with 64 hexadecimal digits"),
            }
        }
        ((Some(_), true), (None, _)) => bad("`If-Match` may occur once"),
        ((Some(_), _), (Some(_), _)) => bad("use either `If-Match` or `If-None-Match`"),
    }
}

/// Write a file of a session
///
/// The body is the content. The directories above it are created. With `If-Match` it is written only if the current
/// content has this hash, and with `If-None-Match: *` only if there is no file; otherwise the response is 412 with the
/// current `hash`.
#[utoipa::path(put, path = "/v1/sessions/{session}/files/{*path}", tag = "sessions",
    params(WriteQuery, ("session" = String, Path),
        ("path" = String, Path, description = "Path of the file; it may contain `/`"),
        ("if-match" = Option<String>, Header), ("if-none-match" = Option<String>, Header)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, description = "The file was replaced, or the directory existed", body = FileEntry),
              (status = 201, description = "The file or directory is new", body = FileEntry),
              (status = 412, description = "The current file is not as required",
               content_type = "application/problem+json", body = crate::wire::Problem)))]
pub(super) async fn write(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam((name, path)): PathParam<(String, String)>,
    QuotaClient(client): QuotaClient,
    Query(query): Query<WriteQuery>,
    request: Request,
) -> ApiResult {
    let (parts, body) = request.into_parts();
    let prepared = async {
        // The store checks the session again with the write; here, a body that would be refused is not stored.
        let session = to_read(&app, &authorized.identity, &name).await?;
        SessionPath::parse(&path).map_err(|error| file_refused(error.into()))?;
        Ok((session.files(), expectation(&parts.headers)?))
    };
    let (files, expect) = match prepared.await {
        Ok(prepared) => prepared,
        Err(refusal) => {
            drain_body(&parts.headers, body).await;
            return Err(refusal);
        }
    };
    if query.directory == Some(true) {
        if expect != FileExpectation::Any || content_length(&parts.headers).is_some_and(|length| length > 0) {
            drain_body(&parts.headers, body).await;
            return Err(Refusal::bad_request("bad_query", "a directory has no body and no `If-Match`"));
        }
        let created = files.create_directory(&path).await.map_err(file_refused)?;
        let Some(made) = files.stat(&path).await.map_err(file_refused)? else {
            return Err(Refusal::session_conflict("conflict", "the directory was deleted at the same time"));
        };
        return Ok(json(if created { StatusCode::CREATED } else { StatusCode::OK }, &entry(made)));
    }
    let mut writer = files.writer(&path, expect).map_err(file_refused)?;
    let limit = writer.limit();
    if content_length(&parts.headers).is_some_and(|length| length > limit) {
        drain_body(&parts.headers, body).await;
        return Err(too_large(&path, limit));
    }
    // For the part that has arrived and is not stored yet.
    let _permit = match &client {
        Some(client) => {
            let permit = app.bytes.take(client, windlass::limits::ARTIFACT_PIECE);
            Some(permit.ok_or_else(|| too_many_bytes(&app).header(header::CONNECTION, "close"))?)
        }
        None => None,
    };
    let mut stream = body.into_data_stream();
    loop {
        let chunk = tokio::time::timeout(app.options.limits.body_timeout, stream.next()).await.map_err(|_| {
            let detail = "the next part of the body did not arrive in time; send the file again from the beginning";
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "Request body timed out", detail)
                .header(header::CONNECTION, "close")
        })?;
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|error| incomplete_body(&error))?;
        writer.write(&chunk).await.map_err(|error| file_refused(error).header(header::CONNECTION, "close"))?;
    }
    let (written, created) = writer.finish_created().await.map_err(file_refused)?;
    let tag = written.content.as_ref().map(tag).unwrap_or_default();
    let mut response = json(if created { StatusCode::CREATED } else { StatusCode::OK }, &entry(written));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}

fn too_large(path: &str, limit: u64) -> Refusal {
    let path = shortened(path);
    let detail = format!("the file {path:?} has more than {limit} bytes, which is the limit; split it");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "file_too_large", "File too large", detail)
        .with("limit", limit)
        .header(header::CONNECTION, "close")
}

/// Delete a file or directory of a session
///
/// A directory must be empty, or be deleted with `recursive`.
#[utoipa::path(delete, path = "/v1/sessions/{session}/files/{*path}", tag = "sessions",
    params(DeleteQuery, ("session" = String, Path), ("path" = String, Path), ("if-match" = Option<String>, Header)),
    responses((status = 204, description = "It does not exist any more"),
              (status = 412, description = "The current file is not as required",
               content_type = "application/problem+json", body = crate::wire::Problem)))]
pub(super) async fn delete(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam((name, path)): PathParam<(String, String)>,
    Query(query): Query<DeleteQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let session = to_read(&app, &authorized.identity, &name).await?;
    let files = session.files();
    let deleted = match (query.recursive, expectation(&headers)?) {
        (_, FileExpectation::Missing) => {
            return Err(Refusal::bad_request("bad_precondition", "`If-None-Match` cannot be used to delete a file"));
        }
        (Some(true), FileExpectation::Any) => files.delete_recursive(&path).await,
        (Some(true), _) => {
            return Err(Refusal::bad_request("bad_precondition", "use either `If-Match` or `recursive`"));
        }
        (_, expect) => files.delete_if(&path, expect).await,
    };
    match deleted.map_err(file_refused)? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(no_file(&path, &session)),
    }
}
