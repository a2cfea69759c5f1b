//! Health, metrics and description of the server.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::access::{Authorized, Read};
use crate::app::Shared;
use crate::refusal::{ApiResult, log_throttled};
use crate::response::{json, ok};
use crate::wire::{self, HealthStatus};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Read the health of the server
///
/// The status is 200 even if there are problems; the body lists them.
#[utoipa::path(get, path = "/v1/health", tag = "server", security(()),
    responses((status = 200, description = "The health of the server", body = wire::Health)))]
pub(super) async fn health(State(app): State<Shared>) -> Response {
    let mut problems = Vec::new();
    let mut status = HealthStatus::Ok;
    match app.health() {
        windlass::store::Health::Unavailable(why) => {
            status = HealthStatus::Failing;
            problems.push(why);
        }
        windlass::store::Health::Broken(why) => {
            status = HealthStatus::Damaged;
            problems.push(why);
        }
        // A check after a crash is not a problem.
        _ => {}
    }
    let stuck = app.windlass.stuck();
    if !stuck.is_empty() {
        if status == HealthStatus::Ok {
            status = HealthStatus::Degraded;
        }
        let named = stuck.iter().take(3).map(|one| format!("`{}` at {} of run {}", one.name, one.path, one.run));
        let names: Vec<String> = named.collect();
        problems.push(format!("{} tool bodies block their thread: {}", stuck.len(), names.join(", ")));
    }
    let uptime_ms = u64::try_from(app.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    ok(&wire::Health { status, problems, version: VERSION.to_owned(), uptime_ms })
}

/// Read whether the server accepts work
#[utoipa::path(get, path = "/v1/ready", tag = "server", security(()),
    responses(
        (status = 200, description = "The server accepts work", body = wire::Ready),
        (status = 503, description = "The server does not accept work", body = wire::Ready),
    ))]
pub(super) async fn ready(State(app): State<Shared>) -> Response {
    let why = match app.health() {
        _ if app.is_stopping() => Some("the server is shutting down".to_owned()),
        windlass::store::Health::Unavailable(why) => Some(why),
        _ => None,
    };
    let status = if why.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &wire::Ready { ready: why.is_none(), why })
}

/// Read metrics in the Prometheus text format
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(app): State<Shared>, _authorized: Authorized<Read>) -> ApiResult {
    let healthy = matches!(app.health(), windlass::store::Health::Fine | windlass::store::Health::Checking);
    let counts = match app.windlass.counts().await {
        Ok(counts) => Some(counts),
        Err(error) => {
            log_throttled(&format_args!("could not count the runs: {error}"));
            None
        }
    };
    let mut text = app.metrics.text(counts, healthy, app.windlass.toolbox().tools().len(), app.bytes.used());
    crate::metrics::add_breakers(&mut text, &app.windlass.runtime().breakers());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Read the OpenAPI description
#[utoipa::path(get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "The description of this API, in OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi(State(_): State<Shared>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], crate::openapi::document()).into_response()
}

/// Read the name and version of the server
#[utoipa::path(get, path = "/", tag = "server", security(()),
    responses((status = 200, description = "Name, version and addresses of the API", body = wire::Index)))]
pub(super) async fn index(State(_): State<Shared>) -> Response {
    ok(&wire::Index {
        name: "windlass".to_owned(),
        version: VERSION.to_owned(),
        api: "/v1".to_owned(),
        openapi: "/openapi.json".to_owned(),
    })
}
