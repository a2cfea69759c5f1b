//! The door: so many connections are inside at once, and whoever comes then waits, where it costs nothing. A connection that
//! nobody uses makes room for one that somebody may use: whoever has been idle longest is asked to leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How long a connection must have been idle before it is asked to leave: its first request may be on its way.
const IDLE: Duration = Duration::from_millis(250);

/// How soon the next one is asked, if the last one did not leave.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Since when a connection has been idle that is not.
const BUSY: u64 = u64::MAX;

pub(crate) struct Door {
    room: Arc<Semaphore>,
    inside: Mutex<FxHashMap<u64, Arc<Guest>>>,
    entered: AtomicU64,
    opened: Instant,
}

/// One connection that is inside.
pub(crate) struct Guest {
    /// Since when nothing was asked of it, in milliseconds of the door's own time.
    idle_since: AtomicU64,
    opened: Instant,
    leave: Notify,
}

/// A connection's place. Dropped, it is free.
pub(crate) struct Seat {
    door: Arc<Door>,
    number: u64,
    pub(crate) guest: Arc<Guest>,
    _permit: OwnedSemaphorePermit,
}

impl Door {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            room: Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS))),
            inside: Mutex::default(),
            entered: AtomicU64::new(0),
            opened: Instant::now(),
        })
    }

    /// Waits for room. Dropping the future gives up nothing but the place in the queue. Nothing only if the door is gone.
    pub(crate) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.room.clone().try_acquire_owned() {
                return Some(permit);
            }
            self.ask_one();
            if let Ok(permit) = tokio::time::timeout(ASK_AGAIN, self.room.clone().acquire_owned()).await {
                return permit.ok();
            }
        }
    }

    /// Takes a place for a connection that is there.
    pub(crate) fn seat(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Seat {
        let idle_since = AtomicU64::new(millis(self.opened));
        let guest = Arc::new(Guest { idle_since, opened: self.opened, leave: Notify::new() });
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        self.inside.lock().insert(number, guest.clone());
        Seat { door: self.clone(), number, guest, _permit: permit }
    }

    /// Asks whoever has been idle longest to leave, if anybody has been for long enough.
    fn ask_one(&self) {
        let Some(latest) = millis(self.opened).checked_sub(IDLE.as_millis() as u64) else { return };
        let inside = self.inside.lock();
        let since = |guest: &Arc<Guest>| guest.idle_since.load(Ordering::Relaxed);
        let longest = inside.values().min_by_key(|guest| since(guest)).filter(|guest| since(guest) <= latest);
        if let Some(guest) = longest {
            // Asked once; asking the same one again would not help.
            guest.idle_since.store(BUSY, Ordering::Relaxed);
            guest.leave.notify_one();
        }
    }
}

impl Guest {
    /// Resolves when it is to make room.
    pub(crate) async fn asked_to_leave(&self) {
        self.leave.notified().await;
    }

    /// Something is asked of it, until this is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.idle_since.store(BUSY, Ordering::Relaxed);
        Busy(self.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.door.inside.lock().remove(&self.number);
    }
}

pub(crate) struct Busy(Arc<Guest>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.idle_since.store(millis(self.0.opened), Ordering::Relaxed);
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(BUSY - 1)
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::response::Response;

    use super::*;
    use crate::given::until_given;

    async fn seated(door: &Arc<Door>) -> Seat {
        let room = door.room().await.unwrap();
        door.seat(room)
    }

    /// Whether there is room within the time somebody at the door would wait.
    async fn has_room(door: &Door) -> bool {
        tokio::time::timeout(IDLE * 10, door.room()).await.is_ok()
    }

    fn is_asked(seat: &Seat) -> bool {
        futures_util::FutureExt::now_or_never(seat.guest.asked_to_leave()).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn l23_whoever_has_been_idle_longest_makes_room_and_nobody_else() {
        let door = Door::new(3);
        let (used, idle, other) = (seated(&door).await, seated(&door).await, seated(&door).await);
        tokio::time::advance(IDLE).await;
        drop(used.guest.busy());
        drop(other.guest.busy());
        assert!(!is_asked(&idle), "nobody needs the room");
        let (_, leaving) = tokio::join!(has_room(&door), async {
            idle.guest.asked_to_leave().await;
            assert!(!is_asked(&used) && !is_asked(&other));
            drop(idle);
        });
        assert_eq!((leaving, door.inside.lock().len()), ((), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn l23_whoever_is_being_answered_makes_no_room() {
        let door = Door::new(1);
        let seat = seated(&door).await;
        let busy = seat.guest.busy();
        assert!(!has_room(&door).await && !is_asked(&seat));
        let streaming = Response::new(Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>()));
        let streaming = until_given(busy, streaming);
        assert!(!has_room(&door).await && !is_asked(&seat), "a stream is open");
        drop(streaming);
        assert!(!has_room(&door).await && is_asked(&seat), "it is, and does not leave");
        drop(seat);
        assert!(has_room(&door).await);
    }

    #[tokio::test(start_paused = true)]
    async fn l23_whoever_has_just_come_may_ask_something_first() {
        let door = Door::new(1);
        let seat = seated(&door).await;
        door.ask_one();
        assert!(!is_asked(&seat));
        tokio::time::advance(IDLE).await;
        door.ask_one();
        assert!(is_asked(&seat));
    }
}
