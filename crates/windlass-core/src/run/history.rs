//! A journal folded into what stands at each path.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::origin::Origins;
use super::record::{Asked, DoubtCause, Event, Grant, OpKind, Prepared, Record, Recorded};
use super::restored::Restored;
use super::spent::{Mark, Spent};
use super::state::{Blocked, Doubt, Park};
use crate::id::RunId;
use crate::path::Path;
use crate::time::Timestamp;
use crate::tool::{Effect, ToolError};

/// What the journal has at one path.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) asked: Asked,
    pub(crate) state: State,
    /// What the call is to do, where that is not what was asked; kept whatever happens to it afterwards.
    pub(crate) prepared: Option<Prepared>,
    /// When it was first recorded, or got leave to go on.
    pub(crate) since: Timestamp,
    /// When anything was first done about it, beyond accepting it.
    pub(crate) begun: Option<Timestamp>,
    /// When it was last recorded.
    pub(crate) at: Timestamp,
    /// How often the process died with this operation in flight.
    pub(crate) deaths: u32,
    /// Where its time went, from when it was asked for.
    pub(crate) spent: Spent,
}

impl Standing {
    /// Whether anything was done beyond being accepted.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Accepted)
    }

    /// Whether it waits for a connection or an approval, or has just got it.
    pub(crate) fn is_asking(&self) -> bool {
        self.waits_for_leave() || matches!(self.state, State::Granted(_))
    }

    fn waits_for_leave(&self) -> bool {
        waits_for_leave(&self.state)
    }

    /// What it waits for, if that is a person or another system.
    fn park(&self, path: &Path) -> Option<Park> {
        let State::Parked { on, until, .. } = &self.state else { return None };
        // An approval may be asked for again, and a call waits for its answer after its attempt.
        let since = self.at;
        let park =
            || Park { path: path.clone(), operation: self.asked.to_string(), on: on.clone(), since, until: *until };
        on.needs_person().then(park)
    }

    /// The doubt it leaves if nobody goes on with it, and whether it is recorded as one.
    fn doubt(&self, path: &Path) -> Option<(Doubt, bool)> {
        let (attempt, cause, over_by, said, recorded) = match &self.state {
            State::Intended { attempt, over_by } => (attempt, DoubtCause::WorkerLost, over_by, None, false),
            State::Doubted { attempt, cause, over_by, said } => (attempt, *cause, over_by, said.clone(), true),
            _ => return None,
        };
        let (attempt, over_by) = (*attempt, *over_by);
        let (path, operation) = (path.clone(), self.asked.to_string());
        Some((Doubt { path, attempt, operation, cause, over_by, since: self.at, said }, recorded))
    }
}

/// What the journal says is open: it stays on the lists of its run while a new owner makes its way to it.
#[derive(Default)]
pub(crate) struct Open {
    pub(crate) doubts: Vec<Doubt>,
    pub(crate) parks: Vec<Park>,
    /// Bodies that ended around a doubt: only its settlement closes it.
    pub(crate) ended: Vec<Path>,
}

/// How far an operation got.
#[derive(Clone, Debug)]
pub(crate) enum State {
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
    standing: FxHashMap<Path, Standing>,
    in_flight: Vec<Path>,
    /// Operations that wait for a time or for somebody: a process that dies meanwhile was not killed by this run.
    parked: Vec<Path>,
    /// Deaths since anything was achieved.
    idle_deaths: u32,
    /// Why somebody cancelled the run.
    pub(crate) cancel_reason: Option<String>,
    /// No operation has been told of the cancellation yet.
    pub(crate) cancel_pending: bool,
    /// When somebody cancelled the run.
    pub(crate) cancelled: Option<Timestamp>,
    /// Why the reply keys handed out so far are void.
    pub(crate) revoked: Option<String>,
    /// Runs that were spawned, are to be cancelled with this one, and are not known to have ended.
    pub(crate) children: Vec<RunId>,
    /// What became of the spawned runs that were waited for to their end.
    pub(crate) joined: FxHashMap<RunId, Recorded>,
    /// Where a fork's copied records come from.
    pub(crate) origins: Origins,
    /// What is known of what a backup did not have.
    pub(crate) restored: Option<Restored>,
}

impl History {
    pub(crate) fn fold(records: Vec<Record>) -> Self {
        let mut history = Self::default();
        history.standing.reserve(records.iter().filter(|record| record.asked.is_some()).count());
        records.into_iter().for_each(|record| history.apply(record));
        history
    }

    fn apply(&mut self, record: Record) {
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
                self.restored = Some(Restored::new(renamed));
                return;
            }
            Event::Recovered => return self.died(),
            Event::Resumed => return self.forgive(),
            Event::Cancelled { reason, .. } => {
                self.cancelled = Some(at);
                self.cancel_reason = Some(reason);
                self.cancel_pending = true;
                return;
            }
            Event::Revoked { reason } => {
                self.revoked = Some(reason);
                return;
            }
            Event::Forked { from, generation, copied, .. } => {
                self.origins.forked(from, generation, copied);
                State::Accepted
            }
            Event::Accepted => State::Accepted,
            Event::Continued { children, .. } => {
                self.children = children;
                State::Accepted
            }
            Event::Parked { on, until, attempt } => State::Parked { on, until, attempt },
            Event::Granted(grant) => State::Granted(grant),
            Event::Prepared(call) => {
                prepared = Some(call);
                State::Prepared
            }
            Event::Entered => State::Entered,
            Event::Attempting { attempt } => State::Attempting { attempt },
            Event::Intended { attempt, over_by } => State::Intended { attempt, over_by },
            Event::Failed { attempt, retry_at, .. } => State::Failed { attempt, retry_at },
            Event::Doubted { attempt, cause, over_by, said } => State::Doubted { attempt, cause, over_by, said },
            Event::Settled { attempt, .. } => State::Settled { attempt },
            Event::Finished(finished) => State::Finished { result: finished.into_answer() },
        };
        self.note_progress(&path, &state);
        self.note_child(&path, asked.as_ref(), &state);
        match self.standing.entry(path) {
            Entry::Occupied(mut standing) => {
                let standing = standing.get_mut();
                if standing.waits_for_leave() && !waits_for_leave(&state) {
                    // A person's time is not the call's: its own begins here.
                    standing.since = at;
                    standing.begun = None;
                }
                standing.begun = standing.begun.or_else(|| begun(&state, at));
                standing.spent.note(at, mark(&state));
                standing.state = state;
                standing.at = at;
                standing.prepared = prepared.or(standing.prepared.take());
            }
            Entry::Vacant(place) => {
                // A path's first record says what was asked; a journal without that is not ours, and asking anything
                // there diverges from the empty name.
                let nothing = || Asked::operation(OpKind::Step, "".into(), None, Effect::Once);
                let asked = asked.unwrap_or_else(nothing);
                let (begun, spent) = (begun(&state, at), Spent::new(at, mark(&state)));
                place.insert(Standing { asked, state, prepared, since: at, begun, at, deaths: 0, spent });
            }
        }
    }

    /// Keeps track of the runs this one spawned.
    fn note_child(&mut self, path: &Path, asked: Option<&Asked>, state: &State) {
        let State::Finished { result } = state else { return };
        let asked = asked.or_else(|| self.standing.get(path).map(|standing| &standing.asked));
        match (asked.map(|asked| (asked.kind, &asked.name)), result) {
            (Some((OpKind::Spawn, _)), Ok(output)) => {
                // A fork has the handles of its original's children; they are not its own.
                let id = |field: &str| output.value.get(field)?.as_str()?.parse::<RunId>().ok();
                if id("parent").is_some_and(|parent| self.origins.include(parent)) {
                    id("run").into_iter().for_each(|child| self.origins.spawned(child));
                } else {
                    self.children.extend(super::record::spawned(output));
                }
            }
            (Some((OpKind::Join, name)), result) => {
                // Who ran out of patience, or was cancelled, has not heard of the child's end.
                let gave_up = match result.as_ref().map_err(|error| &**error) {
                    Err(ToolError::TimedOut { message }) => message.starts_with(&format!("join of run {name}: ")),
                    Err(error) => self.is_own_cancellation(error),
                    Ok(_) => false,
                };
                if let (false, Ok(child)) = (gave_up, name.parse()) {
                    self.children.retain(|other| *other != child);
                    self.joined.insert(child, result.clone());
                }
            }
            _ => {}
        }
    }

    /// Whether an operation with this error was told that the run is cancelled. Other runs are cancelled too, and so are
    /// waits that lost a race.
    fn is_own_cancellation(&self, error: &ToolError) -> bool {
        matches!((error, &self.cancel_reason), (ToolError::Cancelled { reason }, Some(own)) if reason == own)
    }

    fn note_progress(&mut self, path: &Path, state: &State) {
        match state {
            State::Attempting { .. } | State::Intended { .. } => self.in_flight.push(path.clone()),
            State::Entered | State::Accepted | State::Prepared => {}
            _ => {
                self.in_flight.retain(|other| other != path);
                self.idle_deaths = 0;
            }
        }
        self.parked.retain(|other| other != path);
        if let State::Failed { .. } | State::Doubted { .. } | State::Parked { .. } = state {
            self.parked.push(path.clone());
        }
        // Told of this cancellation, not of another's: a wait that was revoked, or an answer that says so.
        if let State::Finished { result: Err(error) } = state
            && self.is_own_cancellation(error)
        {
            self.cancel_pending = false;
        }
    }

    fn forgive(&mut self) {
        self.idle_deaths = 0;
        self.standing.values_mut().for_each(|standing| standing.deaths = 0);
    }

    fn died(&mut self) {
        if self.parked.is_empty() {
            self.idle_deaths += 1;
        }
        for path in std::mem::take(&mut self.in_flight) {
            if let Some(standing) = self.standing.get_mut(&path) {
                standing.spent.died();
                standing.deaths += 1;
            }
        }
    }

    /// The place where the process keeps dying, if it died there `limit` times.
    pub(crate) fn crash_loop(&self, limit: u32) -> Option<(Path, u32)> {
        let worst = self.standing.iter().filter(|(_, standing)| standing.deaths >= limit);
        // The map's order is not the journal's: take the first path, so that two readers name the same place.
        let named = worst.map(|(path, standing)| (path.clone(), standing.deaths)).min();
        named.or_else(|| (self.idle_deaths >= limit).then(|| (Path::root(), self.idle_deaths)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    /// What waits for a person or another system when the journal ends, in the order of the paths.
    pub(crate) fn open(&self) -> Open {
        let mut open = Open::default();
        if self.parked.is_empty() {
            return open;
        }
        for path in &self.parked {
            let Some(standing) = self.standing.get(path) else { continue };
            let is_finished = |above: &Path| {
                self.standing.get(above).is_some_and(|standing| matches!(standing.state, State::Finished { .. }))
            };
            let ended = std::iter::successors(path.parent(), Path::parent).find(is_finished);
            match (standing.doubt(path), ended) {
                (Some((doubt, _)), ended) => {
                    open.doubts.push(doubt);
                    open.ended.extend(ended);
                }
                (None, None) => open.parks.extend(standing.park(path)),
                (None, Some(_)) => {}
            }
        }
        open.doubts.sort_by(|a, b| a.path.cmp(&b.path));
        // An open wait is waited for at another place, and shown there.
        let waited: Vec<Path> = open.parks.iter().filter_map(|park| park.on.made_at().cloned()).collect();
        open.parks.retain(|park| !waited.contains(&park.path));
        open
    }

    pub(crate) fn get(&self, path: &Path) -> Option<&Standing> {
        self.standing.get(path)
    }

    /// Attempts below `path` that may have happened and that no body asked for again, in the order of their paths, each
    /// with whether the journal says so already.
    pub(crate) fn open_below(&mut self, path: &Path) -> Vec<(Doubt, bool)> {
        let below = self.standing.iter().filter(|(at, _)| at.positions().starts_with(path.positions()));
        let mut open: Vec<(Doubt, bool)> = below.filter_map(|(at, standing)| standing.doubt(at)).collect();
        open.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
        for (doubt, _) in &open {
            self.standing.remove(&doubt.path);
        }
        open
    }

    pub(crate) fn take(&mut self, path: &Path) -> Option<Standing> {
        if self.is_empty() {
            return None;
        }
        self.standing.remove(path)
    }
}

/// Whether an operation waits for a connection or an approval.
fn waits_for_leave(state: &State) -> bool {
    matches!(state, State::Parked { on: Blocked::Approval { .. } | Blocked::Connection { .. }, .. })
}

/// What it says of the time of attempts.
fn mark(state: &State) -> Mark {
    match state {
        State::Attempting { .. } | State::Intended { .. } => Mark::Begins,
        State::Doubted { cause: DoubtCause::WorkerLost | DoubtCause::Restored, .. } | State::Settled { .. } => {
            Mark::Lost
        }
        _ => Mark::Over,
    }
}

fn begun(state: &State, at: Timestamp) -> Option<Timestamp> {
    (!matches!(state, State::Accepted)).then_some(at)
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
    fn a_run_that_only_waits_has_killed_nobody() {
        let (attempt, cause, over_by) = (1, DoubtCause::TimedOut, Timestamp::default());
        let mut records = vec![record("/", true, Event::Intended { attempt, over_by })];
        records.push(record("/", false, Event::Doubted { attempt, cause, over_by, said: None }));
        records.extend((0..9).map(|_| record("/", false, Event::Recovered)));
        assert_eq!(History::fold(records).crash_loop(3), None);
    }

    #[test]
    fn l05_a_wait_that_was_revoked_was_not_told_of_a_cancellation() {
        let told = |reason: &str| {
            let result = Err(Arc::new(ToolError::Cancelled { reason: reason.to_owned() }));
            let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
            let cancelled = Event::Cancelled { by: "ada".to_owned(), reason: "enough".to_owned() };
            let records = vec![
                record("/", true, Event::Entered),
                record("/", false, cancelled),
                record("0/1", true, Event::Finished(finished)),
            ];
            History::fold(records).cancel_pending
        };
        assert!(told("revoked: another branch of `first` came first"), "somebody else's");
        assert!(!told("enough"));
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
    fn l05_only_the_runs_own_cancellation_counts_as_told() {
        let told = |reason: &str| {
            let result = Err(Arc::new(ToolError::Cancelled { reason: reason.to_owned() }));
            let told = crate::run::record::Told { result, at: Timestamp::default(), times: Default::default() };
            let asked = Asked::operation(OpKind::Wait, "w".into(), None, Effect::Readonly);
            Record { asked: Some(asked), ..crate::call::park::finished(&"0".parse().unwrap(), &told) }
        };
        let cancelled = || record("/", false, Event::Cancelled { by: "ada".to_owned(), reason: "enough".to_owned() });
        let pending = |reason| History::fold(vec![record("/", true, Event::Entered), cancelled(), told(reason)]);
        assert!(pending("revoked: another branch of `first` came first").cancel_pending);
        assert!(!pending("enough").cancel_pending);
    }
}
