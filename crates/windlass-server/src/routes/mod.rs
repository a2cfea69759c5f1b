//! The handlers, one file for each resource.

mod admin;
mod artifacts;
mod calls;
mod clients;
mod connections;
mod decisions;
mod download;
mod events;
mod inbox;
mod meta;
mod paging;
mod prefix;
mod range;
mod replies;
mod run_commands;
mod runs;
mod session_data;
mod session_events;
mod session_files;
mod session_tools;
mod session_turns;
mod sessions;
mod tokens;
mod tools;

use axum::http::Method;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::extract::shortened;
use crate::refusal::Refusal;

/// All routes with their OpenAPI descriptions.
pub(crate) fn all() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(crate::openapi::base())
        .routes(routes!(calls::call))
        .routes(routes!(calls::batch))
        .routes(routes!(runs::list))
        .routes(routes!(runs::get, run_commands::purge))
        .routes(routes!(runs::outcome))
        .routes(routes!(runs::output))
        .routes(routes!(events::of_run))
        .routes(routes!(session_events::of_session))
        .routes(routes!(runs::journal))
        .routes(routes!(runs::trace))
        .routes(routes!(runs::explain))
        .routes(routes!(runs::export))
        .routes(routes!(runs::compare))
        .routes(routes!(run_commands::cancel))
        .routes(routes!(run_commands::resume))
        .routes(routes!(run_commands::finish))
        .routes(routes!(run_commands::fork))
        .routes(routes!(run_commands::signal))
        .routes(routes!(run_commands::replay_check))
        .routes(routes!(run_commands::import))
        .routes(routes!(inbox::list, inbox::bulk))
        .routes(routes!(inbox::approve))
        .routes(routes!(inbox::deny))
        .routes(routes!(inbox::settle))
        .routes(routes!(inbox::answer))
        .routes(routes!(inbox::connect))
        .routes(routes!(replies::reply))
        .routes(routes!(connections::list))
        .routes(routes!(connections::make, connections::remove))
        .routes(routes!(tools::list))
        .routes(routes!(tools::get))
        .routes(routes!(tools::check))
        .routes(routes!(clients::register))
        .routes(routes!(clients::calls))
        .routes(routes!(clients::remove))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::get, sessions::put, sessions::purge))
        .routes(routes!(sessions::close))
        .routes(routes!(session_turns::idle))
        .routes(routes!(session_turns::context))
        .routes(routes!(sessions::messages, sessions::post))
        .routes(routes!(session_tools::get, session_tools::put))
        .routes(routes!(session_data::list))
        .routes(routes!(session_data::get, session_data::set, session_data::delete))
        .routes(routes!(session_data::list_secrets))
        .routes(routes!(session_data::set_secret, session_data::delete_secret))
        .routes(routes!(session_files::list))
        .routes(routes!(session_files::read, session_files::write, session_files::delete))
        .routes(routes!(session_files::search))
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
    Refusal::not_found(format!("the path {path} does not exist; /openapi.json lists all paths")).into_response()
}

pub(crate) async fn method_not_allowed(method: Method, request: axum::extract::Request) -> Response {
    let path = shortened(request.uri().path());
    let method = shortened(method.as_str());
    let detail = format!("the path {path} does not support {method}; /openapi.json lists the methods of all paths");
    Refusal::new(axum::http::StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed", detail)
        .into_response()
}
