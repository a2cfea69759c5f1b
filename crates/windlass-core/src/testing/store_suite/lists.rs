//! Lists: what each filter shows, a page at a time.

use super::scene::{
    Owner, at, doubt, finished, held, info, must, new, number, outside, park, post, run, settle, start, suspended,
};
use crate::path::Path;
use crate::run::state::{Blocked, Park};
use crate::store::{Change, Counts, Creation, Filter, Store};
use crate::testing::block_on;

pub(super) fn lists_filter_and_turn_pages(store: &dyn Store) {
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
        infos.iter().map(|info| number(&info.run)).collect()
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

fn numbers(store: &dyn Store, filter: Filter) -> Vec<u8> {
    must(block_on(store.list(filter, None, 100))).iter().map(|info| number(&info.run)).collect()
}

pub(super) fn lists_filter_by_state(store: &dyn Store) {
    must(outside(store, vec![start(1, new(1)), start(2, new(2))]));
    Owner::create(store, 3);
    Owner::create(store, 4).write(vec![Change::State(suspended(Some(9)))]);
    Owner::create(store, 5).write(vec![Change::State(held())]);
    Owner::create(store, 6).write(vec![Change::State(finished())]);
    let states = [Filter::Queued, Filter::Running, Filter::Suspended, Filter::Held, Filter::Finished];
    let lists = states.map(|filter| numbers(store, filter));
    assert_eq!(lists, [vec![1, 2], vec![3], vec![4], vec![5], vec![6]]);
    assert_eq!(info(store, run(4)).state, suspended(Some(9)));
    Owner::claim(store, run(1));
    Owner::claim(store, run(4));
    assert_eq!(numbers(store, Filter::Running), [1, 3, 4]);
    assert_eq!(numbers(store, Filter::Suspended), Vec::<u8>::new());
}

pub(super) fn the_inbox_has_what_waits_for_a_person(store: &dyn Store) {
    let approval = Blocked::Approval { tool: "pay".into(), digest: "d".to_owned(), why: "much".to_owned() };
    let waits = [
        (1, Blocked::Input { name: "address".into(), at: None }, true),
        (2, approval, true),
        (3, Blocked::Connection { provider: "mail".into() }, true),
        (4, Blocked::Time, false),
        (5, Blocked::Signal { name: "go".into() }, false),
        (6, Blocked::Child { run: run(9) }, false),
        (7, Blocked::Retry, false),
    ];
    for (n, on, _) in waits.clone() {
        let parks = vec![park(0, Blocked::Time), park(1, on)];
        let mut owner = Owner::create(store, n);
        owner.write(vec![Change::Parks(parks.clone()), Change::State(suspended(None))]);
        assert_eq!(info(store, run(n)).parks, parks);
    }
    Owner::create(store, 8).write(vec![Change::Doubts(vec![doubt(0, 1)])]);
    let expected: Vec<u8> = waits.iter().filter(|(_, _, shown)| *shown).map(|(n, ..)| *n).chain([8]).collect();
    assert_eq!(numbers(store, Filter::Inbox), expected);
    assert_eq!(numbers(store, Filter::Doubted), [8]);

    let (mut owner, _) = Owner::claim(store, run(1));
    assert_eq!(info(store, run(1)).parks.len(), 2, "a claim answers nothing");
    owner.write(vec![Change::Parks(vec![])]);
    assert_eq!(info(store, run(1)).parks, Vec::<Park>::new());
    let (mut owner, _) = Owner::claim(store, run(2));
    owner.write(vec![Change::Doubts(vec![doubt(0, 1)]), Change::Parks(vec![])]);
    owner.write(vec![Change::Doubts(vec![])]);
    let (mut owner, _) = Owner::claim(store, run(8));
    owner.write(vec![Change::State(finished())]);
    assert_eq!(numbers(store, Filter::Inbox), [3, 8], "a finished run's doubt still waits");
    must(post(store, run(8), settle(0, 1)));
    assert_eq!(numbers(store, Filter::Inbox), [3]);
}

pub(super) fn lists_show_sessions_and_children(store: &dyn Store) {
    let in_session = |n, session: &str| Creation { session: Some(session.into()), ..new(n) };
    let place = Path::root().child(4).child(1);
    let child = |n, parent: u8| Creation { parent: Some(Box::new((run(parent), place.clone()))), ..new(n) };
    Owner::create_as(store, 1, in_session(1, "s")).write(vec![Change::State(finished())]);
    must(outside(store, vec![start(2, in_session(2, "s")), start(3, in_session(3, "t"))]));
    let mut parent = Owner::create(store, 4);
    parent.write(vec![start(5, child(5, 4)), start(6, child(6, 4)), start(7, child(7, 5))]);
    assert_eq!(numbers(store, Filter::Session("s".into())), [1, 2]);
    assert_eq!(numbers(store, Filter::Session("t".into())), [3]);
    assert_eq!(numbers(store, Filter::Session("u".into())), Vec::<u8>::new());
    assert_eq!(numbers(store, Filter::Children(run(4))), [5, 6]);
    assert_eq!(numbers(store, Filter::Children(run(5))), [7]);
    assert_eq!(numbers(store, Filter::Children(run(6))), Vec::<u8>::new());
    let page = must(block_on(store.list(Filter::Children(run(4)), Some(run(5)), 1)));
    assert_eq!(page, [info(store, run(6))]);
    assert_eq!(page[0].parent.as_deref(), Some(&(run(4), place)));
    assert_eq!(info(store, run(1)).session.as_deref(), Some("s"));
    let (_, claimed) = Owner::claim(store, run(5));
    assert_eq!(claimed.parent.map(|parent| parent.0), Some(run(4)));
}

fn latest(store: &dyn Store, filter: Filter, before: Option<u8>, limit: usize) -> Vec<u8> {
    let infos = must(block_on(store.latest(filter, before.map(run), limit)));
    infos.iter().map(|info| number(&info.run)).collect()
}

pub(super) fn lists_begin_with_the_newest_if_asked_to(store: &dyn Store) {
    for n in 1..=5 {
        let mut owner = Owner::create_as(store, n, Creation { session: Some("s".into()), ..new(n) });
        if n % 2 == 0 {
            owner.write(vec![Change::State(held())]);
        }
    }
    assert_eq!(latest(store, Filter::All, None, 100), [5, 4, 3, 2, 1]);
    assert_eq!(latest(store, Filter::All, None, 2), [5, 4]);
    assert_eq!(latest(store, Filter::All, Some(4), 2), [3, 2]);
    assert_eq!(latest(store, Filter::All, Some(1), 2), Vec::<u8>::new(), "beyond the end");
    assert_eq!(latest(store, Filter::All, None, 0), Vec::<u8>::new());
    assert_eq!(latest(store, Filter::Held, Some(3), 9), [2], "the cursor need not match the filter");
    assert_eq!(latest(store, Filter::Session("s".into()), Some(3), 9), [2, 1]);
    let newest = must(block_on(store.latest(Filter::Held, None, 1)));
    assert_eq!(newest, [info(store, run(4))]);
}

pub(super) fn lists_show_the_runs_of_a_tool(store: &dyn Store) {
    for n in 1..=6 {
        let tool = if n % 3 == 0 { "mail" } else { "pay" };
        let mut owner = Owner::create_as(store, n, Creation { tool: tool.into(), ..new(n) });
        if n > 3 {
            owner.write(vec![Change::State(finished())]);
        }
    }
    let tool = |name: &str| Filter::Tool(name.into());
    assert_eq!(numbers(store, tool("mail")), [3, 6]);
    assert_eq!(numbers(store, tool("pay")), [1, 2, 4, 5]);
    assert_eq!(numbers(store, tool("pa")), Vec::<u8>::new());
    assert_eq!(latest(store, tool("pay"), Some(5), 2), [4, 2]);
    let page = must(block_on(store.list(tool("pay"), Some(run(2)), 1)));
    assert_eq!(page, [info(store, run(4))]);
}

pub(super) fn runs_are_counted(store: &dyn Store) {
    assert_eq!(must(block_on(store.counts())), Counts::default());
    must(outside(store, vec![start(1, new(1)), start(2, new(2))]));
    Owner::create(store, 3);
    Owner::create(store, 4).write(vec![Change::State(suspended(None))]);
    Owner::create(store, 5).write(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 1)])]);
    Owner::create(store, 6).write(vec![Change::State(finished())]);
    let parks = vec![park(0, Blocked::Connection { provider: "mail".into() })];
    Owner::create(store, 7).write(vec![Change::Parks(parks), Change::State(suspended(None))]);
    let expected = Counts { queued: 2, running: 1, suspended: 2, held: 1, finished: 1, inbox: 2 };
    assert_eq!(must(block_on(store.counts())), expected);
    Owner::claim(store, run(1));
    let expected = Counts { queued: 1, running: 2, ..expected };
    assert_eq!(must(block_on(store.counts())), expected);
}
