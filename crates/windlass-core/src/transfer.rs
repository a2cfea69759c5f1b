//! One run as a document: exported from one store and imported into another.
//!
//! The document is JSON with a version. A run that is not finished is held when it is imported: only a person can know
//! that the original will not continue, and a run that continues in two stores does everything twice.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::record::{Event, Record};
use crate::run::refs::strip;
use crate::run::state::{Doubt, Hold, Park, RunState};
use crate::store::{Change, Commit, Creation, Guard, Message, StoreError};
use crate::time::Timestamp;
use crate::value::read_json;

/// The only version so far.
const VERSION: u64 = 1;
/// How often the export of a run that is being written is tried before it gives up.
const EXPORT_TRIES: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
// Many fields: everything about a run that another store needs.
struct Document {
    windlass_run: u64,
    run: RunId,
    tool: Arc<str>,
    created: Timestamp,
    generation: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<Arc<str>>,
    /// The run that spawned it, and the path of the spawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<Box<(RunId, Path)>>,
    state: RunState,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    doubts: Vec<Doubt>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parks: Vec<Park>,
    /// The records of all generations.
    journal: Vec<Record>,
    /// Messages that no operation has received yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mail: Vec<Message>,
}

/// Exports a run as a document.
pub(crate) async fn export(kernel: &Kernel, run: RunId) -> Result<Value> {
    let store = &kernel.store;
    for _ in 0..EXPORT_TRIES {
        let journal = store.journal(run, 0).await?;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let mail = store.mail(run, 0).await?;
        // A message leaves the mailbox in the same commit that adds a record. Without a new record, no message was read
        // twice or missed.
        if !store.journal(run, journal.len() as u64).await?.is_empty() {
            continue;
        }
        let document = Document {
            windlass_run: VERSION,
            run,
            tool: info.tool,
            created: info.created,
            generation: info.generation,
            session: info.session,
            principal: info.principal,
            cause: info.cause,
            parent: info.parent,
            state: info.state,
            doubts: info.doubts,
            parks: info.parks,
            journal,
            mail: mail.into_iter().map(|mail| mail.message).collect(),
        };
        let unwritable = |error| Error::Conflict(format!("run {run} cannot be written as JSON: {error}"));
        return serde_json::to_value(&document).map_err(unwritable);
    }
    Err(Error::Conflict(format!(
        "run {run} changed during every attempt to export it; export it when it waits or has ended"
    )))
}

/// Writes a document's run to the store, generation by generation.
pub(crate) async fn import(kernel: &Kernel, text: &str) -> Result<RunId> {
    let document = Document::read(text).map_err(Error::Invalid)?;
    let (run, store) = (document.run, &kernel.store);
    let generations = document.generations();
    let (epoch, mut seq) = match store.info(run).await? {
        None => (1, 0),
        // A held run has no owner, so its epoch is still the one that the import wrote under.
        Some(info) if is_interrupted_import(&info.state) => {
            let stored = store.journal(run, 0).await?;
            if !document.continues(&stored) {
                return Err(Error::Conflict(format!(
                    "an earlier import of run {run} was interrupted, and it was of another document; import that document again"
                )));
            }
            (info.epoch, stored.len() as u64)
        }
        Some(_) => {
            return Err(Error::Exists { run });
        }
    };
    let last = generations.len().saturating_sub(1);
    let mut begin = 0;
    for (number, records) in generations.iter().enumerate() {
        let end = begin + records.len() as u64;
        if end > seq {
            let guard = Guard::Owner { run, epoch, expected_seq: seq };
            let changes = document.changes(kernel, number, last, records.to_vec());
            store.commit(Commit { guard, changes }).get().await?;
            seq = end;
        }
        begin = end;
    }
    Ok(run)
}

fn is_interrupted_import(state: &RunState) -> bool {
    matches!(state, RunState::Held { hold: Hold::Imported { missing, .. } } if *missing > 0)
}

impl Document {
    fn read(text: &str) -> std::result::Result<Self, String> {
        let json: Value = read_json(text.as_bytes()).map_err(|error| format!("the document is not JSON: {error}"))?;
        match json.get("windlass_run") {
            None => return Err("the document is not an exported run: it has no field \"windlass_run\"".to_owned()),
            Some(version) if *version != VERSION => {
                return Err(format!(
                    "the document has version {version} of exported runs, and this program reads version {VERSION}"
                ));
            }
            Some(_) => {}
        }
        // Read from the text again, because only the text has line and column numbers for the error.
        let mut document: Self =
            read_json(text.as_bytes()).map_err(|error| format!("the document cannot be read: {error}"))?;
        document.check()?;
        document.strip_references();
        Ok(document)
    }

    /// Removes references to artifacts. The document contains no artifacts, so the ids in its outcomes grant no access
    /// here, even if the store has such content.
    fn strip_references(&mut self) {
        for record in &mut self.journal {
            if let Event::Finished(finished) = &mut record.event {
                strip(&mut finished.result);
            }
        }
        for message in &mut self.mail {
            if let Message::Ended { result, .. } = message {
                strip(result);
            }
        }
    }

    /// Refuses a journal that no run could have.
    fn check(&self) -> std::result::Result<(), String> {
        let mut known = std::collections::BTreeSet::new();
        for (index, record) in self.journal.iter().enumerate() {
            let starts_generation = index == 0 || matches!(record.event, Event::Continued { .. });
            if starts_generation {
                known.clear();
            }
            if starts_generation && !record.path.is_root() {
                return Err(format!("journal[{index}]: a journal begins at the root, not at {}", record.path));
            }
            if known.insert(record.path.clone()) && record.asked.is_none() {
                return Err(format!(
                    "journal[{index}]: the first record at {} does not record what was asked",
                    record.path
                ));
            }
        }
        let generations = self.generations().len();
        match usize::try_from(self.generation) {
            _ if self.journal.is_empty() => Err("journal: a run has at least one record".to_owned()),
            Ok(latest) if latest + 1 == generations => Ok(()),
            _ => Err(format!(
                "generation: the document says {}, and its journal has {generations} generations, counted from zero",
                self.generation
            )),
        }
    }

    fn generations(&self) -> Vec<&[Record]> {
        self.journal.chunk_by(|_, next| !matches!(next.event, Event::Continued { .. })).collect()
    }

    /// Whether these are the first records of this document.
    fn continues(&self, stored: &[Record]) -> bool {
        let json = |record: &Record| serde_json::to_value(record).ok();
        stored.len() <= self.journal.len() && stored.iter().zip(&self.journal).all(|(a, b)| json(a) == json(b))
    }

    /// What is written together with one generation of the journal.
    fn changes(&self, kernel: &Kernel, number: usize, last: usize, records: Vec<Record>) -> Vec<Change> {
        let mut changes = Vec::new();
        if number == 0 {
            changes.push(Change::Create(Creation {
                tool: self.tool.clone(),
                at: self.created,
                worker: kernel.lease.worker,
                session: self.session.clone(),
                principal: self.principal.clone(),
                cause: self.cause.clone(),
                parent: self.parent.clone(),
                ..Creation::default()
            }));
        } else {
            changes.push(Change::Continue);
        }
        changes.push(Change::Append(records));
        let missing = u32::try_from(last - number).unwrap_or(u32::MAX);
        let held = RunState::Held { hold: Hold::Imported { was: state_name(&self.state).to_owned(), missing } };
        if missing > 0 {
            changes.push(Change::State(held));
            return changes;
        }
        changes.push(Change::Doubts(self.doubts.clone()));
        if let RunState::Finished { .. } = self.state {
            changes.push(Change::State(self.state.clone()));
            return changes;
        }
        changes.push(Change::Parks(self.parks.clone()));
        changes.push(Change::State(held));
        let run = self.run;
        changes.extend(self.mail.iter().map(|message| Change::Mail { run, message: message.clone(), dedupe: None }));
        changes
    }
}

fn state_name(state: &RunState) -> &'static str {
    match state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Suspended { .. } => "suspended",
        RunState::Held { .. } => "held",
        RunState::Finished { .. } => "finished",
    }
}
