//! Removal works in slices, leaves nothing behind, and affects no other run.

use std::time::Duration;

use rusqlite::Connection;
use windlass_core::store::{Retention, Tidied};

use super::super::open;
use super::packing::{self, count};
use super::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn day(days: u32) -> Timestamp {
    Timestamp::default() + days * DAY
}

fn relaxed() -> Options {
    Options::from(Durability::Relaxed)
}

/// One slice.
fn slice(store: &SqliteStore, now: Timestamp) -> Tidied {
    block_on(store.tidy(now)).unwrap()
}

fn tidy(store: &SqliteStore, now: Timestamp) -> Tidied {
    let mut all = Tidied::default();
    loop {
        let done = slice(store, now);
        all.summarized += done.summarized;
        all.removed += done.removed;
        if !done.more {
            return Tidied { more: false, ..all };
        }
    }
}

/// Creates run `n` with this many records, one commit each.
fn long(store: &SqliteStore, n: u8, records: u64) {
    let creation = Creation { tool: "t".into(), session: Some("s".into()), ..Creation::default() };
    let mut answers = vec![store.commit(owner(n, 0, vec![Change::Create(creation), append(json!(0))]))];
    answers.extend((1..records).map(|seq| store.commit(owner(n, seq, vec![append(json!(seq))]))));
    for answer in answers {
        block_on(answer.get()).unwrap();
    }
}

fn end(store: &SqliteStore, n: u8, records: u64) {
    commit(store, owner(n, records, vec![finish()])).unwrap();
}

fn rows(store: &SqliteStore) -> i64 {
    count(store.path(), "log") + count(store.path(), "segments")
}

fn is_gone(store: &SqliteStore, n: u8) -> bool {
    block_on(store.journal(run(n), 0)).err() == Some(StoreError::JournalGone(run(n)))
}

#[test]
fn w09_a_long_journal_is_removed_in_slices_and_a_crash_in_between_loses_nothing_else() {
    let (directory, mut path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    const LONG: u64 = 1_000;
    long(&store, 1, LONG);
    commit(&store, create(2)).unwrap();
    end(&store, 1, LONG);
    let last = block_on(store.feed("s".into(), LONG - 1, 9)).unwrap().pop().unwrap().position;
    assert_eq!(rows(&store), 1_001);
    let mut slices = 0;
    let mut store = store;
    loop {
        let before = rows(&store);
        let done = slice(&store, day(31));
        slices += 1;
        assert!(before - rows(&store) <= 200, "a slice is small");
        assert!(is_gone(&store, 1), "a partly removed journal is never shown");
        assert_eq!(length(&store, 2), 1, "an unfinished run is not changed");
        assert_eq!(block_on(store.feed("s".into(), 0, 9)).unwrap().len(), 0);
        if !done.more {
            break;
        }
        // The files as a killed process leaves them.
        let elsewhere = directory.path().join(format!("life-{slices}.db"));
        for end in ["", "-wal"] {
            let named = |path: &PathBuf| PathBuf::from(format!("{}{end}", path.display()));
            std::fs::copy(named(&path), named(&elsewhere)).unwrap();
        }
        path = elsewhere;
        store = SqliteStore::open_with(&path, relaxed()).unwrap();
    }
    assert!(slices >= 3, "{slices}");
    assert_eq!(rows(&store), 1);
    drop(store);
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    let creation = Creation { session: Some("s".into()), ..Creation::default() };
    commit(&store, owner(3, 0, vec![Change::Create(creation), append(json!("new"))])).unwrap();
    let entries = block_on(store.feed("s".into(), last, 9)).unwrap();
    assert_eq!(entries.len(), 1, "no position is used twice");
    assert!(entries[0].position > last + 1, "not even the position of another run");
    assert_eq!(length(&store, 2), 1);
}

#[test]
fn w09_a_run_finished_without_a_record_ended_at_its_last_record() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    let late = Record { at: day(7), ..record(json!(1)) };
    commit(&store, create(1)).unwrap();
    commit(&store, owner(1, 1, vec![Change::Append(vec![late])])).unwrap();
    commit(&store, owner(1, 2, vec![finish()])).unwrap();
    assert_eq!(block_on(store.info(run(1))).unwrap().unwrap().ended, Some(day(7)));
    let creation = Creation { at: day(3), ..Creation::default() };
    commit(&store, owner(2, 0, vec![Change::Create(creation), finish()])).unwrap();
    assert_eq!(block_on(store.info(run(2))).unwrap().unwrap().ended, Some(day(3)), "or at its creation");
}

#[test]
fn w09_records_appended_after_the_end_are_removed_with_the_journal() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    commit(&store, create(1)).unwrap();
    end(&store, 1, 1);
    commit(&store, owner(1, 1, vec![append(json!("annotated"))])).unwrap();
    tidy(&store, day(40));
    assert_eq!(rows(&store), 0);
    let late = commit(&store, owner(1, 2, vec![append(json!("much later"))]));
    assert_eq!(late, Err(StoreError::Finished(run(1))), "the journal is removed");
}

#[test]
fn w09_no_file_contains_data_of_a_purged_run() {
    const SECRET: &str = "the-password-of-the-admiral";
    let in_files = |path: &PathBuf| {
        let files = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
        let holds = |file: &PathBuf| {
            let bytes = std::fs::read(file).unwrap();
            bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
        };
        files.filter(holds).count()
    };
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    let big = "x".repeat(20_000);
    for n in 1..=3 {
        let mine = if n == 2 { SECRET } else { "nothing" };
        let creation = Creation { session: Some(mine.into()), ..Creation::default() };
        commit(&store, owner(n, 0, vec![Change::Create(creation), append(json!({"a": mine}))])).unwrap();
        commit(&store, owner(n, 1, vec![append(json!({"first": format!("{big}{mine}"), "then": mine}))])).unwrap();
        let message = Message::Cancel { by: mine.to_owned(), reason: mine.to_owned() };
        let mail = Change::Mail { run: run(n), message, dedupe: Some(mine.into()) };
        commit(&store, Commit { guard: Guard::Outsider, changes: vec![mail] }).unwrap();
        end(&store, n, 2);
    }
    drop(store);
    assert!(in_files(&path) > 0, "the test finds it before the purge");
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    block_on(store.purge(run(2), day(1))).unwrap();
    assert_eq!((length(&store, 1), length(&store, 3)), (2, 2));
    drop(store);
    assert_eq!(in_files(&path), 0);
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    assert_eq!((length(&store, 1), length(&store, 3)), (2, 2));
    assert_eq!(block_on(store.info(run(2))), Ok(None));
}

#[test]
fn w09_purging_and_packing_do_not_disturb_each_other() {
    let (_directory, path) = temp_db();
    let mut store = SqliteStore::open_with(&path, packing::often()).unwrap();
    for round in 0..4 {
        packing::fill(&store);
        let [first, second, third] = [1, 2, 3].map(|n| length(&store, n) as u64);
        end(&store, 1, first);
        // The writer packs while the journal is removed.
        let purged = store.purge(run(1), day(1));
        commit(&store, owner(2, second, vec![append(json!([2, second]))])).unwrap();
        block_on(purged).unwrap();
        assert_eq!((length(&store, 2) as u64, length(&store, 3) as u64), (second + 1, third), "round {round}");
        if round % 2 == 0 {
            drop(store);
            store = SqliteStore::open_with(&path, packing::often()).unwrap();
        }
        for n in [2, 3] {
            let journal = block_on(store.journal(run(n), 0)).unwrap();
            let expected: Vec<Value> = (0..journal.len()).map(|seq| json!([n, seq])).collect();
            assert_eq!(journal.iter().map(packing::value).collect::<Vec<_>>(), expected);
            let epoch = block_on(store.info(run(n))).unwrap().unwrap().epoch;
            let guard = Guard::Owner { run: run(n), epoch, expected_seq: journal.len() as u64 };
            commit(&store, Commit { guard, changes: vec![finish()] }).unwrap();
            block_on(store.purge(run(n), day(1))).unwrap();
        }
        assert_eq!(rows(&store), 0, "round {round}");
    }
}

/// Half a kibibyte that cannot be compressed.
fn noise(seed: u64) -> String {
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(next(&seed), next).take(64).map(|state| format!("{:08x}", state >> 32)).collect()
}

/// The size of the file without free pages.
fn live_bytes(path: &std::path::Path) -> u64 {
    let copy = path.with_extension("copy");
    let connection = open::observer(path).unwrap();
    connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let bytes = std::fs::metadata(&copy).unwrap().len();
    std::fs::remove_file(copy).unwrap();
    bytes
}

#[test]
fn w09_a_file_under_steady_load_does_not_grow_without_limit() {
    const A_DAY: u32 = 30;
    let (_directory, path) = temp_db();
    let retention = Retention { full: 5 * DAY, summary: 5 * DAY, keys: 5 * DAY, sessions: 5 * DAY };
    let options = Options { retention, unpacked: 512, ..relaxed() };
    let store = SqliteStore::open_with(&path, options).unwrap();
    let id = |number: u32| RunId::from_bytes(u128::from(number).to_be_bytes());
    let mut number = 0;
    for today in 0..40 {
        for n in 0..A_DAY {
            number += 1;
            let record = |value: Value| Change::Append(vec![Record { at: day(today), ..super::record(value) }]);
            let key = Some(format!("key {number}").into());
            let creation = Creation { tool: "t".into(), at: day(today), key, ..Creation::default() };
            let mut answers = Vec::new();
            // Some runs are long, and one per day is not finished.
            let records = if n % 10 == 0 { 60 } else { 4 };
            for seq in 0..records {
                let mut changes = vec![record(json!({"seq": seq, "noise": noise(u64::from(number) * 100 + seq)}))];
                if seq == 0 {
                    changes.insert(0, Change::Create(creation.clone()));
                }
                if seq + 1 == records && n != 1 {
                    changes.push(finish());
                }
                let guard = Guard::Owner { run: id(number), epoch: 1, expected_seq: seq };
                answers.push(store.commit(Commit { guard, changes }));
            }
            for answer in answers {
                block_on(answer.get()).unwrap();
            }
        }
        tidy(&store, day(today));
        if today % 9 == 3 {
            let live = live_bytes(&path);
            // The write-ahead log has its own limit.
            let bytes = std::fs::metadata(&path).unwrap().len();
            assert!(bytes <= 2 * live, "day {today}: {bytes} bytes, of which {live} are in use");
            assert!(bytes < 4 << 20, "day {today}: {bytes} bytes");
        }
    }
    let info = |number: u32| block_on(store.info(id(number))).unwrap();
    assert_eq!(info(1), None, "the runs of the first day are removed");
    let unfinished = block_on(store.journal(id(2), 0)).unwrap();
    assert_eq!(unfinished.len(), 4, "an unfinished run is kept");
    assert_eq!(count(&path, "tombstones"), i64::from(A_DAY - 1) * 5, "keys are kept for five more days");
    assert_eq!(count(&path, "runs WHERE phase < 4"), 40);
    drop(store);
    let check: String =
        Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[test]
fn w09_a_large_value_is_removed_with_the_last_journal_that_has_it() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, relaxed()).unwrap();
    let (own, shared) = (json!(noise(1).repeat(100)), json!(noise(2).repeat(100)));
    commit(&store, create(1)).unwrap();
    commit(&store, owner(1, 1, vec![append(own), append(shared.clone()), finish()])).unwrap();
    commit(&store, create(2)).unwrap();
    commit(&store, owner(2, 1, vec![append(shared.clone())])).unwrap();
    assert_eq!((count(&path, "blobs"), count(&path, "refs")), (2, 3));
    tidy(&store, day(31));
    assert!(is_gone(&store, 1));
    assert_eq!((count(&path, "blobs"), count(&path, "pieces"), count(&path, "refs")), (1, 1, 1));
    let journal = block_on(store.journal(run(2), 0)).unwrap();
    assert_eq!(packing::value(&journal[1]), shared, "a value of another run is kept");
}
