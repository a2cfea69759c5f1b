//! Answers by reply key.

use axum::extract::State;

use super::decisions::{check_resolved, resolution};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, Json, PathParam};
use crate::refusal::ApiResult;
use crate::response::ok;
use crate::wire::{ReplyRequest, ReplyResponse};

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
