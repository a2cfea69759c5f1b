//! One run in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::{Change, Claimed, Creation, Filter, KeyPlace, Mail, Message, StoreError};
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::Record;
use crate::run::state::{Doubt, Park, RunInfo, RunState};
use crate::time::Timestamp;

// Many fields: the columns of a run, as a database has them.
pub(super) struct Entry {
    pub(super) tool: Arc<str>,
    pub(super) created: Timestamp,
    /// When it finished.
    pub(super) ended: Option<Timestamp>,
    /// Whether its journal is gone.
    pub(super) summary: bool,
    pub(super) key: Option<Arc<str>>,
    pub(super) session: Option<Arc<str>>,
    pub(super) parent: Option<Box<(RunId, Path)>>,
    pub(super) epoch: u64,
    pub(super) records: Vec<Record>,
    pub(super) state: RunState,
    pub(super) doubts: Vec<Doubt>,
    pub(super) parks: Vec<Park>,
    pub(super) keys: Vec<KeyPlace>,
    pub(super) mailbox: Mailbox,
    pub(super) owner: Owner,
    /// When it is due, if nobody drives it.
    pub(super) wake: Option<Timestamp>,
    generation: u32,
    /// Where the journal of this generation begins.
    base: usize,
}

#[derive(Default)]
pub(super) struct Mailbox {
    pub(super) mail: Vec<Mail>,
    pub(super) latest: u64,
    pub(super) examined: u64,
    dedupe: BTreeSet<Arc<str>>,
}

pub(super) struct Owner {
    pub(super) worker: WorkerId,
    pub(super) deaths: u64,
    pub(super) orderly: bool,
    /// Whether all owners before it were dead when it claimed.
    pub(super) first: bool,
}

impl Mailbox {
    /// Never back, and never beyond the latest message: that would lose the next one.
    pub(super) fn examine(&mut self, position: u64) {
        self.examined = self.examined.max(position.min(self.latest));
    }

    pub(super) fn beyond(&self, position: u64) -> Vec<Mail> {
        self.mail.iter().filter(|mail| mail.position > position).cloned().collect()
    }

    /// Whether it has, or has had, a message under this key.
    pub(super) fn has_had(&self, dedupe: &str) -> bool {
        self.dedupe.contains(dedupe)
    }
}

impl Owner {
    pub(super) fn new(worker: WorkerId, deaths: u64, first: bool) -> Self {
        Self { worker, deaths, orderly: false, first }
    }
}

impl Entry {
    pub(super) fn new(creation: Creation, epoch: u64, state: RunState, owner: Owner) -> Self {
        let Creation { tool, at, key, session, parent, .. } = creation;
        Self {
            tool,
            created: at,
            ended: None,
            summary: false,
            key,
            session,
            parent,
            epoch,
            records: Vec::new(),
            state,
            doubts: Vec::new(),
            parks: Vec::new(),
            keys: Vec::new(),
            mailbox: Mailbox::default(),
            owner,
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
            generation: self.generation,
            session: self.session.clone(),
            parent: self.parent.clone(),
        }
    }

    /// `last` says what is known of the owner before the new one.
    pub(super) fn claimed(&self, last: &Owner, owners_dead: bool, turn: bool) -> Claimed {
        Claimed {
            epoch: self.epoch,
            generation: self.generation,
            seq: self.records.len() as u64,
            records: self.records.get(self.base..).map(<[Record]>::to_vec).unwrap_or_default(),
            mail: self.mailbox.mail.clone(),
            owners_dead,
            orderly: last.orderly,
            last: last.worker,
            turn,
            session: self.session.clone(),
            parent: self.parent.clone(),
            sealed: None,
            damaged: None,
        }
    }

    /// Keeps only what says that the run was there.
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
        match filter {
            Filter::Queued => self.state == RunState::Queued,
            Filter::Running => self.state == RunState::Running,
            Filter::Suspended => matches!(self.state, RunState::Suspended { .. }),
            Filter::Held => matches!(self.state, RunState::Held { .. }),
            Filter::Finished => self.is_finished(),
            Filter::Doubted => !self.doubts.is_empty(),
            Filter::Inbox => !self.doubts.is_empty() || self.parks.iter().any(|park| park.on.needs_person()),
            Filter::Session(session) => self.session.as_ref() == Some(session),
            Filter::Children(parent) => self.parent.as_ref().is_some_and(|found| found.0 == *parent),
            Filter::Tool(tool) => self.tool == *tool,
            Filter::All => true,
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

    /// A generation that has no records is continued by itself: resubmitting the commit that began it changes nothing.
    pub(super) fn next_generation(&mut self) {
        if self.base != self.records.len() {
            self.generation += 1;
            self.base = self.records.len();
        }
    }

    /// Whether an earlier commit at `expected_seq` wrote exactly this one. Compared as JSON: records are rarely
    /// resubmitted, and their errors have no equality of their own.
    pub(super) fn repeats(&self, expected_seq: u64, creation: Option<&Creation>, changes: &[Change]) -> bool {
        if creation.is_none() && expected_seq == self.records.len() as u64 {
            return false;
        }
        let appended: Vec<&Record> = changes
            .iter()
            .flat_map(|change| if let Change::Append(records) = change { records.as_slice() } else { &[] })
            .collect();
        let known = match creation {
            Some(creation) => expected_seq == 0 && creation.tool == self.tool && creation.at == self.created,
            None => !appended.is_empty(),
        };
        let start = usize::try_from(expected_seq).unwrap_or(usize::MAX);
        let Some(there) = self.records.get(start..).filter(|_| known) else { return false };
        let json = |record: &Record| serde_json::to_value(record).ok();
        there.len() >= appended.len()
            && appended.iter().zip(there).all(|(a, b)| json(a).is_some_and(|a| Some(a) == json(b)))
    }
}
