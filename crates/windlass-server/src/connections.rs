//! The connection limit: so many are open at once, and more are accepted when one closes. A connection without a request under
//! way is closed to make room, the one that has been idle longest first. One address has fewer than all of them: beyond that
//! its own idle ones make room for it, or it is refused.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How long a connection must have been idle before it is closed: its first request may be on its way.
const IDLE: Duration = Duration::from_millis(250);

/// How soon the next one is closed, if the last one is still open.
const CLOSE_NEXT: Duration = Duration::from_millis(20);

pub(crate) struct ConnectionLimit {
    free: Arc<Semaphore>,
    open: Mutex<FxHashMap<u64, Arc<ConnectionUse>>>,
    accepted: AtomicU64,
    /// Most of one address.
    each: usize,
}

/// Whether a connection is in use.
pub(crate) struct ConnectionUse {
    from: IpAddr,
    /// Nothing while a request is under way, and once it was told to close.
    idle_since: Mutex<Option<Instant>>,
    close: Notify,
    /// Set once it was told to close: then it counts no longer for its address.
    told: AtomicBool,
    busy: AtomicBool,
}

/// An open connection. Dropped, it makes room for another.
pub(crate) struct OpenConnection {
    limit: Arc<ConnectionLimit>,
    number: u64,
    pub(crate) usage: Arc<ConnectionUse>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    /// `each`: most of one address.
    pub(crate) fn new(most: usize, each: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, open: Mutex::default(), accepted: AtomicU64::new(0), each })
    }

    /// Waits for room. Dropping the future gives up the place in the queue. Nothing only if the limit is gone.
    pub(crate) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.free.clone().try_acquire_owned() {
                return Some(permit);
            }
            self.close_one();
            if let Ok(permit) = tokio::time::timeout(CLOSE_NEXT, self.free.clone().acquire_owned()).await {
                return permit.ok();
            }
        }
    }

    /// Registers a connection that was accepted. Nothing if its address has as many as it may have, each with a request under
    /// way: then it is to be dropped.
    pub(crate) fn opened(self: &Arc<Self>, permit: OwnedSemaphorePermit, from: IpAddr) -> Option<OpenConnection> {
        let from = network(from);
        let mut open = self.open.lock();
        let of_address = || open.values().filter(|usage| usage.from == from && !usage.told.load(Ordering::Relaxed));
        if open.len() >= self.each
            && of_address().count() >= self.each
            && !close_longest_idle(of_address(), Duration::ZERO)
        {
            return None;
        }
        let usage = Arc::new(ConnectionUse {
            from,
            idle_since: Mutex::new(Some(Instant::now())),
            close: Notify::new(),
            told: AtomicBool::new(false),
            busy: AtomicBool::new(false),
        });
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        open.insert(number, usage.clone());
        Some(OpenConnection { limit: self.clone(), number, usage, _permit: permit })
    }

    /// Tells the connection that has been idle longest to close, if it has been for long enough.
    fn close_one(&self) {
        close_longest_idle(self.open.lock().values(), IDLE);
    }
}

/// Tells the one that has been idle longest to close, if it has been for so long; says whether there was one.
fn close_longest_idle<'u>(usages: impl Iterator<Item = &'u Arc<ConnectionUse>>, least: Duration) -> bool {
    let idle = usages.filter_map(|usage| Some(((*usage.idle_since.lock())?, usage)));
    let Some((_, usage)) = idle.min_by_key(|(since, _)| *since).filter(|(since, _)| since.elapsed() >= least) else {
        return false;
    };
    // Told once; the next one is told to if that does not help.
    *usage.idle_since.lock() = None;
    usage.told.store(true, Ordering::Relaxed);
    usage.close.notify_one();
    true
}

/// What counts as one address: of the newer kind, one site has as many as it likes within a network.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

impl ConnectionUse {
    /// Resolves when the connection is to make room.
    pub(crate) async fn told_to_close(&self) {
        self.close.notified().await;
    }

    /// Whether a request is under way; of one that was told to close, whether one came before it did.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// A request is under way, until this is dropped.
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
    use crate::given::until_given;

    async fn open(limit: &Arc<ConnectionLimit>) -> OpenConnection {
        open_from(limit, [127, 0, 0, 1].into()).await.expect("it is not refused")
    }

    async fn open_from(limit: &Arc<ConnectionLimit>, from: IpAddr) -> Option<OpenConnection> {
        let room = limit.room().await.unwrap();
        limit.opened(room, from)
    }

    /// Whether there is room within the time a client would wait.
    async fn has_room(limit: &ConnectionLimit) -> bool {
        tokio::time::timeout(IDLE * 10, limit.room()).await.is_ok()
    }

    fn is_told(connection: &OpenConnection) -> bool {
        futures_util::FutureExt::now_or_never(connection.usage.told_to_close()).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn l23_the_connection_that_has_been_idle_longest_makes_room_and_no_other() {
        let limit = ConnectionLimit::new(3, 3);
        let (used, idle, other) = (open(&limit).await, open(&limit).await, open(&limit).await);
        tokio::time::advance(IDLE).await;
        drop(used.usage.busy());
        drop(other.usage.busy());
        assert!(!is_told(&idle), "no other connection needs the room");
        let (_, closing) = tokio::join!(has_room(&limit), async {
            idle.usage.told_to_close().await;
            assert!(!is_told(&used) && !is_told(&other));
            drop(idle);
        });
        assert_eq!((closing, limit.open.lock().len()), ((), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn l23_a_connection_that_is_being_answered_makes_no_room() {
        let limit = ConnectionLimit::new(1, 1);
        let connection = open(&limit).await;
        let busy = connection.usage.busy();
        assert!(!has_room(&limit).await && !is_told(&connection));
        let streaming = Response::new(Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>()));
        let streaming = until_given(busy, streaming);
        assert!(!has_room(&limit).await && !is_told(&connection), "a stream is open");
        drop(streaming);
        assert!(!has_room(&limit).await && is_told(&connection), "it is told, and does not close");
        drop(connection);
        assert!(has_room(&limit).await);
    }

    #[tokio::test(start_paused = true)]
    async fn l23_a_new_connection_may_ask_something_first() {
        let limit = ConnectionLimit::new(1, 1);
        let connection = open(&limit).await;
        limit.close_one();
        assert!(!is_told(&connection));
        tokio::time::advance(IDLE).await;
        limit.close_one();
        assert!(is_told(&connection));
    }

    #[tokio::test(start_paused = true)]
    async fn e25_an_address_with_as_many_connections_as_it_may_have_closes_its_own_or_is_refused() {
        let limit = ConnectionLimit::new(4, 3);
        let site = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        let mut open = Vec::new();
        for n in 0..3 {
            open.push(open_from(&limit, site(n)).await.unwrap());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let busy: Vec<Busy> = open[1..].iter().map(|connection| connection.usage.busy()).collect();
        let fourth = open_from(&limit, site(3)).await.unwrap();
        assert!(is_told(&open[0]), "the one of its network that has been idle longest makes room");
        assert!(!is_told(&open[1]) && !is_told(&open[2]) && !is_told(&fourth));
        open.remove(0);
        let _fourth = fourth.usage.busy();
        assert!(open_from(&limit, site(4)).await.is_none(), "none of its connections is idle");
        let elsewhere = IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1]);
        assert!(open_from(&limit, elsewhere).await.is_some(), "others have room");
        drop(busy);
        assert!(open_from(&limit, site(4)).await.is_some());
    }
}
