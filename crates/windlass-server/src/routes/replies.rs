//! Answers by reply key, and connections.

use axum::extract::State;

use super::people::{resolution, told};
use crate::access::{Approve, May};
use crate::answer::ok;
use crate::app::Shared;
use crate::extract::{Json, Key, MaybeJson, Place};
use crate::refusal::Answer;
use crate::wire::{ConnectionAnswer, ConnectionRequest, ReplyAnswer, ReplyRequest};

/// Answer by reply key
///
/// The key is the capability: no token is asked for. The first answer counts; a late one is 409 and says what counted.
#[utoipa::path(post, path = "/v1/replies/{key}", tag = "inbox", params(("key" = String, Path)), request_body = ReplyRequest,
    responses((status = 200, description = "It is the answer", body = ReplyAnswer)), security(()))]
pub(super) async fn reply(
    State(app): State<Shared>,
    key: Key,
    Place(reply): Place<String>,
    Json(request): Json<ReplyRequest>,
) -> Answer {
    let said = resolution(request, "whoever had its reply key")?;
    let resolved = app.windlass.resolve(&reply, said.clone()).await?;
    told(resolved, &said, key.0.is_some())?;
    Ok(ok(&ReplyAnswer { resolved: "accepted".to_owned() }))
}

/// Say that a provider is connected
///
/// To every run that waits for it; or why it will not be.
#[utoipa::path(post, path = "/v1/connections/{provider}", tag = "inbox", params(("provider" = String, Path)),
    request_body = Option<ConnectionRequest>,
    responses((status = 200, description = "They are told", body = ConnectionAnswer)))]
pub(super) async fn connection(
    State(app): State<Shared>,
    may: May<Approve>,
    key: Key,
    Place(provider): Place<String>,
    MaybeJson(request): MaybeJson<ConnectionRequest>,
) -> Answer {
    may.who.may_act_on_all()?;
    let runs = app.windlass.connect_under(key.as_deref(), &provider, request.refused.as_deref()).await?;
    Ok(ok(&ConnectionAnswer { runs: runs as u64 }))
}
