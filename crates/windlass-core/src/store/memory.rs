//! The store that forgets: everything in memory, the same semantics as on disk.

mod artifacts;
mod check;
mod entry;
mod lists;
mod sessions;
#[cfg(test)]
mod tests;
mod tidy;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{
    Answer, Artifacts, Change, Claimant, Claimed, Commit, Counts, Creation, Driving, Due, Entry as Logged, Filter,
    Guard, KeyPlace, Mail, Mailboxes, Message, Queries, Retention, Store, StoreError, Tidied, Turn, Upkeep,
};
use crate::id::{RunId, WorkerId};
use crate::run::record::Record;
use crate::run::state::{RunInfo, RunState};
use crate::time::Timestamp;
use artifacts::Shelf;
use check::Standing;
use entry::{Entry, Owner};
use sessions::Sessions;
use tidy::Tombstone;

/// Finished runs kept for looking at; older ones are dropped so that a long-lived process stays bounded.
const FINISHED_KEPT: usize = 1_024;
/// The same bound in records, for runs of many thousands of them. The latest run is kept whatever its length.
const RECORDS_KEPT: usize = 256 * 1_024;

/// A suspended run without a timer is due never, as far as time goes.
const NEVER: Timestamp = Timestamp::from_micros(i64::MAX);
const AT_ONCE: Timestamp = Timestamp::from_micros(i64::MIN);

/// Keeps runs in memory. Cloning shares it.
///
/// Of the finished runs only the latest are kept, whatever their [`Retention`]; the key of a run that goes for lack of room
/// is free again.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
    secret: [u8; 32],
}

#[derive(Default)]
struct Inner {
    runs: FxHashMap<RunId, Entry>,
    finished: VecDeque<RunId>,
    finished_records: usize,
    /// Counts the deaths of all owners at once; an owner from before the last one is certainly dead.
    deaths: u64,
    /// Queued and suspended runs by the time they are due.
    wakes: BTreeSet<(Timestamp, RunId)>,
    keys: FxHashMap<Arc<str>, RunId>,
    leases: BTreeMap<WorkerId, Timestamp>,
    sessions: Sessions,
    artifacts: Shelf,
    retention: Retention,
    /// Keys of runs that are gone.
    tombstones: BTreeMap<Arc<str>, Tombstone>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let mut secret = [0; 32];
        let (first, second) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        secret[..16].copy_from_slice(first.as_bytes());
        secret[16..].copy_from_slice(second.as_bytes());
        Self { inner: Arc::default(), secret }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that keeps finished runs for this long.
    pub fn keeping(retention: Retention) -> Self {
        let store = Self::default();
        store.inner.lock().retention = retention;
        store
    }

    /// Says that every process that used this store is dead, as a crash test does: none of their attempts can still be
    /// running, and their leases are over.
    pub fn owners_died(&self) {
        let mut inner = self.inner.lock();
        inner.deaths += 1;
        inner.leases.clear();
        inner.artifacts.owners_died();
    }
}

impl Inner {
    fn commit(&mut self, mut commit: Commit) -> Result<(), StoreError> {
        if self.check(&commit)? == Standing::Repeated {
            return Ok(());
        }
        let owner = match commit.guard {
            Guard::Owner { run, epoch, .. } => Some((run, epoch)),
            Guard::Outsider => None,
        };
        // A run that was there before is not started again, nor does it refer to anything on that account.
        commit.changes.retain(|change| match change {
            Change::Refer { run, .. } => owner.is_some_and(|owner| owner.0 == *run) || !self.runs.contains_key(run),
            _ => true,
        });
        // What a commit says does not depend on how it is put.
        if !commit.changes.is_sorted_by_key(place) {
            commit.changes.sort_by_key(place);
        }
        for change in commit.changes {
            match change {
                Change::Mail { run, message, dedupe } => {
                    // An owner's letter to somebody who does not take it is left out; an outsider's was refused above.
                    if self.takes(run, &message, dedupe.as_ref()).is_ok() {
                        self.deliver(run, message, dedupe);
                    }
                }
                Change::Start { run, creation, records } => self.start(run, creation, records),
                Change::Refer { run, artifacts, .. } => self.refer(run, artifacts),
                Change::Create(creation) => {
                    if let Some((run, epoch)) = owner {
                        self.create(run, epoch, creation, RunState::Running);
                    }
                }
                Change::Append(records) => {
                    if let Some((run, _)) = owner {
                        self.append(run, records);
                    }
                }
                change => {
                    if let Some((run, _)) = owner {
                        self.change(run, change);
                    }
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, run: RunId, message: Message, dedupe: Option<Arc<str>>) {
        let Some(entry) = self.runs.get_mut(&run) else { return };
        let settled = match &message {
            Message::Settle { path, attempt, .. } if entry.is_finished() => {
                entry.doubts.retain(|doubt| doubt.path != *path || doubt.attempt != *attempt);
                entry.doubts.is_empty()
            }
            _ => false,
        };
        entry.post(message, dedupe);
        if matches!(entry.state, RunState::Suspended { .. }) {
            self.set_wake(run, Some(AT_ONCE));
        }
        if settled {
            self.retire(run);
        }
    }

    /// Says when a run that nobody drives is due.
    fn set_wake(&mut self, run: RunId, wake: Option<Timestamp>) {
        let Some(entry) = self.runs.get_mut(&run) else { return };
        if let Some(before) = std::mem::replace(&mut entry.wake, wake) {
            self.wakes.remove(&(before, run));
        }
        self.wakes.extend(wake.map(|wake| (wake, run)));
    }

    fn create(&mut self, run: RunId, epoch: u64, creation: Creation, state: RunState) {
        if let Some(key) = &creation.key {
            self.keys.insert(key.clone(), run);
        }
        if let (Some(session), true) = (&creation.session, creation.turn != Turn::No) {
            self.sessions.add_turn(session, run);
        }
        let owner = Owner::new(creation.worker, self.deaths, true);
        self.runs.insert(run, Entry::new(creation, epoch, state, owner));
    }

    fn start(&mut self, run: RunId, creation: Creation, records: Vec<Record>) {
        if self.runs.contains_key(&run) {
            return;
        }
        let waits = match (&creation.session, creation.turn) {
            (Some(session), turn) if turn != Turn::No => self.sessions.is_busy(session),
            _ => false,
        };
        self.create(run, 0, creation, RunState::Queued);
        if let Some(entry) = self.runs.get_mut(&run) {
            entry.owner.orderly = true;
        }
        self.append(run, records);
        self.set_wake(run, Some(if waits { NEVER } else { AT_ONCE }));
    }

    fn append(&mut self, run: RunId, records: Vec<Record>) {
        let Some(entry) = self.runs.get_mut(&run) else { return };
        if let Some(session) = &entry.session {
            let first = entry.records.len() as u64;
            self.sessions.log(session, run, first..first + records.len() as u64);
        }
        if entry.records.is_empty() {
            entry.records = records;
        } else {
            entry.records.extend(records);
        }
    }

    /// Applies what an owner says of its own run.
    fn change(&mut self, run: RunId, change: Change) {
        if let Change::State(state) = change {
            return self.set_state(run, state);
        }
        let Some(entry) = self.runs.get_mut(&run) else { return };
        match change {
            Change::Doubts(doubts) => entry.doubts = doubts,
            Change::Parks(parks) => entry.parks = parks,
            Change::Keys(keys) => entry.keys = keys,
            Change::Continue => entry.next_generation(),
            Change::Examined(position) => entry.mailbox.examine(position),
            Change::Consumed(positions) => entry.mailbox.mail.retain(|mail| !positions.contains(&mail.position)),
            _ => {}
        }
    }

    fn set_state(&mut self, run: RunId, state: RunState) {
        let Some(entry) = self.runs.get_mut(&run) else { return };
        let ends = matches!(state, RunState::Finished { .. }) && !entry.is_finished();
        let wake = match &state {
            RunState::Queued => Some(AT_ONCE),
            RunState::Suspended { .. } if entry.mailbox.latest > entry.mailbox.examined => Some(AT_ONCE),
            RunState::Suspended { wake } => Some(wake.unwrap_or(NEVER)),
            _ => None,
        };
        if ends {
            entry.keys = Vec::new();
            // The commit's own records are there by now, and the last of them says when it was made.
            entry.ended = Some(entry.records.last().map_or(entry.created, |record| record.at));
        }
        // Letting go of a run in good order is not a death. An owner that goes on after all has not let go.
        entry.owner.orderly = matches!(state, RunState::Queued | RunState::Suspended { .. } | RunState::Held { .. });
        entry.state = state;
        if wake.is_some() || entry.wake.is_some() {
            self.set_wake(run, wake);
        }
        if ends {
            self.finish(run);
        }
    }

    fn finish(&mut self, run: RunId) {
        let Some(entry) = self.runs.get(&run) else { return };
        let settled = entry.doubts.is_empty();
        let session = entry.session.clone();
        if let Some(next) = session.and_then(|session| self.sessions.end_turn(&session, run)) {
            self.set_wake(next, Some(AT_ONCE));
        }
        // What somebody may still settle is kept until it is.
        if settled {
            self.retire(run);
        }
    }

    /// Nothing more happens to the run: it is kept for looking at, until there are too many.
    fn retire(&mut self, run: RunId) {
        let Some(entry) = self.runs.get(&run) else { return };
        self.finished_records += entry.records.len();
        self.finished.push_back(run);
        let too_many = |inner: &Self| {
            inner.finished.len() > FINISHED_KEPT || (inner.finished_records > RECORDS_KEPT && inner.finished.len() > 1)
        };
        while too_many(self) {
            let Some(oldest) = self.finished.pop_front() else { return };
            let Some(entry) = self.runs.remove(&oldest) else { continue };
            self.finished_records = self.finished_records.saturating_sub(entry.records.len());
            entry.key.as_ref().map(|key| self.keys.remove(key));
            self.artifacts.forget(oldest);
            if let Some(session) = &entry.session {
                self.sessions.forget(session, oldest);
            }
        }
    }

    fn claim(&mut self, run: RunId, by: Claimant) -> Result<Claimed, StoreError> {
        let deaths = self.deaths;
        let entry = self.runs.get_mut(&run).ok_or(StoreError::NoSuchRun(run))?;
        if entry.is_finished() {
            return Err(StoreError::Finished(run));
        }
        let owner = &entry.owner;
        let lease = self.leases.get(&owner.worker).copied().filter(|until| *until > by.now);
        let free = owner.worker == by.worker || owner.deaths < deaths || owner.orderly;
        if let (RunState::Running, false, Some(until)) = (&entry.state, free, lease) {
            return Err(StoreError::Leased { run, until });
        }
        if entry.state == RunState::Queued
            && let Some(session) = &entry.session
        {
            self.sessions.refuse_early(session, run)?;
        }
        entry.epoch += 1;
        entry.state = RunState::Running;
        let owners_dead = owner.deaths < deaths || (owner.orderly && owner.first);
        let turn = entry.session.as_ref().is_some_and(|session| self.sessions.is_turn(session, run));
        let last = std::mem::replace(&mut entry.owner, Owner::new(by.worker, deaths, owners_dead));
        let claimed = entry.claimed(&last, owners_dead, turn);
        self.set_wake(run, None);
        Ok(claimed)
    }

    fn due(&self, now: Timestamp, limit: usize) -> Due {
        // Whatever the time is, it is not "never".
        let now = now.min(Timestamp::from_micros(i64::MAX - 1));
        let woken = self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, run)| *run);
        let mut runs: Vec<RunId> = woken.take(limit).collect();
        let expired: BTreeSet<WorkerId> =
            self.leases.iter().filter(|(_, until)| **until <= now).map(|(worker, _)| *worker).collect();
        if !expired.is_empty() {
            let is_left = |entry: &Entry| {
                let Owner { worker, deaths, .. } = &entry.owner;
                entry.state == RunState::Running && *deaths == self.deaths && expired.contains(worker)
            };
            let mut left: Vec<RunId> =
                self.runs.iter().filter(|(_, entry)| is_left(entry)).map(|(run, _)| *run).collect();
            left.sort_unstable();
            runs.extend(left);
            runs.truncate(limit);
        }
        let later = Timestamp::from_micros(now.as_micros() + 1);
        let next = self.wakes.range((later, RunId::from_bytes([0; 16]))..).next();
        Due { runs, next: next.map(|(at, _)| *at).filter(|at| *at != NEVER) }
    }

    fn feed(&self, session: &str, after: u64, limit: usize) -> Vec<Logged> {
        let logged = |(position, run, seq): (u64, RunId, u64)| {
            let records = &self.runs.get(&run)?.records;
            let record = records.get(usize::try_from(seq).ok()?)?.clone();
            Some(Logged { position, run, seq, record })
        };
        self.sessions.after(session, after).filter_map(logged).take(limit).collect()
    }
}

/// Where a change stands in the order in which those of one commit are applied: the run before its generation, the
/// generation before its records, all that is known of the run before its state, and the run before what leaves it.
fn place(change: &Change) -> u8 {
    match change {
        Change::Create(_) => 0,
        Change::Continue => 1,
        Change::Append(_) => 2,
        Change::Doubts(_) | Change::Parks(_) | Change::Keys(_) | Change::Examined(_) | Change::Consumed(_) => 3,
        Change::State(_) => 4,
        Change::Start { .. } => 5,
        // A run refers to something once it is there.
        Change::Refer { .. } => 6,
        Change::Mail { .. } => 7,
    }
}

impl MemoryStore {
    fn find<T>(&self, run: RunId, look: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        self.inner.lock().runs.get(&run).map(look).ok_or(StoreError::NoSuchRun(run))
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Driving for MemoryStore {
    fn commit(&self, commit: Commit) -> Answer<()> {
        Answer::Ready(self.inner.lock().commit(commit))
    }

    fn claim(&self, run: RunId, by: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        ready(self.inner.lock().claim(run, by))
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        if let Some(entry) = self.inner.lock().runs.get_mut(&run)
            && entry.epoch == epoch
        {
            entry.owner.orderly = true;
        }
        ready(Ok(()))
    }

    fn renew(&self, worker: WorkerId, until: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.lock().leases.insert(worker, until);
        ready(Ok(()))
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        ready(Ok(self.inner.lock().due(now, limit)))
    }

    fn key_places(&self) -> BoxFuture<'_, Result<Vec<(RunId, KeyPlace)>, StoreError>> {
        let inner = self.inner.lock();
        let places = inner.runs.iter().flat_map(|(run, entry)| entry.keys.iter().map(|place| (*run, place.clone())));
        ready(Ok(places.collect()))
    }

    fn mail_of_many(&self, runs: Vec<(RunId, u64)>) -> BoxFuture<'_, Result<Mailboxes, StoreError>> {
        let inner = self.inner.lock();
        let mail = |(run, after): (RunId, u64)| {
            let mail = inner.runs.get(&run)?.mailbox.beyond(after);
            (!mail.is_empty()).then_some((run, mail))
        };
        ready(Ok(runs.into_iter().filter_map(mail).collect()))
    }

    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        ready(self.find(run, |entry| entry.mailbox.beyond(after)))
    }
}

impl Queries for MemoryStore {
    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        ready(Ok(self.inner.lock().runs.get(&run).map(|entry| entry.info(run))))
    }

    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.page(run, from, usize::MAX)
    }

    fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let page = |entry: &Entry| match entry.summary {
            true => Err(StoreError::JournalGone(run)),
            false => Ok(entry.records.iter().skip(from).take(limit).cloned().collect()),
        };
        ready(self.find(run, page).flatten())
    }

    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Logged>, StoreError>> {
        ready(Ok(self.inner.lock().feed(&session, after, limit)))
    }

    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        ready(Ok(self.inner.lock().list(&filter, after, limit)))
    }

    fn latest(
        &self,
        filter: Filter,
        before: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        ready(Ok(self.inner.lock().latest(&filter, before, limit)))
    }

    fn keyed(&self, key: Arc<str>) -> BoxFuture<'_, Result<Option<RunId>, StoreError>> {
        ready(Ok(self.inner.lock().keyed(&key)))
    }

    fn told(&self, run: RunId, dedupe: Arc<str>) -> BoxFuture<'_, Result<bool, StoreError>> {
        ready(self.find(run, |entry| entry.mailbox.has_had(&dedupe)))
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        ready(Ok(self.inner.lock().counts()))
    }
}

impl Upkeep for MemoryStore {
    fn tidy(&self, now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        ready(Ok(self.inner.lock().tidy(now)))
    }

    fn purge(&self, run: RunId, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.inner.lock().purge(run, now))
    }

    /// There is nothing to give up: whoever shares the store goes on with it.
    fn close(&self) -> BoxFuture<'_, ()> {
        ready(())
    }
}

impl Store for MemoryStore {
    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
    }
}
