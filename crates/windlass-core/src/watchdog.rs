//! The watchdog: names bodies that never yield. A body that computes without awaiting cannot be interrupted, but it can
//! be reported.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::call::Attempt;
use crate::id::RunId;
use crate::path::Path;

/// A body that has been computing for at least one whole interval between two checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The run it belongs to.
    pub run: RunId,
    /// The path of the operation in the run.
    pub path: Path,
    /// The tool's id or the step's name.
    pub name: String,
}

/// Tracks which body each thread is polling. Costs each poll one uncontended lock and no clock reading.
#[derive(Clone, Default)]
pub(crate) struct Watchdog(Arc<Threads>);

/// A slot for every thread that has polled a body.
type Threads = Mutex<Vec<Weak<ThreadSlot>>>;

/// What one thread is polling.
#[derive(Default)]
struct ThreadSlot {
    /// Changes whenever a poll begins or ends.
    turn: AtomicU64,
    /// The turn that the last check saw.
    seen: AtomicU64,
    polling: Mutex<Option<Attempt>>,
}

thread_local! {
    /// This thread's slot in each runtime it works for.
    static SLOTS: RefCell<Vec<(Weak<Threads>, Arc<ThreadSlot>)>> = const { RefCell::new(Vec::new()) };
}

/// Marks the poll of a body until it is dropped.
pub(crate) struct PollMark(Option<(Arc<ThreadSlot>, Option<Attempt>)>);

impl Watchdog {
    /// Marks the start of a poll of a body on this thread.
    pub(crate) fn enter(&self, attempt: &Attempt) -> PollMark {
        let slot = self.slot();
        slot.turn.fetch_add(1, Ordering::Relaxed);
        let outer = slot.polling.lock().replace(attempt.clone());
        PollMark(Some((slot, outer)))
    }

    /// The same for a body that is expected to compute for long. It is not reported.
    pub(crate) fn enter_expected(&self, _: &Attempt) -> PollMark {
        PollMark(None)
    }

    fn slot(&self) -> Arc<ThreadSlot> {
        SLOTS.with_borrow_mut(|slots| {
            if let Some((_, slot)) =
                slots.iter().find(|(watchdog, _)| std::ptr::eq(watchdog.as_ptr(), Arc::as_ptr(&self.0)))
            {
                return slot.clone();
            }
            slots.retain(|(watchdog, _)| watchdog.strong_count() > 0);
            let slot = Arc::new(ThreadSlot::default());
            slots.push((Arc::downgrade(&self.0), slot.clone()));
            self.0.lock().push(Arc::downgrade(&slot));
            slot
        })
    }

    /// The bodies that were already being polled at the last check and have not returned since.
    pub(crate) fn look(&self) -> Vec<Stuck> {
        let mut slots = self.0.lock();
        slots.retain(|slot| slot.strong_count() > 0);
        slots.iter().filter_map(Weak::upgrade).filter_map(|slot| slot.look()).collect()
    }
}

impl ThreadSlot {
    fn look(&self) -> Option<Stuck> {
        let turn = self.turn.load(Ordering::Relaxed);
        let seen = self.seen.swap(turn, Ordering::Relaxed);
        let polling = self.polling.lock();
        let attempt = polling.as_ref().filter(|_| turn == seen)?;
        Some(Stuck { run: attempt.run(), path: attempt.path().clone(), name: attempt.name().to_owned() })
    }
}

impl Drop for PollMark {
    fn drop(&mut self) {
        if let Some((slot, outer)) = self.0.take() {
            slot.turn.fetch_add(1, Ordering::Relaxed);
            *slot.polling.lock() = outer;
        }
    }
}

#[cfg(test)]
mod tests {
    fn origin() -> crate::call::Origin {
        let signer = std::sync::Arc::new(crate::run::reply::Signer::new([0; 32]));
        crate::call::Origin::for_test(crate::id::RunId::from_bytes([1; 16]), 0, signer)
    }

    use super::*;

    #[test]
    fn a_body_that_does_not_return_between_two_checks_is_reported() {
        let watchdog = Watchdog::default();
        let attempt = Attempt::new(origin(), Path::root(), "spin".into(), 1, 1);
        {
            let _watched = watchdog.enter(&attempt);
            assert_eq!(watchdog.look(), [], "one look proves nothing");
            assert_eq!(watchdog.look()[0].name, "spin");
            let inner = Attempt::new(origin(), Path::root().child(0), "inner".into(), 1, 1);
            drop(watchdog.enter(&inner));
            assert_eq!(watchdog.look(), [], "something happened since");
            assert_eq!(watchdog.look()[0].name, "spin", "the outer poll goes on");
        }
        assert_eq!(watchdog.look(), []);
        assert_eq!(watchdog.look(), []);
    }
}
