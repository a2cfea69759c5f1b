//! What a run waits for, the mail that answers it, and whether the run can be suspended.

use std::collections::{BTreeMap, BTreeSet};

use super::machine::{Machine, Stop};
use super::record::{Event, Record, Recorded};
use super::state::{Blocked, Park, RunState};
use crate::admit::QueuedKey;
use crate::id::RunId;
use crate::path::Path;
use crate::store::{KeyPlace, Mail, Message};
use crate::time::Timestamp;
use crate::tool::Output;

use std::sync::Arc;

/// The waiting operations of a run.
#[derive(Default)]
pub(super) struct Parks {
    /// Boxed, because a map node has room for eleven entries, and most runs wait for one thing.
    open: BTreeMap<Path, Box<Park>>,
    /// Whether the store has another set.
    changed: bool,
    /// Deadlines of bodies around the parks.
    deadlines: BTreeMap<Path, Timestamp>,
    replies: Replies,
    keys: KeyPlaces,
}

/// What came of the reply keys of a run's waits.
#[derive(Default)]
pub(super) struct Replies {
    /// Why reply keys are void.
    pub(super) revoked: Option<String>,
    /// The answers to waits that may be awaited again, by the path where the key was made.
    pub(super) answers: BTreeMap<Path, Box<Recorded>>,
}

/// The places of a run's operations in the key queues.
#[derive(Default)]
struct KeyPlaces {
    places: BTreeMap<Path, KeyPlace>,
    /// The places that the store has, or is about to get.
    stored: Vec<KeyPlace>,
    /// Whether `stored` may be outdated.
    changed: bool,
    /// Places that are given up once this mark is durable.
    leaving: Vec<(u64, QueuedKey)>,
    /// Whether the store holds the queues. Then it is told only which places are given up.
    is_shared: bool,
    /// Operations whose keys the store granted.
    granted: BTreeSet<Path>,
}

impl Parks {
    /// The parks of a run that is taken up. Items that the journal lists as open stay on the list until their operation
    /// is asked for again, because a person may answer them at any moment.
    pub(super) fn of_past(replies: Replies, open: Vec<Park>) -> Self {
        let open = open.into_iter().map(|park| (park.path.clone(), Box::new(park))).collect();
        Self { replies, open, changed: true, ..Self::default() }
    }
}

/// An answer to a park.
pub(crate) enum ParkAnswer {
    /// What the operation returns.
    Result(Recorded),
    /// A decision about a call.
    Decided { granted: bool, by: String, reason: String, until: Timestamp },
    /// A connection is established or refused: by a person, or because it was found in the store.
    Connected { refused: Option<String>, by_person: bool },
}

/// What a park looks for in the mailbox.
pub(crate) struct ParkQuery<'a> {
    pub(crate) path: &'a Path,
    pub(crate) on: &'a Blocked,
}

impl Machine {
    /// Lists a waiting operation.
    pub(crate) fn park(&mut self, park: Park) {
        let parks = self.parks.make();
        if parks.open.get(&park.path).is_none_or(|open| **open != park) {
            parks.open.insert(park.path.clone(), Box::new(park));
            parks.changed = true;
        }
    }

    /// The operation no longer waits.
    pub(crate) fn unpark(&mut self, path: &Path) {
        if let Some(parks) = self.parks.get_mut() {
            parks.changed |= parks.open.remove(path).is_some();
        }
    }

    /// A body was dropped, so nothing below it waits any more.
    pub(super) fn unpark_below(&mut self, path: &Path) {
        self.leave_places(path);
        let Some(parks) = self.parks.get_mut() else { return };
        let before = parks.open.len();
        parks.open.retain(|at, _| !at.positions().starts_with(path.positions()));
        parks.changed |= parks.open.len() != before;
        // The deadlines below it end too.
        parks.deadlines.retain(|at, _| !at.positions().starts_with(path.positions()));
    }

    /// Sets the places of a run that is taken up. They stay on the list until their operations are asked for again.
    pub(crate) fn set_places(&mut self, places: Vec<KeyPlace>) {
        if !places.is_empty() {
            let keys = &mut self.parks.make().keys;
            keys.places = places.into_iter().map(|place| (place.path.clone(), place)).collect();
            // The store may have fewer if it failed meanwhile.
            keys.changed = true;
        }
    }

    /// Lists the place of an operation in the queue of its key.
    pub(crate) fn set_place(&mut self, place: KeyPlace) {
        let keys = &mut self.parks.make().keys;
        keys.changed = true;
        keys.places.insert(place.path.clone(), place);
    }

    /// An operation ended, or gave up its place. Neither it nor anything below it has one now.
    pub(crate) fn leave_places(&mut self, path: &Path) {
        let Some(parks) = self.parks.get_mut() else { return };
        let keys = &mut parks.keys;
        if keys.places.is_empty() {
            return;
        }
        let before = keys.places.len();
        keys.places.retain(|at, _| !at.positions().starts_with(path.positions()));
        if !keys.is_shared {
            keys.changed = true;
        } else if keys.places.len() != before {
            keys.granted.retain(|at| !at.positions().starts_with(path.positions()));
            self.outbox.leave(path.clone());
        }
    }

    /// Lists an operation that has, or requests, a place in a queue of the store.
    pub(crate) fn set_shared_place(&mut self, path: &Path, key: &Arc<str>) {
        let keys = &mut self.parks.make().keys;
        keys.is_shared = true;
        let place = KeyPlace { path: path.clone(), key: key.clone(), ticket: 0, held: false };
        keys.places.insert(path.clone(), place);
    }

    /// The store granted an operation its key.
    pub(super) fn grant(&mut self, path: Path) {
        self.parks.make().keys.granted.insert(path);
    }

    /// Whether the store granted the operation its key. True only once for each grant.
    pub(crate) fn take_granted(&mut self, path: &Path) -> bool {
        self.parks.get_mut().is_some_and(|parks| parks.keys.granted.remove(path))
    }

    /// Gives up a place once everything recorded so far is durable.
    pub(crate) fn leave_when_durable(&mut self, turn: QueuedKey) {
        self.leave_places(turn.path());
        let mark = self.outbox.written();
        self.parks.make().keys.leaving.push((mark, turn));
    }

    /// The places that are to be given up now.
    pub(crate) fn take_left(&mut self) -> Vec<QueuedKey> {
        let Some(parks) = self.parks.get_mut().filter(|parks| !parks.keys.leaving.is_empty()) else {
            return Vec::new();
        };
        let is_durable = |(mark, _): &(u64, QueuedKey)| self.outbox.is_durable(*mark);
        let (left, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut parks.keys.leaving).into_iter().partition(is_durable);
        parks.keys.leaving = rest;
        left.into_iter().map(|(_, turn)| turn).collect()
    }

    /// A body must end by this time, whatever its operations wait for. `None` removes the deadline.
    pub(crate) fn deadline(&mut self, path: &Path, at: Option<Timestamp>) {
        match at {
            Some(at) => self.parks.make().deadlines.insert(path.clone(), at),
            None => self.parks.get_mut().and_then(|parks| parks.deadlines.remove(path)),
        };
    }

    /// Puts changed parks and places into the next commit.
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

    /// Puts changed parks into the next commit. Returns the mark of the latest change.
    pub(crate) fn publish_now(&mut self) -> u64 {
        self.publish_parks();
        self.outbox.written()
    }

    /// The position of the last message about this provider, unless it refuses the connection. What needs another
    /// connection now is answered only by later messages.
    pub(crate) fn connected_at(&self, provider: &str) -> Option<u64> {
        let latest = self.mail.iter().rev().find_map(|mail| match &mail.message {
            Message::Connect { provider: connected, refused } if **connected == *provider => {
                Some((mail.position, refused.is_none()))
            }
            _ => None,
        });
        latest.filter(|(_, is_connected)| *is_connected).map(|(position, _)| position)
    }

    /// Keeps the answer that was given by the key made at `path`, for other operations that wait for it.
    pub(crate) fn keep_answer(&mut self, path: Path, result: Recorded) {
        self.parks.make().replies.answers.insert(path, Box::new(result));
    }

    /// The answer that was given by the key made at `path`.
    pub(crate) fn kept_answer(&self, path: &Path) -> Option<&Recorded> {
        self.parks.get()?.replies.answers.get(path).map(|answer| &**answer)
    }

    /// Why the reply keys of this run are void, if they are.
    pub(crate) fn revocation(&self) -> Option<&str> {
        self.parks.get()?.replies.revoked.as_deref()
    }

    pub(super) fn revoke(&mut self, reason: String, at: Timestamp) {
        self.outbox.append(Record {
            path: Path::root(),
            at,
            asked: None,
            event: Event::Revoked { reason: reason.clone() },
        });
        self.parks.make().replies.revoked = Some(reason);
    }

    /// Takes the answer to a park out of the mailbox. The mailbox forgets the message only with the commit that
    /// contains the next record of the operation that took it.
    pub(crate) fn take_answer(&mut self, query: &ParkQuery<'_>) -> Option<ParkAnswer> {
        let Some(index) = self.mail.iter().position(|mail| answers(mail, query)) else {
            return self.joined_before(query);
        };
        // A connection serves every call that needs it, so its message stays.
        if let Message::Connect { .. } = self.mail[index].message {
            let latest = self.mail.iter().rev().find(|mail| answers(mail, query))?;
            let Message::Connect { refused, .. } = &latest.message else { return None };
            return Some(ParkAnswer::Connected { refused: refused.clone(), by_person: true });
        }
        let mail = self.mail.remove(index)?;
        self.unrecorded_mail.push((query.path.clone(), mail.position));
        match mail.message {
            Message::Resolve { resolution, .. } => Some(ParkAnswer::Result(resolution.into_result())),
            Message::Signal { value, .. } => {
                let output = Output::value(Arc::unwrap_or_clone(value));
                Some(ParkAnswer::Result(Ok(Arc::new(output))))
            }
            Message::Ended { run, result } => {
                self.note_joined(query.path, run, &result);
                Some(ParkAnswer::Result(result))
            }
            Message::Decide { granted, by, reason, until, .. } => {
                Some(ParkAnswer::Decided { granted, by, reason, until })
            }
            _ => None,
        }
    }

    /// Keeps the outcome of another run for later waits, and lets the operation refer to its artifacts.
    fn note_joined(&mut self, path: &Path, run: RunId, result: &Recorded) {
        if let Ok(output) = result {
            self.refs.vouch(path, output.refs.clone());
        }
        self.history.make().joined.insert(run, result.clone());
    }

    /// The outcome of another run, if an operation of this generation has received it.
    pub(crate) fn outcome_of(&self, run: RunId) -> Option<&Recorded> {
        self.history.get()?.joined.get(&run)
    }

    /// Whether the store reported that a run has finished.
    pub(crate) fn is_told_over(&self, run: RunId) -> bool {
        self.mail.iter().any(|mail| matches!(mail.message, Message::Over { run: over } if over == run))
    }

    /// Ends the wait at `path` for the end of a run, whose outcome was read from the store.
    pub(crate) fn join(&mut self, path: &Path, run: RunId, result: &Recorded) {
        let is_it = |mail: &Mail| matches!(mail.message, Message::Over { run: over } if over == run);
        if let Some(mail) = self.mail.iter().position(is_it).and_then(|index| self.mail.remove(index)) {
            self.unrecorded_mail.push((path.clone(), mail.position));
        }
        self.note_joined(path, run, result);
    }

    /// A child reports its end once. Later waits for it get the same result.
    fn joined_before(&self, query: &ParkQuery<'_>) -> Option<ParkAnswer> {
        let Blocked::Child { run } = query.on else { return None };
        self.outcome_of(*run).cloned().map(ParkAnswer::Result)
    }

    /// Suspends the run if it only waits. The commit says up to which position the mailbox was examined.
    pub(crate) fn try_suspend(&mut self, now: Timestamp) -> bool {
        let waits = self.open_parks().next().is_some() || !self.doubts.is_empty();
        if self.stop.is_some() || self.is_cancelled() || !waits || !self.unrecorded_mail.is_empty() {
            return false;
        }
        let wake = self.next_wake();
        let is_granted = |park: &Park| {
            let granted = self.parks.get().map(|parks| &parks.keys.granted);
            matches!(park.on, Blocked::Key { .. }) && granted.is_some_and(|granted| granted.contains(&park.path))
        };
        if self.open_parks().any(is_granted) {
            return false;
        }
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

    /// Whether such a message was delivered and no operation waits for it.
    pub(crate) fn has_passed_by(&self, is_this: impl Fn(&Message) -> bool) -> bool {
        self.mail.iter().any(|mail| is_this(&mail.message) && !self.is_awaited(mail))
    }

    /// Whether some operation would take this message at its next poll.
    fn is_awaited(&self, mail: &Mail) -> bool {
        match &mail.message {
            Message::Settle { path, attempt, .. } => {
                self.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt)
            }
            Message::Over { run: over } => {
                self.open_parks().any(|park| matches!(park.on, Blocked::Child { run } if run == *over))
            }
            Message::Resolve { path, .. } if self.doubts.iter().any(|doubt| doubt.path == *path) => true,
            _ => self.open_parks().any(|park| answers(mail, &park.query())),
        }
    }
}

impl Park {
    fn query(&self) -> ParkQuery<'_> {
        ParkQuery { path: &self.path, on: &self.on }
    }
}

fn answers(mail: &Mail, query: &ParkQuery<'_>) -> bool {
    match (&mail.message, query.on) {
        (Message::Resolve { path, .. }, Blocked::Input { at, .. }) => at.as_ref().unwrap_or(query.path) == path,
        (Message::Signal { name, .. }, Blocked::Signal { name: wanted }) => name == wanted,
        (Message::Ended { run, .. }, Blocked::Child { run: wanted }) => run == wanted,
        (Message::Decide { path, digest, .. }, Blocked::Approval { digest: wanted, .. }) => {
            path == query.path && digest == wanted
        }
        (Message::Connect { provider, .. }, Blocked::Connection { provider: wanted, after, .. }) => {
            provider == wanted && after.is_none_or(|after| mail.position > after)
        }
        _ => false,
    }
}
