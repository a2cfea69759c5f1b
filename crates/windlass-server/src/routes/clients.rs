//! Client tools.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::sessions::{existing, refused, session};
use crate::access::{Authorized, Call, Identity};
use crate::app::Shared;
use crate::clients::{ClientSession, resume_held};
use crate::extract::{IdempotencyKey, Json, PathParam};
use crate::guard::QuotaClient;
use crate::refusal::{ApiResult, Refusal};
use crate::response::located;
use crate::sse;
use crate::wire::{ClientRequest, ClientResponse};

/// Register client tools
///
/// The tools belong to the `session` that the request names; `everywhere` offers them to all callers. Read their calls at `/v1/clients/{client}/calls`, and answer each at `/v1/replies/{key}`. The same `Idempotency-Key`
/// always gets the same client id: register the tools again with it after a restart of the client or the server.
#[utoipa::path(post, path = "/v1/clients", tag = "clients", request_body = ClientRequest,
    responses((status = 201, description = "The registered client", body = ClientResponse)))]
pub(super) async fn register(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    key: IdempotencyKey,
    Json(request): Json<ClientRequest>,
) -> ApiResult {
    let windlass = authorized.identity.windlass(&app, None)?.into_owned();
    let home = home(&app, &authorized.identity, &request).await?;
    let (shared, owner) = (app.clone(), authorized.identity.name.clone());
    // Compiling large schemas can take a second.
    let register =
        move || shared.clients.register(&windlass, &shared.options.limits, request, (&owner, home), key.as_deref());
    let answer = tokio::task::spawn_blocking(register).await.map_err(|_| Refusal::internal())??;
    resume_held(&app.windlass, &answer.tools, answer.session.as_deref()).await;
    Ok(located(StatusCode::CREATED, &format!("/v1/clients/{}/calls", answer.client), &answer))
}

/// The session that a client's tools belong to, with its owner; `None` if they are offered everywhere. The session is
/// opened for the principal of the client, so that no other principal gets its name and, with it, the tools.
async fn home(app: &Shared, sender: &Identity, request: &ClientRequest) -> ApiResult<Option<ClientSession>> {
    let name = match (&request.session, request.everywhere) {
        (Some(name), false) => name,
        (None, true) => return Ok(None),
        (Some(_), true) => return Err(Refusal::invalid("use either `session` or `everywhere`")),
        (None, false) => {
            return Err(Refusal::invalid(
                "name the `session` that the tools belong to; `\"everywhere\": true` offers them in all sessions",
            ));
        }
    };
    let session = session(app, sender, name).await?;
    session.open(None, sender.principal.as_deref()).await.map_err(refused)?;
    let owner = existing(&session).await?.owner;
    Ok(Some(ClientSession { name: name.as_str().into(), owner }))
}

/// Read the calls of a client's tools
///
/// Each call is a server-sent event `call` with the reply key for its answer. Pending calls come first. A call without
/// an answer is sent again to the next reader, with the same key.
#[utoipa::path(get, path = "/v1/clients/{client}/calls", tag = "clients", params(("client" = String, Path)),
    responses((status = 200, description = "The calls", content_type = "text/event-stream", body = String)))]
pub(super) async fn calls(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    quota_client: QuotaClient,
    PathParam(client): PathParam<String>,
) -> ApiResult {
    let calls = app.clients.calls(&app, &client, &authorized.identity.name)?;
    sse::stream(app, quota_client, calls)
}

/// Remove a client and its tools
#[utoipa::path(delete, path = "/v1/clients/{client}", tag = "clients", params(("client" = String, Path)),
    responses((status = 204, description = "The client was removed")))]
pub(super) async fn remove(
    State(app): State<Shared>,
    authorized: Authorized<Call>,
    PathParam(client): PathParam<String>,
) -> ApiResult {
    app.clients.remove(&client, &authorized.identity.name)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
