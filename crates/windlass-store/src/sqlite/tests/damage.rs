//! Damage is reported, remembered and left in place.

use std::path::Path as FilePath;

use rusqlite::config::DbConfig;
use windlass_core::run::state::Hold;
use windlass_core::store::Filter;

use super::super::{BackupError, Health, OpenError, check_file};
use super::packing::{count, often};
use super::*;

/// Changes the file without updating checksums.
fn damage(path: &FilePath, sql: &str) {
    let connection = edit(path);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).unwrap();
    assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
}

/// Opens a file with two runs of two records each, after this damage.
fn open_damaged(path: &FilePath, sql: &str) -> SqliteStore {
    let store = SqliteStore::open(path).unwrap();
    for n in 1..=2 {
        commit(&store, create(n)).unwrap();
        commit(&store, owner(n, 1, vec![append(json!("paid"))])).unwrap();
    }
    drop(store);
    damage(path, sql);
    SqliteStore::open(path).unwrap()
}

/// Damage of one letter in a record.
const LETTER: &str = "UPDATE log SET body = replace(body, 'paid', 'said') WHERE run = 1 AND seq = 1";

#[track_caller]
fn is_damaged<T: std::fmt::Debug>(answer: Result<T, StoreError>, n: u8, at: &str) {
    match answer {
        Err(StoreError::Damaged { run: Some(named), place }) if named == run(n) && place.contains(at) => {}
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_reports(store: &SqliteStore, words: &[&str]) {
    let Health::Broken(text) = store.health() else { panic!("{:?}", store.health()) };
    for word in words.iter().chain(&["is damaged", "restore it from a backup"]) {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn w08_a_damaged_record_is_reported_from_opening_on_and_never_returned() {
    let (_directory, path) = temp_db();
    let store = open_damaged(&path, LETTER);
    assert_reports(&store, &[&run(1).to_string(), "position 2"]);
    is_damaged(block_on(store.journal(run(1), 0)), 1, "position 2");
    is_damaged(commit(&store, owner(1, 1, vec![append(json!("paid"))])), 1, "position 2");
    assert_eq!(length(&store, 2), 2, "the other run is unchanged");
    commit(&store, owner(2, 2, vec![append(json!("goes on"))])).unwrap();
    drop(store);
    assert!(!check_file(&path, |_, _| {}).unwrap().is_fine());
    assert_reports(&SqliteStore::open(&path).unwrap(), &["position 2"]);
}

#[test]
fn w08_a_claim_of_a_damaged_journal_names_the_location_and_the_run_can_be_held_and_finished() {
    let (_directory, path) = temp_db();
    let store = open_damaged(&path, LETTER);
    let claimed = block_on(store.claim(run(1), claimant())).unwrap();
    let place = claimed.damaged.unwrap();
    assert!(place.contains("position 2") && claimed.records.is_empty() && claimed.seq == 2, "{place}");
    let guard = |seq| Guard::Owner { run: run(1), epoch: claimed.epoch, expected_seq: seq };
    let held = RunState::Held { hold: Hold::Damaged { run: run(1), place } };
    commit(&store, Commit { guard: guard(2), changes: vec![Change::State(held.clone())] }).unwrap();
    assert_eq!(block_on(store.info(run(1))).unwrap().unwrap().state, held);
    commit(&store, Commit { guard: guard(2), changes: vec![append(json!("given up")), finish()] }).unwrap();
    block_on(store.purge(run(1), Timestamp::default())).unwrap();
    assert!(store.check(|_, _| {}).unwrap().is_fine());
    assert_eq!(store.health(), Health::Fine, "the damaged run was purged");
}

#[test]
fn w08_a_run_whose_row_is_damaged_is_shown_as_held_also_after_later_changes() {
    let (_directory, path) = temp_db();
    let store = open_damaged(&path, "UPDATE runs SET tool = 'u' WHERE id = 1");
    let is_held = |store: &SqliteStore| {
        let all = block_on(store.list(Filter::default(), None, 9)).unwrap();
        assert!(matches!(&all[0].state, RunState::Held { hold: Hold::Damaged { run: named, .. } } if *named == run(1)));
        assert_eq!(all[1].state, RunState::Running);
    };
    is_held(&store);
    assert_reports(&store, &[&run(1).to_string(), "table of runs"]);
    is_damaged(block_on(store.claim(run(1), claimant())).map(|claimed| claimed.seq), 1, "table of runs");
    is_damaged(commit(&store, cancel(1)), 1, "table of runs");
    is_damaged(block_on(store.journal(run(1), 0)), 1, "table of runs");
    drop(store);
    // As packing does.
    edit(&path).execute("UPDATE runs SET tail = 2", []).unwrap();
    is_held(&SqliteStore::open(&path).unwrap());
}

#[test]
fn w08_a_damaged_row_is_not_packed_and_packed_rows_around_it_stay_readable() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    (1..60).for_each(|seq| commit(&store, owner(1, seq, vec![append(json!(seq))])).unwrap());
    drop(store);
    damage(&path, "UPDATE log SET body = replace(body, '30', '31') WHERE seq = 30");
    let store = SqliteStore::open_with(&path, often()).unwrap();
    let mut seq = 60;
    while count(&path, "segments") == 0 {
        commit(&store, owner(1, seq, vec![append(json!(seq))])).unwrap();
        seq += 1;
    }
    assert_eq!(count(&path, "log WHERE seq = 30"), 1);
    assert_reports(&store, &[&run(1).to_string(), "position 31"]);
    assert_eq!(block_on(store.page(run(1), 31, 20)).unwrap().len(), 20);
    is_damaged(block_on(store.page(run(1), 30, 1)), 1, "position 31");
}

#[test]
fn w08_a_damaged_file_is_not_backed_up() {
    let (_directory, path) = temp_db();
    let store = open_damaged(&path, LETTER);
    let copy = path.with_file_name("copy.db");
    let refused = block_on(store.backup(&copy)).unwrap_err();
    assert!(matches!(&refused, BackupError::Damaged { problem, .. } if problem.contains("position 2")), "{refused}");
    assert!(!copy.exists());
}

#[test]
fn w08_a_file_whose_own_row_or_schema_is_damaged_is_not_opened() {
    let flips = [
        "UPDATE file SET secret = zeroblob(32)",
        "UPDATE file SET packed = 1",
        "UPDATE file SET clean = 1 - clean",
        "DELETE FROM file",
        "INSERT INTO file (openings, secret) VALUES (1, x'00')",
    ];
    for sql in flips {
        let (_directory, path) = temp_db();
        let store = SqliteStore::open(&path).unwrap();
        commit(&store, create(1)).unwrap();
        drop(store);
        damage(&path, sql);
        let refused = SqliteStore::open(&path).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{sql}: {refused}");
    }
    let (_directory, path) = temp_db();
    drop(SqliteStore::open(&path).unwrap());
    edit(&path).execute_batch("DROP TRIGGER runs_sum").unwrap();
    let refused = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(&refused, OpenError::Damaged { problem, .. } if problem.contains("schema")), "{refused}");
}

#[test]
fn w08_damage_is_reported_until_a_check_of_the_whole_file_finds_none() {
    let (_directory, path) = temp_db();
    let store = open_damaged(&path, LETTER);
    assert!(!store.check(|_, _| {}).unwrap().is_fine());
    assert_reports(&store, &[&run(1).to_string()]);
    damage(&path, "UPDATE log SET body = replace(body, 'said', 'paid') WHERE run = 1 AND seq = 1");
    assert_reports(&store, &[&run(1).to_string()]);
    assert!(store.check(|_, _| {}).unwrap().is_fine());
    assert_eq!((store.health(), length(&store, 1)), (Health::Fine, 2));
}
