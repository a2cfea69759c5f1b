//! The connection limit: a semaphore with one permit for each open connection. When there is no permit left, the
//! connection that has been idle longest is closed. One address has a lower limit: beyond it, one of its own idle
//! connections is closed, or the new one is refused.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A connection is not closed before it has been idle for this long: its first request may be on the network.
const MIN_IDLE: Duration = Duration::from_millis(250);

/// Time until the next idle connection is closed, if the previous one has not returned its permit.
const CLOSE_NEXT: Duration = Duration::from_millis(20);

pub(crate) struct ConnectionLimit {
    permits: Arc<Semaphore>,
    open: Mutex<FxHashMap<u64, Arc<ConnectionUse>>>,
    accepted: AtomicU64,
    /// Limit of one address.
    per_address: usize,
}

/// The use of one connection.
pub(crate) struct ConnectionUse {
    network: IpAddr,
    /// `None` while a request is pending, and once the connection is closing.
    idle_since: Mutex<Option<Instant>>,
    close: Notify,
    /// A closing connection no longer counts against its address.
    is_closing: AtomicBool,
    busy: AtomicBool,
}

/// An open connection. Dropping it returns its permit.
pub(crate) struct OpenConnection {
    limit: Arc<ConnectionLimit>,
    number: u64,
    pub(crate) usage: Arc<ConnectionUse>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub(crate) fn new(total: usize, per_address: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(total.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { permits, open: Mutex::default(), accepted: AtomicU64::new(0), per_address })
    }

    /// Waits for a permit and closes idle connections meanwhile. Dropping the future loses nothing. `None` only if the
    /// semaphore is closed.
    pub(crate) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(permit);
            }
            self.close_one();
            if let Ok(permit) = tokio::time::timeout(CLOSE_NEXT, self.permits.clone().acquire_owned()).await {
                return permit.ok();
            }
        }
    }

    /// Registers an accepted connection. `None` if its address is at its limit and all its connections have pending
    /// requests: then the caller drops the connection.
    pub(crate) fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit, from: IpAddr) -> Option<OpenConnection> {
        let network = network(from);
        let mut open = self.open.lock();
        let of_address =
            || open.values().filter(|usage| usage.network == network && !usage.is_closing.load(Ordering::Relaxed));
        if open.len() >= self.per_address
            && of_address().count() >= self.per_address
            && !close_longest_idle(of_address(), Duration::ZERO)
        {
            return None;
        }
        let usage = Arc::new(ConnectionUse {
            network,
            idle_since: Mutex::new(Some(Instant::now())),
            close: Notify::new(),
            is_closing: AtomicBool::new(false),
            busy: AtomicBool::new(false),
        });
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        open.insert(number, usage.clone());
        Some(OpenConnection { limit: self.clone(), number, usage, _permit: permit })
    }

    fn close_one(&self) {
        close_longest_idle(self.open.lock().values(), MIN_IDLE);
    }
}

/// Asks the connection that has been idle longest to close, if it has been idle for `min_idle`. Returns whether there
/// was one.
fn close_longest_idle<'u>(usages: impl Iterator<Item = &'u Arc<ConnectionUse>>, min_idle: Duration) -> bool {
    let idle = usages.filter_map(|usage| Some(((*usage.idle_since.lock())?, usage)));
    let Some((_, usage)) = idle.min_by_key(|(since, _)| *since).filter(|(since, _)| since.elapsed() >= min_idle) else {
        return false;
    };
    // No longer idle, so the next call chooses another connection.
    *usage.idle_since.lock() = None;
    usage.is_closing.store(true, Ordering::Relaxed);
    usage.close.notify_one();
    true
}

/// The unit that the limit per address applies to: an IPv4 address, or the /64 network of an IPv6 address, because one
/// host can use any address of its network.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

impl ConnectionUse {
    /// Resolves when the connection should close to make room for another.
    pub(crate) async fn closing(&self) {
        self.close.notified().await;
    }

    /// Whether a request is pending. A closing connection may have received one before it noticed.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Marks the connection as busy until the guard is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        *self.idle_since.lock() = None;
        self.busy.store(true, Ordering::Relaxed);
        Busy(self.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.limit.open.lock().remove(&self.number);
    }
}

pub(crate) struct Busy(Arc<ConnectionUse>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
        *self.0.idle_since.lock() = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::response::Response;

    use super::*;
    use crate::body::hold_until_sent;

    async fn open(limit: &Arc<ConnectionLimit>) -> OpenConnection {
        open_from(limit, [127, 0, 0, 1].into()).await.expect("the connection is accepted")
    }

    async fn open_from(limit: &Arc<ConnectionLimit>, from: IpAddr) -> Option<OpenConnection> {
        let permit = limit.permit().await.unwrap();
        limit.open(permit, from)
    }

    /// Whether there is a permit within the time a client would wait.
    async fn has_permit(limit: &ConnectionLimit) -> bool {
        tokio::time::timeout(MIN_IDLE * 10, limit.permit()).await.is_ok()
    }

    fn is_closing(connection: &OpenConnection) -> bool {
        futures_util::FutureExt::now_or_never(connection.usage.closing()).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn l23_at_the_limit_only_the_longest_idle_connection_is_closed() {
        let limit = ConnectionLimit::new(3, 3);
        let (used, idle, other) = (open(&limit).await, open(&limit).await, open(&limit).await);
        tokio::time::advance(MIN_IDLE).await;
        drop(used.usage.busy());
        drop(other.usage.busy());
        assert!(!is_closing(&idle), "no other connection needs the permit");
        let (_, closing) = tokio::join!(has_permit(&limit), async {
            idle.usage.closing().await;
            assert!(!is_closing(&used) && !is_closing(&other));
            drop(idle);
        });
        assert_eq!((closing, limit.open.lock().len()), ((), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn l23_a_connection_with_a_pending_response_is_not_closed() {
        let limit = ConnectionLimit::new(1, 1);
        let connection = open(&limit).await;
        let busy = connection.usage.busy();
        assert!(!has_permit(&limit).await && !is_closing(&connection));
        let streaming = Response::new(Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>()));
        let streaming = hold_until_sent(busy, streaming);
        assert!(!has_permit(&limit).await && !is_closing(&connection), "a stream is open");
        drop(streaming);
        assert!(!has_permit(&limit).await && is_closing(&connection), "it still has its permit");
        drop(connection);
        assert!(has_permit(&limit).await);
    }

    #[tokio::test(start_paused = true)]
    async fn l23_a_new_connection_has_time_to_send_its_first_request() {
        let limit = ConnectionLimit::new(1, 1);
        let connection = open(&limit).await;
        limit.close_one();
        assert!(!is_closing(&connection));
        tokio::time::advance(MIN_IDLE).await;
        limit.close_one();
        assert!(is_closing(&connection));
    }

    #[tokio::test(start_paused = true)]
    async fn e25_an_address_at_its_limit_loses_an_idle_connection_or_is_refused() {
        let limit = ConnectionLimit::new(4, 3);
        let site = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        let mut open = Vec::new();
        for n in 0..3 {
            open.push(open_from(&limit, site(n)).await.unwrap());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let busy: Vec<Busy> = open[1..].iter().map(|connection| connection.usage.busy()).collect();
        let fourth = open_from(&limit, site(3)).await.unwrap();
        assert!(is_closing(&open[0]), "the longest idle connection of its network is closed");
        assert!(!is_closing(&open[1]) && !is_closing(&open[2]) && !is_closing(&fourth));
        open.remove(0);
        let _fourth = fourth.usage.busy();
        assert!(open_from(&limit, site(4)).await.is_none(), "none of its connections is idle");
        let other_network = IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1]);
        assert!(open_from(&limit, other_network).await.is_some(), "the limit is one of a network");
        drop(busy);
        assert!(open_from(&limit, site(4)).await.is_some());
    }
}
