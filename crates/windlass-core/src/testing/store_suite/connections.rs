//! Connections: kept by provider and principal, and told to the runs that wait for them.

use super::scene::{Owner, at, finished, must, new, number, park, run, set_clock, suspended};
use crate::run::state::Blocked;
use crate::store::{
    Change, ConnectionAnswer, ConnectionChange, ConnectionInfo, ConnectionKey, ConnectionWrite, ConnectionsOf,
    Creation, Credential, Message, Rejected, Store, StoredConnection,
};
use crate::testing::block_on;

fn key(provider: &str, principal: &str) -> ConnectionKey {
    ConnectionKey::new(provider, (!principal.is_empty()).then(|| principal.into()))
}

fn write(store: &dyn Store, key: &ConnectionKey, now: i64, change: ConnectionChange) -> ConnectionAnswer {
    must(block_on(store.connections().write_connection(ConnectionWrite { key: key.clone(), at: at(now), change })))
}

fn connect(text: &str, expires: Option<i64>) -> ConnectionChange {
    let credential = (!text.is_empty()).then(|| Credential::new(text));
    ConnectionChange::Connect { credential, expires: expires.map(at), dedupe: None }
}

fn find(store: &dyn Store, key: &ConnectionKey) -> Option<StoredConnection> {
    must(block_on(store.connections().connection(key.clone())))
}

/// The connection, which must exist.
fn stored(store: &dyn Store, key: &ConnectionKey) -> StoredConnection {
    find(store, key).unwrap_or_else(|| panic!("{key} does not exist"))
}

fn text(store: &dyn Store, key: &ConnectionKey) -> Option<String> {
    find(store, key)?.credential.map(|credential| credential.expose().to_owned())
}

fn list(store: &dyn Store, of: ConnectionsOf) -> Vec<ConnectionKey> {
    must(block_on(store.connections().list_connections(of))).into_iter().map(|info| info.key).collect()
}

/// A suspended run of a principal that waits for a provider.
fn waiting(store: &dyn Store, n: u8, principal: &str, provider: &str) {
    let principal = (!principal.is_empty()).then(|| principal.into());
    let mut owner = Owner::create_as(store, n, Creation { principal, ..new(n) });
    let on = Blocked::Connection { provider: provider.into(), after: None, why: None };
    owner.write(vec![Change::Parks(vec![park(0, on)]), Change::Examined(0), Change::State(suspended(None))]);
}

fn told(answer: &ConnectionAnswer) -> Vec<u8> {
    answer.told.iter().map(number).collect()
}

fn mail(store: &dyn Store, n: u8) -> Vec<Option<String>> {
    let refusals = must(block_on(store.mail(run(n), 0))).into_iter().map(|mail| match mail.message {
        Message::Connect { refused, .. } => refused,
        other => panic!("another message: {other:?}"),
    });
    refusals.collect()
}

pub(super) fn e06_a_connection_is_kept_for_its_provider_and_principal(store: &dyn Store) {
    let (ada, bob, none) = (key("git", "ada"), key("git", "bob"), key("git", ""));
    assert_eq!(find(store, &ada), None);
    assert_eq!(write(store, &ada, 5, connect("a1", Some(90))), ConnectionAnswer { changed: true, told: Vec::new() });
    write(store, &none, 6, connect("n1", None));
    write(store, &key("mail", "ada"), 7, connect("", None));
    let expected = ConnectionInfo {
        key: ada.clone(),
        created: at(5),
        updated: at(5),
        expires: Some(at(90)),
        problem: None,
        revision: 5,
        has_credential: true,
    };
    assert_eq!(stored(store, &ada).info, expected);
    assert_eq!((text(store, &ada), text(store, &none)), (Some("a1".to_owned()), Some("n1".to_owned())));
    assert_eq!(find(store, &bob), None, "another principal has none");
    let declared = stored(store, &key("mail", "ada"));
    assert!(declared.credential.is_none() && !declared.info.has_credential);
    write(store, &ada, 5, connect("a2", None));
    let replaced = ConnectionInfo { expires: None, revision: 6, ..expected };
    assert_eq!(stored(store, &ada).info, replaced, "its revision grows, whatever the clock says");
    assert_eq!(text(store, &ada), Some("a2".to_owned()));
    assert_eq!(list(store, ConnectionsOf::All), [none.clone(), ada.clone(), key("mail", "ada")]);
    assert_eq!(list(store, ConnectionsOf::Principal(None)), [none]);
    assert_eq!(list(store, ConnectionsOf::Principal(Some("ada".into()))), [ada.clone(), key("mail", "ada")]);
    assert!(write(store, &ada, 8, ConnectionChange::Delete).changed);
    assert!(!write(store, &ada, 8, ConnectionChange::Delete).changed);
    assert_eq!(find(store, &ada), None);
}

pub(super) fn e06_only_the_credential_that_was_meant_expires_or_is_refreshed(store: &dyn Store) {
    let git = key("git", "ada");
    let expire = |which| ConnectionChange::Expire { which, problem: "401".into() };
    let refresh = |revision| ConnectionChange::Refresh { revision, credential: Credential::new("new"), expires: None };
    assert!(!write(store, &git, 1, expire(Rejected::SetBy(at(9)))).changed, "there is none");
    assert!(!write(store, &git, 1, refresh(1)).changed);
    write(store, &git, 10, connect("old", Some(50)));
    let revision = stored(store, &git).info.revision;
    assert!(!write(store, &git, 20, expire(Rejected::Revision(revision - 1))).changed);
    assert!(!write(store, &git, 20, expire(Rejected::SetBy(at(9)))).changed);
    assert!(stored(store, &git).info.is_valid(at(20)));
    assert!(write(store, &git, 20, expire(Rejected::Revision(revision))).changed);
    let expired = stored(store, &git);
    assert_eq!((expired.info.expires, expired.info.problem.as_deref()), (Some(at(20)), Some("401")));
    assert_eq!((expired.info.revision, text(store, &git)), (revision, Some("old".to_owned())), "it is not lost");
    assert!(write(store, &git, 60, expire(Rejected::SetBy(at(10)))).changed);
    assert_eq!(stored(store, &git).info.expires, Some(at(20)), "it expires only once");
    assert!(write(store, &git, 61, refresh(revision)).changed);
    let fresh = stored(store, &git).info;
    assert_eq!((fresh.expires, fresh.problem, fresh.created, fresh.updated), (None, None, at(10), at(61)));
    assert_eq!(text(store, &git), Some("new".to_owned()));
    assert!(!write(store, &git, 62, refresh(revision)).changed, "a late refresh does not replace a newer credential");
}

pub(super) fn e06_connecting_tells_the_runs_of_the_principal_in_the_same_step(store: &dyn Store) {
    waiting(store, 1, "ada", "git");
    waiting(store, 2, "bob", "git");
    waiting(store, 3, "", "git");
    waiting(store, 4, "ada", "mail");
    waiting(store, 5, "ada", "git");
    let (mut over, _) = Owner::claim(store, run(5));
    over.write(vec![Change::Parks(Vec::new()), Change::State(finished())]);
    set_clock(store, 20);
    assert_eq!(must(block_on(store.due(9))).runs, Vec::new());
    let keyed =
        |dedupe: &str| ConnectionChange::Connect { credential: None, expires: None, dedupe: Some(dedupe.into()) };
    assert_eq!(told(&write(store, &key("git", "ada"), 10, keyed("k"))), [1]);
    assert_eq!(must(block_on(store.due(9))).runs, [run(1)], "only its own run is due");
    assert_eq!(told(&write(store, &key("git", "ada"), 11, keyed("k"))), [1], "told before");
    assert_eq!(mail(store, 1), [None], "once for each key");
    let refuse = ConnectionChange::Refuse { reason: "no".into(), dedupe: None };
    let refused = write(store, &key("git", ""), 12, refuse);
    assert_eq!((told(&refused), refused.changed), (vec![3], false));
    assert_eq!((mail(store, 3), find(store, &key("git", ""))), (vec![Some("no".to_owned())], None));
    let refresh = |revision| ConnectionChange::Refresh { revision, credential: Credential::new("x"), expires: None };
    write(store, &key("mail", "ada"), 13, ConnectionChange::Delete);
    assert_eq!(mail(store, 4), Vec::new(), "a deletion tells no run");
    let revision = stored(store, &key("git", "ada")).info.revision;
    assert_eq!(told(&write(store, &key("git", "ada"), 14, refresh(revision))), [1], "a refresh wakes as well");
    assert_eq!(mail(store, 2), Vec::new(), "the other principal is told nothing");
}
