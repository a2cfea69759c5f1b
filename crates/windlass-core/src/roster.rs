//! The roster: the one registry of the runs that this process has to do with.
//!
//! A run is queued, being taken up, driven, or at rest; a run without an entry is at rest and has no waiters. Every change
//! is one function under one lock, so a run has at most one owner in a process, and a request that comes while another task
//! takes the run up is noted and seen to by that task. The roster knows no store and holds no future: its callers do what it
//! says.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::id::RunId;
use crate::run::drive::Completion;
use crate::run::machine::TakenUp;
use crate::run::state::RunState;

/// Why a run is to be taken up. A later variant takes precedence over an earlier one when both are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Something may have come for it, or its time has: it goes on if it is at rest.
    Woken,
    /// A list of the store says that its owner left it.
    Left,
    /// An earlier process held it or left it, and the code of this one may fit.
    Recovery,
    /// A person asked for it.
    Person,
    /// This process owned it, or may have claimed it, and nothing here drives it.
    Unowned,
    /// The same, after the store failed this process.
    Reload,
}

impl Cause {
    /// How a run in this state is taken up for this cause; `None` if it is not.
    pub(crate) fn takes_up(self, state: &RunState) -> Option<TakenUp> {
        match (state, self) {
            (RunState::Finished { .. }, _) => None,
            (_, Self::Person) => Some(TakenUp::Resumed),
            (RunState::Queued | RunState::Suspended { .. }, _) => Some(TakenUp::Woken),
            (RunState::Running, Self::Woken) => None,
            (RunState::Running, Self::Left | Self::Recovery) => Some(TakenUp::Found),
            (RunState::Running, Self::Unowned) => Some(TakenUp::Woken),
            (RunState::Running, Self::Reload) => Some(TakenUp::Reloaded),
            (RunState::Held { .. }, Self::Recovery) => Some(TakenUp::Found),
            (RunState::Held { .. }, _) => None,
        }
    }
}

/// Where a run stands in this process.
#[derive(Clone)]
pub(crate) enum Stage<L> {
    /// It is taken up once its turn comes. The completion tells when that has been tried.
    Queued(Arc<Completion>),
    /// One task takes it up. The completion tells when it is driven, or is not to be.
    Taking(Arc<Completion>),
    /// It is driven here.
    Live(L),
    /// It is not driven here.
    Resting,
}

/// What becomes of a run that is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing here has to do with it any more; the waiters are told.
    Over,
    /// It rests; the waiters go on waiting.
    Rest,
    /// The caller takes it up again: no other task can come in between.
    TakeUp,
}

/// What a request to take up a run came to.
pub(crate) enum Request<L> {
    /// The caller is the one that takes it up.
    Granted,
    /// It is queued, or another task is at it and will look again.
    Noted,
    /// It is driven here.
    Live(L),
}

pub(crate) struct Roster<L> {
    /// Read in no order that matters: what is listed is sorted.
    runs: Mutex<FxHashMap<RunId, Place<L>>>,
    /// A bug that the simulator must find.
    #[cfg(test)]
    forgets: std::sync::atomic::AtomicBool,
}

struct Place<L> {
    stage: Stage<L>,
    /// Asked for while another task takes the run up.
    again: Option<Cause>,
    /// Wait for the end of the run, however often it rests until then.
    waiters: Option<Arc<Completion>>,
}

impl<L> Place<L> {
    fn new(stage: Stage<L>) -> Self {
        Self { stage, again: None, waiters: None }
    }

    fn take(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Resting) {
            Stage::Queued(settled) => Stage::Taking(settled),
            _ => Stage::Taking(Arc::default()),
        };
    }

    fn told(self) -> Told {
        let settled = match self.stage {
            Stage::Queued(settled) | Stage::Taking(settled) => Some(settled),
            Stage::Live(_) | Stage::Resting => None,
        };
        Told { settled, waiters: self.waiters }
    }
}

impl<L> Default for Roster<L> {
    fn default() -> Self {
        Self {
            runs: Mutex::default(),
            #[cfg(test)]
            forgets: Default::default(),
        }
    }
}

#[cfg(test)]
impl<L> Roster<L> {
    /// What is asked for while a run is taken up is not noted from now on.
    pub(crate) fn forget_requests(&self) {
        self.forgets.store(true, std::sync::atomic::Ordering::Release);
    }
}

impl<L: Clone> Roster<L> {
    pub(crate) fn stage(&self, run: RunId) -> Stage<L> {
        self.runs.lock().get(&run).map_or(Stage::Resting, |place| place.stage.clone())
    }

    pub(crate) fn live(&self, run: RunId) -> Option<L> {
        match &self.runs.lock().get(&run)?.stage {
            Stage::Live(live) => Some(live.clone()),
            _ => None,
        }
    }

    /// Every run that is driven here, in the order of their ids.
    pub(crate) fn all_live(&self) -> Vec<L> {
        let live = |(run, place): (&RunId, &Place<L>)| match &place.stage {
            Stage::Live(live) => Some((*run, live.clone())),
            _ => None,
        };
        let mut all: Vec<(RunId, L)> = self.runs.lock().iter().filter_map(live).collect();
        all.sort_unstable_by_key(|(run, _)| *run);
        all.into_iter().map(|(_, live)| live).collect()
    }

    /// A new run is driven here.
    pub(crate) fn born(&self, run: RunId, live: L) {
        let mut runs = self.runs.lock();
        runs.entry(run).or_insert_with(|| Place::new(Stage::Resting)).stage = Stage::Live(live);
    }

    /// The run waits for its turn to be taken up, unless it is here already.
    pub(crate) fn queue(&self, run: RunId) {
        let mut runs = self.runs.lock();
        let place = runs.entry(run).or_insert_with(|| Place::new(Stage::Resting));
        if matches!(place.stage, Stage::Resting) {
            place.stage = Stage::Queued(Arc::default());
        }
    }

    /// Asks for a run to be taken up. A queued one is at its turn, unless the cause cannot wait for that.
    pub(crate) fn request(&self, run: RunId, cause: Cause) -> Request<L> {
        let mut runs = self.runs.lock();
        let place = runs.entry(run).or_insert_with(|| Place::new(Stage::Resting));
        match &place.stage {
            Stage::Live(live) => Request::Live(live.clone()),
            // Its mailbox is read when its turn comes.
            Stage::Queued(_) if cause < Cause::Recovery => Request::Noted,
            #[cfg(test)]
            Stage::Taking(_) if self.forgets.load(std::sync::atomic::Ordering::Acquire) => Request::Noted,
            Stage::Taking(_) => {
                place.again = place.again.max(Some(cause));
                Request::Noted
            }
            Stage::Queued(_) | Stage::Resting => {
                place.take();
                Request::Granted
            }
        }
    }

    /// Lets the caller take up a run, if it is neither driven nor being taken up; else says where it stands.
    pub(crate) fn grant(&self, run: RunId) -> Result<(), Stage<L>> {
        let mut runs = self.runs.lock();
        let place = runs.entry(run).or_insert_with(|| Place::new(Stage::Resting));
        match &place.stage {
            Stage::Queued(_) | Stage::Resting => place.take(),
            stage => return Err(stage.clone()),
        }
        Ok(())
    }

    /// The run that the caller takes up is driven from now on. The caller looks into its mailbox next, so what was asked for
    /// meanwhile is seen to.
    #[must_use = "whoever waits for the run to be taken up is to be told"]
    pub(crate) fn taken(&self, run: RunId, live: L) -> Option<Arc<Completion>> {
        let mut runs = self.runs.lock();
        let place = runs.entry(run).or_insert_with(|| Place::new(Stage::Resting));
        place.again = None;
        match std::mem::replace(&mut place.stage, Stage::Live(live)) {
            Stage::Taking(settled) => Some(settled),
            _ => None,
        }
    }

    /// The run that the caller takes up is not to be driven, as far as the caller saw. If something asked for it meanwhile,
    /// the caller looks once more.
    pub(crate) fn not_taken(&self, run: RunId) -> Result<Cause, Told> {
        let mut runs = self.runs.lock();
        let Entry::Occupied(mut entry) = runs.entry(run) else { return Err(Told::default()) };
        if !matches!(entry.get().stage, Stage::Taking(_)) {
            return Err(Told::default());
        }
        if let Some(cause) = entry.get_mut().again.take() {
            return Ok(cause);
        }
        Err(entry.remove().told())
    }

    /// The owner of a run lets go of it, if it is still the one that is known here.
    pub(crate) fn let_go(&self, run: RunId, is_owner: impl FnOnce(&L) -> bool, next: Next) -> Told {
        let mut runs = self.runs.lock();
        let Entry::Occupied(mut entry) = runs.entry(run) else { return Told::default() };
        match &entry.get().stage {
            Stage::Live(live) if is_owner(live) => {}
            _ => return Told::default(),
        }
        match next {
            Next::TakeUp => entry.get_mut().stage = Stage::Taking(Arc::default()),
            Next::Rest if entry.get().waiters.is_some() => entry.get_mut().stage = Stage::Resting,
            Next::Rest => drop(entry.remove()),
            Next::Over => return entry.remove().told(),
        }
        Told::default()
    }

    /// Waits for the end of a run, however often it rests until then.
    pub(crate) fn wait(&self, run: RunId) -> Arc<Completion> {
        let mut runs = self.runs.lock();
        let place = runs.entry(run).or_insert_with(|| Place::new(Stage::Resting));
        place.waiters.get_or_insert_default().clone()
    }

    /// A waiter has gone. The last one takes the entry of a resting run along.
    pub(crate) fn unwait(&self, run: RunId, waiter: &Arc<Completion>) {
        let mut runs = self.runs.lock();
        let Entry::Occupied(mut entry) = runs.entry(run) else { return };
        let place = entry.get_mut();
        // The roster's and this one.
        let is_last = Arc::strong_count(waiter) == 2;
        if !(is_last && place.waiters.as_ref().is_some_and(|other| Arc::ptr_eq(other, waiter))) {
            return;
        }
        place.waiters = None;
        if matches!(place.stage, Stage::Resting) {
            entry.remove();
        }
    }

    /// The process has nothing more to do with any run: everything that waits is told. Runs that are driven stay until their
    /// owners let go of them.
    pub(crate) fn clear(&self) -> Vec<Told> {
        let mut told = Vec::new();
        self.runs.lock().retain(|run, place| {
            let is_live = matches!(place.stage, Stage::Live(_));
            told.push((
                *run,
                match is_live {
                    true => Told { settled: None, waiters: place.waiters.take() },
                    false => std::mem::replace(place, Place::new(Stage::Resting)).told(),
                },
            ));
            is_live
        });
        told.sort_unstable_by_key(|(run, _)| *run);
        told.into_iter().map(|(_, told)| told).collect()
    }
}

/// What is to be told that a run is not driven here any more; after the lock is released, because a waiter may ask at once.
#[derive(Default)]
#[must_use]
pub(crate) struct Told {
    /// Waits for the run to be taken up.
    pub(crate) settled: Option<Arc<Completion>>,
    /// Waits for its end.
    pub(crate) waiters: Option<Arc<Completion>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::state::{Ending, Hold};

    const RUN: RunId = RunId::from_bytes([7; 16]);

    type Bring = fn(&Roster<u32>);

    /// Brings a run into each stage.
    const STAGES: [(&str, Bring); 4] = [
        ("resting", |_| {}),
        ("queued", |roster| roster.queue(RUN)),
        ("taking", |roster| assert_eq!(requested(roster, Cause::Woken), "granted")),
        ("live", |roster| roster.born(RUN, 1)),
    ];

    fn name(roster: &Roster<u32>) -> &'static str {
        match roster.stage(RUN) {
            Stage::Resting => "resting",
            Stage::Queued(_) => "queued",
            Stage::Taking(_) => "taking",
            Stage::Live(_) => "live",
        }
    }

    fn requested(roster: &Roster<u32>, cause: Cause) -> String {
        match roster.request(RUN, cause) {
            Request::Granted => "granted".to_owned(),
            Request::Noted => "noted".to_owned(),
            Request::Live(live) => format!("live {live}"),
        }
    }

    /// Every transition: what a change makes of each stage, and what its caller is told.
    fn check(change: impl Fn(&Roster<u32>) -> String, expected: [(&str, &str); 4]) {
        for ((from, bring), (to, told)) in STAGES.into_iter().zip(expected) {
            let roster = Roster::default();
            bring(&roster);
            assert_eq!(name(&roster), from);
            assert_eq!((change(&roster).as_str(), name(&roster)), (told, to), "from {from}");
        }
    }

    #[test]
    fn e18_a_request_is_granted_to_one_task_and_noted_for_it_afterwards() {
        for cause in [Cause::Woken, Cause::Left] {
            let expected = [("taking", "granted"), ("queued", "noted"), ("taking", "noted"), ("live", "live 1")];
            check(|roster| requested(roster, cause), expected);
        }
        for cause in [Cause::Recovery, Cause::Person, Cause::Unowned, Cause::Reload] {
            let expected = [("taking", "granted"), ("taking", "granted"), ("taking", "noted"), ("live", "live 1")];
            check(|roster| requested(roster, cause), expected);
        }
    }

    #[test]
    fn e18_a_grant_is_for_one_task_and_leaves_no_note() {
        let grant = |roster: &Roster<u32>| format!("{}", roster.grant(RUN).is_ok());
        check(grant, [("taking", "true"), ("taking", "true"), ("taking", "false"), ("live", "false")]);
        let roster = Roster::<u32>::default();
        assert!(roster.grant(RUN).is_ok() && roster.grant(RUN).is_err());
        assert!(roster.not_taken(RUN).is_err(), "the second one asked for nothing");
    }

    #[test]
    fn w12_only_a_resting_run_is_queued() {
        let queue = |roster: &Roster<u32>| {
            roster.queue(RUN);
            String::new()
        };
        check(queue, [("queued", ""), ("queued", ""), ("taking", ""), ("live", "")]);
    }

    #[test]
    fn l12_a_run_that_is_taken_up_is_live_and_whoever_waits_for_that_is_told() {
        let taken = |roster: &Roster<u32>| format!("{}", roster.taken(RUN, 2).is_some());
        check(taken, [("live", "false"), ("live", "false"), ("live", "true"), ("live", "false")]);
    }

    #[test]
    fn e18_only_the_task_that_takes_a_run_up_can_say_that_it_is_not_driven() {
        let not_taken = |roster: &Roster<u32>| match roster.not_taken(RUN) {
            Ok(cause) => format!("again {cause:?}"),
            Err(told) => format!("{}", told.settled.is_some()),
        };
        check(not_taken, [("resting", "false"), ("queued", "false"), ("resting", "true"), ("live", "false")]);
    }

    #[test]
    fn e18_only_the_known_owner_lets_go() {
        for (next, to) in [(Next::Over, "resting"), (Next::Rest, "resting"), (Next::TakeUp, "taking")] {
            let let_go = |roster: &Roster<u32>| {
                drop(roster.let_go(RUN, |live| *live == 1, next));
                String::new()
            };
            check(let_go, [("resting", ""), ("queued", ""), ("taking", ""), (to, "")]);
        }
        let superseded = |roster: &Roster<u32>| {
            drop(roster.let_go(RUN, |live| *live == 9, Next::Over));
            String::new()
        };
        check(superseded, [("resting", ""), ("queued", ""), ("taking", ""), ("live", "")]);
    }

    #[test]
    fn w03_what_is_asked_for_while_a_run_is_taken_up_is_not_lost_and_the_strongest_cause_counts() {
        let roster = Roster::<u32>::default();
        requested(&roster, Cause::Woken);
        requested(&roster, Cause::Unowned);
        requested(&roster, Cause::Left);
        assert_eq!(roster.not_taken(RUN).ok(), Some(Cause::Unowned));
        assert_eq!(name(&roster), "taking", "the same task looks once more");
        assert!(roster.not_taken(RUN).is_err());
        assert_eq!(name(&roster), "resting");
        requested(&roster, Cause::Woken);
        requested(&roster, Cause::Woken);
        let _settled = roster.taken(RUN, 1);
        drop(roster.let_go(RUN, |_| true, Next::TakeUp));
        assert!(roster.not_taken(RUN).is_err(), "what was asked for before the run was driven was seen to");
    }

    #[test]
    fn w03_waiters_stay_while_a_run_rests_and_are_told_when_it_is_over() {
        let roster = Roster::<u32>::default();
        roster.born(RUN, 1);
        let waiter = roster.wait(RUN);
        assert!(roster.let_go(RUN, |_| true, Next::Rest).waiters.is_none());
        requested(&roster, Cause::Woken);
        let _settled = roster.taken(RUN, 2);
        let told = roster.let_go(RUN, |_| true, Next::Over);
        assert!(told.waiters.is_some_and(|told| Arc::ptr_eq(&told, &waiter)));
    }

    #[test]
    fn w03_a_resting_run_without_waiters_costs_nothing() {
        let roster = Roster::<u32>::default();
        let (first, second) = (roster.wait(RUN), roster.wait(RUN));
        roster.unwait(RUN, &second);
        assert_eq!(roster.runs.lock().len(), 1, "one waiter is left");
        drop(second);
        roster.unwait(RUN, &first);
        assert!(roster.runs.lock().is_empty());
        roster.born(RUN, 1);
        drop(roster.let_go(RUN, |_| true, Next::Rest));
        assert!(roster.runs.lock().is_empty());
    }

    #[test]
    fn l12_at_the_end_everything_that_waits_is_told() {
        for ((from, bring), told) in STAGES.into_iter().zip([(0, 1), (1, 1), (1, 1), (0, 1)]) {
            let roster = Roster::default();
            bring(&roster);
            let _waiter = roster.wait(RUN);
            let all = roster.clear();
            let count = |of: fn(&Told) -> bool| all.iter().filter(|told| of(told)).count();
            assert_eq!((count(|told| told.settled.is_some()), count(|told| told.waiters.is_some())), told, "{from}");
            assert_eq!(name(&roster), if from == "live" { "live" } else { "resting" });
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
            (Cause::Woken, [Some(Woken), Some(Woken), None, None, None]),
            (Cause::Left, [Some(Woken), Some(Woken), Some(Found), None, None]),
            (Cause::Recovery, [Some(Woken), Some(Woken), Some(Found), Some(Found), None]),
            (Cause::Person, [Some(Resumed), Some(Resumed), Some(Resumed), Some(Resumed), None]),
            (Cause::Unowned, [Some(Woken), Some(Woken), Some(Woken), None, None]),
            (Cause::Reload, [Some(Woken), Some(Woken), Some(Reloaded), None, None]),
        ];
        for (cause, expected) in table {
            assert_eq!(states.each_ref().map(|state| cause.takes_up(state)), expected, "{cause:?}");
        }
    }
}
