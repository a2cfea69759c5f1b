//! Answers by reply key, and connections to providers.

use axum::extract::State;

use super::decisions::{check_resolved, resolution};
use crate::access::{Approve, Authorized};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, Json, MaybeJson, PathParam};
use crate::refusal::ApiResult;
use crate::response::ok;
use crate::wire::{ConnectionRequest, ConnectionResponse, ReplyRequest, ReplyResponse};

/// Answer by reply key
///
/// The reply key authorizes the request, so no token is needed. The first answer counts; a late one gets 409 with the
/// first.
#[utoipa::path(post, path = "/v1/replies/{key}", tag = "inbox", params(("key" = String, Path)),
    request_body = ReplyRequest,
    responses((status = 200, description = "The answer was accepted", body = ReplyResponse)), security(()))]
pub(super) async fn reply(
    State(app): State<Shared>,
    key: IdempotencyKey,
    PathParam(reply): PathParam<String>,
    Json(request): Json<ReplyRequest>,
) -> ApiResult {
    let answer = resolution(request, "the holder of its reply key")?;
    let resolved = app.windlass.inbox().resolve(&reply, answer.clone()).await?;
    check_resolved(resolved, &answer, key.0.is_some())?;
    Ok(ok(&ReplyResponse { resolved: "accepted".to_owned() }))
}

/// Report that a provider is connected, or will not be
///
/// Affects every run that waits for the provider; for a token without the scope `admin`, those of its principal.
#[utoipa::path(post, path = "/v1/connections/{provider}", tag = "inbox", params(("provider" = String, Path)),
    request_body = Option<ConnectionRequest>,
    responses(
        (status = 200, description = "The number of runs that waited for the provider", body = ConnectionResponse),
    ))]
pub(super) async fn connection(
    State(app): State<Shared>,
    authorized: Authorized<Approve>,
    key: IdempotencyKey,
    PathParam(provider): PathParam<String>,
    MaybeJson(request): MaybeJson<ConnectionRequest>,
) -> ApiResult {
    authorized.identity.may_act_on_all()?;
    let (refused, principal) = (request.refused.as_deref(), authorized.identity.restriction());
    let runs = app.windlass.runtime().connect_under(key.as_deref(), &provider, refused, principal).await?;
    Ok(ok(&ConnectionResponse { runs: runs as u64 }))
}
