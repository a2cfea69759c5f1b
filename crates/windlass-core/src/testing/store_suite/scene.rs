//! Helpers for the checks of the store suite: an owner, other writers, and sample data.

use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::{DoubtCause, Event, Finished, Record};
use crate::run::state::{Blocked, Doubt, Ending, Hold, Park, RunInfo, RunState};
use crate::store::{Change, Claimed, Commit, Creation, Guard, Message, Settlement, Store, StoreError};
use crate::testing::{block_on, still};
use crate::time::{Times, Timestamp};
use crate::tool::Output;

/// An owner of a run, driven by a check.
pub(super) struct Owner<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) run: RunId,
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

impl<'a> Owner<'a> {
    /// Creates run number `n` with one record.
    pub(super) fn create(store: &'a dyn Store, n: u8) -> Self {
        Self::create_as(store, n, new(n))
    }

    pub(super) fn create_as(store: &'a dyn Store, n: u8, creation: Creation) -> Self {
        let mut owner = Self { store, run: run(n), epoch: 1, seq: 0 };
        owner.write(vec![Change::Create(creation), Change::Append(vec![record(0, json!("created"))])]);
        owner
    }

    /// Suspends the run, with its messages examined up to `examined`.
    pub(super) fn suspend(&mut self, examined: u64, wake: Option<i64>) {
        self.write(vec![Change::Examined(examined), Change::State(suspended(wake))]);
    }

    pub(super) fn claim(store: &'a dyn Store, run: RunId) -> (Self, Claimed) {
        let claimed = must(block_on(store.claim(run, WorkerId::from_number(7))));
        (Self { store, run, epoch: claimed.epoch, seq: claimed.seq }, claimed)
    }

    pub(super) fn submit(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let guard = Guard::Owner { run: self.run, epoch: self.epoch, expected_seq: self.seq };
        block_on(self.store.commit(Commit { guard, changes }).get())
    }

    /// Submits changes that must be accepted.
    pub(super) fn write(&mut self, changes: Vec<Change>) {
        let appended = |change: &Change| if let Change::Append(records) = change { records.len() as u64 } else { 0 };
        let count: u64 = changes.iter().map(appended).sum();
        must(self.submit(changes));
        self.seq += count;
    }

    pub(super) fn append(&mut self, value: Value) {
        let index = u32::try_from(self.seq).unwrap_or(u32::MAX);
        self.write(vec![Change::Append(vec![record(index, value)])]);
    }

    pub(super) fn state(&self) -> RunState {
        info(self.store, self.run).state
    }

    pub(super) fn journal(&self) -> Vec<String> {
        texts(&must(block_on(self.store.journal(self.run, 0))))
    }
}

/// Sets the store's clock.
pub(super) fn set_clock(store: &dyn Store, now: i64) {
    store.use_clock(still(at(now)));
}

/// Claims run number `n` at this time.
pub(super) fn claim_at(store: &dyn Store, n: u8, worker: u64, now: i64) -> Result<Claimed, StoreError> {
    set_clock(store, now);
    block_on(store.claim(run(n), WorkerId::from_number(worker)))
}

/// Claims the runs that are due at this time for a worker, and returns their numbers.
pub(super) fn claim_due(store: &dyn Store, worker: u64, now: i64, limit: usize) -> Vec<u8> {
    set_clock(store, now);
    let due = must(block_on(store.claim_due(WorkerId::from_number(worker), limit)));
    due.runs.iter().filter(|(_, claimed)| claimed.is_ok()).map(|(run, _)| number(run)).collect()
}

pub(super) fn run(n: u8) -> RunId {
    let mut bytes = [0; 16];
    bytes[15] = n;
    RunId::from_bytes(bytes)
}

pub(super) fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// The description of run number `n`.
pub(super) fn new(n: u8) -> Creation {
    Creation { tool: format!("tool-{n}").into(), at: at(i64::from(n)), ..Creation::default() }
}

pub(super) fn keyed(n: u8, key: &str) -> Creation {
    Creation { key: Some(key.into()), ..new(n) }
}

pub(super) fn creation(n: u8) -> Change {
    Change::Create(new(n))
}

/// Starts run number `n` with one record.
pub(super) fn start(n: u8, creation: Creation) -> Change {
    Change::Start { run: run(n), creation, records: vec![record(0, json!("started"))] }
}

pub(super) fn record(index: u32, value: Value) -> Record {
    let result = Ok(Arc::new(Output::value(value)));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
    Record { path: Path::root().child(index), at: at(i64::from(index)), asked: None, event: Event::Finished(finished) }
}

pub(super) fn doubt(index: u32, attempt: u32) -> Doubt {
    let operation = "charge".to_owned();
    let path = Path::root().child(index);
    // With and without a report of the attempt, because both must be kept.
    let (cause, said) = match attempt {
        1 => (DoubtCause::WorkerLost, None),
        _ => (DoubtCause::Unclear, Some("the line went dead".into())),
    };
    Doubt { path, attempt, operation, cause, over_by: at(9), since: at(8), said }
}

pub(super) fn settle(index: u32, attempt: u32) -> Message {
    let (by, reason) = ("ada".to_owned(), "the bank says no".to_owned());
    Message::Settle {
        path: Path::root().child(index),
        generation: 0,
        attempt,
        settlement: Settlement::DidNotHappen,
        by,
        reason,
    }
}

pub(super) fn cancel(reason: &str) -> Message {
    Message::Cancel { by: "ada".to_owned(), reason: reason.to_owned() }
}

pub(super) fn held() -> RunState {
    RunState::Held { hold: Hold::CrashLoop { path: Path::root().child(2), deaths: 3 } }
}

pub(super) fn suspended(wake: Option<i64>) -> RunState {
    RunState::Suspended { wake: wake.map(at) }
}

pub(super) fn park(index: u32, on: Blocked) -> Park {
    Park { path: Path::root().child(index), operation: "wait".to_owned(), on, since: at(3), until: Some(at(4)) }
}

pub(super) fn finished() -> RunState {
    RunState::Finished { ending: Ending::Ok }
}

pub(super) fn outside(store: &dyn Store, changes: Vec<Change>) -> Result<(), StoreError> {
    block_on(store.commit(Commit { guard: Guard::Outsider, changes }).get())
}

pub(super) fn post(store: &dyn Store, run: RunId, message: Message) -> Result<(), StoreError> {
    outside(store, vec![Change::Mail { run, message, dedupe: None }])
}

/// A message with a dedupe key.
pub(super) fn once(run: RunId, reason: &str, dedupe: &str) -> Change {
    Change::Mail { run, message: cancel(reason), dedupe: Some(dedupe.into()) }
}

pub(super) fn duplicate(run: RunId, dedupe: &str) -> Result<(), StoreError> {
    Err(StoreError::Duplicate { run, dedupe: dedupe.into() })
}

/// The numbers of the runs that are due, and when the next one will be.
pub(super) fn due(store: &dyn Store, now: i64) -> (Vec<u8>, Option<i64>) {
    set_clock(store, now);
    let due = must(block_on(store.due(100)));
    (due.runs.iter().map(number).collect(), due.next.map(|next| (at(now) + next).as_micros()))
}

pub(super) fn number(run: &RunId) -> u8 {
    run.as_bytes()[15]
}

/// The messages after position `after`, as positions and texts.
pub(super) fn mail(store: &dyn Store, run: RunId, after: u64) -> Vec<(u64, String)> {
    must(block_on(store.mail(run, after))).iter().map(|mail| (mail.position, text(&mail.message))).collect()
}

pub(super) fn info(store: &dyn Store, run: RunId) -> RunInfo {
    match must(block_on(store.info(run))) {
        Some(info) => info,
        None => panic!("run {run} does not exist"),
    }
}

pub(super) fn text(value: &impl Serialize) -> String {
    must(serde_json::to_string(value))
}

pub(super) fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(text).collect()
}

#[track_caller]
pub(super) fn must<T, E: Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
