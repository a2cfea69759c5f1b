//! What the writer thread is asked to do. Commits are encoded before they are queued, on the thread that submits them:
//! the writer is the one thread everybody waits for.

use std::sync::Arc;

use windlass_core::run::state::{Doubt, RunState};
use windlass_core::store::{Change, Commit, Guard, Message, Promise, StoreError};
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId};

/// Largest record or message, in bytes of JSON. SQLite ends at a thousand million; one commit beyond that would fail
/// its whole group again and again.
const RECORD_BYTES: usize = 256 << 20;

pub(super) enum Job {
    Write(Write, Promise<()>),
    Claim(RunId, Promise<Taken>),
    Release(RunId, u64, Promise<()>),
}

impl Job {
    /// Roughly what it costs in memory and on disk.
    pub(super) fn bytes(&self) -> usize {
        const FIXED: usize = 256;
        match self {
            Self::Write(write, _) => {
                let records: usize = write.records.iter().map(String::len).sum();
                let mail: usize = write.mail.iter().map(|letter| letter.body.len()).sum();
                FIXED + records + mail
            }
            Self::Claim(..) | Self::Release(..) => FIXED,
        }
    }
}

/// What the writer knows of a claim; the rest is read afterwards, outside its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) epoch: u64,
    pub(super) owners_dead: bool,
    pub(super) orderly: bool,
}

/// A commit, encoded. The changes of one commit do not depend on their order, so they are kept by kind.
pub(super) struct Write {
    pub(super) guard: Guard,
    pub(super) create: Option<Creation>,
    pub(super) records: Vec<String>,
    pub(super) state: Option<State>,
    pub(super) doubts: Option<Doubts>,
    pub(super) examined: Option<u64>,
    pub(super) mail: Vec<Letter>,
}

pub(super) struct Creation {
    pub(super) tool: Arc<str>,
    pub(super) at: Timestamp,
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) body: String,
}

pub(super) struct Doubts {
    pub(super) list: Vec<Doubt>,
    /// Nothing if there are none, so that the index of doubted runs has only those.
    pub(super) body: Option<String>,
}

pub(super) struct Letter {
    pub(super) run: RunId,
    /// The doubt it settles, if it is a settlement.
    pub(super) settles: Option<(Path, u32)>,
    pub(super) body: String,
}

/// The part of a run's state that decides what may be done with it; the numbers are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running = 0,
    Held = 1,
    Finished = 2,
}

impl Phase {
    pub(super) fn from_number(number: i64) -> Option<Self> {
        [Self::Running, Self::Held, Self::Finished].into_iter().find(|phase| *phase as i64 == number)
    }
}

impl State {
    pub(super) fn encode(state: &RunState) -> Result<Self, StoreError> {
        let phase = match state {
            RunState::Running => Phase::Running,
            RunState::Held { .. } => Phase::Held,
            RunState::Finished { .. } => Phase::Finished,
        };
        Ok(Self { phase, body: encode(state)? })
    }
}

impl Write {
    /// Encodes a commit. Fails if it could not be written whatever the file holds.
    pub(super) fn encode(commit: Commit) -> Result<Self, StoreError> {
        let mut write = Self {
            guard: commit.guard,
            create: None,
            records: Vec::new(),
            state: None,
            doubts: None,
            examined: None,
            mail: Vec::new(),
        };
        if let Guard::Owner { epoch, .. } = write.guard
            && i64::try_from(epoch).is_err()
        {
            return Err(malformed("its epoch is beyond what any claim hands out"));
        }
        for change in commit.changes {
            write.add(change)?;
        }
        Ok(write)
    }

    fn add(&mut self, change: Change) -> Result<(), StoreError> {
        if self.guard == Guard::Outsider && !matches!(change, Change::Mail { .. }) {
            return Err(malformed("only the owner of a run may write anything but mail"));
        }
        match change {
            Change::Create { tool, at } => self.create = Some(Creation { tool, at }),
            Change::Append(records) => {
                self.records.reserve(records.len());
                for record in &records {
                    self.records.push(encode(record)?);
                }
            }
            Change::State(state) => self.state = Some(State::encode(&state)?),
            Change::Doubts(list) => {
                let body = if list.is_empty() { None } else { Some(encode(&list)?) };
                self.doubts = Some(Doubts { list, body });
            }
            Change::Examined(position) => self.examined = Some(position),
            Change::Mail { run, message } => {
                let settles = match &message {
                    Message::Settle { path, attempt, .. } => Some((path.clone(), *attempt)),
                    _ => None,
                };
                self.mail.push(Letter { run, settles, body: encode(&message)? });
            }
            _ => return Err(malformed("it holds a kind of change that this store does not know")),
        }
        Ok(())
    }
}

fn encode(value: &impl serde::Serialize) -> Result<String, StoreError> {
    let text = serde_json::to_string(value).map_err(|error| malformed(&format!("it cannot be encoded: {error}")))?;
    if text.len() > RECORD_BYTES {
        let size = text.len();
        return Err(malformed(&format!("it holds a record of {size} bytes, and the most is {RECORD_BYTES}")));
    }
    Ok(text)
}

fn malformed(why: &str) -> StoreError {
    StoreError::Invalid(why.to_string())
}
