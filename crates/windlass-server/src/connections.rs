//! The connection limit: so many are open at once, and more are accepted when one closes. A connection without a request under
//! way is closed to make room, the one that has been idle longest first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
}

/// Whether a connection is in use.
pub(crate) struct ConnectionUse {
    /// Nothing while a request is under way, and once it was told to close.
    idle_since: Mutex<Option<Instant>>,
    close: Notify,
}

/// An open connection. Dropped, it makes room for another.
pub(crate) struct OpenConnection {
    limit: Arc<ConnectionLimit>,
    number: u64,
    pub(crate) usage: Arc<ConnectionUse>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, open: Mutex::default(), accepted: AtomicU64::new(0) })
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

    /// Registers a connection that was accepted.
    pub(crate) fn opened(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> OpenConnection {
        let usage = Arc::new(ConnectionUse { idle_since: Mutex::new(Some(Instant::now())), close: Notify::new() });
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, usage.clone());
        OpenConnection { limit: self.clone(), number, usage, _permit: permit }
    }

    /// Tells the connection that has been idle longest to close, if it has been for long enough.
    fn close_one(&self) {
        let open = self.open.lock();
        let idle = open.values().filter_map(|usage| Some(((*usage.idle_since.lock())?, usage)));
        if let Some((since, usage)) = idle.min_by_key(|(since, _)| *since)
            && since.elapsed() >= IDLE
        {
            // Told once; the next one is told to if that does not help.
            *usage.idle_since.lock() = None;
            usage.close.notify_one();
        }
    }
}

impl ConnectionUse {
    /// Resolves when the connection is to make room.
    pub(crate) async fn told_to_close(&self) {
        self.close.notified().await;
    }

    /// A request is under way, until this is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        *self.idle_since.lock() = None;
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
        let room = limit.room().await.unwrap();
        limit.opened(room)
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
        let limit = ConnectionLimit::new(3);
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
        let limit = ConnectionLimit::new(1);
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
        let limit = ConnectionLimit::new(1);
        let connection = open(&limit).await;
        limit.close_one();
        assert!(!is_told(&connection));
        tokio::time::advance(IDLE).await;
        limit.close_one();
        assert!(is_told(&connection));
    }
}
