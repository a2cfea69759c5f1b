//! What every request shares.

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
use crate::rate::Rates;
use crate::refusal::{Answer, Refusal};
use crate::shares::Shares;

/// Longest time a request waits on purpose.
const LONGEST_WAIT: Duration = Duration::from_millis(300_000);

pub(crate) struct App {
    pub(crate) windlass: Windlass,
    pub(crate) options: Options,
    pub(crate) tokens: Tokens,
    pub(crate) hosts: Hosts,
    pub(crate) clients: Clients,
    pub(crate) metrics: Metrics,
    pub(crate) rates: Rates,
    /// Bytes on their way to clients, and on their way in.
    pub(crate) bytes: Arc<Shares>,
    /// Requests under way.
    pub(crate) requests: Arc<Shares>,
    /// Event streams that are open.
    pub(crate) streams: Arc<Shares>,
    /// True once the server stops.
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) started: Instant,
}

/// Cheap to clone: every handler has one.
pub(crate) type Shared = Arc<App>;

impl App {
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Resolves when the server stops; never, if nobody can stop it.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for something at most so long, and no longer than the server runs. Nobody is asked to tell when it stops: whoever
    /// serves a connection is told, and polls what it waits for once more.
    pub(crate) async fn within<T>(&self, wait: Duration, mut what: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        if wait.is_zero() {
            return None;
        }
        let done = poll_fn(|cx| match what.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.is_stopping() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        tokio::time::timeout(wait, done).await.ok().flatten()
    }
}

/// How long to wait, as a request says it.
pub(crate) fn patience(wait_ms: Option<u64>, otherwise: u64) -> Answer<Duration> {
    let wait = Duration::from_millis(wait_ms.unwrap_or(otherwise));
    if wait > LONGEST_WAIT {
        let most = LONGEST_WAIT.as_millis();
        return Err(Refusal::invalid(format!("wait_ms is at most {most}; ask again to wait longer")));
    }
    Ok(wait)
}
