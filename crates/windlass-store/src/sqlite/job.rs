//! What the writer thread is asked to do. Commits are encoded before they are queued, on the thread that submits them:
//! the writer is the one thread everybody waits for.

use std::sync::Arc;

use windlass_core::run::record::Record;
use windlass_core::run::state::{Doubt, RunState};
use windlass_core::store::{
    Change, Claimant, Commit, Creation, Guard, KeyPlace, Message, Promise, StoreError, Tidied, Turn,
};
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId, WorkerId};

use super::blobs::{self, Payload};
use super::keys::Keys;
use super::outline;
use super::pack::Packed;
use super::retention::Chores;
use super::seal;

/// Largest record or message, in bytes of JSON. SQLite ends at a thousand million; one commit beyond that would fail
/// its whole group again and again.
const RECORD_BYTES: usize = 256 << 20;

pub(super) enum Job {
    Write(Box<Write>, Promise<()>),
    Claim(RunId, Claimant, Promise<Taken>),
    Release(RunId, u64, Promise<()>),
    Renew(WorkerId, Timestamp, Promise<()>),
    Blob(blobs::Step, Promise<blobs::Done>),
    Pack(Packed, Promise<()>),
    Tidy(Chores, Promise<Tidied>),
    /// A slice of removing a run, at this time.
    Purge(RunId, Timestamp, Promise<Tidied>),
}

/// Roughly what a job costs in memory and on disk beside what it has to say.
const FIXED: usize = 256;

impl Job {
    /// Whether there is less to do once it is done, or it keeps what is being done from being done twice.
    pub(super) fn ends_work(&self) -> bool {
        matches!(self, Self::Release(..) | Self::Renew(..))
    }

    /// Roughly what it costs in memory and on disk.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Write(write, _) => FIXED + write.bytes(),
            Self::Blob(step, _) => FIXED + step.bytes(),
            Self::Pack(packed, _) => packed.segments.iter().map(|segment| segment.body.len()).sum(),
            Self::Claim(..) | Self::Release(..) | Self::Renew(..) | Self::Tidy(..) | Self::Purge(..) => FIXED,
        }
    }
}

/// What the writer knows of a claim; the rest is read afterwards, outside its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) epoch: u64,
    pub(super) owners_dead: bool,
    pub(super) orderly: bool,
    pub(super) last: WorkerId,
    pub(super) turn: bool,
}

/// Commits that were written, or refused: nobody needs them any more. Boxed as they came, so that they change hands without being
/// copied.
#[allow(clippy::vec_box)]
pub(super) type Spent = Vec<Box<Write>>;

/// A commit, encoded. The changes of one commit do not depend on their order, so they are kept by kind.
pub(super) struct Write {
    pub(super) guard: Guard,
    pub(super) create: Option<Creation>,
    pub(super) continues: bool,
    pub(super) records: Records,
    pub(super) state: Option<State>,
    pub(super) doubts: Option<Doubts>,
    pub(super) parks: Option<Parks>,
    pub(super) places: Option<Vec<KeyPlace>>,
    pub(super) examined: Option<u64>,
    pub(super) consumed: Vec<u64>,
    pub(super) starts: Vec<Start>,
    pub(super) mail: Vec<Letter>,
    pub(super) refers: Vec<blobs::Refers>,
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) body: String,
    /// When a suspended run is due, if it has a timer.
    pub(super) timer: Option<Timestamp>,
}

pub(super) struct Doubts {
    pub(super) list: Vec<Doubt>,
    /// Nothing if there are none, so that the index of doubted runs has only those.
    pub(super) body: Option<String>,
}

pub(super) struct Parks {
    /// Nothing if there are none.
    pub(super) body: Option<String>,
    /// Whether one of them needs a person.
    pub(super) asks: bool,
}

pub(super) struct Start {
    pub(super) run: RunId,
    pub(super) creation: Creation,
    pub(super) records: Records,
}

/// The records that one commit adds to one journal.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) count: u32,
    /// When the last of them was written.
    pub(super) at: Option<Timestamp>,
    /// A line each: what is encoded has no line breaks of its own.
    pub(super) text: Text,
}

/// Encoded lines, and the large values that were taken out of them.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) body: String,
    pub(super) payloads: Vec<Payload>,
}

impl Text {
    /// Adds what `write` writes.
    fn add(&mut self, write: impl FnOnce(&mut String) -> serde_json::Result<()>) -> Result<(), StoreError> {
        let start = self.body.len();
        write(&mut self.body).map_err(|error| unfit(&error))?;
        let line = &self.body[start..];
        within_limit(line)?;
        let take = |bytes: &[u8]| {
            let payload = Payload::new(bytes);
            let name = payload.id().to_string();
            self.payloads.push(payload);
            name
        };
        if let Some(outlined) = outline::outline(line, take).map_err(|error| malformed(&error.to_string()))? {
            self.body.truncate(start);
            self.body.push_str(&outlined);
            // What waits to be written is counted by what it says, not by the room it once took.
            self.body.shrink_to_fit();
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.body.len() + self.payloads.iter().map(Payload::bytes).sum::<usize>()
    }
}

impl Records {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, run: RunId, records: &[Record], keys: &Keys) -> Result<(), StoreError> {
        for record in records {
            if self.count > 0 {
                self.text.body.push('\n');
            }
            match record.has_secrets() {
                true => {
                    let sealed = seal::seal(keys, run, record)?;
                    self.text.add(|line| sealed.write_line(line))?;
                }
                false => self.text.add(|line| record.write_line(line))?,
            }
            self.count += 1;
            self.at = Some(record.at);
        }
        Ok(())
    }
}

pub(super) struct Letter {
    pub(super) run: RunId,
    /// The doubt it settles, if it is a settlement.
    pub(super) settles: Option<(Path, u32)>,
    pub(super) dedupe: Option<Arc<str>>,
    pub(super) text: Text,
}

/// The part of a run's state that decides what may be done with it; the numbers are in the file, and in the conditions
/// of its indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Queued = 0,
    Running = 1,
    Suspended = 2,
    Held = 3,
    Finished = 4,
}

impl Phase {
    pub(super) fn from_number(number: i64) -> Option<Self> {
        let all = [Self::Queued, Self::Running, Self::Suspended, Self::Held, Self::Finished];
        all.into_iter().find(|phase| *phase as i64 == number)
    }

    /// Whether an owner that says so has let go of the run in good order.
    pub(super) fn is_orderly(self) -> bool {
        matches!(self, Self::Queued | Self::Suspended | Self::Held)
    }
}

impl State {
    pub(super) fn encode(state: &RunState) -> Result<Self, StoreError> {
        let mut timer = None;
        let phase = match state {
            RunState::Queued => Phase::Queued,
            RunState::Running => Phase::Running,
            RunState::Suspended { wake } => {
                timer = *wake;
                Phase::Suspended
            }
            RunState::Held { .. } => Phase::Held,
            RunState::Finished { .. } => Phase::Finished,
        };
        Ok(Self { phase, body: encode(state)?, timer })
    }
}

impl Write {
    /// How much it has to say.
    pub(super) fn bytes(&self) -> usize {
        let mail: usize = self.mail.iter().map(|letter| letter.text.bytes()).sum();
        let starts: usize = self.starts.iter().map(|start| FIXED + start.records.text.bytes()).sum();
        self.records.text.bytes() + mail + starts
    }

    /// Whether it adds to a journal and does nothing else.
    pub(super) fn only_appends(&self) -> bool {
        let Self {
            guard: _,
            create,
            records,
            continues,
            state,
            doubts,
            parks,
            places,
            examined,
            consumed,
            starts,
            mail,
            refers,
        } = self;
        let about_others = !(starts.is_empty() && mail.is_empty() && refers.is_empty());
        let about_itself = create.is_some()
            || *continues
            || state.is_some()
            || doubts.is_some()
            || parks.is_some()
            || places.is_some();
        let about_mail = examined.is_some() || !consumed.is_empty();
        let appends = !records.is_empty() && records.text.payloads.is_empty();
        appends && !(about_others || about_itself || about_mail)
    }

    /// Encodes a commit. Fails if it could not be written whatever the file holds.
    pub(super) fn encode(commit: Commit, keys: &Keys) -> Result<Self, StoreError> {
        let mut write = Self {
            guard: commit.guard,
            create: None,
            continues: false,
            records: Records::default(),
            state: None,
            doubts: None,
            parks: None,
            places: None,
            examined: None,
            consumed: Vec::new(),
            starts: Vec::new(),
            mail: Vec::new(),
            refers: Vec::new(),
        };
        if let Guard::Owner { epoch, .. } = write.guard
            && i64::try_from(epoch).is_err()
        {
            return Err(malformed("its epoch is beyond what any claim hands out"));
        }
        for change in commit.changes {
            write.add(change, keys)?;
        }
        Ok(write)
    }

    /// Whether it says that its run is finished.
    pub(super) fn finishes(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.phase == Phase::Finished)
    }

    fn add(&mut self, change: Change, keys: &Keys) -> Result<(), StoreError> {
        let outside = matches!(change, Change::Mail { .. } | Change::Start { .. } | Change::Refer { .. });
        if self.guard == Guard::Outsider && !outside {
            return Err(malformed("only the owner of a run may do more than send mail and start other runs"));
        }
        match change {
            Change::Create(creation) if creation.turn == Turn::Queue => {
                return Err(malformed("a run that is driven at once cannot wait for its turn"));
            }
            Change::Create(creation) => self.create = Some(creation),
            Change::Start { run, creation, records } => {
                let mut encoded = Records::default();
                encoded.add(run, &records, keys)?;
                self.starts.push(Start { run, creation, records: encoded });
            }
            Change::Append(records) => {
                let Guard::Owner { run, .. } = self.guard else {
                    return Err(malformed("only the owner of a run may add to its journal"));
                };
                self.records.add(run, &records, keys)?;
            }
            Change::Continue => self.continues = true,
            Change::State(state) => self.state = Some(State::encode(&state)?),
            Change::Doubts(list) => self.doubts = Some(Doubts { body: encode_list(&list)?, list }),
            Change::Parks(list) => {
                let asks = list.iter().any(|park| park.on.needs_person());
                self.parks = Some(Parks { body: encode_list(&list)?, asks });
            }
            Change::Keys(list) => self.places = Some(list),
            Change::Examined(position) => self.examined = Some(position),
            Change::Consumed(positions) => self.consumed.extend(positions),
            Change::Refer { run, artifacts, by } => self.refers.push(blobs::Refers { run, artifacts, by }),
            Change::Mail { run, message, dedupe } => {
                let settles = match &message {
                    Message::Settle { path, attempt, .. } => Some((path.clone(), *attempt)),
                    _ => None,
                };
                let mut text = Text::default();
                text.add(|line| {
                    line.push_str(&serde_json::to_string(&message)?);
                    Ok(())
                })?;
                self.mail.push(Letter { run, settles, dedupe, text });
            }
            _ => return Err(malformed("it holds a kind of change that this store does not know")),
        }
        Ok(())
    }
}

/// Nothing for an empty list.
pub(super) fn encode_list(list: &[impl serde::Serialize]) -> Result<Option<String>, StoreError> {
    if list.is_empty() { Ok(None) } else { encode(&list).map(Some) }
}

fn encode(value: &impl serde::Serialize) -> Result<String, StoreError> {
    let text = serde_json::to_string(value).map_err(|error| unfit(&error))?;
    within_limit(&text)?;
    Ok(text)
}

fn within_limit(text: &str) -> Result<(), StoreError> {
    match text.len() {
        ..=RECORD_BYTES => Ok(()),
        size => Err(malformed(&format!("it holds a record of {size} bytes, and the most is {RECORD_BYTES}"))),
    }
}

fn unfit(error: &serde_json::Error) -> StoreError {
    malformed(&format!("it cannot be encoded: {error}"))
}

fn malformed(why: &str) -> StoreError {
    StoreError::Invalid(why.to_string())
}
