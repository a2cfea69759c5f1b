//! Packed journals read as before.

use windlass_core::store::{Entry, Promise};

use super::super::db_file::DbFile;
use super::super::job::{Job, Write};
use super::super::{open, pack};
use super::*;

/// Options that pack whenever there is something to pack.
pub(super) fn often() -> Options {
    Options { unpacked: 96, ..Options::from(Durability::Relaxed) }
}

const RUNS: u8 = 3;
const RECORDS: u64 = 120;

/// Writes runs of one session alternately, so that their segments overlap. Continues until something was packed, which
/// happens in the background.
pub(super) fn fill(store: &SqliteStore) {
    for n in 1..=RUNS {
        let creation = Creation { tool: "t".into(), session: Some("s".into()), ..Creation::default() };
        commit(store, owner(n, 0, vec![Change::Create(creation), append(json!([n, 0]))])).unwrap();
    }
    // A commit has one or two records.
    let mut seqs = [1; RUNS as usize + 1];
    while seqs[1] < RECORDS || (count(store.path(), "segments") == 0 && seqs[1] < 100 * RECORDS) {
        for n in 1..=RUNS {
            let seq = &mut seqs[usize::from(n)];
            let records = (0..=*seq % 2).map(|more| record(json!([n, *seq + more]))).collect::<Vec<_>>();
            let count = records.len() as u64;
            commit(store, owner(n, *seq, vec![Change::Append(records)])).unwrap();
            *seq += count;
        }
    }
}

pub(super) fn count(path: &std::path::Path, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    open::observer(path).unwrap().query_row(&sql, [], |row| row.get(0)).unwrap()
}

pub(super) fn value(record: &Record) -> Value {
    let Event::Finished(finished) = &record.event else { panic!("{record:?}") };
    let Ok(output) = &finished.result else { panic!("{record:?}") };
    output.value.clone()
}

fn check(store: &SqliteStore) {
    for n in 1..=RUNS {
        let journal = block_on(store.journal(run(n), 0)).unwrap();
        let expected: Vec<Value> = (0..journal.len()).map(|seq| json!([n, seq])).collect();
        assert!(journal.len() as u64 >= RECORDS);
        assert_eq!(journal.iter().map(value).collect::<Vec<_>>(), expected);
        for from in (0..RECORDS + 3).step_by(7) {
            for limit in [0, 1, 2, 30] {
                let page = block_on(store.page(run(n), from, limit)).unwrap();
                let from = usize::try_from(from).unwrap().min(expected.len());
                let upto = (from + limit).min(expected.len());
                assert_eq!(page.iter().map(value).collect::<Vec<_>>(), expected[from..upto], "{limit} from {from}");
            }
        }
    }
    let all = feed(store, usize::MAX);
    assert!(all.is_sorted_by_key(|entry| entry.0));
    assert_eq!(feed(store, 7), all, "in pages");
}

fn feed(store: &SqliteStore, limit: usize) -> Vec<(u64, RunId, u64, Value)> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |entry| entry.position);
        let page = block_on(store.feed("s".into(), after, limit)).unwrap();
        if page.is_empty() {
            return entries.iter().map(|entry| (entry.position, entry.run, entry.seq, value(&entry.record))).collect();
        }
        entries.extend(page);
    }
}

#[test]
fn w09_packed_records_read_as_before() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, often()).unwrap();
    fill(&store);
    check(&store);
    let before = feed(&store, usize::MAX);
    drop(store);
    assert!(count(&path, "segments") > 0, "something was packed");
    let twice = "log JOIN segments ON segments.run = log.run AND log.seq BETWEEN segments.seq
                 AND segments.seq + segments.count - 1";
    assert_eq!(count(&path, twice), 0, "no record is stored twice");
    let store = SqliteStore::open(&path).unwrap();
    check(&store);
    assert_eq!(feed(&store, usize::MAX), before);
    let claimed = block_on(store.claim(run(1), claimant())).unwrap();
    assert_eq!(claimed.records.len() as u64, claimed.seq);
}

#[test]
fn l22_a_packed_commit_that_is_submitted_again_is_recognised() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, often()).unwrap();
    fill(&store);
    let again = |seq: u64, first: Value, second: Value| owner(1, seq, vec![append(first), append(second)]);
    assert_eq!(commit(&store, again(3, json!([1, 3]), json!([1, 4]))), Ok(()));
    let other = commit(&store, again(3, json!([1, 3]), json!("other")));
    assert!(matches!(other, Err(StoreError::WrongSequence { expected: 3, .. })), "{other:?}");
    let shifted = commit(&store, again(4, json!([1, 4]), json!([1, 5])));
    assert!(matches!(shifted, Err(StoreError::WrongSequence { expected: 4, .. })), "{shifted:?}");
}

#[test]
fn positions_continue_when_the_log_is_empty() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, often()).unwrap();
    fill(&store);
    let last = feed(&store, usize::MAX).last().unwrap().0;
    drop(store);
    // As if everything had been packed, and purged.
    let file = edit(&path);
    file.execute_batch("UPDATE file SET packed = (SELECT max(position) FROM log); DELETE FROM log").unwrap();
    drop(file);
    let store = SqliteStore::open(&path).unwrap();
    let creation = Creation { session: Some("s".into()), ..Creation::default() };
    commit(&store, owner(9, 0, vec![Change::Create(creation), append(json!([9, 0]))])).unwrap();
    assert_eq!(block_on(store.feed("s".into(), last, 9)).unwrap().len(), 1);
}

#[test]
fn a_person_can_read_what_is_in_the_file() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, often()).unwrap();
    fill(&store);
    commit(&store, cancel(1)).unwrap();
    let reader = open::observer(&path).unwrap();
    let sql = "SELECT run, seq, record ->> '$.event.type' FROM journal WHERE run = ?1 ORDER BY seq LIMIT 2 OFFSET 9";
    let mut statement = reader.prepare(sql).unwrap();
    let rows = statement.query_map([run(2).to_string()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let rows: Vec<(String, i64, String)> = rows.collect::<Result<_, _>>().unwrap();
    let id = run(2).to_string();
    assert_eq!(rows, [(id.clone(), 9, "finished".to_owned()), (id, 10, "finished".to_owned())]);
    let session: String =
        reader.query_row("SELECT session FROM run WHERE state = 'running' LIMIT 1", [], |row| row.get(0)).unwrap();
    assert_eq!(session, "s");
}

/// The row of a suspended or finished run has the tail of its journal. The segments were prepared before that.
#[test]
fn w09_a_run_suspended_or_finished_in_the_group_that_packs_it_keeps_its_tail() {
    for rest in [RunState::Suspended { wake: None }, RunState::Finished { ending: Ending::Ok }] {
        let (_directory, path) = temp_db();
        let mut writer = group::writer(&path);
        let mut commits = vec![create(1), cancel(1)];
        commits.extend((1..10).map(|seq| owner(1, seq, vec![append(json!(seq))])));
        assert!(group::group(&mut writer, commits).iter().all(Result::is_ok));
        let packed = pack::prepare(&DbFile::of(path, &Options::default()), 0, 10).unwrap();
        assert_eq!(packed.segments.len(), 1);
        let write = Write::encode(owner(1, 10, vec![append(json!("last")), Change::State(rest)]), &keys()).unwrap();
        let ((promise, written), (done, exchanged)) = (Promise::pair(), Promise::pair());
        writer.write(&mut vec![Job::Write(write.into(), promise), Job::Pack(packed, done)]).send();
        assert_eq!((block_on(written), block_on(exchanged)), (Ok(()), Ok(())));
        // The run is read from the file again.
        writer.forget_heads_for_test();
        assert_eq!(group::group(&mut writer, vec![owner(1, 11, vec![append(json!("goes on"))])]), [Ok(())]);
    }
}
