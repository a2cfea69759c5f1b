//! Faults that keep the file from being written, their messages, and the recovery. This covers moved and deleted files
//! and blocking readers; failing disks are in the end-to-end tests.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use windlass_core::store::{Answer, Filter};

use super::super::Health;
use super::group::{group, writer};
use super::*;

fn add(seq: u64) -> Commit {
    owner(1, seq, vec![append(json!(seq))])
}

/// The error that a commit is refused with.
fn refused(path: &Path, why: &str) -> Result<(), StoreError> {
    Err(StoreError::Unavailable(format!("{} takes no commits: {why}", path.display())))
}

const GONE: &str = "it was deleted or moved away while it was open; move it back, and it goes on by itself; everything \
                    that was accepted is in the moved file";
const REPLACED: &str = "another file was put at its path while it was open; move the original back, and it goes on by \
                        itself, or restart this process to use the new file; nothing was written to the new file";
const BUSY: &str = "another program keeps reading or writing it; close that program, and it goes on by itself; nothing \
                    that was accepted is lost";
const LOG: &str = "its write-ahead log (the file that ends in -wal) was deleted while it was open; its content is \
                   copied into the file first, then it goes on by itself";

#[cfg(unix)]
#[test]
fn w08_a_moved_file_takes_no_commits_until_it_is_back() {
    let (directory, path) = temp_db();
    let aside = directory.path().join("aside.db");
    let mut writer = writer(&path);
    assert_eq!(group(&mut writer, vec![create(1), add(1)]), [Ok(()), Ok(())]);
    fs::rename(&path, &aside).unwrap();
    assert_eq!(group(&mut writer, vec![add(2), add(3)]), [refused(&path, GONE), refused(&path, GONE)]);
    writer.try_reopen();
    assert_eq!(group(&mut writer, vec![add(2)]), [refused(&path, GONE)]);
    assert!(!path.exists(), "no new file is created");
    // The moved file has every accepted commit, without its log.
    let copy = directory.path().join("copy.db");
    fs::copy(&aside, &copy).unwrap();
    assert_eq!(length(&SqliteStore::open(&copy).unwrap(), 1), 2);
    fs::rename(&aside, &path).unwrap();
    writer.try_reopen();
    assert_eq!(group(&mut writer, vec![add(2)]), [Ok(())]);
    drop(writer);
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 3);
}

#[cfg(unix)]
#[test]
fn w08_a_file_put_at_the_path_of_the_open_one_is_neither_written_nor_read() {
    let (directory, path) = temp_db();
    let (aside, other) = (directory.path().join("aside.db"), directory.path().join("other.db"));
    commit(&SqliteStore::open(&other).unwrap(), create(9)).unwrap();
    let before = fs::read(&other).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    fs::rename(&path, &aside).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(commit(&store, add(1)), refused(&path, REPLACED));
    let Answer::Ready(again) = store.commit(add(1)) else { panic!("it should be refused at once") };
    assert_eq!(again, refused(&path, REPLACED));
    let sentence = format!("{} takes no commits: {REPLACED}", path.display());
    assert_eq!(store.health(), Health::Unavailable(sentence));
    assert!(fs::read(&path).unwrap() == before, "it was written to");
    assert_eq!(fs::metadata(path.with_extension("db-wal")).unwrap().len(), 0, "no log of the other file");
    let read = block_on(store.info(run(9)));
    let Err(StoreError::Unavailable(why)) = read else { panic!("{read:?}") };
    assert_eq!(why, format!("reading {}: another file was put at its path while it was open", path.display()));
    drop(store);
    // Closing did not change it either, and the original is complete.
    assert!(fs::read(&path).unwrap() == before, "it was written to");
    assert_eq!(block_on(SqliteStore::open(&path).unwrap().list(Filter::default(), None, 9)).unwrap()[0].run, run(9));
    assert_eq!(length(&SqliteStore::open(&aside).unwrap(), 1), 1);
}

#[cfg(unix)]
#[test]
fn w08_deleting_the_wal_loses_nothing() {
    let (directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    assert_eq!(length(&store, 1), 1, "a reader keeps its connection");
    fs::remove_file(path.with_extension("db-wal")).unwrap();
    assert_eq!(commit(&store, add(1)), refused(&path, LOG));
    // Its content was copied at once.
    assert_eq!(commit(&store, add(1)), Ok(()));
    assert_eq!(length(&store, 1), 2);
    assert_eq!(store.health(), Health::Fine);
    let elsewhere = directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for name in ["app.db", "app.db-wal"] {
        fs::copy(directory.path().join(name), elsewhere.join(name)).unwrap();
    }
    assert_eq!(length(&SqliteStore::open(elsewhere.join("app.db")).unwrap(), 1), 2);
}

#[cfg(unix)]
#[test]
fn w08_a_store_recovers_by_itself_when_its_file_is_back() {
    let (directory, path) = temp_db();
    let aside = directory.path().join("aside.db");
    let store = SqliteStore::open(&path).unwrap();
    let list = || block_on(store.list(Filter::default(), None, 9)).map(|runs| runs.len());
    assert_eq!(list(), Ok(0), "the connection is kept");
    commit(&store, create(1)).unwrap();
    fs::rename(&path, &aside).unwrap();
    assert_eq!(commit(&store, add(1)), refused(&path, GONE));
    assert_eq!(list(), Ok(1));
    fs::rename(&aside, &path).unwrap();
    // Nothing is submitted: the writer checks by itself.
    while store.health() != Health::Fine {
        std::thread::yield_now();
    }
    assert_eq!(list(), Ok(1));
    assert_eq!(commit(&store, add(1)), Ok(()));
}

#[test]
fn w08_after_a_failure_nothing_is_accepted_before_the_wal_is_emptied() {
    let (_directory, path) = temp_db();
    let mut writer = writer(&path);
    assert_eq!(group(&mut writer, vec![create(1)]), [Ok(())]);
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("CREATE TRIGGER trap BEFORE INSERT ON log BEGIN SELECT raise(ABORT, 'no'); END").unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM runs").unwrap();
    let unknown = format!("writing {}: no", path.display());
    assert_eq!(group(&mut writer, vec![add(1)]), [Err(StoreError::Unknown(unknown))]);
    // The reader uses the log, which cannot restart before the read ends.
    assert_eq!(group(&mut writer, vec![add(1)]), [refused(&path, BUSY)]);
    writer.try_reopen();
    assert_eq!(group(&mut writer, vec![add(1)]), [refused(&path, BUSY)]);
    // While the reader is open, so that this commit does not restart the log.
    Connection::open(&path).unwrap().execute_batch("DROP TRIGGER trap").unwrap();
    reader.execute_batch("COMMIT").unwrap();
    let log = || fs::metadata(path.with_extension("db-wal")).unwrap().len();
    let before = log();
    writer.try_reopen();
    assert!(log() < before, "{} bytes of {before} are left", log());
    assert_eq!(group(&mut writer, vec![add(1)]), [Ok(())]);
    assert_eq!(reader.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0)).unwrap(), 2);
}
