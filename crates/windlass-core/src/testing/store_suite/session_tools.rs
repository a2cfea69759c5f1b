//! The tools that sessions show, and whose sessions a write or a new run reaches.

use std::sync::{Arc, Barrier};

use serde_json::json;

use super::scene::{Owner, at, finished, must, new, outside, record, run, start};
use crate::limits;
use crate::store::{
    Author, Change, Creation, DataKind, NewMessage, SessionAccess, SessionAnswer, SessionChange, SessionOperation,
    SessionRefusal, SessionVerdict, SessionWrite, Store, StoreError, Turn,
};
use crate::testing::block_on;
use crate::tool::{LiveTools, SessionTools, ToolsChange};

fn write_to(store: &dyn Store, session: &str, change: SessionChange, by: Option<SessionOperation>) -> SessionVerdict {
    write_with(store, session, change, by, SessionAccess::All)
}

fn write_with(
    store: &dyn Store,
    session: &str,
    change: SessionChange,
    by: Option<SessionOperation>,
    access: SessionAccess,
) -> SessionVerdict {
    must(block_on(store.sessions().write_session(SessionWrite {
        session: session.into(),
        at: at(5),
        change,
        by,
        access,
        starter: Default::default(),
    })))
}

fn change(store: &dyn Store, change: ToolsChange) -> SessionVerdict {
    write_to(store, "s", SessionChange::Tools(change), None)
}

fn open(store: &dyn Store, session: &str, owner: Option<&str>) -> SessionVerdict {
    write_to(
        store,
        session,
        SessionChange::Open { title: None, owner: owner.map(Into::into), settings: Default::default() },
        None,
    )
}

fn live(store: &dyn Store, session: &str) -> Arc<LiveTools> {
    must(block_on(store.sessions().live_tools(session.into())))
}

fn stored(store: &dyn Store) -> SessionTools {
    let info = must(block_on(store.sessions().session("s".into())));
    info.and_then(|info| info.tools).map(|tools| (*tools).clone()).unwrap_or_default()
}

fn hides(names: &[&str]) -> SessionTools {
    SessionTools::default().after(&ToolsChange::hide(names.iter().copied()))
}

fn close(store: &dyn Store) {
    let closed = write_to(store, "s", SessionChange::Close { reason: "over".into() }, None);
    assert_eq!(closed, Ok(SessionAnswer::Done));
}

pub(super) fn l20_b02_a_change_of_shown_tools_is_stored_and_seen_at_once(store: &dyn Store) {
    assert_eq!(change(store, ToolsChange::hide(["a"])), Err(SessionRefusal::Missing));
    let early = live(store, "s");
    assert!(early.is_read() && early.now().is_default(), "also for a session that does not exist");
    assert_eq!(open(store, "s", None), Ok(SessionAnswer::Opened { created: true }));
    assert_eq!(stored(store), SessionTools::default());
    assert_eq!(change(store, ToolsChange::hide(["a"])), Ok(SessionAnswer::Tools { tools: hides(&["a"]) }));
    assert_eq!((stored(store), &*early.now()), (hides(&["a"]), &hides(&["a"])), "the copy is current");
    assert!(Arc::ptr_eq(&early, &live(store, "s")), "all readers share it");
    assert!(live(store, "other").now().is_default(), "another session shows all tools");
    let only = change(store, ToolsChange::only(["b", "c"]));
    let now = hides(&["a"]).after(&ToolsChange::only(["b", "c"]));
    assert_eq!(only, Ok(SessionAnswer::Tools { tools: now.clone() }));
    assert_eq!((stored(store), &*early.now()), (now, &stored(store)));
    let reset = change(store, ToolsChange::reset());
    assert_eq!(reset, Ok(SessionAnswer::Tools { tools: SessionTools::default() }));
    assert!(stored(store).is_default() && early.now().is_default());
    let names = |from: usize| (from..from + limits::SESSION_TOOLS).map(|number| format!("t{number}"));
    assert!(change(store, ToolsChange::hide(names(0))).is_ok());
    let refused = change(store, ToolsChange::hide(names(1)));
    assert_eq!((refused, stored(store).len()), (Err(SessionRefusal::Tools), limits::SESSION_TOOLS));
    close(store);
    assert_eq!(change(store, ToolsChange::reset()), Err(SessionRefusal::Closed));
}

pub(super) fn l20_w09_a_purged_session_hides_nothing_of_its_next_one(store: &dyn Store) {
    assert!(open(store, "s", None).is_ok() && change(store, ToolsChange::hide(["a"])).is_ok());
    let held = live(store, "s");
    close(store);
    must(block_on(store.sessions().purge_session("s".into())));
    assert_eq!(open(store, "s", None), Ok(SessionAnswer::Opened { created: true }));
    assert!(stored(store).is_default() && held.now().is_default() && live(store, "s").now().is_default());
}

pub(super) fn l20_a_change_of_tools_by_an_operation_gets_its_verdict_again(store: &dyn Store) {
    Owner::create_as(store, 1, Creation { session: Some("s".into()), ..new(1) });
    let operation = |key: &str| Some(SessionOperation { run: run(1), epoch: 1, key: key.into() });
    let hide = || SessionChange::Tools(ToolsChange::hide(["a"]));
    let first = write_to(store, "s", hide(), operation("k"));
    assert_eq!(first, Ok(SessionAnswer::Tools { tools: hides(&["a"]) }));
    assert!(change(store, ToolsChange::reset()).is_ok());
    assert_eq!(write_to(store, "s", hide(), operation("k")), first, "the first answer");
    assert!(stored(store).is_default(), "and it is not made again");
    // Verdicts on writes to other sessions are kept too, refusals of missing ones as well.
    let elsewhere = |key| write_to(store, "elsewhere", hide(), operation(key));
    assert_eq!(elsewhere("m"), Err(SessionRefusal::Missing));
    assert!(open(store, "elsewhere", None).is_ok());
    assert_eq!((elsewhere("m"), elsewhere("n").is_ok()), (Err(SessionRefusal::Missing), true));
}

pub(super) fn l20_l25_a_change_of_tools_is_committed_with_an_outcome(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, Creation { session: Some("s".into()), ..new(1) });
    let held = live(store, "s");
    let hide = |name: &str| {
        let change = Change::Tools { session: "s".into(), change: ToolsChange::hide([name]) };
        vec![Change::Append(vec![record(1, json!(name))]), change]
    };
    let stale = Owner { store, run: run(1), epoch: 9, seq: 1 }.submit(hide("stale"));
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    assert!(held.now().is_default(), "nothing of a refused commit is kept");
    owner.write(hide("a"));
    assert_eq!((stored(store), &*held.now()), (hides(&["a"]), &hides(&["a"])));
    let outsider = outside(store, vec![Change::Tools { session: "s".into(), change: ToolsChange::hide(["x"]) }]);
    assert!(matches!(outsider, Err(StoreError::Invalid(_))), "{outsider:?}");
    close(store);
    owner.write(hide("late"));
    assert_eq!(
        (stored(store), owner.journal().len()),
        (hides(&["a"]), 3),
        "left out, and the owner's changes are kept"
    );
    owner.write(vec![Change::State(finished())]);
}

pub(super) fn l20_l28_a_write_reaches_the_sessions_of_its_principal_only(store: &dyn Store) {
    let access = |principal: Option<&str>| SessionAccess::Of(principal.map(Into::into));
    assert!(open(store, "of ada", Some("ada")).is_ok() && open(store, "free", None).is_ok());
    let post = SessionChange::Post(NewMessage::text(Author::User, "hello").dedupe("k"));
    let writes = [
        SessionChange::Open { title: Some("mine".into()), owner: Some("bob".into()), settings: Default::default() },
        SessionChange::Title(None),
        SessionChange::Set { kind: DataKind::Value, name: "n".into(), value: json!(1) },
        SessionChange::Delete { kind: DataKind::Secret, name: "n".into() },
        SessionChange::Tools(ToolsChange::hide(["a"])),
        SessionChange::Close { reason: "no".into() },
        post.clone(),
    ];
    assert!(write_to(store, "of ada", post, None).is_ok());
    for change in writes {
        for (session, principal) in [("of ada", Some("bob")), ("of ada", None), ("free", Some("bob"))] {
            let refused = write_with(store, session, change.clone(), None, access(principal));
            assert_eq!(refused, Err(SessionRefusal::Missing), "{change:?} to {session:?} by {principal:?}");
        }
    }
    for (session, principal) in [("of ada", Some("ada")), ("free", None)] {
        let title = SessionChange::Title(Some("seen".into()));
        assert_eq!(write_with(store, session, title, None, access(principal)), Ok(SessionAnswer::Done));
    }
}

pub(super) fn l20_l28_a_run_is_created_in_a_session_of_its_principal_only(store: &dyn Store) {
    let creation = |n: u8, session: &str, principal: &str| Creation {
        session: Some(session.into()),
        principal: Some(principal.into()),
        own_session: true,
        ..new(n)
    };
    let begin = |n: u8, session: &str, principal: &str| outside(store, vec![start(n, creation(n, session, principal))]);
    assert_eq!(begin(1, "s", "ada"), Ok(()));
    assert_eq!(begin(2, "s", "ada"), Ok(()));
    let missing = |session: &str| Err(StoreError::NoSession { session: session.into() });
    assert_eq!(begin(3, "s", "bob"), missing("s"));
    let turn = Creation { turn: Turn::Queue, ..creation(3, "s", "bob") };
    assert_eq!(outside(store, vec![start(3, turn)]), missing("s"));
    let owner = Owner { store, run: run(3), epoch: 1, seq: 0 };
    let created =
        owner.submit(vec![Change::Create(creation(3, "s", "bob")), Change::Append(vec![record(0, json!(1))])]);
    assert_eq!(created, missing("s"), "also if the process that creates it drives it");
    assert_eq!(must(block_on(store.info(run(3)))), None);
    assert_eq!(begin(3, "t", "bob"), Ok(()));
    // A session that was opened without an owner belongs to no principal; a name that only runs share may be used.
    assert!(open(store, "opened", None).is_ok());
    assert_eq!(begin(4, "opened", "ada"), missing("opened"));
    assert_eq!(outside(store, vec![start(5, Creation { session: Some("name".into()), ..new(5) })]), Ok(()));
    assert_eq!(begin(6, "name", "ada"), Ok(()));
    assert!(open(store, "name", Some("bob")).is_ok());
    assert_eq!(begin(7, "name", "ada"), missing("name"), "as soon as it has an owner");
    assert_eq!(begin(8, "name", "bob"), Ok(()));
    let unrestricted = Creation { own_session: false, ..creation(9, "s", "bob") };
    assert_eq!(outside(store, vec![start(9, unrestricted)]), Ok(()), "an administrator acts for bob");
}

pub(super) fn l20_l28_of_two_principals_that_create_a_session_at_once_one_gets_it(store: &dyn Store) {
    for round in 0..20_u8 {
        let (name, both) = (format!("s{round}"), Barrier::new(2));
        let begin = |index: u8, principal: &str| {
            let owner: Arc<str> = principal.into();
            both.wait();
            if round % 2 == 0 {
                let n = 2 * round + index + 1;
                let (session, principal) = (Some(name.as_str().into()), Some(owner));
                let creation = Creation { session, principal, own_session: true, ..new(n) };
                return outside(store, vec![start(n, creation)]).is_ok();
            }
            let open = SessionChange::Open { title: None, owner: Some(owner.clone()), settings: Default::default() };
            let posts = SessionChange::Post(NewMessage::text(Author::User, principal));
            let access = || SessionAccess::Of(Some(owner.clone()));
            let opened = write_with(store, &name, open, None, access());
            let posted = write_with(store, &name, posts, None, access());
            assert_eq!(opened.is_ok(), posted.is_ok());
            opened.is_ok()
        };
        let won = std::thread::scope(|scope| {
            let bob = scope.spawn(|| begin(0, "bob"));
            (begin(1, "ada"), bob.join().unwrap_or_default())
        });
        assert!(won.0 != won.1, "round {round}: {won:?}");
        let owner = must(block_on(store.sessions().session(name.as_str().into()))).and_then(|info| info.owner);
        assert_eq!(owner.as_deref(), Some(if won.0 { "ada" } else { "bob" }));
    }
}
