//! Tests of blobs in SQLite. What every store must do with artifacts is in the store suite.

use rusqlite::Connection;
use windlass_core::store::{Access, Artifacts, StoreError, Stored};
use windlass_core::testing::block_on;

use super::super::SqliteStore;
use super::super::schema;
use super::super::schema::tests::{is_indexed, plan};
use super::super::write_tx::JobError;
use super::payload::{Payload, put, read};
use super::piece::Piece;
use super::purge::unreference_run;
use super::*;

const OPENING: i64 = 2;

fn file() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::add_functions(&connection).unwrap();
    schema::create(&mut connection).unwrap();
    connection
}

fn count(connection: &Connection, table: &str) -> i64 {
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn piece(connection: &Connection, opening: i64, blob: Option<i64>, number: i64) -> Result<i64, JobError> {
    let piece = Piece::new(vec![b'x'; limits::ARTIFACT_PIECE]);
    match work(connection, opening, &BlobJob::Piece { blob, number, piece })? {
        BlobOutcome::Written(blob) => Ok(blob),
        BlobOutcome::Swept(_) => panic!("not written"),
    }
}

#[test]
fn l16_a_payload_is_kept_once_and_as_long_as_a_run_refers_to_it() {
    let connection = file();
    let bytes = vec![b'a'; 3 * limits::ARTIFACT_PIECE + 1];
    let packed = Payload::new(&bytes);
    let blob = put(&connection, &packed).unwrap();
    reference(&connection, 1, blob, None).unwrap();
    assert_eq!(put(&connection, &Payload::new(&bytes)).unwrap(), blob, "the same content is the same blob");
    reference(&connection, 2, blob, None).unwrap();
    assert_eq!(read(&connection, &packed.id()).unwrap().as_deref(), Some(bytes.as_slice()));
    assert_eq!((count(&connection, "blobs"), count(&connection, "pieces")), (1, 4));
    unreference_run(&connection, 1, at(0)).unwrap();
    assert_eq!(sweep(&connection, at(i64::MAX), OPENING, 9).unwrap(), Swept::default(), "the other run has it");
    unreference_run(&connection, 2, at(100)).unwrap();
    assert_eq!(read(&connection, &packed.id()).unwrap(), None, "a payload without references is gone at once");
    let swept = sweep(&connection, at(0), OPENING, 9).unwrap();
    assert_eq!(swept, Swept { collected: 1, more: false });
    assert_eq!((count(&connection, "blobs"), count(&connection, "pieces"), count(&connection, "refs")), (0, 0, 0));
}

#[test]
fn l16_payloads_cannot_be_read_as_artifacts() {
    let connection = file();
    connection
        .execute_batch(
            "INSERT INTO sessions (id, name) VALUES (1, 's');
             INSERT INTO runs (id, run, tool, created, epoch, opening, worker, orderly, phase, state, session)
             VALUES (7, zeroblob(16), 't', 0, 1, 1, 1, 0, 1, '{}', 1)",
        )
        .unwrap();
    let blob = put(&connection, &Payload::new(b"a value")).unwrap();
    reference(&connection, 7, blob, None).unwrap();
    let (session, run) = (Access::Session("s".into()), Access::Run(windlass_core::RunId::from_bytes([0; 16])));
    for by in [&session, &run] {
        assert!(!access::may_read(&connection, blob, by, None).unwrap(), "{by:?}");
    }
    reference(&connection, 7, blob, Some("session:s")).unwrap();
    reference(&connection, 7, blob, None).unwrap();
    for by in [&session, &run] {
        assert!(access::may_read(&connection, blob, by, None).unwrap(), "the same bytes as an artifact: {by:?}");
    }
    assert_eq!(count(&connection, "refs"), 1);
}

#[test]
fn l16_an_artifact_of_a_purged_run_stays_for_a_grace_period() {
    let connection = file();
    let (one, both) =
        (put(&connection, &Payload::new(b"one")).unwrap(), put(&connection, &Payload::new(b"both")).unwrap());
    for (run, blob) in [(1, one), (1, both), (2, both)] {
        reference(&connection, run, blob, Some("session:s")).unwrap();
    }
    unreference_run(&connection, 1, at(100)).unwrap();
    assert_eq!(count(&connection, "claims"), 1, "only for content without other references");
    assert_eq!(sweep(&connection, at(99), OPENING, 9).unwrap().collected, 0);
    assert_eq!(sweep(&connection, at(100), OPENING, 9).unwrap().collected, 1);
    assert_eq!(find(&connection, &Payload::new(b"one").id()).unwrap(), None);
    assert_eq!(find(&connection, &Payload::new(b"both").id()).unwrap(), Some(both));
}

#[test]
fn l16_orphans_of_a_dead_process_are_deleted_in_slices() {
    let connection = file();
    let old = piece(&connection, OPENING - 1, None, 0).unwrap();
    for number in 1..5 {
        piece(&connection, OPENING - 1, Some(old), number).unwrap();
    }
    let own = piece(&connection, OPENING, None, 0).unwrap();
    let mut slices = 0;
    loop {
        let swept = delete_orphans(&connection, OPENING, 2).unwrap();
        slices += 1;
        if !swept.more {
            assert_eq!(swept.collected, 1);
            break;
        }
    }
    assert_eq!(slices, 3);
    assert_eq!((count(&connection, "blobs"), count(&connection, "pieces")), (1, 1), "uploads of this process are kept");
    let late = piece(&connection, OPENING - 1, Some(old), 5);
    assert!(matches!(late, Err(JobError::Refused(StoreError::Invalid(_)))), "{late:?}");
    piece(&connection, OPENING, Some(own), 1).unwrap();
}

#[test]
fn l16_the_second_upload_of_the_same_content_takes_no_space() {
    let connection = file();
    let stored = Stored { id: ArtifactId::of(b"same"), size: 4 };
    let ended = |until| {
        let blob = Some(piece(&connection, OPENING, None, 0).unwrap());
        let by = Access::Session("s".into());
        work(
            &connection,
            OPENING,
            &BlobJob::Finish { blob, stored, media_type: "text/csv".into(), by, until: at(until) },
        )
        .unwrap();
    };
    ended(100);
    ended(50);
    assert_eq!(sweep(&connection, at(60), OPENING, 9).unwrap(), Swept { collected: 1, more: false });
    assert_eq!((count(&connection, "blobs"), count(&connection, "pieces"), count(&connection, "claims")), (1, 1, 1));
    assert_eq!(sweep(&connection, at(100), OPENING, 9).unwrap().collected, 1, "the later claim counts");
}

#[test]
fn l16_the_next_opening_deletes_incomplete_uploads_and_keeps_finished_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let store = SqliteStore::open(&path).unwrap();
    let begun = || block_on(store.begin(Access::Session("s".into()), at(100))).unwrap();
    let (half, whole) = (begun(), begun());
    for upload in [half, whole] {
        block_on(store.append(upload, b"some bytes".to_vec())).unwrap();
    }
    let stored = block_on(store.finish(whole, "text/csv".into())).unwrap();
    drop(store);
    let left = || count(&Connection::open(&path).unwrap(), "pieces");
    assert_eq!(left(), 2);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(block_on(store.size(stored.id, Access::Session("s".into()))), Ok(10));
    assert!(block_on(store.append(half, b"x".to_vec())).is_err(), "uploads end with their opening");
    drop(store);
    assert_eq!(left(), 1);
}

#[test]
fn every_query_about_blobs_uses_an_index() {
    let queries = [
        FIND,
        PIECES,
        ORPHAN,
        EXPIRED_CLAIMS,
        FIND_ORPHAN,
        DELETE_PIECES,
        access::ANCESTRY,
        access::SHOWN,
        files::HAS_FILE,
        access::OWN_REFERENCE,
        access::CHILD_REFERENCE,
    ];
    for sql in queries {
        let plan = plan(sql).replace("SCAN CONSTANT ROW", "");
        assert!(is_indexed(&plan), "{sql}: {plan}");
    }
}
