//! The data and secrets of sessions.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::Value;
use windlass::session::DataEntry;

use super::sessions::{existing, refused, session};
use crate::access::{Authorized, Call, Read};
use crate::app::Shared;
use crate::extract::{Json, PathParam};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::wire::{DataName, DataNames, DataRequest, DataView, SecretRequest};

fn names(entries: Vec<DataEntry>) -> DataNames {
    let name = |entry: DataEntry| DataName { name: entry.name.to_string(), updated: entry.at.into() };
    DataNames { names: entries.into_iter().map(name).collect() }
}

fn unset(what: &str, name: &str) -> Refusal {
    Refusal::not_found(format!("the session has no {what} {:?}", crate::extract::shortened(name)))
}

/// List the values of a session
#[utoipa::path(get, path = "/v1/sessions/{session}/data", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, description = "The names of the values", body = DataNames)))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    existing(&session).await?;
    Ok(ok(&names(session.values().await?)))
}

/// Read a value of a session
#[utoipa::path(get, path = "/v1/sessions/{session}/data/{name}", tag = "sessions",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 200, description = "The value", body = DataView)))]
pub(super) async fn get(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam((name, entry)): PathParam<(String, String)>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    existing(&session).await?;
    let value: Option<Value> = session.get(&entry).await?;
    let value = value.ok_or_else(|| unset("value", &entry))?;
    Ok(ok(&DataView { name: entry, value }))
}

/// Set a value of a session
#[utoipa::path(put, path = "/v1/sessions/{session}/data/{name}", tag = "sessions",
    params(("session" = String, Path), ("name" = String, Path)), request_body = DataRequest,
    responses((status = 204, description = "The value is set")))]
pub(super) async fn set(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam((name, entry)): PathParam<(String, String)>,
    Json(request): Json<DataRequest>,
) -> ApiResult {
    session(&app, &authorized.identity, &name).await?.set(&entry, &request.value).await.map_err(refused)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Delete a value of a session
#[utoipa::path(delete, path = "/v1/sessions/{session}/data/{name}", tag = "sessions",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 204, description = "The value is not set any more")))]
pub(super) async fn delete(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam((name, entry)): PathParam<(String, String)>,
) -> ApiResult {
    match session(&app, &authorized.identity, &name).await?.delete(&entry).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(unset("value", &entry)),
    }
}

/// List the secrets of a session
///
/// Only their names: no response contains a secret.
#[utoipa::path(get, path = "/v1/sessions/{session}/secrets", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, description = "The names of the secrets", body = DataNames)))]
pub(super) async fn list_secrets(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam(name): PathParam<String>,
) -> ApiResult {
    let session = session(&app, &authorized.identity, &name).await?;
    existing(&session).await?;
    Ok(ok(&names(session.secrets().await?)))
}

/// Set a secret of a session
///
/// It is sealed at rest. Tools of the session can read it; no record, event, log or response contains it.
#[utoipa::path(put, path = "/v1/sessions/{session}/secrets/{name}", tag = "sessions",
    params(("session" = String, Path), ("name" = String, Path)), request_body = SecretRequest,
    responses((status = 204, description = "The secret is set")))]
pub(super) async fn set_secret(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam((name, entry)): PathParam<(String, String)>,
    Json(request): Json<SecretRequest>,
) -> ApiResult {
    session(&app, &authorized.identity, &name).await?.set_secret(&entry, &request.value).await.map_err(refused)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Delete a secret of a session
#[utoipa::path(delete, path = "/v1/sessions/{session}/secrets/{name}", tag = "sessions",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 204, description = "The secret is not set any more")))]
pub(super) async fn delete_secret(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam((name, entry)): PathParam<(String, String)>,
) -> ApiResult {
    match session(&app, &authorized.identity, &name).await?.delete_secret(&entry).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(unset("secret", &entry)),
    }
}
