//! What every [`Store`] must do, as checks that run against any of them.
//!
//! The author of a store writes one test:
//!
//! ```
//! # use std::sync::Arc;
//! # use windlass_core::store::MemoryStore;
//! windlass_core::testing::store_suite::run_all(|| Arc::new(MemoryStore::new()));
//! ```

mod scene;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::scene::{claimant, 
    Owner, at, cancel, creation, doubt, finished, held, info, mail, must, post, record, run, settle, text, texts,
};
use super::block_on;
use crate::limits::VALUE_DEPTH;
use crate::run::record::Record;
use crate::run::state::RunState;
use crate::store::{Answer, Change, Commit, Filter, Guard, Store, StoreError};

/// One thing a store must do.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// Says what.
    pub name: &'static str,
    /// Panics if an empty store does not do it.
    pub check: fn(&dyn Store),
}

macro_rules! behaviours {
    ($($name:ident,)*) => {
        /// Every behaviour, each to be checked on an empty store of its own.
        pub const BEHAVIOURS: &[Behaviour] = &[$(Behaviour { name: stringify!($name), check: $name },)*];
    };
}

behaviours![
    w08_a_refused_commit_leaves_nothing,
    w08_a_commit_without_records_is_written,
    w08_the_identical_commit_again_is_answered_as_the_first_time,
    w08_a_run_is_created_once,
    w08_answers_come_in_the_order_of_submission,
    w08_dropping_the_ticket_does_not_undo_the_write,
    w08_every_value_survives_byte_for_byte,
    w08_big_and_deep_records_survive,
    w08_many_runs_interleave,
    l22_a_stale_owner_cannot_write,
    l22_a_write_out_of_sequence_is_refused,
    l22_an_outsider_cannot_write_a_journal,
    a_run_that_is_not_there_is_said_not_to_be_there,
    a_claim_returns_everything,
    a_claim_lets_a_held_run_go_on,
    a_claim_of_a_finished_run_is_refused,
    a_claim_tells_whether_the_last_owner_ended_well,
    a_claim_calls_no_owner_dead_that_may_be_alive,
    mail_has_positions_that_are_never_used_again,
    mail_to_a_finished_run_is_refused_unless_it_settles_an_open_doubt,
    lists_filter_and_turn_pages,
];

/// Checks every behaviour, each on an empty store that `make` returns.
///
/// # Panics
///
/// If the store fails any of them; the message names each that failed, and how.
pub fn run_all(mut make: impl FnMut() -> Arc<dyn Store>) {
    let failures: Vec<String> = BEHAVIOURS
        .iter()
        .filter_map(|behaviour| {
            let store = make();
            let problem = catch_unwind(AssertUnwindSafe(|| (behaviour.check)(&*store))).err()?;
            let text = problem.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| problem.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            Some(format!("\n- {}: {text}", behaviour.name))
        })
        .collect();
    let (failed, all) = (failures.len(), BEHAVIOURS.len());
    assert!(failures.is_empty(), "the store fails {failed} of {all} behaviours:{}", failures.concat());
}

fn w08_a_refused_commit_leaves_nothing(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let before = owner.journal();
    // The last change is refused, so nothing before it counts either.
    let refused = owner.submit(vec![
        Change::Append(vec![record(1, json!(1))]),
        Change::State(finished()),
        Change::Doubts(vec![doubt(1, 1)]),
        Change::Mail { run: owner.run, message: cancel("mine"), dedupe: None },
        Change::Mail { run: run(9), message: cancel("nobody's"), dedupe: None },
    ]);
    assert_eq!(refused, Err(StoreError::NoSuchRun(run(9))));
    assert_eq!(owner.journal(), before);
    let info = info(store, owner.run);
    assert_eq!((info.state, info.doubts), (RunState::Running, vec![]));
    assert_eq!(mail(store, owner.run, 0), []);
    owner.append(json!("goes on at the same place"));
}

fn w08_a_commit_without_records_is_written(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    must(owner.submit(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 1)])]));
    must(owner.submit(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 1)])]));
    let info = info(store, owner.run);
    assert_eq!((info.state, info.doubts), (held(), vec![doubt(0, 1)]));
    must(owner.submit(vec![]));
}

fn w08_the_identical_commit_again_is_answered_as_the_first_time(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let changes = vec![Change::Append(vec![record(1, json!({"n": 0.1})), record(2, json!([]))])];
    must(owner.submit(changes.clone()));
    let journal = owner.journal();
    assert_eq!(owner.submit(changes.clone()), Ok(()), "right after the first");
    assert_eq!(owner.journal(), journal, "written once");

    let wrong = Err(StoreError::WrongSequence { run: owner.run, expected: 1, current: 3 });
    let other = |values: &[Value]| {
        let records = values.iter().zip(1..).map(|(value, place)| record(place, value.clone()));
        vec![Change::Append(records.collect())]
    };
    assert_eq!(owner.submit(other(&[json!({"n": 0.1}), json!({})])), wrong, "one record differs");
    assert_eq!(owner.submit(other(&[json!({"n": 0.1}), json!([]), json!(1)])), wrong, "one record more");
    assert_eq!(owner.submit(vec![Change::State(finished())]), wrong, "no record to know it by");

    let first = owner.seq;
    owner.seq = 3;
    owner.append(json!("later"));
    owner.seq = first;
    assert_eq!(owner.submit(changes), Ok(()), "after a later commit");
    assert_eq!(owner.journal().len(), 4);
}

fn w08_a_run_is_created_once(store: &dyn Store) {
    let owner = Owner { store, run: run(1), epoch: 1, seq: 0 };
    let first = vec![creation(1), Change::Append(vec![record(0, json!("a"))]), Change::State(held())];
    must(owner.submit(first.clone()));
    assert_eq!(owner.submit(first), Ok(()), "the identical commit");
    let second = owner.submit(vec![creation(1), Change::Append(vec![record(0, json!("b"))])]);
    assert_eq!(second, Err(StoreError::WrongSequence { run: run(1), expected: 0, current: 1 }));
    let stranger = Owner { store, run: run(1), epoch: 7, seq: 0 };
    let third = stranger.submit(vec![creation(1), Change::Append(vec![record(0, json!("a"))])]);
    assert_eq!(third, Err(StoreError::Stale { run: run(1), epoch: 7, current: 1 }));
    assert_eq!(owner.journal(), texts(&[record(0, json!("a"))]));
    assert_eq!(owner.state(), held());
}

fn w08_answers_come_in_the_order_of_submission(store: &dyn Store) {
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
    // The last answer comes last, so waiting for one more commit waits for all of them.
    must(Owner { seq: COMMITS + 1, ..owner }.submit(vec![Change::State(finished())]));
    let expected: Vec<_> = (1..=COMMITS).map(|seq| (seq, Ok(()))).collect();
    assert_eq!(*answered.lock(), expected);
}

fn w08_dropping_the_ticket_does_not_undo_the_write(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    let guard = Guard::Owner { run: owner.run, epoch: 1, expected_seq: 1 };
    drop(store.commit(Commit { guard, changes: vec![Change::Append(vec![record(1, json!(1))])] }));
    Owner { seq: 2, ..owner }.append(json!("finds it there"));
}

fn w08_every_value_survives_byte_for_byte(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let values = [
        json!([0.1 + 0.2, 1e300, 5e-324, -0.0, 1.0, f64::MAX, f64::MIN_POSITIVE]),
        json!([u64::MAX, i64::MIN, i64::MAX, 0, -1, 9_007_199_254_740_993_u64]),
        json!("Grüße, 世界 🎻 \u{0} \u{7f} \u{2028} \u{feff} \u{10ffff} e\u{301} \" \\ / \r\n\t"),
        json!({"": {"ключ": null}, "a b": [true, false, [], {}]}),
    ];
    let mut expected = owner.journal();
    for (value, place) in values.into_iter().zip(1..) {
        expected.push(text(&record(place, value.clone())));
        owner.append(value);
    }
    assert_eq!(owner.journal(), expected);
    let (_, claimed) = Owner::claim(store, owner.run);
    assert_eq!(texts(&claimed.records), expected);
    let message = cancel("weil es 🌧 — \u{0} '; DROP TABLE runs; --");
    must(post(store, owner.run, message.clone()));
    assert_eq!(mail(store, owner.run, 0), [(1, text(&message))]);
}

fn w08_big_and_deep_records_survive(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let big = json!("ü".repeat(1 << 19));
    let mut deep = json!("bottom");
    // The deepest value a call may have; its record is deeper still.
    for level in 1..VALUE_DEPTH {
        deep = if level % 2 == 0 { json!([deep]) } else { json!({"in": deep}) };
    }
    let many: Vec<Record> = (3..2_003).map(|place| record(place, json!(place))).collect();
    let mut expected = owner.journal();
    expected.extend(texts(&[record(1, big.clone()), record(2, deep.clone())]));
    expected.extend(texts(&many));
    owner.append(big);
    owner.append(deep);
    owner.write(vec![Change::Append(many)]);
    // Not `assert_eq`, which would print megabytes.
    assert!(owner.journal() == expected, "the journal is not what was written");
}

fn w08_many_runs_interleave(store: &dyn Store) {
    const RUNS: u8 = 8;
    const RECORDS: u32 = 50;
    std::thread::scope(|scope| {
        for n in 1..=RUNS {
            scope.spawn(move || {
                let mut owner = Owner::create(store, n);
                for place in 1..RECORDS {
                    owner.append(json!([n, place]));
                    must(post(store, run(n), cancel(&format!("{n} {place}"))));
                }
            });
        }
    });
    for n in 1..=RUNS {
        let values = (1..RECORDS).map(|place| record(place, json!([n, place])));
        let expected: Vec<_> = std::iter::once(record(0, json!("created"))).chain(values).collect();
        assert_eq!(texts(&must(block_on(store.journal(run(n), 0)))), texts(&expected));
        let letters = (1..RECORDS).map(|place| (u64::from(place), text(&cancel(&format!("{n} {place}")))));
        assert_eq!(mail(store, run(n), 0), letters.collect::<Vec<_>>());
    }
}

fn l22_a_stale_owner_cannot_write(store: &dyn Store) {
    let old = Owner::create(store, 1);
    Owner::create(store, 2);
    must(post(store, old.run, cancel("unread")));
    let (new, _) = Owner::claim(store, old.run);
    assert!(new.epoch > old.epoch, "a claim raises the epoch");
    let writes = [
        vec![Change::Append(vec![record(1, json!(1))])],
        vec![Change::State(finished())],
        vec![Change::Doubts(vec![doubt(0, 1)])],
        vec![Change::Examined(1)],
        vec![Change::Mail { run: run(2), message: cancel("too late"), dedupe: None }],
        vec![Change::Append(vec![record(0, json!("created"))])],
        vec![],
    ];
    for changes in writes {
        let refused = Err(StoreError::Stale { run: old.run, epoch: old.epoch, current: new.epoch });
        assert_eq!(old.submit(changes.clone()), refused, "{changes:?}");
    }
    let early = Owner { epoch: new.epoch + 1, ..old };
    let refused = Err(StoreError::Stale { run: new.run, epoch: early.epoch, current: new.epoch });
    assert_eq!(early.submit(vec![Change::State(finished())]), refused, "an epoch nobody has yet");

    let info = info(store, new.run);
    assert_eq!((info.state, info.doubts), (RunState::Running, vec![]));
    assert_eq!(new.journal().len(), 1);
    assert_eq!(mail(store, run(2), 0), []);
    let (mut newest, claimed) = Owner::claim(store, new.run);
    assert_eq!(claimed.mail.len(), 1, "the stale owner examined nothing");
    newest.append(json!("the owner can"));
}

fn l22_a_write_out_of_sequence_is_refused(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.append(json!("second"));
    for expected in [0, 1, 3, u64::MAX] {
        let lost = Owner { seq: expected, ..owner };
        let refused = Err(StoreError::WrongSequence { run: owner.run, expected, current: 2 });
        assert_eq!(lost.submit(vec![Change::Append(vec![record(7, json!("?"))])]), refused);
        assert_eq!(lost.submit(vec![Change::State(finished())]), refused);
    }
    assert_eq!(owner.journal().len(), 2);
    assert_eq!(owner.state(), RunState::Running);
}

fn l22_an_outsider_cannot_write_a_journal(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    let writes = [
        creation(2),
        Change::Append(vec![record(1, json!(1))]),
        Change::State(finished()),
        Change::Doubts(vec![doubt(0, 1)]),
        Change::Examined(1),
    ];
    for change in writes {
        let changes = vec![Change::Mail { run: owner.run, message: cancel("and more"), dedupe: None }, change];
        let answer = block_on(store.commit(Commit { guard: Guard::Outsider, changes: changes.clone() }).get());
        assert!(answer.is_err(), "accepted from an outsider: {changes:?}");
    }
    assert_eq!(owner.journal().len(), 1);
    assert_eq!(owner.state(), RunState::Running);
    assert_eq!(mail(store, owner.run, 0), []);
}

fn a_run_that_is_not_there_is_said_not_to_be_there(store: &dyn Store) {
    let missing = StoreError::NoSuchRun(run(1));
    let owner = Owner { store, run: run(1), epoch: 1, seq: 0 };
    assert_eq!(owner.submit(vec![Change::State(finished())]), Err(missing.clone()));
    assert_eq!(post(store, run(1), cancel("?")), Err(missing.clone()));
    assert_eq!(block_on(store.claim(run(1), claimant())).err(), Some(missing.clone()));
    assert_eq!(block_on(store.journal(run(1), 0)).err(), Some(missing.clone()));
    assert_eq!(block_on(store.mail(run(1), 0)).err(), Some(missing));
    assert_eq!(block_on(store.info(run(1))), Ok(None));
    assert_eq!(block_on(store.list(Filter::All, None, 10)), Ok(vec![]));
}

fn a_claim_returns_everything(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    for place in 1..20 {
        owner.append(json!({"place": place}));
    }
    for reason in ["one", "two", "three"] {
        must(post(store, owner.run, cancel(reason)));
    }
    owner.write(vec![Change::Examined(1)]);
    let journal = owner.journal();
    let (mut next, claimed) = Owner::claim(store, owner.run);
    assert_eq!(claimed.epoch, 2);
    assert_eq!(texts(&claimed.records), journal);
    assert_eq!(claimed.mail.iter().map(|mail| mail.position).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(text(&claimed.mail[0].message), text(&cancel("two")));
    next.append(json!("and drives it on"));
}

fn a_claim_lets_a_held_run_go_on(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 2)])]);
    assert_eq!(owner.state(), held());
    let (next, _) = Owner::claim(store, owner.run);
    assert_eq!(next.state(), RunState::Running);
    assert_eq!(info(store, owner.run).doubts, [doubt(0, 2)], "a doubt stays until it is settled");
}

fn a_claim_of_a_finished_run_is_refused(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::State(finished())]);
    assert_eq!(block_on(store.claim(owner.run, claimant())).err(), Some(StoreError::Finished(owner.run)));
    assert_eq!(owner.state(), finished());
    assert_eq!(owner.journal().len(), 1, "it can still be read");
}

fn a_claim_tells_whether_the_last_owner_ended_well(store: &dyn Store) {
    let first = Owner::create(store, 1);
    let (second, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the first just stopped writing");
    must(block_on(store.release(first.run, first.epoch)));
    let (third, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the first had no say any more, and the second said nothing");
    assert!(third.epoch > second.epoch);
    must(block_on(store.release(third.run, third.epoch)));
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(claimed.orderly, "the third gave it up");
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "that was said of the third, not of the fourth");
}

fn a_claim_calls_no_owner_dead_that_may_be_alive(store: &dyn Store) {
    let first = Owner::create(store, 1);
    let (second, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.owners_dead, "the first may have an attempt running");
    must(block_on(store.release(second.run, second.epoch)));
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.owners_dead, "the first still may, although the second ended well");
}

fn mail_has_positions_that_are_never_used_again(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    Owner::create(store, 2);
    for (n, reason) in [(1, "a"), (2, "b"), (1, "c")] {
        must(post(store, run(n), cancel(reason)));
    }
    assert_eq!(mail(store, run(1), 0), [(1, text(&cancel("a"))), (2, text(&cancel("c")))]);
    assert_eq!(mail(store, run(2), 0), [(1, text(&cancel("b")))]);
    assert_eq!(mail(store, run(1), 1), [(2, text(&cancel("c")))]);
    owner.write(vec![Change::Examined(2)]);
    must(post(store, run(1), cancel("d")));
    assert_eq!(mail(store, run(1), 2), [(3, text(&cancel("d")))]);
    assert_eq!(mail(store, run(1), 3), []);
    // Also when nothing is left that a position could be counted from.
    let (_, claimed) = Owner::claim(store, run(1));
    assert_eq!(claimed.mail.iter().map(|mail| mail.position).collect::<Vec<_>>(), [3]);
}

fn mail_to_a_finished_run_is_refused_unless_it_settles_an_open_doubt(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::Doubts(vec![doubt(3, 2)]), Change::State(finished())]);
    let refused = Err(StoreError::Finished(owner.run));
    assert_eq!(post(store, owner.run, cancel("too late")), refused);
    assert_eq!(post(store, owner.run, settle(4, 2)), refused, "another place");
    assert_eq!(post(store, owner.run, settle(3, 1)), refused, "another attempt");
    assert_eq!(post(store, owner.run, settle(3, 2)), Ok(()));
    assert_eq!(mail(store, owner.run, 0), [(1, text(&settle(3, 2)))]);

    let mut settled = Owner::create(store, 2);
    settled.write(vec![Change::Doubts(vec![doubt(3, 2)])]);
    settled.write(vec![Change::Doubts(vec![]), Change::State(finished())]);
    assert_eq!(post(store, settled.run, settle(3, 2)), Err(StoreError::Finished(settled.run)), "settled already");

    let mut running = Owner::create(store, 3);
    assert_eq!(post(store, running.run, settle(3, 2)), Ok(()), "a running run decides for itself");
    running.append(json!("unmoved"));
}

fn lists_filter_and_turn_pages(store: &dyn Store) {
    for n in 1..=9 {
        let mut owner = Owner::create(store, n);
        match n % 3 {
            0 => owner.write(vec![Change::State(held())]),
            1 => owner.write(vec![Change::State(finished()), Change::Doubts(vec![doubt(0, 1)])]),
            _ => {}
        }
    }
    let list = |filter, after: Option<u8>, limit| -> Vec<u8> {
        let infos = must(block_on(store.list(filter, after.map(run), limit)));
        infos.iter().map(|info| info.run.as_bytes()[15]).collect()
    };
    assert_eq!(list(Filter::All, None, 100), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(list(Filter::Running, None, 100), [2, 5, 8]);
    assert_eq!(list(Filter::Held, None, 100), [3, 6, 9]);
    assert_eq!(list(Filter::Doubted, None, 100), [1, 4, 7]);
    assert_eq!(list(Filter::All, None, 4), [1, 2, 3, 4]);
    assert_eq!(list(Filter::All, Some(4), 4), [5, 6, 7, 8]);
    assert_eq!(list(Filter::All, Some(8), 4), [9]);
    assert!(list(Filter::All, Some(9), 4).is_empty(), "beyond the end");
    assert_eq!(list(Filter::Held, Some(3), 1), [6]);
    assert_eq!(list(Filter::Held, Some(4), 1), [6], "the cursor need not match the filter");
    assert!(list(Filter::All, None, 0).is_empty(), "no more than asked for");
    assert_eq!(list(Filter::All, None, usize::MAX).len(), 9);

    let listed = must(block_on(store.list(Filter::Doubted, None, 1)));
    assert_eq!(listed[0], info(store, run(1)));
    assert_eq!((&*listed[0].tool, listed[0].created), ("tool-1", at(1)));
    assert_eq!((&listed[0].state, &listed[0].doubts), (&finished(), &vec![doubt(0, 1)]));
    let (_, _) = Owner::claim(store, run(3));
    assert_eq!(list(Filter::Running, None, 100), [2, 3, 5, 8]);
    assert_eq!(list(Filter::Held, None, 100), [6, 9]);
}
