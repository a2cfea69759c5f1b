//! Large values are stored separately and restored by every read.

use super::packing::{count, often, value};
use super::*;

fn long(n: u64) -> Value {
    json!({ "n": n, "text": "a long text, repeated many times; ".repeat(1_000) })
}

#[test]
fn w09_a_large_value_is_stored_separately_and_once() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, often()).unwrap();
    let creation = Creation { tool: "t".into(), session: Some("s".into()), ..Creation::default() };
    commit(&store, owner(1, 0, vec![Change::Create(creation), append(long(0))])).unwrap();
    for seq in 1..50 {
        commit(&store, owner(1, seq, vec![append(long(seq))])).unwrap();
    }
    assert_eq!(commit(&store, owner(1, 7, vec![append(long(7))])), Ok(()), "the identical commit is recognised");
    let message = Message::Signal { name: "n".into(), value: Arc::new(long(99)) };
    let mail = Change::Mail { run: run(1), message, dedupe: None };
    commit(&store, Commit { guard: Guard::Outsider, changes: vec![mail] }).unwrap();

    let check = |store: &SqliteStore| {
        let journal = block_on(store.journal(run(1), 0)).unwrap();
        assert_eq!(journal.iter().map(value).collect::<Vec<_>>(), (0..50).map(long).collect::<Vec<_>>());
        let feed = block_on(store.feed("s".into(), 48, 9)).unwrap();
        assert_eq!(feed.iter().map(|entry| value(&entry.record)).collect::<Vec<_>>(), [long(48), long(49)]);
        let mail = block_on(store.mail(run(1), 0)).unwrap();
        assert!(matches!(&mail[0].message, Message::Signal { value, .. } if **value == long(99)));
    };
    check(&store);
    drop(store);
    assert_eq!((count(&path, "blobs"), count(&path, "refs")), (1, 1), "the same text is stored once");
    assert_eq!(count(&path, "log WHERE length(body) > 1000"), 0);
    check(&SqliteStore::open(&path).unwrap());
}

#[test]
fn a_large_value_of_a_started_run_is_referenced_by_that_run() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    let creation = Creation { tool: "t".into(), ..Creation::default() };
    let start = Change::Start { run: run(2), creation, records: vec![record(long(1))] };
    commit(&store, Commit { guard: Guard::Outsider, changes: vec![start] }).unwrap();
    assert_eq!(value(&block_on(store.journal(run(2), 0)).unwrap()[0]), long(1));
    assert_eq!(block_on(store.claim(run(2), claimant())).unwrap().records.len(), 1);
    drop(store);
    assert_eq!(count(&path, "refs JOIN runs ON runs.id = refs.run"), 1);
}

#[test]
fn a_missing_large_value_is_named() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    commit(&store, owner(1, 1, vec![append(long(1))])).unwrap();
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch("DELETE FROM blobs").unwrap();
    let error = block_on(SqliteStore::open(&path).unwrap().journal(run(1), 0)).unwrap_err().to_string();
    assert!(error.contains("record 1") && error.contains("large value") && error.contains("is missing"), "{error}");
}

#[test]
fn w09_purging_a_run_removes_its_large_values() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    for n in 1..=2 {
        commit(&store, create(n)).unwrap();
        commit(&store, owner(n, 1, vec![append(long(1)), append(json!("only".repeat(9_000 + usize::from(n))))]))
            .unwrap();
        commit(&store, owner(n, 3, vec![finish()])).unwrap();
    }
    block_on(store.purge(run(1), Timestamp::default())).unwrap();
    assert_eq!(block_on(store.info(run(1))).unwrap(), None);
    let journal = block_on(store.journal(run(2), 0)).unwrap();
    assert_eq!(value(&journal[1]), long(1), "a shared value stays");
    drop(store);
    assert_eq!((count(&path, "blobs"), count(&path, "pieces"), count(&path, "refs")), (2, 2, 2));
    let report = crate::check_file(&path, |_, _| ()).unwrap();
    assert!(report.is_fine(), "{report}");
}

#[test]
fn w08_a_queued_commit_frees_the_space_of_its_large_values() {
    let change = append(json!("x".repeat(1 << 20)));
    let write = super::super::job::Write::encode(owner(1, 0, vec![change]), &keys()).unwrap();
    assert!(write.records.text.body.capacity() < 1 << 10, "{}", write.records.text.body.capacity());
    assert_eq!(write.records.text.payloads.len(), 1);
}
