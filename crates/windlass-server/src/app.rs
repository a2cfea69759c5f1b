//! State that all requests share.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use windlass::Windlass;

use crate::access::Tokens;
use crate::clients::Clients;
use crate::hosts::Hosts;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::quota::Quota;
use crate::rate::RateLimit;
use crate::refusal::{ApiResult, Refusal};

/// Longest `wait_ms` of a request.
const LONGEST_WAIT: Duration = Duration::from_millis(300_000);

pub(crate) struct App {
    pub(crate) windlass: Windlass,
    pub(crate) options: Options,
    pub(crate) tokens: Tokens,
    pub(crate) hosts: Hosts,
    pub(crate) clients: Clients,
    pub(crate) metrics: Metrics,
    pub(crate) rates: RateLimit,
    /// Bytes in flight: responses that are being sent and bodies that are being received.
    pub(crate) bytes: Arc<Quota>,
    /// Concurrent requests.
    pub(crate) requests: Arc<Quota>,
    /// Open event streams.
    pub(crate) streams: Arc<Quota>,
    /// Becomes true when the server shuts down.
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) started: Instant,
}

/// Cheap to clone: every handler gets one.
pub(crate) type Shared = Arc<App>;

impl App {
    /// Whether the store takes commits and is whole.
    pub(crate) fn health(&self) -> windlass::store::Health {
        self.windlass.file().map_or(windlass::store::Health::Fine, |file| file.health())
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Resolves when the server shuts down. A router without a socket has no shutdown signal, so there it never
    /// resolves.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a future until `wait` is over or the server shuts down. The future need not subscribe to the shutdown
    /// signal: the task that serves the connection does, and polls the request again when it fires.
    pub(crate) async fn within<T>(&self, wait: Duration, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        if wait.is_zero() {
            return None;
        }
        let done = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.is_stopping() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        tokio::time::timeout(wait, done).await.ok().flatten()
    }
}

/// Checks `wait_ms` of a request.
pub(crate) fn wait_time(wait_ms: Option<u64>, default_ms: u64) -> ApiResult<Duration> {
    let wait = Duration::from_millis(wait_ms.unwrap_or(default_ms));
    if wait > LONGEST_WAIT {
        let most = LONGEST_WAIT.as_millis();
        return Err(Refusal::invalid(format!(
            "`wait_ms` is larger than {most}; send the request again to wait longer"
        )));
    }
    Ok(wait)
}
