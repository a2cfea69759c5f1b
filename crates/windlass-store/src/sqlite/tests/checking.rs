//! Background checks of files.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, thread};

use rusqlite::Connection;

use super::super::check::{BackgroundRead, CheckState};
use super::super::db_file::DbFile;
use super::super::{Health, check};
use super::*;

const ADVICE: &str = "keep a copy of it with its -wal file, and restore it from a backup";

/// Writes a file with two runs that was not closed cleanly, and applies this damage.
fn unclean(path: &Path, damage: &str) {
    let store = SqliteStore::open(path).unwrap();
    commit(&store, create(1)).unwrap();
    commit(&store, create(2)).unwrap();
    drop(store);
    let connection = edit(path);
    connection.execute_batch("UPDATE file SET clean = 0").unwrap();
    connection.execute_batch(damage).unwrap();
}

fn is_clean(path: &Path) -> bool {
    Connection::open(path).unwrap().query_row("SELECT clean FROM file", [], |row| row.get(0)).unwrap()
}

fn checked(store: &SqliteStore) -> Health {
    while store.health() == Health::Checking {
        thread::yield_now();
    }
    store.health()
}

#[test]
fn w08_a_file_is_marked_clean_when_it_is_closed_and_only_then() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.health(), Health::Fine);
    commit(&store, create(1)).unwrap();
    assert!(!is_clean(&path));
    drop(store);
    assert!(is_clean(&path));
    assert_eq!(SqliteStore::open(&path).unwrap().health(), Health::Fine, "a clean file is not checked first");
}

#[test]
fn w08_a_file_that_was_not_closed_cleanly_is_checked_while_it_is_used() {
    let (_directory, path) = temp_db();
    unclean(&path, "");
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, owner(1, 1, vec![append(json!("at once"))])).unwrap();
    assert_eq!(checked(&store), Health::Fine);
    drop(store);
    assert!(is_clean(&path));
}

#[test]
fn w08_damage_is_found_in_the_background_and_reported_until_it_is_repaired() {
    let (_directory, path) = temp_db();
    unclean(&path, "DELETE FROM runs WHERE id = 1");
    let broken = Health::Broken(format!("{} is damaged (a record belongs to no run); {ADVICE}", path.display()));
    for seq in 1..=2 {
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(checked(&store), broken);
        // The rest of the file is usable.
        commit(&store, owner(2, seq, vec![append(json!("goes on"))])).unwrap();
        drop(store);
        assert!(!is_clean(&path), "a damaged file is not marked clean");
    }
}

#[test]
fn w08_a_row_missing_from_an_index_is_found_in_the_background() {
    let (_directory, path) = temp_db();
    unclean(&path, "CREATE TABLE kept AS SELECT * FROM sqlite_schema WHERE name = 'log_by_session'");
    // The index does not exist while the row is written.
    let schema = |sql: &str| {
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch(&format!("PRAGMA writable_schema = ON; {sql}")).unwrap();
    };
    schema("DELETE FROM sqlite_schema WHERE name = 'log_by_session'");
    schema("INSERT INTO log (position, run, seq, count, previous, session, body) VALUES (3, 2, 1, 1, 2, 1, '{}')");
    schema("INSERT INTO sqlite_schema SELECT * FROM kept");
    let store = SqliteStore::open(&path).unwrap();
    let problem = "log: row 3 missing from index log_by_session";
    assert_eq!(checked(&store), Health::Broken(format!("{} is damaged ({problem}); {ADVICE}", path.display())));
}

#[test]
fn w08_damage_in_a_cleanly_closed_file_is_found_in_the_background() {
    let (_directory, path) = temp_db();
    unclean(&path, "DELETE FROM runs WHERE id = 1; UPDATE file SET clean = 1");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.health(), Health::Fine, "until it is checked");
    while store.health() == Health::Fine {
        thread::yield_now();
    }
    let broken = format!("{} is damaged (a record belongs to no run); {ADVICE}", path.display());
    assert_eq!(store.health(), Health::Broken(broken));
    drop(store);
    assert!(!is_clean(&path), "a damaged file is not marked clean");
}

#[test]
fn w08_an_interrupted_check_starts_again_after_a_pause() {
    let (_directory, path) = temp_db();
    fs::write(&path, "").unwrap();
    let state = CheckState::new(Health::Checking, Arc::default());
    let reading = BackgroundRead::new(&DbFile::of(path, &Options::default()), &state);
    let interrupted = || rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(9), None);
    let tries = AtomicU32::new(0);
    state.pause(true);
    thread::scope(|scope| {
        let work = || match tries.fetch_add(1, Ordering::SeqCst) {
            0 => Err(interrupted()),
            _ => Ok("done"),
        };
        let check = scope.spawn({
            let reading = &reading;
            move || reading.retry_interrupted(work)
        });
        while tries.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        state.pause(false);
        assert_eq!(check.join().unwrap().unwrap(), "done");
    });
    assert_eq!(tries.into_inner(), 2);
}

#[test]
fn w08_a_stopped_check_has_no_result_and_is_repeated_at_the_next_opening() {
    let (_directory, path) = temp_db();
    unclean(&path, "");
    let connection = Connection::open(&path).unwrap();
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
                INSERT INTO log (position, run, seq, count, previous, body) SELECT i + 2, 2, i, 1, i + 1, '{}' FROM n";
    connection.execute_batch(many).unwrap();
    drop(connection);
    let opened = super::super::open::open(&path, &Options::default()).unwrap();
    let state = CheckState::new(Health::Checking, Arc::default());
    state.stop();
    check::run_check(&opened.db_file, &state);
    assert!(!state.is_fine(), "it was stopped before it had a result");
    drop(opened);
    assert!(fs::exists(&path).unwrap() && !is_clean(&path), "the next opening checks it");
}
