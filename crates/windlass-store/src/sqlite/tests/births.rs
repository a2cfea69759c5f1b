//! Runs whose row comes after their first records.

use rusqlite::Connection;
use windlass_core::store::{Creation, Filter};

use super::super::check_file;
use super::super::open;
use super::desk::here;
use super::*;

/// Creates a run that its process is known to drive.
fn born(n: u8) -> Commit {
    let creation = Creation { tool: "t".into(), known: true, ..Creation::default() };
    owner(n, 0, vec![Change::Create(creation), append(json!("first"))])
}

/// A store whose next commits are written by whoever submits them.
fn lone(path: &std::path::Path) -> SqliteStore {
    let store = SqliteStore::open_with(path, here()).unwrap();
    commit(&store, create(1)).unwrap();
    for seq in 1..1_000 {
        commit(&store, owner(1, seq, vec![append(json!(seq))])).unwrap();
        // The thread that answered may not be done with that yet.
        if (0..1_000).any(|_| {
            store.desk.writes_here() || {
                std::thread::yield_now();
                false
            }
        }) {
            return store;
        }
    }
    panic!("it never does");
}

/// How many runs have a row, as somebody sees it who reads past the store.
fn rows(path: &std::path::Path) -> i64 {
    open::onlooker(path).unwrap().query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap()
}

/// Copies the file as a crash would leave it.
fn crash(path: &std::path::Path) -> std::path::PathBuf {
    let copy = path.with_file_name("crashed.db");
    for ending in ["", "-wal"] {
        let from = super::super::place::beside(path, ending);
        std::fs::copy(&from, super::super::place::beside(&copy, ending)).unwrap();
    }
    copy
}

#[test]
fn w08_a_run_is_born_without_a_row_and_nobody_who_reads_notices() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    commit(&store, owner(2, 1, vec![append(json!("second"))])).unwrap();
    assert_eq!(rows(&path), 1, "its row is still to come");
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    assert_eq!(length(&store, 2), 2);
    assert_eq!(rows(&path), 2, "whoever reads has it written");
    assert_eq!(block_on(store.list(Filter::Running, None, 9)).unwrap().len(), 2);
    commit(&store, owner(2, 2, vec![finish()])).unwrap();
    drop(store);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
}

/// How the first step of a run compares with the next, on whatever disk: one commit each, of as many pages.
#[test]
fn w08_the_first_commit_of_a_run_writes_no_more_pages_than_the_next() {
    let (_directory, path) = place();
    let store = lone(&path);
    let written = |what: Commit| {
        let before = store.desk.log_pages().unwrap();
        commit(&store, what).unwrap();
        store.desk.log_pages().unwrap() - before
    };
    // A commit that fills a page of the log is no measure, so there are several of each.
    let (mut first, mut next, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for n in 2..8 {
        first.push(written(born(n)));
        next.push(written(owner(n, 1, vec![append(json!("second"))])));
        last.push(written(owner(n, 2, vec![finish()])));
    }
    let least = |pages: &[i32]| pages.iter().copied().min();
    assert_eq!((least(&first), least(&next)), (Some(1), Some(1)), "{first:?} {next:?}");
    assert!(least(&last) > least(&next), "the row is written when the run ends: {last:?}");
}

#[test]
fn w08_a_run_that_was_only_born_is_there_after_a_crash() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    for seq in 1..5 {
        commit(&store, owner(2, seq, vec![append(json!(seq))])).unwrap();
    }
    let crashed = crash(&path);
    drop(store);
    assert_eq!(rows(&crashed), 1);
    assert!(check_file(&crashed, |_, _| {}).unwrap().is_fine());
    let store = SqliteStore::open(&crashed).unwrap();
    assert_eq!(length(&store, 2), 5);
    let claimed = block_on(store.claim(run(2), claimant())).unwrap();
    assert_eq!((claimed.seq, claimed.orderly), (5, false));
    commit(&store, create(3)).unwrap();
    drop(store);
    let connection = Connection::open(&crashed).unwrap();
    let number = |n: u8| -> i64 {
        connection.query_row("SELECT id FROM runs WHERE run = ?1", [run(n).as_bytes()], |row| row.get(0)).unwrap()
    };
    assert!(number(3) > number(2), "no number is used twice");
}

#[test]
fn w08_whatever_else_is_written_comes_after_the_row() {
    type Act = fn(&SqliteStore);
    let acts: [(&str, Act); 4] = [
        ("another run's records", |store| {
            let seq = length(store, 1) as u64;
            commit(store, owner(1, seq, vec![append(json!("more"))])).unwrap();
        }),
        ("another run", |store| commit(store, born(3)).unwrap()),
        ("the same commit again", |store| commit(store, born(2)).unwrap()),
        ("its end", |store| commit(store, owner(2, 1, vec![finish()])).unwrap()),
    ];
    for (what, act) in acts {
        let (_directory, path) = place();
        let store = lone(&path);
        let before = length(&store, 1);
        commit(&store, born(2)).unwrap();
        act(&store);
        let crashed = crash(&path);
        assert!(rows(&crashed) >= 2, "{what}");
        let again = SqliteStore::open(&crashed).unwrap();
        assert!(length(&again, 1) >= before && length(&again, 2) >= 1, "{what}");
        drop((store, again));
        assert!(check_file(&crashed, |_, _| {}).unwrap().is_fine(), "{what}");
    }
}

#[test]
fn w08_w09_a_backup_has_the_run_that_was_only_born() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    let copy = path.with_file_name("copy.db");
    block_on(store.backup(&copy)).unwrap();
    assert!(check_file(&copy, |_, _| {}).unwrap().is_fine());
    let copy = SqliteStore::open(&copy).unwrap();
    assert_eq!(length(&copy, 2), 1);
}

/// Names the file to the process that is killed.
const FILE: &str = "WINDLASS_TEST_BIRTHS";

/// Creates one run after the other, and tells how long the journal of each is once that is acknowledged.
fn live(path: &str) {
    let store = lone(path.as_ref());
    let told = |n: u8, commit: Commit, length: u64| {
        super::commit(&store, commit).unwrap();
        println!("acknowledged {n} {length}");
    };
    for n in 2..=u8::MAX {
        told(n, born(n), 1);
        (1..4).for_each(|seq| told(n, owner(n, seq, vec![append(json!(seq))]), seq + 1));
        told(n, owner(n, 4, vec![finish()]), 4);
    }
}

#[test]
fn w08_a_killed_process_loses_no_run_that_was_only_born() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    if let Ok(path) = std::env::var(FILE) {
        return live(&path);
    }
    let name = "sqlite::tests::births::w08_a_killed_process_loses_no_run_that_was_only_born";
    for commits in [1, 2, 3, 4, 5, 6, 11, 17, 28, 140] {
        let (_directory, path) = place();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(FILE, &path).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut told = lines.filter_map(|line| {
            let mut words = line.split_once("acknowledged ")?.1.split(' ').map(|word| word.parse::<u64>().unwrap());
            Some((words.next()? as u8, words.next()?))
        });
        let mut acknowledged: Vec<_> = told.by_ref().take(commits).collect();
        assert_eq!(acknowledged.len(), commits, "it ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(told);
        let store = SqliteStore::open(&path).unwrap();
        for (n, records) in acknowledged {
            assert!(
                length(&store, n) as u64 >= records,
                "run {n} of {records} records, killed after {commits} commits"
            );
        }
        drop(store);
        assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    }
}
