//! What the API can be asked, one file a resource.

mod admin;
mod artifacts;
mod calls;
mod clients;
mod events;
mod inbox;
mod meta;
mod paging;
mod people;
mod prefix;
mod range;
mod replies;
mod run_acts;
mod runs;
mod tokens;
mod tools;

use axum::http::Method;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::extract::shortened;
use crate::refusal::Refusal;

/// Every route with its description.
pub(crate) fn all() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(crate::openapi::base())
        .routes(routes!(calls::call))
        .routes(routes!(calls::batch))
        .routes(routes!(runs::list))
        .routes(routes!(runs::get, run_acts::purge))
        .routes(routes!(runs::outcome))
        .routes(routes!(events::of_run))
        .routes(routes!(events::of_session))
        .routes(routes!(runs::journal))
        .routes(routes!(runs::trace))
        .routes(routes!(runs::explain))
        .routes(routes!(runs::export))
        .routes(routes!(runs::compare))
        .routes(routes!(run_acts::cancel))
        .routes(routes!(run_acts::resume))
        .routes(routes!(run_acts::finish))
        .routes(routes!(run_acts::fork))
        .routes(routes!(run_acts::signal))
        .routes(routes!(run_acts::replay_check))
        .routes(routes!(run_acts::import))
        .routes(routes!(inbox::list, inbox::many))
        .routes(routes!(inbox::approve))
        .routes(routes!(inbox::deny))
        .routes(routes!(inbox::settle))
        .routes(routes!(inbox::answer))
        .routes(routes!(inbox::connect))
        .routes(routes!(replies::reply))
        .routes(routes!(replies::connection))
        .routes(routes!(tools::list))
        .routes(routes!(tools::get))
        .routes(routes!(tools::check))
        .routes(routes!(clients::register))
        .routes(routes!(clients::calls))
        .routes(routes!(clients::remove))
        .routes(routes!(artifacts::store))
        .routes(routes!(artifacts::read))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(admin::tidy))
        .routes(routes!(admin::backup))
        .routes(routes!(admin::check))
        .routes(routes!(admin::reload))
        .routes(routes!(meta::health))
        .routes(routes!(meta::ready))
        .routes(routes!(meta::metrics))
        .routes(routes!(meta::openapi))
        .routes(routes!(meta::index))
}

pub(crate) async fn not_found(request: axum::extract::Request) -> Response {
    let path = shortened(request.uri().path());
    Refusal::not_found(format!("there is nothing at {path}; /openapi.json says what there is")).into_response()
}

pub(crate) async fn wrong_method(method: Method, request: axum::extract::Request) -> Response {
    let path = shortened(request.uri().path());
    let detail = format!("{path} does not take {}; /openapi.json says what it takes", shortened(method.as_str()));
    Refusal::new(axum::http::StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Not this way", detail)
        .into_response()
}
