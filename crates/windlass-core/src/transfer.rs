//! One run as a document: taken out of one store, put into another.
//!
//! The document is JSON with a version. A run that is not finished arrives held: nobody but a person can know that the
//! original will not go on, and a run that goes on in two places does everything twice.

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

/// The only version there is.
const VERSION: u64 = 1;
/// How often a run that is being written is looked at before its export gives up.
const LOOKS: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    windlass_run: u64,
    run: RunId,
    tool: Arc<str>,
    created: Timestamp,
    generation: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Arc<str>>,
    /// The run that spawned it, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<Box<(RunId, Path)>>,
    state: RunState,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    doubts: Vec<Doubt>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parks: Vec<Park>,
    /// Of all generations.
    journal: Vec<Record>,
    /// What nobody has received yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mail: Vec<Message>,
}

/// A run as a document.
pub(crate) async fn export(kernel: &Kernel, run: RunId) -> Result<Value> {
    let store = &kernel.store;
    for _ in 0..LOOKS {
        let journal = store.journal(run, 0).await?;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let mail = store.mail(run, 0).await?;
        // What leaves the mailbox becomes a record in the same commit: no new record, nothing read twice or not at all.
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
    Err(Error::Conflict(format!("run {run} is being written all the time; export it once it waits or has ended")))
}

/// Puts a document's run into the store, generation by generation.
pub(crate) async fn import(kernel: &Kernel, text: &str) -> Result<RunId> {
    let document = Document::read(text).map_err(Error::Invalid)?;
    let (run, store) = (document.run, &kernel.store);
    let generations = document.generations();
    let (epoch, mut seq) = match store.info(run).await? {
        None => (1, 0),
        // Nobody owns a held run, so its epoch is still the one the import wrote under.
        Some(info) if is_broken_off(&info.state) => {
            let there = store.journal(run, 0).await?;
            if !document.continues(&there) {
                return Err(Error::Conflict(format!(
                    "an import of run {run} broke off here, and it was of another document; import that one again"
                )));
            }
            (info.epoch, there.len() as u64)
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

fn is_broken_off(state: &RunState) -> bool {
    matches!(state, RunState::Held { hold: Hold::Imported { missing, .. } } if *missing > 0)
}

impl Document {
    fn read(text: &str) -> std::result::Result<Self, String> {
        let json: Value = read_json(text.as_bytes()).map_err(|error| format!("the document is not JSON: {error}"))?;
        match json.get("windlass_run") {
            None => return Err("the document is no exported run: it has no field \"windlass_run\"".to_owned()),
            Some(version) if *version != VERSION => {
                return Err(format!(
                    "the document has version {version} of exported runs, and this program reads version {VERSION}"
                ));
            }
            Some(_) => {}
        }
        // Read from the text once more, because only the text has places.
        let mut document: Self =
            read_json(text.as_bytes()).map_err(|error| format!("the document cannot be read: {error}"))?;
        document.check()?;
        document.strip_references();
        Ok(document)
    }

    /// The document has no artifacts: what its outcomes refer to are names here, whoever has such content.
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
            let begins = index == 0 || matches!(record.event, Event::Continued { .. });
            if begins {
                known.clear();
            }
            if begins && !record.path.is_root() {
                return Err(format!("journal[{index}]: a journal begins at the root, not at {}", record.path));
            }
            if known.insert(record.path.clone()) && record.asked.is_none() {
                return Err(format!(
                    "journal[{index}]: the first record at {} does not say what was asked",
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
    fn continues(&self, there: &[Record]) -> bool {
        let json = |record: &Record| serde_json::to_value(record).ok();
        there.len() <= self.journal.len() && there.iter().zip(&self.journal).all(|(a, b)| json(a) == json(b))
    }

    /// What is written with one generation of the journal.
    fn changes(&self, kernel: &Kernel, number: usize, last: usize, records: Vec<Record>) -> Vec<Change> {
        let mut changes = Vec::new();
        if number == 0 {
            changes.push(Change::Create(Creation {
                tool: self.tool.clone(),
                at: self.created,
                worker: kernel.lease.worker,
                session: self.session.clone(),
                parent: self.parent.clone(),
                ..Creation::default()
            }));
        } else {
            changes.push(Change::Continue);
        }
        changes.push(Change::Append(records));
        let missing = u32::try_from(last - number).unwrap_or(u32::MAX);
        let held = RunState::Held { hold: Hold::Imported { was: was(&self.state).to_owned(), missing } };
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

fn was(state: &RunState) -> &'static str {
    match state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Suspended { .. } => "suspended",
        RunState::Held { .. } => "held",
        RunState::Finished { .. } => "finished",
    }
}
