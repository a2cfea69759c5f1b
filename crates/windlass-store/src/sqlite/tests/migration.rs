//! Files of every released version are opened, and hold what they held.

use rusqlite::Connection;
use windlass_core::store::{Access, ArtifactId, Filter};

use super::super::schema::VERSION;
use super::super::{OpenError, check_file};
use super::*;

#[test]
fn w08_a_file_of_version_1_goes_on() {
    let (_directory, path) = place();
    Connection::open(&path).unwrap().execute_batch(include_str!("v1.sql")).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), length(&store, 2), length(&store, 3)), (9, 5, 0));
    let times: Vec<i64> =
        block_on(store.journal(run(2), 1)).unwrap().iter().map(|record| record.at.as_micros()).collect();
    assert_eq!(times, [1, 2, 3, 4]);
    let before = block_on(store.feed("s".into(), 0, 99)).unwrap();
    let places: Vec<u64> = before.iter().map(|entry| entry.position).collect();
    assert_eq!(places, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17]);
    assert_eq!(block_on(store.list(Filter::Suspended, None, 9)).unwrap().len(), 1);

    let claimed = block_on(store.claim(run(2), claimant())).unwrap();
    assert_eq!((claimed.epoch, claimed.seq, claimed.mail.len()), (4, 5, 1));
    let guard = Guard::Owner { run: run(2), epoch: 4, expected_seq: 5 };
    commit(&store, Commit { guard, changes: vec![append(json!("new"))] }).unwrap();
    let entry = block_on(store.feed("s".into(), 17, 99)).unwrap().remove(0);
    assert_eq!((entry.position, entry.seq), (20, 5), "no position comes back");
    drop(store);

    let version: i32 =
        Connection::open(&path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, VERSION);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(length(&store, 2), 6);
    let nothing = ArtifactId::of(b"nothing");
    let artifact = block_on(store.artifacts().size(nothing, Access::Owner));
    assert_eq!(artifact, Err(StoreError::NoArtifact { artifact: nothing }), "it can have artifacts now");
}

#[test]
fn w09_a_finished_run_of_version_1_counts_from_its_creation() {
    let (_directory, path) = place();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(include_str!("v1.sql")).unwrap();
    let sql =
        "UPDATE runs SET phase = 4, state = '{\"state\":\"finished\",\"ending\":\"ok\"}', wake = NULL WHERE run = ?1";
    assert_eq!(connection.execute(sql, [run(1).as_bytes()]).unwrap(), 1);
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    let info = |n| block_on(store.info(run(n))).unwrap().unwrap();
    assert_eq!((info(1).ended, info(2).ended), (Some(info(1).created), None));
    while block_on(store.tidy(Timestamp::from_micros(i64::MAX))).unwrap().more {}
    assert_eq!(block_on(store.info(run(1))), Ok(None));
    assert_eq!(length(&store, 2), 5, "what is not finished stays");
}

#[test]
fn w08_a_file_of_version_2_lists_the_runs_of_a_tool() {
    let (_directory, path) = place();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(include_str!("v3.sql")).unwrap();
    // What version 3 added.
    connection.execute_batch("DROP INDEX runs_by_tool; PRAGMA user_version = 2;").unwrap();
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(block_on(store.list(Filter::Tool("u".into()), None, 9)).unwrap().len(), 1);
}

#[test]
fn w08_a_file_of_version_3_goes_on() {
    let (_directory, path) = place();
    Connection::open(&path).unwrap().execute_batch(include_str!("v3.sql")).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), length(&store, 4)), (2, 1));
    assert_eq!(block_on(store.keyed("k".into())).unwrap(), Some(run(4)));
    let claimed = block_on(store.claim(run(4), claimant())).unwrap();
    assert_eq!((claimed.epoch, claimed.seq, claimed.mail.len()), (4, 1, 1));
    commit(&store, create(5)).unwrap();
    drop(store);
    assert_eq!(number(&path, 5), 10, "the numbers of runs that are gone stay theirs");
}

/// A file of version 6 without runs, closed in good order, made older.
fn older(path: &std::path::Path, sql: &str) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(include_str!("v6.sql")).unwrap();
    let empty = "DELETE FROM runs; DELETE FROM log; DELETE FROM segments; DELETE FROM mail; DELETE FROM refs;
                 UPDATE file SET clean = 1, packed = 0, last = 0, runs = 0; DROP VIEW run; DROP VIEW journal;";
    connection.execute_batch(empty).unwrap();
    connection.execute_batch(sql).unwrap();
    connection
}

#[test]
fn w08_a_file_of_version_4_goes_on() {
    let (_directory, path) = place();
    // What version 5 added.
    drop(older(&path, "ALTER TABLE log DROP COLUMN note; PRAGMA user_version = 4;"));
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    assert_eq!(length(&store, 1), 1);
}

#[test]
fn w08_a_file_of_version_5_goes_on_with_the_run_that_had_no_row() {
    let (_directory, path) = place();
    // As version 5 called it, and left it when it was killed.
    let sql = "ALTER TABLE log RENAME COLUMN note TO birth; UPDATE file SET clean = 0; PRAGMA user_version = 5;
               INSERT INTO log (position, run, seq, count, previous, body)
               VALUES (1, 1, 0, 1, 0, '{\"path\":\"/\",\"at\":1,\"event\":{\"type\":\"entered\"}}');";
    let connection = older(&path, sql);
    let born = r#"{"run":"01010101-0101-0101-0101-010101010101","tool":"t","at":0,"epoch":1,"worker":0,"opening":1}"#;
    assert_eq!(connection.execute("UPDATE log SET birth = ?1", [born]).unwrap(), 1);
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), block_on(store.list(Filter::Running, None, 9)).unwrap().len()), (1, 1));
}

#[test]
fn w08_a_file_of_version_6_goes_on_and_what_comes_new_has_checksums() {
    let (_directory, path) = place();
    Connection::open(&path).unwrap().execute_batch(include_str!("v6.sql")).unwrap();
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine(), "as a backup of it is checked before it is restored");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!([1, 2, 3, 5].map(|n| length(&store, n)), [21, 2, 1, 1], "packed, finished, out of line, without a row");
    assert_eq!(block_on(store.keyed("k".into())), Ok(Some(run(2))));
    assert_eq!(block_on(store.keyed("young".into())), Ok(Some(run(5))));
    assert_eq!(block_on(store.feed("s".into(), 0, 99)).unwrap().len(), 21);
    let spent = Creation { tool: "t".into(), key: Some("spent".into()), ..Creation::default() };
    let again = commit(&store, owner(6, 0, vec![Change::Create(spent), append(json!(1))]));
    assert_eq!(again, Err(StoreError::KeySpent { run: run(4) }));
    let artifact = ArtifactId::of(b"an artifact");
    let read = store.artifacts().read(artifact, Access::Session("s".into()), 0, 99);
    assert_eq!(block_on(read).as_deref(), Ok(&b"an artifact"[..]));
    let claimed = block_on(store.claim(run(3), claimant())).unwrap();
    assert_eq!((claimed.epoch, claimed.seq, claimed.mail.len(), claimed.damaged), (2, 1, 1, None));
    let guard = Guard::Owner { run: run(3), epoch: 2, expected_seq: 1 };
    commit(&store, Commit { guard, changes: vec![append(json!("new"))] }).unwrap();
    drop(store);
    let report = check_file(&path, |_, _| {}).unwrap();
    assert!(report.is_fine(), "{report}");
    let count = |which: &str| packing::count(&path, which);
    assert_eq!((count("log WHERE sum IS NULL"), count("log WHERE sum IS NOT NULL")), (9, 1));
    assert_eq!((count("runs WHERE sum IS NULL"), count("runs WHERE sum IS NOT NULL")), (2, 2));
}

#[test]
fn w08_a_damaged_file_of_an_older_version_is_not_made_a_new_one() {
    let (_directory, path) = place();
    Connection::open(&path).unwrap().execute_batch(include_str!("v6.sql")).unwrap();
    // An index that is not there while a row changes.
    for sql in [
        "CREATE TABLE kept AS SELECT * FROM sqlite_schema WHERE name = 'runs_by_key';
         DELETE FROM sqlite_schema WHERE name = 'runs_by_key'",
        "UPDATE runs SET key = 'other' WHERE key = 'k'",
        "INSERT INTO sqlite_schema SELECT * FROM kept",
    ] {
        Connection::open(&path).unwrap().execute_batch(&format!("PRAGMA writable_schema = ON; {sql}")).unwrap();
    }
    let refused = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let version = |path| Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0));
    assert_eq!(version(&path), Ok(6));
}

/// What stands for the run in the file.
fn number(path: &std::path::Path, n: u8) -> i64 {
    let sql = "SELECT id FROM runs WHERE run = ?1";
    Connection::open(path).unwrap().query_row(sql, [run(n).as_bytes()], |row| row.get(0)).unwrap()
}

#[test]
fn w09_no_run_gets_the_number_of_one_that_is_gone() {
    let (_directory, path) = place();
    let store = SqliteStore::open(&path).unwrap();
    for n in 1..=2 {
        commit(&store, create(n)).unwrap();
        commit(&store, owner(n, 1, vec![finish()])).unwrap();
    }
    block_on(store.purge(run(2), Timestamp::default())).unwrap();
    assert_eq!(block_on(store.info(run(2))), Ok(None));
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(3)).unwrap();
    drop(store);
    assert_eq!((number(&path, 1), number(&path, 3)), (1, 3));
}
