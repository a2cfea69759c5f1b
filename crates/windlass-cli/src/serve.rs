//! `windlass serve`: serves the API on a database file until it is stopped.

mod reload;
mod stop;

use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpListener;
use windlass::Toolbox;
use windlass_server::Options;

use crate::api;
use crate::args::{Global, ServeArgs};
use crate::config::{self, Config};
use crate::demo;
use crate::exit::{Exit, Failure, Result};
use crate::files;
use crate::log;
use crate::out::Out;
use reload::Reloading;
use stop::Stop;

/// Serves until it is asked to stop.
pub(crate) async fn run(args: &ServeArgs, global: &Global, out: &Out) -> Result<()> {
    log::start(global)?;
    let files = files::raise_limit();
    if let (true, sentence) = files::describe(files) {
        tracing::warn!("{sentence}");
    }
    let stop = Stop::new(args.demo.is_some())?;
    let target = api::target(global)?;
    refuse_second(&target.file).await?;
    let listener = listen(address(args, target.config.as_ref())?).await?;
    let toolbox = match &args.demo {
        Some(ledger) => demo::toolbox(ledger).map_err(|error| Failure::usage(error.to_string()))?,
        None => Toolbox::new(),
    };
    let reloading = match &target.config {
        Some(config) => Some(Reloading::start(config, &toolbox, api::launcher(&target.file)).await?),
        None => None,
    };
    let mut options = options(target.config.as_ref(), reloading.as_ref())?;
    options.limits.connections = files::connections(files);
    let windlass = api::driving(target.builder(toolbox), &target.file).await;
    let windlass = windlass.map_err(|error| api::open_failed(&error))?;
    if let Some(reloading) = &reloading {
        reloading.set_runtime(&windlass);
    }
    let bound = listener.local_addr().map_err(|error| unreachable(&error))?;
    let (requested, file) = (stop.requested(), target.file.clone());
    // Polled once requests are answered, not before: the reader of the ready line may send one at once.
    let stop = async {
        print_ready(bound, &file, out);
        requested.await;
    };
    windlass_server::serve(listener, windlass, options, stop).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Failure::new(Exit::Refused, error.to_string()),
        _ => unreachable(&error),
    })
}

fn unreachable(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Unreachable, error.to_string())
}

/// Only one process may have the file open. A server that has it has announced its address, which the error names. A
/// process without an address may be about to close the file: opening it waits a moment, and reports the rest.
async fn refuse_second(file: &Path) -> Result<()> {
    let Some(server) = api::server(file).await? else { return Ok(()) };
    let owner = server.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    let message = format!(
        "{} is already served at {} by {owner}; use that server, stop it, or name another --file",
        file.display(),
        server.address
    );
    Err(Failure::new(Exit::Unreachable, message))
}

fn address(args: &ServeArgs, config: Option<&Config>) -> Result<SocketAddr> {
    let Some(text) = &args.listen else {
        let configured = config.map(|config| config.server.listen);
        let default = || config::LISTEN.parse().map_err(|_| Failure::usage("the default address is not valid"));
        return configured.map_or_else(default, Ok);
    };
    text.parse().map_err(|_| {
        Failure::usage(format!(
            "--listen: `{}` is not a valid address (expected for example `127.0.0.1:7117`, `[::1]:7117`, or `127.0.0.1:0` \
             for any free port)",
            crate::style::plain(text)
        ))
    })
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "port {} is in use; stop the process that has it, or choose another port with --listen",
                    address.port()
                )
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!("this machine does not have the address {}; --listen 127.0.0.1:7117 always works", address.ip())
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("this user may not listen on port {}; choose one above 1023 with --listen", address.port())
            }
            _ => error.to_string(),
        };
        Failure::new(Exit::Unreachable, format!("could not listen on {address}: {why}"))
    })
}

fn options(config: Option<&Config>, reloading: Option<&Reloading>) -> Result<Options> {
    let mut options = Options::default();
    if let Some(config) = config {
        options.allowed_hosts.clone_from(&config.server.allowed_hosts);
        options.allowed_origins.clone_from(&config.server.allowed_origins);
        options.limits.attempts_timeout = config.limits.drain;
        options.limits.drain_timeout = options.limits.drain_timeout.min(config.limits.drain);
        options.webhook = config.hook().map_err(|problems| api::invalid_config(&problems))?;
    }
    options.reload = reloading.map(Reloading::on_request);
    Ok(options)
}

/// Prints one line when requests are answered. A server whose standard output is closed serves all the same.
fn print_ready(bound: SocketAddr, file: &Path, out: &Out) {
    let url = format!("http://{bound}");
    let _ = if out.json {
        let pid = std::process::id();
        out.event(&serde_json::json!({ "ready": true, "url": url, "file": file, "pid": pid }))
    } else if out.quiet {
        Ok(())
    } else {
        out.line(&format!("windlass serves {} at {url}", file.display()))
    };
}
