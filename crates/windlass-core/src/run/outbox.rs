//! The changes of a run that the store has not confirmed as durable yet.

use std::sync::Arc;

use super::rare::Rare;
use super::record::Record;
use super::state::{Doubt, Park, RunState};
use crate::id::RunId;
use crate::limits::BUFFERED_RECORDS;
use crate::path::Path;
use crate::store::{ArtifactId, Change, Commit, Creation, FileEdit, Guard, KeyPlace, Message, NewMessage, SeenOutcome};
use crate::time::Timestamp;
use crate::tool::ToolsChange;

/// No run has this id. Telling it of a change makes the driver look for runs that are due.
const UNKNOWN_RUN: RunId = RunId::from_bytes([0; 16]);

/// Buffers changes, hands them out one commit at a time, and knows by *marks* which of them are durable.
pub(crate) struct Outbox {
    run: RunId,
    epoch: u64,
    /// Records the store has.
    seq: u64,
    create: Option<Creation>,
    records: Vec<Record>,
    state: Option<RunState>,
    rare: Rare<RareChanges>,
    marks: Marks,
    /// The number of records in the last commit. The next one may have as many.
    capacity_hint: usize,
    /// Nothing is sent while this is set.
    corked: bool,
    /// Other runs that the commit in flight writes to.
    recipients: Vec<RunId>,
}

/// Changes that most commits lack: some of which only the latest counts, and some that accumulate.
#[derive(Default)]
struct RareChanges {
    doubts: Option<Vec<Doubt>>,
    parks: Option<Vec<Park>>,
    keys: Option<Vec<KeyPlace>>,
    left: Vec<Path>,
    examined: Option<u64>,
    consumed: Vec<u64>,
    /// Messages to other runs, and runs to start. They leave the process with the records they follow from.
    others: Vec<Change>,
    continues: bool,
}

/// A run that another one starts, and the beginning of its journal.
pub(crate) struct Started {
    pub(crate) run: RunId,
    pub(crate) creation: Creation,
    pub(crate) records: Vec<Record>,
}

/// Counters of changes: `durable <= sent <= written`.
#[derive(Default)]
struct Marks {
    written: u64,
    sent: u64,
    durable: u64,
    wanted: u64,
    /// Records in the commit in flight, if there is one.
    in_flight: Option<u64>,
}

impl Outbox {
    pub(crate) fn create(run: RunId, creation: Creation) -> Self {
        Self { create: Some(creation), ..Self::existing(run, 1, 0) }
    }

    pub(crate) fn existing(run: RunId, epoch: u64, seq: u64) -> Self {
        Self {
            run,
            epoch,
            seq,
            create: None,
            records: Vec::new(),
            state: None,
            rare: Rare::default(),
            marks: Marks::default(),
            capacity_hint: 1,
            corked: false,
            recipients: Vec::new(),
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the store will know this run once everything written is durable.
    pub(crate) fn exists(&self) -> bool {
        self.create.is_none() || self.marks.written > 0
    }

    /// Whether the store knows this run.
    pub(crate) fn is_stored(&self) -> bool {
        self.create.is_none() && (self.seq > 0 || self.marks.durable > 0)
    }

    /// Holds everything back, for work that has not left the process and is not fully described yet.
    pub(crate) fn cork(&mut self, corked: bool) {
        self.corked = corked;
    }

    pub(crate) fn reserve(&mut self, records: usize) {
        self.records.reserve(records);
    }

    /// Inlined, because a record is large and would otherwise be copied on its way here.
    #[inline]
    pub(crate) fn append(&mut self, record: Record) -> u64 {
        if self.records.capacity() == 0 {
            self.records.reserve_exact(self.capacity_hint);
        }
        self.records.push(record);
        self.mark()
    }

    pub(crate) fn state(&mut self, state: RunState) -> u64 {
        self.state = Some(state);
        self.mark()
    }

    pub(crate) fn doubts(&mut self, doubts: Vec<Doubt>) {
        self.rare.make().doubts = Some(doubts);
        self.mark();
    }

    pub(crate) fn examined(&mut self, position: u64) {
        self.rare.make().examined = Some(position);
        self.mark();
    }

    pub(crate) fn parks(&mut self, parks: Vec<Park>) {
        self.rare.make().parks = Some(parks);
        self.mark();
    }

    pub(crate) fn keys(&mut self, keys: Vec<KeyPlace>) {
        self.rare.make().keys = Some(keys);
        self.mark();
    }

    /// Operations at or below this path no longer have a place in a queue of the store.
    pub(crate) fn leave(&mut self, path: Path) {
        self.rare.make().left.push(path);
        self.mark();
    }

    /// The content of the message at `position` is in the journal now, or is void.
    pub(crate) fn consumed(&mut self, position: u64) {
        self.rare.make().consumed.push(position);
        self.mark();
    }

    /// Sends a message to another run, together with the buffered changes.
    pub(crate) fn mail(&mut self, run: RunId, message: Message, dedupe: Option<Arc<str>>) -> u64 {
        self.rare.make().others.push(Change::Mail { run, message, dedupe });
        self.mark()
    }

    /// Starts another run, together with the buffered changes.
    pub(crate) fn start(&mut self, run: RunId, creation: Creation, records: Vec<Record>) -> u64 {
        self.rare.make().others.push(Change::Start { run, creation, records });
        self.mark()
    }

    /// Changes the tools that the run's session shows, together with the buffered changes.
    pub(crate) fn change_tools(&mut self, session: Arc<str>, change: ToolsChange) {
        self.rare.make().others.push(Change::Tools { session, change });
    }

    /// Posts a message to the run's session, together with the buffered changes.
    pub(crate) fn post(
        &mut self,
        session: Arc<str>,
        at: Timestamp,
        message: NewMessage,
        principal: Option<Arc<str>>,
    ) -> u64 {
        self.rare.make().others.push(Change::Post { session, at, message, principal });
        self.mark()
    }

    /// Adds the outcomes of the run's calls to its session, together with the buffered changes.
    pub(crate) fn outcomes(&mut self, at: Timestamp, outcomes: Vec<SeenOutcome>) {
        self.rare.make().others.push(Change::Outcomes { at, outcomes });
        self.mark();
    }

    /// Changes files of the run's session, together with the buffered changes.
    pub(crate) fn edit(&mut self, session: Arc<str>, at: Timestamp, edits: Vec<FileEdit>, key: Arc<str>) -> u64 {
        self.rare.make().others.push(Change::Edit { session, at, edits, key });
        self.mark()
    }

    /// The run refers to these artifacts from now on, together with the buffered changes.
    pub(crate) fn refer(&mut self, artifacts: Vec<ArtifactId>) {
        if !artifacts.is_empty() {
            self.rare.make().others.push(Change::Refer { run: self.run, artifacts, by: self.run });
            self.mark();
        }
    }

    /// What is appended from now on begins the next generation. The buffered changes go to the store first.
    pub(crate) fn next_generation(&mut self) {
        self.rare.make().continues = true;
        self.mark();
    }

    fn mark(&mut self) -> u64 {
        self.marks.written += 1;
        self.marks.written
    }

    /// The mark of the latest change.
    pub(crate) fn written(&self) -> u64 {
        self.marks.written
    }

    pub(crate) fn is_durable(&self, mark: u64) -> bool {
        self.marks.durable >= mark
    }

    /// Notes that this mark is waited for.
    pub(crate) fn want(&mut self, mark: u64) {
        self.marks.wanted = self.marks.wanted.max(mark);
    }

    /// Whether a commit should be sent although nothing may wait for it.
    pub(crate) fn is_due(&self) -> bool {
        self.marks.wanted > self.marks.sent || self.records.len() >= BUFFERED_RECORDS
    }

    /// Everything not sent yet as one commit; `None` while one is in flight or if there is nothing to send.
    pub(crate) fn take(&mut self) -> Option<Commit> {
        if self.corked || self.marks.in_flight.is_some() || self.marks.sent == self.marks.written {
            return None;
        }
        let guard = Guard::Owner { run: self.run, epoch: self.epoch, expected_seq: self.seq };
        // Most runs are one commit of three changes. Most other commits only append.
        let mut changes = Vec::with_capacity(if self.create.is_some() { 3 } else { 1 });
        changes.extend(self.create.take().map(Change::Create));
        let rare = self.rare.take();
        if rare.as_ref().is_some_and(|rare| rare.continues) {
            changes.push(Change::Continue);
        }
        self.marks.in_flight = Some(self.records.len() as u64);
        if !self.records.is_empty() {
            self.capacity_hint = self.records.len().min(BUFFERED_RECORDS);
            changes.push(Change::Append(std::mem::take(&mut self.records)));
        }
        let others = rare.map(|rare| self.add_rare_changes(rare, &mut changes));
        changes.extend(self.state.take().map(Change::State));
        changes.extend(others.into_iter().flatten());
        self.marks.sent = self.marks.written;
        Some(Commit { guard, changes })
    }

    /// Adds the rare changes to a commit. Returns those that are for other runs.
    fn add_rare_changes(&mut self, rare: RareChanges, changes: &mut Vec<Change>) -> Vec<Change> {
        // Before the state: a store that deletes finished runs must know what is open.
        changes.extend(rare.doubts.map(Change::Doubts));
        changes.extend(rare.parks.map(Change::Parks));
        changes.extend(rare.keys.map(Change::Keys));
        if !rare.left.is_empty() {
            changes.push(Change::Leave(rare.left));
        }
        // Before the state: a suspended run is due if it has mail beyond this position.
        changes.extend(rare.examined.map(Change::Examined));
        if !rare.consumed.is_empty() {
            changes.push(Change::Consumed(rare.consumed));
        }
        self.recipients.extend(rare.others.iter().filter_map(|change| match change {
            Change::Mail { run, .. } | Change::Start { run, .. } => Some(*run),
            // It may start a turn, whose id the store determines.
            Change::Post { message, .. } if message.may_wake() => Some(UNKNOWN_RUN),
            _ => None,
        }));
        rare.others
    }

    /// The commit in flight is durable. Returns the other runs that it wrote to.
    pub(crate) fn accepted(&mut self) -> Vec<RunId> {
        self.seq += self.marks.in_flight.take().unwrap_or(0);
        self.marks.durable = self.marks.sent;
        self.take_recipients()
    }

    /// The other runs that the commit in flight writes to.
    pub(crate) fn take_recipients(&mut self) -> Vec<RunId> {
        std::mem::take(&mut self.recipients)
    }

    /// Number of records that the store has.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Records that are in no commit yet.
    pub(super) fn unsent(&self) -> &[Record] {
        &self.records
    }

    /// Whether a commit is in flight.
    pub(super) fn is_sending(&self) -> bool {
        self.marks.in_flight.is_some()
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Path;
    use crate::run::record::Event;

    fn record() -> Record {
        Record { path: Path::root(), at: Timestamp::default(), asked: None, event: Event::Entered }
    }

    #[test]
    fn one_commit_is_in_flight_at_a_time_and_marks_show_what_is_durable() {
        let run = RunId::from_bytes([1; 16]);
        let mut outbox = Outbox::create(run, Creation::default());
        let first = outbox.append(record());
        let commit = outbox.take().unwrap();
        assert_eq!(commit.guard, Guard::Owner { run, epoch: 1, expected_seq: 0 });
        assert_eq!(commit.changes.len(), 2, "create and append");
        let second = outbox.append(record());
        assert!(outbox.take().is_none(), "one is in flight");
        assert!(!outbox.is_durable(first));
        outbox.accepted();
        assert!(outbox.is_durable(first) && !outbox.is_durable(second));
        let commit = outbox.take().unwrap();
        assert_eq!(commit.guard, Guard::Owner { run, epoch: 1, expected_seq: 1 });
        outbox.accepted();
        assert!(outbox.is_durable(second) && outbox.take().is_none());
    }

    #[test]
    fn a_full_buffer_is_due_without_a_waiter() {
        let mut outbox = Outbox::existing(RunId::from_bytes([1; 16]), 1, 0);
        for _ in 0..BUFFERED_RECORDS - 1 {
            outbox.append(record());
        }
        assert!(!outbox.is_due());
        outbox.append(record());
        assert!(outbox.is_due());
    }
}
