//! Durability: after closing, after a kill, and after a kill in the middle of a commit.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::{env, fs};

use windlass_core::store::{Answer, Filter};

use super::*;

#[test]
fn w08_everything_survives_closing() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    commit(&store, cancel(1)).unwrap();
    commit(&store, create(2)).unwrap();
    commit(&store, owner(2, 1, vec![append(json!("done")), finish()])).unwrap();
    block_on(store.release(run(1), 1)).unwrap();
    drop(store);
    assert!(!path.with_extension("db-wal").exists(), "closing leaves one file");

    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(block_on(store.list(Filter::running(), None, 9)).unwrap().len(), 1);
    assert_eq!(length(&store, 2), 2);
    let claimed = block_on(store.claim(run(1), claimant())).unwrap();
    assert_eq!((claimed.epoch, claimed.records.len(), claimed.mail.len()), (2, 1, 1));
    assert!(claimed.orderly && claimed.owners_dead, "the last owner's process is gone");
    let again = block_on(store.claim(run(1), claimant())).unwrap();
    assert!(!again.orderly && !again.owners_dead, "the owner of this process may be alive");
    // The owner from before the restart is stale like any other.
    let late = commit(&store, owner(1, 1, vec![append(json!("late"))]));
    assert_eq!(late, Err(StoreError::Stale { run: run(1), epoch: 1, current: 3 }));
}

#[test]
fn w08_dropping_the_store_writes_what_was_submitted() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    let answers: Vec<Answer<()>> = (1..=500).map(|seq| store.commit(owner(1, seq, vec![append(json!(seq))]))).collect();
    drop(store);
    for answer in answers {
        assert_eq!(block_on(answer.get()), Ok(()));
    }
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 501);
}

#[test]
fn w08_an_answered_commit_is_in_the_files_at_once() {
    let (directory, path) = temp_db();
    for (durability, copy) in [(Durability::Full, "full"), (Durability::Relaxed, "relaxed")] {
        let path = path.with_file_name(format!("{copy}.db"));
        let store = SqliteStore::open_with(&path, durability).unwrap();
        commit(&store, create(1)).unwrap();
        for seq in 1..=20 {
            commit(&store, owner(1, seq, vec![append(json!(seq))])).unwrap();
        }
        // The files as a killed process leaves them.
        let elsewhere = directory.path().join(copy);
        fs::create_dir(&elsewhere).unwrap();
        for file in [format!("{copy}.db"), format!("{copy}.db-wal")] {
            fs::copy(directory.path().join(&file), elsewhere.join(&file)).unwrap();
        }
        let recovered = SqliteStore::open(elsewhere.join(format!("{copy}.db"))).unwrap();
        assert_eq!(length(&recovered, 1), 21);
    }
}

const CHILD: &str = "WINDLASS_STORE_TEST_CHILD";
const RUNS: u8 = 4;

#[test]
fn w08_a_killed_process_loses_no_answered_commit() {
    let (_directory, path) = temp_db();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "sqlite::tests::crash::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answered = [0u64; RUNS as usize + 1];
    let mut total = 0;
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("answered"), "{line}");
        let n: usize = words.next().unwrap().parse().unwrap();
        answered[n] = words.next().unwrap().parse().unwrap();
        total += 1;
        if total == 200 {
            let error = SqliteStore::open(&path).expect_err("the child has it open").to_string();
            let since = error.split("since ").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
            let program = env::current_exe().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            let holder = format!("process {} ({program}) has had it open since {since}", child.id());
            let expected = format!("cannot open {}: {holder}; stop that process, or use another file", path.display());
            assert_eq!(error, expected);
            child.kill().unwrap();
        }
    }
    assert!(!child.wait().unwrap().success());

    let store = SqliteStore::open(&path).unwrap();
    for n in 1..=RUNS {
        let kept = length(&store, n) as u64;
        assert!(kept >= answered[usize::from(n)], "run {n}: {kept} records kept, {answered:?} answered");
        let claimed = block_on(store.claim(run(n), claimant())).unwrap();
        assert!(claimed.owners_dead && !claimed.orderly);
    }
}

/// Runs only in the process that the test above starts and kills: appends without end, and prints how many records were
/// answered.
#[test]
fn child() {
    let Some(path) = env::var_os(CHILD) else { return };
    let store = SqliteStore::open(path).unwrap();
    std::thread::scope(|scope| {
        for n in 1..=RUNS {
            let store = &store;
            scope.spawn(move || {
                commit(store, create(n)).unwrap();
                for seq in 1.. {
                    // One system call, which a kill cannot split.
                    std::io::stderr().write_all(format!("answered {n} {seq}\n").as_bytes()).unwrap();
                    commit(store, owner(n, seq, vec![append(json!(seq))])).unwrap();
                }
            });
        }
    });
}
