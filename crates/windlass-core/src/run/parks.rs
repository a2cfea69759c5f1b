//! What a run waits for, the mail that answers it, and whether it can be suspended.

use std::collections::BTreeMap;

use super::machine::{Machine, Stop};
use super::record::{Event, Record, Recorded};
use super::state::{Blocked, Park, RunState};
use crate::admit::KeyTurn;
use crate::id::RunId;
use crate::path::Path;
use crate::store::{KeyPlace, Mail, Message, Resolution};
use crate::time::Timestamp;
use crate::tool::Output;
use crate::tool::ToolError;

use std::sync::Arc;

/// The waiting operations of a run.
#[derive(Default)]
pub(super) struct Parks {
    /// Apart from the map, which makes room for eleven at a time: most runs wait for one thing.
    open: BTreeMap<Path, Box<Park>>,
    /// Whether the store knows of another set.
    changed: bool,
    /// Deadlines of bodies around the parks.
    deadlines: BTreeMap<Path, Timestamp>,
    /// Why reply keys are void.
    revoked: Option<String>,
    /// Answers to open waits, which may be asked for again.
    answers: BTreeMap<Path, Box<Recorded>>,
    keys: KeyPlaces,
}

/// The places of a run's operations in the queues of keys.
#[derive(Default)]
struct KeyPlaces {
    places: BTreeMap<Path, KeyPlace>,
    /// What the store knows, or is about to.
    stored: Vec<KeyPlace>,
    /// Whether that may differ.
    changed: bool,
    /// Those that are given up once so much is durable.
    leaving: Vec<(u64, KeyTurn)>,
}

impl Parks {
    /// Those of a run that is taken up. What the journal says is open stays on the list until its operation is asked for
    /// again: a person may answer it at any moment.
    pub(super) fn of_past(revoked: Option<String>, open: Vec<Park>) -> Self {
        let open = open.into_iter().map(|park| (park.path.clone(), Box::new(park))).collect();
        Self { revoked, open, changed: true, ..Self::default() }
    }
}

/// An answer to a park.
pub(crate) enum Answer {
    /// What the operation returns.
    Result(Recorded),
    /// A decision about a call.
    Decided { granted: bool, by: String, reason: String, until: Timestamp },
    /// A connection is there, or refused.
    Connected { refused: Option<String> },
}

/// Where a park looks for its answer.
pub(crate) struct Looks<'a> {
    pub(crate) path: &'a Path,
    pub(crate) on: &'a Blocked,
}

impl Machine {
    /// Shows that an operation waits.
    pub(crate) fn park(&mut self, park: Park) {
        let parks = self.parks.make();
        if parks.open.get(&park.path).is_none_or(|open| **open != park) {
            parks.open.insert(park.path.clone(), Box::new(park));
            parks.changed = true;
        }
    }

    /// An operation no longer waits.
    pub(crate) fn unpark(&mut self, path: &Path) {
        if let Some(parks) = self.parks.get_mut() {
            parks.changed |= parks.open.remove(path).is_some();
        }
    }

    /// A body was dropped: nothing below it waits any more.
    pub(super) fn unpark_below(&mut self, path: &Path) {
        self.leave_places(path);
        let Some(parks) = self.parks.get_mut() else { return };
        let before = parks.open.len();
        parks.open.retain(|at, _| !at.positions().starts_with(path.positions()));
        parks.changed |= parks.open.len() != before;
        // Nor must any of it end by a certain time.
        parks.deadlines.retain(|at, _| !at.positions().starts_with(path.positions()));
    }

    /// The places that a run has when it is taken up. They stay on the list until their operations are asked for again.
    pub(crate) fn has_places(&mut self, places: Vec<KeyPlace>) {
        if !places.is_empty() {
            let keys = &mut self.parks.make().keys;
            keys.places = places.into_iter().map(|place| (place.path.clone(), place)).collect();
            // The store may know less, if it failed meanwhile.
            keys.changed = true;
        }
    }

    /// An operation has this place in the queue of its key.
    pub(crate) fn set_place(&mut self, place: KeyPlace) {
        let keys = &mut self.parks.make().keys;
        keys.changed = true;
        keys.places.insert(place.path.clone(), place);
    }

    /// An operation is over, or gave up its place: neither it nor what is below it has one.
    pub(crate) fn leave_places(&mut self, path: &Path) {
        let Some(parks) = self.parks.get_mut() else { return };
        let keys = &mut parks.keys;
        if !keys.places.is_empty() {
            keys.places.retain(|at, _| !at.positions().starts_with(path.positions()));
            keys.changed = true;
        }
    }

    /// A place is given up once everything that was said so far is durable.
    pub(crate) fn leave_when_durable(&mut self, turn: KeyTurn) {
        self.leave_places(turn.path());
        let mark = self.outbox.written();
        self.parks.make().keys.leaving.push((mark, turn));
    }

    /// The places that are to be given up by now.
    pub(crate) fn take_left(&mut self) -> Vec<KeyTurn> {
        let Some(parks) = self.parks.get_mut().filter(|parks| !parks.keys.leaving.is_empty()) else {
            return Vec::new();
        };
        let is_durable = |(mark, _): &(u64, KeyTurn)| self.outbox.is_durable(*mark);
        let (left, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut parks.keys.leaving).into_iter().partition(is_durable);
        parks.keys.leaving = rest;
        left.into_iter().map(|(_, turn)| turn).collect()
    }

    /// A body must end by then, whatever its operations wait for.
    pub(crate) fn deadline(&mut self, path: &Path, at: Option<Timestamp>) {
        match at {
            Some(at) => self.parks.make().deadlines.insert(path.clone(), at),
            None => self.parks.get_mut().and_then(|parks| parks.deadlines.remove(path)),
        };
    }

    /// Puts what changed about the parks into the next commit.
    pub(super) fn publish_parks(&mut self) {
        let Some(parks) = self.parks.get_mut() else { return };
        if std::mem::take(&mut parks.changed) {
            self.outbox.parks(parks.open.values().map(|park| Park::clone(park)).collect());
        }
        let keys = &mut parks.keys;
        if std::mem::take(&mut keys.changed) && !keys.stored.iter().eq(keys.places.values()) {
            keys.stored = keys.places.values().cloned().collect();
            self.outbox.keys(keys.stored.clone());
        }
    }

    /// An open wait has its answer, for whoever else waits for it.
    pub(crate) fn answered_open(&mut self, path: Path, result: Recorded) {
        self.parks.make().answers.insert(path, Box::new(result));
    }

    /// The answer to an open wait.
    pub(crate) fn open_answer(&self, path: &Path) -> Option<&Recorded> {
        self.parks.get()?.answers.get(path).map(|answer| &**answer)
    }

    /// Why the reply keys of this run are void.
    pub(crate) fn revocation(&self) -> Option<&str> {
        self.parks.get()?.revoked.as_deref()
    }

    pub(super) fn revoke(&mut self, reason: String, at: Timestamp) {
        self.outbox.append(Record {
            path: Path::root(),
            at,
            asked: None,
            event: Event::Revoked { reason: reason.clone() },
        });
        self.parks.make().revoked = Some(reason);
    }

    /// Takes the answer to a park out of the mailbox. The mailbox forgets it only in the commit that has the next record of
    /// the operation that took it.
    pub(crate) fn take_answer(&mut self, looks: &Looks<'_>) -> Option<Answer> {
        let Some(index) = self.mail.iter().position(|mail| answers(&mail.message, looks)) else {
            return self.joined_before(looks);
        };
        // A connection is there for every call that needs it, so its message stays.
        if let Message::Connect { .. } = self.mail[index].message {
            let latest = self.mail.iter().rev().find(|mail| answers(&mail.message, looks))?;
            let Message::Connect { refused, .. } = &latest.message else { return None };
            return Some(Answer::Connected { refused: refused.clone() });
        }
        let mail = self.mail.remove(index)?;
        self.undecided.push((looks.path.clone(), mail.position));
        match mail.message {
            Message::Resolve { resolution, .. } => Some(Answer::Result(resolved(resolution))),
            Message::Signal { value, .. } => {
                let output = Output::value(Arc::unwrap_or_clone(value));
                Some(Answer::Result(Ok(Arc::new(output))))
            }
            Message::Ended { run, result } => {
                if let Ok(output) = &result {
                    self.refs.vouch(looks.path, output.refs.clone());
                }
                self.history.make().joined.insert(run, result.clone());
                Some(Answer::Result(result))
            }
            Message::Decide { granted, by, reason, until, .. } => Some(Answer::Decided { granted, by, reason, until }),
            _ => None,
        }
    }

    /// A child says once how it ended; whoever waits for it again is told the same.
    fn joined_before(&self, looks: &Looks<'_>) -> Option<Answer> {
        let Blocked::Child { run } = looks.on else { return None };
        self.history.get()?.joined.get(run).cloned().map(Answer::Result)
    }

    /// Suspends the run if all it does is wait: the commit says up to where its mailbox was examined.
    pub(crate) fn try_suspend(&mut self, now: Timestamp) -> bool {
        let waits = self.open_parks().next().is_some() || !self.doubts.is_empty();
        if self.stop.is_some() || self.is_cancelled() || !waits || !self.undecided.is_empty() {
            return false;
        }
        let wake = self.next_wake();
        if wake.is_some_and(|wake| wake <= now) || self.mail.iter().any(|mail| self.is_awaited(mail)) {
            return false;
        }
        self.outbox.examined(self.seen);
        self.outbox.state(RunState::Suspended { wake });
        self.stop = Some(Stop::Suspended { wake });
        true
    }

    fn next_wake(&self) -> Option<Timestamp> {
        let parks = self.parks.get()?;
        let ends = parks.open.values().filter_map(|park| park.until);
        ends.chain(parks.deadlines.values().copied()).min()
    }

    fn open_parks(&self) -> impl Iterator<Item = &Park> {
        self.parks.get().into_iter().flat_map(|parks| parks.open.values().map(|park| &**park))
    }

    /// Whether a message of this kind was delivered, and no operation is there to take it.
    pub(crate) fn has_passed_by(&self, is_this: impl Fn(&Message) -> bool) -> bool {
        self.mail.iter().any(|mail| is_this(&mail.message) && !self.is_awaited(mail))
    }

    /// Whether some operation would take this message at its next poll.
    fn is_awaited(&self, mail: &Mail) -> bool {
        match &mail.message {
            Message::Settle { path, attempt, .. } => {
                self.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt)
            }
            Message::Resolve { path, .. } if self.doubts.iter().any(|doubt| doubt.path == *path) => true,
            message => self.open_parks().any(|park| answers(message, &park.looks())),
        }
    }
}

impl Park {
    fn looks(&self) -> Looks<'_> {
        Looks { path: &self.path, on: &self.on }
    }
}

fn answers(message: &Message, looks: &Looks<'_>) -> bool {
    match (message, looks.on) {
        (Message::Resolve { path, .. }, Blocked::Input { at, .. }) => at.as_ref().unwrap_or(looks.path) == path,
        (Message::Signal { name, .. }, Blocked::Signal { name: wanted }) => name == wanted,
        (Message::Ended { run, .. }, Blocked::Child { run: wanted }) => run == wanted,
        (Message::Decide { path, digest, .. }, Blocked::Approval { digest: wanted, .. }) => {
            path == looks.path && digest == wanted
        }
        (Message::Connect { provider, .. }, Blocked::Connection { provider: wanted }) => provider == wanted,
        _ => false,
    }
}

/// What tells an answer "it timed out" from nobody having answered in time.
const OUTSIDE_TIMED_OUT: &str = "whoever was to answer ran out of time";

/// What a body is told of an answer.
pub(crate) fn resolved(resolution: Resolution) -> Recorded {
    match resolution {
        Resolution::Ok { value } => Ok(Arc::new(Output::value(value))),
        Resolution::Err { code, message } => Err(Arc::new(ToolError::rejected(code, message))),
        Resolution::Timeout => Err(Arc::new(ToolError::TimedOut { message: OUTSIDE_TIMED_OUT.to_owned() })),
        Resolution::Cancelled { reason } => Err(Arc::new(ToolError::Cancelled { reason })),
    }
}

/// A child that has ended need not be cancelled, nor carried along to the next generation.
pub(super) fn forget_ended(children: &mut Vec<RunId>, message: &Message) {
    if let Message::Ended { run, .. } = message {
        children.retain(|child| child != run);
    }
}

/// The runs a cancelled run takes with it.
pub(super) fn cancelled_with(children: &[RunId], by: &str, reason: &str) -> Vec<(RunId, Message)> {
    let message = || Message::Cancel { by: by.to_owned(), reason: format!("its parent was cancelled: {reason}") };
    children.iter().map(|child| (*child, message())).collect()
}
