//! Lists: what each filter returns, page by page.

use super::scene::{
    Owner, at, doubt, finished, held, info, must, new, number, outside, park, post, run, settle, start, suspended,
};
use crate::path::Path;
use crate::run::state::{Blocked, Ending, Park, RunState};
use crate::store::{Change, Counts, Creation, Filter, StateFilter, Store};
use crate::testing::block_on;
use crate::time::Timestamp;

pub(super) fn lists_filter_and_page(store: &dyn Store) {
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
    assert_eq!(list(Filter::default(), None, 100), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(list(Filter::running(), None, 100), [2, 5, 8]);
    assert_eq!(list(Filter::held(), None, 100), [3, 6, 9]);
    assert_eq!(list(Filter::in_doubt(), None, 100), [1, 4, 7]);
    assert_eq!(list(Filter::default(), None, 4), [1, 2, 3, 4]);
    assert_eq!(list(Filter::default(), Some(4), 4), [5, 6, 7, 8]);
    assert_eq!(list(Filter::default(), Some(8), 4), [9]);
    assert!(list(Filter::default(), Some(9), 4).is_empty(), "beyond the end");
    assert_eq!(list(Filter::held(), Some(3), 1), [6]);
    assert_eq!(list(Filter::held(), Some(4), 1), [6], "the cursor need not match the filter");
    assert!(list(Filter::default(), None, 0).is_empty(), "at most the limit");
    assert_eq!(list(Filter::default(), None, usize::MAX).len(), 9);

    let listed = must(block_on(store.list(Filter::in_doubt(), None, 1)));
    assert_eq!(listed[0], info(store, run(1)));
    assert_eq!((&*listed[0].tool, listed[0].created), ("tool-1", at(1)));
    assert_eq!((&listed[0].state, &listed[0].doubts), (&finished(), &vec![doubt(0, 1)]));
    let (_, _) = Owner::claim(store, run(3));
    assert_eq!(list(Filter::running(), None, 100), [2, 3, 5, 8]);
    assert_eq!(list(Filter::held(), None, 100), [6, 9]);
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
    let states = [Filter::queued(), Filter::running(), Filter::suspended(), Filter::held(), Filter::finished()];
    let lists = states.map(|filter| numbers(store, filter));
    assert_eq!(lists, [vec![1, 2], vec![3], vec![4], vec![5], vec![6]]);
    assert_eq!(info(store, run(4)).state, suspended(Some(9)));
    Owner::claim(store, run(1));
    Owner::claim(store, run(4));
    assert_eq!(numbers(store, Filter::running()), [1, 3, 4]);
    assert_eq!(numbers(store, Filter::suspended()), Vec::<u8>::new());
}

pub(super) fn the_inbox_has_what_waits_for_a_person(store: &dyn Store) {
    let approval = Blocked::Approval { tool: "pay".into(), digest: "d".to_owned(), why: "much".to_owned() };
    let waits = [
        (1, Blocked::Input { name: "address".into(), at: None }, true),
        (2, approval, true),
        (3, Blocked::Connection { provider: "mail".into(), after: None, why: None }, true),
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
    assert_eq!(numbers(store, Filter::inbox()), expected);
    assert_eq!(numbers(store, Filter::in_doubt()), [8]);

    let (mut owner, _) = Owner::claim(store, run(1));
    assert_eq!(info(store, run(1)).parks.len(), 2, "a claim does not remove parks");
    owner.write(vec![Change::Parks(vec![])]);
    assert_eq!(info(store, run(1)).parks, Vec::<Park>::new());
    let (mut owner, _) = Owner::claim(store, run(2));
    owner.write(vec![Change::Doubts(vec![doubt(0, 1)]), Change::Parks(vec![])]);
    owner.write(vec![Change::Doubts(vec![])]);
    let (mut owner, _) = Owner::claim(store, run(8));
    owner.write(vec![Change::State(finished())]);
    assert_eq!(numbers(store, Filter::inbox()), [3, 8], "the doubt of a finished run still waits");
    must(post(store, run(8), settle(0, 1)));
    assert_eq!(numbers(store, Filter::inbox()), [3]);
}

pub(super) fn lists_show_sessions_and_children(store: &dyn Store) {
    let in_session = |n, session: &str| Creation { session: Some(session.into()), ..new(n) };
    let path = Path::root().child(4).child(1);
    let child = |n, parent: u8| Creation { parent: Some(Box::new((run(parent), path.clone()))), ..new(n) };
    Owner::create_as(store, 1, in_session(1, "s")).write(vec![Change::State(finished())]);
    must(outside(store, vec![start(2, in_session(2, "s")), start(3, in_session(3, "t"))]));
    let mut parent = Owner::create(store, 4);
    parent.write(vec![start(5, child(5, 4)), start(6, child(6, 4)), start(7, child(7, 5))]);
    assert_eq!(numbers(store, Filter::session("s")), [1, 2]);
    assert_eq!(numbers(store, Filter::session("t")), [3]);
    assert_eq!(numbers(store, Filter::session("u")), Vec::<u8>::new());
    assert_eq!(numbers(store, Filter::children(run(4))), [5, 6]);
    assert_eq!(numbers(store, Filter::children(run(5))), [7]);
    assert_eq!(numbers(store, Filter::children(run(6))), Vec::<u8>::new());
    let page = must(block_on(store.list(Filter::children(run(4)), Some(run(5)), 1)));
    assert_eq!(page, [info(store, run(6))]);
    assert_eq!(page[0].parent.as_deref(), Some(&(run(4), path)));
    assert_eq!(info(store, run(1)).session.as_deref(), Some("s"));
    let (_, claimed) = Owner::claim(store, run(5));
    assert_eq!(claimed.parent.map(|parent| parent.0), Some(run(4)));
}

fn latest(store: &dyn Store, filter: Filter, before: Option<u8>, limit: usize) -> Vec<u8> {
    let infos = must(block_on(store.latest(filter, before.map(run), limit)));
    infos.iter().map(|info| number(&info.run)).collect()
}

pub(super) fn lists_can_start_with_the_newest_run(store: &dyn Store) {
    for n in 1..=5 {
        let mut owner = Owner::create_as(store, n, Creation { session: Some("s".into()), ..new(n) });
        if n % 2 == 0 {
            owner.write(vec![Change::State(held())]);
        }
    }
    assert_eq!(latest(store, Filter::default(), None, 100), [5, 4, 3, 2, 1]);
    assert_eq!(latest(store, Filter::default(), None, 2), [5, 4]);
    assert_eq!(latest(store, Filter::default(), Some(4), 2), [3, 2]);
    assert_eq!(latest(store, Filter::default(), Some(1), 2), Vec::<u8>::new(), "beyond the end");
    assert_eq!(latest(store, Filter::default(), None, 0), Vec::<u8>::new());
    assert_eq!(latest(store, Filter::held(), Some(3), 9), [2], "the cursor need not match the filter");
    assert_eq!(latest(store, Filter::session("s"), Some(3), 9), [2, 1]);
    let newest = must(block_on(store.latest(Filter::held(), None, 1)));
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
    assert_eq!(numbers(store, Filter::tool("mail")), [3, 6]);
    assert_eq!(numbers(store, Filter::tool("pay")), [1, 2, 4, 5]);
    assert_eq!(numbers(store, Filter::tool("pa")), Vec::<u8>::new());
    assert_eq!(latest(store, Filter::tool("pay"), Some(5), 2), [4, 2]);
    let page = must(block_on(store.list(Filter::tool("pay"), Some(run(2)), 1)));
    assert_eq!(page, [info(store, run(4))]);
}

pub(super) fn b13_l28_runs_are_found_by_principal_cause_and_key(store: &dyn Store) {
    let text = |text: String| Some(text.as_str().into());
    for n in 1..=6u8 {
        let principal = if n % 2 == 0 { "ada" } else { "bob" };
        let (principal, cause) = (text(principal.to_owned()), text(format!("message {}", n / 3)));
        let creation =
            Creation { principal, cause, key: text(format!("key-{n}")), session: Some("s".into()), ..new(n) };
        match n {
            1..=3 => drop(Owner::create_as(store, n, creation)),
            _ => must(outside(store, vec![start(n, creation)])),
        }
    }
    Owner::create(store, 7);
    let of = |filter: Filter| numbers(store, filter);
    assert_eq!(of(Filter::principal("ada")), [2, 4, 6]);
    assert_eq!(of(Filter::principal("bob")), [1, 3, 5]);
    assert_eq!(of(Filter::principal("ad")), Vec::<u8>::new());
    assert_eq!(of(Filter::cause("message 1")), [3, 4, 5]);
    assert_eq!(of(Filter { cause: Some("message 1".into()), ..Filter::principal("ada") }), [4]);
    assert_eq!(of(Filter::key("key-5")), [5]);
    assert_eq!(of(Filter { key: Some("key-5".into()), ..Filter::principal("ada") }), Vec::<u8>::new());
    assert_eq!(of(Filter { principal: Some("bob".into()), ..Filter::queued() }), [5]);
    assert_eq!(of(Filter { principal: Some("bob".into()), ..Filter::session("s") }), [1, 3, 5]);
    assert_eq!(latest(store, Filter::principal("ada"), Some(6), 1), [4]);
    let found = must(block_on(store.list(Filter::principal("ada"), Some(run(2)), 1)));
    assert_eq!(found, [info(store, run(4))]);
    let shown = |n| {
        let info = info(store, run(n));
        [info.principal, info.cause, info.key].map(|text| text.map(|text| text.to_string()))
    };
    assert_eq!(shown(4), ["ada", "message 1", "key-4"].map(|text| Some(text.to_owned())));
    assert_eq!(shown(7), [None, None, None]);
    let (_, claimed) = Owner::claim(store, run(4));
    assert_eq!((claimed.principal.as_deref(), claimed.cause.as_deref()), (Some("ada"), Some("message 1")));
}

pub(super) fn b13_lists_match_every_field_of_a_filter(store: &dyn Store) {
    let created = |n: u8| Timestamp::from_micros(i64::from(n) * 1_000);
    for n in 1..=8 {
        let tool = if n % 2 == 0 { "mail" } else { "pay" };
        let session = if n <= 4 { "s" } else { "t" };
        let creation = Creation { tool: tool.into(), session: Some(session.into()), at: created(n), ..new(n) };
        let mut owner = Owner::create_as(store, n, creation);
        match n {
            1 | 2 | 5 | 6 => owner.write(vec![Change::State(held())]),
            3 => owner.write(vec![Change::State(finished())]),
            4 => owner.write(vec![Change::State(RunState::Finished { ending: Ending::Failed })]),
            _ => {}
        }
    }
    let of = |filter: Filter| numbers(store, filter);
    assert_eq!(of(Filter { tool: Some("mail".into()), ..Filter::held() }), [2, 6]);
    assert_eq!(of(Filter { session: Some("t".into()), tool: Some("pay".into()), ..Filter::held() }), [5]);
    assert_eq!(of(Filter { session: Some("s".into()), ..Filter::finished() }), [3, 4]);
    assert_eq!(of(Filter::state(StateFilter::Ended(Ending::Failed))), [4]);
    assert_eq!(of(Filter { tool: Some("pay".into()), ..Filter::state(StateFilter::Ended(Ending::Ok)) }), [3]);
    assert_eq!(
        of(Filter { created_from: Some(created(3)), created_before: Some(created(6)), ..Filter::default() }),
        [3, 4, 5]
    );
    assert_eq!(of(Filter { created_before: Some(created(6)), ..Filter::held() }), [1, 2, 5]);
    assert_eq!(of(Filter { parent: Some(run(1)), ..Filter::held() }), Vec::<u8>::new());
    assert_eq!(latest(store, Filter { session: Some("t".into()), ..Filter::running() }, None, 1), [8]);
}

pub(super) fn e25_unfinished_runs_are_counted_up_to_a_limit(store: &dyn Store) {
    let count = |limit| {
        let Counts { queued, running, suspended, held, finished, inbox } = must(block_on(store.unfinished(limit)));
        [queued, running, suspended, held, finished, inbox]
    };
    assert_eq!(count(9), [0; 6]);
    Owner::create(store, 1);
    Owner::create(store, 2).suspend(0, None);
    Owner::create(store, 3).write(vec![Change::State(finished())]);
    must(outside(store, vec![start(4, new(4))]));
    assert_eq!(count(9), [1, 1, 1, 0, 0, 0]);
    assert_eq!(count(2).iter().sum::<u64>(), 2);
}

pub(super) fn runs_are_counted(store: &dyn Store) {
    assert_eq!(must(block_on(store.counts())), Counts::default());
    must(outside(store, vec![start(1, new(1)), start(2, new(2))]));
    Owner::create(store, 3);
    Owner::create(store, 4).write(vec![Change::State(suspended(None))]);
    Owner::create(store, 5).write(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 1)])]);
    Owner::create(store, 6).write(vec![Change::State(finished())]);
    let parks = vec![park(0, Blocked::Connection { provider: "mail".into(), after: None, why: None })];
    Owner::create(store, 7).write(vec![Change::Parks(parks), Change::State(suspended(None))]);
    let expected = Counts { queued: 2, running: 1, suspended: 2, held: 1, finished: 1, inbox: 2 };
    assert_eq!(must(block_on(store.counts())), expected);
    Owner::claim(store, run(1));
    let expected = Counts { queued: 1, running: 2, ..expected };
    assert_eq!(must(block_on(store.counts())), expected);
}
