//! Tests of SQLite-specific behaviour. What every store must do is in the store suite.

mod backup;
mod bit_flips;
mod checking;
mod crash;
mod damage;
mod group;
mod inline_writes;
mod many_messages;
mod migration;
mod opening;
mod outage;
mod packing;
mod payloads;
mod recovery;
mod reopening;
mod retention;
mod rows;
mod sealing;
mod sharing;
mod wal_stamp;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass_core::run::record::{Event, Finished, Record};
use windlass_core::run::state::{Ending, RunState};
use windlass_core::store::{Change, Commit, Creation, Driving, Guard, Message, Queries, Store, StoreError, Upkeep};
use windlass_core::testing::{block_on, still, store_suite};
use windlass_core::time::{Times, Timestamp};
use windlass_core::tool::Output;
use windlass_core::{Path, RunId, WorkerId};

use super::sealing_keys::SealingKeys;
use super::{Durability, Options, SqliteStore};

fn run(n: u8) -> RunId {
    RunId::from_bytes([n; 16])
}

fn record(value: Value) -> Record {
    let result = Ok(Arc::new(Output::value(value)));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
    Record { path: Path::root(), at: Timestamp::default(), asked: None, event: Event::Finished(finished) }
}

fn append(value: Value) -> Change {
    Change::Append(vec![record(value)])
}

fn finish() -> Change {
    Change::State(RunState::Finished { ending: Ending::Ok })
}

fn owner(n: u8, seq: u64, changes: Vec<Change>) -> Commit {
    Commit { guard: Guard::Owner { run: run(n), epoch: 1, expected_seq: seq }, changes }
}

/// Creates run `n` with one record.
fn create(n: u8) -> Commit {
    owner(n, 0, vec![Change::Create(Creation { tool: "t".into(), ..Creation::default() }), append(json!("created"))])
}

fn cancel(n: u8) -> Commit {
    let message = Message::Cancel { by: "ada".to_owned(), reason: "enough".to_owned() };
    Commit { guard: Guard::Outsider, changes: vec![Change::Mail { run: run(n), message, dedupe: None }] }
}

fn claimant() -> WorkerId {
    WorkerId::from_number(7)
}

/// Keys for commits without secrets: no file is read or created.
fn keys() -> SealingKeys {
    SealingKeys::of(&PathBuf::from("nowhere.db"))
}

fn commit(store: &SqliteStore, commit: Commit) -> Result<(), StoreError> {
    block_on(store.commit(commit).get())
}

fn length(store: &SqliteStore, n: u8) -> usize {
    block_on(store.journal(run(n), 0)).unwrap().len()
}

/// A directory that is deleted with the test, and a database path in it.
fn temp_db() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    (directory, path)
}

/// Opens the file as a program that edits it and updates its checksums.
fn edit(path: impl AsRef<std::path::Path>) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).unwrap();
    super::schema::add_functions(&connection).unwrap();
    connection
}

fn suite_with(options: impl Into<Options>) {
    let options = options.into();
    let directory = tempfile::tempdir().unwrap();
    let count = AtomicU32::new(0);
    store_suite::run_all(|| {
        let name = format!("{}.db", count.fetch_add(1, Ordering::Relaxed));
        Arc::new(SqliteStore::open_with(directory.path().join(name), options).unwrap())
    });
}

#[test]
fn w08_the_suite_holds_on_sqlite() {
    suite_with(Durability::Full);
}

#[test]
fn w08_the_suite_holds_on_relaxed_sqlite() {
    suite_with(Durability::Relaxed);
}

#[test]
fn w08_the_suite_holds_with_inline_writes() {
    suite_with(inline_writes::inline_options());
}

#[test]
fn w08_the_suite_holds_while_the_log_is_packed_all_the_time() {
    suite_with(packing::often());
}
