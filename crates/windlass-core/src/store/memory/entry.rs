//! The data of one run in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::{Change, Claimed, Creation, Filter, KeyPlace, Mail, Message, StateFilter, StoreError, Wants};
use super::Inner;
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::Record;
use crate::run::state::{Doubt, Park, RunInfo, RunState};
use crate::time::Timestamp;

// Many fields: one for each column that a database would have.
pub(super) struct RunRow {
    pub(super) tool: Arc<str>,
    pub(super) created: Timestamp,
    /// When it ended.
    pub(super) ended: Option<Timestamp>,
    /// Whether only the summary is kept, without the journal.
    pub(super) summary: bool,
    pub(super) key: Option<Arc<str>>,
    pub(super) session: Option<Arc<str>>,
    pub(super) principal: Option<Arc<str>>,
    pub(super) cause: Option<Arc<str>>,
    pub(super) parent: Option<Box<(RunId, Path)>>,
    pub(super) epoch: u64,
    pub(super) records: Vec<Record>,
    pub(super) state: RunState,
    pub(super) doubts: Vec<Doubt>,
    pub(super) parks: Vec<Park>,
    pub(super) keys: Vec<KeyPlace>,
    /// Refused waits: the operation, what it asked for, and why it was refused.
    pub(super) refusals: Vec<(Path, Wants, String)>,
    pub(super) mailbox: Mailbox,
    pub(super) owner: RunOwner,
    /// How many owners left the run without shutting down cleanly.
    pub(super) deaths: u64,
    /// When the run is due, if no worker drives it.
    pub(super) wake: Option<Timestamp>,
    generation: u32,
    /// The index of the first record of this generation.
    base: usize,
}

/// The messages of a run.
#[derive(Default)]
pub(super) struct Mailbox {
    pub(super) mail: Vec<Mail>,
    pub(super) latest: u64,
    pub(super) examined: u64,
    dedupe: BTreeSet<Arc<str>>,
}

/// The owner of a run.
pub(super) struct RunOwner {
    pub(super) worker: WorkerId,
    pub(super) deaths: u64,
    pub(super) orderly: bool,
    /// Whether all owners before it were dead when it claimed the run.
    pub(super) first: bool,
}

impl Mailbox {
    /// Sets the examined position. It never goes back, and never beyond the latest message, which would lose the next
    /// one.
    pub(super) fn examine(&mut self, position: u64) {
        self.examined = self.examined.max(position.min(self.latest));
    }

    pub(super) fn beyond(&self, position: u64) -> Vec<Mail> {
        self.mail.iter().filter(|mail| mail.position > position).cloned().collect()
    }

    /// Whether a message with this dedupe key has ever been accepted.
    pub(super) fn has_had(&self, dedupe: &str) -> bool {
        self.dedupe.contains(dedupe)
    }
}

impl Inner {
    /// Tells the runs that wait for the end of this run that it has finished.
    pub(super) fn notify_awaiting(&mut self, finished: RunId) {
        let Some(entry) = self.runs.get(&finished) else { return };
        let awaiting = entry.mailbox.mail.iter().filter_map(|mail| match &mail.message {
            Message::Await { by } => Some(*by),
            _ => None,
        });
        for run in awaiting.collect::<Vec<_>>() {
            let (message, dedupe) = (Message::Over { run: finished }, format!("over {finished}").into());
            // A run that has ended, or was told before, does not take it.
            if self.check_mail(run, &message, Some(&dedupe)).is_ok() {
                self.deliver(run, message, Some(dedupe));
                self.granted.push(run);
            }
        }
    }
}

impl RunOwner {
    pub(super) fn new(worker: WorkerId, deaths: u64, first: bool) -> Self {
        Self { worker, deaths, orderly: false, first }
    }
}

impl RunRow {
    pub(super) fn new(creation: Creation, epoch: u64, state: RunState, owner: RunOwner) -> Self {
        let Creation { tool, at, key, session, principal, cause, parent, .. } = creation;
        Self {
            tool,
            created: at,
            ended: None,
            summary: false,
            key,
            session,
            principal,
            cause,
            parent,
            epoch,
            records: Vec::new(),
            state,
            doubts: Vec::new(),
            parks: Vec::new(),
            keys: Vec::new(),
            refusals: Vec::new(),
            mailbox: Mailbox::default(),
            owner,
            deaths: 0,
            wake: None,
            generation: 0,
            base: 0,
        }
    }

    pub(super) fn info(&self, run: RunId) -> RunInfo {
        RunInfo {
            run,
            tool: self.tool.clone(),
            created: self.created,
            ended: self.ended,
            state: self.state.clone(),
            doubts: self.doubts.clone(),
            parks: self.parks.clone(),
            epoch: self.epoch,
            worker: self.owner.worker,
            deaths: self.deaths,
            generation: self.generation,
            key: self.key.clone(),
            session: self.session.clone(),
            principal: self.principal.clone(),
            cause: self.cause.clone(),
            parent: self.parent.clone(),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// The answer to a claim; `last` is the previous owner.
    pub(super) fn claimed(&self, last: &RunOwner, was_running: bool, owners_dead: bool, turn: bool) -> Claimed {
        Claimed {
            epoch: self.epoch,
            generation: self.generation,
            seq: self.records.len() as u64,
            records: self.records.get(self.base..).map(<[Record]>::to_vec).unwrap_or_default(),
            mail: self.mailbox.mail.clone(),
            mailed: self.mailbox.latest,
            owners_dead,
            was_running,
            places: Vec::new(),
            orderly: last.orderly,
            last: last.worker,
            turn,
            session: self.session.clone(),
            principal: self.principal.clone(),
            cause: self.cause.clone(),
            parent: self.parent.clone(),
            sealed: None,
            damaged: None,
        }
    }

    /// Drops everything except the summary.
    pub(super) fn summarize(&mut self) {
        self.summary = true;
        self.records = Vec::new();
        self.parks = Vec::new();
        self.mailbox = Mailbox::default();
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.state, RunState::Finished { .. })
    }

    pub(super) fn matches(&self, filter: &Filter) -> bool {
        let Filter { state, session, principal, cause, key, parent, tool, created_from, created_before } = filter;
        state.is_none_or(|state| self.is_in(state))
            && session.as_ref().is_none_or(|session| self.session.as_ref() == Some(session))
            && principal.as_ref().is_none_or(|principal| self.principal.as_ref() == Some(principal))
            && cause.as_ref().is_none_or(|cause| self.cause.as_ref() == Some(cause))
            && key.as_ref().is_none_or(|key| self.key.as_ref() == Some(key))
            && parent.is_none_or(|parent| self.parent.as_ref().is_some_and(|found| found.0 == parent))
            && tool.as_ref().is_none_or(|tool| self.tool == *tool)
            && created_from.is_none_or(|from| self.created >= from)
            && created_before.is_none_or(|before| self.created < before)
    }

    fn is_in(&self, state: StateFilter) -> bool {
        match state {
            StateFilter::Queued => self.state == RunState::Queued,
            StateFilter::Running => self.state == RunState::Running,
            StateFilter::Suspended => matches!(self.state, RunState::Suspended { .. }),
            StateFilter::Held => matches!(self.state, RunState::Held { .. }),
            StateFilter::Finished => self.is_finished(),
            StateFilter::Ended(wanted) => matches!(self.state, RunState::Finished { ending } if ending == wanted),
            StateFilter::InDoubt => !self.doubts.is_empty(),
            StateFilter::Inbox => !self.doubts.is_empty() || self.parks.iter().any(|park| park.on.needs_person()),
        }
    }

    pub(super) fn refuse_mail(
        &self,
        run: RunId,
        message: &Message,
        dedupe: Option<&Arc<str>>,
    ) -> Result<(), StoreError> {
        if let Some(dedupe) = dedupe.filter(|dedupe| self.mailbox.dedupe.contains(*dedupe)) {
            return Err(StoreError::Duplicate { run, dedupe: dedupe.clone() });
        }
        let settles_open_doubt = matches!(message, Message::Settle { path, attempt, .. }
            if self.doubts.iter().any(|doubt| doubt.path == *path && doubt.attempt == *attempt));
        if self.is_finished() && !settles_open_doubt { Err(StoreError::Finished(run)) } else { Ok(()) }
    }

    pub(super) fn post(&mut self, message: Message, dedupe: Option<Arc<str>>) {
        self.mailbox.latest += 1;
        self.mailbox.dedupe.extend(dedupe);
        self.mailbox.mail.push(Mail { position: self.mailbox.latest, message });
    }

    /// A generation without records is not advanced, so that resubmitting the commit that began it changes nothing.
    pub(super) fn next_generation(&mut self) {
        if self.base != self.records.len() {
            self.generation += 1;
            self.base = self.records.len();
        }
    }

    /// Whether an earlier commit at `expected_seq` wrote exactly this one. Compares JSON: resubmissions are rare, and
    /// the errors in records do not implement `PartialEq`.
    pub(super) fn repeats(&self, expected_seq: u64, creation: Option<&Creation>, changes: &[Change]) -> bool {
        if creation.is_none() && expected_seq == self.records.len() as u64 {
            return false;
        }
        let appended: Vec<&Record> = changes
            .iter()
            .flat_map(|change| if let Change::Append(records) = change { records.as_slice() } else { &[] })
            .collect();
        let may_repeat = match creation {
            Some(creation) => expected_seq == 0 && creation.tool == self.tool && creation.at == self.created,
            None => !appended.is_empty(),
        };
        let start = usize::try_from(expected_seq).unwrap_or(usize::MAX);
        let Some(stored) = self.records.get(start..).filter(|_| may_repeat) else { return false };
        let json = |record: &Record| serde_json::to_value(record).ok();
        stored.len() >= appended.len()
            && appended.iter().zip(stored).all(|(a, b)| json(a).is_some_and(|a| Some(a) == json(b)))
    }
}
