#![doc = include_str!("docs/crate.md")]

mod access;
mod app;
mod body;
mod clients;
mod connections;
mod extract;
mod guard;
mod hosts;
mod metrics;
mod openapi;
mod options;
mod quota;
mod rate;
mod refusal;
mod response;
mod routes;
mod serve;
mod show;
mod sse;
mod webhook;
pub mod wire;
mod write_timeout;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use tokio::sync::watch;
use tower::layer::layer_fn;
use windlass::Windlass;

pub use access::TokensError;
pub use options::{Limits, Options, Reload};
pub use serve::{Serve, serve};
pub use webhook::{Webhook, WebhookError};

use access::Tokens;
use app::{App, Shared};
use guard::Guarded;

/// The API without a socket: for a program that has the file open itself, and for tests.
///
/// Fails if the token file cannot be read. Must be called within the runtime's executor. The router does not shut the
/// runtime down.
pub fn router(windlass: Windlass, options: Options) -> Result<Router, TokensError> {
    // Without a sender: such a router has no shutdown signal.
    let (_, stop) = watch::channel(false);
    build(windlass, options, None, stop).map(|(router, _)| router)
}

/// The router of the API, and the state that its requests share.
fn build(
    windlass: Windlass,
    options: Options,
    bound: Option<SocketAddr>,
    stop: watch::Receiver<bool>,
) -> Result<(Router, Shared), TokensError> {
    let tokens = Tokens::load(options.tokens.clone().or_else(|| token_file(&windlass)))?;
    let app = Arc::new(App {
        tokens,
        hosts: hosts::Hosts::new(bound, &options.allowed_hosts, &options.allowed_origins),
        clients: clients::Clients::default(),
        metrics: metrics::Metrics::default(),
        rates: rate::RateLimit::new(options.limits.requests_per_second),
        bytes: quota::Quota::new(options.limits.in_flight_bytes, options.limits.total_in_flight_bytes),
        requests: options.limits.requests(),
        streams: options.limits.streams(),
        stop,
        started: Instant::now(),
        windlass,
        options,
    });
    let (router, api) = routes::all().split_for_parts();
    openapi::publish(api);
    let guarded = app.clone();
    let router = router
        .fallback(routes::not_found)
        .method_not_allowed_fallback(routes::method_not_allowed)
        .layer(layer_fn(move |route| Guarded::new(guarded.clone(), route)))
        .with_state(app.clone());
    Ok((router, app))
}

/// The path of a database's token file: `app.db-tokens` for `app.db`.
fn token_file(windlass: &Windlass) -> Option<PathBuf> {
    let file = windlass.file()?;
    let mut name = file.path().file_name()?.to_owned();
    name.push("-tokens");
    Some(file.path().with_file_name(name))
}
