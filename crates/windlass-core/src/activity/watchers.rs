//! The watchers of runs and sessions in this process, which are notified of changes. They read the changes from the
//! store, so no writer waits for them. Without watchers a notification costs one atomic load.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Happening;
use crate::id::RunId;
use crate::limits::LIVE_ACTIVITIES;
use crate::path::Path;
use crate::time::{Clock, Timestamp};

/// What a watcher watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WatchTarget {
    Run(RunId),
    Session(Arc<str>),
}

/// An activity that is sent once, to the current watchers.
#[derive(Clone, Debug)]
pub(crate) struct LiveActivity {
    pub(crate) run: RunId,
    pub(crate) path: Path,
    pub(crate) at: Timestamp,
    pub(crate) what: Happening,
}

/// All watchers of this process.
pub(crate) struct Watchers {
    count: AtomicUsize,
    watchers_by_target: Mutex<FxHashMap<WatchTarget, Vec<Arc<Watcher>>>>,
    clock: Arc<dyn Clock>,
}

/// One watcher.
#[derive(Default)]
struct Watcher {
    changed: AtomicBool,
    waker: Mutex<Option<Waker>>,
    live: Mutex<VecDeque<LiveActivity>>,
}

impl Watcher {
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
        Self { count: AtomicUsize::new(0), watchers_by_target: Mutex::default(), clock }
    }

    /// Registers a watcher; it is notified of every later change.
    pub(crate) fn subscribe(self: &Arc<Self>, target: WatchTarget) -> Subscription {
        let watcher = Arc::new(Watcher::default());
        self.watchers_by_target.lock().entry(target.clone()).or_default().push(watcher.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        Subscription { watchers: self.clone(), target, watcher }
    }

    /// Notifies the watchers of a run and of its session that the store has something new.
    pub(crate) fn changed(&self, run: RunId, session: Option<&Arc<str>>) {
        // A watcher subscribes before it reads the store. So it is counted by the time a commit that it did not see is
        // answered.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.watchers_of(run, session).iter().for_each(|watcher| watcher.wake());
        }
    }

    /// Notifies the watchers of a session that something other than a run of it has changed.
    pub(crate) fn session_changed(&self, session: &Arc<str>) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let watchers = self.watchers_by_target.lock().get(&WatchTarget::Session(session.clone())).cloned();
            watchers.iter().flatten().for_each(|watcher| watcher.wake());
        }
    }

    /// Sends a live activity to the current watchers. A watcher that does not keep up loses the oldest ones.
    pub(crate) fn send_live(
        &self,
        run: RunId,
        session: Option<&Arc<str>>,
        path: &Path,
        what: impl FnOnce() -> Happening,
    ) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let watchers_by_target = self.watchers_of(run, session);
        if watchers_by_target.is_empty() {
            return;
        }
        let live = LiveActivity { run, path: path.clone(), at: self.clock.now(), what: what() };
        for watcher in watchers_by_target {
            let mut kept = watcher.live.lock();
            if kept.len() >= LIVE_ACTIVITIES {
                kept.pop_front();
            }
            kept.push_back(live.clone());
            drop(kept);
            watcher.wake();
        }
    }

    /// Wakes all watchers because the runtime is shut down.
    pub(crate) fn wake_all(&self) {
        let all: Vec<Arc<Watcher>> = self.watchers_by_target.lock().values().flatten().cloned().collect();
        all.iter().for_each(|watcher| watcher.wake());
    }

    fn watchers_of(&self, run: RunId, session: Option<&Arc<str>>) -> Vec<Arc<Watcher>> {
        let watchers_by_target = self.watchers_by_target.lock();
        let of_session = session.and_then(|session| watchers_by_target.get(&WatchTarget::Session(session.clone())));
        watchers_by_target.get(&WatchTarget::Run(run)).into_iter().chain(of_session).flatten().cloned().collect()
    }
}

/// The subscription of one watcher. Dropping it unsubscribes.
pub(crate) struct Subscription {
    watchers: Arc<Watchers>,
    target: WatchTarget,
    watcher: Arc<Watcher>,
}

impl Subscription {
    /// Resets the change flag, before the store is read.
    pub(crate) fn clear(&self) {
        self.watcher.changed.store(false, Ordering::Release);
    }

    /// Ready once something has changed since the last [`clear`](Self::clear).
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        *self.watcher.waker.lock() = Some(cx.waker().clone());
        if self.watcher.changed.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes the live activities, oldest first: all of them, or those at or below one path.
    pub(crate) fn take(&self, below: Option<(RunId, &Path)>) -> Vec<LiveActivity> {
        let mut kept = self.watcher.live.lock();
        let Some((run, path)) = below else { return kept.drain(..).collect() };
        let wanted = |live: &LiveActivity| live.run == run && live.path.positions().starts_with(path.positions());
        let (taken, left): (VecDeque<LiveActivity>, _) = kept.drain(..).partition(wanted);
        *kept = left;
        taken.into()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut watchers_by_target = self.watchers.watchers_by_target.lock();
        if let Some(of_this) = watchers_by_target.get_mut(&self.target) {
            of_this.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
            if of_this.is_empty() {
                watchers_by_target.remove(&self.target);
            }
        }
        drop(watchers_by_target);
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
    fn l23_a_slow_watcher_loses_the_oldest_live_activities_and_an_ended_one_costs_nothing() {
        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let (run, path) = (RunId::from_bytes([1; 16]), Path::root());
        watchers.send_live(run, None, &path, || panic!("there is no watcher"));
        let subscription = watchers.subscribe(WatchTarget::Run(run));
        watchers.send_live(RunId::from_bytes([2; 16]), None, &path, || panic!("it is for another run"));
        (0..LIVE_ACTIVITIES + 2).for_each(|n| watchers.send_live(run, None, &path, || progress(n)));
        let heard = subscription.take(None);
        assert_eq!((heard.len(), &heard[0].what), (LIVE_ACTIVITIES, &progress(2)));
        drop(subscription);
        assert!(watchers.watchers_by_target.lock().is_empty());
        assert_eq!(watchers.count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn l23_a_change_after_reading_is_not_missed() {
        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let (run, session) = (RunId::from_bytes([1; 16]), Arc::from("s"));
        let cx = Context::from_waker(noop_waker_ref());
        for target in [WatchTarget::Run(run), WatchTarget::Session(Arc::from("s"))] {
            let subscription = watchers.subscribe(target);
            subscription.clear();
            assert!(subscription.poll(&cx).is_pending());
            watchers.changed(run, Some(&session));
            assert!(subscription.poll(&cx).is_ready());
        }
    }

    #[test]
    fn l23_live_activities_below_a_path_come_before_its_end() {
        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let run = RunId::from_bytes([1; 16]);
        let subscription = watchers.subscribe(WatchTarget::Run(run));
        for path in ["0", "1/0", "1"] {
            watchers.send_live(run, None, &path.parse().unwrap(), || progress(0));
        }
        let below = subscription.take(Some((run, &"1".parse().unwrap())));
        assert_eq!(below.iter().map(|live| live.path.to_string()).collect::<Vec<_>>(), ["1/0", "1"]);
        assert_eq!(subscription.take(None).len(), 1);
    }
}
