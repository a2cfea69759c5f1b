//! Artifacts: their content, who may read it, and how long it is kept.

use serde_json::json;

use super::scene::{Owner, at, creation, finished, must, new, outside, record, run, start};
use crate::id::RunId;
use crate::limits::ARTIFACT_PIECE as PIECE;
use crate::path::Path;
use crate::store::{Access, ArtifactId, Artifacts, Change, Creation, Store, StoreError, Stored, Swept};
use crate::testing::block_on;

/// The media type of the uploads in these checks.
const TYPE: &str = "text/csv";

/// Bytes without repetition, so that a piece at the wrong offset is noticed.
fn content(length: usize) -> Vec<u8> {
    let numbers = (0u64..).flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    numbers.take(length).collect()
}

fn upload(store: &dyn Store, bytes: &[u8], by: Access, until: i64) -> Stored {
    let artifacts = store.artifacts();
    let upload = must(block_on(artifacts.begin(by, at(until))));
    for piece in bytes.chunks(PIECE) {
        must(block_on(artifacts.append(upload, piece.to_vec())));
    }
    must(block_on(artifacts.finish(upload, TYPE.into())))
}

fn size(store: &dyn Store, artifact: ArtifactId, by: Access) -> Result<u64, StoreError> {
    block_on(store.artifacts().size(artifact, by))
}

fn missing<T>(artifact: ArtifactId) -> Result<T, StoreError> {
    Err(StoreError::NoArtifact { artifact })
}

fn read(store: &dyn Store, artifact: ArtifactId, offset: u64, length: usize) -> Vec<u8> {
    must(block_on(store.artifacts().read(artifact, Access::Owner, offset, length)))
}

/// Sweeps until nothing is left to delete.
fn sweep(store: &dyn Store, now: i64) {
    while must(block_on(store.artifacts().sweep(at(now), 2))).more {}
}

fn session(name: &str) -> Access {
    Access::Session(name.into())
}

fn in_session(n: u8, name: &str) -> Creation {
    Creation { session: Some(name.into()), ..new(n) }
}

fn child_of(n: u8, parent: u8) -> Creation {
    Creation { parent: Some(Box::new((run(parent), Path::root()))), ..new(n) }
}

fn refer(n: u8, artifact: ArtifactId) -> Change {
    refer_by(n, artifact, run(n))
}

fn refer_by(n: u8, artifact: ArtifactId, by: RunId) -> Change {
    Change::Refer { run: run(n), artifacts: vec![artifact], by }
}

pub(super) fn l16_content_is_read_by_its_id_from_any_offset(store: &dyn Store) {
    let bytes = content(2 * PIECE + 1_000);
    let stored = upload(store, &bytes, session("s"), 100);
    assert_eq!(stored, Stored { id: ArtifactId::of(&bytes), size: bytes.len() as u64 });
    assert_eq!(size(store, stored.id, session("s")), Ok(stored.size));
    for (offset, length) in [(0, 10), (PIECE - 3, 7), (PIECE, PIECE), (PIECE + 1, PIECE), (2 * PIECE + 990, 100)] {
        let expected = &bytes[offset..(offset + length).min(bytes.len())];
        assert_eq!(read(store, stored.id, offset as u64, length), expected, "{length} from {offset}");
    }
    assert_eq!(read(store, stored.id, 0, usize::MAX).len(), PIECE, "a read is bounded");
    for beyond in [stored.size, stored.size + 1, u64::MAX] {
        assert!(read(store, stored.id, beyond, 10).is_empty(), "{beyond}");
    }
    assert_eq!(upload(store, &bytes, session("t"), 100), stored, "equal bytes have equal ids");
    let other = must(block_on(store.artifacts().begin(session("u"), at(100))));
    for piece in bytes.chunks(PIECE) {
        must(block_on(store.artifacts().append(other, piece.to_vec())));
    }
    must(block_on(store.artifacts().finish(other, "text/html".into())));
    let media_type = must(block_on(store.artifacts().media_type(stored.id, session("u"))));
    assert_eq!(media_type.as_deref(), Some(TYPE), "the first media type is kept");
    let elsewhere = block_on(store.artifacts().media_type(stored.id, session("elsewhere")));
    assert_eq!(elsewhere, missing(stored.id));
    let nothing = upload(store, b"", session("s"), 100);
    assert_eq!((nothing.size, read(store, nothing.id, 0, 10)), (0, vec![]));
}

pub(super) fn l16_an_upload_is_not_visible_before_it_is_finished(store: &dyn Store) {
    let artifacts = store.artifacts();
    let id = ArtifactId::of(b"half");
    let upload = must(block_on(artifacts.begin(session("s"), at(100))));
    must(block_on(artifacts.append(upload, b"half".to_vec())));
    assert_eq!(size(store, id, Access::Owner), missing(id));
    sweep(store, 1_000);
    assert_eq!(must(block_on(artifacts.finish(upload, TYPE.into()))).id, id, "a sweep leaves it alone");
    assert_eq!(size(store, id, Access::Owner), Ok(4));
    for over in [upload, abandoned(artifacts)] {
        assert!(matches!(block_on(artifacts.append(over, b"x".to_vec())), Err(StoreError::Invalid(_))));
        assert!(matches!(block_on(artifacts.finish(over, TYPE.into())), Err(StoreError::Invalid(_))));
    }
    let given_up = ArtifactId::of(b"given up");
    assert_eq!(size(store, given_up, Access::Owner), missing(given_up));
}

fn abandoned(artifacts: &dyn Artifacts) -> crate::store::Upload {
    let upload = must(block_on(artifacts.begin(session("s"), at(100))));
    must(block_on(artifacts.append(upload, b"given up".to_vec())));
    artifacts.abandon(upload);
    upload
}

pub(super) fn l16_pieces_have_one_size(store: &dyn Store) {
    let artifacts = store.artifacts();
    let begin = || must(block_on(artifacts.begin(session("s"), at(100))));
    for bad in [0, PIECE + 1] {
        assert!(matches!(block_on(artifacts.append(begin(), vec![0; bad])), Err(StoreError::Invalid(_))), "{bad}");
    }
    let upload = begin();
    must(block_on(artifacts.append(upload, vec![0; PIECE])));
    must(block_on(artifacts.append(upload, vec![0; 1])));
    let after_the_last = block_on(artifacts.append(upload, vec![0; 1]));
    assert!(matches!(after_the_last, Err(StoreError::Invalid(_))), "{after_the_last:?}");
}

pub(super) fn l16_content_without_references_is_deleted_when_its_time_is_over(store: &dyn Store) {
    let bytes = content(5 * PIECE);
    let id = upload(store, &bytes, session("s"), 100).id;
    sweep(store, 99);
    assert_eq!(size(store, id, session("s")), Ok(bytes.len() as u64));
    upload(store, &bytes, session("s"), 200);
    upload(store, &bytes, session("t"), 50);
    sweep(store, 199);
    assert_eq!(size(store, id, session("s")), Ok(bytes.len() as u64), "a later upload asked for a longer time");
    assert_eq!(size(store, id, session("t")), missing(id), "access ends with the uploader's own time");
    sweep(store, 200);
    assert_eq!(size(store, id, Access::Owner), missing(id));
    assert_eq!(must(block_on(store.artifacts().sweep(at(200), 9))), Swept::default(), "nothing is left");
    assert_eq!(upload(store, &bytes, session("s"), 300).id, id, "it can be uploaded again");
    assert_eq!(read(store, id, 4 * PIECE as u64, PIECE), bytes[4 * PIECE..]);
}

pub(super) fn l16_content_that_a_run_refers_to_is_kept(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let id = upload(store, b"report", Access::Run(run(1)), 100).id;
    let other = upload(store, b"draft", Access::Run(run(1)), 100).id;
    owner.write(vec![Change::Append(vec![record(1, json!("done"))]), refer(1, id)]);
    sweep(store, 1_000);
    assert_eq!((size(store, id, Access::Owner), size(store, other, Access::Owner)), (Ok(6), missing(other)));
    owner.write(vec![refer(1, id), Change::State(finished())]);
    sweep(store, 2_000);
    assert_eq!(size(store, id, Access::Run(run(1))), Ok(6), "also after the run has ended");

    // Created, referred to and finished in one commit, as most runs are.
    let id = upload(store, b"at once", Access::Run(run(2)), 2_100).id;
    let whole = vec![creation(2), Change::Append(vec![record(0, json!(1))]), refer(2, id), Change::State(finished())];
    must(Owner { store, run: run(2), epoch: 1, seq: 0 }.submit(whole.clone()));
    assert_eq!(Owner { store, run: run(2), epoch: 1, seq: 0 }.submit(whole), Ok(()), "the identical commit");
    sweep(store, 3_000);
    assert_eq!(size(store, id, Access::Run(run(2))), Ok(7));
}

pub(super) fn l16_an_id_alone_gives_no_access(store: &dyn Store) {
    let mut ada = Owner::create_as(store, 1, in_session(1, "ada"));
    let mut bob = Owner::create_as(store, 2, in_session(2, "bob"));
    Owner::create_as(store, 3, in_session(3, "ada"));
    let id = upload(store, b"secret", Access::Run(run(1)), 100).id;
    for stranger in [session("ada"), session("bob"), Access::Run(run(2)), Access::Run(run(3)), Access::Run(run(9))] {
        assert_eq!(size(store, id, stranger.clone()), missing(id), "{stranger:?}, before a run refers to it");
    }
    ada.write(vec![refer(1, id)]);
    for friend in [session("ada"), Access::Run(run(1)), Access::Run(run(3)), Access::Owner] {
        assert_eq!(size(store, id, friend.clone()), Ok(6), "{friend:?}");
        assert_eq!(must(block_on(store.artifacts().read(id, friend, 2, 9))), b"cret");
    }
    for stranger in [session("bob"), session("none"), Access::Run(run(2)), Access::Run(run(9))] {
        assert_eq!(size(store, id, stranger.clone()), missing(id), "{stranger:?}");
        assert_eq!(block_on(store.artifacts().read(id, stranger, 0, 9)), missing(id));
    }
    assert_eq!(bob.submit(vec![refer(2, id)]), missing(id), "a run without access cannot refer to it");
    // Uploading the same bytes gives access to them.
    upload(store, b"secret", session("bob"), 100);
    assert_eq!(size(store, id, Access::Run(run(2))), Ok(6));
    bob.write(vec![refer(2, id)]);
    sweep(store, 1_000);
    assert_eq!(size(store, id, session("bob")), Ok(6));
}

pub(super) fn l28_a_principal_reads_only_artifacts_of_its_own(store: &dyn Store) {
    let of =
        |name: &str, session: Option<&str>| Access::Principal { name: name.into(), session: session.map(Into::into) };
    let Stored { id, .. } = upload(store, b"for s", of("ada", Some("s")), 9);
    assert_eq!(size(store, id, of("ada", None)), Ok(5));
    assert_eq!(size(store, id, of("ada", Some("s"))), Ok(5));
    assert_eq!(size(store, id, of("ada", Some("t"))), missing(id), "it was stored for another session");
    assert_eq!(size(store, id, of("bob", None)), missing(id));
    assert_eq!(size(store, id, of("bob", Some("s"))), missing(id), "a session's name gives no access");
    assert_eq!(size(store, id, session("s")), Ok(5), "the runs of the session can use it");
    let acting = |n, name: &str| Creation { principal: Some(name.into()), ..in_session(n, "s") };
    must(outside(store, vec![start(1, acting(1, "ada")), refer(1, id)]));
    sweep(store, 9);
    assert_eq!(size(store, id, of("ada", None)), Ok(5), "a run that acts for it refers to it");
    assert_eq!(size(store, id, of("bob", None)), missing(id));
    must(outside(store, vec![start(2, acting(2, "bob")), refer(2, id)]));
    assert_eq!(size(store, id, of("bob", None)), Ok(5));
}

pub(super) fn l16_a_family_without_a_session_shares_artifacts(store: &dyn Store) {
    let mut root = Owner::create(store, 1);
    root.write(vec![start(2, child_of(2, 1)), start(3, child_of(3, 2)), start(4, child_of(4, 1))]);
    Owner::create(store, 5);
    let (mut grandchild, _) = Owner::claim(store, run(3));
    let id = upload(store, b"found", Access::Run(run(3)), 100).id;
    grandchild.write(vec![refer(3, id)]);
    for member in 1..=4 {
        assert_eq!(size(store, id, Access::Run(run(member))), Ok(5), "{member}");
    }
    assert_eq!(size(store, id, Access::Run(run(5))), missing(id), "another family");
    // An ancestor that is not in this store has access to what its descendants refer to.
    must(outside(store, vec![start(7, child_of(7, 6))]));
    let (mut child, _) = Owner::claim(store, run(7));
    let id = upload(store, b"here", Access::Run(run(7)), 100).id;
    child.write(vec![refer(7, id)]);
    assert_eq!(size(store, id, Access::Run(run(6))), Ok(4));
}

pub(super) fn l16_a_reference_to_a_missing_artifact_refuses_its_commit(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    let there = upload(store, b"there", Access::Run(run(1)), 100).id;
    let not = ArtifactId::of(b"not there");
    let append = || Change::Append(vec![record(1, json!("done"))]);
    let both = Change::Refer { run: run(1), artifacts: vec![there, not], by: run(1) };
    assert_eq!(owner.submit(vec![append(), both, Change::State(finished())]), missing(not));
    assert_eq!(owner.journal().len(), 1, "nothing of the commit is kept");
    sweep(store, 100);
    assert_eq!(size(store, there, Access::Owner), missing(there), "and no reference");
    owner.append(json!("on its way"));
    Owner::create(store, 2);
    assert!(matches!(owner.submit(vec![refer(2, there)]), Err(StoreError::Invalid(_))), "for another run");
    assert!(matches!(outside(store, vec![refer(1, there)]), Err(StoreError::Invalid(_))), "without ownership");
}

pub(super) fn l16_a_run_may_be_started_with_artifacts_of_another_run(store: &dyn Store) {
    let mut original = Owner::create(store, 1);
    let id = upload(store, b"copied", Access::Run(run(1)), 100).id;
    original.write(vec![refer(1, id)]);
    let copy = |by| vec![start(2, new(2)), refer_by(2, id, by)];
    assert_eq!(outside(store, copy(run(2))), missing(id), "the new run itself has no access");
    assert_eq!(block_on(store.info(run(2))), Ok(None));
    must(outside(store, copy(run(1))));
    assert_eq!(size(store, id, Access::Run(run(2))), Ok(6));
    assert_eq!(outside(store, copy(run(2))), Ok(()), "a run that exists is not started again");

    // With the access of its session, for which it was uploaded.
    let id = upload(store, b"attached", session("s"), 100).id;
    let begin = |n, name: &str| vec![start(n, in_session(n, name)), refer(n, id)];
    assert_eq!(outside(store, begin(3, "t")), missing(id));
    must(outside(store, begin(4, "s")));
    sweep(store, 1_000);
    assert_eq!(size(store, id, session("s")), Ok(8));
}
