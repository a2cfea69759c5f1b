//! A run has its row from its first commit on, and reads never write.

use std::fs;
use std::path::{Path as FilePath, PathBuf};

use windlass_core::store::Filter;

use super::super::db_file::with_suffix;
use super::super::{check_file, open};
use super::inline_writes::inline_options;
use super::*;

/// Creates run `n` under a key of its own, in the session `s`, with one record.
fn begin(n: u8) -> Commit {
    let (key, session) = (Some(key(n)), Some("s".into()));
    let creation = Creation { tool: "t".into(), key, session, ..Creation::default() };
    owner(n, 0, vec![Change::Create(creation), append(json!("first"))])
}

fn key(n: u8) -> Arc<str> {
    format!("key {n}").into()
}

/// Appends the last record and finishes the run, in one commit.
fn end(n: u8, seq: u64) -> Commit {
    owner(n, seq, vec![append(json!("last")), finish()])
}

/// The number of rows of runs in these phases, read from the file directly.
fn rows(path: &FilePath, phases: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM runs WHERE phase IN ({phases})");
    open::observer(path).unwrap().query_row(&sql, [], |row| row.get(0)).unwrap()
}

/// The bytes of the file and its write-ahead log.
fn bytes(path: &FilePath) -> [Vec<u8>; 2] {
    ["", "-wal"].map(|ending| fs::read(with_suffix(path, ending)).unwrap())
}

/// Copies the file as a crash would leave it.
fn crash(path: &FilePath) -> PathBuf {
    let copy = path.with_file_name("crashed.db");
    for ending in ["", "-wal"] {
        fs::copy(with_suffix(path, ending), with_suffix(&copy, ending)).unwrap();
    }
    copy
}

fn list(store: &SqliteStore, filter: Filter) -> Vec<RunId> {
    block_on(store.list(filter, None, 999)).unwrap().iter().map(|info| info.run).collect()
}

fn feed(store: &SqliteStore) -> Vec<(RunId, u64)> {
    block_on(store.feed("s".into(), 0, 999)).unwrap().iter().map(|entry| (entry.run, entry.seq)).collect()
}

#[test]
fn w08_a_run_has_its_row_from_its_first_commit_on() {
    for options in [inline_options(), Options::default()] {
        let (_directory, path) = temp_db();
        let store = SqliteStore::open_with(&path, options).unwrap();
        for n in 1..=9 {
            commit(&store, begin(n)).unwrap();
            assert_eq!((rows(&path, "1"), rows(&path, "4")), (1, i64::from(n) - 1));
            commit(&store, end(n, 1)).unwrap();
            assert_eq!((rows(&path, "1"), rows(&path, "4")), (0, i64::from(n)));
        }
        let runs = |store: &SqliteStore| block_on(store.list(Filter::default(), None, 99)).unwrap();
        let (crashed, before) = (crash(&path), runs(&store));
        assert_eq!((runs(&SqliteStore::open(&crashed).unwrap()), before.len()), (before, 9));
        drop(store);
        assert!(check_file(&crashed, |_, _| {}).unwrap().is_fine());
    }
}

#[test]
fn w08_reads_never_write() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    for n in 1..=3 {
        commit(&store, begin(n)).unwrap();
    }
    commit(&store, end(2, 1)).unwrap();
    commit(&store, cancel(3)).unwrap();
    block_on(store.renew(WorkerId::from_number(0), Duration::from_micros(1))).unwrap();
    let (before, pages) = (bytes(&path), store.shared_writer.wal_pages());
    assert_eq!(list(&store, Filter::default()), [run(1), run(2), run(3)]);
    assert_eq!(list(&store, Filter::session("s")).len(), 3);
    assert_eq!(block_on(store.latest(Filter::finished(), None, 9)).unwrap().len(), 1);
    assert_eq!(block_on(store.keyed(key(3))), Ok(Some(run(3))));
    store.use_clock(still(Timestamp::from_micros(9)));
    assert_eq!(block_on(store.due(9)).unwrap().runs.len(), 2, "the lease of their worker has expired");
    assert_eq!((length(&store, 2), feed(&store).len()), (2, 4));
    assert_eq!(block_on(store.mail(run(3), 0)).unwrap().len(), 1);
    block_on(store.info(run(1))).unwrap().unwrap();
    block_on(store.counts()).unwrap();
    block_on(store.backup(path.with_file_name("copy.db"))).unwrap();
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    assert!((bytes(&path), store.shared_writer.wal_pages()) == (before, pages), "it was written to");
}

/// The cost of the rows of runs: the pages that the first, a middle and the last commit of a run write.
#[test]
fn w08_the_first_and_the_last_commit_of_a_run_write_a_few_pages_each() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    let written = |what: Commit| {
        let before = store.shared_writer.wal_pages().unwrap();
        commit(&store, what).unwrap();
        store.shared_writer.wal_pages().unwrap() - before
    };
    let creation = || Creation { tool: "t".into(), ..Creation::default() };
    // A commit that fills a page of the log writes an extra one, so the minimum of several is used.
    let pages = (1..8).map(|n| {
        let first = written(owner(n, 0, vec![Change::Create(creation()), append(json!("first"))]));
        [first, written(owner(n, 1, vec![append(json!("next"))])), written(end(n, 2))]
    });
    let least = pages.reduce(|a, b| [0, 1, 2].map(|commit| a[commit].min(b[commit])));
    assert_eq!(least, Some([5, 1, 4]), "the log, the row, and entries in three indexes, or in two");
}

#[test]
fn l12_a_key_is_taken_from_the_first_commit_on_also_after_a_crash() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    let again = |store: &SqliteStore| {
        let creation = Creation { tool: "t".into(), key: Some(key(2)), ..Creation::default() };
        (block_on(store.keyed(key(2))), commit(store, owner(3, 0, vec![Change::Create(creation)])))
    };
    let taken = (Ok(Some(run(2))), Err(StoreError::KeyTaken { run: run(2) }));
    commit(&store, begin(2)).unwrap();
    assert_eq!((again(&store), again(&SqliteStore::open(crash(&path)).unwrap())), (taken.clone(), taken.clone()));
    commit(&store, end(2, 1)).unwrap();
    assert_eq!((again(&store), again(&SqliteStore::open(crash(&path)).unwrap())), (taken.clone(), taken));
    block_on(store.purge(run(2), Timestamp::default())).unwrap();
    assert_eq!(again(&store), (Ok(None), Err(StoreError::KeySpent { run: run(2) })));
}

#[test]
fn l23_a_run_belongs_to_its_session_from_its_first_commit_on() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, begin(2)).unwrap();
    commit(&store, begin(3)).unwrap();
    commit(&store, end(2, 1)).unwrap();
    let session = |store: &SqliteStore| (feed(store), list(store, Filter::session("s")));
    let expected = (vec![(run(2), 0), (run(3), 0), (run(2), 1)], vec![run(2), run(3)]);
    assert_eq!((session(&store), session(&SqliteStore::open(crash(&path)).unwrap())), (expected.clone(), expected));
    // A record that is in the file but not published yet is not shown.
    let last = store.readers.tails.last();
    store.readers.tails.publish(&mut vec![(i64::MAX, None)], last - 1);
    assert_eq!(feed(&store), [(run(2), 0), (run(3), 0)]);
    store.readers.tails.publish(&mut vec![(i64::MAX, None)], last);
    // The session exists as long as one of its runs.
    commit(&store, end(3, 1)).unwrap();
    commit(&store, begin(4)).unwrap();
    for n in [2, 3] {
        block_on(store.purge(run(n), Timestamp::default())).unwrap();
    }
    assert_eq!(session(&store), (vec![(run(4), 0)], vec![run(4)]));
    commit(&store, end(4, 1)).unwrap();
    block_on(store.purge(run(4), Timestamp::default())).unwrap();
    commit(&store, begin(5)).unwrap();
    assert_eq!(session(&store), (vec![(run(5), 0)], vec![run(5)]), "a removed session starts again");
    drop(store);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
}

/// The environment variable with the path for the process that is killed.
const FILE: &str = "WINDLASS_TEST_ROWS";

/// Creates one run after the other, and prints the length of each journal when it is acknowledged.
fn run_until_killed(path: &str) {
    let store = SqliteStore::open_with(path, inline_options()).unwrap();
    let acknowledge = |n: u8, commit: Commit, length: u64| {
        super::commit(&store, commit).unwrap();
        println!("acknowledged {n} {length}");
    };
    for n in 1..=u8::MAX {
        acknowledge(n, begin(n), 1);
        (1..4).for_each(|seq| acknowledge(n, owner(n, seq, vec![append(json!(seq))]), seq + 1));
        acknowledge(n, end(n, 4), 5);
    }
}

#[test]
fn l12_w08_a_killed_process_loses_no_acknowledged_run_or_key() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    if let Ok(path) = std::env::var(FILE) {
        return run_until_killed(&path);
    }
    let name = "sqlite::tests::rows::l12_w08_a_killed_process_loses_no_acknowledged_run_or_key";
    for commits in [1, 2, 3, 4, 5, 6, 11, 17, 28, 140, 1_200] {
        let (_directory, path) = temp_db();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(FILE, &path).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut printed = lines.filter_map(|line| {
            let mut words = line.split_once("acknowledged ")?.1.split(' ').map(|word| word.parse::<u64>().unwrap());
            Some((words.next()? as u8, words.next()?))
        });
        let mut acknowledged: Vec<_> = printed.by_ref().take(commits).collect();
        assert_eq!(acknowledged.len(), commits, "the process ended before it was killed");
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(printed);
        let store = SqliteStore::open(&path).unwrap();
        let (all, finished) = (list(&store, Filter::default()), list(&store, Filter::finished()));
        for (n, records) in acknowledged {
            let what = format!("run {n} of {records} records, killed after {commits} commits");
            assert!(length(&store, n) as u64 >= records && all.contains(&run(n)), "{what}");
            assert!(records < 5 || finished.contains(&run(n)), "{what}");
            assert_eq!(block_on(store.keyed(key(n))), Ok(Some(run(n))), "{what}");
        }
        drop(store);
        assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    }
}
