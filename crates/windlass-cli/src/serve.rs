//! `windlass serve`: the API on a file, until somebody stops it.

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
    let files = files::raised();
    if let (true, sentence) = files::sentence(files) {
        tracing::warn!("{sentence}");
    }
    let stop = Stop::new(args.demo.is_some())?;
    let place = api::place(global)?;
    refuse_second(&place.file).await?;
    let listener = listen(address(args, place.config.as_ref())?).await?;
    let toolbox = match &args.demo {
        Some(ledger) => demo::toolbox(ledger).map_err(|error| Failure::usage(error.to_string()))?,
        None => Toolbox::new(),
    };
    let reloading = match &place.config {
        Some(config) => Some(Reloading::start(config, &toolbox, api::launcher(&place.file)).await?),
        None => None,
    };
    let mut options = options(place.config.as_ref(), reloading.as_ref())?;
    options.limits.connections = files::connections(files);
    let windlass = api::driving(place.builder(toolbox), &place.file).await.map_err(|error| api::unopened(&error))?;
    if let Some(reloading) = &reloading {
        reloading.for_runs_of(&windlass);
    }
    let bound = listener.local_addr().map_err(|error| unreachable(&error))?;
    let (asked, file) = (stop.asked(), place.file.clone());
    // Asked for when requests are answered, and not before: whoever reads the line may send one.
    let stop = async {
        ready(bound, &file, out);
        asked.await;
    };
    windlass_server::serve(listener, windlass, options, stop).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Failure::new(Exit::Refused, error.to_string()),
        _ => unreachable(&error),
    })
}

fn unreachable(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Unreachable, error.to_string())
}

/// One process has the file. Whoever has it says where it answers, so that nobody has to look for it. One that answers
/// nowhere may be about to let go of the file: opening it waits a moment, and says the rest.
async fn refuse_second(file: &Path) -> Result<()> {
    let Some(server) = api::server(file).await? else { return Ok(()) };
    let who = server.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    let sentence = format!(
        "{} is already served at {}, by {who}; use that, stop it, or name another --file",
        file.display(),
        server.address
    );
    Err(Failure::new(Exit::Unreachable, sentence))
}

fn address(args: &ServeArgs, config: Option<&Config>) -> Result<SocketAddr> {
    let Some(text) = &args.listen else {
        let configured = config.map(|config| config.server.listen);
        let usual = || config::LISTEN.parse().map_err(|_| Failure::usage("there is no usual address"));
        return configured.map_or_else(usual, Ok);
    };
    text.parse().map_err(|_| {
        Failure::usage(format!(
            "--listen {}: this is no address with a port; write 127.0.0.1:7117, [::1]:7117, or 127.0.0.1:0 for any port",
            crate::style::plain(text)
        ))
    })
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("the port {} is in use; stop who has it, or choose another with --listen", address.port())
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!(
                    "this machine does not have the address {}; --listen 127.0.0.1:7117 works everywhere",
                    address.ip()
                )
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("this user may not listen on port {}; choose one above 1023 with --listen", address.port())
            }
            _ => error.to_string(),
        };
        Failure::new(Exit::Unreachable, format!("cannot listen on {address}: {why}"))
    })
}

fn options(config: Option<&Config>, reloading: Option<&Reloading>) -> Result<Options> {
    let mut options = Options::default();
    if let Some(config) = config {
        options.allowed_hosts.clone_from(&config.server.allowed_hosts);
        options.allowed_origins.clone_from(&config.server.allowed_origins);
        options.limits.attempts = config.limits.drain;
        options.webhook = config.hook().map_err(|problems| api::misconfigured(&problems))?;
    }
    options.reload = reloading.map(Reloading::on_request);
    Ok(options)
}

/// One line, when requests are answered. A server whose line nobody reads serves all the same.
fn ready(bound: SocketAddr, file: &Path, out: &Out) {
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
