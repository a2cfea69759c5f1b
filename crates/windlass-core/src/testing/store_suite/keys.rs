//! Positions in key queues: kept for as long as the run says so, and at most until it ends.

use super::scene::{Owner, finished, must, run, suspended};
use crate::id::RunId;
use crate::path::Path;
use crate::store::{Change, KeyPlace, Store};
use crate::testing::block_on;

fn place(path: &Path, key: &str, ticket: u64, held: bool) -> KeyPlace {
    KeyPlace { path: path.clone(), key: key.into(), ticket, held }
}

fn places(store: &dyn Store) -> Vec<(RunId, KeyPlace)> {
    let mut places = must(block_on(store.key_places()));
    places.sort_by(|(a, one), (b, other)| (a, &one.path).cmp(&(b, &other.path)));
    places
}

pub(super) fn e09_w03_key_queue_positions_are_kept_while_the_run_is_not_driven(store: &dyn Store) {
    assert_eq!(places(store), []);
    let (root, child) = (Path::root(), Path::root().child(3).child(1));
    let (held, queued) = (place(&root, "till \u{0} é", 7, true), place(&child, "", u64::MAX >> 1, false));
    let mut first = Owner::create(store, 1);
    first.write(vec![Change::Keys(vec![queued.clone(), held.clone()]), Change::State(suspended(None))]);
    let mut second = Owner::create(store, 2);
    second.write(vec![Change::Keys(vec![place(&root, "till", 8, false)])]);
    let both = [(run(1), held.clone()), (run(1), queued), (run(2), place(&root, "till", 8, false))];
    assert_eq!(places(store), both);
    let (mut first, _) = Owner::claim(store, run(1));
    assert_eq!(places(store), both, "a claim releases nothing");
    first.write(vec![Change::Keys(vec![held.clone()])]);
    second.write(vec![Change::Keys(vec![])]);
    assert_eq!(places(store), [(run(1), held)], "each list replaces the earlier one");
    first.write(vec![Change::State(finished())]);
    assert_eq!(places(store), [], "a run that has ended has none");
}
