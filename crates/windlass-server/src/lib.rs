#![doc = include_str!("docs/crate.md")]

mod access;
mod answer;
mod app;
mod clients;
mod connections;
mod extract;
mod given;
mod guard;
mod hosts;
mod metrics;
mod openapi;
mod options;
mod rate;
mod refusal;
mod routes;
mod serve;
mod shares;
mod show;
mod sse;
mod timed;
mod webhook;
pub mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use tokio::sync::watch;
use windlass::Windlass;

pub use access::TokensError;
pub use options::{Limits, Options, Reload};
pub use serve::serve;
pub use webhook::{BadWebhook, Webhook};

use access::Tokens;
use app::{App, Shared};
use guard::Guarded;

/// The API without a socket: for a program that has the file open itself, and for tests.
///
/// Fails if the file of tokens cannot be read. Must be called where the runtime's executor is; the router does not shut the
/// runtime down.
pub fn router(windlass: Windlass, options: Options) -> Result<Router, TokensError> {
    // Nobody ever says that it stops.
    let (_, stop) = watch::channel(false);
    build(windlass, options, None, stop).map(|(guarded, _)| Router::new().fallback_service(guarded))
}

/// The API, and what its requests share.
fn build(
    windlass: Windlass,
    options: Options,
    bound: Option<SocketAddr>,
    stop: watch::Receiver<bool>,
) -> Result<(Guarded, Shared), TokensError> {
    let tokens = Tokens::load(options.tokens.clone().or_else(|| beside(&windlass)))?;
    let app = Arc::new(App {
        tokens,
        hosts: hosts::Hosts::new(bound, &options.allowed_hosts, &options.allowed_origins),
        clients: clients::Clients::default(),
        metrics: metrics::Metrics::default(),
        rates: rate::Rates::new(options.limits.per_second),
        bytes: shares::Shares::new(options.limits.held_bytes, options.limits.all_held_bytes),
        requests: options.limits.requests(),
        streams: options.limits.streams(),
        stop,
        started: Instant::now(),
        windlass,
        options,
    });
    let (router, api) = routes::all().split_for_parts();
    let router =
        router.fallback(routes::not_found).method_not_allowed_fallback(routes::wrong_method).with_state(app.clone());
    let guarded = Guarded::new(app.clone(), router, api.paths.paths.keys());
    openapi::keep(api);
    Ok((guarded, app))
}

/// Where the tokens of a database file are: `app.db-tokens`.
fn beside(windlass: &Windlass) -> Option<PathBuf> {
    let file = windlass.file()?;
    let mut name = file.file_name()?.to_owned();
    name.push("-tokens");
    Some(file.with_file_name(name))
}
