//! Generations: a run that continues with a new journal.

use serde_json::json;

use super::scene::{Owner, cancel, due, info, must, post, record, run, suspended, texts};
use crate::store::{Change, Store};
use crate::testing::block_on;

pub(super) fn a_new_generation_has_a_new_journal(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.append(json!("old"));
    must(post(store, run(1), cancel("unread")));
    let next = vec![Change::Append(vec![record(2, json!("new"))]), Change::Continue];
    must(owner.submit(next.clone()));
    assert_eq!(owner.submit(next), Ok(()), "the identical commit");
    owner.seq = 3;
    assert_eq!(info(store, run(1)).generation, 1);
    owner.append(json!("newer"));
    let all = ["created", "old", "new", "newer"].map(|text| json!(text));
    let all: Vec<_> = all.into_iter().zip(0..).map(|(value, index)| record(index, value)).collect();
    assert_eq!(owner.journal(), texts(&all), "the journal has all generations");
    assert_eq!(texts(&must(block_on(store.journal(run(1), 3)))), texts(&all[3..]));
    assert!(must(block_on(store.journal(run(1), 4))).is_empty());
    assert!(must(block_on(store.journal(run(1), u64::MAX))).is_empty());

    let (mut owner, claimed) = Owner::claim(store, run(1));
    assert_eq!((claimed.generation, claimed.seq), (1, 4));
    assert_eq!(texts(&claimed.records), texts(&all[2..]), "a new owner gets the last generation");
    assert_eq!(claimed.mail.len(), 1, "messages belong to the run, not to a generation");
    owner.write(vec![Change::Continue]);
    owner.write(vec![Change::Continue]);
    let claimed = Owner::claim(store, run(1)).1;
    assert_eq!(
        (claimed.generation, claimed.seq, claimed.records.len()),
        (2, 4, 0),
        "an empty generation is not advanced"
    );
}

pub(super) fn a_generation_may_begin_and_suspend_in_one_commit(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![
        Change::State(suspended(Some(5))),
        Change::Append(vec![record(1, json!("fresh"))]),
        Change::Continue,
        Change::Examined(0),
    ]);
    assert_eq!(due(store, 5).0, [1]);
    let (mut owner, claimed) = Owner::claim(store, run(1));
    assert_eq!((claimed.generation, claimed.seq, claimed.records.len()), (1, 2, 1));
    owner.append(json!("continues at the right sequence"));
}

pub(super) fn b12_a_journal_is_read_in_pages(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.append(json!("old"));
    owner.write(vec![Change::Append(vec![record(2, json!("new"))]), Change::Continue]);
    let all = owner.journal();
    let page = |from, limit| texts(&must(block_on(store.page(run(1), from, limit))));
    assert_eq!([page(0, 2), page(2, 2)].concat(), all, "over all generations");
    assert_eq!(page(1, 1), all[1..2]);
    assert_eq!(page(0, usize::MAX), all);
    assert!(page(0, 0).is_empty() && page(3, 10).is_empty() && page(u64::MAX, 10).is_empty());
    assert!(block_on(store.page(run(2), 0, 10)).is_err(), "there is no such run");
}
