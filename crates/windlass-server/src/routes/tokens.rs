//! Tokens.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use crate::access::{Admin, Authorized, CreateOutcome};
use crate::app::Shared;
use crate::extract::{IdempotencyKey, Json, PathParam};
use crate::refusal::{ApiResult, Refusal};
use crate::response::{json, ok};
use crate::wire::{TokenCreated, TokenList, TokenRequest};

/// List tokens
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens",
    responses((status = 200, description = "The tokens, without their secrets", body = TokenList)))]
pub(super) async fn list(State(app): State<Shared>, _authorized: Authorized<Admin>) -> ApiResult {
    Ok(ok(&TokenList { tokens: app.tokens.list() }))
}

/// Create a token
///
/// Only this response contains its secret. As soon as there is a token, every request needs one.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = TokenRequest,
    responses((status = 201, description = "The token with its secret", body = TokenCreated)))]
pub(super) async fn create(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    key: IdempotencyKey,
    Json(request): Json<TokenRequest>,
) -> ApiResult {
    let mut response = match app.tokens.create(request, key.as_deref())? {
        CreateOutcome::New(created) => json(StatusCode::CREATED, &created),
        CreateOutcome::Existing(token) => {
            let detail = format!(
                "the token `{}` was created by an earlier request with this Idempotency-Key, whose response had the \
                 secret; if the secret is lost, revoke the token and create another with a new key",
                token.name
            );
            return Err(Refusal::conflict("already_created", detail).with("id", token.id));
        }
    };
    response.headers_mut().insert(axum::http::header::CACHE_CONTROL, axum::http::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Revoke a token
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", params(("id" = String, Path)),
    responses((status = 204, description = "The token is no longer valid")))]
pub(super) async fn revoke(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    PathParam(id): PathParam<String>,
) -> ApiResult {
    app.tokens.revoke(&id)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
