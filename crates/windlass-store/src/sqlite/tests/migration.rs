//! Files of every released version are opened, and hold what they held.

use rusqlite::Connection;
use windlass_core::store::{Access, ArtifactId, Filter};

use super::super::schema::VERSION;
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

#[test]
fn w08_a_file_of_version_4_goes_on() {
    let (_directory, path) = place();
    drop(SqliteStore::open(&path).unwrap());
    let connection = Connection::open(&path).unwrap();
    // What version 5 added.
    connection
        .execute_batch("DROP VIEW run; DROP VIEW journal; ALTER TABLE log DROP COLUMN note; PRAGMA user_version = 4;")
        .unwrap();
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    assert_eq!(length(&store, 1), 1);
}

#[test]
fn w08_a_file_of_version_5_goes_on_with_the_run_that_had_no_row() {
    let (_directory, path) = place();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    drop(store);
    let connection = Connection::open(&path).unwrap();
    // As version 5 called it, and left it when it was killed.
    let older = "DROP VIEW run; DROP VIEW journal; ALTER TABLE log RENAME COLUMN note TO birth;
                 DELETE FROM runs; UPDATE file SET clean = 0; PRAGMA user_version = 5;";
    connection.execute_batch(older).unwrap();
    let born = r#"{"run":"01010101-0101-0101-0101-010101010101","tool":"t","at":0,"epoch":1,"worker":0,"opening":1}"#;
    assert_eq!(connection.execute("UPDATE log SET birth = ?1", [born]).unwrap(), 1);
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), block_on(store.list(Filter::Running, None, 9)).unwrap().len()), (1, 1));
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
