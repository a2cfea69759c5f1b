//! A store that keeps everything in memory, with the same semantics as the one on disk.

mod artifacts;
mod check;
mod connections;
mod entry;
mod files;
mod hooks;
mod lists;
mod session_rows;
mod sessions;
mod shared;
mod slots;
#[cfg(test)]
mod tests;
mod tidy;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{
    Answer, Artifacts, Change, Claimed, ClaimedDue, Commit, Counts, Creation, Driving, Due, Entry as FeedRecord,
    FileReservations, Filter, Guard, KeyPlace, Mail, Mailboxes, Message, OnChange, Queries, Retention, SharedAdmission,
    Store, StoreClock, StoreError, Turn,
};
use crate::admit::queues::Queues;
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::Record;
use crate::run::state::{RunInfo, RunState};
use crate::time::{Clock, Timestamp};
use artifacts::ArtifactTable;
use check::{CommitCheck, change_order};
use entry::{RunOwner, RunRow};
use hooks::ChangeHooks;
use sessions::Sessions;
use slots::Slots;
use tidy::Tombstone;

/// How many finished runs are kept for inspection. Older ones are dropped, to bound the memory of a long-lived process.
const FINISHED_KEPT: usize = 1_024;
/// The most records of finished runs, for runs with many thousands of them. The latest run is kept whatever its length.
const RECORDS_KEPT: usize = 256 * 1_024;

/// The wake time of a suspended run without a timer.
const NEVER: Timestamp = Timestamp::from_micros(i64::MAX);
/// An upper bound of the current time, below [`NEVER`].
const LATEST: Timestamp = Timestamp::from_micros(i64::MAX - 1);
/// The wake time of a run that is due now.
const AT_ONCE: Timestamp = Timestamp::from_micros(i64::MIN);

/// Keeps runs in memory. Clones share the store.
///
/// Of the finished runs only the latest are kept, whatever their [`Retention`]. The key of a run that is dropped to
/// make room is free again.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<StoreClock>,
    hooks: Arc<ChangeHooks>,
    secret: [u8; 32],
}

// Many fields: one for each table of the store.
#[derive(Default)]
struct Inner {
    runs: FxHashMap<RunId, RunRow>,
    finished: VecDeque<RunId>,
    finished_records: usize,
    /// How often [`MemoryStore::owners_died`] was called. An owner from before the last call is certainly dead.
    deaths: u64,
    /// Queued and suspended runs by the time when they are due.
    wakes: BTreeSet<(Timestamp, RunId)>,
    keys: FxHashMap<Arc<str>, RunId>,
    leases: BTreeMap<WorkerId, Timestamp>,
    /// The running runs of each worker that has or had a lease.
    driven: BTreeMap<WorkerId, BTreeSet<RunId>>,
    sessions: Sessions,
    connections: connections::ConnectionTable,
    queues: Queues,
    /// Runs to which the current commit granted a key, or reported the end of a run.
    granted: Vec<RunId>,
    slots: Slots,
    artifacts: ArtifactTable,
    reserved: FileReservations,
    retention: Retention,
    /// Keys of runs that have been removed.
    tombstones: BTreeMap<Arc<str>, Tombstone>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let mut secret = [0; 32];
        let (first, second) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        secret[..16].copy_from_slice(first.as_bytes());
        secret[16..].copy_from_slice(second.as_bytes());
        Self { inner: Arc::default(), clock: Arc::default(), hooks: Arc::default(), secret }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store with this retention of finished runs.
    pub fn keeping(retention: Retention) -> Self {
        let store = Self::default();
        store.inner.lock().retention = retention;
        store
    }

    /// Declares every process that used this store dead, for crash tests: none of their attempts is still running, and
    /// their leases are over.
    pub fn owners_died(&self) {
        let mut inner = self.inner.lock();
        inner.deaths += 1;
        inner.leases.clear();
        inner.driven.clear();
        inner.slots = Slots::default();
        inner.artifacts.owners_died();
    }
}

impl Inner {
    fn commit(&mut self, mut commit: Commit) -> Result<(), StoreError> {
        if self.check(&commit)? == CommitCheck::Repeated {
            return Ok(());
        }
        let owner = match commit.guard {
            Guard::Owner { run, epoch, .. } => Some((run, epoch)),
            Guard::Outsider => None,
        };
        // A run that exists already is not started again, so its references are dropped too.
        commit.changes.retain(|change| match change {
            Change::Refer { run, .. } => owner.is_some_and(|owner| owner.0 == *run) || !self.runs.contains_key(run),
            _ => true,
        });
        // The result of a commit does not depend on the order of its changes.
        if !commit.changes.is_sorted_by_key(change_order) {
            commit.changes.sort_by_key(change_order);
        }
        for change in commit.changes {
            match change {
                Change::Mail { run, message, dedupe } => {
                    // A message of an owner to a run that does not take it is left out. A caller's was refused above.
                    if self.check_mail(run, &message, dedupe.as_ref()).is_ok() {
                        self.deliver(run, message, dedupe);
                    }
                }
                Change::Start { run, creation, records } => self.start(run, creation, records),
                Change::Refer { run, artifacts, .. } => self.refer(run, artifacts),
                Change::Tools { session, change } => self.sessions.change_tools(&session, &change),
                Change::Post { session, at, message, principal } => {
                    self.post_if_open(&session, at, message, principal.as_ref());
                }
                Change::Edit { session, at, edits, key } => self.edit_files(&session, at, &edits, owner, &key),
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

    /// Sets when a run that no worker drives is due.
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
        if let Some(session) = &creation.session {
            self.sessions.add_run(session, run, &creation);
            if creation.turn != Turn::No {
                self.sessions.add_turn(session, run);
            }
        }
        self.index_driven(creation.worker, run, state == RunState::Running);
        let owner = RunOwner::new(creation.worker, self.deaths, true);
        self.runs.insert(run, RunRow::new(creation, epoch, state, owner));
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

    /// Applies a change of an owner to its own run.
    fn change(&mut self, run: RunId, change: Change) {
        if let Change::State(state) = change {
            return self.set_state(run, state);
        }
        let Some(entry) = self.runs.get_mut(&run) else { return };
        match change {
            Change::Doubts(doubts) => entry.doubts = doubts,
            Change::Parks(parks) => entry.parks = parks,
            Change::Keys(keys) => entry.keys = keys,
            Change::Continue => {
                entry.next_generation();
                entry.refusals.clear();
                self.sessions.verdicts.remove(&run);
                self.leave_queues(run, &Path::root());
            }
            Change::Outcomes { at, outcomes } => self.sessions.add_outcomes(entry.session.as_ref(), at, &outcomes),
            Change::Leave(paths) => paths.iter().for_each(|path| self.leave_queues(run, path)),
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
            entry.refusals.clear();
            self.sessions.verdicts.remove(&run);
            // The records of this commit are appended by now, and the last of them has the time of the commit.
            entry.ended = Some(entry.records.last().map_or(entry.created, |record| record.at));
        }
        // An owner that stops driving in one of these states has shut down cleanly. One that drives on has not.
        entry.owner.orderly = matches!(state, RunState::Queued | RunState::Suspended { .. } | RunState::Held { .. });
        let (worker, is_running, had_wake) = (entry.owner.worker, state == RunState::Running, entry.wake.is_some());
        entry.state = state;
        self.index_driven(worker, run, is_running);
        if wake.is_some() || had_wake {
            self.set_wake(run, wake);
        }
        if ends {
            self.leave_queues(run, &Path::root());
            self.notify_awaiting(run);
            self.finish(run);
        }
    }

    fn finish(&mut self, run: RunId) {
        let Some(entry) = self.runs.get(&run) else { return };
        let settled = entry.doubts.is_empty();
        let session = entry.session.clone();
        if let Some(next) = session.and_then(|session| self.sessions.end_run(&session, run)) {
            self.set_wake(next, Some(AT_ONCE));
        }
        // A run with open doubts is kept until they are settled.
        if settled {
            self.retire(run);
        }
    }

    /// Marks a run as final: it is kept for inspection until newer runs displace it.
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
                self.sessions.remove_run(session);
            }
        }
    }

    fn claim(&mut self, run: RunId, worker: WorkerId, now: Timestamp) -> Result<Claimed, StoreError> {
        if let Some(RunRow { state: RunState::Queued, session: Some(session), .. }) = self.runs.get(&run) {
            self.refuse_early(session, run)?;
        }
        let deaths = self.deaths;
        let entry = self.runs.get_mut(&run).ok_or(StoreError::NoSuchRun(run))?;
        if entry.is_finished() {
            return Err(StoreError::Finished(run));
        }
        let owner = &entry.owner;
        let lease = self.leases.get(&owner.worker).copied().filter(|until| *until > now);
        let is_own = owner.worker == worker;
        let is_dead = owner.deaths < deaths;
        let was_running = entry.state == RunState::Running;
        if let (true, false, Some(until)) = (was_running, is_own || is_dead || owner.orderly, lease) {
            return Err(StoreError::Leased { run, left: until.since(now) });
        }
        entry.epoch += 1;
        entry.state = RunState::Running;
        let owners_dead = is_dead || (owner.orderly && owner.first);
        entry.deaths += u64::from(was_running && !owner.orderly && (is_dead || !is_own));
        let turn = entry.session.as_ref().is_some_and(|session| self.sessions.is_turn(session, run));
        let last = std::mem::replace(&mut entry.owner, RunOwner::new(worker, deaths, owners_dead));
        let mut claimed = entry.claimed(&last, was_running, owners_dead, turn);
        claimed.places = self.places_of(run);
        self.index_driven(last.worker, run, false);
        self.index_driven(worker, run, true);
        self.set_wake(run, None);
        Ok(claimed)
    }

    fn due(&self, now: Timestamp, limit: usize) -> Due {
        let now = now.min(LATEST);
        let woken = self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, run)| *run);
        Due { runs: woken.chain(self.abandoned(now, None)).take(limit).collect(), next: self.next_wake(now) }
    }

    fn next_wake(&self, now: Timestamp) -> Option<Duration> {
        let later = Timestamp::from_micros(now.as_micros().saturating_add(1));
        let next = self.wakes.range((later, RunId::from_bytes([0; 16]))..).next();
        next.map(|(at, _)| *at).filter(|at| *at != NEVER).map(|at| at.since(now))
    }

    /// Running runs whose owner's lease is over, ordered by when the lease ended.
    fn abandoned(&self, now: Timestamp, except: Option<WorkerId>) -> impl Iterator<Item = RunId> {
        let is_over = move |(worker, until): &(&WorkerId, &Timestamp)| **until <= now && Some(**worker) != except;
        let mut over: Vec<(&WorkerId, &Timestamp)> = self.leases.iter().filter(is_over).collect();
        over.sort_by_key(|(worker, until)| (**until, worker.number().cast_signed()));
        let is_abandoned = |run: &RunId| self.runs.get(run).is_some_and(|entry| entry.owner.deaths == self.deaths);
        over.into_iter().filter_map(|(worker, _)| self.driven.get(worker)).flatten().copied().filter(is_abandoned)
    }

    /// Maintains the index of runs by the worker that drives them, for workers with a lease.
    fn index_driven(&mut self, worker: WorkerId, run: RunId, drives: bool) {
        if let Some(runs) = self.driven.get_mut(&worker) {
            if drives {
                runs.insert(run)
            } else {
                runs.remove(&run)
            };
        }
    }

    fn renew(&mut self, worker: WorkerId, until: Timestamp) {
        self.leases.insert(worker, until);
        let is_its = |entry: &RunRow| entry.state == RunState::Running && entry.owner.worker == worker;
        self.driven
            .entry(worker)
            .or_insert_with(|| self.runs.iter().filter(|(_, entry)| is_its(entry)).map(|(run, _)| *run).collect());
    }

    fn claim_due(&mut self, worker: WorkerId, now: Timestamp, limit: usize) -> ClaimedDue {
        let now = now.min(LATEST);
        let woken = self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, run)| *run);
        let due: Vec<RunId> = woken.chain(self.abandoned(now, Some(worker))).take(limit).collect();
        let runs = due.into_iter().map(|run| (run, self.claim(run, worker, now))).collect();
        ClaimedDue { runs, next: self.next_wake(now) }
    }
}

impl MemoryStore {
    fn find<T>(&self, run: RunId, look: impl FnOnce(&RunRow) -> T) -> Result<T, StoreError> {
        self.inner.lock().runs.get(&run).map(look).ok_or(StoreError::NoSuchRun(run))
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Driving for MemoryStore {
    fn commit(&self, commit: Commit) -> Answer<()> {
        let mut touched = self.hooks.touched(&commit);
        let mut inner = self.inner.lock();
        let answer = inner.commit(commit);
        touched.append(&mut inner.granted);
        drop(inner);
        if answer.is_ok() {
            self.hooks.notify(&touched);
        }
        Answer::Ready(answer)
    }

    fn claim(&self, run: RunId, worker: WorkerId) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        let now = self.clock.now();
        ready(self.inner.lock().claim(run, worker, now))
    }

    fn claim_due(&self, worker: WorkerId, limit: usize) -> BoxFuture<'_, Result<ClaimedDue, StoreError>> {
        let now = self.clock.now();
        ready(Ok(self.inner.lock().claim_due(worker, now, limit)))
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        if let Some(entry) = self.inner.lock().runs.get_mut(&run)
            && entry.epoch == epoch
        {
            entry.owner.orderly = true;
        }
        ready(Ok(()))
    }

    fn renew(&self, worker: WorkerId, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        let until = self.clock.now() + lease;
        self.inner.lock().renew(worker, until);
        ready(Ok(()))
    }

    fn on_change(&self, tell: &OnChange) {
        self.hooks.add(tell);
    }

    fn admission(&self) -> Option<&dyn SharedAdmission> {
        Some(self)
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
    fn due(&self, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        let now = self.clock.now();
        ready(Ok(self.inner.lock().due(now, limit)))
    }

    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        ready(Ok(self.inner.lock().runs.get(&run).map(|entry| entry.info(run))))
    }

    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.page(run, from, usize::MAX)
    }

    fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let page = |entry: &RunRow| match entry.summary {
            true => Err(StoreError::JournalGone(run)),
            false => Ok(entry.records.iter().skip(from).take(limit).cloned().collect()),
        };
        ready(self.find(run, page).flatten())
    }

    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<FeedRecord>, StoreError>> {
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

    fn unfinished(&self, limit: u64) -> BoxFuture<'_, Result<Counts, StoreError>> {
        ready(Ok(self.inner.lock().unfinished(limit)))
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        ready(Ok(self.inner.lock().counts()))
    }
}

impl Store for MemoryStore {
    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn sessions(&self) -> &dyn super::Sessions {
        self
    }

    fn connections(&self) -> &dyn super::Connections {
        self
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.clock.set(clock);
    }
}
