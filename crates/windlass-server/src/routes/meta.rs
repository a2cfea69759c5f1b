//! The server itself.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::access::{May, Read};
use crate::answer::{json, ok};
use crate::app::Shared;
use crate::refusal::{Answer, troubled};
use crate::wire::{self, HealthStatus};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How is the server?
///
/// 200 also when something is wrong: the answer says what.
#[utoipa::path(get, path = "/v1/health", tag = "server", security(()),
    responses((status = 200, description = "How it is", body = wire::Health)))]
pub(super) async fn health(State(app): State<Shared>) -> Response {
    let mut problems = Vec::new();
    let mut status = HealthStatus::Ok;
    match app.windlass.health() {
        windlass::Health::Unavailable(why) => {
            status = HealthStatus::Failing;
            problems.push(why);
        }
        windlass::Health::Broken(why) => {
            status = HealthStatus::Damaged;
            problems.push(why);
        }
        // Being looked through after a crash is no problem.
        _ => {}
    }
    let stuck = app.windlass.stuck();
    if !stuck.is_empty() {
        if status == HealthStatus::Ok {
            status = HealthStatus::Degraded;
        }
        let named = stuck.iter().take(3).map(|one| format!("`{}` at {} of run {}", one.name, one.path, one.run));
        let names: Vec<String> = named.collect();
        problems.push(format!("{} bodies do not yield: {}", stuck.len(), names.join(", ")));
    }
    let uptime_ms = u64::try_from(app.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    ok(&wire::Health { status, problems, version: VERSION.to_owned(), uptime_ms })
}

/// Does the server take work?
#[utoipa::path(get, path = "/v1/ready", tag = "server", security(()),
    responses(
        (status = 200, description = "It does", body = wire::Ready),
        (status = 503, description = "Not now", body = wire::Ready),
    ))]
pub(super) async fn ready(State(app): State<Shared>) -> Response {
    let why = match app.windlass.health() {
        _ if app.is_stopping() => Some("the server stops".to_owned()),
        windlass::Health::Unavailable(why) => Some(why),
        _ => None,
    };
    let status = if why.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &wire::Ready { ready: why.is_none(), why })
}

/// Figures for a scraper, as Prometheus text
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The figures", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(app): State<Shared>, _may: May<Read>) -> Answer {
    let healthy = matches!(app.windlass.health(), windlass::Health::Fine | windlass::Health::Checking);
    let counts = match app.windlass.counts().await {
        Ok(counts) => Some(counts),
        Err(error) => {
            troubled(&format_args!("runs cannot be counted: {error}"));
            None
        }
    };
    let text = app.metrics.text(counts, healthy, app.windlass.toolbox().tools().len(), app.bytes.held());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// This description
#[utoipa::path(get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi(State(_): State<Shared>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], crate::openapi::document()).into_response()
}

/// What is this?
#[utoipa::path(get, path = "/", tag = "server", security(()),
    responses((status = 200, description = "What is served here", body = wire::Index)))]
pub(super) async fn index(State(_): State<Shared>) -> Response {
    ok(&wire::Index {
        name: "windlass".to_owned(),
        version: VERSION.to_owned(),
        api: "/v1".to_owned(),
        openapi: "/openapi.json".to_owned(),
    })
}
