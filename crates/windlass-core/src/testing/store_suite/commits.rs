//! Commits: atomic, answered in order, idempotent, and stored byte for byte.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::scene::{
    Owner, cancel, creation, doubt, due, finished, held, info, keyed, mail, must, new, park, post, record, run, start,
    text, texts,
};
use crate::limits::VALUE_DEPTH;
use crate::run::record::{Asked, Event, OpKind, Record};
use crate::run::secrets::Places;
use crate::run::state::{Blocked, RunState};
use crate::store::{Answer, Change, Commit, Creation, Guard, Store, StoreError};
use crate::testing::block_on;
use crate::tool::Effect;

pub(super) fn w08_a_refused_commit_leaves_nothing(store: &dyn Store) {
    Owner::create_as(store, 8, keyed(8, "taken"));
    let mut owner = Owner::create(store, 1);
    let before = owner.journal();
    // The last change is refused, so none of the changes before it may be written.
    let refused = owner.submit(vec![
        Change::Append(vec![record(1, json!(1))]),
        Change::Continue,
        Change::State(finished()),
        Change::Doubts(vec![doubt(1, 1)]),
        Change::Parks(vec![park(1, Blocked::Time)]),
        Change::Mail { run: owner.run, message: cancel("mine"), dedupe: None },
        Change::Mail { run: run(8), message: cancel("another's"), dedupe: None },
        start(2, new(2)),
        start(3, keyed(3, "taken")),
    ]);
    assert_eq!(refused, Err(StoreError::KeyTaken { run: run(8) }));
    assert_eq!(owner.journal(), before);
    let info = info(store, owner.run);
    assert_eq!((info.state, info.generation), (RunState::Running, 0));
    assert_eq!((info.doubts, info.parks), (vec![], vec![]));
    assert_eq!(mail(store, owner.run, 0), []);
    assert_eq!(mail(store, run(8), 0), []);
    assert_eq!(block_on(store.info(run(2))), Ok(None));
    assert_eq!(due(store, 1_000), (vec![], None));
    owner.append(json!("continues at the same sequence"));
}

pub(super) fn w08_a_commit_without_records_is_written(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    must(owner.submit(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 1)])]));
    must(owner.submit(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 1)])]));
    let info = info(store, owner.run);
    assert_eq!((info.state, info.doubts), (held(), vec![doubt(0, 1)]));
    must(owner.submit(vec![]));
}

pub(super) fn e26_secrets_are_read_back_unchanged(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, Creation { session: Some("s".into()), ..new(1) });
    let input = json!({"password": "hunter2", "list": [1, {"pin": 1234, "long": "x".repeat(40_000)}], "to": "Oslo"});
    let asked = |secrets: &[&str]| Asked {
        secrets: Places::new(secrets.iter().map(ToString::to_string).collect()),
        ..Asked::operation(OpKind::Call, "login".into(), Some(Arc::new(input.clone())), Effect::Once)
    };
    let lists: [&[&str]; 4] = [&["/password", "/list/1/pin"], &["/list"], &[""], &["/nowhere", "/list", "/list/1"]];
    let records: Vec<Record> = (1..)
        .zip(lists)
        .map(|(index, list)| Record { asked: Some(asked(list)), event: Event::Accepted, ..record(index, json!(null)) })
        .collect();
    let changes = vec![Change::Append(records.clone())];
    must(owner.submit(changes.clone()));
    assert_eq!(owner.submit(changes), Ok(()), "the identical commit again");
    owner.seq += records.len() as u64;
    assert_eq!(owner.journal()[1..], texts(&records));
    let feed: Vec<Record> = must(block_on(store.feed("s".into(), 0, 100))).into_iter().map(|it| it.record).collect();
    assert_eq!(texts(&feed)[1..], texts(&records));
    let started = Change::Start { run: run(2), creation: new(2), records: records.clone() };
    owner.write(vec![started]);
    let (_, claimed) = Owner::claim(store, run(2));
    assert_eq!((texts(&claimed.records), claimed.sealed), (texts(&records), None));
}

pub(super) fn w08_an_identical_commit_gets_the_same_answer_again(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let changes = vec![Change::Append(vec![record(1, json!({"n": 0.1})), record(2, json!([]))])];
    must(owner.submit(changes.clone()));
    let journal = owner.journal();
    assert_eq!(owner.submit(changes.clone()), Ok(()), "right after the first one");
    assert_eq!(owner.journal(), journal, "written once");

    let wrong = Err(StoreError::WrongSequence { run: owner.run, expected: 1, current: 3 });
    let other = |values: &[Value]| {
        let records = values.iter().zip(1..).map(|(value, index)| record(index, value.clone()));
        vec![Change::Append(records.collect())]
    };
    assert_eq!(owner.submit(other(&[json!({"n": 0.1}), json!({})])), wrong, "one record differs");
    assert_eq!(owner.submit(other(&[json!({"n": 0.1}), json!([]), json!(1)])), wrong, "one record more");
    assert_eq!(owner.submit(vec![Change::State(finished())]), wrong, "without a record to compare");

    let first = owner.seq;
    owner.seq = 3;
    owner.append(json!("later"));
    owner.seq = first;
    assert_eq!(owner.submit(changes), Ok(()), "after a later commit");
    assert_eq!(owner.journal().len(), 4);
}

pub(super) fn w08_a_run_is_created_once(store: &dyn Store) {
    let owner = Owner { store, run: run(1), epoch: 1, seq: 0 };
    let first = vec![creation(1), Change::Append(vec![record(0, json!("a"))]), Change::State(held())];
    must(owner.submit(first.clone()));
    assert_eq!(owner.submit(first), Ok(()), "the identical commit");
    let second = owner.submit(vec![creation(1), Change::Append(vec![record(0, json!("b"))])]);
    assert_eq!(second, Err(StoreError::WrongSequence { run: run(1), expected: 0, current: 1 }));
    let stranger = Owner { store, run: run(1), epoch: 7, seq: 0 };
    let third = stranger.submit(vec![creation(1), Change::Append(vec![record(0, json!("a"))])]);
    assert_eq!(third, Err(StoreError::Stale { run: run(1), epoch: 7, current: 1 }));
    let late = Owner { store, run: run(2), epoch: 1, seq: 3 }.submit(vec![creation(2)]);
    assert_eq!(late, Err(StoreError::WrongSequence { run: run(2), expected: 3, current: 0 }));
    let bare = Owner { store, run: run(2), epoch: 1, seq: 0 };
    must(bare.submit(vec![creation(2)]));
    assert_eq!(bare.submit(vec![creation(2)]), Ok(()), "the identical commit, without records");
    let other = bare.submit(vec![Change::Create(new(3))]);
    assert_eq!(other, Err(StoreError::WrongSequence { run: run(2), expected: 0, current: 0 }), "another run's");
    assert_eq!(owner.journal(), texts(&[record(0, json!("a"))]));
    assert_eq!(owner.state(), held());
}

pub(super) fn w08_answers_come_in_the_order_of_submission(store: &dyn Store) {
    const COMMITS: u64 = 200;

    let owner = Owner::create(store, 1);
    let answered = Arc::new(Mutex::new(Vec::new()));
    for seq in 1..=COMMITS {
        let guard = Guard::Owner { run: owner.run, epoch: 1, expected_seq: seq };
        let changes = vec![Change::Append(vec![record(0, json!(seq))])];
        let note = {
            let answered = answered.clone();
            move |result: Result<(), StoreError>| answered.lock().push((seq, result))
        };
        match store.commit(Commit { guard, changes }) {
            Answer::Ready(result) => note(result),
            Answer::Wait(ticket) => ticket.then(note),
        }
    }
    // Answers come in order, so waiting for one more commit waits for all of them.
    must(Owner { seq: COMMITS + 1, ..owner }.submit(vec![Change::State(finished())]));
    let expected: Vec<_> = (1..=COMMITS).map(|seq| (seq, Ok(()))).collect();
    assert_eq!(*answered.lock(), expected);
}

pub(super) fn w08_dropping_the_ticket_does_not_undo_the_write(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    let guard = Guard::Owner { run: owner.run, epoch: 1, expected_seq: 1 };
    drop(store.commit(Commit { guard, changes: vec![Change::Append(vec![record(1, json!(1))])] }));
    Owner { seq: 2, ..owner }.append(json!("finds it there"));
}

pub(super) fn w08_every_value_survives_byte_for_byte(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let values = [
        json!([0.1 + 0.2, 1e300, 5e-324, -0.0, 1.0, f64::MAX, f64::MIN_POSITIVE]),
        json!([u64::MAX, i64::MIN, i64::MAX, 0, -1, 9_007_199_254_740_993_u64]),
        json!("Grüße, 世界 🎻 \u{0} \u{7f} \u{2028} \u{feff} \u{10ffff} e\u{301} \" \\ / \r\n\t"),
        json!({"": {"ключ": null}, "a b": [true, false, [], {}]}),
    ];
    let mut expected = owner.journal();
    for (value, index) in values.into_iter().zip(1..) {
        expected.push(text(&record(index, value.clone())));
        owner.append(value);
    }
    assert_eq!(owner.journal(), expected);
    let (_, claimed) = Owner::claim(store, owner.run);
    assert_eq!(texts(&claimed.records), expected);
    let message = cancel("weil es 🌧 — \u{0} '; DROP TABLE runs; --");
    must(post(store, owner.run, message.clone()));
    assert_eq!(mail(store, owner.run, 0), [(1, text(&message))]);
}

pub(super) fn w08_big_and_deep_records_survive(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let big = json!("ü".repeat(1 << 19));
    let mut deep = json!("bottom");
    // The deepest value that a call may have; its record is nested more deeply.
    for level in 1..VALUE_DEPTH {
        deep = if level % 2 == 0 { json!([deep]) } else { json!({"in": deep}) };
    }
    let many: Vec<Record> = (3..2_003).map(|index| record(index, json!(index))).collect();
    let mut expected = owner.journal();
    expected.extend(texts(&[record(1, big.clone()), record(2, deep.clone())]));
    expected.extend(texts(&many));
    owner.append(big);
    owner.append(deep);
    owner.write(vec![Change::Append(many)]);
    // `assert_eq` would print megabytes.
    assert!(owner.journal() == expected, "the journal is not what was written");
}

pub(super) fn w08_many_runs_interleave(store: &dyn Store) {
    const RUNS: u8 = 8;
    const RECORDS: u32 = 50;
    std::thread::scope(|scope| {
        for n in 1..=RUNS {
            scope.spawn(move || {
                let mut owner = Owner::create(store, n);
                for index in 1..RECORDS {
                    owner.append(json!([n, index]));
                    must(post(store, run(n), cancel(&format!("{n} {index}"))));
                }
            });
        }
    });
    for n in 1..=RUNS {
        let values = (1..RECORDS).map(|index| record(index, json!([n, index])));
        let expected: Vec<_> = std::iter::once(record(0, json!("created"))).chain(values).collect();
        assert_eq!(texts(&must(block_on(store.journal(run(n), 0)))), texts(&expected));
        let messages = (1..RECORDS).map(|index| (u64::from(index), text(&cancel(&format!("{n} {index}")))));
        assert_eq!(mail(store, run(n), 0), messages.collect::<Vec<_>>());
    }
}
