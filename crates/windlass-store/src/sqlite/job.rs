//! Jobs for the writer thread. Commits are encoded before they are queued, on the thread that submits them, because
//! every run waits for the writer.

use std::sync::Arc;

use windlass_core::run::record::Record;
use windlass_core::run::state::{Doubt, RunState};
use windlass_core::store::ToolsChange;
use windlass_core::store::{
    Change, Commit, ConnectionAnswer, Creation, Guard, KeyPlace, Message, Promise, SeenOutcome, SessionVerdict,
    StoreError, Tidied, Turn,
};
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId, WorkerId};

use super::blobs::{self, Payload};
use super::connections::ConnectionJob;
use super::large_values;
use super::pack::Packed;
use super::retention::RetentionWork;
use super::seal;
use super::sealing_keys::SealingKeys;
use super::sessions::files::OutcomeEdits;
use super::sessions::{EncodedPost, SessionJob};

/// Largest record or message, in bytes of JSON. SQLite's limit is a thousand million; a commit beyond that would make
/// its whole group fail again and again.
const MAX_RECORD_BYTES: usize = 256 << 20;

pub(super) enum Job {
    Write(Box<Write>, Promise<()>),
    Claim(RunId, Claimant, Promise<ClaimOutcome>),
    /// Claims at most this many due runs.
    ClaimDue(Claimant, usize, Promise<Vec<DueClaim>>),
    Release(RunId, u64, Promise<()>),
    Renew(WorkerId, Timestamp, Promise<()>),
    Blob(blobs::BlobJob, Promise<blobs::BlobOutcome>),
    Pack(Packed, Promise<()>),
    Tidy(RetentionWork, Promise<Tidied>),
    /// Removes a slice of a run, at this time.
    Purge(RunId, Timestamp, Promise<Tidied>),
    Session(Box<SessionJob>, Promise<SessionVerdict>),
    /// Removes a slice of a closed session.
    PurgeSession(Arc<str>, Promise<Tidied>),
    Connection(Box<ConnectionJob>, Promise<ConnectionAnswer>),
}

/// Approximate cost of a job in memory and on disk, without its content.
const JOB_OVERHEAD: usize = 256;

impl Job {
    /// Whether the job reduces the load, or keeps work from being done twice. Such a job is accepted by a full queue.
    pub(super) fn skips_backpressure(&self) -> bool {
        matches!(self, Self::Release(..) | Self::Renew(..))
    }

    /// Approximate cost in memory and on disk.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Write(write, _) => JOB_OVERHEAD + write.bytes(),
            Self::Blob(step, _) => JOB_OVERHEAD + step.bytes(),
            Self::Session(job, _) => JOB_OVERHEAD + job.bytes(),
            Self::Connection(job, _) => JOB_OVERHEAD + job.bytes(),
            Self::Pack(packed, _) => packed.segments.iter().map(|segment| segment.body.len()).sum(),
            Self::Claim(..)
            | Self::ClaimDue(..)
            | Self::Release(..)
            | Self::Renew(..)
            | Self::Tidy(..)
            | Self::Purge(..)
            | Self::PurgeSession(..) => JOB_OVERHEAD,
        }
    }
}

/// The worker that claims, and the time of the claim.
#[derive(Clone, Copy)]
pub(super) struct Claimant {
    pub(super) worker: WorkerId,
    pub(super) now: Timestamp,
}

/// A due run and the result of claiming it.
pub(super) type DueClaim = (RunId, Result<ClaimOutcome, StoreError>);

/// The writer's part of a claim. The rest is read afterwards, outside the writer's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClaimOutcome {
    pub(super) epoch: u64,
    pub(super) owners_dead: bool,
    pub(super) was_running: bool,
    pub(super) orderly: bool,
    pub(super) last: WorkerId,
    pub(super) turn: bool,
}

/// Commits that were written or refused and can be freed. Kept boxed, so that they are handed over without being
/// copied.
#[allow(clippy::vec_box)]
pub(super) type SpentWrites = Vec<Box<Write>>;

/// A commit, encoded. The changes of one commit do not depend on their order, so they are kept by kind.
pub(super) struct Write {
    pub(super) guard: Guard,
    pub(super) create: Option<Creation>,
    pub(super) continues: bool,
    pub(super) records: Records,
    pub(super) state: Option<EncodedState>,
    pub(super) doubts: Option<Doubts>,
    pub(super) parks: Option<Parks>,
    pub(super) places: Option<Vec<KeyPlace>>,
    pub(super) examined: Option<u64>,
    pub(super) consumed: Vec<u64>,
    pub(super) starts: Vec<Start>,
    pub(super) mail: Vec<PendingMessage>,
    pub(super) refers: Vec<blobs::ReferenceRequest>,
    pub(super) posts: Vec<EncodedPost>,
    /// Outcomes that the end of the run adds to its session.
    pub(super) outcomes: Option<(Timestamp, Vec<SeenOutcome>)>,
    pub(super) tools: Vec<(Arc<str>, ToolsChange)>,
    pub(super) edits: Vec<OutcomeEdits>,
}

pub(super) struct EncodedState {
    pub(super) phase: RunPhase,
    pub(super) body: String,
    /// When a suspended run wakes, if it has a timer.
    pub(super) timer: Option<Timestamp>,
}

pub(super) struct Doubts {
    pub(super) list: Vec<Doubt>,
    /// `None` if there are none, so that the index of doubted runs contains only those.
    pub(super) body: Option<String>,
}

pub(super) struct Parks {
    /// `None` if there are none.
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
    /// One line per record. Encoded records contain no line breaks.
    pub(super) text: EncodedLines,
}

/// Encoded lines, and the large values that were extracted from them.
#[derive(Debug, Default)]
pub(super) struct EncodedLines {
    pub(super) body: String,
    pub(super) payloads: Vec<Payload>,
}

impl EncodedLines {
    /// Adds the line that `write` writes.
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
        if let Some(shortened) = large_values::extract(line, take).map_err(|error| malformed(&error.to_string()))? {
            self.body.truncate(start);
            self.body.push_str(&shortened);
            // The queue counts the length of the text, so the unused capacity is released.
            self.body.shrink_to_fit();
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.body.len() + self.payloads.iter().map(Payload::bytes).sum::<usize>()
    }
}

impl Records {
    /// Records of a run.
    pub(super) fn of(run: RunId, records: &[Record], keys: &SealingKeys) -> Result<Self, StoreError> {
        let mut encoded = Self::default();
        encoded.add(run, records, keys)?;
        Ok(encoded)
    }

    /// One record that contains no secrets.
    pub(super) fn plain(record: &Record) -> Result<Self, StoreError> {
        let mut text = EncodedLines::default();
        text.add(|line| record.write_line(line))?;
        Ok(Self { count: 1, at: Some(record.at), text })
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, run: RunId, records: &[Record], keys: &SealingKeys) -> Result<(), StoreError> {
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

pub(super) struct PendingMessage {
    pub(super) run: RunId,
    /// The doubt that the message settles, if it is a settlement.
    pub(super) settles: Option<(Path, u32)>,
    pub(super) dedupe: Option<Arc<str>>,
    pub(super) text: EncodedLines,
}

/// The part of a run's state that decides what may be done with the run. The numbers are stored in the file and used in
/// the conditions of its indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunPhase {
    Queued = 0,
    Running = 1,
    Suspended = 2,
    Held = 3,
    Finished = 4,
}

impl RunPhase {
    pub(super) fn from_number(number: i64) -> Option<Self> {
        let all = [Self::Queued, Self::Running, Self::Suspended, Self::Held, Self::Finished];
        all.into_iter().find(|phase| *phase as i64 == number)
    }

    /// Whether an owner that writes this phase has released the run cleanly.
    pub(super) fn is_orderly(self) -> bool {
        matches!(self, Self::Queued | Self::Suspended | Self::Held)
    }
}

impl EncodedState {
    pub(super) fn encode(state: &RunState) -> Result<Self, StoreError> {
        let mut timer = None;
        let phase = match state {
            RunState::Queued => RunPhase::Queued,
            RunState::Running => RunPhase::Running,
            RunState::Suspended { wake } => {
                timer = *wake;
                RunPhase::Suspended
            }
            RunState::Held { .. } => RunPhase::Held,
            RunState::Finished { .. } => RunPhase::Finished,
        };
        Ok(Self { phase, body: encode(state)?, timer })
    }
}

impl Write {
    /// The size of its content in bytes.
    pub(super) fn bytes(&self) -> usize {
        let mail: usize = self.mail.iter().map(|message| message.text.bytes()).sum();
        let starts: usize = self.starts.iter().map(|start| JOB_OVERHEAD + start.records.text.bytes()).sum();
        let posts: usize = self.posts.iter().map(EncodedPost::bytes).sum();
        self.records.text.bytes() + mail + starts + posts
    }

    /// Whether it only appends to a journal.
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
            posts,
            outcomes,
            tools,
            edits,
        } = self;
        let about_sessions = !(posts.is_empty() && tools.is_empty() && edits.is_empty());
        let about_others = !(starts.is_empty() && mail.is_empty() && refers.is_empty()) || about_sessions;
        let about_itself = create.is_some()
            || *continues
            || state.is_some()
            || doubts.is_some()
            || parks.is_some()
            || places.is_some()
            || outcomes.is_some();
        let about_mail = examined.is_some() || !consumed.is_empty();
        let appends = !records.is_empty() && records.text.payloads.is_empty();
        appends && !(about_others || about_itself || about_mail)
    }

    /// Encodes a commit. Fails if no file could accept it.
    pub(super) fn encode(commit: Commit, keys: &SealingKeys) -> Result<Self, StoreError> {
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
            posts: Vec::new(),
            outcomes: None,
            tools: Vec::new(),
            edits: Vec::new(),
        };
        if let Guard::Owner { epoch, .. } = write.guard
            && i64::try_from(epoch).is_err()
        {
            return Err(malformed("the commit's epoch is larger than any epoch of a claim"));
        }
        for change in commit.changes {
            write.add(change, keys)?;
        }
        Ok(write)
    }

    /// Whether it finishes its run.
    pub(super) fn finishes(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.phase == RunPhase::Finished)
    }

    fn add(&mut self, change: Change, keys: &SealingKeys) -> Result<(), StoreError> {
        let outside = matches!(change, Change::Mail { .. } | Change::Start { .. } | Change::Refer { .. });
        if self.guard == Guard::Outsider && !outside {
            return Err(malformed(
                "only the owner of a run may do more than send messages, start runs and add references",
            ));
        }
        match change {
            Change::Create(creation) if creation.turn == Turn::Queue => {
                return Err(malformed("a run that its creator drives cannot be a queued turn"));
            }
            Change::Create(creation) => self.create = Some(creation),
            Change::Start { run, creation, records } => {
                let records = Records::of(run, &records, keys)?;
                self.starts.push(Start { run, creation, records });
            }
            Change::Append(records) => {
                let Guard::Owner { run, .. } = self.guard else {
                    return Err(malformed("only the owner of a run may append to its journal"));
                };
                self.records.add(run, &records, keys)?;
            }
            Change::Continue => self.continues = true,
            Change::State(state) => self.state = Some(EncodedState::encode(&state)?),
            Change::Doubts(list) => self.doubts = Some(Doubts { body: encode_list(&list)?, list }),
            Change::Parks(list) => {
                let asks = list.iter().any(|park| park.on.needs_person());
                self.parks = Some(Parks { body: encode_list(&list)?, asks });
            }
            Change::Keys(list) => self.places = Some(list),
            Change::Examined(position) => self.examined = Some(position),
            Change::Consumed(positions) => self.consumed.extend(positions),
            Change::Outcomes { at, outcomes } => self.outcomes = Some((at, outcomes)),
            Change::Tools { session, change } => self.tools.push((session, change)),
            Change::Post { session, at, message, principal } => {
                self.posts.push(EncodedPost::encode(session, at, message, principal)?);
            }
            Change::Edit { session, at, edits, key } => self.edits.push(OutcomeEdits { session, at, edits, key }),
            Change::Refer { run, artifacts, by } => self.refers.push(blobs::ReferenceRequest { run, artifacts, by }),
            Change::Mail { run, message, dedupe } => {
                let settles = match &message {
                    Message::Settle { path, attempt, .. } => Some((path.clone(), *attempt)),
                    _ => None,
                };
                let message = match message.has_secrets() {
                    true => seal::seal_message(keys, run, &message)?,
                    false => message,
                };
                let text = encode_message(&message)?;
                self.mail.push(PendingMessage { run, settles, dedupe, text });
            }
            _ => return Err(malformed("the commit has a kind of change that this store does not support")),
        }
        Ok(())
    }
}

impl PendingMessage {
    /// A message without secrets that settles nothing.
    pub(super) fn new(run: RunId, message: &Message, dedupe: Option<Arc<str>>) -> Result<Self, StoreError> {
        Ok(Self { run, settles: None, dedupe, text: encode_message(message)? })
    }

    /// Tells `run` that the run it waits for has finished.
    pub(super) fn over(run: RunId, finished: RunId) -> Result<Self, StoreError> {
        let text = encode_message(&Message::Over { run: finished })?;
        Ok(Self { run, settles: None, dedupe: Some(format!("over {finished}").into()), text })
    }
}

fn encode_message(message: &Message) -> Result<EncodedLines, StoreError> {
    let mut text = EncodedLines::default();
    text.add(|line| {
        line.push_str(&serde_json::to_string(message)?);
        Ok(())
    })?;
    Ok(text)
}

/// `None` for an empty list.
pub(super) fn encode_list(list: &[impl serde::Serialize]) -> Result<Option<String>, StoreError> {
    if list.is_empty() { Ok(None) } else { encode(&list).map(Some) }
}

pub(super) fn encode(value: &impl serde::Serialize) -> Result<String, StoreError> {
    let text = serde_json::to_string(value).map_err(|error| unfit(&error))?;
    within_limit(&text)?;
    Ok(text)
}

fn within_limit(text: &str) -> Result<(), StoreError> {
    match text.len() {
        ..=MAX_RECORD_BYTES => Ok(()),
        size => Err(malformed(&format!("the commit has a record of {size} bytes; the limit is {MAX_RECORD_BYTES}"))),
    }
}

fn unfit(error: &serde_json::Error) -> StoreError {
    malformed(&format!("the commit cannot be encoded: {error}"))
}

fn malformed(why: &str) -> StoreError {
    StoreError::Invalid(why.to_string())
}
