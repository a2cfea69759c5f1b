//! The run machine: inputs in, records and commits out. It does no I/O and never waits; whoever drives it feeds it what
//! bodies ask for, what attempts returned and what the store answered.

use std::collections::VecDeque;

use super::budget::Budget;
use super::cancelling::Cancel;
use super::check::Checking;
use super::history::{History, Standing, State};
use super::intent::Intent;
pub(crate) use super::intent::SettleMail;
use super::labels::Labels;
use super::outbox::{Outbox, Started};
use super::parks::{self, Parks};
use super::rare::Rare;
use super::record::{Asked, DoubtCause, Event, Finished, Record, Recorded, Told};
use super::refs::Refs;
use super::replay::{self, Decision, replay};
use super::restored::Restored;
use super::spent::Spent;
use super::state::{Divergence, Doubt, Ending, Hold, RunState};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy::PastCalls;
use crate::store::{Claimed, Commit, Creation, Mail, Message, StoreError};
use crate::time::Timestamp;
use crate::tool::Effect;

/// Why nobody drives a run any more.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// It is held; the hold is being, or has been, recorded.
    Held(Box<Hold>),
    /// The store failed: what happened is decided by the journal.
    Reload(Box<StoreError>),
    /// Another owner has it.
    Lost,
    /// The lease is over: another owner may have it, or nobody.
    Lapsed,
    /// This process lets go of it; another owner goes on.
    Released,
    /// All it does is wait: it is, or is being, suspended to the store.
    Suspended { wake: Option<Timestamp> },
    /// It goes on in its next generation, which is being, or has been, recorded.
    Continued,
}

/// How a run comes to a new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenUp {
    /// An earlier process left it; unless that ended in good order, it died.
    Found,
    /// Somebody asked for it: earlier deaths do not count.
    Resumed,
    /// The store failed this very process, which did not die of it.
    Reloaded,
    /// It was at rest, and something came for it.
    Woken,
}

/// How an operation began, if the journal knows of it.
pub(crate) struct Past {
    pub(crate) since: Timestamp,
    pub(crate) begun: Option<Timestamp>,
    /// When its latest record was written.
    pub(crate) at: Timestamp,
    /// The class it was begun under.
    pub(crate) effect: Effect,
    /// Where its time went so far.
    pub(crate) spent: Spent,
}

/// Most runs begin and end with one owner and never wait: what only the others have is out of line.
// Many fields: all that decides about a run is under one lock.
pub(crate) struct Machine {
    pub(super) history: Rare<History>,
    pub(super) outbox: Outbox,
    pub(super) stop: Option<Stop>,
    pub(super) doubts: Vec<Doubt>,
    pub(super) parks: Rare<Parks>,
    pub(super) mail: VecDeque<Mail>,
    /// Settlements taken out of the mail whose consequence is not recorded yet: where, and their positions.
    pub(super) undecided: Vec<(Path, u64)>,
    /// Mail up to here has been delivered.
    pub(super) seen: u64,
    /// Runs that are cancelled with this one.
    pub(super) children: Vec<RunId>,
    /// The run that spawned this one.
    parent: Option<Box<(RunId, Path)>>,
    generation: u32,
    pub(super) cancel: Option<Cancel>,
    open_intents: Vec<Intent>,
    /// Bodies that were dropped in the middle: nobody below them takes a settlement any more.
    abandoned: Vec<Path>,
    budget: Budget,
    /// Runs that durable commits of this one wrote to.
    nudged: Vec<RunId>,
    pub(super) past_calls: PastCalls,
    labels: Labels,
    pub(super) refs: Refs,
    /// Nothing is performed: the journal is checked against the code.
    pub(super) checking: Option<Checking>,
    /// What is known of what a backup did not have.
    pub(super) restored: Option<Restored>,
}

impl Machine {
    /// A run that does not exist yet.
    pub(crate) fn create(run: RunId, creation: Creation) -> Self {
        let parent = creation.parent.clone();
        Self {
            history: Rare::default(),
            outbox: Outbox::create(run, creation),
            stop: None,
            doubts: Vec::new(),
            parks: Rare::default(),
            mail: VecDeque::new(),
            undecided: Vec::new(),
            seen: 0,
            children: Vec::new(),
            parent,
            generation: 0,
            cancel: None,
            open_intents: Vec::new(),
            abandoned: Vec::new(),
            budget: Budget::new(false, true),
            nudged: Vec::new(),
            past_calls: PastCalls::default(),
            labels: Labels::default(),
            refs: Refs::default(),
            checking: None,
            restored: None,
        }
    }

    /// A run taken over from an earlier owner.
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
        let (reason, delivered) = (history.cancel_reason.take().unwrap_or_default(), !history.cancel_pending);
        let cancel = history.cancelled.map(|at| Cancel { reason, delivered, at });
        let open = history.open();
        let parks = Parks::of_past(history.revoked.take(), open.parks);
        if !open.doubts.is_empty() {
            outbox.doubts(open.doubts.clone());
        }
        let children = std::mem::take(&mut history.children);
        let restored = history.restored.take();
        let mut machine = Self {
            history: history.into(),
            outbox,
            stop: None,
            doubts: open.doubts,
            parks: parks.into(),
            mail: VecDeque::new(),
            undecided: Vec::new(),
            seen: 0,
            children,
            parent: claimed.parent,
            generation: claimed.generation,
            cancel,
            open_intents: Vec::new(),
            abandoned: open.ended,
            budget: Budget::new(announced, claimed.owners_dead),
            nudged: Vec::new(),
            past_calls: PastCalls::default(),
            labels: Labels::default(),
            refs,
            checking: None,
            restored,
        };
        claimed.mail.into_iter().for_each(|mail| machine.deliver(mail, now));
        if let Some((path, deaths)) = machine.history.get().and_then(|history| history.crash_loop(limits::CRASH_LOOP)) {
            machine.hold(Hold::CrashLoop { path, deaths });
        }
        machine
    }

    /// Whether an earlier owner left anything that decides what happens now.
    pub(crate) fn has_past(&self) -> bool {
        self.history.get().is_some_and(|history| !history.is_empty()) || self.budget.is_suspect()
    }

    /// A body asks for an operation.
    pub(crate) fn ask(&mut self, path: &Path, asked: &Asked) -> Decision {
        self.ask_past(path, asked).1
    }

    /// A body asks for an operation and wants to know what the journal knows of its beginning.
    pub(crate) fn ask_past(&mut self, path: &Path, asked: &Asked) -> (Option<Past>, Decision) {
        if let Some(hold) = self.budget.ask() {
            self.hold(hold);
        }
        if let Some(restored) = &mut self.restored {
            restored.asked(path, asked);
        }
        let standing = self.history.get_mut().and_then(|history| history.take(path));
        let mut decision = replay(path, standing.as_ref(), asked);
        if let Decision::Answer { result, .. } = &decision {
            self.budget.has(result);
        } else if standing.is_some() {
            self.labels.keep(path, asked);
        }
        match &mut decision {
            Decision::Diverged(divergence) => self.hold(Hold::Diverged(divergence.clone())),
            // Whoever settles it must know that it may have been made again since.
            Decision::InDoubt { over_by, cause, recorded: false, .. } if self.restored.is_some() => {
                *cause = DoubtCause::Restored;
                *over_by = standing.as_ref().map_or(Timestamp::default(), |standing| standing.at);
            }
            // The fence proves the old owner gone, or only time does.
            Decision::InDoubt { over_by, recorded: false, .. } if self.budget.owners_dead => {
                *over_by = standing.as_ref().map_or(Timestamp::default(), |standing| standing.at);
            }
            _ => {}
        }
        let past = standing.map(|standing| Past {
            since: standing.since,
            begun: standing.begun,
            at: standing.at,
            effect: standing.asked.effect,
            spent: standing.spent,
        });
        (past, self.leave_alone(path, decision))
    }

    /// What the journal has at `path` that no body asked for yet.
    pub(crate) fn standing(&self, path: &Path) -> Option<&Standing> {
        self.history.get()?.get(path)
    }

    /// Whether the journal of an earlier owner says that the operation at `path`, or a body around it, is over.
    pub(crate) fn was_over(&self, path: &Path) -> bool {
        let is_over =
            |at: &Path| self.standing(at).is_some_and(|standing| matches!(standing.state, State::Finished { .. }));
        std::iter::successors(Some(path.clone()), Path::parent).any(|at| is_over(&at))
    }

    /// A body returned; `next` is the first path it did not ask for.
    pub(crate) fn returned(&mut self, next: &Path) {
        if let Some(standing) = self.standing(next) {
            let divergence: Divergence = replay::unasked(next, standing);
            self.hold(Hold::Diverged(Box::new(divergence)));
        }
    }

    /// Adds to the journal; returns the mark that is durable once this record is.
    #[inline]
    pub(crate) fn append(&mut self, mut record: Record) -> u64 {
        self.note(&record);
        self.outbox.refer(self.refs.record(&mut record));
        self.outbox.append(record)
    }

    /// Keeps track of attempts that could be in doubt, should the run end around them.
    fn note(&mut self, record: &Record) {
        if let Some(restored) = &mut self.restored {
            restored.note(&record.path, &record.event);
        }
        self.past_calls.note(record);
        self.labels.note(record);
        if let Event::Finished(finished) = &record.event {
            self.budget.has(&finished.result);
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
                if !self.open_intents.is_empty() || !self.doubts.is_empty() || !self.undecided.is_empty() =>
            {
                self.open_intents.retain(|intent| intent.path != record.path);
                if !matches!(record.event, Event::Doubted { .. }) {
                    self.close_doubt(&record.path);
                    self.decided(&record.path);
                }
            }
            _ => {}
        }
    }

    /// An operation waits for a settlement.
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

    /// A body was dropped in the middle: attempts of its that may have happened stay visible as doubts, also those of an
    /// earlier owner that it had not asked for again.
    pub(crate) fn abandon_below(&mut self, path: &Path, at: Timestamp) {
        self.abandoned.push(path.clone());
        self.unpark_below(path);
        let below = |intent: &Intent| intent.path.positions().starts_with(path.positions());
        let (lost, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open_intents).into_iter().partition(below);
        self.open_intents = kept;
        for doubt in lost.into_iter().map(Intent::doubt) {
            self.outbox.append(Record { path: doubt.path.clone(), at, asked: None, event: doubt.event() });
            self.open_doubt(doubt);
        }
        let open = self.history.get_mut().map(|history| history.open_below(path));
        for (doubt, recorded) in open.unwrap_or_default() {
            if !recorded {
                self.outbox.append(Record { path: doubt.path.clone(), at, asked: None, event: doubt.event() });
            }
            self.open_doubt(doubt);
        }
        self.annotate(at);
    }

    /// Settlements of doubts that no body waits for: they close the doubt, and the record says who said what.
    fn annotate(&mut self, at: Timestamp) {
        let over = |path: &Path| self.abandoned.iter().any(|above| path.positions().starts_with(above.positions()));
        let open = |mail: &Mail| match &mail.message {
            Message::Settle { path, attempt, .. } if over(path) => {
                self.doubts.iter().find(|doubt| doubt.path == *path && doubt.attempt == *attempt).cloned()
            }
            _ => None,
        };
        let settled: Vec<Doubt> = self.mail.iter().filter_map(open).collect();
        for doubt in settled {
            let Some(mail) = self.take_settlement(&doubt.path, doubt.attempt) else { continue };
            let event = mail.annotation(&doubt);
            self.append(Record { path: doubt.path, at, asked: None, event });
        }
    }

    /// An operation ends although something of it may be in doubt: the doubt stays open.
    pub(crate) fn end_around(&mut self, path: &Path, told: &Told) {
        let (result, times) = (told.result.clone(), told.times);
        let finished = Finished { result, told: None, attempts: 1, times, settled: None };
        let record = Record { path: path.clone(), at: told.at, asked: None, event: Event::Finished(finished) };
        self.past_calls.note(&record);
        self.outbox.append(record);
    }

    /// The root call has its outcome.
    pub(crate) fn finish(&mut self, ending: Ending, result: &Recorded) -> u64 {
        if let Some(parent) = &self.parent {
            let message = Message::Ended { run: self.outbox.run(), result: self.refs.marked(result) };
            let dedupe = format!("ended {}", self.outbox.run());
            self.outbox.mail(parent.0, message, Some(dedupe.into()));
        }
        self.unpark_below(&Path::root());
        self.outbox.state(RunState::Finished { ending })
    }

    /// Stops the run until somebody removes the cause.
    pub(crate) fn hold(&mut self, hold: Hold) {
        if self.stop.is_none() {
            self.outbox.state(RunState::Held { hold: hold.clone() });
            self.stop = Some(Stop::Held(Box::new(hold)));
        }
    }

    /// The lease is over: somebody else may own the run.
    pub(crate) fn lose(&mut self) {
        if self.stop.is_none() {
            tracing::warn!("the lease is over, and with it this worker's part in the run");
            self.stop = Some(Stop::Lapsed);
        }
    }

    /// Lets go of the run.
    pub(crate) fn release(&mut self) {
        if self.stop.is_none() {
            self.stop = Some(Stop::Released);
        }
    }

    pub(crate) fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// Something for the run arrived from outside.
    pub(crate) fn deliver(&mut self, mail: Mail, now: Timestamp) {
        // What comes after the run was suspended was not examined: it must wake the run again.
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
            // Meant for a generation that is over.
            Message::Resolve { generation, .. }
            | Message::Settle { generation, .. }
            | Message::Decide { generation, .. }
                if generation != self.generation =>
            {
                return self.outbox.consumed(mail.position);
            }
            message => {
                parks::forget_ended(&mut self.children, &message);
                self.mail.push_back(Mail { position: mail.position, message });
            }
        }
        if !self.abandoned.is_empty() {
            self.annotate(now);
        }
    }

    /// Another run starts with this record; `cancelled_with_this` says whether it ends with this one.
    pub(crate) fn spawned(&mut self, record: Record, start: Option<(Started, bool)>) {
        let path = record.path.clone();
        self.append(record);
        let Some((mut started, cancelled_with_this)) = start else { return };
        self.mark_started(&path, &mut started);
        let Started { run, creation, records } = started;
        if cancelled_with_this {
            self.children.push(run);
        }
        self.outbox.start(run, creation, records);
    }

    /// Runs that are cancelled with this one.
    pub(crate) fn children(&self) -> &[RunId] {
        &self.children
    }

    /// The run goes on from this record, in a fresh journal.
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

    /// Which generation of the run this is.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// The position up to which mail has been delivered.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// The settlement of one doubt, if it is in the mailbox.
    pub(crate) fn take_settlement(&mut self, path: &Path, attempt: u32) -> Option<SettleMail> {
        let index = self.mail.iter().position(
            |mail| matches!(&mail.message, Message::Settle { path: p, attempt: n, .. } if p == path && *n == attempt),
        )?;
        let mail = self.mail.remove(index)?;
        self.undecided.push((path.clone(), mail.position));
        match mail.message {
            Message::Settle { settlement, by, reason, .. } => Some(SettleMail { settlement, by, reason }),
            _ => None,
        }
    }

    /// What was said about the operation at `path` is in the journal now; only then may the mailbox forget it.
    fn decided(&mut self, path: &Path) {
        if self.undecided.is_empty() {
            return;
        }
        let said = std::mem::take(&mut self.undecided).into_iter();
        let (decided, open): (Vec<_>, _) = said.partition(|(other, _)| other == path);
        self.undecided = open;
        decided.into_iter().for_each(|(_, position)| self.outbox.consumed(position));
    }

    /// Whether all it does is wait for somebody to settle something.
    pub(crate) fn is_parked(&self) -> bool {
        !self.doubts.is_empty() && self.open_intents.is_empty()
    }

    /// Whether the next attempt must be announced, because a process died with this run before.
    pub(crate) fn suspect(&mut self) -> bool {
        self.budget.suspect()
    }

    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// What to send to the store next, if nothing is on its way.
    pub(crate) fn next_commit(&mut self) -> Option<Commit> {
        match self.stop() {
            Some(Stop::Lost | Stop::Lapsed | Stop::Reload(_)) => None,
            _ => {
                self.publish_parks();
                self.outbox.take()
            }
        }
    }

    /// Runs that were written to, and should look.
    pub(crate) fn take_nudged(&mut self) -> Vec<RunId> {
        std::mem::take(&mut self.nudged)
    }

    /// The store answered the commit on its way.
    pub(crate) fn answered(&mut self, answer: Result<(), StoreError>) {
        match answer {
            Ok(()) => {
                let told = self.outbox.accepted();
                if !told.is_empty() {
                    self.nudged.extend(told);
                }
            }
            Err(error @ StoreError::Stale { .. }) => {
                tracing::warn!("the run is lost: {error}");
                self.stop = Some(Stop::Lost);
            }
            Err(error) => {
                // It may have happened: whoever was written to has a look.
                self.nudged.extend(self.outbox.take_telling());
                self.stop = Some(Stop::Reload(Box::new(error)));
            }
        }
    }
}
