//! Settings of sessions, wakes, turns by id, and the limit of unfinished runs.

use std::sync::Arc;

use serde_json::json;

use super::scene::{Owner, at, claim_due, finished, held, info, must, new, outside, record, run, start};
use crate::id::RunId;
use crate::run::record::{Asked, Event, OpKind};
use crate::run::state::RunState;
use crate::store::{
    Author, Change, Creation, DataKind, NewMessage, SessionAnswer, SessionChange, SessionInfo, SessionMessage,
    SessionOperation, SessionRefusal, SessionSettings, SessionSizes, SessionVerdict, SessionWrite, SettingsChange,
    StartTurn, Starter, Store, StoreError, Turn, TurnPolicy, Wake, WakePolicy,
};
use crate::testing::block_on;
use crate::tool::Effect;

fn write_by(store: &dyn Store, now: i64, change: SessionChange, by: Option<SessionOperation>) -> SessionVerdict {
    let starter = Starter { principal: Some("ada".into()), most: Some(3) };
    let write = SessionWrite { by, starter, ..SessionWrite::outside("s".into(), at(now), change) };
    must(block_on(store.sessions().write_session(write)))
}

fn write(store: &dyn Store, now: i64, change: SessionChange) -> SessionVerdict {
    write_by(store, now, change, None)
}

fn open(store: &dyn Store, settings: SettingsChange) {
    let change = SessionChange::Open { title: None, owner: Some("owner".into()), settings };
    assert!(matches!(write(store, 1, change), Ok(SessionAnswer::Opened { .. })));
}

fn with_agent() -> SettingsChange {
    SettingsChange::default().agent("agent")
}

fn says(text: &str) -> NewMessage {
    NewMessage::text(Author::User, text)
}

fn post(store: &dyn Store, now: i64, message: NewMessage) -> SessionVerdict {
    write(store, now, SessionChange::Post(message))
}

/// The turn that a message has started.
fn woken(verdict: &SessionVerdict) -> RunId {
    match verdict {
        Ok(SessionAnswer::Posted { run: Some(run), .. }) => *run,
        other => panic!("no turn was started: {other:?}"),
    }
}

fn session(store: &dyn Store) -> SessionInfo {
    must(block_on(store.sessions().session("s".into()))).unwrap_or_default()
}

fn messages(store: &dyn Store) -> Vec<SessionMessage> {
    must(block_on(store.sessions().session_messages("s".into(), 0, 99)))
}

fn unfinished(store: &dyn Store) -> Vec<RunId> {
    must(block_on(store.sessions().unfinished_runs("s".into(), 99)))
}

fn sorted<const N: usize>(mut runs: [RunId; N]) -> [RunId; N] {
    runs.sort();
    runs
}

fn in_session(n: u8) -> Creation {
    Creation { session: Some("s".into()), ..new(n) }
}

/// Finishes a run that no worker drives.
fn finish(store: &dyn Store, run: RunId) {
    let (mut owner, _) = Owner::claim(store, run);
    owner.write(vec![Change::State(finished())]);
}

pub(super) fn l20_settings_are_kept_with_the_session(store: &dyn Store) {
    open(store, with_agent().model("m-1").window(8_000));
    let expected = SessionSettings {
        model: Some("m-1".into()),
        window: Some(8_000),
        agent: Some("agent".into()),
        ..SessionSettings::default()
    };
    assert_eq!(session(store).settings, expected);
    let change = SettingsChange { model: Some(None), ..SettingsChange::default().turns(TurnPolicy::Refuse) };
    assert_eq!(write(store, 2, SessionChange::Settings(change)), Ok(SessionAnswer::Done));
    let expected = SessionSettings { model: None, turns: TurnPolicy::Refuse, ..expected };
    assert_eq!(session(store).settings, expected, "the rest stays");
    Owner::create_as(store, 1, in_session(1));
    let by = Some(SessionOperation { run: run(1), epoch: 1, key: "k".into() });
    let change = SessionChange::Settings(SettingsChange::default().wake(WakePolicy::User));
    assert_eq!(write_by(store, 3, change.clone(), by.clone()), Ok(SessionAnswer::Done));
    let back = SessionChange::Settings(SettingsChange::default().wake(WakePolicy::Asked));
    assert_eq!(write(store, 4, back), Ok(SessionAnswer::Done));
    assert_eq!(write_by(store, 5, change, by), Ok(SessionAnswer::Done), "an operation is answered again");
    assert_eq!(session(store).settings.wake, WakePolicy::Asked, "and not made again");
    let unknown = SessionWrite::outside("other".into(), at(5), SessionChange::Settings(with_agent()));
    assert_eq!(must(block_on(store.sessions().write_session(unknown))), Err(SessionRefusal::Missing));
    assert_eq!(write(store, 6, SessionChange::Close { reason: "over".into() }), Ok(SessionAnswer::Done));
    assert_eq!(write(store, 7, SessionChange::Settings(with_agent())), Err(SessionRefusal::Closed));
    finish(store, run(1));
    must(block_on(store.sessions().purge_session("s".into())));
    assert_eq!(session(store).settings, SessionSettings::default(), "they are purged with the session");
}

pub(super) fn l20_a_waking_message_starts_one_turn_of_the_agent(store: &dyn Store) {
    open(store, with_agent());
    assert_eq!(
        post(store, 2, says("just a note")),
        Ok(SessionAnswer::Posted { position: 1, at: at(2), repeated: false, run: None })
    );
    assert!(unfinished(store).is_empty(), "a message does not wake by itself");
    let first = woken(&post(store, 3, says("hello").wake().dedupe("k")));
    let again = post(store, 4, says("hello").wake().dedupe("k"));
    assert_eq!(again, Ok(SessionAnswer::Posted { position: 2, at: at(3), repeated: true, run: Some(first) }));
    assert_eq!(unfinished(store), [first], "a repeated message starts nothing");
    let turn = info(store, first);
    assert_eq!((&*turn.tool, turn.session.as_deref()), ("agent", Some("s")));
    assert_eq!((turn.cause.as_deref(), turn.principal.as_deref()), (Some("message 2"), Some("ada")));
    assert_eq!((turn.state, turn.created), (RunState::Queued, at(3)));
    let journal = must(block_on(store.journal(first, 0)));
    assert!(matches!(journal[0].event, Event::Accepted));
    let asked = journal[0].asked.as_ref().map(|asked| (asked.kind, asked.input.clone()));
    assert_eq!(asked, Some((OpKind::Call, Some(Arc::new(json!({"session": "s", "message": 2}))))));
    let second = woken(&post(store, 5, says("more").wake()));
    assert_ne!(first, second);
    let shown: Vec<_> = messages(store).iter().map(|message| (message.woke, message.run)).collect();
    assert_eq!(shown, [(false, None), (true, Some(first)), (true, Some(second))]);
    // One at a time, in order.
    let claimed = |now| must(block_on(store.claim_due(crate::id::WorkerId::from_number(now), 9))).runs;
    let due: Vec<RunId> = claimed(1).iter().map(|(run, _)| *run).collect();
    assert_eq!(due, [first]);
    assert!(claimed(2).is_empty(), "the second turn waits");
    let (mut owner, _) = Owner::claim(store, first);
    owner.write(vec![Change::State(finished())]);
    assert_eq!(unfinished(store), [second]);
    assert_eq!(claimed(3).iter().map(|(run, _)| *run).collect::<Vec<_>>(), [second]);
    // The policy of the session: every message of its user wakes it.
    write(store, 6, SessionChange::Settings(SettingsChange::default().wake(WakePolicy::User))).ok();
    let third = woken(&post(store, 7, says("by policy")));
    assert_eq!(unfinished(store), sorted([second, third]));
    let quiet = post(store, 8, says("quiet").waking(Wake::No));
    assert!(matches!(quiet, Ok(SessionAnswer::Posted { run: None, .. })));
    assert_eq!(write(store, 9, SessionChange::Close { reason: "over".into() }), Ok(SessionAnswer::Done));
    assert_eq!(post(store, 9, says("late").wake()), Err(SessionRefusal::Closed));
    let repeated = post(store, 9, says("hello").wake().dedupe("k"));
    assert_eq!(woken(&repeated), first, "the answer stays, although the session is closed");
}

pub(super) fn l20_a_wake_without_an_agent_is_only_marked(store: &dyn Store) {
    open(store, SettingsChange::default().turns(TurnPolicy::Refuse));
    Owner::create_as(store, 1, Creation { turn: Turn::Refuse, ..in_session(1) });
    let posted = post(store, 2, says("hello").wake());
    assert_eq!(posted, Ok(SessionAnswer::Posted { position: 1, at: at(2), repeated: false, run: None }));
    assert!(messages(store)[0].woke, "it starts no turn, so it is not refused for one");
    assert_eq!(unfinished(store), [run(1)]);
}

pub(super) fn b11_a_wake_is_queued_or_refused_while_the_session_has_a_turn(store: &dyn Store) {
    open(store, with_agent());
    let mut holder = Owner::create_as(store, 1, Creation { turn: Turn::Refuse, ..in_session(1) });
    let busy = Err(SessionRefusal::Busy { turn: run(1), since: at(1) });
    assert_eq!(post(store, 2, says("now").waking(Wake::Refuse)), busy);
    assert!(messages(store).is_empty(), "nothing of a refused message is kept");
    let queued = woken(&post(store, 3, says("later").wake()));
    assert!(claim_due(store, 1, 3, 9).is_empty());
    // A turn that is held still has the session.
    holder.write(vec![Change::State(held())]);
    assert_eq!(post(store, 4, says("now").waking(Wake::Refuse)), busy);
    write(store, 5, SessionChange::Settings(SettingsChange::default().turns(TurnPolicy::Refuse))).ok();
    assert_eq!(post(store, 6, says("now").wake()), busy, "the policy of the session");
    let last = woken(&post(store, 7, says("later").waking(Wake::Queue)));
    assert_eq!(unfinished(store), sorted([run(1), queued, last]));
    let (mut holder, _) = Owner::claim(store, run(1));
    holder.write(vec![Change::State(finished())]);
    let (mut second, _) = Owner::claim(store, queued);
    let refused = block_on(store.claim(last, crate::id::WorkerId::from_number(2))).map(drop);
    assert_eq!(refused, Err(StoreError::Busy { session: "s".into(), turn: queued, since: at(3) }));
    second.write(vec![Change::State(finished())]);
    finish(store, last);
    let free = woken(&post(store, 8, says("now").waking(Wake::Refuse)));
    assert_eq!(unfinished(store), [free]);
}

pub(super) fn l20_l25_a_message_of_an_outcome_wakes_and_is_never_refused(store: &dyn Store) {
    open(store, with_agent().turns(TurnPolicy::Refuse).unfinished_runs(1));
    let mut owner = Owner::create_as(store, 1, Creation { turn: Turn::Refuse, ..in_session(1) });
    let say = |text: &str, wake| {
        let (session, message) = (Arc::from("s"), says(text).waking(wake).dedupe(text));
        let post = Change::Post { session, at: at(4), message, principal: Some("bob".into()) };
        vec![Change::Append(vec![record(1, json!(text))]), post]
    };
    let stale = Owner { store, run: run(1), epoch: 9, seq: 1 }.submit(say("stale", Wake::Yes));
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    assert_eq!(unfinished(store), [run(1)], "nothing of a refused commit is kept");
    let commit = say("first", Wake::Refuse);
    must(owner.submit(commit.clone()));
    must(owner.submit(commit));
    owner.seq += 1;
    let [message] = messages(store).try_into().unwrap_or_else(|all| panic!("one message: {all:?}"));
    let turn = message.run.map(|run| info(store, run));
    assert_eq!(turn.as_ref().map(|turn| &turn.state), Some(&RunState::Queued), "over its limit, it is queued");
    assert_eq!(turn.and_then(|turn| turn.principal).as_deref(), Some("bob"));
    assert_eq!(unfinished(store).len(), 2, "the identical commit starts nothing again");
    owner.write(say("second", Wake::Yes));
    assert_eq!((messages(store).len(), unfinished(store).len()), (2, 3));
    assert_eq!(write(store, 5, SessionChange::Close { reason: "over".into() }), Ok(SessionAnswer::Done));
    owner.write(say("too late", Wake::Yes));
    assert_eq!((messages(store).len(), unfinished(store).len()), (2, 3), "left out, with its turn");
}

fn turn(n: u8, id: &str) -> SessionChange {
    let asked = Asked::operation(OpKind::Call, "work".into(), Some(Arc::new(json!({"n": n}))), Effect::Readonly);
    SessionChange::Start(Box::new(StartTurn { id: id.into(), run: run(n), asked }))
}

pub(super) fn l20_a_turn_id_names_one_run(store: &dyn Store) {
    let started = |n, repeated| Ok(SessionAnswer::Started { run: run(n), repeated });
    assert_eq!(write(store, 1, turn(5, "t")), Err(SessionRefusal::Missing));
    open(store, SettingsChange::default());
    Owner::create_as(store, 1, in_session(1));
    assert_eq!(write(store, 2, turn(5, "t")), started(5, false));
    assert_eq!(write(store, 3, turn(6, "t")), started(5, true));
    assert_eq!(unfinished(store), [run(1), run(5)]);
    let shown = info(store, run(5));
    assert_eq!((&*shown.tool, shown.cause.as_deref(), shown.principal.as_deref()), ("work", Some("t"), Some("ada")));
    assert_eq!(write(store, 4, turn(7, "u")), started(7, false));
    assert_eq!(claim_due(store, 1, 4, 9), [5], "one turn at a time");
    // An operation gets its verdict again, refusals too.
    let by = |key: &str| Some(SessionOperation { run: run(1), epoch: 1, key: key.into() });
    let full = Err(SessionRefusal::Runs { most: 3, run: run(1) });
    assert_eq!(write_by(store, 5, turn(8, "v"), by("a")), full);
    finish(store, run(5));
    assert_eq!(write_by(store, 6, turn(8, "v"), by("a")), full, "although there is room now");
    assert_eq!(write_by(store, 7, turn(8, "v"), by("b")), started(8, false));
    assert_eq!(write_by(store, 8, turn(9, "v"), by("b")), started(8, false));
    write(store, 9, SessionChange::Settings(SettingsChange::default().turns(TurnPolicy::Refuse))).ok();
    assert_eq!(write(store, 10, turn(9, "x")), Err(SessionRefusal::Busy { turn: run(7), since: at(4) }));
    finish(store, run(7));
    must(block_on(store.purge(run(7), at(11))));
    assert_eq!(write(store, 12, turn(9, "u")), Err(SessionRefusal::Spent { run: run(7) }));
}

pub(super) fn l20_a_session_has_a_limit_of_unfinished_runs(store: &dyn Store) {
    let limited = |n, most| Creation { most: Some(most), ..in_session(n) };
    let full = |most, oldest| Err(StoreError::SessionFull { session: "s".into(), most, run: run(oldest) });
    let mut first = Owner::create_as(store, 1, limited(1, 2));
    must(outside(store, vec![start(2, limited(2, 2))]));
    assert_eq!(outside(store, vec![start(3, limited(3, 2))]), full(2, 1));
    let created = Owner { store, run: run(4), epoch: 1, seq: 0 };
    let creates = || vec![Change::Create(limited(4, 2)), Change::Append(vec![record(0, json!(1))])];
    assert_eq!(created.submit(creates()), full(2, 1));
    assert_eq!((block_on(store.info(run(3))), block_on(store.info(run(4)))), (Ok(None), Ok(None)), "nothing is kept");
    // A run that ends in its first commit is never pending, and what a run starts belongs to its work.
    must(created.submit(creates().into_iter().chain([Change::State(finished())]).collect()));
    first.write(vec![start(5, limited(5, 2))]);
    must(outside(store, vec![start(2, limited(2, 2))]));
    must(outside(store, vec![start(6, Creation { session: Some("other".into()), ..limited(6, 2) })]));
    let known = Creation { key: Some("k".into()), ..limited(7, 9) };
    must(outside(store, vec![start(7, known)]));
    let again = Creation { key: Some("k".into()), ..limited(8, 2) };
    assert_eq!(outside(store, vec![start(8, again)]), Err(StoreError::KeyTaken { run: run(7) }), "the run is known");
    assert_eq!(unfinished(store), [run(1), run(2), run(5), run(7)]);
    assert_eq!(must(block_on(store.sessions().unfinished_runs("s".into(), 2))), [run(1), run(2)]);
    // The limit of the session counts, in both directions.
    open(store, SettingsChange::default().unfinished_runs(5));
    must(outside(store, vec![start(9, limited(9, 2))]));
    assert_eq!(outside(store, vec![start(10, limited(10, 100))]), full(5, 1));
    first.write(vec![Change::State(finished())]);
    let both = vec![start(11, limited(11, 9)), start(12, limited(12, 9))];
    assert_eq!(outside(store, both), full(5, 2), "the runs of one commit are counted together");
    must(outside(store, vec![start(11, limited(11, 9))]));
    write(store, 20, SessionChange::Settings(with_agent())).ok();
    assert_eq!(post(store, 21, says("hello").wake()), Err(SessionRefusal::Runs { most: 5, run: run(2) }));
    assert!(messages(store).is_empty());
    assert!(matches!(post(store, 22, says("hello")), Ok(SessionAnswer::Posted { run: None, .. })), "it starts nothing");
}

pub(super) fn l20_the_content_of_a_session_is_measured(store: &dyn Store) {
    let sizes = || must(block_on(store.sessions().session_sizes("s".into())));
    assert_eq!(sizes(), SessionSizes::default());
    open(store, SettingsChange::default());
    post(store, 2, says("hello")).ok();
    post(store, 3, says("é")).ok();
    for (kind, value) in [(DataKind::Value, json!([1, 2])), (DataKind::Secret, json!("s3cret"))] {
        write(store, 4, SessionChange::Set { kind, name: "n".into(), value }).ok();
    }
    let text = |text: &str| serde_json::to_string(&says(text).content).map_or(0, |text| text.len() as u64);
    let message_bytes = text("hello") + text("é");
    assert_eq!(sizes(), SessionSizes { messages: 2, message_bytes, values: 1, value_bytes: 5 });
}
