//! Connections to providers: made, refused, listed and removed.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::connections::{ConnectionInfo, ConnectionKey};

use crate::access::{Approve, Authorized, Identity, Read};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, MaybeJson, PathParam, Query};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::wire::{ConnectionList, ConnectionRequest, ConnectionResponse, ConnectionView};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ConnectionsQuery {
    /// Only connections of this principal.
    principal: Option<String>,
}

/// The connection of the named principal, or else of the sender. A sender that sees only one principal names no other.
fn connection(identity: &Identity, provider: &str, named: Option<&str>) -> ApiResult<ConnectionKey> {
    let named: Option<Arc<str>> = named.map(Into::into);
    let principal = match (identity.restriction(), named) {
        (Some(own), Some(named)) if *own != named => {
            let detail = format!(
                "the token `{}` acts for `{own}`; to act for another principal, use a token with the scope \
                 `impersonate` and name the principal in the header `Windlass-Principal`",
                identity.name
            );
            return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", "Access denied", detail));
        }
        (Some(own), _) => Some(own.clone()),
        (None, named) => named.or_else(|| identity.principal.clone()),
    };
    Ok(ConnectionKey::new(provider, principal))
}

/// Makes a connection, or refuses it. Returns the number of runs that waited for it.
pub(super) async fn connect(
    app: &Shared,
    key: Option<&str>,
    connection: &ConnectionKey,
    request: ConnectionRequest,
) -> ApiResult<usize> {
    let ConnectionRequest { credential, expires_in, refused, .. } = request;
    let ConnectionKey { provider, principal } = connection;
    let inbox = app.windlass.inbox();
    let acting = match (refused, &credential, expires_in) {
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
            let detail = "`refused` cannot be combined with `credential` or `expires_in`; leave out one of them";
            return Err(Refusal::invalid(detail));
        }
        (Some(reason), None, None) => inbox.refuse_connection(provider, &reason),
        (None, _, _) => inbox.connect(provider),
    };
    let acting = credential.into_iter().fold(acting, |acting, text| acting.credential(text));
    let acting = expires_in.into_iter().fold(acting, |acting, time| acting.expires_in(Duration::from_secs(time)));
    let acting = principal.iter().fold(acting, |acting, principal| acting.principal(principal.clone()));
    Ok(key.into_iter().fold(acting, |acting, key| acting.key(key)).await?)
}

/// Connect a provider, or refuse that
///
/// Keeps the credential and lets the runs of the principal continue that wait for the provider. A refusal fails their
/// calls and keeps nothing.
#[utoipa::path(post, path = "/v1/connections/{provider}", tag = "inbox", params(("provider" = String, Path)),
    request_body = Option<ConnectionRequest>,
    responses(
        (status = 200, description = "The number of runs that waited for the provider", body = ConnectionResponse),
    ))]
pub(super) async fn make(
    State(app): State<Shared>,
    authorized: Authorized<Approve>,
    key: IdempotencyKey,
    PathParam(provider): PathParam<String>,
    MaybeJson(request): MaybeJson<ConnectionRequest>,
) -> ApiResult {
    authorized.identity.may_act_on_all()?;
    let connection = connection(&authorized.identity, &provider, request.principal.as_deref())?;
    let runs = connect(&app, key.as_deref(), &connection, request).await?;
    Ok(ok(&ConnectionResponse { runs: runs as u64 }))
}

/// List connections
///
/// Those of the token's principal; with the scope `admin`, all of them. Credentials are not part of it.
#[utoipa::path(get, path = "/v1/connections", tag = "inbox", params(ConnectionsQuery),
    responses((status = 200, description = "The connections", body = ConnectionList)))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    Query(query): Query<ConnectionsQuery>,
) -> ApiResult {
    let only = match (authorized.identity.restriction(), query.principal) {
        // Those of another principal look missing.
        (Some(own), Some(named)) if **own != *named => return Ok(ok(&ConnectionList { connections: Vec::new() })),
        (Some(own), _) => Some(own.to_string()),
        (None, named) => named,
    };
    let kept = match &only {
        Some(principal) => app.windlass.connections().list_of(Some(principal)).await?,
        None => app.windlass.connections().list().await?,
    };
    Ok(ok(&ConnectionList { connections: kept.into_iter().map(|info| view(&app, info)).collect() }))
}

fn view(app: &Shared, info: ConnectionInfo) -> ConnectionView {
    ConnectionView {
        expired: !app.windlass.runtime().is_connected(&info),
        provider: info.key.provider.to_string(),
        principal: info.key.principal.as_deref().map(str::to_owned),
        created: info.created.into(),
        updated: info.updated.into(),
        expires: info.expires.map(Into::into),
        problem: info.problem.as_deref().map(str::to_owned),
    }
}

/// Remove a connection
///
/// Deletes its credential. The next call that needs it asks for it.
#[utoipa::path(delete, path = "/v1/connections/{provider}", tag = "inbox",
    params(("provider" = String, Path), ConnectionsQuery),
    responses((status = 204, description = "The connection is removed")))]
pub(super) async fn remove(
    State(app): State<Shared>,
    authorized: Authorized<Approve>,
    PathParam(provider): PathParam<String>,
    Query(query): Query<ConnectionsQuery>,
) -> ApiResult {
    authorized.identity.may_act_on_all()?;
    let key = connection(&authorized.identity, &provider, query.principal.as_deref())?;
    if !app.windlass.connections().remove(&key.provider, key.principal.as_deref()).await? {
        return Err(Refusal::not_found(format!("{key} does not exist")));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
