//! Runs whose row comes after their first records, or after their last.

use rusqlite::Connection;
use windlass_core::store::{Creation, Filter};

use super::super::birth::MANY;
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

/// What a run is said to be, by whoever asks for it alone.
fn state(store: &SqliteStore, n: u8) -> RunState {
    block_on(store.info(run(n))).unwrap().unwrap().state
}

/// The last record and the end, in one commit.
fn end(n: u8, seq: u64) -> Commit {
    owner(n, seq, vec![append(json!("last")), finish()])
}

const DONE: RunState = RunState::Finished { ending: Ending::Ok };

#[test]
fn w08_a_run_is_born_without_a_row_and_nobody_who_reads_notices() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    commit(&store, owner(2, 1, vec![append(json!("second"))])).unwrap();
    assert_eq!((length(&store, 2), state(&store, 2)), (2, RunState::Running));
    assert_eq!(block_on(store.told(run(2), "k".into())), Ok(false));
    assert!(block_on(store.mail(run(2), 0)).unwrap().is_empty());
    commit(&store, end(2, 2)).unwrap();
    let before = block_on(store.info(run(2))).unwrap();
    assert_eq!((length(&store, 2), state(&store, 2), rows(&path)), (3, DONE, 0), "its row is still to come");
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    assert_eq!(block_on(store.list(Filter::All, None, 9)).unwrap().len(), 2);
    assert_eq!(
        (rows(&path), block_on(store.info(run(2))).unwrap()),
        (2, before),
        "whoever asks for all has it written"
    );
    assert_eq!(block_on(store.info(run(9))), Ok(None));
    drop(store);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
}

/// How the first and the last step of a run compare with the next, on whatever disk: one commit each, of as many pages.
#[test]
fn w08_the_first_and_the_last_commit_of_a_run_write_no_more_pages_than_the_next() {
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
        last.push(written(end(n, 2)));
    }
    let least = |pages: &[i32]| pages.iter().copied().min();
    let least = [least(&first), least(&next), least(&last)];
    assert_eq!(least, [Some(1); 3], "{first:?} {next:?} {last:?}");
}

#[test]
fn w08_runs_that_ended_get_their_rows_together() {
    let (_directory, path) = place();
    let store = lone(&path);
    let brief = |n: usize| {
        let run = RunId::from_bytes((u128::MAX / 2 + n as u128).to_be_bytes());
        let creation = Creation { tool: "t".into(), ..Creation::default() };
        let changes = vec![Change::Create(creation), append(json!("all")), finish()];
        commit(&store, Commit { guard: Guard::Owner { run, epoch: 1, expected_seq: 0 }, changes }).unwrap();
    };
    (0..MANY).for_each(brief);
    assert_eq!(rows(&path), 0);
    brief(MANY);
    assert_eq!(rows(&path), MANY as i64, "the one that goes on has none, nor has the last");
    assert_eq!(state(&store, 1), RunState::Running);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
}

#[test]
fn w08_runs_without_a_row_are_there_after_a_crash_as_they_were() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    for seq in 1..5 {
        commit(&store, owner(2, seq, vec![append(json!(seq))])).unwrap();
        commit(&store, born(10 + seq as u8)).unwrap();
    }
    commit(&store, end(11, 1)).unwrap();
    commit(&store, owner(11, 2, vec![append(json!("afterwards"))])).unwrap();
    let creation = Creation { tool: "u".into(), at: Timestamp::from_micros(7), ..Creation::default() };
    // Deeper than a parser goes by itself.
    let deep = (0..200).fold(json!("all"), |inner, _| json!([inner]));
    commit(&store, owner(20, 0, vec![Change::Create(creation), append(deep), finish()])).unwrap();
    let all = [1, 2, 11, 12, 13, 14, 20];
    let told = |store: &SqliteStore| all.map(|n| (block_on(store.info(run(n))).unwrap().unwrap(), length(store, n)));
    let (crashed, before) = (crash(&path), told(&store));
    drop(store);
    assert_eq!(rows(&crashed), 0);
    let report = check_file(&crashed, |_, _| {}).unwrap();
    let records = before.iter().map(|(_, length)| *length as u64).sum();
    assert_eq!((report.is_fine(), report.runs, report.records), (true, 7, records), "{report}");
    let store = SqliteStore::open(&crashed).unwrap();
    assert_eq!(told(&store), before);
    assert_eq!((state(&store, 11), state(&store, 12), state(&store, 20)), (DONE, RunState::Running, DONE));
    let claimed = block_on(store.claim(run(2), claimant())).unwrap();
    assert_eq!((claimed.seq, claimed.orderly, claimed.owners_dead), (5, false, true));
    commit(&store, create(3)).unwrap();
    drop(store);
    let connection = Connection::open(&crashed).unwrap();
    let number = |n: u8| -> i64 {
        connection.query_row("SELECT id FROM runs WHERE run = ?1", [run(n).as_bytes()], |row| row.get(0)).unwrap()
    };
    assert!(all.iter().all(|n| number(3) > number(*n)), "no number is used twice");
    assert!(check_file(&crashed, |_, _| {}).unwrap().is_fine());
}

#[test]
fn w08_whatever_needs_the_row_of_a_run_has_it_written() {
    type Act = fn(&SqliteStore);
    let acts: [(&str, i64, Act); 9] = [
        ("another run's records", 0, |store| {
            commit(store, owner(1, length(store, 1) as u64, vec![append(json!("more"))])).unwrap();
        }),
        ("another run", 0, |store| commit(store, born(3)).unwrap()),
        ("its end", 0, |store| commit(store, end(2, 1)).unwrap()),
        ("its end without a record", 1, |store| commit(store, owner(2, 1, vec![finish()])).unwrap()),
        ("the same commit again", 1, |store| commit(store, born(2)).unwrap()),
        ("a message", 1, |store| commit(store, cancel(2)).unwrap()),
        ("its rest", 1, |store| {
            let suspended = Change::State(RunState::Suspended { wake: None });
            commit(store, owner(2, 1, vec![append(json!("parked")), suspended])).unwrap();
        }),
        ("a claim", 1, |store| {
            let claimed = block_on(store.claim(run(2), claimant())).unwrap();
            assert_eq!((claimed.epoch, claimed.seq), (2, 1));
        }),
        ("letting go of it", 1, |store| block_on(store.release(run(2), 1)).unwrap()),
    ];
    for (what, expected, act) in acts {
        let (_directory, path) = place();
        let store = lone(&path);
        let before = length(&store, 1);
        commit(&store, born(2)).unwrap();
        act(&store);
        let crashed = crash(&path);
        assert_eq!(rows(&crashed), expected, "{what}");
        let again = SqliteStore::open(&crashed).unwrap();
        assert_eq!(block_on(again.info(run(2))), block_on(store.info(run(2))), "{what}");
        assert!(length(&again, 1) >= before && length(&again, 2) >= 1, "{what}");
        drop((store, again));
        assert!(check_file(&crashed, |_, _| {}).unwrap().is_fine(), "{what}");
        assert!(check_file(&path, |_, _| {}).unwrap().is_fine(), "{what}");
    }
}

#[test]
fn l12_a_key_is_taken_by_a_run_without_a_row_also_after_a_crash() {
    let (_directory, path) = place();
    let store = lone(&path);
    let keyed = |n: u8| {
        let creation = Creation { tool: "t".into(), key: Some("k".into()), ..Creation::default() };
        owner(n, 0, vec![Change::Create(creation), append(json!("first"))])
    };
    let (key, taken) = (|| "k".into(), Err(StoreError::KeyTaken { run: run(2) }));
    commit(&store, keyed(2)).unwrap();
    assert_eq!((block_on(store.keyed(key())), commit(&store, keyed(3))), (Ok(Some(run(2))), taken.clone()));
    commit(&store, end(2, 1)).unwrap();
    assert_eq!(
        (block_on(store.keyed(key())), commit(&store, keyed(3)), rows(&path)),
        (Ok(Some(run(2))), taken.clone(), 0)
    );
    let crashed = SqliteStore::open(crash(&path)).unwrap();
    assert_eq!((block_on(crashed.keyed(key())), commit(&crashed, keyed(3))), (Ok(Some(run(2))), taken.clone()));
    assert_eq!(block_on(store.list(Filter::All, None, 9)).unwrap().len(), 2);
    assert_eq!((block_on(store.keyed(key())), commit(&store, keyed(3))), (Ok(Some(run(2))), taken));
    block_on(store.purge(run(2), Timestamp::default())).unwrap();
    assert_eq!(commit(&store, keyed(3)), Err(StoreError::KeySpent { run: run(2) }));
}

#[test]
fn l23_a_run_without_a_row_is_of_its_session() {
    let (_directory, path) = place();
    let store = lone(&path);
    let of_session = |n: u8| {
        let creation = Creation { tool: "t".into(), session: Some("s".into()), ..Creation::default() };
        owner(n, 0, vec![Change::Create(creation), append(json!("first"))])
    };
    let feed = |store: &SqliteStore| {
        let entries = block_on(store.feed("s".into(), 0, 99)).unwrap();
        entries.iter().map(|entry| (entry.run, entry.seq)).collect::<Vec<_>>()
    };
    let told = |store: &SqliteStore| [2, 3].map(|n| block_on(store.info(run(n))).unwrap().unwrap());
    commit(&store, of_session(2)).unwrap();
    commit(&store, of_session(3)).unwrap();
    commit(&store, end(2, 1)).unwrap();
    let (fed, before) = (feed(&store), told(&store));
    assert_eq!((&fed[..], rows(&path)), (&[(run(2), 0), (run(3), 0), (run(2), 1)][..], 0));
    assert!(before.iter().all(|info| info.session.as_deref() == Some("s")));
    let crashed = SqliteStore::open(crash(&path)).unwrap();
    assert_eq!((feed(&crashed), told(&crashed)), (fed.clone(), before.clone()));
    // What is committed and not made known yet is of runs that nobody could ask for.
    crashed.readers.nursery.begin(crashed.readers.nursery.last() - 1);
    assert_eq!(feed(&crashed), fed[..2]);
    let listed = block_on(store.list(Filter::Session("s".into()), None, 9)).unwrap();
    assert_eq!((feed(&store), &listed[..]), (fed, &before[..]));
    // The session is there as long as one of its runs is, with a row or without.
    commit(&store, of_session(4)).unwrap();
    commit(&store, end(3, 1)).unwrap();
    for n in [2, 3] {
        block_on(store.purge(run(n), Timestamp::default())).unwrap();
    }
    assert_eq!(feed(&store), [(run(4), 0)]);
    commit(&store, end(4, 1)).unwrap();
    block_on(store.purge(run(4), Timestamp::default())).unwrap();
    commit(&store, of_session(5)).unwrap();
    assert_eq!(feed(&store), [(run(5), 0)], "it begins again when it is gone");
    drop(store);
    assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
}

#[test]
fn w09_a_run_without_a_row_can_be_purged() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    assert_eq!(block_on(store.purge(run(2), Timestamp::default())), Err(StoreError::Unfinished(run(2))));
    commit(&store, born(3)).unwrap();
    commit(&store, end(3, 1)).unwrap();
    block_on(store.purge(run(3), Timestamp::default())).unwrap();
    assert_eq!((block_on(store.info(run(3))), length(&store, 2)), (Ok(None), 1));
    let store = SqliteStore::open(crash(&path)).unwrap();
    assert_eq!((block_on(store.info(run(3))), length(&store, 2)), (Ok(None), 1));
}

#[test]
fn w08_w09_a_backup_has_the_runs_that_had_no_row() {
    let (_directory, path) = place();
    let store = lone(&path);
    commit(&store, born(2)).unwrap();
    let copy = path.with_file_name("copy.db");
    block_on(store.backup(&copy)).unwrap();
    assert_eq!(rows(&copy), 2);
    // One that was taken by somebody who did not have them written, as of a moment later.
    Connection::open(&copy).unwrap().execute_batch("DELETE FROM runs").unwrap();
    assert!(check_file(&copy, |_, _| {}).unwrap().is_fine());
    let copy = SqliteStore::open(&copy).unwrap();
    let claimed = block_on(copy.claim(run(2), claimant())).unwrap();
    assert_eq!((claimed.seq, claimed.mail.len()), (1, 1), "it is told that it was restored");
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
        told(n, end(n, 4), 5);
    }
}

#[test]
fn w08_a_killed_process_loses_no_run_that_had_no_row() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    if let Ok(path) = std::env::var(FILE) {
        return live(&path);
    }
    let name = "sqlite::tests::births::w08_a_killed_process_loses_no_run_that_had_no_row";
    for commits in [1, 2, 3, 4, 5, 6, 11, 17, 28, 140, 1_200] {
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
            assert!(records < 5 || state(&store, n) == DONE, "run {n}, killed after {commits} commits");
        }
        drop(store);
        assert!(check_file(&path, |_, _| {}).unwrap().is_fine());
    }
}
