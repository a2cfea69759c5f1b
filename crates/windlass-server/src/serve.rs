//! The socket: accepting connections, their time-outs, and a clean shutdown.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::{oneshot, watch};
use windlass::Windlass;

use crate::app::Shared;
use crate::connections::{ConnectionLimit, OpenConnection};
use crate::guard::Peer;
use crate::options::Options;
use crate::write_timeout::WriteTimeout;
use crate::{build, webhook};

/// Pause after a failed `accept`, which usually means that the process has no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Shortest time between two warnings about refused connections.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Sooner than nearly every timer of a request. A new timer wakes the executor if it is due before all others, which
/// would be the case for every request. While this one ticks, it is rarely the case.
const TICK: Duration = Duration::from_secs(1);

/// Serves the tools of a program over HTTP in one line:
///
/// ```no_run
/// use windlass::prelude::*;
/// use windlass_server::Serve;
///
/// # async fn example() -> windlass::Result<()> {
/// let windlass = Windlass::open("app.db").await?;
/// windlass.serve("127.0.0.1:7117").await
/// # }
/// ```
pub trait Serve {
    /// Serves the API with the default [`Options`] until the process receives SIGTERM or SIGINT (Ctrl-C), and then shuts
    /// down cleanly; see [`serve`](fn@serve). A second signal during the shutdown ends it at once.
    ///
    /// # Errors
    ///
    /// [`Error::System`](windlass::Error::System) if the address cannot be bound, if other machines can connect and there
    /// are no tokens, or if the shutdown failed or was cut short.
    fn serve<A: ToSocketAddrs + Send>(&self, address: A) -> impl Future<Output = windlass::Result<()>> + Send;
}

impl Serve for Windlass {
    async fn serve<A: ToSocketAddrs + Send>(&self, address: A) -> windlass::Result<()> {
        until_signalled(self.clone(), address).await.map_err(|error| windlass::Error::System(Box::new(error)))
    }
}

async fn until_signalled(windlass: Windlass, address: impl ToSocketAddrs) -> io::Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("could not listen on the server's address: {error}")))?;
    let mut signals = StopSignals::new()?;
    tracing::info!("the server listens on {}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel();
    let serving = serve(listener, windlass, Options::default(), async {
        // The sender is not dropped before the server.
        stopped.await.ok();
    });
    let signalled = async {
        signals.next().await;
        // The receiver is gone if the server has failed already; its error is returned below.
        stop.send(()).ok();
        signals.next().await;
    };
    tokio::select! {
        served = serving => served,
        () = signalled => Err(io::Error::new(io::ErrorKind::Interrupted, "the shutdown was cut short by a second signal")),
    }
}

/// SIGTERM and SIGINT. On other systems than Unix, Ctrl-C.
struct StopSignals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a handler, the system's default ends the process.
            std::future::pending::<()>().await;
        }
    }
}

/// Serves the API until `stop` resolves. Then event streams end with `end {reason: shutdown}`, pending requests are
/// awaited up to [`drain_timeout`](crate::Limits::drain_timeout), and the runtime is shut down: its runs are released
/// for the next process that opens the file.
///
/// Fails with [`io::ErrorKind::PermissionDenied`] if other machines can connect and there are no tokens.
pub async fn serve(
    listener: TcpListener,
    windlass: Windlass,
    options: Options,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let bound = listener.local_addr()?;
    let (stopping, stopped) = watch::channel(false);
    let (router, app) = build(windlass.clone(), options, Some(bound), stopped).map_err(io::Error::other)?;
    if !bound.ip().is_loopback() && app.tokens.is_empty() && !app.options.trusted {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the address {bound} is reachable from other machines, and there are no tokens, so every client would \
                 have full access; create a token first (`windlass token create --scope admin …`), or listen on 127.0.0.1"
            ),
        ));
    }
    let file = windlass.file();
    let announce = |address: Option<&str>| file.as_ref().map_or(Ok(()), |file| file.announce(address));
    if let Err(error) = announce(Some(&format!("http://{}", reachable(bound)))) {
        tracing::warn!("could not announce the server's address in the lock file: {error}");
    }
    let notifier = app.options.webhook.clone().map(|hook| tokio::spawn(webhook::notify(app.clone(), hook)));
    tokio::select! {
        biased;
        () = accept(listener, router, &app, stop) => {}
        never = tick() => match never {},
    }
    tracing::info!("the server shuts down");
    // The sender lives until the end of this function: a closed channel would never signal the shutdown.
    stopping.send_replace(true);
    let began = Instant::now();
    drain(&app).await;
    if let Some(notifier) = notifier {
        notifier.abort();
    }
    if let Err(error) = announce(None) {
        tracing::debug!("could not remove the server's address from the lock file: {error}");
    }
    // Attempts in flight went on while connections were closed.
    let timeout = app.options.limits.attempts_timeout.saturating_sub(began.elapsed());
    windlass.shutdown_within(timeout).await.map_err(|error| io::Error::other(error.to_string()))
}

/// The address at which programs on this machine reach a server that listens on `bound`.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        ip if !ip.is_unspecified() => ip,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    SocketAddr::new(ip, bound.port())
}

async fn accept(listener: TcpListener, router: Router, app: &Shared, stop: impl Future<Output = ()>) {
    let limits = &app.options.limits;
    let limit = ConnectionLimit::new(limits.connections, limits.connections_per_address());
    let mut warned: Option<tokio::time::Instant> = None;
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let permit = limit.permit().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = next => accepted,
        };
        match (accepted, permit) {
            (Ok((stream, peer)), Some(permit)) => {
                let Some(opened) = limit.open(permit, peer.ip()) else {
                    if warned.is_none_or(|last| last.elapsed() >= WARN_INTERVAL) {
                        let most = limits.connections_per_address();
                        tracing::warn!(
                            "connection from {} refused: the address has {most} connections, all with pending requests",
                            peer.ip()
                        );
                        warned = Some(tokio::time::Instant::now());
                    }
                    continue;
                };
                let (router, app) = (router.clone(), app.clone());
                tokio::spawn(async move { connection(stream, peer, router, app, &opened).await });
            }
            (Err(error), _) => {
                tracing::warn!("could not accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
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

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, app: Shared, opened: &OpenConnection) {
    let _open = app.metrics.connections.increment();
    // Responses are written whole: waiting for more data would only delay them.
    drop(stream.set_nodelay(true));
    let limits = &app.options.limits;
    let io = TokioIo::new(WriteTimeout::new(stream, limits.write_timeout));
    let service = WithPeer { router, peer: Peer { ip: peer.ip(), usage: opened.usage.clone() } };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).half_close(true).max_buf_size(64 << 10);
    let mut serving = std::pin::pin!(builder.serve_connection(io, service));
    let close = async {
        tokio::select! {
            () = app.stopped() => false,
            () = opened.usage.closing() => true,
        }
    };
    let served = tokio::select! {
        biased;
        // Polled first, so that a request that has arrived already is answered.
        served = serving.as_mut() => served,
        evicted = close => {
            // An incomplete request head must not keep the connection open.
            if evicted && !opened.usage.is_busy() {
                return;
            }
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, "connection closed with an error: {error}");
    }
}

/// Adds the peer to every request of a connection.
struct WithPeer {
    router: Router,
    peer: Peer,
}

impl Service<Request<Incoming>> for WithPeer {
    type Response = Response;
    type Error = Infallible;
    type Future = <Router as tower::Service<Request<Body>>>::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer.clone());
        tower::Service::call(&mut self.router.clone(), request)
    }
}

/// Waits until all connections are closed, up to the drain time-out.
async fn drain(app: &Shared) {
    let until = tokio::time::Instant::now() + app.options.limits.drain_timeout;
    while app.metrics.connections.get() > 0 && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
