//! The run machine: inputs in, records and commits out. It does no I/O and never waits. Its driver feeds it the
//! requests of bodies, the results of attempts and the answers of the store.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::budget::Budget;
use super::cancelling::Cancels;
use super::check::Checking;
use super::children::{self, ChildFate, ChildRun};
use super::history::{History, OpState, RecordedOp};
use super::intent::Intent;
pub(crate) use super::intent::SettleMail;
use super::labels::Labels;
use super::outbox::{Outbox, Started};
use super::parks::Parks;
use super::rare::Rare;
use super::record::{Asked, Event, Finished, OpOutcome, Record, Recorded};
use super::refs::Refs;
use super::replay::{self, Decision, EarlierOwners, replay};
use super::restored::RestoredRun;
use super::spent::SpentTime;
use super::state::{Divergence, Doubt, Ending, Hold, RunState};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy::PastCalls;
use crate::store::{Claimed, Commit, Creation, Mail, Message, StoreError};
use crate::time::Timestamp;
use crate::tool::Effect;

/// Why a run is no longer driven here.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// It is held. The hold is recorded, or about to be.
    Held(Box<Hold>),
    /// The store failed. The journal decides what happened.
    Reload(Box<StoreError>),
    /// Another worker owns it.
    Lost,
    /// The lease expired. Another worker may own it, or none.
    Lapsed,
    /// This process released it for another owner.
    Released,
    /// It only waits. It is suspended to the store, or about to be.
    Suspended { wake: Option<Timestamp> },
    /// It continues in its next generation, which is recorded, or about to be.
    Continued,
}

/// How a run came to its new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenUp {
    /// An earlier process left it. Unless that process shut down cleanly, it died.
    Found,
    /// A person asked for it, so earlier deaths do not count.
    Resumed,
    /// The store failed in this process, which did not die.
    Reloaded,
    /// It was suspended, and something arrived for it.
    Woken,
}

/// What the journal says about the beginning of an operation.
pub(crate) struct OpPast {
    pub(crate) since: Timestamp,
    pub(crate) begun: Option<Timestamp>,
    /// When its latest record was written.
    pub(crate) at: Timestamp,
    /// The effect class it was begun under.
    pub(crate) effect: Effect,
    /// How its time was spent so far.
    pub(crate) spent: SpentTime,
}

/// The state of one run. Most runs have one owner and never wait, so the parts that only others need are boxed.
// Many fields: everything that decides about a run is under one lock.
pub(crate) struct Machine {
    pub(super) history: Rare<History>,
    pub(super) outbox: Outbox,
    pub(super) stop: Option<Stop>,
    pub(super) doubts: Vec<Doubt>,
    pub(super) parks: Rare<Parks>,
    pub(super) mail: VecDeque<Mail>,
    /// Settlements and answers taken out of the mail whose consequence is not recorded yet: the operation and the
    /// position.
    pub(super) unrecorded_mail: Vec<(Path, u64)>,
    /// The position up to which mail has been delivered.
    pub(super) seen: u64,
    /// Spawned runs that may have to be cancelled.
    pub(super) children: Vec<ChildRun>,
    /// The run that spawned this one.
    parent: Option<Box<(RunId, Path)>>,
    generation: u32,
    pub(super) cancels: Rare<Cancels>,
    /// The groups of operations that run side by side now.
    pub(super) groups: Vec<Path>,
    pub(super) open_intents: Vec<Intent>,
    /// Bodies that were dropped before they ended. No operation below them takes a settlement any more.
    pub(super) abandoned: Vec<Path>,
    budget: Budget,
    /// Runs that received a message in a durable commit of this one.
    nudged: Vec<RunId>,
    pub(super) past_calls: PastCalls,
    labels: Labels,
    pub(super) refs: Refs,
    /// Set if nothing is performed because the journal is only checked against the code.
    pub(super) checking: Option<Checking>,
    /// What is known about the records that a backup lacked.
    pub(super) restored: Option<Box<RestoredRun>>,
    /// The arguments that root calls are executed with, where they are not the ones asked for.
    rewritten: Rare<Vec<(Path, Arc<Value>)>>,
}

impl Machine {
    /// The machine of a new run.
    pub(crate) fn create(run: RunId, creation: Creation) -> Self {
        let parent = creation.parent.clone();
        Self {
            history: Rare::default(),
            outbox: Outbox::create(run, creation),
            stop: None,
            doubts: Vec::new(),
            parks: Rare::default(),
            mail: VecDeque::new(),
            unrecorded_mail: Vec::new(),
            seen: 0,
            children: Vec::new(),
            parent,
            generation: 0,
            cancels: Rare::default(),
            groups: Vec::new(),
            open_intents: Vec::new(),
            abandoned: Vec::new(),
            budget: Budget::new(false, true, false),
            nudged: Vec::new(),
            past_calls: PastCalls::default(),
            labels: Labels::default(),
            refs: Refs::default(),
            checking: None,
            restored: None,
            rewritten: Rare::default(),
        }
    }

    /// The machine of a run taken over from an earlier owner.
    pub(crate) fn claimed(run: RunId, claimed: Claimed, now: Timestamp, how: TakenUp) -> Self {
        let mut records = claimed.records;
        let mut outbox = Outbox::existing(run, claimed.epoch, claimed.seq);
        let event = match how {
            TakenUp::Found => (!claimed.orderly).then_some(Event::Recovered),
            TakenUp::Resumed => Some(Event::Resumed),
            TakenUp::Reloaded | TakenUp::Woken => None,
        };
        let announced = event.is_some();
        if let Some(event) = event {
            let note = Record { path: Path::root(), at: now, asked: None, event };
            records.push(note.clone());
            outbox.append(note);
        }
        let refs = Refs::of_past(&records);
        let mut history = History::fold(records);
        let cancels = std::mem::take(&mut history.cancels);
        let open = history.open();
        let parks = Parks::of_past(std::mem::take(&mut history.replies), open.parks);
        if !open.doubts.is_empty() {
            outbox.doubts(open.doubts.clone());
        }
        let children = std::mem::take(&mut history.children);
        let restored = history.restored.take().map(Box::new);
        let mut machine = Self {
            history: history.into(),
            outbox,
            stop: None,
            doubts: open.doubts,
            parks: parks.into(),
            mail: VecDeque::new(),
            unrecorded_mail: Vec::new(),
            seen: 0,
            children,
            parent: claimed.parent,
            generation: claimed.generation,
            cancels,
            groups: Vec::new(),
            open_intents: Vec::new(),
            abandoned: open.ended,
            budget: Budget::new(announced, claimed.owners_dead, claimed.orderly),
            nudged: Vec::new(),
            past_calls: PastCalls::default(),
            labels: Labels::default(),
            refs,
            checking: None,
            restored,
            rewritten: Rare::default(),
        };
        claimed.mail.into_iter().for_each(|mail| machine.deliver(mail, now));
        // Mail that earlier owners consumed counts as seen. Otherwise the run would be due again as soon as it is
        // suspended.
        machine.seen = machine.seen.max(claimed.mailed);
        if let Some((path, deaths)) = machine.history.get().and_then(|history| history.crash_loop(limits::CRASH_LOOP)) {
            machine.hold(Hold::CrashLoop { path, deaths });
        }
        machine
    }

    /// Whether another run spawned it.
    pub(crate) fn is_spawned(&self) -> bool {
        self.parent.is_some()
    }

    /// Whether an earlier owner left anything that affects what happens now.
    pub(crate) fn has_past(&self) -> bool {
        self.history.get().is_some_and(|history| !history.is_empty()) || self.budget.is_suspect()
    }

    /// Decides about an operation that a body asks for.
    pub(crate) fn ask(&mut self, path: &Path, asked: &Asked) -> Decision {
        self.ask_past(path, asked).1
    }

    /// Like [`ask`](Self::ask), and also returns what the journal says about the operation's beginning.
    pub(crate) fn ask_past(&mut self, path: &Path, asked: &Asked) -> (Option<OpPast>, Decision) {
        if let Some(hold) = self.budget.add_operation() {
            self.hold(hold);
        }
        if let Some(restored) = &mut self.restored {
            restored.asked(path, asked);
        }
        self.note_group(path, asked.kind);
        let op = self.history.get_mut().and_then(|history| history.take(path));
        let owners = EarlierOwners {
            restored: self.restored.is_some(),
            dead: self.budget.owners_dead,
            shut_down: self.budget.was_shut_down,
        };
        let decision = replay(path, op.as_ref(), asked, owners);
        match &decision {
            Decision::Answer { result, .. } => self.budget.add_result(result),
            _ if op.is_some() => self.labels.keep(path, asked),
            _ => {}
        }
        if let Decision::Diverged(divergence) = &decision {
            self.hold(Hold::Diverged(divergence.clone()));
        }
        let past = op.map(|op| OpPast {
            since: op.since,
            begun: op.begun,
            at: op.at,
            effect: op.asked.effect,
            spent: op.spent,
        });
        (past, self.suppress_effects(path, decision))
    }

    /// What the journal has at `path`, if no body asked for it yet.
    pub(crate) fn recorded_op(&self, path: &Path) -> Option<&RecordedOp> {
        self.history.get()?.get(path)
    }

    /// Whether an earlier owner's journal says that the operation at `path`, or a body around it, is finished.
    pub(crate) fn was_over(&self, path: &Path) -> bool {
        let is_over = |at: &Path| self.recorded_op(at).is_some_and(|op| matches!(op.state, OpState::Finished { .. }));
        std::iter::successors(Some(path.clone()), Path::parent).any(|at| is_over(&at))
    }

    /// A body returned. `next` is the first path it did not ask for.
    pub(crate) fn returned(&mut self, next: &Path) {
        if let Some(op) = self.recorded_op(next) {
            let divergence: Divergence = replay::unasked(next, op);
            self.hold(Hold::Diverged(Box::new(divergence)));
        }
    }

    /// Adds a record to the journal. Returns the mark that is durable once this record is.
    #[inline]
    pub(crate) fn append(&mut self, mut record: Record) -> u64 {
        self.note(&record);
        self.outbox.refer(self.refs.record(&mut record));
        self.outbox.append(record)
    }

    /// Tracks attempts that would be in doubt if the run ended now.
    fn note(&mut self, record: &Record) {
        if let Some(restored) = &mut self.restored {
            restored.note(&record.path, &record.event);
        }
        if let Some(asked) = &record.asked {
            self.note_group(&record.path, asked.kind);
        }
        self.past_calls.note(record);
        self.labels.note(record);
        if let Event::Finished(finished) = &record.event {
            self.budget.add_result(&finished.result);
            self.leave_places(&record.path);
        }
        match &record.event {
            Event::Intended { attempt, over_by } => self.open_intents.push(Intent {
                path: record.path.clone(),
                attempt: *attempt,
                operation: self.labels.of(record),
                over_by: *over_by,
                since: record.at,
            }),
            Event::Failed { .. }
            | Event::Doubted { .. }
            | Event::Settled { .. }
            | Event::Parked { .. }
            | Event::Granted(_)
            | Event::Finished(_)
                if !self.open_intents.is_empty() || !self.doubts.is_empty() || !self.unrecorded_mail.is_empty() =>
            {
                self.open_intents.retain(|intent| intent.path != record.path);
                if !matches!(record.event, Event::Doubted { .. }) {
                    self.close_doubt(&record.path);
                    self.consume_recorded(&record.path);
                }
            }
            _ => {}
        }
    }

    /// Notes that a call is executed with other arguments than it asked for. Only the outcomes of root calls say so.
    pub(crate) fn rewrote(&mut self, path: &Path, args: &Arc<Value>) {
        if path.depth() <= 1 {
            self.rewritten.make().push((path.clone(), args.clone()));
        }
    }

    /// The arguments that the root call at this path is executed with, if it asked for others.
    pub(crate) fn rewritten_args(&self, path: &Path) -> Option<Arc<Value>> {
        let all = self.rewritten.get()?;
        all.iter().find(|(at, _)| at == path).map(|(_, args)| args.clone())
    }

    /// Lists an operation that waits for a settlement.
    pub(crate) fn open_doubt(&mut self, doubt: Doubt) {
        match self.doubts.iter_mut().find(|other| other.path == doubt.path) {
            Some(other) if *other == doubt => return,
            Some(other) => *other = doubt,
            None => self.doubts.push(doubt),
        }
        self.outbox.doubts(self.doubts.clone());
    }

    fn close_doubt(&mut self, path: &Path) {
        if self.doubts.is_empty() {
            return;
        }
        let before = self.doubts.len();
        self.doubts.retain(|doubt| doubt.path != *path);
        if self.doubts.len() != before {
            self.outbox.doubts(self.doubts.clone());
        }
    }

    /// Ends an operation although an attempt of it may be in doubt. The doubt stays open.
    pub(crate) fn end_around(&mut self, path: &Path, outcome: &OpOutcome) {
        let (result, times) = (outcome.result.clone(), outcome.times);
        let finished = Finished { result, told: None, attempts: 1, times, settled: None };
        let record = Record { path: path.clone(), at: outcome.at, asked: None, event: Event::Finished(finished) };
        self.past_calls.note(&record);
        self.outbox.append(record);
    }

    /// Records that the root call has its outcome.
    pub(crate) fn finish(&mut self, ending: Ending, result: &Recorded) -> u64 {
        if let Some(parent) = &self.parent {
            let message = Message::Ended { run: self.outbox.run(), result: self.refs.marked(result) };
            let dedupe = format!("ended {}", self.outbox.run());
            self.outbox.mail(parent.0, message, Some(dedupe.into()));
        }
        self.end_children();
        self.unpark_below(&Path::root());
        self.outbox.state(RunState::Finished { ending })
    }

    /// Stops the run until the cause of the hold is removed.
    pub(crate) fn hold(&mut self, hold: Hold) {
        if self.stop.is_none() {
            self.outbox.state(RunState::Held { hold: hold.clone() });
            self.stop = Some(Stop::Held(Box::new(hold)));
        }
    }

    /// Stops the run because the lease expired and another worker may own it.
    pub(crate) fn lose(&mut self) {
        if self.stop.is_none() {
            tracing::warn!("the lease expired; this worker stops driving the run");
            self.stop = Some(Stop::Lapsed);
        }
    }

    /// Stops the run so that another owner can continue it.
    pub(crate) fn release(&mut self) {
        if self.stop.is_none() {
            self.stop = Some(Stop::Released);
        }
    }

    pub(crate) fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// Delivers a message from the mailbox.
    pub(crate) fn deliver(&mut self, mail: Mail, now: Timestamp) {
        // Mail that arrives after the run was suspended was not examined, so it must wake the run again.
        if mail.position <= self.seen || self.stop.is_some() {
            return;
        }
        self.seen = mail.position;
        match mail.message {
            Message::Cancel { by, reason } => {
                self.outbox.consumed(mail.position);
                return self.cancelled(by, reason, now);
            }
            Message::Restored => {
                self.outbox.consumed(mail.position);
                return self.restore(now);
            }
            Message::Revoke { reason } => {
                self.outbox.consumed(mail.position);
                return self.revoke(reason, now);
            }
            // Addressed to an earlier generation.
            Message::Resolve { generation, .. }
            | Message::Settle { generation, .. }
            | Message::Decide { generation, .. }
            | Message::Key { generation, .. }
                if generation != self.generation =>
            {
                return self.outbox.consumed(mail.position);
            }
            // It stays in the mailbox: the store answers it when this run finishes.
            Message::Await { .. } => return,
            // The queue in the store is authoritative, and it is asked again after a crash.
            Message::Key { path, .. } => {
                self.outbox.consumed(mail.position);
                return self.grant(path);
            }
            message => {
                children::forget_ended(&mut self.children, &message);
                self.mail.push_back(Mail { position: mail.position, message });
            }
        }
        if !self.abandoned.is_empty() {
            self.record_late_settlements(now);
        }
    }

    /// Starts another run together with this record. The fate says when it is cancelled with this run.
    pub(crate) fn spawned(&mut self, record: Record, start: Option<(Started, ChildFate)>) {
        let path = record.path.clone();
        self.append(record);
        let Some((mut started, fate)) = start else { return };
        self.mark_started(&path, &mut started);
        let Started { run, creation, records } = started;
        self.children.extend(ChildRun::new(run, fate));
        self.outbox.start(run, creation, records);
    }

    /// Continues the run from this record, in a fresh journal.
    pub(crate) fn continue_as(&mut self, first: Record) {
        if self.stop.is_some() {
            return;
        }
        self.unpark_below(&Path::root());
        self.outbox.next_generation();
        let at = first.at;
        self.outbox.append(first);
        self.mark_generation(at);
        self.stop = Some(Stop::Continued);
    }

    /// The generation of the run.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// The position up to which mail has been delivered.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Takes the settlement of one doubt out of the mail, if there is one.
    pub(crate) fn take_settlement(&mut self, path: &Path, attempt: u32) -> Option<SettleMail> {
        let index = self.mail.iter().position(
            |mail| matches!(&mail.message, Message::Settle { path: p, attempt: n, .. } if p == path && *n == attempt),
        )?;
        let mail = self.mail.remove(index)?;
        self.unrecorded_mail.push((path.clone(), mail.position));
        match mail.message {
            Message::Settle { settlement, by, reason, .. } => Some(SettleMail { settlement, by, reason }),
            _ => None,
        }
    }

    /// The settlement or answer for the operation at `path` is recorded now. Only from here on may the mailbox forget
    /// it.
    fn consume_recorded(&mut self, path: &Path) {
        if self.unrecorded_mail.is_empty() {
            return;
        }
        let taken = std::mem::take(&mut self.unrecorded_mail).into_iter();
        let (decided, open): (Vec<_>, _) = taken.partition(|(other, _)| other == path);
        self.unrecorded_mail = open;
        decided.into_iter().for_each(|(_, position)| self.outbox.consumed(position));
    }

    /// Whether it only waits for doubts to be settled.
    pub(crate) fn is_parked(&self) -> bool {
        !self.doubts.is_empty() && self.open_intents.is_empty()
    }

    /// Whether the next attempt must be announced, because a process died with this run before. Counts the attempt.
    pub(crate) fn must_announce_attempt(&mut self) -> bool {
        self.budget.must_announce_attempt()
    }

    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The next commit for the store, if none is in flight.
    pub(crate) fn next_commit(&mut self) -> Option<Commit> {
        match self.stop() {
            Some(Stop::Lost | Stop::Lapsed | Stop::Reload(_)) => None,
            // A check writes nothing.
            _ if self.only_checks() => None,
            _ => {
                self.publish_parks();
                self.outbox.take()
            }
        }
    }

    /// Runs that received a message and should read their mail.
    pub(crate) fn take_nudged(&mut self) -> Vec<RunId> {
        std::mem::take(&mut self.nudged)
    }

    /// The store answered the commit in flight.
    pub(crate) fn answered(&mut self, answer: Result<(), StoreError>) {
        match answer {
            Ok(()) => {
                let recipients = self.outbox.accepted();
                if !recipients.is_empty() {
                    self.nudged.extend(recipients);
                }
            }
            Err(error @ StoreError::Stale { .. }) => {
                tracing::warn!("another worker owns the run now: {error}");
                self.stop = Some(Stop::Lost);
            }
            Err(error) => {
                // The commit may have been written, so the runs it writes to should look.
                self.nudged.extend(self.outbox.take_recipients());
                self.stop = Some(Stop::Reload(Box::new(error)));
            }
        }
    }
}
