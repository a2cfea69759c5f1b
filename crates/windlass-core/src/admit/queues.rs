//! The queues of keys, and the waits through which operations could block one another. A plain value without locks,
//! wakers or a store. A runtime that has its store to itself keeps one, and a store that several workers share keeps
//! one for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::id::RunId;
use crate::path::Path;

/// The operation that a place belongs to.
pub(crate) type OpAddress = (RunId, Path);

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitTarget {
    /// A key, by the name of its queue.
    Key(Arc<str>),
    /// The end of a run.
    End(RunId),
}

/// A place in the queue of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    pub(crate) queue: Arc<str>,
    pub(crate) key: Arc<str>,
    /// Grows with every arrival.
    pub(crate) ticket: u64,
}

/// A wait, and the queues of the keys that the bodies around it hold.
struct QueueWait {
    wanted: WaitTarget,
    held: Vec<Arc<str>>,
}

#[derive(Default)]
pub(crate) struct Queues {
    /// Ordered by ticket, which is the order of arrival. The first place of a queue holds the key.
    queues: FxHashMap<Arc<str>, BTreeMap<u64, OpAddress>>,
    places: BTreeMap<OpAddress, QueuePlace>,
    waits: BTreeMap<OpAddress, QueueWait>,
    /// The waits of bodies that hold the key of a queue, by that queue.
    waits_by_held: FxHashMap<Arc<str>, BTreeSet<OpAddress>>,
    last: u64,
}

impl Queues {
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Makes sure that numbers up to `last` are not handed out again.
    pub(crate) fn number_after(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    pub(crate) fn get(&self, at: &OpAddress) -> Option<&QueuePlace> {
        self.places.get(at)
    }

    /// The places of a run, in the order of their paths.
    pub(crate) fn of(&self, run: RunId) -> impl Iterator<Item = (&OpAddress, &QueuePlace)> {
        self.places.range((run, Path::root())..).take_while(move |(at, _)| at.0 == run)
    }

    /// Whether the place holds its key.
    pub(crate) fn is_first(&self, place: &QueuePlace) -> bool {
        self.holder_ticket(&place.queue) == Some(place.ticket)
    }

    fn holder_ticket(&self, queue: &Arc<str>) -> Option<u64> {
        self.queues.get(queue)?.first_key_value().map(|(first, _)| *first)
    }

    /// The operation that holds the key of a queue.
    pub(crate) fn holder(&self, queue: &Arc<str>) -> Option<&OpAddress> {
        self.queues.get(queue)?.first_key_value().map(|(_, at)| at)
    }

    /// The ticket of the last place of a queue.
    pub(crate) fn last_ticket(&self, queue: &Arc<str>) -> Option<u64> {
        self.queues.get(queue)?.last_key_value().map(|(last, _)| *last)
    }

    /// Queues for a key, unless the operation has a place already. `held` are the queues of the keys that the bodies
    /// around it hold. Refused, with the cycle named, if the wait could never end.
    pub(crate) fn request(
        &mut self,
        at: &OpAddress,
        (queue, key): (Arc<str>, Arc<str>),
        held: Vec<Arc<str>>,
    ) -> Result<QueuePlace, String> {
        if let Some(place) = self.places.get(at) {
            return Ok(place.clone());
        }
        if self.queues.contains_key(&queue)
            && let Some(cycle) = self.cycle(at.0, &WaitTarget::Key(queue.clone()), &held)
        {
            return Err(cycle);
        }
        let ticket = self.number();
        let place = QueuePlace { queue, key, ticket };
        self.enter(at.clone(), place.clone(), held);
        Ok(place)
    }

    /// Gives an operation this place.
    pub(crate) fn enter(&mut self, at: OpAddress, place: QueuePlace, held: Vec<Arc<str>>) {
        let queued = self.queues.entry(place.queue.clone()).or_default();
        queued.insert(place.ticket, at.clone());
        if queued.first_key_value().is_some_and(|(first, _)| *first != place.ticket) {
            self.wait(at.clone(), WaitTarget::Key(place.queue.clone()), held);
        }
        self.places.insert(at, place);
    }

    /// Registers that the operation waits for the end of a run. Refused, with the cycle named, if that could never
    /// come.
    pub(crate) fn await_end(&mut self, at: &OpAddress, run: RunId, held: Vec<Arc<str>>) -> Result<(), String> {
        let wanted = WaitTarget::End(run);
        if self.waits.contains_key(at) {
            return Ok(());
        }
        if let Some(cycle) = self.cycle(at.0, &wanted, &held) {
            return Err(cycle);
        }
        self.wait(at.clone(), wanted, held);
        Ok(())
    }

    fn wait(&mut self, at: OpAddress, wanted: WaitTarget, held: Vec<Arc<str>>) {
        for queue in &held {
            self.waits_by_held.entry(queue.clone()).or_default().insert(at.clone());
        }
        self.waits.insert(at, QueueWait { wanted, held });
    }

    /// The operation no longer waits.
    pub(crate) fn stop_waiting(&mut self, at: &OpAddress) {
        let Some(wait) = self.waits.remove(at) else { return };
        for queue in &wait.held {
            if let Some(waits) = self.waits_by_held.get_mut(queue) {
                waits.remove(at);
                if waits.is_empty() {
                    self.waits_by_held.remove(queue);
                }
            }
        }
    }

    /// Gives up the place of an operation, and its wait. Returns the operation that holds the key now, if it did not
    /// before.
    #[must_use = "the operation that holds the key now must be notified"]
    pub(crate) fn leave(&mut self, at: &OpAddress) -> Option<OpAddress> {
        self.stop_waiting(at);
        let place = self.places.remove(at)?;
        let queue = self.queues.get_mut(&place.queue)?;
        let was_first = queue.first_key_value().is_some_and(|(first, _)| *first == place.ticket);
        queue.remove(&place.ticket);
        let Some(next) = queue.first_key_value().map(|(_, next)| next.clone()) else {
            self.queues.remove(&place.queue);
            return None;
        };
        if !was_first {
            return None;
        }
        self.stop_waiting(&next);
        Some(next)
    }

    /// Like [`leave`](Self::leave), for every operation of a run at or below a path.
    #[must_use = "the operations that hold the keys now must be notified"]
    pub(crate) fn leave_below(&mut self, run: RunId, path: &Path) -> Vec<OpAddress> {
        let is_below = |at: &&OpAddress| at.1.positions().starts_with(path.positions());
        let of_run = (run, Path::root())..;
        let placed = self.places.range(of_run.clone()).map(|(at, _)| at);
        let waiting = self.waits.range(of_run).map(|(at, _)| at);
        let all: BTreeSet<OpAddress> = placed
            .take_while(|at| at.0 == run)
            .chain(waiting.take_while(|at| at.0 == run))
            .filter(is_below)
            .cloned()
            .collect();
        let granted: Vec<OpAddress> = all.iter().filter_map(|at| self.leave(at)).collect();
        // An operation that got a key and left in the same step holds nothing.
        granted.into_iter().filter(|at| !all.contains(at)).collect()
    }

    /// Why an operation of this run must not wait: what it wants is held by an operation that waits, directly or
    /// through others, for a key that the bodies around it hold, or for the end of its run. The wait that would close
    /// the cycle is the youngest, so it fails.
    fn cycle(&self, run: RunId, wanted: &WaitTarget, held: &[Arc<str>]) -> Option<String> {
        // Everything that `wanted` depends on: each entry is waited for by an operation that blocks an earlier entry.
        let mut chain: Vec<WaitTarget> = vec![wanted.clone()];
        let mut next = 0;
        while let Some(node) = chain.get(next).cloned() {
            next += 1;
            let blocked: Vec<&QueueWait> = match &node {
                WaitTarget::Key(queue) => {
                    let waits = self.waits_by_held.get(queue).into_iter().flatten();
                    waits.filter_map(|at| self.waits.get(at)).collect()
                }
                WaitTarget::End(run) => {
                    let waits = self.waits.range((*run, Path::root())..);
                    waits.take_while(|(at, _)| at.0 == *run).map(|(_, wait)| wait).collect()
                }
            };
            for wait in blocked {
                let closes = match &wait.wanted {
                    WaitTarget::Key(queue) => held.contains(queue),
                    WaitTarget::End(other) => *other == run,
                };
                if closes {
                    return Some(cycle_message(wanted, &node, &wait.wanted));
                }
                if !chain.contains(&wait.wanted) {
                    chain.push(wait.wanted.clone());
                }
            }
        }
        match wanted {
            WaitTarget::End(other) if *other == run => Some(format!("run {run} cannot wait for its own end")),
            _ => None,
        }
    }
}

/// The sentence that names a cycle: what is wanted, what blocks it, and what the blocker waits for.
fn cycle_message(wanted: &WaitTarget, node: &WaitTarget, closing: &WaitTarget) -> String {
    let wants = match wanted {
        WaitTarget::Key(queue) => format!("wants key `{queue}`"),
        WaitTarget::End(run) => format!("wants to wait for the end of run {run}"),
    };
    let blocks = match node {
        WaitTarget::Key(queue) => format!("a call that holds `{queue}`"),
        WaitTarget::End(run) => format!("run {run}"),
    };
    match closing {
        WaitTarget::Key(own) => format!(
            "this call holds key `{own}` and {wants}, while {blocks} waits for `{own}`: neither could ever continue. Take \
             keys in one order everywhere, or declare the key on the outermost tool only"
        ),
        WaitTarget::End(own) => format!(
            "this call of run {own} {wants}, while {blocks} waits for the end of run {own}: neither could ever continue. \
             Wait for the run outside of the body that holds the key"
        ),
    }
}

#[cfg(test)]
impl Queues {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.places.is_empty() && self.waits.is_empty() && self.waits_by_held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u8) -> RunId {
        RunId::from_bytes([n; 16])
    }

    fn at(n: u8) -> OpAddress {
        (run(n), Path::root())
    }

    fn below(n: u8, index: u32) -> OpAddress {
        (run(n), Path::root().child(index))
    }

    fn take(queues: &mut Queues, at: &OpAddress, key: &str, held: &[&str]) -> Result<bool, String> {
        let held = held.iter().map(|key| (*key).into()).collect();
        let place = queues.request(at, (key.into(), key.into()), held)?;
        Ok(queues.is_first(&place))
    }

    #[test]
    fn e09_a_key_that_its_holder_keeps_while_it_waits_for_the_asking_run_is_refused_by_name() {
        let mut queues = Queues::default();
        assert_eq!(take(&mut queues, &at(1), "k", &[]), Ok(true));
        queues.await_end(&below(1, 0), run(2), vec!["k".into()]).unwrap();
        let refused = take(&mut queues, &at(2), "k", &[]).unwrap_err();
        assert!(refused.contains(&format!("this call of run {} wants key `k`", run(2))), "{refused}");
        assert!(refused.contains("a call that holds `k` waits for the end of run"), "{refused}");
        // Nor through a third run, which holds nothing.
        queues.await_end(&at(2), run(3), Vec::new()).unwrap();
        assert!(take(&mut queues, &at(3), "k", &[]).is_err(), "run 1 waits for run 2, and that for run 3");
        queues.stop_waiting(&at(2));
        assert_eq!(take(&mut queues, &at(3), "k", &[]), Ok(false), "without that wait it has its place");
    }

    #[test]
    fn e09_waiting_for_a_run_that_wants_a_key_of_the_body_around_is_refused_by_name() {
        let mut queues = Queues::default();
        assert_eq!(take(&mut queues, &at(1), "k", &[]), Ok(true));
        assert_eq!(take(&mut queues, &at(2), "k", &[]), Ok(false));
        let refused = queues.await_end(&below(1, 0), run(2), vec!["k".into()]).unwrap_err();
        assert!(refused.contains("holds key `k` and wants to wait for the end of run"), "{refused}");
        assert_eq!(queues.await_end(&below(1, 0), run(3), vec!["k".into()]), Ok(()));
        // Two runs that wait for each other's end.
        let refused = queues.await_end(&at(3), run(1), Vec::new()).unwrap_err();
        assert!(refused.contains("waits for the end of run"), "{refused}");
        assert!(queues.await_end(&at(4), run(4), Vec::new()).unwrap_err().contains("its own end"));
    }

    #[test]
    fn e09_leaving_grants_the_key_to_the_next_and_never_to_one_that_leaves_too() {
        let mut queues = Queues::default();
        for at in [at(1), below(1, 0), at(2)] {
            take(&mut queues, &at, "k", &[]).unwrap();
        }
        assert_eq!(queues.leave_below(run(1), &Path::root()), [at(2)]);
        assert_eq!(queues.holder(&"k".into()), Some(&at(2)));
        assert_eq!(queues.leave(&at(2)), None);
        assert!(queues.is_empty());
    }
}
