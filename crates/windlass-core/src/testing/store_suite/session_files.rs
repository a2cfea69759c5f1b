//! Session files: the tree, its limits, compare-and-set, and how long contents are kept.

use serde_json::json;

use super::scene::{Owner, at, finished, must, new, record, run};
use crate::limits;
use crate::store::{
    Access, ArtifactId, Change, Creation, EditedContent, FileChange, FileEdit, FileEncoding, FileExpectation, FileInfo,
    FileLimits, FileQuery, FileRefusal, FileUsage, RefusedEdit, SessionAccess, SessionAnswer, SessionChange,
    SessionOperation, SessionPath, SessionRefusal, SessionVerdict, SessionWrite, Store, StoreError, Stored,
};
use crate::testing::block_on;

const LIMITS: FileLimits = FileLimits { file_bytes: 100, session_bytes: 150, count: 6 };

fn path(text: &str) -> SessionPath {
    must(SessionPath::parse(text))
}

/// Stores content for a session until then.
fn upload_for(store: &dyn Store, session: &str, bytes: &[u8], until: i64) -> Stored {
    let artifacts = store.artifacts();
    let upload = must(block_on(artifacts.begin(Access::Session(session.into()), at(until))));
    if !bytes.is_empty() {
        must(block_on(artifacts.append(upload, bytes.to_vec())));
    }
    must(block_on(artifacts.finish(upload, "text/plain".into())))
}

fn change_as(
    store: &dyn Store,
    session: &str,
    now: i64,
    change: FileChange,
    by: Option<SessionOperation>,
) -> Result<SessionVerdict, StoreError> {
    let change = SessionChange::File(change);
    block_on(store.sessions().write_session(SessionWrite {
        session: session.into(),
        at: at(now),
        change,
        by,
        access: SessionAccess::All,
        starter: Default::default(),
    }))
}

fn change(store: &dyn Store, now: i64, change: FileChange) -> Result<SessionAnswer, FileRefusal> {
    match must(change_as(store, "s", now, change, None)) {
        Ok(answer) => Ok(answer),
        Err(SessionRefusal::File(refusal)) => Err(refusal),
        Err(other) => panic!("{other:?}"),
    }
}

fn write_change(at: &str, content: Stored, expect: FileExpectation) -> FileChange {
    FileChange::Write { path: path(at), content, encoding: FileEncoding::Text, expect, limits: LIMITS }
}

/// Writes a file whose content is stored until time 10.
fn write_if(
    store: &dyn Store,
    now: i64,
    at: &str,
    bytes: &[u8],
    expect: FileExpectation,
) -> Result<FileInfo, FileRefusal> {
    let content = upload_for(store, "s", bytes, 10);
    match change(store, now, write_change(at, content, expect))? {
        SessionAnswer::FileWritten { file, .. } => Ok(file),
        other => panic!("{other:?}"),
    }
}

fn write(store: &dyn Store, now: i64, at: &str, bytes: &[u8]) -> Result<FileInfo, FileRefusal> {
    write_if(store, now, at, bytes, FileExpectation::Any)
}

fn delete(store: &dyn Store, at: &str, recursive: bool) -> Result<bool, FileRefusal> {
    let deletion = FileChange::Delete { path: path(at), recursive, expect: FileExpectation::Any };
    change(store, 5, deletion).map(|answer| answer == SessionAnswer::Deleted { existed: true })
}

fn create_directory(store: &dyn Store, at: &str) -> Result<bool, FileRefusal> {
    let creation = FileChange::CreateDirectory { path: path(at), limits: LIMITS };
    change(store, 5, creation).map(|answer| answer == SessionAnswer::DirectoryCreated { created: true })
}

fn file(store: &dyn Store, at: &str) -> Option<FileInfo> {
    must(block_on(store.sessions().file("s".into(), path(at))))
}

fn list(store: &dyn Store, directory: &str, recursive: bool, after: Option<&str>, limit: usize) -> Vec<String> {
    let query = FileQuery { directory: path(directory), recursive, after: after.map(path), limit };
    let files = must(block_on(store.sessions().list_files("s".into(), query)));
    files.iter().map(|file| file.path.to_string()).collect()
}

fn usage(store: &dyn Store) -> FileUsage {
    must(block_on(store.sessions().file_usage("s".into())))
}

fn open(store: &dyn Store) {
    session_write(store, "s", SessionChange::Open { title: None, owner: None, settings: Default::default() });
}

fn session_write(store: &dyn Store, session: &str, change: SessionChange) {
    let write = SessionWrite {
        session: session.into(),
        at: at(1),
        change,
        by: None,
        access: SessionAccess::All,
        starter: Default::default(),
    };
    must(must(block_on(store.sessions().write_session(write))).map_err(|refusal| refusal.sentence(session)));
}

fn read(store: &dyn Store, content: ArtifactId, by: Access) -> Option<Vec<u8>> {
    block_on(store.artifacts().read(content, by, 0, 1_000)).ok()
}

fn session(name: &str) -> Access {
    Access::Session(name.into())
}

fn sweep(store: &dyn Store, now: i64) {
    while must(block_on(store.artifacts().sweep(at(now), 2))).more {}
}

/// The latest time at which the content of a file that was replaced at `now` is kept, and a later one.
fn grace(now: i64) -> (i64, i64) {
    let end = (at(now) + limits::ARTIFACT_GRACE).as_micros();
    (end - 1, end + 1)
}

pub(super) fn e15_files_are_written_read_listed_and_deleted(store: &dyn Store) {
    assert_eq!((file(store, "/"), list(store, "/", true, None, 9)), (None, Vec::new()), "there is no session");
    let missing =
        change_as(store, "s", 1, write_change("/a", upload_for(store, "s", b"x", 10), FileExpectation::Any), None);
    assert_eq!(missing, Ok(Err(SessionRefusal::Missing)));
    open(store);
    assert!(file(store, "/").is_some_and(|root| root.is_directory()) && file(store, "/a").is_none());
    let written = must(write(store, 2, "/docs/de/a.txt", b"hallo").map_err(|refusal| refusal.sentence("s")));
    let expected = FileInfo {
        path: path("/docs/de/a.txt"),
        content: Some(ArtifactId::of(b"hallo")),
        size: 5,
        encoding: FileEncoding::Text,
        is_readonly: false,
        created: at(2),
        updated: at(2),
    };
    assert_eq!((&written, file(store, "/docs/de/a.txt").as_ref()), (&expected, Some(&expected)));
    assert!(file(store, "/docs").is_some_and(|docs| docs.is_directory() && docs.created == at(2)));
    assert_eq!(read(store, ArtifactId::of(b"hallo"), session("s")).as_deref(), Some(&b"hallo"[..]));
    let again = write(store, 3, "/docs/de/a.txt", b"hallo du").map(|file| (file.created, file.updated, file.size));
    assert_eq!(again, Ok((at(2), at(3), 8)));
    for (name, bytes) in [("/docs/b", &b""[..]), ("/docs 2", b"x")] {
        assert!(write(store, 3, name, bytes).is_ok(), "{name}");
    }
    assert_eq!(list(store, "/", false, None, 9), ["/docs", "/docs 2"]);
    assert_eq!(list(store, "/docs", false, None, 9), ["/docs/b", "/docs/de"]);
    let all = ["/docs", "/docs 2", "/docs/b", "/docs/de", "/docs/de/a.txt"];
    assert_eq!(list(store, "/", true, None, 9), all);
    assert_eq!(list(store, "/", true, Some("/docs 2"), 2), all[2..4]);
    assert_eq!(list(store, "/docs", true, None, 9), all[2..]);
    assert_eq!(list(store, "/docs", true, Some("/docs/b"), 9), all[3..]);
    assert_eq!(list(store, "/docs", false, Some("/docs/b"), 9), ["/docs/de"]);
    assert!(list(store, "/none", true, None, 9).is_empty());
    assert_eq!(usage(store), FileUsage { bytes: 9, count: 5 });
    assert_eq!(delete(store, "/docs/b", false), Ok(true));
    assert_eq!((delete(store, "/docs/b", false), delete(store, "/x/y", true)), (Ok(false), Ok(false)));
    assert_eq!(delete(store, "/docs", false), Err(FileRefusal::NotEmpty { path: path("/docs") }));
    assert_eq!(delete(store, "/docs", true), Ok(true));
    assert_eq!(list(store, "/", true, None, 9), ["/docs 2"], "a directory goes with what is in it, and nothing else");
    assert_eq!((create_directory(store, "/a/b"), create_directory(store, "/a")), (Ok(true), Ok(false)));
    assert_eq!((delete(store, "/a/b", false), delete(store, "/a", false)), (Ok(true), Ok(true)), "empty ones");
    assert!(delete(store, "/", true).is_err(), "the root stays");
}

pub(super) fn e15_files_and_directories_do_not_replace_each_other(store: &dyn Store) {
    open(store);
    assert!(write(store, 1, "/a", b"1").is_ok() && create_directory(store, "/d") == Ok(true));
    let (a, d) = (path("/a"), path("/d"));
    assert_eq!(write(store, 2, "/a/b/c", b"x"), Err(FileRefusal::NotDirectory { path: a.clone() }));
    assert_eq!(create_directory(store, "/a"), Err(FileRefusal::NotDirectory { path: a.clone() }));
    assert_eq!(create_directory(store, "/a/b"), Err(FileRefusal::NotDirectory { path: a.clone() }));
    assert_eq!(write(store, 2, "/d", b"x"), Err(FileRefusal::IsDirectory { path: d.clone() }));
    assert_eq!(write(store, 2, "/", b"x"), Err(FileRefusal::IsDirectory { path: path("/") }));
    assert_eq!(create_directory(store, "/"), Ok(false));
    let protect = |at: &str, readonly| change(store, 3, FileChange::Protect { path: path(at), readonly });
    assert_eq!(protect("/d", true), Err(FileRefusal::IsDirectory { path: d }));
    assert_eq!(protect("/none", true), Err(FileRefusal::Missing { path: path("/none") }));
    assert_eq!(protect("/a", true), Ok(SessionAnswer::Done));
    let readonly = FileRefusal::Readonly { path: a };
    assert_eq!(write(store, 4, "/a", b"2"), Err(readonly.clone()));
    assert_eq!(delete(store, "/a", true), Err(readonly));
    assert!(file(store, "/a").is_some_and(|file| file.is_readonly && file.size == 1));
    assert_eq!(protect("/a", false), Ok(SessionAnswer::Done));
    assert!(write(store, 4, "/a", b"22").is_ok());
    assert_eq!(list(store, "/", true, None, 9), ["/a", "/d"], "a refused write leaves no directories");
}

pub(super) fn e15_a_write_can_require_what_is_there(store: &dyn Store) {
    use FileExpectation::{Content, Missing};
    open(store);
    let (one, two) = (ArtifactId::of(b"one"), ArtifactId::of(b"two"));
    let stale = |current| FileRefusal::Stale { path: path("/a"), current };
    assert_eq!(write_if(store, 1, "/a", b"x", Content(one)), Err(stale(None)));
    assert!(write_if(store, 1, "/a", b"one", Missing).is_ok());
    assert_eq!(write_if(store, 2, "/a", b"x", Missing), Err(stale(Some(one))));
    assert!(write_if(store, 2, "/a", b"two", Content(one)).is_ok());
    assert_eq!(write_if(store, 3, "/a", b"x", Content(one)), Err(stale(Some(two))));
    let deletion = |expect| FileChange::Delete { path: path("/a"), recursive: false, expect };
    assert_eq!(change(store, 4, deletion(Content(one))), Err(stale(Some(two))));
    assert_eq!(change(store, 4, deletion(Content(two))), Ok(SessionAnswer::Deleted { existed: true }));
    assert_eq!(change(store, 4, deletion(Content(two))), Err(stale(None)));
    assert_eq!(usage(store), FileUsage::default());
}

pub(super) fn e15_files_have_limits(store: &dyn Store) {
    open(store);
    let big = FileRefusal::FileBytes { path: path("/a"), limit: 100 };
    assert_eq!(write(store, 1, "/a", &[b'x'; 101]), Err(big));
    assert!(write(store, 1, "/a", &[b'x'; 100]).is_ok());
    assert_eq!(write(store, 1, "/b", &[b'y'; 51]), Err(FileRefusal::SessionBytes { limit: 150, used: 100 }));
    assert!(write(store, 1, "/b", &[b'x'; 50]).is_ok());
    assert_eq!(write(store, 1, "/c", b"x"), Err(FileRefusal::SessionBytes { limit: 150, used: 150 }));
    assert!(write(store, 2, "/a", b"x").is_ok(), "what a file had before does not count");
    assert!(write(store, 2, "/d/e/f", b"").is_ok());
    assert_eq!(usage(store), FileUsage { bytes: 51, count: 5 });
    assert_eq!(write(store, 3, "/g/h", b""), Err(FileRefusal::Count { limit: 6 }));
    assert_eq!(create_directory(store, "/g/h"), Err(FileRefusal::Count { limit: 6 }));
    assert!(write(store, 3, "/g", b"").is_ok() && write(store, 3, "/g", b"g").is_ok());
    assert_eq!(usage(store).count, 6, "a refused write leaves no directories");
    assert!(delete(store, "/d", true) == Ok(true) && write(store, 4, "/g2", b"").is_ok());
}

pub(super) fn e15_contents_are_shared_and_kept_while_a_file_has_them(store: &dyn Store) {
    open(store);
    session_write(store, "other", SessionChange::Open { title: None, owner: None, settings: Default::default() });
    let id = ArtifactId::of(b"shared");
    assert!(write(store, 1, "/a", b"shared").is_ok() && write(store, 1, "/b", b"shared").is_ok());
    let mine = upload_for(store, "other", b"shared", 10);
    let written = change_as(store, "other", 1, write_change("/c", mine, FileExpectation::Any), None);
    assert!(matches!(written, Ok(Ok(SessionAnswer::FileWritten { created: true, .. }))));
    sweep(store, 1_000);
    assert!(read(store, id, session("s")).is_some() && read(store, id, session("other")).is_some());
    assert!(read(store, id, session("third")).is_none(), "the hash alone gives no access");
    // The first session replaces one of its two files, then deletes the other one.
    assert!(write(store, 1_000, "/a", b"else").is_ok());
    sweep(store, grace(2_000).1);
    assert!(read(store, id, session("s")).is_some(), "it still has another file with it");
    assert_eq!(delete(store, "/b", false), Ok(true));
    sweep(store, grace(5).1);
    assert_eq!(read(store, id, Access::Owner).as_deref(), Some(&b"shared"[..]), "the other session has it");
    let deletion = FileChange::Delete { path: path("/c"), recursive: false, expect: FileExpectation::Any };
    let now = grace(3_000).1;
    assert_eq!(change_as(store, "other", now, deletion, None), Ok(Ok(SessionAnswer::Deleted { existed: true })));
    sweep(store, grace(now).0);
    assert!(read(store, id, session("other")).is_some(), "a reader that has begun can finish");
    sweep(store, grace(now).1);
    assert!(read(store, id, Access::Owner).is_none(), "no file has it any more");
    assert!(read(store, ArtifactId::of(b"else"), session("s")).is_some());
}

pub(super) fn e15_a_run_keeps_a_content_that_it_read(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, Creation { session: Some("s".into()), ..new(1) });
    let id = ArtifactId::of(b"read");
    assert!(write(store, 1, "/a", b"read").is_ok());
    let refer = Change::Refer { run: run(1), artifacts: vec![id], by: run(1) };
    owner.write(vec![Change::Append(vec![record(1, json!("read"))]), refer]);
    assert_eq!(delete(store, "/a", false), Ok(true));
    sweep(store, grace(100).1);
    assert!(read(store, id, Access::Run(run(1))).is_some(), "the run refers to it");
    let stranger = Owner::create_as(store, 2, Creation { session: Some("t".into()), ..new(2) });
    let refer = Change::Refer { run: run(2), artifacts: vec![id], by: run(2) };
    assert_eq!(stranger.submit(vec![refer]), Err(StoreError::NoArtifact { artifact: id }));
}

pub(super) fn e15_only_content_that_the_writer_may_read_becomes_a_file(store: &dyn Store) {
    open(store);
    session_write(store, "other", SessionChange::Open { title: None, owner: None, settings: Default::default() });
    let theirs = upload_for(store, "other", b"theirs", 1_000);
    let refused = FileRefusal::NoContent { content: theirs.id };
    assert_eq!(change(store, 1, write_change("/a", theirs, FileExpectation::Any)), Err(refused));
    let unknown = Stored { id: ArtifactId::of(b"unknown"), size: 7 };
    let refused = FileRefusal::NoContent { content: unknown.id };
    assert_eq!(change(store, 1, write_change("/a/b", unknown, FileExpectation::Any)), Err(refused));
    assert_eq!(usage(store), FileUsage::default());
}

pub(super) fn e15_a_write_of_an_operation_gets_its_verdict_again(store: &dyn Store) {
    for n in [1, 2] {
        Owner::create_as(store, n, Creation { session: Some("s".into()), ..new(n) });
    }
    assert!(write(store, 1, "/a", b"base").is_ok());
    let base = ArtifactId::of(b"base");
    let write_as = |n: u8, epoch, bytes: &[u8]| {
        let content = upload_for(store, "s", bytes, 1_000);
        let by = Some(SessionOperation { run: run(n), epoch, key: format!("write {n}").into() });
        change_as(store, "s", 5, write_change("/a", content, FileExpectation::Content(base)), by)
    };
    // Two runs replace the same content: exactly one of them wins.
    let first = must(write_as(1, 1, b"first"));
    assert!(matches!(&first, Ok(SessionAnswer::FileWritten { created: false, .. })), "{first:?}");
    let second = must(write_as(2, 1, b"second"));
    let stale = FileRefusal::Stale { path: path("/a"), current: Some(ArtifactId::of(b"first")) };
    assert_eq!(second, Err(SessionRefusal::File(stale)));
    // Both get their verdict again after a crash, whatever the file is by then.
    assert!(write(store, 6, "/a", b"base").is_ok());
    for (n, verdict) in [(1, &first), (2, &second)] {
        let (owner, _) = Owner::claim(store, run(n));
        assert_eq!(write_as(n, owner.epoch, b"again").as_ref(), Ok(verdict));
        assert!(matches!(write_as(n, 1, b"again"), Err(StoreError::Stale { .. })));
    }
    assert_eq!(file(store, "/a").and_then(|file| file.content), Some(base), "nothing is written twice");
}

pub(super) fn e15_w09_files_are_readonly_once_closed_and_purged_with_the_session(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, Creation { session: Some("s".into()), ..new(1) });
    let id = ArtifactId::of(b"content");
    let shared = upload_for(store, "other", b"shared", 10);
    for (at, bytes) in [("/a/b", &b"content"[..]), ("/c", b"shared")] {
        assert!(write(store, 1, at, bytes).is_ok());
    }
    session_write(store, "other", SessionChange::Open { title: None, owner: None, settings: Default::default() });
    must(
        must(change_as(store, "other", 1, write_change("/mine", shared, FileExpectation::Any), None))
            .map_err(|_| "refused"),
    );
    session_write(store, "s", SessionChange::Close { reason: "over".into() });
    let refused = |change| must(change_as(store, "s", 2, change, None));
    let content = upload_for(store, "s", b"late", 10);
    let deletion = FileChange::Delete { path: path("/c"), recursive: false, expect: FileExpectation::Any };
    for change in [write_change("/c", content, FileExpectation::Any), deletion] {
        assert_eq!(refused(change), Err(SessionRefusal::Closed));
    }
    assert!(file(store, "/c").is_some(), "files of a closed session can be read");
    sweep(store, 1_000);
    assert!(read(store, id, session("s")).is_some());
    owner.write(vec![Change::State(finished())]);
    must(block_on(store.sessions().purge_session("s".into())));
    assert_eq!((file(store, "/c"), usage(store)), (None, FileUsage::default()));
    sweep(store, 1_000);
    assert!(read(store, id, Access::Owner).is_none(), "its content goes at once");
    assert!(read(store, ArtifactId::of(b"shared"), session("other")).is_some(), "what another session has stays");
}

pub(super) fn e15_l25_an_outcome_changes_the_files_that_were_staged_for_it(store: &dyn Store) {
    let owner = Owner::create_as(store, 1, Creation { session: Some("s".into()), ..new(1) });
    for (at, bytes) in [("/kept", &b"base"[..]), ("/gone", b"base"), ("/stale", b"other")] {
        assert!(write(store, 1, at, bytes).is_ok());
    }
    let base = ArtifactId::of(b"base");
    let edit = |at: &str, base, bytes: Option<&[u8]>| {
        let content = bytes.map(|bytes| {
            let Stored { id: hash, size } = upload_for(store, "s", bytes, 1_000);
            EditedContent { hash, size, encoding: FileEncoding::Text }
        });
        FileEdit { path: path(at), base, content }
    };
    let edits = vec![
        edit("/gone", Some(base), None),
        edit("/kept", Some(base), Some(b"new")),
        edit("/large", None, Some(&[b'x'; 101])),
        edit("/new/file", None, Some(b"new")),
        edit("/stale", Some(base), Some(b"new")),
    ];
    let stage = |epoch, key: &str, edits: &[FileEdit]| {
        let change = SessionChange::Stage { edits: edits.to_vec(), limits: LIMITS };
        let by = Some(SessionOperation { run: run(1), epoch, key: key.into() });
        match block_on(
            store.sessions().write_session(SessionWrite { by, ..SessionWrite::outside("s".into(), at(5), change) }),
        ) {
            Ok(Ok(SessionAnswer::Staged { refused })) => refused,
            other => panic!("{other:?}"),
        }
    };
    let refused = stage(1, "op", &edits);
    let stale = FileRefusal::Stale { path: path("/stale"), current: Some(ArtifactId::of(b"other")) };
    let large = FileRefusal::FileBytes { path: path("/large"), limit: 100 };
    let expected = [("/large", large), ("/stale", stale)];
    let expected = expected.map(|(at, refusal)| RefusedEdit { path: path(at), refusal });
    assert_eq!(refused, expected);
    assert_eq!(list(store, "/", true, None, 9), ["/gone", "/kept", "/stale"], "nothing is changed yet");
    // Nothing else changes what was staged, what is above it or below it.
    let busy = |at: &str| FileRefusal::Busy { path: path(at), run: run(1) };
    assert_eq!(write(store, 6, "/kept", b"x"), Err(busy("/kept")));
    assert_eq!((delete(store, "/gone", false), write(store, 6, "/new", b"x")), (Err(busy("/gone")), Err(busy("/new"))));
    assert!(write(store, 6, "/stale", b"free").is_ok());
    // A repeated attempt stages again, in place of the first.
    let made: Vec<FileEdit> = [&edits[0], &edits[1], &edits[3]].map(Clone::clone).into();
    assert_eq!(stage(1, "op", &made), []);
    let commit = |made: &[FileEdit]| {
        let edit = Change::Edit { session: "s".into(), at: at(7), edits: made.to_vec(), key: "op".into() };
        vec![Change::Append(vec![record(1, json!("outcome"))]), edit]
    };
    let refused = Owner { store, run: run(1), epoch: 9, seq: 1 }.submit(commit(&made));
    assert!(matches!(refused, Err(StoreError::Stale { .. })));
    assert!(file(store, "/new/file").is_none(), "nothing of a refused commit is made");
    must(owner.submit(commit(&made)));
    must(owner.submit(commit(&made)));
    assert_eq!(list(store, "/", true, None, 9), ["/kept", "/new", "/new/file", "/stale"]);
    assert_eq!(file(store, "/kept").and_then(|file| file.content), Some(ArtifactId::of(b"new")));
    sweep(store, grace(7).1);
    assert!(read(store, ArtifactId::of(b"new"), session("s")).is_some());
    // A reservation is void once the run has another owner.
    assert!(write(store, 8, "/kept", b"base").is_ok());
    assert_eq!(stage(1, "next", &[edit("/kept", Some(base), Some(b"lost"))]), []);
    assert_eq!(write(store, 8, "/kept", b"x"), Err(busy("/kept")));
    let (mut next, _) = Owner::claim(store, run(1));
    assert!(write(store, 9, "/kept", b"base").is_ok());
    // A closed session is not changed, and the outcome is recorded all the same.
    let last = edit("/kept", Some(base), Some(b"late"));
    assert_eq!(stage(next.epoch, "op", std::slice::from_ref(&last)), []);
    session_write(store, "s", SessionChange::Close { reason: "over".into() });
    next.write(commit(&[last]));
    assert_eq!(file(store, "/kept").and_then(|file| file.content), Some(base));
    assert_eq!(next.journal().len(), 3);
}
