//! Backups, restoring them, and checking a whole file.

use std::sync::atomic::AtomicBool;

use windlass_core::store::Filter;

use super::super::{BackupError, check_file};
use super::*;

fn relaxed() -> Options {
    Options::from(Durability::Relaxed)
}

#[test]
fn w09_a_backup_taken_under_load_is_consistent() {
    let (_directory, path) = temp_db();
    let store = Arc::new(SqliteStore::open_with(&path, packing::often()).unwrap());
    for n in 1..=4 {
        commit(&store, create(n)).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (writing, over) = (store.clone(), stop.clone());
    let writer = std::thread::spawn(move || {
        let mut seq = 1;
        while !over.load(Ordering::Acquire) {
            let answers: Vec<_> =
                (1..=4).map(|n| writing.commit(owner(n, seq, vec![append(json!([n, seq]))]))).collect();
            answers.into_iter().for_each(|answer| block_on(answer.get()).unwrap());
            seq += 1;
        }
        seq
    });
    let copies: Vec<PathBuf> = (0..3).map(|n| path.with_file_name(format!("backup-{n}.db"))).collect();
    for copy in &copies {
        let before = length(&store, 1);
        block_on(store.backup(copy)).unwrap();
        let report = check_file(copy, |_, _| {}).unwrap();
        // The other runs may have been one commit behind the first when its length was read.
        assert!(report.is_fine() && report.runs == 4 && report.records + 3 >= 4 * before as u64, "{report}");
    }
    stop.store(true, Ordering::Release);
    let written = writer.join().unwrap();
    assert_eq!(length(&store, 1) as u64, written);
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().file_name());
    let partial = files.filter(|name| name.to_string_lossy().contains("partial")).count();
    assert_eq!(partial, 0);
    let restored = SqliteStore::open_with(&copies[2], relaxed()).unwrap();
    let lengths: Vec<usize> = (1..=4).map(|n| length(&restored, n)).collect();
    // Commits of one run are sequential; those of the four runs are concurrent.
    assert!(lengths.iter().all(|length| lengths[0].abs_diff(*length) <= 1), "{lengths:?}");
}

#[test]
fn w09_a_backup_overwrites_nothing_and_its_errors_name_the_problem() {
    let (directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    let existing = directory.path().join("existing.db");
    std::fs::write(&existing, "precious").unwrap();
    let error = block_on(store.backup(&existing)).unwrap_err();
    assert!(matches!(error, BackupError::Exists { .. }) && error.to_string().contains("overwrites nothing"), "{error}");
    assert_eq!(std::fs::read(&existing).unwrap(), b"precious");
    let nowhere = directory.path().join("no/such/place.db");
    let error = block_on(store.backup(&nowhere)).unwrap_err().to_string();
    assert!(error.starts_with("cannot back up to ") && error.contains("place.db: "), "{error}");
}

#[test]
fn w09_opening_a_backup_voids_its_reply_keys_and_sends_every_unfinished_run_a_message() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    for n in 1..=4 {
        commit(&store, create(n)).unwrap();
    }
    commit(&store, cancel(2)).unwrap();
    commit(&store, owner(3, 1, vec![Change::State(RunState::Suspended { wake: None })])).unwrap();
    commit(&store, owner(4, 1, vec![finish()])).unwrap();
    let copy = path.with_file_name("backup.db");
    block_on(store.backup(&copy)).unwrap();
    let secret = store.secret();
    assert_eq!(block_on(store.mail(run(1), 0)).unwrap().len(), 0, "the original is unchanged");
    drop(store);
    assert_eq!(SqliteStore::open_with(&path, relaxed()).unwrap().secret(), secret);

    let restored = SqliteStore::open_with(&copy, relaxed()).unwrap();
    let new = restored.secret();
    assert_ne!(new, secret);
    for (n, expected) in [(1, vec![1]), (2, vec![1, 2]), (3, vec![1]), (4, vec![])] {
        let mail = block_on(restored.mail(run(n), 0)).unwrap();
        assert_eq!(mail.iter().map(|mail| mail.position).collect::<Vec<_>>(), expected, "run {n}");
        assert!(mail.last().is_none_or(|mail| matches!(mail.message, Message::Restored)), "run {n}");
    }
    restored.use_clock(still(Timestamp::from_micros(i64::MAX)));
    let due = block_on(restored.due(9)).unwrap();
    assert!(due.runs.is_empty(), "no run is woken: {due:?}");
    assert_eq!(block_on(restored.list(Filter::suspended(), None, 9)).unwrap().len(), 1);
    drop(restored);
    let again = SqliteStore::open_with(&copy, relaxed()).unwrap();
    assert_eq!(again.secret(), new, "restored once");
    assert_eq!(block_on(again.mail(run(1), 0)).unwrap().len(), 1);
}

/// Writes and closes a file with a bit of everything.
fn write_sample(path: &PathBuf) {
    let store = SqliteStore::open_with(path, packing::often()).unwrap();
    packing::fill(&store);
    commit(&store, create(7)).unwrap();
    commit(&store, owner(7, 1, vec![append(json!("large ".repeat(10_000)))])).unwrap();
    commit(&store, owner(7, 2, vec![append(json!(2)), finish()])).unwrap();
    commit(&store, create(8)).unwrap();
    commit(&store, cancel(8)).unwrap();
    commit(&store, cancel(8)).unwrap();
    commit(&store, owner(8, 1, vec![Change::Examined(2), Change::Consumed(vec![1])])).unwrap();
    commit(&store, create(9)).unwrap();
    commit(&store, owner(9, 1, vec![finish()])).unwrap();
    block_on(store.purge(run(9), Timestamp::default())).unwrap();
    for n in 1..=3 {
        let seq = length(&store, n) as u64;
        commit(&store, owner(n, seq, vec![finish()])).unwrap();
    }
    drop(store);
    // As after the next packing, which would pack nothing: all tails are in the rows of the runs.
    let sql = "UPDATE file SET packed = (SELECT max(position) FROM log)";
    edit(path).execute(sql, []).unwrap();
}

#[test]
fn w09_a_check_finds_no_problem_in_an_intact_file_and_reports_progress() {
    let (_directory, path) = temp_db();
    write_sample(&path);
    let mut progress = Vec::new();
    let report = check_file(&path, |done, all| progress.push((done, all))).unwrap();
    assert!(report.is_fine(), "{report}");
    assert_eq!((report.runs, *progress.last().unwrap()), (5, (5, 5)));
    assert!(report.to_string().ends_with("nothing is wrong"), "{report}");
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    let open = check_file(&path, |_, _| {}).unwrap();
    assert_eq!(open.records, report.records, "also while it is in use");
    drop(store);
    let stranger = path.with_file_name("stranger.db");
    std::fs::write(&stranger, "not a database at all, and long enough to have had a header").unwrap();
    let error = check_file(&stranger, |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("is not a Windlass database"), "{error}");
}

#[test]
fn w09_a_check_names_the_damage() {
    let (_directory, path) = temp_db();
    write_sample(&path);
    let of = |n: u8| format!("(SELECT id FROM runs WHERE run = x'{}')", format!("{n:02x}").repeat(16));
    // (damage, text in the report)
    let table = [
        (format!("DELETE FROM log WHERE run = {} AND seq = 1", of(7)), "is missing"),
        (format!("UPDATE runs SET length = 9 WHERE id = {}", of(7)), "should end at record 9"),
        (
            format!("UPDATE log SET sum = NULL, body = '{{}}' WHERE run = {} AND seq = 1", of(7)),
            "record 1 cannot be read",
        ),
        (
            format!("UPDATE log SET sum = NULL, count = 3 WHERE run = {} AND seq = 0", of(7)),
            "should have 3 records, but has 1",
        ),
        (format!("UPDATE log SET sum = NULL, run = 99 WHERE run = {} AND seq = 1", of(7)), "is another run's"),
        (format!("UPDATE log SET sum = NULL, previous = 0 WHERE run = {} AND seq = 2", of(7)), "first 2 records"),
        (format!("UPDATE runs SET tail = 0, length = 0 WHERE id = {}", of(7)), "parts of journals"),
        (format!("UPDATE runs SET state = 'null' WHERE id = {}", of(7)), "its state cannot be read"),
        (format!("UPDATE runs SET phase = 2 WHERE id = {}", of(8)), "its state does not match its phase 2"),
        (format!("UPDATE runs SET doubts = '7' WHERE id = {}", of(8)), "its doubts cannot be read"),
        (format!("UPDATE runs SET examined = 5 WHERE id = {}", of(8)), "has examined 5 messages, but has received 2"),
        (format!("DELETE FROM mail WHERE run = {} AND position = 1", of(8)), "its message 1 is missing"),
        (format!("UPDATE mail SET body = '{{}}' WHERE run = {}", of(8)), "its message 1 cannot be read"),
        ("UPDATE mail SET run = 99".to_owned(), "2 messages are for runs that do not exist"),
        ("DELETE FROM sessions".to_owned(), "3 runs belong to a session that does not exist"),
        ("DELETE FROM pieces".to_owned(), "cannot be read"),
        ("UPDATE blobs SET digest = NULL, opening = 0".to_owned(), "1 references are to content that does not exist"),
        ("UPDATE refs SET run = 99".to_owned(), "1 references to content belong to runs that do not exist"),
        ("UPDATE segments SET sum = NULL, body = x'00'".to_owned(), "a packed part of a journal cannot be read"),
        (format!("UPDATE runs SET summary = 2 WHERE id = {}", of(8)), "it is not finished"),
    ];
    for (damage, word) in table {
        let copy = path.with_file_name("damaged.db");
        std::fs::copy(&path, &copy).unwrap();
        let changed = edit(&copy).execute(&damage, []).unwrap();
        assert!(changed > 0, "{damage}");
        let report = check_file(&copy, |_, _| {}).unwrap();
        assert!(!report.is_fine() && report.to_string().contains(word), "{damage}: {report}");
        // SQLite leaves files next to a database that it reads.
        for name in ["damaged.db", "damaged.db-wal", "damaged.db-shm"] {
            let _ = std::fs::remove_file(path.with_file_name(name));
        }
    }
    let mut bytes = std::fs::read(&path).unwrap();
    let page = 4_096;
    assert!(bytes.len() > 20 * page, "{}", bytes.len());
    bytes[9 * page..10 * page].fill(0x5a);
    let copy = path.with_file_name("bad-page.db");
    std::fs::write(&copy, bytes).unwrap();
    let report = check_file(&copy, |_, _| {}).unwrap();
    assert!(!report.is_fine() && report.to_string().contains("problem"), "{report}");
}
