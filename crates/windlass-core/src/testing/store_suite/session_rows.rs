//! Sessions as rows: titles, messages, data, closing and purging.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::scene::{Owner, at, finished, info, must, new, outside, record, run, start};
use crate::store::{
    Author, Change, Creation, DataKind, NewMessage, RecentOutcomes, SeenOutcome, SessionAnswer, SessionChange,
    SessionFilter, SessionInfo, SessionMessage, SessionOperation, SessionRefusal, SessionSettings, SessionVerdict,
    SessionWrite, SettingsChange, Store, StoreError, Turn,
};
use crate::testing::block_on;
use crate::tool::Content;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn write_as(
    store: &dyn Store,
    now: i64,
    change: SessionChange,
    by: Option<SessionOperation>,
) -> Result<SessionVerdict, StoreError> {
    let write = SessionWrite { by, ..SessionWrite::outside("s".into(), at(now), change) };
    block_on(store.sessions().write_session(write))
}

fn write(store: &dyn Store, now: i64, change: SessionChange) -> SessionVerdict {
    must(write_as(store, now, change, None))
}

fn open(store: &dyn Store, now: i64) -> SessionVerdict {
    write(store, now, SessionChange::Open { title: None, owner: None, settings: SettingsChange::default() })
}

fn close(store: &dyn Store, now: i64) -> SessionVerdict {
    write(store, now, SessionChange::Close { reason: "done".into() })
}

fn says(text: &str, dedupe: Option<&str>) -> NewMessage {
    let content = vec![Content::text(text)];
    let cause = Some("turn 1".into());
    NewMessage { cause, dedupe: dedupe.map(Into::into), ..NewMessage::new(Author::User, content) }
}

fn post(store: &dyn Store, now: i64, text: &str, dedupe: Option<&str>) -> SessionVerdict {
    write(store, now, SessionChange::Post(says(text, dedupe)))
}

fn posted(position: u64, now: i64, repeated: bool) -> SessionVerdict {
    Ok(SessionAnswer::Posted { position, at: at(now), repeated, run: None })
}

fn set(kind: DataKind, name: &str, value: Value) -> SessionChange {
    SessionChange::Set { kind, name: name.into(), value }
}

fn value(store: &dyn Store, kind: DataKind, name: &str) -> Option<Value> {
    must(block_on(store.sessions().session_value("s".into(), kind, name.into())))
}

fn names(store: &dyn Store, kind: DataKind) -> Vec<String> {
    must(block_on(store.sessions().session_entries("s".into(), kind))).iter().map(|e| e.name.to_string()).collect()
}

fn messages(store: &dyn Store, after: u64, limit: usize) -> Vec<SessionMessage> {
    must(block_on(store.sessions().session_messages("s".into(), after, limit)))
}

fn session(store: &dyn Store) -> Option<SessionInfo> {
    must(block_on(store.sessions().session("s".into())))
}

fn purge(store: &dyn Store) -> Result<(), StoreError> {
    block_on(store.sessions().purge_session("s".into()))
}

fn in_session(n: u8) -> Creation {
    Creation { session: Some("s".into()), ..new(n) }
}

fn closed() -> StoreError {
    StoreError::SessionClosed { session: "s".into() }
}

/// The operation of a run that was created by [`Owner::create_as`].
fn operation(n: u8, epoch: u64, key: &str) -> Option<SessionOperation> {
    Some(SessionOperation { run: run(n), epoch, key: key.into() })
}

pub(super) fn l20_a_session_is_opened_once_and_shown(store: &dyn Store) {
    assert_eq!((session(store), messages(store, 0, 9)), (None, Vec::new()));
    let titled = |title: &str, owner: &str| SessionChange::Open {
        title: Some(title.into()).filter(|title: &Arc<str>| !title.is_empty()),
        owner: Some(owner.into()).filter(|owner: &Arc<str>| !owner.is_empty()),
        settings: SettingsChange::default(),
    };
    assert_eq!(write(store, 5, titled("Trip", "")), Ok(SessionAnswer::Opened { created: true }));
    assert_eq!(
        write(store, 6, titled("", "ada")),
        Ok(SessionAnswer::Opened { created: false }),
        "again, with an owner"
    );
    assert_eq!(write(store, 7, titled("Other", "bob")), Err(SessionRefusal::OtherOwner));
    let expected = SessionInfo {
        name: "s".into(),
        title: Some("Trip".into()),
        owner: Some("ada".into()),
        created: at(5),
        closed: None,
        messages: 0,
        opened: true,
        tools: None,
        settings: SessionSettings::default(),
    };
    assert_eq!(session(store), Some(expected.clone()));
    assert_eq!(write(store, 8, SessionChange::Title(Some("Journey".into()))), Ok(SessionAnswer::Done));
    assert_eq!(session(store), Some(SessionInfo { title: Some("Journey".into()), ..expected.clone() }));
    assert_eq!(write(store, 9, SessionChange::Title(None)), Ok(SessionAnswer::Done));
    assert_eq!(session(store), Some(SessionInfo { title: None, ..expected }));
}

pub(super) fn l20_sessions_are_listed_newest_first_in_pages(store: &dyn Store) {
    let sessions = store.sessions();
    for (name, now) in [("b", 1), ("a", 1), ("late", 3), ("s", 2)] {
        let owner = Some(format!("owner of {name}").into());
        let change = SessionChange::Open { title: None, owner, settings: SettingsChange::default() };
        let write = SessionWrite::outside(name.into(), at(now), change);
        must(must(block_on(sessions.write_session(write))).map_err(|refusal| refusal.sentence(name)));
    }
    assert_eq!(close(store, 9), Ok(SessionAnswer::Done));
    let list = |filter: SessionFilter, limit| {
        let (mut names, mut before) = (Vec::new(), None);
        loop {
            let page = must(block_on(sessions.list_sessions(filter.clone(), before, limit)));
            names.extend(page.iter().map(|session| session.name.to_string()));
            before = page.last().map(SessionInfo::cursor);
            if page.len() < limit {
                return names;
            }
        }
    };
    for limit in [1, 2, 9] {
        assert_eq!(list(SessionFilter::default(), limit), ["late", "s", "b", "a"]);
        assert_eq!(list(SessionFilter { open: Some(true), ..SessionFilter::default() }, limit), ["late", "b", "a"]);
        assert_eq!(list(SessionFilter { open: Some(false), ..SessionFilter::default() }, limit), ["s"]);
        assert_eq!(list(SessionFilter { owner: Some("owner of b".into()), ..SessionFilter::default() }, limit), ["b"]);
    }
}

pub(super) fn l20_a_run_brings_its_session_into_being(store: &dyn Store) {
    let of_ada = Creation { principal: Some("ada".into()), ..in_session(3) };
    let mut owner = Owner::create_as(store, 3, of_ada);
    let begun = SessionInfo { name: "s".into(), owner: Some("ada".into()), created: at(3), ..SessionInfo::default() };
    assert_eq!(session(store), Some(begun), "it belongs to the principal of its first run");
    owner.write(vec![Change::State(finished())]);
    must(block_on(store.purge(run(3), at(9))));
    assert_eq!(session(store), None, "it goes with its last run");
    let mut owner = Owner::create_as(store, 4, in_session(4));
    assert_eq!(post(store, 5, "hello", None), posted(1, 5, false));
    owner.write(vec![Change::State(finished())]);
    must(block_on(store.purge(run(4), at(9))));
    assert_eq!(session(store).map(|session| session.messages), Some(1), "unless something else of it is kept");
}

pub(super) fn l20_messages_have_positions_and_are_read_in_pages(store: &dyn Store) {
    assert_eq!(post(store, 1, "too early", None), Err(SessionRefusal::Missing));
    assert_eq!(open(store, 1), Ok(SessionAnswer::Opened { created: true }));
    for (position, text) in (1..=5).zip(["one", "two", "three", "four", "five"]) {
        let now = i64::try_from(position).unwrap_or(0) + 10;
        assert_eq!(post(store, now, text, None), posted(position, now, false));
    }
    let all = messages(store, 0, 9);
    let expected = SessionMessage {
        position: 2,
        at: at(12),
        author: Author::User,
        content: vec![Content::text("two")],
        cause: Some("turn 1".into()),
        woke: false,
        run: None,
    };
    assert_eq!(all[1], expected);
    let texts = |messages: &[SessionMessage]| messages.iter().map(SessionMessage::text).collect::<Vec<_>>();
    assert_eq!(texts(&all), ["one", "two", "three", "four", "five"]);
    assert_eq!(texts(&messages(store, 1, 2)), ["two", "three"]);
    assert_eq!(texts(&messages(store, 4, 2)), ["five"]);
    assert!(messages(store, 5, 2).is_empty() && messages(store, u64::MAX, 2).is_empty());
    assert!(messages(store, 0, 0).is_empty());
    assert_eq!(session(store).map(|session| session.messages), Some(5));
}

pub(super) fn l20_a_message_with_a_dedupe_key_is_posted_once(store: &dyn Store) {
    assert_eq!(open(store, 1), Ok(SessionAnswer::Opened { created: true }));
    assert_eq!(post(store, 2, "first", Some("k")), posted(1, 2, false));
    assert_eq!(post(store, 3, "second", Some("k")), posted(1, 2, true), "the first one counts");
    assert_eq!(post(store, 4, "third", Some("other")), posted(2, 4, false));
    assert_eq!(messages(store, 0, 9).iter().map(SessionMessage::text).collect::<Vec<_>>(), ["first", "third"]);
    assert_eq!(close(store, 5), Ok(SessionAnswer::Done));
    assert_eq!(post(store, 6, "first", Some("k")), posted(1, 2, true), "a repeated request is not a new one");
    assert_eq!(post(store, 6, "first", Some("new")), Err(SessionRefusal::Closed));
}

pub(super) fn l20_a_closed_session_refuses_new_work(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, Creation { key: Some("known".into()), ..in_session(1) });
    assert_eq!(write(store, 3, SessionChange::Close { reason: "over".into() }), Ok(SessionAnswer::Done));
    assert_eq!(close(store, 4), Ok(SessionAnswer::Done), "closing again changes nothing");
    let closing = session(store).and_then(|session| session.closed);
    assert_eq!(closing.map(|closing| (closing.at, closing.reason)), Some((at(3), "over".into())));
    assert_eq!(outside(store, vec![start(2, in_session(2))]), Err(closed()));
    let turn = Creation { turn: Turn::Queue, ..in_session(3) };
    assert_eq!(outside(store, vec![start(3, turn)]), Err(closed()));
    let created = Owner { store, run: run(4), epoch: 1, seq: 0 };
    assert_eq!(
        created.submit(vec![Change::Create(in_session(4)), Change::Append(vec![record(0, json!(1))])]),
        Err(closed())
    );
    let both = vec![start(5, new(5)), start(6, in_session(6))];
    assert_eq!(outside(store, both), Err(closed()));
    for n in 2..=6 {
        assert_eq!(block_on(store.info(run(n))), Ok(None), "nothing of a refused commit is kept");
    }
    let again = Creation { key: Some("known".into()), ..in_session(7) };
    assert_eq!(outside(store, vec![start(7, again)]), Err(StoreError::KeyTaken { run: run(1) }), "the run is known");
    must(outside(store, vec![start(8, Creation { session: Some("other".into()), ..new(8) })]));
    // Its unfinished run goes on, and so does the work that this run starts.
    owner.append(json!("goes on"));
    owner.write(vec![start(9, in_session(9)), Change::State(finished())]);
    assert_eq!(info(store, run(9)).session.as_deref(), Some("s"));
    for change in [
        SessionChange::Open { title: None, owner: None, settings: SettingsChange::default() },
        SessionChange::Title(Some("t".into())),
        set(DataKind::Value, "a", json!(1)),
        set(DataKind::Secret, "a", json!("x")),
        SessionChange::Delete { kind: DataKind::Value, name: "a".into() },
    ] {
        let refused = write(store, 5, change.clone());
        assert_eq!(refused, Err(SessionRefusal::Closed), "{change:?}");
    }
    assert_eq!(session(store).and_then(|session| session.title), None);
}

pub(super) fn l20_a_write_of_an_operation_gets_its_verdict_again(store: &dyn Store) {
    Owner::create_as(store, 1, in_session(1));
    let post = |epoch, key| {
        write_as(store, 5, SessionChange::Post(says("hello", None)), operation(1, epoch, key))
            .map_err(|e| e.to_string())
    };
    assert_eq!(post(1, "a"), Ok(posted(1, 5, false)));
    assert_eq!(post(1, "b"), Ok(posted(2, 5, false)));
    let again = write_as(store, 9, SessionChange::Post(says("hello", None)), operation(1, 1, "a"));
    assert_eq!(again, Ok(posted(1, 5, false)), "the answer is the first one, with its time");
    assert_eq!(close(store, 6), Ok(SessionAnswer::Done));
    assert_eq!(post(1, "a"), Ok(posted(1, 5, false)), "although the session is closed now");
    assert_eq!(post(1, "c"), Ok(Err(SessionRefusal::Closed)));
    assert_eq!(messages(store, 0, 9).len(), 2);
    // A claim raises the epoch: a stale owner writes nothing, the next one gets the same verdicts, refusals too.
    let (mut next, _) = Owner::claim(store, run(1));
    assert!(post(1, "d").is_err_and(|error| error.contains("epoch")));
    assert_eq!(
        (post(next.epoch, "a"), post(next.epoch, "c")),
        (Ok(posted(1, 5, false)), Ok(Err(SessionRefusal::Closed)))
    );
    next.write(vec![Change::State(finished())]);
    assert_eq!(post(next.epoch, "a"), Err(StoreError::Finished(run(1)).to_string()));
    let unknown = write_as(store, 5, SessionChange::Title(None), operation(7, 1, "a"));
    assert_eq!(unknown, Err(StoreError::NoSuchRun(run(7))));
}

pub(super) fn l20_a_next_generation_has_verdicts_of_its_own(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, in_session(1));
    let write = |key| write_as(store, 5, SessionChange::Post(says("hello", None)), operation(1, 1, key));
    assert_eq!(write("a"), Ok(posted(1, 5, false)));
    owner.write(vec![Change::Continue, Change::Append(vec![record(1, json!("next"))])]);
    assert_eq!(write("b"), Ok(posted(2, 5, false)));
    owner.append(json!("later"));
    assert_eq!(write("b"), Ok(posted(2, 5, false)));
}

pub(super) fn l20_l25_a_message_of_an_outcome_is_posted_with_it(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, in_session(1));
    let say = |text: &str, dedupe: &str| {
        let (session, message) = (Arc::from("s"), says(text, Some(dedupe)));
        vec![
            Change::Append(vec![record(1, json!(text))]),
            Change::Post { session, at: at(4), message, principal: None },
        ]
    };
    let refused = Owner { store, run: run(1), epoch: 9, seq: 1 }.submit(say("stale", "k"));
    assert!(matches!(refused, Err(StoreError::Stale { .. })));
    assert!(messages(store, 0, 9).is_empty(), "nothing of a refused commit is kept");
    let commit = say("with the outcome", "k");
    must(owner.submit(commit.clone()));
    must(owner.submit(commit));
    assert_eq!(messages(store, 0, 9).len(), 1, "the identical commit posts nothing again");
    owner.seq += 1;
    assert_eq!(close(store, 5), Ok(SessionAnswer::Done));
    owner.write(say("too late", "l"));
    assert_eq!(messages(store, 0, 9).len(), 1, "left out, and the owner's own changes are written");
    assert_eq!(owner.journal().len(), 3);
    let (session, message) = ("s".into(), says("x", None));
    let outsider = outside(store, vec![Change::Post { session, at: at(4), message, principal: None }]);
    assert!(matches!(outsider, Err(StoreError::Invalid(_))), "{outsider:?}");
}

pub(super) fn e27_values_and_secrets_are_kept_apart(store: &dyn Store) {
    use DataKind::{Secret, Value as Plain};
    assert_eq!(write(store, 1, set(Plain, "a", json!(1))), Err(SessionRefusal::Missing));
    assert_eq!(open(store, 1), Ok(SessionAnswer::Opened { created: true }));
    let deep = json!({"list": [1, {"x": null}], "text": "é\u{0}\n"});
    for (kind, name, value) in [
        (Plain, "b", deep.clone()),
        (Plain, "a", json!(null)),
        (Secret, "token", json!("s3cret")),
        (Secret, "b", json!("x")),
    ] {
        assert_eq!(write(store, 2, set(kind, name, value)), Ok(SessionAnswer::Done));
    }
    assert_eq!((value(store, Plain, "b"), value(store, Plain, "a")), (Some(deep), Some(json!(null))));
    assert_eq!((value(store, Plain, "token"), value(store, Secret, "a")), (None, None));
    assert_eq!(value(store, Secret, "token"), Some(json!("s3cret")));
    assert_eq!(
        (names(store, Plain), names(store, Secret)),
        (vec!["a".into(), "b".into()], vec!["b".into(), "token".into()])
    );
    assert_eq!(write(store, 3, set(Secret, "token", json!("changed"))), Ok(SessionAnswer::Done));
    assert_eq!(value(store, Secret, "token"), Some(json!("changed")));
    let delete = |kind, name: &str| write(store, 4, SessionChange::Delete { kind, name: name.into() });
    assert_eq!(delete(Secret, "b"), Ok(SessionAnswer::Deleted { existed: true }));
    assert_eq!(delete(Secret, "b"), Ok(SessionAnswer::Deleted { existed: false }));
    assert_eq!((value(store, Secret, "b"), names(store, Secret)), (None, vec!["token".to_owned()]));
    assert!(value(store, Plain, "b").is_some(), "the value of that name stays");
    let other = must(block_on(store.sessions().session_value("other".into(), Secret, "token".into())));
    assert_eq!(other, None, "another session does not see it");
}

pub(super) fn l20_w09_a_closed_session_is_purged_when_its_runs_have_ended(store: &dyn Store) {
    assert_eq!(purge(store), Err(StoreError::NoSession { session: "s".into() }));
    let mut owner = Owner::create_as(store, 1, in_session(1));
    fill(store);
    assert_eq!(purge(store), Err(StoreError::SessionOpen { session: "s".into() }));
    assert_eq!(close(store, 5), Ok(SessionAnswer::Done));
    assert_eq!(purge(store), Err(StoreError::SessionBusy { session: "s".into(), run: run(1) }));
    assert_eq!(messages(store, 0, 9).len(), 1, "a refused purge removes nothing");
    owner.write(vec![Change::State(finished())]);
    assert_eq!(purge(store), Ok(()));
    assert_emptied(store);
    assert!(session(store).is_some_and(|session| session.closed.is_some() && session.title.is_none()));
    assert_eq!(outside(store, vec![start(2, in_session(2))]), Err(closed()), "closed while its run is kept");
    assert_eq!(purge(store), Ok(()), "again");
    must(block_on(store.purge(run(1), at(9))));
    assert_eq!(session(store), None);
    must(outside(store, vec![start(2, in_session(2))]));
    assert_eq!(session(store).and_then(|session| session.closed), None, "the name is free");
}

fn outcomes(store: &dyn Store) -> RecentOutcomes {
    must(block_on(store.sessions().recent_outcomes("s".into())))
}

/// The end of a run in which call 1 had this result.
fn ends_with(result: u64, now: i64) -> Vec<Change> {
    let outcomes = vec![SeenOutcome::Compared { call: 1, result }];
    let ends = vec![record(1, json!("end"))];
    vec![Change::Append(ends), Change::State(finished()), Change::Outcomes { at: at(now), outcomes }]
}

pub(super) fn e13_the_outcomes_of_a_session_are_kept_and_added_once(store: &dyn Store) {
    assert_eq!(outcomes(store), RecentOutcomes::default(), "no such session");
    for n in 1..=3 {
        let owner = Owner::create_as(store, n, in_session(n));
        must(owner.submit(ends_with(7, i64::from(n))));
        must(owner.submit(ends_with(7, i64::from(n))));
        assert_eq!(outcomes(store).repeats(1), u32::from(n), "a resubmitted commit adds nothing");
    }
    let stale = Owner { epoch: 9, ..Owner::create_as(store, 4, in_session(4)) };
    assert!(stale.submit(ends_with(7, 4)).is_err());
    assert_eq!(outcomes(store).repeats(1), 3, "a refused commit adds nothing");
    Owner::create_as(store, 5, in_session(5)).write(ends_with(8, 5));
    assert_eq!(outcomes(store).repeats(1), 1, "another result");
    Owner::create_as(store, 6, Creation { session: Some("other".into()), ..new(6) }).write(ends_with(8, 6));
    Owner::create(store, 7).write(ends_with(8, 7));
    assert_eq!(outcomes(store).repeats(1), 1, "another session, and none");
    let later = at(5) + crate::limits::LOOP_MEMORY;
    assert!(!outcomes(store).is_past(later) && outcomes(store).is_past(later + Duration::from_micros(1)));
}

pub(super) fn e13_the_outcomes_of_a_session_go_with_it(store: &dyn Store) {
    Owner::create_as(store, 1, in_session(1)).write(ends_with(7, 1));
    must(block_on(store.purge(run(1), at(9))));
    assert_eq!((session(store), outcomes(store)), (None, RecentOutcomes::default()), "with its last run");
    Owner::create_as(store, 2, in_session(2)).write(ends_with(7, 2));
    assert_eq!(outcomes(store).repeats(1), 1, "a new session of that name");
    assert_eq!((close(store, 3), purge(store)), (Ok(SessionAnswer::Done), Ok(())));
    assert_eq!(outcomes(store), RecentOutcomes::default(), "with its content");
}

pub(super) fn l20_w09_a_session_without_runs_is_purged_at_once(store: &dyn Store) {
    assert_eq!(open(store, 1), Ok(SessionAnswer::Opened { created: true }));
    fill(store);
    // More than one slice of a store that removes in slices.
    for n in 0..450 {
        assert_eq!(post(store, 2, "many", None), posted(n + 2, 2, false));
    }
    assert_eq!((close(store, 3), purge(store)), (Ok(SessionAnswer::Done), Ok(())));
    assert_emptied(store);
    assert_eq!(session(store), None);
    assert_eq!(open(store, 4), Ok(SessionAnswer::Opened { created: true }));
    assert_eq!(post(store, 5, "new", None), posted(1, 5, false), "a new session of that name");
}

pub(super) fn l20_w09_closed_sessions_expire(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, in_session(1));
    fill(store);
    let tidy = |days: u32| {
        let now = at(5) + days * DAY;
        while must(block_on(store.tidy(now))).more {}
    };
    tidy(1_000);
    assert_eq!(messages(store, 0, 9).len(), 1, "an open session keeps everything");
    assert_eq!(close(store, 5), Ok(SessionAnswer::Done));
    tidy(1_000);
    assert_eq!(messages(store, 0, 9).len(), 1, "an unfinished run may read them");
    owner.write(vec![Change::Append(vec![record(0, json!("late"))]), Change::State(finished())]);
    tidy(29);
    assert_eq!(messages(store, 0, 9).len(), 1, "its time is not over");
    tidy(31);
    assert_emptied(store);
}

fn fill(store: &dyn Store) {
    let said = SessionChange::Post(says("hello", Some("k")));
    let changes = [
        SessionChange::Title(Some("T".into())),
        said,
        set(DataKind::Value, "a", json!(1)),
        set(DataKind::Secret, "b", json!("x")),
    ];
    for change in changes {
        must(write(store, 2, change).map_err(|refusal| refusal.sentence("s")));
    }
}

fn assert_emptied(store: &dyn Store) {
    assert!(messages(store, 0, 9).is_empty());
    assert_eq!((value(store, DataKind::Value, "a"), value(store, DataKind::Secret, "b")), (None, None));
    assert!(names(store, DataKind::Value).is_empty() && names(store, DataKind::Secret).is_empty());
}
