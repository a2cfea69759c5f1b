//! Files of every older schema version are upgraded and keep their content.

use rusqlite::Connection;
use windlass_core::run::state::{Hold, RunInfo};
use windlass_core::store::{
    Access, ArtifactId, Artifacts, Author, Filter, NewMessage, SessionChange, SessionWrite, Sessions, SettingsChange,
};

use super::super::schema::VERSION;
use super::super::{OpenError, check_file};
use super::*;

#[test]
fn w08_a_file_of_version_1_is_upgraded() {
    let (_directory, path) = temp_db();
    Connection::open(&path).unwrap().execute_batch(include_str!("v1.sql")).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), length(&store, 2), length(&store, 3)), (9, 5, 0));
    let times: Vec<i64> =
        block_on(store.journal(run(2), 1)).unwrap().iter().map(|record| record.at.as_micros()).collect();
    assert_eq!(times, [1, 2, 3, 4]);
    let before = block_on(store.feed("s".into(), 0, 99)).unwrap();
    let positions: Vec<u64> = before.iter().map(|entry| entry.position).collect();
    assert_eq!(positions, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17]);
    assert_eq!(block_on(store.list(Filter::suspended(), None, 9)).unwrap().len(), 1);

    let claimed = block_on(store.claim(run(2), claimant())).unwrap();
    assert_eq!((claimed.epoch, claimed.seq, claimed.mail.len()), (4, 5, 1));
    let guard = Guard::Owner { run: run(2), epoch: 4, expected_seq: 5 };
    commit(&store, Commit { guard, changes: vec![append(json!("new"))] }).unwrap();
    let entry = block_on(store.feed("s".into(), 17, 99)).unwrap().remove(0);
    assert_eq!((entry.position, entry.seq), (20, 5), "no position is used twice");
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
fn w09_retention_of_a_finished_run_of_version_1_counts_from_its_creation() {
    let (_directory, path) = temp_db();
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
    assert_eq!(length(&store, 2), 5, "an unfinished run stays");
}

#[test]
fn w08_a_file_of_version_2_lists_the_runs_of_a_tool() {
    let (_directory, path) = temp_db();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(include_str!("v3.sql")).unwrap();
    // What version 3 added.
    connection.execute_batch("DROP INDEX runs_by_tool; PRAGMA user_version = 2;").unwrap();
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(block_on(store.list(Filter::tool("u"), None, 9)).unwrap().len(), 1);
}

#[test]
fn w08_a_file_of_version_3_is_upgraded() {
    let (_directory, path) = temp_db();
    Connection::open(&path).unwrap().execute_batch(include_str!("v3.sql")).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), length(&store, 4)), (2, 1));
    assert_eq!(block_on(store.keyed("k".into())).unwrap(), Some(run(4)));
    let claimed = block_on(store.claim(run(4), claimant())).unwrap();
    assert_eq!((claimed.epoch, claimed.seq, claimed.mail.len()), (4, 1, 1));
    commit(&store, create(5)).unwrap();
    drop(store);
    assert_eq!(number(&path, 5), 10, "the numbers of removed runs are not reused");
}

/// Writes a file of version 6 without runs, closed cleanly, and makes it older.
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
fn w08_a_file_of_version_4_is_upgraded() {
    let (_directory, path) = temp_db();
    // What version 5 added.
    drop(older(&path, "ALTER TABLE log DROP COLUMN note; PRAGMA user_version = 4;"));
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    assert_eq!(length(&store, 1), 1);
}

#[test]
fn w08_upgrading_a_file_of_version_5_writes_the_row_of_the_run_without_one() {
    let (_directory, path) = temp_db();
    // As a killed process of version 5 left it; the column had another name.
    let sql = "ALTER TABLE log RENAME COLUMN note TO birth; UPDATE file SET clean = 0; PRAGMA user_version = 5;
               INSERT INTO log (position, run, seq, count, previous, body)
               VALUES (1, 1, 0, 1, 0, '{\"path\":\"/\",\"at\":1,\"event\":{\"type\":\"entered\"}}');";
    let connection = older(&path, sql);
    let born = r#"{"run":"01010101-0101-0101-0101-010101010101","tool":"t","at":0,"epoch":1,"worker":0,"opening":1}"#;
    assert_eq!(connection.execute("UPDATE log SET birth = ?1", [born]).unwrap(), 1);
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((length(&store, 1), block_on(store.list(Filter::running(), None, 9)).unwrap().len()), (1, 1));
}

#[test]
fn w08_a_file_of_version_6_is_upgraded_and_new_rows_have_checksums() {
    let (_directory, path) = temp_db();
    Connection::open(&path).unwrap().execute_batch(include_str!("v6.sql")).unwrap();
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine(), "as when a backup is checked before it is restored");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(
        [1, 2, 3, 5].map(|n| length(&store, n)),
        [21, 2, 1, 1],
        "packed, finished, with a large value, without a row"
    );
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

/// Writes a file of version 7 whose process was killed: runs 1 and 2 have rows, the others only notes in the log.
fn version_7(path: &std::path::Path) -> Connection {
    let connection = edit(path);
    connection.execute_batch(include_str!("v7.sql")).unwrap();
    connection
}

#[test]
fn w08_e26_artifacts_of_version_7_keep_their_checksums_and_have_no_media_type() {
    let (_directory, path) = temp_db();
    let connection = version_7(&path);
    let insert = "INSERT INTO blobs (id, digest, size, sum) VALUES (?1, ?2, ?3, windlass_sum(?2, ?3, NULL));";
    let piece =
        "INSERT INTO pieces (blob, number, length, body, sum) VALUES (?1, 0, ?2, ?3, windlass_sum(?1, 0, ?2, ?3))";
    let claim = "INSERT INTO claims (blob, holder, until, sum) VALUES (?1, 'owner', 9, windlass_sum(?1, 'owner', 9))";
    for (id, content) in [(1, "sound"), (2, "damaged")] {
        let (digest, size) = (ArtifactId::of(content.as_bytes()), content.len() as i64);
        connection.execute(insert, rusqlite::params![id, digest.as_bytes(), size]).unwrap();
        connection.execute(piece, rusqlite::params![id, size, content.as_bytes()]).unwrap();
        connection.execute(claim, [id]).unwrap();
    }
    connection.execute_batch("DROP TRIGGER blobs_sum; UPDATE blobs SET size = 6 WHERE id = 2;").unwrap();
    connection.execute_batch(&format!("{};", trigger_of_version_7())).unwrap();
    drop(connection);
    let store = SqliteStore::open(&path).unwrap();
    let (sound, damaged) = (ArtifactId::of(b"sound"), ArtifactId::of(b"damaged"));
    assert_eq!(block_on(store.read(sound, Access::Owner, 0, 9)).unwrap(), b"sound");
    assert_eq!(block_on(store.media_type(sound, Access::Owner)).unwrap(), None);
    let refused = block_on(store.size(damaged, Access::Owner)).unwrap_err().to_string();
    assert!(refused.contains("damaged"), "{refused}");
}

/// The trigger as the file has it.
fn trigger_of_version_7() -> &'static str {
    include_str!("v7.sql").lines().find(|line| line.starts_with("CREATE TRIGGER blobs_sum")).unwrap()
}

/// Writes the same file in version 6.
fn version_6(path: &std::path::Path) -> Connection {
    let noted = path.with_file_name("v7.db");
    drop(version_7(&noted));
    let connection = older(path, "DELETE FROM sessions; UPDATE file SET clean = 0;");
    connection.execute("ATTACH ?1 AS later", [noted.to_str()]).unwrap();
    let copy = |table: &str, columns: &str| {
        let sql = format!("INSERT INTO {table} ({columns}) SELECT {columns} FROM later.{table};");
        connection.execute_batch(&sql).unwrap();
    };
    copy("sessions", "id, name");
    copy("log", "position, run, seq, count, previous, session, body, note");
    copy("mail", "run, position, dedupe, body");
    let columns = "id, run, tool, created, epoch, opening, worker, orderly, phase, state, key, session, tail, length";
    copy("runs", columns);
    connection
}

#[test]
fn w08_l12_l23_upgrading_an_older_file_writes_the_rows_of_runs_that_have_only_notes() {
    let ended = |micros| Some(Timestamp::from_micros(micros));
    let finished = |ending| RunState::Finished { ending };
    let expected = [
        (3, "t", RunState::Running, None, None, 2),
        (4, "u", finished(Ending::Failed), Some("s"), ended(14), 3),
        (5, "a \"b\"\n", finished(Ending::Ok), Some("new"), ended(16), 1),
        (6, "t", RunState::Running, Some("new"), None, 1),
        (7, "t", finished(Ending::Cancelled), None, ended(18), 1),
    ];
    let makers: [fn(&std::path::Path) -> Connection; 2] = [version_6, version_7];
    for (version, make) in (6..).zip(makers) {
        let (_directory, path) = temp_db();
        drop(make(&path));
        assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
        let store = SqliteStore::open(&path).unwrap();
        let runs = block_on(store.list(Filter::default(), None, 9)).unwrap();
        assert_eq!(runs.iter().map(|info| info.run).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7].map(run));
        for (info, (n, tool, state, session, ended, records)) in runs[2..].iter().zip(expected.clone()) {
            let created = Timestamp::from_micros(5);
            let RunInfo { run: id, epoch, generation, parent, .. } = info;
            assert_eq!((*id, *epoch, *generation, parent), (run(n), 1, 0, &None), "version {version}");
            assert_eq!((&*info.tool, info.created, &info.state), (tool, created, &state), "version {version}, run {n}");
            assert_eq!((info.session.as_deref(), info.ended), (session, ended), "version {version}, run {n}");
            assert_eq!(length(&store, n), records, "version {version}, run {n}");
        }
        for (key, n) in [("row", 2), ("ended", 4), ("ü\\", 6), ("all", 7)] {
            assert_eq!(block_on(store.keyed(key.into())), Ok(Some(run(n))), "version {version}");
            let creation = Creation { key: Some(key.into()), ..Creation::default() };
            let again = commit(&store, owner(9, 0, vec![Change::Create(creation)]));
            assert_eq!(again, Err(StoreError::KeyTaken { run: run(n) }), "version {version}");
        }
        let feed = |session: &str| block_on(store.feed(session.into(), 0, 99)).unwrap().len();
        assert_eq!((feed("s"), feed("new")), (4, 2), "version {version}");
        let claimed = block_on(store.claim(run(3), claimant())).unwrap();
        assert_eq!((claimed.seq, claimed.orderly, claimed.owners_dead), (2, false, true), "version {version}");
        assert_eq!(claimed.last, WorkerId::from_number(u64::MAX), "version {version}");
        commit(&store, create(8)).unwrap();
        drop(store);
        assert_eq!((number(&path, 3), number(&path, 7), number(&path, 8)), (3, 7, 8), "version {version}");
        let report = check_file(&path, |_, _| {}).unwrap();
        assert!(report.is_fine() && report.runs == 8, "{report}");
    }
}

#[test]
fn w08_l28_a_file_of_version_9_is_upgraded_and_its_runs_name_no_principal() {
    let (_directory, path) = temp_db();
    edit(&path).execute_batch(include_str!("v9.sql")).unwrap();
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine(), "as when a backup is checked before it is restored");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!([1, 2].map(|n| length(&store, n)), [2, 1]);
    let info = |n| block_on(store.info(run(n))).unwrap().unwrap();
    let (first, second) = (info(1), info(2));
    assert_eq!((first.key.as_deref(), first.session.as_deref(), first.deaths), (Some("k"), Some("s"), 1));
    assert_eq!((first.principal, first.cause, second.state), (None, None, RunState::Finished { ending: Ending::Ok }));
    let acting = Creation { principal: Some("ada".into()), cause: Some("turn 1".into()), ..Creation::default() };
    commit(&store, owner(3, 0, vec![Change::Create(acting), append(json!(1))])).unwrap();
    commit(&store, owner(3, 1, vec![finish()])).unwrap();
    assert_eq!(block_on(store.list(Filter::principal("ada"), None, 9)).unwrap().len(), 1);
    drop(store);
    let report = check_file(&path, |_, _| {}).unwrap();
    assert!(report.is_fine() && report.runs == 3, "{report}");
    edit(&path).execute_batch("DROP TRIGGER runs_sum; UPDATE runs SET principal = 'bob' WHERE id = 3").unwrap();
    assert!(!check_file(&path, |_, _| {}).unwrap().is_fine(), "the checksum covers the principal");
}

/// What version 11 added.
const WITHOUT_SESSIONS: &str = "DROP TRIGGER sessions_sum;
    DROP INDEX sessions_by_age; DROP INDEX sessions_closed; DROP INDEX runs_unfinished;
    DROP TABLE messages; DROP TABLE session_data; DROP TABLE verdicts;
    DROP VIEW run; DROP VIEW journal;
    ALTER TABLE sessions DROP COLUMN title; ALTER TABLE sessions DROP COLUMN owner;
    ALTER TABLE sessions DROP COLUMN created; ALTER TABLE sessions DROP COLUMN closed;
    ALTER TABLE sessions DROP COLUMN reason; ALTER TABLE sessions DROP COLUMN messages;
    ALTER TABLE sessions DROP COLUMN kept; ALTER TABLE sessions DROP COLUMN sum;
    ALTER TABLE sessions DROP COLUMN settings; ALTER TABLE sessions DROP COLUMN tools;
    PRAGMA user_version = 10;";

/// Drops the tables that version 11 did not have.
fn drop_later_tables(connection: &Connection) {
    let of_version_11 = Connection::open_in_memory().unwrap();
    of_version_11.execute_batch(include_str!("v11.sql")).unwrap();
    let tables = |connection: &Connection| {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<Vec<String>, _>>().unwrap()
    };
    let known = tables(&of_version_11);
    for table in tables(connection).iter().filter(|table| !known.contains(table)) {
        connection.execute_batch(&format!("DROP TABLE {table}")).unwrap();
    }
}

#[test]
fn w08_l20_the_sessions_of_a_file_of_version_10_are_open_and_can_be_written_to() {
    let (_directory, path) = temp_db();
    let in_session = |at| {
        let (session, at) = (Some("s".into()), windlass_core::time::Timestamp::from_micros(at));
        Change::Create(Creation { session, at, ..Creation::default() })
    };
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, owner(1, 0, vec![in_session(7), append(json!(1))])).unwrap();
    commit(&store, owner(2, 0, vec![in_session(5), append(json!(1)), finish()])).unwrap();
    drop(store);
    let older = edit(&path);
    drop_later_tables(&older);
    older.execute_batch(WITHOUT_SESSIONS).unwrap();
    let shape = super::super::checksum::schema_checksum(&older).unwrap();
    older.execute("UPDATE file SET shape = ?1", [shape]).unwrap();
    drop(older);
    let store = SqliteStore::open(&path).unwrap();
    let session = || block_on(store.session("s".into())).unwrap().unwrap();
    assert_eq!((session().created.as_micros(), session().closed, session().messages), (5, None, 0));
    let write = |change| {
        let at = windlass_core::time::Timestamp::from_micros(9);
        block_on(store.write_session(SessionWrite::outside("s".into(), at, change))).unwrap()
    };
    write(SessionChange::Post(NewMessage::text(Author::User, "hello"))).unwrap();
    write(SessionChange::Close { reason: "over".into() }).unwrap();
    let refused = commit(&store, owner(3, 0, vec![in_session(9), append(json!(1))]));
    assert_eq!(refused, Err(StoreError::SessionClosed { session: "s".into() }));
    commit(&store, owner(1, 1, vec![append(json!(2)), finish()])).unwrap();
    drop(store);
    let report = check_file(&path, |_, _| {}).unwrap();
    assert!(report.is_fine() && report.runs == 2, "{report}");
    edit(&path).execute_batch("DROP TRIGGER sessions_sum; UPDATE sessions SET closed = NULL").unwrap();
    assert!(!check_file(&path, |_, _| {}).unwrap().is_fine(), "the checksum covers whether it is closed");
}

#[test]
fn w08_l20_a_file_of_version_11_is_upgraded_and_keeps_its_sessions() {
    let (_directory, path) = temp_db();
    edit(&path).execute_batch(include_str!("v11.sql")).unwrap();
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine(), "as when a backup is checked before it is restored");
    let store = SqliteStore::open(&path).unwrap();
    let session = |name: &str| block_on(store.session(name.into())).unwrap().unwrap();
    assert_eq!((session("ada").title.as_deref(), session("ada").messages), (Some("Trip to Rome"), 2));
    assert!(session("old").closed.is_some());
    let messages = block_on(store.session_messages("ada".into(), 0, 9)).unwrap();
    assert_eq!(messages.iter().map(|message| message.text()).collect::<Vec<_>>(), ["hello", "ho"]);
    let write = |change| {
        let write = SessionWrite::outside("ada".into(), Timestamp::from_micros(9), change);
        block_on(store.write_session(write)).unwrap().unwrap()
    };
    write(SessionChange::Title(Some("Trip to Pisa".into())));
    write(SessionChange::Settings(SettingsChange::default().agent("agent")));
    let woken = write(SessionChange::Post(NewMessage::text(Author::User, "up").wake()));
    assert!(woken.started().is_some());
    drop(store);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    edit(&path).execute_batch("DROP TRIGGER sessions_sum; UPDATE sessions SET settings = '{}'").unwrap();
    assert!(!check_file(&path, |_, _| {}).unwrap().is_fine(), "the checksum covers the settings");
}

#[test]
fn w08_a_run_with_a_damaged_note_is_held_and_the_others_work() {
    let (_directory, path) = temp_db();
    let damage = r#"UPDATE log SET body = replace(body, 'goes on', 'gone on') WHERE position = 4;
                    UPDATE log SET note = replace(note, '"t","all"', '"t","row"') WHERE position = 11;"#;
    version_7(&path).execute_batch(damage).unwrap();
    // Another record, so that the last record belongs to a run.
    let last = "INSERT INTO log (position, run, seq, count, previous, body) SELECT 12, run, 2, 1, 2, body FROM log
                WHERE position = 2";
    edit(&path).execute(last, []).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let runs = block_on(store.list(Filter::default(), None, 9)).unwrap();
    assert_eq!(runs.iter().map(|info| info.run).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6].map(run));
    assert!(matches!(runs[2].state, RunState::Held { hold: Hold::Damaged { .. } }), "{:?}", runs[2].state);
    assert_eq!(block_on(store.keyed("row".into())), Ok(Some(run(2))), "not the key of another run");
    assert_eq!([1, 2, 4, 5, 6].map(|n| length(&store, n)), [3, 1, 3, 1, 1]);
}

#[test]
fn w08_a_damaged_file_of_an_older_version_is_not_upgraded() {
    let (_directory, path) = temp_db();
    Connection::open(&path).unwrap().execute_batch(include_str!("v6.sql")).unwrap();
    // The index does not exist while a row changes.
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
    let version = |path: &std::path::Path| {
        Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0))
    };
    assert_eq!(version(&path), Ok(6));
    for damage in ["DROP INDEX runs_by_tool", "DROP TRIGGER file_sum; UPDATE file SET secret = randomblob(32)"] {
        let (_directory, path) = temp_db();
        version_7(&path).execute_batch(damage).unwrap();
        let refused = SqliteStore::open(&path).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{damage}: {refused}");
        assert_eq!(version(&path), Ok(7), "{damage}");
    }
}

/// The number of the run in the file.
fn number(path: &std::path::Path, n: u8) -> i64 {
    let sql = "SELECT id FROM runs WHERE run = ?1";
    Connection::open(path).unwrap().query_row(sql, [run(n).as_bytes()], |row| row.get(0)).unwrap()
}

#[test]
fn w09_the_number_of_a_removed_run_is_not_reused() {
    let (_directory, path) = temp_db();
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
