//! The roster: the single registry of the runs that this process queues, takes up, drives or waits for.
//!
//! A run without an entry is not driven here and has no waiters. Every change is one function under one lock, so a run
//! has at most one owner in a process. A request that arrives while another task takes up the run is noted, and that
//! task handles it. The roster knows no store and holds no future: its callers act on its answers.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::id::RunId;
use crate::run::drive::Completion;
use crate::run::machine::TakenUp;
use crate::run::state::RunState;

/// Why a run is to be taken up. If there are several causes, the last variant in this list wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TakeUpCause {
    /// A key that one of its operations waits for is free. The run continues if it is suspended.
    Key,
    /// An earlier process held it or left it, and the code of this process may fit its journal.
    Recovery,
    /// A person asked for it.
    Person,
    /// This process owned it, or may have claimed it, and nothing here drives it.
    Undriven,
    /// Like `Undriven`, after the store failed in this process.
    Reload,
}

impl TakeUpCause {
    /// How a run in this state is taken up for this cause, or `None` if it is not.
    pub(crate) fn takes_up(self, state: &RunState) -> Option<TakenUp> {
        match (state, self) {
            (RunState::Finished { .. }, _) => None,
            (_, Self::Person) => Some(TakenUp::Resumed),
            (RunState::Queued | RunState::Suspended { .. }, _) => Some(TakenUp::Woken),
            (RunState::Running, Self::Key) => None,
            (RunState::Running, Self::Recovery) => Some(TakenUp::Found),
            (RunState::Running, Self::Undriven) => Some(TakenUp::Woken),
            (RunState::Running, Self::Reload) => Some(TakenUp::Reloaded),
            (RunState::Held { .. }, Self::Recovery) => Some(TakenUp::Found),
            (RunState::Held { .. }, _) => None,
        }
    }
}

/// What this process does with a run.
#[derive(Clone)]
pub(crate) enum RunStage<L> {
    /// It is taken up when its turn comes. The completion resolves when that has been tried.
    Queued(Arc<Completion>),
    /// One task takes it up. The completion resolves when it is driven, or is not to be driven here.
    TakingUp(Arc<Completion>),
    /// It is driven here.
    Driven(L),
    /// It is not driven here.
    NotDriven,
}

/// What happens to a run after this process stopped driving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// The process is done with it, and the waiters are notified.
    Forget,
    /// It is suspended, and the waiters keep waiting.
    Suspend,
    /// The caller takes it up again. No other task can get it in between.
    TakeUp,
}

/// The answer to a request to take up a run.
pub(crate) enum RequestAnswer<L> {
    /// The caller takes it up.
    Granted,
    /// It is queued, or another task takes it up and will look again.
    Noted,
    /// It is driven here.
    Driven(L),
}

pub(crate) struct Roster<L> {
    /// The order of the map does not matter: lists made from it are sorted.
    runs: Mutex<FxHashMap<RunId, RosterEntry<L>>>,
    /// Turns on a bug that the simulator must find.
    #[cfg(test)]
    ignores_claims: std::sync::atomic::AtomicBool,
}

struct RosterEntry<L> {
    stage: RunStage<L>,
    /// Requested while another task takes up the run.
    again: Option<TakeUpCause>,
    /// The epoch of the latest claim made beside the owner. It supersedes an owner with a lower epoch.
    claimed: u64,
    /// Completed at the end of the run, however often the run is suspended until then.
    waiters: Option<Arc<Completion>>,
}

impl<L> RosterEntry<L> {
    fn new(stage: RunStage<L>) -> Self {
        Self { stage, again: None, claimed: 0, waiters: None }
    }

    fn take(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, RunStage::NotDriven) {
            RunStage::Queued(settled) => RunStage::TakingUp(settled),
            _ => RunStage::TakingUp(Arc::default()),
        };
    }

    fn into_waiters(self) -> ToNotify {
        let settled = match self.stage {
            RunStage::Queued(settled) | RunStage::TakingUp(settled) => Some(settled),
            RunStage::Driven(_) | RunStage::NotDriven => None,
        };
        ToNotify { settled, waiters: self.waiters }
    }
}

impl<L> Default for Roster<L> {
    fn default() -> Self {
        Self {
            runs: Mutex::default(),
            #[cfg(test)]
            ignores_claims: Default::default(),
        }
    }
}

#[cfg(test)]
impl<L> Roster<L> {
    /// From now on, a claim made beside an owner is not noted.
    pub(crate) fn ignore_claims(&self) {
        self.ignores_claims.store(true, std::sync::atomic::Ordering::Release);
    }
}

impl<L: Clone> Roster<L> {
    pub(crate) fn stage(&self, run: RunId) -> RunStage<L> {
        self.runs.lock().get(&run).map_or(RunStage::NotDriven, |listed| listed.stage.clone())
    }

    pub(crate) fn driven(&self, run: RunId) -> Option<L> {
        match &self.runs.lock().get(&run)?.stage {
            RunStage::Driven(driven) => Some(driven.clone()),
            _ => None,
        }
    }

    /// Every run that is driven here, in the order of their ids.
    pub(crate) fn all_driven(&self) -> Vec<L> {
        let driven = |(run, listed): (&RunId, &RosterEntry<L>)| match &listed.stage {
            RunStage::Driven(driven) => Some((*run, driven.clone())),
            _ => None,
        };
        let mut all: Vec<(RunId, L)> = self.runs.lock().iter().filter_map(driven).collect();
        all.sort_unstable_by_key(|(run, _)| *run);
        all.into_iter().map(|(_, driven)| driven).collect()
    }

    /// Registers a new run as driven here.
    pub(crate) fn register_new(&self, run: RunId, driven: L) {
        let mut runs = self.runs.lock();
        runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven)).stage = RunStage::Driven(driven);
    }

    /// Queues the run to be taken up later, unless it is listed already.
    pub(crate) fn queue(&self, run: RunId) {
        let mut runs = self.runs.lock();
        let listed = runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven));
        if matches!(listed.stage, RunStage::NotDriven) {
            listed.stage = RunStage::Queued(Arc::default());
        }
    }

    /// Requests that a run is taken up. A queued run keeps its turn, unless the cause must not wait for it.
    pub(crate) fn request(&self, run: RunId, cause: TakeUpCause) -> RequestAnswer<L> {
        let mut runs = self.runs.lock();
        let listed = runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven));
        match &listed.stage {
            RunStage::Driven(driven) => RequestAnswer::Driven(driven.clone()),
            // The run asks for its key again when its turn comes.
            RunStage::Queued(_) if cause < TakeUpCause::Recovery => RequestAnswer::Noted,
            RunStage::TakingUp(_) => {
                listed.again = listed.again.max(Some(cause));
                RequestAnswer::Noted
            }
            RunStage::Queued(_) | RunStage::NotDriven => {
                listed.take();
                RequestAnswer::Granted
            }
        }
    }

    /// The caller has claimed the run under this epoch, and drives it if the answer is `Granted`. Otherwise another
    /// task of this process owns the run or takes it up. In that case the run is taken up again when that owner stops
    /// driving it, unless the owner's own claim is the later one.
    pub(crate) fn claimed(&self, run: RunId, epoch: u64) -> RequestAnswer<L> {
        let mut runs = self.runs.lock();
        let listed = runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven));
        let request = match &listed.stage {
            RunStage::Queued(_) | RunStage::NotDriven => {
                listed.take();
                return RequestAnswer::Granted;
            }
            RunStage::TakingUp(_) => RequestAnswer::Noted,
            RunStage::Driven(driven) => RequestAnswer::Driven(driven.clone()),
        };
        #[cfg(test)]
        if self.ignores_claims.load(std::sync::atomic::Ordering::Acquire) {
            return request;
        }
        listed.claimed = listed.claimed.max(epoch);
        request
    }

    /// Lets the caller take up a run that is neither driven nor being taken up. Otherwise returns the run's stage.
    pub(crate) fn grant(&self, run: RunId) -> Result<(), RunStage<L>> {
        let mut runs = self.runs.lock();
        let listed = runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven));
        match &listed.stage {
            RunStage::Queued(_) | RunStage::NotDriven => listed.take(),
            stage => return Err(stage.clone()),
        }
        Ok(())
    }

    /// The caller drives the run from now on, under this epoch. It reads the mailbox next, which covers the requests
    /// that were noted meanwhile, but not a later claim.
    pub(crate) fn taken_up(&self, run: RunId, driven: L, epoch: u64) -> TakenUpRun {
        let mut runs = self.runs.lock();
        let listed = runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven));
        listed.again = None;
        let settled = match std::mem::replace(&mut listed.stage, RunStage::Driven(driven)) {
            RunStage::TakingUp(settled) => Some(settled),
            _ => None,
        };
        TakenUpRun { settled, is_superseded: listed.claimed > epoch }
    }

    /// The caller does not drive the run that it took up. If the run was requested meanwhile, returns the cause, and
    /// the caller tries again.
    pub(crate) fn not_taken_up(&self, run: RunId) -> Result<TakeUpCause, ToNotify> {
        let mut runs = self.runs.lock();
        let Entry::Occupied(mut entry) = runs.entry(run) else { return Err(ToNotify::default()) };
        if !matches!(entry.get().stage, RunStage::TakingUp(_)) {
            return Err(ToNotify::default());
        }
        let listed = entry.get_mut();
        let was_claimed = std::mem::take(&mut listed.claimed) > 0;
        match listed.again.take().max(was_claimed.then_some(TakeUpCause::Undriven)) {
            Some(cause) => Ok(cause),
            None => Err(entry.remove().into_waiters()),
        }
    }

    /// The owner under this epoch stops driving a run, if it is still the registered owner. Returns what it does next:
    /// it takes up the run again if a later claim was made beside it.
    pub(crate) fn stop_driving(
        &self,
        run: RunId,
        is_owner: impl FnOnce(&L) -> bool,
        epoch: u64,
        next: NextStep,
    ) -> (NextStep, ToNotify) {
        let mut runs = self.runs.lock();
        let Entry::Occupied(mut entry) = runs.entry(run) else { return (next, ToNotify::default()) };
        let listed = entry.get_mut();
        match &listed.stage {
            RunStage::Driven(driven) if is_owner(driven) => {}
            _ => return (next, ToNotify::default()),
        }
        let next = if std::mem::take(&mut listed.claimed) > epoch { NextStep::TakeUp } else { next };
        match next {
            NextStep::TakeUp => listed.stage = RunStage::TakingUp(Arc::default()),
            NextStep::Suspend if listed.waiters.is_some() => listed.stage = RunStage::NotDriven,
            NextStep::Suspend => drop(entry.remove()),
            NextStep::Forget => return (next, entry.remove().into_waiters()),
        }
        (next, ToNotify::default())
    }

    /// Registers a waiter for the end of a run, however often the run is suspended until then.
    pub(crate) fn add_waiter(&self, run: RunId) -> Arc<Completion> {
        let mut runs = self.runs.lock();
        let listed = runs.entry(run).or_insert_with(|| RosterEntry::new(RunStage::NotDriven));
        listed.waiters.get_or_insert_default().clone()
    }

    /// Removes a waiter. The last one also removes the entry of a run that is not driven here.
    pub(crate) fn remove_waiter(&self, run: RunId, waiter: &Arc<Completion>) {
        let mut runs = self.runs.lock();
        let Entry::Occupied(mut entry) = runs.entry(run) else { return };
        let listed = entry.get_mut();
        // One reference is the roster's, the other this waiter's.
        let is_last = Arc::strong_count(waiter) == 2;
        if !(is_last && listed.waiters.as_ref().is_some_and(|other| Arc::ptr_eq(other, waiter))) {
            return;
        }
        listed.waiters = None;
        if matches!(listed.stage, RunStage::NotDriven) {
            entry.remove();
        }
    }

    /// Removes all runs that are not driven, and returns everything that waits. Driven runs stay until their owners
    /// stop driving them.
    pub(crate) fn clear(&self) -> Vec<ToNotify> {
        let mut all = Vec::new();
        self.runs.lock().retain(|run, listed| {
            let is_driven = matches!(listed.stage, RunStage::Driven(_));
            all.push((
                *run,
                match is_driven {
                    true => ToNotify { settled: None, waiters: listed.waiters.take() },
                    false => std::mem::replace(listed, RosterEntry::new(RunStage::NotDriven)).into_waiters(),
                },
            ));
            is_driven
        });
        all.sort_unstable_by_key(|(run, _)| *run);
        all.into_iter().map(|(_, waiters)| waiters).collect()
    }
}

/// What follows when a run that was taken up is driven.
#[must_use = "the waiters must be notified"]
pub(crate) struct TakenUpRun {
    /// Waits until the run is taken up.
    pub(crate) settled: Option<Arc<Completion>>,
    /// A later claim supersedes the one that it is driven under.
    pub(crate) is_superseded: bool,
}

/// The waiters of a run that is no longer driven here. They are notified after the lock is released, because a waiter
/// may call the roster at once.
#[derive(Default)]
#[must_use]
pub(crate) struct ToNotify {
    /// Waits until the run is taken up.
    pub(crate) settled: Option<Arc<Completion>>,
    /// Waits for its end.
    pub(crate) waiters: Option<Arc<Completion>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::state::{Ending, Hold};

    const RUN: RunId = RunId::from_bytes([7; 16]);

    type Setup = fn(&Roster<u32>);

    /// Brings a run into each stage.
    const STAGES: [(&str, Setup); 4] = [
        ("not driven", |_| {}),
        ("queued", |roster| roster.queue(RUN)),
        ("taking up", |roster| assert_eq!(requested(roster, TakeUpCause::Key), "granted")),
        ("driven", |roster| roster.register_new(RUN, 1)),
    ];

    fn stage_name(roster: &Roster<u32>) -> &'static str {
        match roster.stage(RUN) {
            RunStage::NotDriven => "not driven",
            RunStage::Queued(_) => "queued",
            RunStage::TakingUp(_) => "taking up",
            RunStage::Driven(_) => "driven",
        }
    }

    fn requested(roster: &Roster<u32>, cause: TakeUpCause) -> String {
        match roster.request(RUN, cause) {
            RequestAnswer::Granted => "granted".to_owned(),
            RequestAnswer::Noted => "noted".to_owned(),
            RequestAnswer::Driven(driven) => format!("driven {driven}"),
        }
    }

    /// Checks every transition: the stage that a change leads to, and the answer to its caller.
    fn check(change: impl Fn(&Roster<u32>) -> String, expected: [(&str, &str); 4]) {
        for ((from, set_up), (to, answer)) in STAGES.into_iter().zip(expected) {
            let roster = Roster::default();
            set_up(&roster);
            assert_eq!(stage_name(&roster), from);
            assert_eq!((change(&roster).as_str(), stage_name(&roster)), (answer, to), "from {from}");
        }
    }

    #[test]
    fn e18_a_request_is_granted_to_one_task_and_noted_for_it_afterwards() {
        let expected = [("taking up", "granted"), ("queued", "noted"), ("taking up", "noted"), ("driven", "driven 1")];
        check(|roster| requested(roster, TakeUpCause::Key), expected);
        for cause in [TakeUpCause::Recovery, TakeUpCause::Person, TakeUpCause::Undriven, TakeUpCause::Reload] {
            let expected =
                [("taking up", "granted"), ("taking up", "granted"), ("taking up", "noted"), ("driven", "driven 1")];
            check(|roster| requested(roster, cause), expected);
        }
    }

    #[test]
    fn e18_a_run_that_was_found_and_claimed_has_one_owner() {
        let claimed = |roster: &Roster<u32>| match roster.claimed(RUN, 5) {
            RequestAnswer::Granted => "granted".to_owned(),
            RequestAnswer::Noted => "noted".to_owned(),
            RequestAnswer::Driven(driven) => format!("driven {driven}"),
        };
        check(
            claimed,
            [("taking up", "granted"), ("taking up", "granted"), ("taking up", "noted"), ("driven", "driven 1")],
        );
        let roster = Roster::<u32>::default();
        roster.register_new(RUN, 1);
        claimed(&roster);
        let (next, _) = roster.stop_driving(RUN, |_| true, 1, NextStep::Suspend);
        assert_eq!((next, stage_name(&roster)), (NextStep::TakeUp, "taking up"), "the claim beside it is not lost");
        assert!(!roster.taken_up(RUN, 2, 6).is_superseded);
        let (next, _) = roster.stop_driving(RUN, |_| true, 6, NextStep::Suspend);
        assert_eq!((next, stage_name(&roster)), (NextStep::Suspend, "not driven"), "it is handled once");
        requested(&roster, TakeUpCause::Key);
        claimed(&roster);
        assert_eq!(roster.not_taken_up(RUN).ok(), Some(TakeUpCause::Undriven));
    }

    #[test]
    fn e18_a_claim_made_while_a_run_is_taken_up_counts_if_it_is_the_later_one() {
        for (epoch, is_superseded, next) in
            [(4, true, NextStep::TakeUp), (5, false, NextStep::Forget), (6, false, NextStep::Forget)]
        {
            let roster = Roster::<u32>::default();
            requested(&roster, TakeUpCause::Undriven);
            assert!(matches!(roster.claimed(RUN, 5), RequestAnswer::Noted));
            assert_eq!(roster.taken_up(RUN, 1, epoch).is_superseded, is_superseded, "epoch {epoch}");
            assert_eq!(roster.stop_driving(RUN, |_| true, epoch, NextStep::Forget).0, next, "epoch {epoch}");
        }
    }

    #[test]
    fn e18_a_grant_is_for_one_task_and_leaves_no_note() {
        let grant = |roster: &Roster<u32>| format!("{}", roster.grant(RUN).is_ok());
        check(grant, [("taking up", "true"), ("taking up", "true"), ("taking up", "false"), ("driven", "false")]);
        let roster = Roster::<u32>::default();
        assert!(roster.grant(RUN).is_ok() && roster.grant(RUN).is_err());
        assert!(roster.not_taken_up(RUN).is_err(), "the second one requested nothing");
    }

    #[test]
    fn w12_only_a_run_that_is_not_driven_is_queued() {
        let queue = |roster: &Roster<u32>| {
            roster.queue(RUN);
            String::new()
        };
        check(queue, [("queued", ""), ("queued", ""), ("taking up", ""), ("driven", "")]);
    }

    #[test]
    fn l12_a_run_that_is_taken_up_is_driven_and_its_waiters_are_notified() {
        let taken = |roster: &Roster<u32>| format!("{}", roster.taken_up(RUN, 2, 1).settled.is_some());
        check(taken, [("driven", "false"), ("driven", "false"), ("driven", "true"), ("driven", "false")]);
    }

    #[test]
    fn e18_only_the_task_that_takes_a_run_up_can_say_that_it_is_not_driven() {
        let not_taken = |roster: &Roster<u32>| match roster.not_taken_up(RUN) {
            Ok(cause) => format!("again {cause:?}"),
            Err(waiters) => format!("{}", waiters.settled.is_some()),
        };
        check(not_taken, [("not driven", "false"), ("queued", "false"), ("not driven", "true"), ("driven", "false")]);
    }

    #[test]
    fn e18_only_the_registered_owner_stops_driving() {
        for (next, to) in
            [(NextStep::Forget, "not driven"), (NextStep::Suspend, "not driven"), (NextStep::TakeUp, "taking up")]
        {
            let stop_driving = |roster: &Roster<u32>| {
                drop(roster.stop_driving(RUN, |driven| *driven == 1, 1, next));
                String::new()
            };
            check(stop_driving, [("not driven", ""), ("queued", ""), ("taking up", ""), (to, "")]);
        }
        let superseded = |roster: &Roster<u32>| {
            drop(roster.stop_driving(RUN, |driven| *driven == 9, 1, NextStep::Forget));
            String::new()
        };
        check(superseded, [("not driven", ""), ("queued", ""), ("taking up", ""), ("driven", "")]);
    }

    #[test]
    fn w03_requests_while_a_run_is_taken_up_are_kept_and_the_strongest_cause_counts() {
        let roster = Roster::<u32>::default();
        requested(&roster, TakeUpCause::Key);
        requested(&roster, TakeUpCause::Undriven);
        requested(&roster, TakeUpCause::Recovery);
        assert_eq!(roster.not_taken_up(RUN).ok(), Some(TakeUpCause::Undriven));
        assert_eq!(stage_name(&roster), "taking up", "the same task looks once more");
        assert!(roster.not_taken_up(RUN).is_err());
        assert_eq!(stage_name(&roster), "not driven");
        requested(&roster, TakeUpCause::Key);
        requested(&roster, TakeUpCause::Key);
        let _taken = roster.taken_up(RUN, 1, 1);
        drop(roster.stop_driving(RUN, |_| true, 1, NextStep::TakeUp));
        assert!(roster.not_taken_up(RUN).is_err(), "requests from before the run was driven are handled");
    }

    #[test]
    fn w03_waiters_stay_while_a_run_is_suspended_and_are_notified_at_its_end() {
        let roster = Roster::<u32>::default();
        roster.register_new(RUN, 1);
        let waiter = roster.add_waiter(RUN);
        assert!(roster.stop_driving(RUN, |_| true, 1, NextStep::Suspend).1.waiters.is_none());
        requested(&roster, TakeUpCause::Key);
        let _taken = roster.taken_up(RUN, 2, 1);
        let (_, notify) = roster.stop_driving(RUN, |_| true, 1, NextStep::Forget);
        assert!(notify.waiters.is_some_and(|waiters| Arc::ptr_eq(&waiters, &waiter)));
    }

    #[test]
    fn w03_a_suspended_run_without_waiters_has_no_entry() {
        let roster = Roster::<u32>::default();
        let (first, second) = (roster.add_waiter(RUN), roster.add_waiter(RUN));
        roster.remove_waiter(RUN, &second);
        assert_eq!(roster.runs.lock().len(), 1, "one waiter is left");
        drop(second);
        roster.remove_waiter(RUN, &first);
        assert!(roster.runs.lock().is_empty());
        roster.register_new(RUN, 1);
        drop(roster.stop_driving(RUN, |_| true, 1, NextStep::Suspend));
        assert!(roster.runs.lock().is_empty());
    }

    #[test]
    fn l12_at_shutdown_all_waiters_are_notified() {
        for ((from, set_up), expected) in STAGES.into_iter().zip([(0, 1), (1, 1), (1, 1), (0, 1)]) {
            let roster = Roster::default();
            set_up(&roster);
            let _waiter = roster.add_waiter(RUN);
            let all = roster.clear();
            let count = |of: fn(&ToNotify) -> bool| all.iter().filter(|notify| of(notify)).count();
            assert_eq!(
                (count(|notify| notify.settled.is_some()), count(|notify| notify.waiters.is_some())),
                expected,
                "{from}"
            );
            assert_eq!(stage_name(&roster), if from == "driven" { "driven" } else { "not driven" });
        }
    }

    #[test]
    fn e19_the_cause_and_the_state_decide_how_a_run_is_taken_up() {
        use TakenUp::{Found, Reloaded, Resumed, Woken};
        let states = [
            RunState::Queued,
            RunState::Suspended { wake: None },
            RunState::Running,
            RunState::Held { hold: Hold::Sealed { why: String::new() } },
            RunState::Finished { ending: Ending::Ok },
        ];
        let table = [
            (TakeUpCause::Key, [Some(Woken), Some(Woken), None, None, None]),
            (TakeUpCause::Recovery, [Some(Woken), Some(Woken), Some(Found), Some(Found), None]),
            (TakeUpCause::Person, [Some(Resumed), Some(Resumed), Some(Resumed), Some(Resumed), None]),
            (TakeUpCause::Undriven, [Some(Woken), Some(Woken), Some(Woken), None, None]),
            (TakeUpCause::Reload, [Some(Woken), Some(Woken), Some(Reloaded), None, None]),
        ];
        for (cause, expected) in table {
            assert_eq!(states.each_ref().map(|state| cause.takes_up(state)), expected, "{cause:?}");
        }
    }
}
