//! Groups of commits: what shares a transaction, how a refusal or a failure affects the other commits, and what a
//! callback may do.

use std::sync::mpsc;

use rusqlite::Connection;
use windlass_core::store::{Answer, Promise, Ticket};

use super::super::check::CheckState;
use super::super::job::{Job, Write};
use super::super::log::JournalTails;
use super::super::read::Readers;
use super::super::write_queue::{self, WriteQueue};
use super::super::writer::{Writer, WriterDeps};
use super::super::{Health, OpenError, open};
use super::*;

/// A writer without a thread, so that a test decides what is in a group.
pub(super) fn writer(path: &std::path::Path) -> Writer {
    let opened = open::open(path, &Options::default()).unwrap();
    let tails = Arc::new(JournalTails::default());
    let readers = Arc::new(Readers::new(opened.db_file.clone(), tails.clone(), Arc::default()));
    let deps =
        WriterDeps { readers, tails, check: CheckState::new(Health::Fine, Arc::default()), live: Arc::default() };
    Writer::new(opened, Options::default(), Arc::new(WriteQueue::new(write_queue::LIMITS)), deps).unwrap()
}

pub(super) fn group(writer: &mut Writer, commits: Vec<Commit>) -> Vec<Result<(), StoreError>> {
    let (mut jobs, tickets): (Vec<Job>, Vec<Ticket<()>>) = commits
        .into_iter()
        .map(|commit| {
            let (promise, ticket) = Promise::pair();
            (Job::Write(Write::encode(commit, &keys()).unwrap().into(), promise), ticket)
        })
        .unzip();
    writer.write(&mut jobs).send();
    tickets.into_iter().map(block_on).collect()
}

#[test]
fn w08_a_refused_commit_does_not_affect_the_others_of_its_group() {
    let (_directory, path) = temp_db();
    let mut writer = writer(&path);
    let answers = group(
        &mut writer,
        vec![
            create(1),
            create(2),
            owner(1, 1, vec![append(json!("a"))]),
            owner(1, 1, vec![append(json!("not a"))]),
            owner(1, 2, vec![append(json!("b"))]),
            owner(1, 1, vec![append(json!("a"))]),
            cancel(9),
            cancel(2),
            owner(2, 1, vec![finish()]),
            cancel(2),
        ],
    );
    let expected = [
        Ok(()),
        Ok(()),
        Ok(()),
        Err(StoreError::WrongSequence { run: run(1), expected: 1, current: 2 }),
        Ok(()),
        Ok(()),
        Err(StoreError::NoSuchRun(run(9))),
        Ok(()),
        Ok(()),
        Err(StoreError::Finished(run(2))),
    ];
    assert_eq!(answers, expected);
    drop(writer);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(length(&store, 1), 3);
    assert_eq!(block_on(store.mail(run(2), 0)).unwrap().len(), 1);
}

#[test]
fn w08_a_failed_group_is_unknown_as_a_whole_and_the_next_one_works() {
    let (_directory, path) = temp_db();
    let mut writer = writer(&path);
    assert_eq!(group(&mut writer, vec![create(1), create(2)]), [Ok(()), Ok(())]);
    // Simulates a disk failure: any statement may fail.
    let intruder = Connection::open(&path).unwrap();
    let trap = "CREATE TRIGGER trap BEFORE INSERT ON log WHEN new.body LIKE '%poison%'
                BEGIN SELECT raise(ABORT, 'the disk is on fire'); END";
    intruder.execute_batch(trap).unwrap();
    let commits = || {
        vec![
            owner(1, 1, vec![append(json!("fine"))]),
            owner(1, 1, vec![append(json!("refused if the first is written"))]),
            owner(2, 1, vec![append(json!("poison"))]),
            owner(2, 2, vec![append(json!("after it"))]),
        ]
    };
    // Repeatedly: a commit that always fails affects those in its group.
    for _ in 0..3 {
        for answer in group(&mut writer, commits()) {
            let Err(StoreError::Unknown(why)) = answer else { panic!("{answer:?}") };
            assert_eq!(why, format!("writing {}: the disk is on fire", path.display()));
        }
    }
    let count = || intruder.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 2, "nothing of the group was written");
    intruder.execute_batch("DROP TRIGGER trap").unwrap();
    let wrong = StoreError::WrongSequence { run: run(1), expected: 1, current: 2 };
    assert_eq!(group(&mut writer, commits()), [Ok(()), Err(wrong), Ok(()), Ok(())]);
    assert_eq!(count(), 5);
}

#[test]
fn w08_a_store_works_again_when_the_cause_of_a_failure_is_gone() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    let intruder = Connection::open(&path).unwrap();
    intruder.execute_batch("ALTER TABLE log RENAME TO hidden").unwrap();
    let failed = commit(&store, owner(1, 1, vec![append(json!(1))]));
    assert!(matches!(failed, Err(StoreError::Unknown(_))), "{failed:?}");
    let unread = block_on(store.journal(run(1), 0));
    assert!(matches!(unread, Err(StoreError::Unavailable(_))), "{unread:?}");
    intruder.execute_batch("ALTER TABLE hidden RENAME TO log").unwrap();
    while store.health() != Health::Fine {
        std::thread::yield_now();
    }
    assert_eq!(commit(&store, owner(1, 1, vec![append(json!(1))])), Ok(()));
    assert_eq!(length(&store, 1), 2);
}

#[test]
fn a_callback_may_submit_the_next_commit() {
    let (_directory, path) = temp_db();
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    commit(&store, create(1)).unwrap();
    let (sender, receiver) = mpsc::channel();
    chain(store.clone(), 1, sender);
    assert_eq!(receiver.recv().unwrap(), 300);
    assert_eq!(length(&store, 1), 300);
}

/// Appends from the callback of the previous commit, on whichever thread that runs.
fn chain(store: Arc<SqliteStore>, seq: u64, done: mpsc::Sender<u64>) {
    if seq == 300 {
        done.send(seq).unwrap();
        return;
    }
    let Answer::Wait(ticket) = store.commit(owner(1, seq, vec![append(json!(seq))])) else { panic!("refused") };
    ticket.then(move |answer| {
        answer.unwrap();
        chain(store, seq + 1, done);
    });
}

#[test]
fn a_callback_that_panics_does_not_stop_the_writer() {
    let (_directory, path) = temp_db();
    let mut writer = writer(&path);
    let (promise, ticket) = Promise::pair();
    ticket.then(|_| panic!("not the store's fault"));
    writer.write(&mut vec![Job::Write(Write::encode(create(1), &keys()).unwrap().into(), promise)]).send();
    assert_eq!(group(&mut writer, vec![owner(1, 1, vec![finish()])]), [Ok(())]);
}

#[test]
fn a_callback_may_drop_the_store() {
    let (_directory, path) = temp_db();
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let Answer::Wait(ticket) = store.commit(create(1)) else { panic!("refused") };
    ticket.then(move |_| drop(store));
    // The lock is released when the writer thread ends.
    let store = loop {
        match SqliteStore::open(&path) {
            Err(OpenError::InUse { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    assert_eq!(length(&store, 1), 1);
}

#[test]
fn a_commit_that_no_file_could_accept_is_refused_at_once() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    let guard = Guard::Owner { run: run(1), epoch: u64::MAX, expected_seq: 0 };
    let Answer::Ready(Err(error)) = store.commit(Commit { guard, ..create(1) }) else { panic!("queued") };
    assert!(error.to_string().contains("epoch"), "{error}");
}
