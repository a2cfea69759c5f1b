//! What a run has to tell the store and has not been told to be durable.

use std::sync::Arc;

use super::rare::Rare;
use super::record::Record;
use super::state::{Doubt, Park, RunState};
use crate::id::RunId;
use crate::limits::BUFFERED_RECORDS;
use crate::store::{ArtifactId, Change, Commit, Creation, Guard, KeyPlace, Message};

/// Buffers changes, hands them out as one commit at a time, and knows by *marks* which of them are durable.
pub(crate) struct Outbox {
    run: RunId,
    epoch: u64,
    /// Records the store has.
    seq: u64,
    create: Option<Creation>,
    records: Vec<Record>,
    state: Option<RunState>,
    facts: Rare<Facts>,
    marks: Marks,
    /// How many records the last commit had: the next one may have as many.
    room: usize,
    /// Nothing is sent while this holds.
    corked: bool,
    /// Other runs that the commit on its way writes to.
    telling: Vec<RunId>,
}

/// What most commits do not say: changes of which only the last matters, and those that are collected.
#[derive(Default)]
struct Facts {
    doubts: Option<Vec<Doubt>>,
    parks: Option<Vec<Park>>,
    keys: Option<Vec<KeyPlace>>,
    examined: Option<u64>,
    consumed: Vec<u64>,
    /// Letters to other runs, and runs to start: they leave the process with what they follow from.
    others: Vec<Change>,
    continues: bool,
}

/// A run that another one starts, and the beginning of its journal.
pub(crate) struct Started {
    pub(crate) run: RunId,
    pub(crate) creation: Creation,
    pub(crate) records: Vec<Record>,
}

/// Counts changes: `durable <= sent <= written`.
#[derive(Default)]
struct Marks {
    written: u64,
    sent: u64,
    durable: u64,
    wanted: u64,
    /// Records in the commit on its way, if one is.
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
            facts: Rare::default(),
            marks: Marks::default(),
            room: 1,
            corked: false,
            telling: Vec::new(),
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the store will know of this run by the time everything written is durable.
    pub(crate) fn exists(&self) -> bool {
        self.create.is_none() || self.marks.written > 0
    }

    /// Whether the store knows of this run.
    pub(crate) fn is_stored(&self) -> bool {
        self.create.is_none() && (self.seq > 0 || self.marks.durable > 0)
    }

    /// Keeps everything back, for work that has not left the process and is not described in full yet.
    pub(crate) fn cork(&mut self, corked: bool) {
        self.corked = corked;
    }

    pub(crate) fn reserve(&mut self, records: usize) {
        self.records.reserve(records);
    }

    /// Inlined, because a record is large and otherwise copied on its way here.
    #[inline]
    pub(crate) fn append(&mut self, record: Record) -> u64 {
        if self.records.capacity() == 0 {
            self.records.reserve_exact(self.room);
        }
        self.records.push(record);
        self.mark()
    }

    pub(crate) fn state(&mut self, state: RunState) -> u64 {
        self.state = Some(state);
        self.mark()
    }

    pub(crate) fn doubts(&mut self, doubts: Vec<Doubt>) {
        self.facts.make().doubts = Some(doubts);
        self.mark();
    }

    pub(crate) fn examined(&mut self, position: u64) {
        self.facts.make().examined = Some(position);
        self.mark();
    }

    pub(crate) fn parks(&mut self, parks: Vec<Park>) {
        self.facts.make().parks = Some(parks);
        self.mark();
    }

    pub(crate) fn keys(&mut self, keys: Vec<KeyPlace>) {
        self.facts.make().keys = Some(keys);
        self.mark();
    }

    /// What the message at `position` said is in the journal now, or void.
    pub(crate) fn consumed(&mut self, position: u64) {
        self.facts.make().consumed.push(position);
        self.mark();
    }

    /// Writes to another run, together with what is in the buffer.
    pub(crate) fn mail(&mut self, run: RunId, message: Message, dedupe: Option<Arc<str>>) -> u64 {
        self.facts.make().others.push(Change::Mail { run, message, dedupe });
        self.mark()
    }

    /// Starts another run, together with what is in the buffer.
    pub(crate) fn start(&mut self, run: RunId, creation: Creation, records: Vec<Record>) -> u64 {
        self.facts.make().others.push(Change::Start { run, creation, records });
        self.mark()
    }

    /// The run refers to these from now on, together with what is in the buffer.
    pub(crate) fn refer(&mut self, artifacts: Vec<ArtifactId>) {
        if !artifacts.is_empty() {
            self.facts.make().others.push(Change::Refer { run: self.run, artifacts, by: self.run });
            self.mark();
        }
    }

    /// What is appended from now on begins the next generation; what is in the buffer goes to the store first.
    pub(crate) fn next_generation(&mut self) {
        self.facts.make().continues = true;
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

    /// Somebody waits for this mark.
    pub(crate) fn want(&mut self, mark: u64) {
        self.marks.wanted = self.marks.wanted.max(mark);
    }

    /// Whether a commit should be sent although nobody may wait for it.
    pub(crate) fn is_due(&self) -> bool {
        self.marks.wanted > self.marks.sent || self.records.len() >= BUFFERED_RECORDS
    }

    /// Everything not sent yet, as one commit; `None` while one is on its way or there is nothing to say.
    pub(crate) fn take(&mut self) -> Option<Commit> {
        if self.corked || self.marks.in_flight.is_some() || self.marks.sent == self.marks.written {
            return None;
        }
        let guard = Guard::Owner { run: self.run, epoch: self.epoch, expected_seq: self.seq };
        // Most runs are one commit of three changes, most others are appended to.
        let mut changes = Vec::with_capacity(if self.create.is_some() { 3 } else { 1 });
        changes.extend(self.create.take().map(Change::Create));
        let facts = self.facts.take();
        if facts.as_ref().is_some_and(|facts| facts.continues) {
            changes.push(Change::Continue);
        }
        self.marks.in_flight = Some(self.records.len() as u64);
        if !self.records.is_empty() {
            self.room = self.records.len().min(BUFFERED_RECORDS);
            changes.push(Change::Append(std::mem::take(&mut self.records)));
        }
        let others = facts.map(|facts| self.tell(facts, &mut changes));
        changes.extend(self.state.take().map(Change::State));
        changes.extend(others.into_iter().flatten());
        self.marks.sent = self.marks.written;
        Some(Commit { guard, changes })
    }

    /// Says what else there is to say; returns what is for other runs.
    fn tell(&mut self, facts: Facts, changes: &mut Vec<Change>) -> Vec<Change> {
        // Before the state: a store that forgets finished runs must know what is open.
        changes.extend(facts.doubts.map(Change::Doubts));
        changes.extend(facts.parks.map(Change::Parks));
        changes.extend(facts.keys.map(Change::Keys));
        // Before the state: a suspended run is due if it has mail beyond this.
        changes.extend(facts.examined.map(Change::Examined));
        if !facts.consumed.is_empty() {
            changes.push(Change::Consumed(facts.consumed));
        }
        self.telling.extend(facts.others.iter().filter_map(|change| match change {
            Change::Mail { run, .. } | Change::Start { run, .. } => Some(*run),
            _ => None,
        }));
        facts.others
    }

    /// The commit on its way is durable; returns the other runs it wrote to.
    pub(crate) fn accepted(&mut self) -> Vec<RunId> {
        self.seq += self.marks.in_flight.take().unwrap_or(0);
        self.marks.durable = self.marks.sent;
        self.take_telling()
    }

    /// The other runs that the commit on its way writes to.
    pub(crate) fn take_telling(&mut self) -> Vec<RunId> {
        std::mem::take(&mut self.telling)
    }

    /// Records the store has.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Records that are in no commit yet.
    pub(super) fn unsent(&self) -> &[Record] {
        &self.records
    }

    /// Whether a commit is on its way.
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
    use crate::time::Timestamp;

    fn record() -> Record {
        Record { path: Path::root(), at: Timestamp::default(), asked: None, event: Event::Entered }
    }

    #[test]
    fn one_commit_at_a_time_and_marks_tell_what_is_durable() {
        let run = RunId::from_bytes([1; 16]);
        let mut outbox = Outbox::create(run, Creation::default());
        let first = outbox.append(record());
        let commit = outbox.take().unwrap();
        assert_eq!(commit.guard, Guard::Owner { run, epoch: 1, expected_seq: 0 });
        assert_eq!(commit.changes.len(), 2, "create and append");
        let second = outbox.append(record());
        assert!(outbox.take().is_none(), "one on its way");
        assert!(!outbox.is_durable(first));
        outbox.accepted();
        assert!(outbox.is_durable(first) && !outbox.is_durable(second));
        let commit = outbox.take().unwrap();
        assert_eq!(commit.guard, Guard::Owner { run, epoch: 1, expected_seq: 1 });
        outbox.accepted();
        assert!(outbox.is_durable(second) && outbox.take().is_none());
    }

    #[test]
    fn a_full_buffer_is_due_without_anyone_waiting() {
        let mut outbox = Outbox::existing(RunId::from_bytes([1; 16]), 1, 0);
        for _ in 0..BUFFERED_RECORDS - 1 {
            outbox.append(record());
        }
        assert!(!outbox.is_due());
        outbox.append(record());
        assert!(outbox.is_due());
    }
}
