//! The socket: accepting, timing, and stopping in good order.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use windlass::Windlass;

use crate::app::Shared;
use crate::connections::{ConnectionLimit, OpenConnection};
use crate::guard::{Guarded, Peer};
use crate::options::Options;
use crate::timed::Timed;
use crate::{build, webhook};

/// How long accepting rests after it failed: usually because there are no more files to open.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How often it is said that an address has too many connections.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// Sooner than nearly every timer of a request. The executor is woken up by whoever sets a timer that is due before all
/// others, which would be every request; while this one ticks it is hardly any.
const TICK: Duration = Duration::from_secs(1);

/// Serves the API until `stop` resolves. Then streams end with `end {reason: shutdown}`, requests under way are waited for
/// for a while, and the runtime is shut down: its runs are let go of in good order, for whoever opens the file next.
///
/// Refused with [`io::ErrorKind::PermissionDenied`] where others than this machine could connect and there are no tokens.
pub async fn serve(
    listener: TcpListener,
    windlass: Windlass,
    options: Options,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let bound = listener.local_addr()?;
    let (stopping, stopped) = watch::channel(false);
    let (guarded, app) = build(windlass.clone(), options, Some(bound), stopped).map_err(io::Error::other)?;
    if !bound.ip().is_loopback() && app.tokens.is_empty() && !app.options.trusted {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{bound} can be reached from other machines, and there are no tokens: anybody could do anything. Make one \
                 first (`windlass token create --scope admin …`), or listen to 127.0.0.1"
            ),
        ));
    }
    if let Err(error) = windlass.announce(Some(&format!("http://{}", reachable(bound)))) {
        tracing::warn!("others cannot be told where this server answers: {error}");
    }
    let telling = app.options.webhook.clone().map(|hook| tokio::spawn(webhook::tell(app.clone(), hook)));
    tokio::select! {
        biased;
        () = accept(listener, guarded, &app, stop) => {}
        never = tick() => match never {},
    }
    tracing::info!("the server stops");
    // Nobody waits for the other side of a channel that is gone, so this is kept until the end.
    stopping.send_replace(true);
    drain(&app).await;
    if let Some(telling) = telling {
        telling.abort();
    }
    if let Err(error) = windlass.announce(None) {
        tracing::debug!("the address stays announced until the file is closed: {error}");
    }
    let patience = app.options.limits.attempts;
    windlass.shutdown_within(patience).await.map_err(|error| io::Error::other(error.to_string()))
}

/// Where others on this machine find a server that listens there.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        ip if !ip.is_unspecified() => ip,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    SocketAddr::new(ip, bound.port())
}

async fn accept(listener: TcpListener, guarded: Guarded, app: &Shared, stop: impl Future<Output = ()>) {
    let limits = &app.options.limits;
    let limit = ConnectionLimit::new(limits.connections, limits.connections_of_address());
    // Said once in a while, of the address that was refused then.
    let mut refused: Option<tokio::time::Instant> = None;
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let room = limit.room().await;
            (listener.accept().await, room)
        };
        let (accepted, room) = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = next => accepted,
        };
        match (accepted, room) {
            (Ok((stream, peer)), Some(room)) => {
                let Some(opened) = limit.opened(room, peer.ip()) else {
                    if refused.is_none_or(|last| last.elapsed() >= REFUSED_AGAIN) {
                        let most = limits.connections_of_address();
                        tracing::warn!(
                            "connections of {} are refused: {most} are open, each with a request under way",
                            peer.ip()
                        );
                        refused = Some(tokio::time::Instant::now());
                    }
                    continue;
                };
                let (guarded, app) = (guarded.clone(), app.clone());
                tokio::spawn(async move { connection(stream, peer, guarded, app, &opened).await });
            }
            (Err(error), _) => {
                tracing::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
            (_, None) => return,
        }
    }
}

async fn tick() -> Infallible {
    let mut interval = tokio::time::interval(TICK);
    loop {
        interval.tick().await;
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, guarded: Guarded, app: Shared, opened: &OpenConnection) {
    let _open = app.metrics.connections.one();
    // Answers are written whole; waiting for more to send would only delay them.
    drop(stream.set_nodelay(true));
    let limits = &app.options.limits;
    let io = TokioIo::new(Timed::new(stream, limits.write));
    let from = Peer { ip: peer.ip(), usage: opened.usage.clone() };
    let service = FromPeer { guarded, peer: from };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).half_close(true).max_buf_size(64 << 10);
    let mut serving = std::pin::pin!(builder.serve_connection(io, service));
    let close = async {
        tokio::select! {
            () = app.stopped() => false,
            () = opened.usage.told_to_close() => true,
        }
    };
    let served = tokio::select! {
        biased;
        // First of all what came meanwhile: a request that is here is answered.
        served = serving.as_mut() => served,
        told = close => {
            // The head of a request that is only half there would keep the room that is needed.
            if told && !opened.usage.is_busy() {
                return;
            }
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, "a connection ended early: {error}");
    }
}

/// Says of every request of a connection where it comes from.
struct FromPeer {
    guarded: Guarded,
    peer: Peer,
}

impl Service<Request<Incoming>> for FromPeer {
    type Response = Response;
    type Error = Infallible;
    type Future = <Guarded as tower::Service<Request<Body>>>::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.guarded.answer(request.map(Body::new), Some(&self.peer))
    }
}

/// Waits until every connection is done, for a while.
async fn drain(app: &Shared) {
    let until = tokio::time::Instant::now() + app.options.limits.drain;
    while app.metrics.connections.get() > 0 && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
