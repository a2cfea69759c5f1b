//! Torn tails: the write-ahead log is cut at every frame and inside it, as after a power cut, and filled with garbage.
//! Every such file opens, and contains every commit that was acknowledged up to there.

mod wal;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::run::record::{Event, Finished, Record};
use windlass::run::{Filter, RunState, Times};
use windlass::store::{Driving, Durability, SqliteStore, Store};
use windlass::testing::block_on;
use windlass::{Output, RunId, Timestamp};
use windlass_core::Path as Place;
use windlass_core::WorkerId;
use windlass_core::store::{Change, Commit, Creation, Guard, Message};

use crate::kill::{complaints, ledger_path, run_watched};
use crate::kill_mixed::{Dice, Plan, judge};
use crate::world::scratch;
use wal::{Wal, wal_path};

/// Runs that are written in turn.
const RUNS: u8 = 4;
/// Rounds of writing: enough for some hundred frames.
const ROUNDS: u64 = 3;

fn run(n: u8) -> RunId {
    RunId::from_bytes([n; 16])
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(micros).expect("it is small"))
}

fn record(seq: u64, value: Value) -> Record {
    let result = Ok(Arc::new(Output::value(value)));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
    let path = Place::root().child(u32::try_from(seq).expect("it is small"));
    Record { path, at: at(seq), asked: None, event: Event::Finished(finished) }
}

fn owner(n: u8, seq: u64, changes: Vec<Change>) -> Commit {
    Commit { guard: Guard::Owner { run: run(n), epoch: 1, expected_seq: seq }, changes }
}

fn creation(n: u8) -> Creation {
    Creation {
        tool: format!("tool-{n}").into(),
        at: at(n.into()),
        key: Some(format!("{n}").into()),
        ..Creation::default()
    }
}

/// Commits of every kind, in order: records small and large, mail, parks, other runs, ends.
fn commits() -> Vec<Commit> {
    let mut commits = Vec::new();
    for n in 1..=RUNS {
        commits.push(owner(n, 0, vec![Change::Create(creation(n)), Change::Append(vec![record(0, json!("created"))])]));
    }
    for seq in 1..=ROUNDS {
        for n in 1..=RUNS {
            // One in five is larger than a page, and larger than an inline value.
            let value =
                if (seq + u64::from(n)).is_multiple_of(5) { json!("long ".repeat(4_000)) } else { json!([n, seq]) };
            let mut changes = vec![Change::Append(vec![record(seq, value)])];
            if n == 2 {
                let child = 100 + u8::try_from(seq).expect("it is small");
                let records = vec![record(0, json!("started"))];
                changes.push(Change::Start { run: run(child), creation: creation(child), records });
            }
            commits.push(owner(n, seq, changes));
        }
        let message = Message::Cancel { by: "ada".to_owned(), reason: format!("for the time number {seq}") };
        let mail = Change::Mail { run: run(1), message, dedupe: Some(format!("{seq}").into()) };
        commits.push(Commit { guard: Guard::Outsider, changes: vec![mail] });
    }
    let next = ROUNDS + 1;
    commits.push(owner(3, next, vec![Change::State(RunState::Suspended { wake: Some(at(9)) })]));
    let end = RunState::Finished { ending: windlass::run::Ending::Ok };
    commits.push(owner(4, next, vec![Change::Append(vec![record(next, json!("done"))]), Change::State(end)]));
    commits
}

/// The whole content of the store.
fn look(store: &dyn Store) -> Vec<String> {
    let mut lines = Vec::new();
    for info in block_on(store.list(Filter::default(), None, 1_000)).expect("the runs") {
        lines.push(format!("{info:?}"));
        let journal = block_on(store.journal(info.run, 0)).expect("its journal");
        lines.push(serde_json::to_string(&journal).expect("JSON"));
        lines.push(format!("{:?}", block_on(store.mail(info.run, 0)).expect("its mail")));
    }
    lines
}

/// A file that was written and not closed.
struct UnclosedFile {
    database: Vec<u8>,
    wal: Wal,
    /// The content after each commit, and the end of the log at that time.
    acknowledged: Vec<(usize, Vec<String>)>,
}

/// Writes all commits one after the other and copies the files of the open store.
fn write() -> UnclosedFile {
    let dir = scratch();
    let path = dir.path().join("app.db");
    let store = SqliteStore::open_with(&path, Durability::Full).expect("it opens");
    let database = std::fs::read(&path).expect("the file is there");
    let salts = Wal::read(&path).salts().to_vec();
    let mut acknowledged = vec![(Wal::read(&path).end(), look(&store))];
    for commit in commits() {
        block_on(store.commit(commit).get()).expect("it is taken");
        acknowledged.push((Wal::read(&path).end(), look(&store)));
    }
    let wal = Wal::read(&path);
    assert_eq!(wal.salts(), salts, "the log must not begin again in the midst of this");
    assert_eq!(std::fs::read(&path).expect("the file is there"), database, "nor be moved into the file");
    UnclosedFile { database, wal, acknowledged }
}

/// Creates a file with a log as a power cut left it.
fn put(dir: &Path, database: &[u8], wal: &[u8]) -> PathBuf {
    let path = dir.join("app.db");
    std::fs::write(&path, database).expect("the file is written");
    std::fs::write(wal_path(&path), wal).expect("its log is written");
    path
}

impl UnclosedFile {
    /// Opens a file whose log is valid only up to `cut`.
    fn check(&self, wal: &[u8], cut: usize, what: &str) {
        let place = format!("{what} at {cut} of {}", self.wal.bytes.len());
        let dir = scratch();
        let path = put(dir.path(), &self.database, wal);
        let store =
            SqliteStore::open_with(&path, Durability::Relaxed).unwrap_or_else(|error| panic!("{place}: {error}"));
        let found = look(&store);
        let least = self.acknowledged.iter().rposition(|(end, _)| *end <= cut);
        let whole = self.acknowledged.iter().rposition(|(_, state)| *state == found);
        // A file whose beginning was cut is a new one.
        let empty = least.is_none() && found.is_empty();
        assert!(
            empty || whole >= least && whole.is_some(),
            "{place}: {least:?} commits were acknowledged, {whole:?} are there: {found:?}"
        );
        goes_on(&store, &place);
    }
}

/// The store accepts new commits, of existing and of new runs.
fn goes_on(store: &dyn Store, place: &str) {
    let by = WorkerId::from_number(7);
    let mut written = Vec::new();
    for info in block_on(store.list(Filter::running(), None, 1_000)).expect("the runs") {
        let claimed = block_on(store.claim(info.run, by)).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(claimed.seq, claimed.records.len() as u64, "{place}: a journal with a gap");
        let guard = Guard::Owner { run: info.run, epoch: claimed.epoch, expected_seq: claimed.seq };
        let changes = vec![Change::Append(vec![record(claimed.seq, json!("goes on"))])];
        written.push((info.run, claimed.seq + 1, store.commit(Commit { guard, changes })));
    }
    let n = 200;
    let changes = vec![Change::Create(creation(n)), Change::Append(vec![record(0, json!("new"))])];
    written.push((run(n), 1, store.commit(owner(n, 0, changes))));
    for (run, length, answer) in written {
        block_on(answer.get()).unwrap_or_else(|error| panic!("{place}: {error}"));
        let journal = block_on(store.journal(run, 0)).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(journal.len() as u64, length, "{place}");
    }
}

#[test]
fn w08_a_log_cut_anywhere_opens_with_everything_acknowledged_before() {
    let left = write();
    let frames = left.wal.frames();
    assert!(frames.len() >= 50, "only {} frames", frames.len());
    for (start, end) in frames {
        // Before the frame, within its header, after it, within its page, and one byte short.
        for cut in [start, start + 11, start + 24, usize::midpoint(start, end), end - 1] {
            left.check(&left.wal.bytes[..cut], cut, "cut");
        }
    }
    left.check(&left.wal.bytes, left.wal.bytes.len(), "whole");
    println!("{} frames", left.wal.frames().len());
    for cut in [0, 1, 31, 32] {
        left.check(&left.wal.bytes[..cut], cut, "cut");
    }
}

#[test]
fn w08_garbage_in_the_log_ends_it_there() {
    let left = write();
    let mut dice = Dice::new(1);
    for (n, (start, end)) in left.wal.frames().into_iter().enumerate() {
        let cut = start + dice.below(end - start);
        let mut tail = left.wal.bytes.clone();
        match n % 3 {
            0 => tail[cut..].fill(0),
            1 => tail[cut..].fill_with(|| u8::try_from(dice.below(256)).expect("a byte")),
            // One bit that was not written, and everything after it that was.
            _ => tail[cut] ^= 1 << dice.below(8),
        }
        left.check(&tail, start, ["zeros", "noise", "a hole"][n % 3]);
    }
}

/// What is known of a child's file at one of its points.
struct Moment {
    /// The end of its log.
    wal: usize,
    /// The length of the ledger.
    ledger: usize,
}

#[test]
fn w08_w01_mixed_work_continues_after_a_power_cut() {
    let dir = scratch();
    let plan = Plan { seed: 6, full: true };
    plan.write(dir.path());
    let path = dir.path().join("app.db");
    let (mut moments, mut database) = (Vec::new(), Vec::new());
    let ended = run_watched("kill_mixed::child", dir.path(), 0, |point| {
        match point {
            "opened" => database = std::fs::read(&path).expect("the file is there"),
            "after commit" => moments.push(Moment {
                wal: Wal::read(&path).end(),
                ledger: std::fs::metadata(ledger_path(dir.path()))
                    .map_or(0, |data| data.len())
                    .try_into()
                    .expect("small"),
            }),
            _ => {}
        }
        moments.len() < 90
    });
    assert!(ended.is_none(), "there is more to do than that");
    assert_eq!(std::fs::read(&path).expect("the file is there"), database, "nothing was moved into the file");
    let wal = Wal::read(&path);
    let ledger = std::fs::read(ledger_path(dir.path())).expect("the ledger is there");
    let mut dice = Dice::new(6);
    for cut in 0..12 {
        // Between two acknowledgements: nothing after the first is certain, and no effect has followed from the second
        // yet.
        let n = cut * (moments.len() - 1) / 12 + dice.below(8);
        let (first, second) = (&moments[n], &moments[n + 1]);
        let torn = first.wal + dice.below(second.wal - first.wal + 1);
        let after = scratch();
        plan.write(after.path());
        put(after.path(), &database, &wal.bytes[..torn]);
        std::fs::write(ledger_path(after.path()), &ledger[..second.ledger]).expect("the ledger is written");
        let result = run_watched("kill_mixed::child", after.path(), 64, |_| true);
        assert!(result.is_some(), "cut at {torn}, after commit {n}: {}", complaints(after.path()));
        judge::check_plan(after.path(), &plan);
    }
}
