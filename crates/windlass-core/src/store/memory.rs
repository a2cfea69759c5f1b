//! The store that forgets: everything in memory, the same semantics as on disk.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Answer, Change, Claimed, Commit, Filter, Guard, Mail, Message, Store, StoreError};
use crate::id::RunId;
use crate::run::record::Record;
use crate::run::state::{Doubt, RunInfo, RunState};
use crate::time::Timestamp;

/// Finished runs kept for looking at; older ones are dropped so that a long-lived process stays bounded.
const FINISHED_KEPT: usize = 1_024;
/// The same bound in records, for runs of many thousands of them. The latest run is kept whatever its length.
const RECORDS_KEPT: usize = 256 * 1_024;

/// Keeps runs in memory. Cloning shares it.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    runs: FxHashMap<RunId, Entry>,
    finished: VecDeque<RunId>,
    finished_records: usize,
    /// Counts the deaths of all owners at once; an owner from before the last one is certainly dead.
    deaths: u64,
}

struct Entry {
    tool: Arc<str>,
    created: Timestamp,
    epoch: u64,
    records: Vec<Record>,
    state: RunState,
    doubts: Vec<Doubt>,
    mailbox: Mailbox,
    owner: Owner,
}

#[derive(Default)]
struct Mailbox {
    mail: Vec<Mail>,
    examined: u64,
}

struct Owner {
    deaths: u64,
    orderly: bool,
    /// Whether all owners before it were dead when it claimed.
    first: bool,
}

impl Owner {
    fn new(deaths: u64, first: bool) -> Self {
        Self { deaths, orderly: false, first }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that every process that used this store is dead, as a crash test does: none of their attempts can still be
    /// running.
    pub fn owners_died(&self) {
        self.0.lock().deaths += 1;
    }
}

impl Entry {
    fn info(&self, run: RunId) -> RunInfo {
        RunInfo {
            run,
            tool: self.tool.clone(),
            created: self.created,
            state: self.state.clone(),
            doubts: self.doubts.clone(),
            epoch: self.epoch,
        }
    }

    fn is_finished(&self) -> bool {
        matches!(self.state, RunState::Finished { .. })
    }

    fn refuse_mail(&self, run: RunId, message: &Message) -> Result<(), StoreError> {
        let settles_open_doubt = matches!(message, Message::Settle { path, attempt, .. }
            if self.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt));
        if self.is_finished() && !settles_open_doubt { Err(StoreError::Finished(run)) } else { Ok(()) }
    }
}

impl Inner {
    fn commit(&mut self, commit: Commit) -> Result<(), StoreError> {
        if self.check(&commit)? == Standing::Repeated {
            return Ok(());
        }
        let owner = match commit.guard {
            Guard::Owner { run, epoch, .. } => Some((run, epoch)),
            Guard::Outsider => None,
        };
        for change in commit.changes {
            self.apply(owner, change);
        }
        Ok(())
    }

    /// Every refusal is decided here, before anything is changed.
    fn check(&self, commit: &Commit) -> Result<Standing, StoreError> {
        for change in &commit.changes {
            if let Change::Mail { run, message } = change {
                self.runs.get(run).ok_or(StoreError::NoSuchRun(*run))?.refuse_mail(*run, message)?;
            }
        }
        let Guard::Owner { run, epoch, expected_seq } = commit.guard else {
            let mail_only = commit.changes.iter().all(|change| matches!(change, Change::Mail { .. }));
            let refusal = || StoreError::Invalid("an outsider may only write to mailboxes".to_owned());
            return mail_only.then_some(Standing::New).ok_or_else(refusal);
        };
        let creates = commit.changes.iter().any(|change| matches!(change, Change::Create { .. }));
        let Some(entry) = self.runs.get(&run) else {
            return if creates { Ok(Standing::New) } else { Err(StoreError::NoSuchRun(run)) };
        };
        if entry.epoch != epoch {
            return Err(StoreError::Stale { run, epoch, current: entry.epoch });
        }
        let current = entry.records.len() as u64;
        let repeated = || same_records(entry, expected_seq, &commit.changes);
        if (current != expected_seq || creates) && repeated() {
            return Ok(Standing::Repeated);
        }
        if current != expected_seq || creates {
            return Err(StoreError::WrongSequence { run, expected: expected_seq, current });
        }
        Ok(Standing::New)
    }

    fn apply(&mut self, owner: Option<(RunId, u64)>, change: Change) {
        if let Change::Mail { run, message } = change {
            if let Some(entry) = self.runs.get_mut(&run) {
                let position = entry.mailbox.mail.last().map_or(entry.mailbox.examined, |mail| mail.position) + 1;
                if entry.is_finished()
                    && let Message::Settle { path, attempt, .. } = &message
                {
                    entry.doubts.retain(|doubt| doubt.path != *path || doubt.attempt != *attempt);
                }
                entry.mailbox.mail.push(Mail { position, message });
            }
            return;
        }
        let Some((run, epoch)) = owner else { return };
        if let Change::Create { tool, at } = change {
            let entry = Entry {
                tool,
                created: at,
                epoch,
                records: Vec::new(),
                state: RunState::Running,
                doubts: Vec::new(),
                mailbox: Mailbox::default(),
                owner: Owner::new(self.deaths, true),
            };
            self.runs.insert(run, entry);
            return;
        }
        let Some(entry) = self.runs.get_mut(&run) else { return };
        match change {
            Change::Append(records) if entry.records.is_empty() => entry.records = records,
            Change::Append(records) => entry.records.extend(records),
            Change::Doubts(doubts) => entry.doubts = doubts,
            Change::Examined(position) => {
                entry.mailbox.examined = position;
                entry.mailbox.mail.retain(|mail| mail.position > position);
            }
            Change::State(state) => {
                let ends = matches!(state, RunState::Finished { .. }) && !entry.is_finished();
                entry.state = state;
                if ends {
                    self.keep_finished(run);
                }
            }
            Change::Create { .. } | Change::Mail { .. } => {}
        }
    }

    fn keep_finished(&mut self, run: RunId) {
        // What somebody may still settle is kept until it is.
        if self.runs.get(&run).is_some_and(|entry| !entry.doubts.is_empty()) {
            return;
        }
        self.finished.push_back(run);
        self.finished_records += self.runs.get(&run).map_or(0, |entry| entry.records.len());
        let too_many = |inner: &Self| {
            inner.finished.len() > FINISHED_KEPT || (inner.finished_records > RECORDS_KEPT && inner.finished.len() > 1)
        };
        while too_many(self) {
            let Some(oldest) = self.finished.pop_front() else { return };
            let records = self.runs.remove(&oldest).map_or(0, |entry| entry.records.len());
            self.finished_records = self.finished_records.saturating_sub(records);
        }
    }

    fn claim(&mut self, run: RunId) -> Result<Claimed, StoreError> {
        let deaths = self.deaths;
        let entry = self.runs.get_mut(&run).ok_or(StoreError::NoSuchRun(run))?;
        if entry.is_finished() {
            return Err(StoreError::Finished(run));
        }
        entry.epoch += 1;
        entry.state = RunState::Running;
        let owner = &entry.owner;
        let owners_dead = owner.deaths < deaths || (owner.orderly && owner.first);
        let orderly = owner.orderly;
        entry.owner = Owner::new(deaths, owners_dead);
        Ok(Claimed {
            epoch: entry.epoch,
            records: entry.records.clone(),
            mail: entry.mailbox.mail.clone(),
            owners_dead,
            orderly,
        })
    }

    fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Vec<RunInfo> {
        let matches = |entry: &Entry| match filter {
            Filter::Running => entry.state == RunState::Running,
            Filter::Held => matches!(entry.state, RunState::Held { .. }),
            Filter::Doubted => !entry.doubts.is_empty(),
            Filter::All => true,
        };
        let mut found: Vec<(&RunId, &Entry)> = self.runs.iter().filter(|(_, entry)| matches(entry)).collect();
        found.sort_unstable_by_key(|(run, _)| **run);
        let rest = found.into_iter().filter(|(run, _)| after.is_none_or(|after| **run > after));
        rest.take(limit).map(|(run, entry)| entry.info(*run)).collect()
    }
}

#[derive(PartialEq)]
enum Standing {
    New,
    Repeated,
}

/// Whether a commit at `expected_seq` appended exactly what the journal has there. Compared as JSON: records are rarely
/// resubmitted, and their errors have no equality of their own.
fn same_records(entry: &Entry, expected_seq: u64, changes: &[Change]) -> bool {
    let appended: Vec<&Record> = changes
        .iter()
        .flat_map(|change| if let Change::Append(records) = change { records.as_slice() } else { &[] })
        .collect();
    let start = usize::try_from(expected_seq).unwrap_or(usize::MAX);
    let Some(there) = entry.records.get(start..) else { return false };
    let json = |record: &Record| serde_json::to_value(record).ok();
    !appended.is_empty()
        && there.len() >= appended.len()
        && appended.iter().zip(there).all(|(a, b)| json(a).is_some_and(|a| Some(a) == json(b)))
}

impl Store for MemoryStore {
    fn commit(&self, commit: Commit) -> Answer<()> {
        Answer::Ready(self.0.lock().commit(commit))
    }

    fn claim(&self, run: RunId) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        Box::pin(std::future::ready(self.0.lock().claim(run)))
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        if let Some(entry) = self.0.lock().runs.get_mut(&run)
            && entry.epoch == epoch
        {
            entry.owner.orderly = true;
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        Box::pin(std::future::ready(Ok(self.0.lock().runs.get(&run).map(|entry| entry.info(run)))))
    }

    fn journal(&self, run: RunId) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let records = self.0.lock().runs.get(&run).map(|entry| entry.records.clone());
        Box::pin(std::future::ready(records.ok_or(StoreError::NoSuchRun(run))))
    }

    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        let inner = self.0.lock();
        let mail = inner
            .runs
            .get(&run)
            .map(|entry| entry.mailbox.mail.iter().filter(|mail| mail.position > after).cloned().collect());
        Box::pin(std::future::ready(mail.ok_or(StoreError::NoSuchRun(run))))
    }

    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        Box::pin(std::future::ready(Ok(self.0.lock().list(filter, after, limit))))
    }

    /// There is nothing to give up: whoever shares the store goes on with it.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
