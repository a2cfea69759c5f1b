//! Tools that connected clients have.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use crate::access::{Call, May};
use crate::answer::located;
use crate::app::Shared;
use crate::clients::take_up_held;
use crate::extract::{Json, Key, Place};
use crate::guard::Asker;
use crate::refusal::{Answer, Refusal};
use crate::sse;
use crate::wire::{ClientAnswer, ClientRequest};

/// Bring tools
///
/// Calls of them are handed to whoever reads `/v1/clients/{client}/calls`, and answered at `/v1/replies/{key}`. With an
/// `Idempotency-Key` it is always the same client: bring its tools again under it after a restart of either side.
#[utoipa::path(post, path = "/v1/clients", tag = "clients", request_body = ClientRequest,
    responses((status = 201, description = "They can be called", body = ClientAnswer)))]
pub(super) async fn register(
    State(app): State<Shared>,
    may: May<Call>,
    key: Key,
    Json(request): Json<ClientRequest>,
) -> Answer {
    let windlass = may.who.windlass(&app, None)?.into_owned();
    let (shared, owner) = (app.clone(), may.who.name.clone());
    // Schemas take a second to compile where they are large.
    let register = move || shared.clients.register(&windlass, &shared.options.limits, request, &owner, key.as_deref());
    let answer = tokio::task::spawn_blocking(register).await.map_err(|_| Refusal::internal())??;
    // Runs that came to a halt for want of these tools go on.
    take_up_held(&app.windlass, &answer.tools).await;
    Ok(located(StatusCode::CREATED, &format!("/v1/clients/{}/calls", answer.client), &answer))
}

/// Read the calls of a client's tools
///
/// As server-sent events `call`, each with the key that answers it; those that wait already come first. A call that was not
/// answered is handed out again to whoever connects next, under the same key.
#[utoipa::path(get, path = "/v1/clients/{client}/calls", tag = "clients", params(("client" = String, Path)),
    responses((status = 200, description = "The calls", content_type = "text/event-stream", body = String)))]
pub(super) async fn calls(
    State(app): State<Shared>,
    may: May<Call>,
    asker: Asker,
    Place(client): Place<String>,
) -> Answer {
    let calls = app.clients.calls(&app, &client, &may.who.name)?;
    sse::stream(app, asker, calls)
}

/// Take a client's tools away
#[utoipa::path(delete, path = "/v1/clients/{client}", tag = "clients", params(("client" = String, Path)),
    responses((status = 204, description = "They are gone")))]
pub(super) async fn remove(State(app): State<Shared>, may: May<Call>, Place(client): Place<String>) -> Answer {
    app.clients.remove(&client, &may.who.name)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
