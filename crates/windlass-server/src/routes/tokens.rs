//! Tokens.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use crate::access::{Admin, Made, May};
use crate::answer::{json, ok};
use crate::app::Shared;
use crate::extract::{Json, Key, Place};
use crate::refusal::{Answer, Refusal};
use crate::wire::{TokenCreated, TokenList, TokenRequest};

/// List tokens
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens",
    responses((status = 200, description = "The tokens, without their secrets", body = TokenList)))]
pub(super) async fn list(State(app): State<Shared>, _may: May<Admin>) -> Answer {
    Ok(ok(&TokenList { tokens: app.tokens.list() }))
}

/// Make a token
///
/// Its secret is shown this once. From the first token on every request needs one.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = TokenRequest,
    responses((status = 201, description = "The token", body = TokenCreated)))]
pub(super) async fn create(
    State(app): State<Shared>,
    _may: May<Admin>,
    key: Key,
    Json(request): Json<TokenRequest>,
) -> Answer {
    let mut response = match app.tokens.create(request, key.as_deref())? {
        Made::New(created) => json(StatusCode::CREATED, &created),
        Made::Before(token) => {
            let why = format!(
                "the token `{}` was made under this key already, and its secret was shown then; if nobody has it, revoke \
                 the token and make another under a new key",
                token.name
            );
            return Err(Refusal::conflict("made_before", why).with("id", token.id));
        }
    };
    response.headers_mut().insert(axum::http::header::CACHE_CONTROL, axum::http::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Revoke a token
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", params(("id" = String, Path)),
    responses((status = 204, description = "It is void")))]
pub(super) async fn revoke(State(app): State<Shared>, _may: May<Admin>, Place(id): Place<String>) -> Answer {
    app.tokens.revoke(&id)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
