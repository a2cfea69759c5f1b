//! Who watches which run or session in this process, and is told that there is something new. What is new they read in the
//! store: nobody waits for them, and where nobody watches it costs one load of a counter.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Happening;
use crate::id::RunId;
use crate::limits::LIVE_KEPT;
use crate::path::Path;
use crate::time::{Clock, Timestamp};

/// What somebody watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whom {
    Run(RunId),
    Session(Arc<str>),
}

/// Something that is said once, to whoever listens.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) run: RunId,
    pub(crate) path: Path,
    pub(crate) at: Timestamp,
    pub(crate) what: Happening,
}

/// Everybody who watches.
pub(crate) struct Watchers {
    count: AtomicUsize,
    slots: Mutex<FxHashMap<Whom, Vec<Arc<Slot>>>>,
    clock: Arc<dyn Clock>,
}

/// One who watches.
#[derive(Default)]
struct Slot {
    changed: AtomicBool,
    waker: Mutex<Option<Waker>>,
    live: Mutex<VecDeque<Live>>,
}

impl Slot {
    fn wake(&self) {
        self.changed.store(true, Ordering::Release);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Watchers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { count: AtomicUsize::new(0), slots: Mutex::default(), clock }
    }

    /// From now on whatever happens there is noticed.
    pub(crate) fn listen(self: &Arc<Self>, whom: Whom) -> Ear {
        let slot = Arc::new(Slot::default());
        self.slots.lock().entry(whom.clone()).or_default().push(slot.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        Ear { watchers: self.clone(), whom, slot }
    }

    /// The store has something new of this run.
    pub(crate) fn changed(&self, run: RunId, session: Option<&Arc<str>>) {
        // Whoever listens began to before it looked into the store, so it is counted by the time a commit it did not see
        // is answered.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.who(run, session).iter().for_each(|slot| slot.wake());
        }
    }

    /// Says something to whoever listens at this moment. The oldest is forgotten where somebody does not keep up.
    pub(crate) fn say(&self, run: RunId, session: Option<&Arc<str>>, path: &Path, what: impl FnOnce() -> Happening) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let slots = self.who(run, session);
        if slots.is_empty() {
            return;
        }
        let live = Live { run, path: path.clone(), at: self.clock.now(), what: what() };
        for slot in slots {
            let mut kept = slot.live.lock();
            if kept.len() >= LIVE_KEPT {
                kept.pop_front();
            }
            kept.push_back(live.clone());
            drop(kept);
            slot.wake();
        }
    }

    /// Everybody looks for themselves: nothing will come of this runtime any more.
    pub(crate) fn over(&self) {
        let all: Vec<Arc<Slot>> = self.slots.lock().values().flatten().cloned().collect();
        all.iter().for_each(|slot| slot.wake());
    }

    fn who(&self, run: RunId, session: Option<&Arc<str>>) -> Vec<Arc<Slot>> {
        let slots = self.slots.lock();
        let of_session = session.and_then(|session| slots.get(&Whom::Session(session.clone())));
        slots.get(&Whom::Run(run)).into_iter().chain(of_session).flatten().cloned().collect()
    }
}

/// Hears that there is something new. Dropping it stops listening.
pub(crate) struct Ear {
    watchers: Arc<Watchers>,
    whom: Whom,
    slot: Arc<Slot>,
}

impl Ear {
    /// What happened so far is about to be looked at.
    pub(crate) fn clear(&self) {
        self.slot.changed.store(false, Ordering::Release);
    }

    /// Ready once something happened since it was last cleared.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        *self.slot.waker.lock() = Some(cx.waker().clone());
        if self.slot.changed.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// What was said, oldest first: all of it, or what was said at or below one place.
    pub(crate) fn take(&self, below: Option<(RunId, &Path)>) -> Vec<Live> {
        let mut kept = self.slot.live.lock();
        let Some((run, path)) = below else { return kept.drain(..).collect() };
        let wanted = |live: &Live| live.run == run && live.path.positions().starts_with(path.positions());
        let (taken, left): (VecDeque<Live>, _) = kept.drain(..).partition(wanted);
        *kept = left;
        taken.into()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut slots = self.watchers.slots.lock();
        if let Some(of_this) = slots.get_mut(&self.whom) {
            of_this.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
            if of_this.is_empty() {
                slots.remove(&self.whom);
            }
        }
        drop(slots);
        self.watchers.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;
    use crate::testing::Sim;

    fn progress(n: usize) -> Happening {
        Happening::Progress { message: n.to_string() }
    }

    #[test]
    fn l23_who_does_not_keep_up_loses_the_oldest_and_who_stopped_costs_nothing() {
        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let (run, path) = (RunId::from_bytes([1; 16]), Path::root());
        watchers.say(run, None, &path, || panic!("nobody listens"));
        let ear = watchers.listen(Whom::Run(run));
        watchers.say(RunId::from_bytes([2; 16]), None, &path, || panic!("to another run"));
        (0..LIVE_KEPT + 2).for_each(|n| watchers.say(run, None, &path, || progress(n)));
        let heard = ear.take(None);
        assert_eq!((heard.len(), &heard[0].what), (LIVE_KEPT, &progress(2)));
        drop(ear);
        assert!(watchers.slots.lock().is_empty());
        assert_eq!(watchers.count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn l23_nothing_that_happens_after_looking_is_missed() {
        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let (run, session) = (RunId::from_bytes([1; 16]), Arc::from("s"));
        let cx = Context::from_waker(noop_waker_ref());
        for whom in [Whom::Run(run), Whom::Session(Arc::from("s"))] {
            let ear = watchers.listen(whom);
            ear.clear();
            assert!(ear.poll(&cx).is_pending());
            watchers.changed(run, Some(&session));
            assert!(ear.poll(&cx).is_ready());
        }
    }

    #[test]
    fn l23_what_was_said_below_a_place_is_told_before_its_end() {
        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let run = RunId::from_bytes([1; 16]);
        let ear = watchers.listen(Whom::Run(run));
        for path in ["0", "1/0", "1"] {
            watchers.say(run, None, &path.parse().unwrap(), || progress(0));
        }
        let below = ear.take(Some((run, &"1".parse().unwrap())));
        assert_eq!(below.iter().map(|live| live.path.to_string()).collect::<Vec<_>>(), ["1/0", "1"]);
        assert_eq!(ear.take(None).len(), 1);
    }
}
