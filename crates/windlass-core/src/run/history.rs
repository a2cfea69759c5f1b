//! Folds a journal into the state of each operation.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::cancelling::Cancels;
use super::children::ChildRun;
use super::origin::Origins;
use super::parks::Replies;
use super::rare::Rare;
use super::record::{Asked, DoubtCause, Event, Finished, Grant, OpKind, Prepared, Record, Recorded};
use super::restored::RestoredRun;
use super::spent::{AttemptMark, SpentTime};
use super::state::{Blocked, Doubt, Park};
use crate::id::RunId;
use crate::path::Path;
use crate::time::Timestamp;
use crate::tool::{Effect, ToolError};

/// What the journal has at one path.
#[derive(Clone, Debug)]
pub(crate) struct RecordedOp {
    pub(crate) asked: Asked,
    pub(crate) state: OpState,
    /// The prepared call, where it differs from what was asked. Kept whatever happens to the operation afterwards.
    pub(crate) prepared: Option<Prepared>,
    /// When it was first recorded, or was approved or connected.
    pub(crate) since: Timestamp,
    /// When anything was first done about it, beyond accepting it.
    pub(crate) begun: Option<Timestamp>,
    /// When it was last recorded.
    pub(crate) at: Timestamp,
    /// How often the process died with this operation in flight.
    pub(crate) deaths: u32,
    /// How its time was spent, from when it was asked for.
    pub(crate) spent: SpentTime,
    /// Whether an owner was lost that may have begun an attempt without a record, as attempts are that may be repeated.
    pub(crate) lost: bool,
    /// The number of its latest record in the journal.
    pub(crate) last: u32,
}

impl RecordedOp {
    /// Whether anything was done beyond accepting it.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.state, OpState::Accepted)
    }

    /// If it failed: when, in the order of the journal.
    pub(crate) fn failed_at(&self) -> Option<u32> {
        matches!(&self.state, OpState::Finished { result: Err(_) }).then_some(self.last)
    }

    /// Whether it waits for a connection or an approval before its first attempt, or has just got it.
    pub(crate) fn is_asking(&self) -> bool {
        match &self.state {
            OpState::Parked { on, attempt: 0, .. } => on.is_approval_or_connection(),
            state => matches!(state, OpState::Granted(_)),
        }
    }

    /// What it waits for, if that is a person or another system.
    fn park(&self, path: &Path) -> Option<Park> {
        let OpState::Parked { on, until, .. } = &self.state else { return None };
        // Not `since`: an approval may be asked for again, and a call waits for its answer after its attempt.
        let since = self.at;
        let park =
            || Park { path: path.clone(), operation: self.asked.to_string(), on: on.clone(), since, until: *until };
        on.needs_person().then(park)
    }

    /// The doubt that it leaves if it is not continued, and whether the journal records that doubt already.
    fn doubt(&self, path: &Path) -> Option<(Doubt, bool)> {
        let (attempt, cause, over_by, said, recorded) = match &self.state {
            OpState::Intended { attempt, over_by } => (attempt, DoubtCause::WorkerLost, over_by, None, false),
            OpState::Doubted { attempt, cause, over_by, said } => (attempt, *cause, over_by, said.clone(), true),
            _ => return None,
        };
        let (attempt, over_by) = (*attempt, *over_by);
        let (path, operation) = (path.clone(), self.asked.to_string());
        Some((Doubt { path, attempt, operation, cause, over_by, since: self.at, said }, recorded))
    }
}

/// The open items of a journal. They stay on the lists of the run until its new owner reaches them.
#[derive(Default)]
pub(crate) struct OpenItems {
    pub(crate) doubts: Vec<Doubt>,
    pub(crate) parks: Vec<Park>,
    /// Bodies that ended around a doubt, which only its settlement closes.
    pub(crate) ended: Vec<Path>,
}

/// How far an operation got.
#[derive(Clone, Debug)]
pub(crate) enum OpState {
    Accepted,
    Prepared,
    Entered,
    Attempting { attempt: u32 },
    Intended { attempt: u32, over_by: Timestamp },
    Failed { attempt: u32, retry_at: Timestamp },
    Doubted { attempt: u32, cause: DoubtCause, over_by: Timestamp, said: Option<Arc<str>> },
    Settled { attempt: u32 },
    Parked { on: Blocked, until: Option<Timestamp>, attempt: u32 },
    Granted(Grant),
    Finished { result: Recorded },
}

/// What a run's owner knows from before it took over. Operations are taken out as the body asks for them.
#[derive(Default)]
pub(crate) struct History {
    ops: FxHashMap<Path, RecordedOp>,
    in_flight: Vec<Path>,
    /// Operations that wait for a time or for an answer. If the process dies meanwhile, this run did not kill it.
    parked: Vec<Path>,
    /// Deaths since the last progress.
    idle_deaths: u32,
    pub(super) cancels: Rare<Cancels>,
    /// What came of the reply keys handed out so far.
    pub(super) replies: Replies,
    /// Spawned runs that are cancelled with this one and are not known to have ended.
    pub(crate) children: Vec<ChildRun>,
    /// The results of the spawned runs whose end was awaited.
    pub(crate) joined: FxHashMap<RunId, Recorded>,
    /// Where a fork's copied records come from.
    pub(crate) origins: Origins,
    /// What is known about the records that a backup lacked.
    pub(crate) restored: Option<RestoredRun>,
}

impl History {
    pub(crate) fn fold(records: Vec<Record>) -> Self {
        let mut history = Self::default();
        history.ops.reserve(records.iter().filter(|record| record.asked.is_some()).count());
        (1u32..).zip(records).for_each(|(number, record)| history.apply(number, record));
        history
    }

    fn apply(&mut self, number: u32, record: Record) {
        let Record { path, at, asked, event } = record;
        if !matches!(event, Event::Forked { .. }) {
            self.origins.note(&path);
        }
        if let Some(restored) = &mut self.restored {
            restored.note(&path, &event);
        }
        let mut prepared = None;
        let state = match event {
            Event::Restored { renamed } => {
                self.restored = Some(RestoredRun::new(renamed));
                return;
            }
            Event::Recovered => return self.died(),
            Event::Resumed => return self.forgive(),
            Event::Cancelled { reason, .. } => {
                self.cancels.make().add(Path::root(), reason, at);
                return;
            }
            Event::CancelledBelow { reason } => {
                self.cancels.make().add(path, reason, at);
                return;
            }
            Event::Revoked { reason } => {
                self.replies.revoked = Some(reason);
                return;
            }
            Event::Forked { from, generation, copied, .. } => {
                self.origins.forked(from, generation, copied);
                OpState::Accepted
            }
            Event::Accepted => OpState::Accepted,
            Event::Continued { children, cancelled_at_end, .. } => {
                self.children = ChildRun::carried_over(children, &cancelled_at_end);
                OpState::Accepted
            }
            Event::Parked { on, until, attempt } => OpState::Parked { on, until, attempt },
            Event::Granted(grant) => OpState::Granted(grant),
            Event::Prepared(call) => {
                prepared = Some(call);
                OpState::Prepared
            }
            Event::Entered => OpState::Entered,
            Event::Attempting { attempt } => OpState::Attempting { attempt },
            Event::Intended { attempt, over_by } => OpState::Intended { attempt, over_by },
            Event::Failed { attempt, retry_at, .. } => OpState::Failed { attempt, retry_at },
            Event::Doubted { attempt, cause, over_by, said } => OpState::Doubted { attempt, cause, over_by, said },
            Event::Settled { attempt, .. } => OpState::Settled { attempt },
            Event::Finished(finished) => {
                self.note_end(&path, asked.as_ref(), &finished);
                OpState::Finished { result: finished.into_answer() }
            }
        };
        self.note_progress(&path, &state);
        match self.ops.entry(path) {
            Entry::Occupied(mut op) => {
                let op = op.get_mut();
                (op.last, op.lost) = (number, false);
                if waits_for_approval(&op.state) && !waits_for_approval(&state) {
                    // The time a person took is not the call's own: its time starts here.
                    op.since = at;
                    op.begun = None;
                }
                op.begun = op.begun.or_else(|| begun(&state, at));
                op.spent.note(at, mark(&state));
                op.state = state;
                op.at = at;
                op.prepared = prepared.or(op.prepared.take());
            }
            Entry::Vacant(place) => {
                // A path's first record says what was asked. A journal without that was not written by this program,
                // and asking for anything there diverges from the empty name.
                let nothing = || Asked::operation(OpKind::Step, "".into(), None, Effect::Once);
                let asked = asked.unwrap_or_else(nothing);
                let (begun, spent) = (begun(&state, at), SpentTime::new(at, mark(&state)));
                place.insert(RecordedOp {
                    asked,
                    state,
                    prepared,
                    since: at,
                    begun,
                    at,
                    deaths: 0,
                    spent,
                    lost: false,
                    last: number,
                });
            }
        }
    }

    /// Keeps what other operations may ask for again: the answer to a wait, and the runs that this one spawned or joined.
    fn note_end(&mut self, path: &Path, asked: Option<&Asked>, finished: &Finished) {
        let Some(asked) = asked.or_else(|| self.ops.get(path).map(|op| &op.asked)) else { return };
        match asked.kind {
            OpKind::Wait => self.note_answer(path.clone(), finished),
            OpKind::Answer => {
                if let Ok(made_at) = asked.name.parse() {
                    self.note_answer(made_at, finished);
                }
            }
            OpKind::Spawn | OpKind::Join => {
                let (kind, name) = (asked.kind, asked.name.clone());
                self.note_child(path, kind, &name, finished.answer());
            }
            _ => {}
        }
    }

    fn note_answer(&mut self, made_at: Path, finished: &Finished) {
        if finished.is_answer(self.cancels.get().into_iter().flat_map(Cancels::reasons)) {
            self.replies.answers.insert(made_at, Box::new(finished.answer()));
        }
    }

    /// Tracks the runs that this one spawned.
    fn note_child(&mut self, path: &Path, kind: OpKind, name: &str, result: Recorded) {
        match (kind, result) {
            (OpKind::Spawn, Ok(output)) => {
                // A fork has the handles of its original's children, but they are not its own children.
                let parent = output.value.get("parent").and_then(|parent| parent.as_str()?.parse::<RunId>().ok());
                if !parent.is_some_and(|parent| self.origins.include(parent)) {
                    self.children.extend(ChildRun::recorded(&output));
                }
            }
            (OpKind::Join, result) => {
                // A join that timed out or was cancelled has not received the child's result.
                let gave_up = match result.as_ref().map_err(|error| &**error) {
                    Err(ToolError::TimedOut { message }) => message.starts_with(&format!("join of run {name}: ")),
                    Err(error) => self.cancels.get().is_some_and(|cancels| cancels.is_received(path, error)),
                    Ok(_) => false,
                };
                if let (false, Ok(child)) = (gave_up, name.parse()) {
                    self.children.retain(|other| other.run != child);
                    self.joined.insert(child, result);
                }
            }
            _ => {}
        }
    }

    fn note_progress(&mut self, path: &Path, state: &OpState) {
        match state {
            OpState::Attempting { .. } | OpState::Intended { .. } => self.in_flight.push(path.clone()),
            OpState::Entered | OpState::Accepted | OpState::Prepared => {}
            _ => {
                self.in_flight.retain(|other| other != path);
                self.idle_deaths = 0;
            }
        }
        self.parked.retain(|other| other != path);
        if let OpState::Failed { .. } | OpState::Doubted { .. } | OpState::Parked { .. } = state {
            self.parked.push(path.clone());
        }
        // Only this run's cancellation counts, not a revoked wait or an answer that says "cancelled".
        if let (OpState::Finished { result: Err(error) }, Some(cancels)) = (state, self.cancels.get_mut()) {
            cancels.note_end(path, error);
        }
    }

    fn forgive(&mut self) {
        self.idle_deaths = 0;
        self.ops.values_mut().for_each(|op| op.deaths = 0);
    }

    fn died(&mut self) {
        if self.parked.is_empty() {
            self.idle_deaths += 1;
        }
        for op in self.ops.values_mut() {
            op.lost |= matches!(op.state, OpState::Accepted | OpState::Prepared);
        }
        for path in std::mem::take(&mut self.in_flight) {
            if let Some(op) = self.ops.get_mut(&path) {
                op.spent.died();
                op.deaths += 1;
            }
        }
    }

    /// The path where the process keeps dying, if it died there `limit` times.
    pub(crate) fn crash_loop(&self, limit: u32) -> Option<(Path, u32)> {
        let worst = self.ops.iter().filter(|(_, op)| op.deaths >= limit);
        // The order of the map is arbitrary. Taking the smallest path makes all readers name the same one.
        let named = worst.map(|(path, op)| (path.clone(), op.deaths)).min();
        named.or_else(|| (self.idle_deaths >= limit).then(|| (Path::root(), self.idle_deaths)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// What waits for a person or another system at the end of the journal, in the order of the paths.
    pub(crate) fn open(&self) -> OpenItems {
        let mut open = OpenItems::default();
        if self.parked.is_empty() {
            return open;
        }
        for path in &self.parked {
            let Some(op) = self.ops.get(path) else { continue };
            let is_finished =
                |above: &Path| self.ops.get(above).is_some_and(|op| matches!(op.state, OpState::Finished { .. }));
            let ended = std::iter::successors(path.parent(), Path::parent).find(is_finished);
            match (op.doubt(path), ended) {
                (Some((doubt, _)), ended) => {
                    open.doubts.push(doubt);
                    open.ended.extend(ended);
                }
                (None, None) => open.parks.extend(op.park(path)),
                (None, Some(_)) => {}
            }
        }
        open.doubts.sort_by(|a, b| a.path.cmp(&b.path));
        // An open wait is shown at the operation that waits for its answer.
        let waited: Vec<Path> = open.parks.iter().filter_map(|park| park.on.made_at().cloned()).collect();
        open.parks.retain(|park| !waited.contains(&park.path));
        // A wait that was opened again and the operation that waits for its answer have one key.
        let mut shown: Vec<Path> = Vec::new();
        open.parks.reverse();
        open.parks.retain(|park| {
            let made_at = park.on.made_at().cloned();
            let is_shown = made_at.as_ref().is_some_and(|made_at| shown.contains(made_at));
            shown.extend(made_at);
            !is_shown
        });
        open.parks.reverse();
        open
    }

    pub(crate) fn get(&self, path: &Path) -> Option<&RecordedOp> {
        self.ops.get(path)
    }

    /// Attempts below `path` that may have happened and that no body asked for again, in the order of their paths. Each
    /// comes with whether the journal records it as a doubt.
    pub(crate) fn open_below(&mut self, path: &Path) -> Vec<(Doubt, bool)> {
        let below = self.ops.iter().filter(|(at, _)| at.positions().starts_with(path.positions()));
        let mut open: Vec<(Doubt, bool)> = below.filter_map(|(at, op)| op.doubt(at)).collect();
        open.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
        for (doubt, _) in &open {
            self.ops.remove(&doubt.path);
        }
        open
    }

    pub(crate) fn take(&mut self, path: &Path) -> Option<RecordedOp> {
        if self.is_empty() {
            return None;
        }
        self.ops.remove(path)
    }
}

/// Whether an operation waits for a connection or an approval.
fn waits_for_approval(state: &OpState) -> bool {
    matches!(state, OpState::Parked { on, .. } if on.is_approval_or_connection())
}

/// What the state says about the time of attempts.
fn mark(state: &OpState) -> AttemptMark {
    match state {
        OpState::Attempting { .. } | OpState::Intended { .. } => AttemptMark::Begins,
        OpState::Doubted { cause: DoubtCause::WorkerLost | DoubtCause::ShutDown | DoubtCause::Restored, .. }
        | OpState::Settled { .. } => AttemptMark::Lost,
        _ => AttemptMark::Over,
    }
}

fn begun(state: &OpState, at: Timestamp) -> Option<Timestamp> {
    (!matches!(state, OpState::Accepted)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::Finished;
    use crate::time::Times;

    fn record(path: &str, asked: bool, event: Event) -> Record {
        let name = "s".into();
        let asked = asked.then_some(Asked::operation(OpKind::Step, name, None, Effect::Readonly));
        Record { path: path.parse().unwrap(), at: Timestamp::default(), asked, event }
    }

    #[test]
    fn deaths_are_counted_where_something_was_in_flight() {
        let mut records = vec![record("/", true, Event::Entered)];
        for n in 0..3 {
            records.push(record("0", n == 0, Event::Attempting { attempt: 1 }));
            records.push(record("/", false, Event::Recovered));
        }
        let history = History::fold(records);
        assert_eq!(history.crash_loop(3), Some(("0".parse().unwrap(), 3)));
        assert_eq!(history.crash_loop(4), None);
    }

    #[test]
    fn deaths_do_not_count_while_a_run_only_waits() {
        let (attempt, cause, over_by) = (1, DoubtCause::TimedOut, Timestamp::default());
        let mut records = vec![record("/", true, Event::Intended { attempt, over_by })];
        records.push(record("/", false, Event::Doubted { attempt, cause, over_by, said: None }));
        records.extend((0..9).map(|_| record("/", false, Event::Recovered)));
        assert_eq!(History::fold(records).crash_loop(3), None);
    }

    #[test]
    fn l05_a_revoked_wait_has_not_received_the_cancellation() {
        let is_pending = |reason: &str| {
            let result = Err(Arc::new(ToolError::Cancelled { reason: reason.to_owned() }));
            let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
            let cancelled = Event::Cancelled { by: "ada".to_owned(), reason: "enough".to_owned() };
            let records = vec![
                record("/", true, Event::Entered),
                record("/", false, cancelled),
                record("0/1", true, Event::Finished(finished)),
            ];
            History::fold(records).cancels.get().unwrap().is_unreceived()
        };
        assert!(is_pending("revoked: another branch of `first` came first"), "a revoked wait");
        assert!(!is_pending("enough"));
    }

    #[test]
    fn deaths_between_operations_are_counted_at_the_root_until_something_is_achieved() {
        let mut records = vec![record("/", true, Event::Entered)];
        records.extend((0..3).map(|_| record("/", false, Event::Recovered)));
        assert_eq!(History::fold(records.clone()).crash_loop(3), Some((Path::root(), 3)));
        let retry_at = Timestamp::default();
        let error = Arc::new(ToolError::failed("x"));
        records.push(record("0", true, Event::Failed { attempt: 1, error, retry_at }));
        assert_eq!(History::fold(records).crash_loop(3), None);
    }

    #[test]
    fn l05_only_the_runs_own_cancellation_counts_as_received() {
        let ended = |reason: &str| {
            let result = Err(Arc::new(ToolError::Cancelled { reason: reason.to_owned() }));
            let outcome = crate::run::record::OpOutcome { result, at: Timestamp::default(), times: Default::default() };
            let asked = Asked::operation(OpKind::Wait, "w".into(), None, Effect::Readonly);
            Record { asked: Some(asked), ..crate::call::park::finished(&"0".parse().unwrap(), &outcome) }
        };
        let cancelled = || record("/", false, Event::Cancelled { by: "ada".to_owned(), reason: "enough".to_owned() });
        let pending = |reason| {
            let history = History::fold(vec![record("/", true, Event::Entered), cancelled(), ended(reason)]);
            history.cancels.get().unwrap().is_unreceived()
        };
        assert!(pending("revoked: another branch of `first` came first"));
        assert!(!pending("enough"));
    }
}
