//! What the checks of the store suite are written with: an owner, an outsider, and things to write.

use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::{DoubtCause, Event, Finished, Record};
use crate::run::state::{Doubt, Ending, Hold, RunInfo, RunState};
use crate::store::{Change, Claimant, Claimed, Creation, Commit, Guard, Message, Settlement, Store, StoreError};
use crate::testing::block_on;
use crate::time::{Times, Timestamp};
use crate::tool::Output;

/// An owner as the checks drive it.
pub(super) struct Owner<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) run: RunId,
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

impl<'a> Owner<'a> {
    /// Creates run number `n`, with one record.
    pub(super) fn create(store: &'a dyn Store, n: u8) -> Self {
        let mut owner = Self { store, run: run(n), epoch: 1, seq: 0 };
        owner.write(vec![creation(n), Change::Append(vec![record(0, json!("created"))])]);
        owner
    }

    pub(super) fn claim(store: &'a dyn Store, run: RunId) -> (Self, Claimed) {
        let claimed = must(block_on(store.claim(run, claimant())));
        (Self { store, run, epoch: claimed.epoch, seq: claimed.seq }, claimed)
    }

    pub(super) fn submit(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let guard = Guard::Owner { run: self.run, epoch: self.epoch, expected_seq: self.seq };
        block_on(self.store.commit(Commit { guard, changes }).get())
    }

    /// Submits what must be accepted.
    pub(super) fn write(&mut self, changes: Vec<Change>) {
        let appended = |change: &Change| if let Change::Append(records) = change { records.len() as u64 } else { 0 };
        let count: u64 = changes.iter().map(appended).sum();
        must(self.submit(changes));
        self.seq += count;
    }

    pub(super) fn append(&mut self, value: Value) {
        let place = u32::try_from(self.seq).unwrap_or(u32::MAX);
        self.write(vec![Change::Append(vec![record(place, value)])]);
    }

    pub(super) fn state(&self) -> RunState {
        info(self.store, self.run).state
    }

    pub(super) fn journal(&self) -> Vec<String> {
        texts(&must(block_on(self.store.journal(self.run, 0))))
    }
}

/// A worker without a lease.
pub(super) fn claimant() -> Claimant {
    Claimant { worker: WorkerId::from_number(7), now: at(0) }
}

pub(super) fn run(n: u8) -> RunId {
    let mut bytes = [0; 16];
    bytes[15] = n;
    RunId::from_bytes(bytes)
}

pub(super) fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(super) fn creation(n: u8) -> Change {
    Change::Create(Creation { tool: format!("tool-{n}").into(), at: at(i64::from(n)), ..Creation::default() })
}

pub(super) fn record(place: u32, value: Value) -> Record {
    let result = Ok(Arc::new(Output::value(value)));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
    Record { path: Path::root().child(place), at: at(i64::from(place)), asked: None, event: Event::Finished(finished) }
}

pub(super) fn doubt(place: u32, attempt: u32) -> Doubt {
    let operation = "charge".to_owned();
    let path = Path::root().child(place);
    Doubt { path, attempt, operation, cause: DoubtCause::WorkerLost, over_by: at(9), since: at(8) }
}

pub(super) fn settle(place: u32, attempt: u32) -> Message {
    let (by, reason) = ("ada".to_owned(), "the bank says no".to_owned());
    Message::Settle { path: Path::root().child(place), attempt, settlement: Settlement::DidNotHappen, by, reason }
}

pub(super) fn cancel(reason: &str) -> Message {
    Message::Cancel { by: "ada".to_owned(), reason: reason.to_owned() }
}

pub(super) fn held() -> RunState {
    RunState::Held { hold: Hold::CrashLoop { path: Path::root().child(2), deaths: 3 } }
}

pub(super) fn finished() -> RunState {
    RunState::Finished { ending: Ending::Ok }
}

pub(super) fn post(store: &dyn Store, run: RunId, message: Message) -> Result<(), StoreError> {
    block_on(store.commit(Commit { guard: Guard::Outsider, changes: vec![Change::Mail { run, message, dedupe: None }] }).get())
}

/// The mail beyond `after`, as positions and texts.
pub(super) fn mail(store: &dyn Store, run: RunId, after: u64) -> Vec<(u64, String)> {
    must(block_on(store.mail(run, after))).iter().map(|mail| (mail.position, text(&mail.message))).collect()
}

pub(super) fn info(store: &dyn Store, run: RunId) -> RunInfo {
    match must(block_on(store.info(run))) {
        Some(info) => info,
        None => panic!("run {run} is not there"),
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
