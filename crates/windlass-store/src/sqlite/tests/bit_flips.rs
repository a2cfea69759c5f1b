//! Flipped bits, in every table and column and anywhere in the file: an answer is the same as before, or the damage is
//! reported.

use std::path::Path as FilePath;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::types::Value as SqlValue;
use windlass_core::run::record::DoubtCause;
use windlass_core::run::state::{Blocked, Doubt, Park, RunInfo};
use windlass_core::store::{
    Access, ArtifactId, Artifacts, Author, ConnectionChange, ConnectionKey, ConnectionWrite, Connections, Credential,
    DataKind, FileChange, FileEncoding, FileExpectation, FileLimits, FileQuery, Files, Filter, KeyPlace, NewMessage,
    Rejected, SeenOutcome, SessionChange, SessionFilter, SessionOperation, SessionPath, SessionWrite, Sessions,
    SettingsChange, Turn,
};
use windlass_core::tool::{Content, ToolsChange};

use super::super::check_file;
use super::super::db_file::with_suffix;
use super::packing::count;
use super::*;

const ARTIFACT: &[u8] = b"an artifact with a text that is long enough to have its bits flipped in some places";

fn creation(tool: &str, key: Option<&str>, session: Option<&str>) -> Creation {
    let (key, session) = (key.map(Into::into), session.map(Into::into));
    Creation { tool: tool.into(), key, session, at: Timestamp::from_micros(5), ..Creation::default() }
}

fn options() -> Options {
    Options { unpacked: 16, ..Options::from(Durability::Relaxed) }
}

fn signal(n: u8, value: Value, dedupe: Option<&str>) -> Commit {
    let message = Message::Signal { name: "n".into(), value: Arc::new(value) };
    let mail = Change::Mail { run: run(n), message, dedupe: dedupe.map(Into::into) };
    Commit { guard: Guard::Outsider, changes: vec![mail] }
}

/// A run of each kind: packed, keyed, finished, doubted, suspended with mail, with large values, purged, with an
/// artifact.
fn fill(store: &SqliteStore) {
    let write = |n, seq, changes| commit(store, owner(n, seq, changes)).unwrap();
    write(1, 0, vec![Change::Create(creation("t", None, Some("s"))), append(json!([1, 0]))]);
    let mut seq = 1;
    while count(store.path(), "segments") == 0 || seq < 20 {
        write(1, seq, vec![append(json!([1, seq]))]);
        seq += 1;
    }
    write(2, 0, vec![Change::Create(creation("u", Some("key"), None)), append(json!("begun"))]);
    write(2, 1, vec![append(json!("done")), finish()]);
    write(3, 0, vec![Change::Create(creation("t", None, None)), append(json!("x".repeat(20_000)))]);
    let (at, path) = (Timestamp::default(), Path::root().child(1));
    let on = Blocked::Input { name: "n".into(), at: None };
    let park = Park { path: path.clone(), operation: "wait".to_owned(), on, since: at, until: None };
    let suspended = RunState::Suspended { wake: Some(Timestamp::from_micros(50)) };
    let places = [true, false].map(|held| {
        let path = if held { Path::root() } else { path.clone() };
        KeyPlace { path, key: "till".into(), ticket: 5 + u64::from(!held), held }
    });
    let keys = Change::Keys(places.to_vec());
    write(3, 1, vec![append(json!("waits")), Change::Parks(vec![park]), keys, Change::State(suspended)]);
    commit(store, signal(3, json!("first"), Some("dedupe"))).unwrap();
    commit(store, signal(3, json!("y".repeat(20_000)), None)).unwrap();
    write(4, 0, vec![Change::Create(creation("t", Some("spent"), None)), append(json!(1)), finish()]);
    block_on(store.purge(run(4), Timestamp::default())).unwrap();
    let (operation, cause) = ("pay".to_owned(), DoubtCause::WorkerLost);
    let doubt = Doubt { path, attempt: 1, operation, cause, over_by: at, since: at, said: None };
    let child = Creation {
        parent: Some(Box::new((run(1), Path::root().child(7)))),
        principal: Some("ada".into()),
        cause: Some("message 7".into()),
        ..creation("t", None, None)
    };
    write(5, 0, vec![Change::Create(child), append(json!("failed")), Change::Doubts(vec![doubt]), finish()]);
    let upload = block_on(store.begin(Access::Run(run(1)), Timestamp::from_micros(i64::MAX))).unwrap();
    block_on(Artifacts::append(store, upload, ARTIFACT.to_vec())).unwrap();
    let artifact = block_on(Artifacts::finish(store, upload, "text/plain".into())).unwrap().id;
    let refer = Change::Refer { run: run(1), artifacts: vec![artifact], by: run(1) };
    write(1, seq, vec![append(json!("refers")), refer]);
    block_on(store.renew(WorkerId::from_number(7), Duration::from_micros(9))).unwrap();
    // A turn that waits for the one before it, and an upload that is not finished.
    let turn = Creation { turn: Turn::Queue, ..creation("u", None, Some("s")) };
    let start = Change::Start { run: run(7), creation: turn, records: vec![record(json!("turn"))] };
    commit(store, Commit { guard: Guard::Outsider, changes: vec![start] }).unwrap();
    let open = block_on(store.begin(Access::Run(run(1)), Timestamp::from_micros(i64::MAX))).unwrap();
    block_on(Artifacts::append(store, open, b"not finished".to_vec())).unwrap();
    // Still running when the process dies.
    write(6, 0, vec![Change::Create(creation("u", Some("running"), Some("s"))), append(json!("begun"))]);
    let outcomes = vec![SeenOutcome::Compared { call: 1, result: 2 }];
    write(6, 1, vec![append(json!("goes on")), Change::Outcomes { at, outcomes }]);
    fill_sessions(store);
}

/// An open session with messages, a value, a secret and the verdict on a write, and a closed one.
fn fill_sessions(store: &SqliteStore) {
    let write = |session: &str, change, by| {
        let write = SessionWrite { by, ..SessionWrite::outside(session.into(), Timestamp::from_micros(6), change) };
        block_on(store.write_session(write)).unwrap().unwrap()
    };
    let say = |text: &str| {
        let content = vec![Content::text(text)];
        let (cause, dedupe) = (Some("turn 1".into()), Some(text.into()));
        SessionChange::Post(NewMessage { cause, dedupe, ..NewMessage::new(Author::Agent, content) })
    };
    let set = |kind, value| SessionChange::Set { kind, name: "n".into(), value };
    write("s", say("hello"), None);
    write("s", say("again"), Some(SessionOperation { run: run(6), epoch: 1, key: "op".into() }));
    write("s", set(DataKind::Value, json!({"a": 1})), None);
    write("s", set(DataKind::Secret, json!("hush")), None);
    write("s", SessionChange::Tools(ToolsChange::hide(["pay"])), None);
    let settings = SettingsChange::default().model("m-1").agent("agent");
    write("done", SessionChange::Open { title: Some("Done".into()), owner: Some("ada".into()), settings }, None);
    let wakes = NewMessage::text(Author::User, "wake up").wake();
    write("s", SessionChange::Post(wakes), None);
    let connect = |change| {
        let (key, at) = (ConnectionKey::new("mail", Some("ada".into())), Timestamp::from_micros(7));
        block_on(store.write_connection(ConnectionWrite { key, at, change })).unwrap();
    };
    let (credential, expires) = (Some(Credential::new("a token")), Some(Timestamp::from_micros(90)));
    connect(ConnectionChange::Connect { credential, expires, dedupe: None });
    let which = Rejected::SetBy(Timestamp::from_micros(8));
    connect(ConnectionChange::Expire { which, problem: "rejected".into() });
    let upload = block_on(store.begin(Access::Session("s".into()), Timestamp::from_micros(9))).unwrap();
    block_on(Artifacts::append(store, upload, b"content of a file".to_vec())).unwrap();
    let content = block_on(Artifacts::finish(store, upload, "text/plain".into())).unwrap();
    let (path, encoding, limits) = (file_path(), FileEncoding::Base64, FileLimits::default());
    let expect = FileExpectation::Missing;
    write("s", SessionChange::File(FileChange::Write { path, content, encoding, expect, limits }), None);
    write("done", SessionChange::Close { reason: "over".into() }, None);
}

fn file_path() -> SessionPath {
    SessionPath::parse("/a/b.txt").unwrap()
}

/// Whether an answer reports damage.
fn reports_damage(answer: &str) -> bool {
    answer.contains("Damaged {") || answer.contains("damaged: Some(")
}

/// The answers of the store, by name. `None` if the file cannot be opened, which is not a wrong answer.
fn answers(path: &FilePath) -> Option<Vec<(String, String)>> {
    let store = SqliteStore::open_with(path, options()).ok()?;
    let mut all = Vec::new();
    let mut add = |what: &str, answer: String| all.push((what.to_owned(), answer));
    add("secret", format!("{:?}", store.secret()));
    let short = |info: RunInfo| format!("{info:?}");
    for n in 1..=7 {
        add(&format!("info {n}"), format!("{:?}", block_on(store.info(run(n))).map(|info| info.map(short))));
        add(&format!("journal {n}"), format!("{:?}", block_on(store.journal(run(n), 0))));
        add(&format!("page {n}"), format!("{:?}", block_on(store.page(run(n), 1, 3))));
    }
    for key in ["key", "running", "spent"] {
        add(&format!("key {key}"), format!("{:?}", block_on(store.keyed(key.into()))));
        let create = vec![Change::Create(creation("t", Some(key), None)), append(json!(1))];
        add(&format!("taken {key}"), format!("{:?}", commit(&store, owner(9, 0, create))));
    }
    add("feed", format!("{:?}", block_on(store.feed("s".into(), 0, 99))));
    for n in [3, 5] {
        add(&format!("mail {n}"), format!("{:?}", block_on(store.mail(run(n), 0))));
    }
    add("places", format!("{:?}", block_on(store.key_places())));
    add("told", format!("{:?}", block_on(store.told(run(3), "dedupe".into()))));
    let filters = [
        Filter::default(),
        Filter::running(),
        Filter::suspended(),
        Filter::finished(),
        Filter::held(),
        Filter::inbox(),
    ];
    let filters = filters.into_iter().chain([Filter::in_doubt(), Filter::session("s"), Filter::children(run(1))]);
    for filter in filters {
        add(&format!("list {filter:?}"), format!("{:?}", block_on(store.list(filter, None, 99))));
    }
    let artifact = ArtifactId::of(ARTIFACT);
    add("size", format!("{:?}", block_on(Artifacts::size(&store, artifact, Access::Owner))));
    add("artifact type", format!("{:?}", block_on(Artifacts::media_type(&store, artifact, Access::Owner))));
    for by in [Access::Owner, Access::Session("s".into())] {
        add(&format!("artifact {by:?}"), format!("{:?}", block_on(Artifacts::read(&store, artifact, by, 0, 999))));
    }
    add("sessions", format!("{:?}", block_on(store.list_sessions(SessionFilter::default(), None, 9))));
    add("messages", format!("{:?}", block_on(store.session_messages("s".into(), 0, 9))));
    add("value", format!("{:?}", block_on(store.session_value("s".into(), DataKind::Value, "n".into()))));
    add("outcomes", format!("{:?}", block_on(store.recent_outcomes("s".into()))));
    add("secrets", format!("{:?}", block_on(store.session_entries("s".into(), DataKind::Secret))));
    let list = FileQuery { directory: SessionPath::root(), recursive: true, after: None, limit: 9 };
    add("files", format!("{:?}", block_on(store.list_files("s".into(), list))));
    add("session file", format!("{:?}", block_on(store.file("s".into(), file_path()))));
    let content = ArtifactId::of(b"content of a file");
    let read = block_on(Artifacts::read(&store, content, Access::Session("s".into()), 0, 99));
    add("artifact of a file", format!("{read:?}"));
    let late = Change::Start { run: run(8), creation: creation("t", None, Some("done")), records: Vec::new() };
    add("closed", format!("{:?}", commit(&store, Commit { guard: Guard::Outsider, changes: vec![late] })));
    store.use_clock(still(Timestamp::from_micros(99)));
    add("due", format!("{:?}", block_on(store.due(9))));
    // The suspended run continues to its end.
    let claimed = block_on(store.claim(run(3), claimant()));
    add("claim 3", format!("{claimed:?}"));
    if let Ok(claimed) = claimed
        && claimed.damaged.is_none()
    {
        let guard = Guard::Owner { run: run(3), epoch: claimed.epoch, expected_seq: claimed.seq };
        let changes = vec![append(json!("the end")), Change::Examined(2), Change::Consumed(vec![1, 2]), finish()];
        let ended = commit(&store, Commit { guard, changes });
        add("end 3", format!("{ended:?}"));
        if ended.is_ok() {
            add("ended 3", format!("{:?}", block_on(store.journal(run(3), 0))));
        }
    }
    Some(all)
}

/// Answers that must be unchanged or report damage. For these, a later check of the file is not enough.
const STRICT: [&str; 10] =
    ["secret", "journal", "page", "mail", "claim", "artifact", "ended", "messages", "value", "session file"];

/// A row of the log that moved below the packing mark is hidden from readers, which look for the end of a journal above
/// the mark. Only a check of the whole file finds it.
const HIDES_ROWS: &str = "(\"log\", \"position\"";

/// Checks the answers of a damaged file. The error describes the first wrong answer.
fn check_answers(path: &FilePath, expected: &[(String, String)], damage: &str) -> Result<(), String> {
    // A copy from before the file is opened, which writes to it.
    let kept = path.with_file_name("kept.db");
    std::fs::copy(path, &kept).unwrap();
    let Some(found) = answers(path) else { return Ok(()) };
    for (what, answer) in &found {
        let Some((_, right)) = expected.iter().find(|(other, _)| other == what) else { continue };
        if answer == right || reports_damage(answer) {
            continue;
        }
        let is_found = check_file(&kept, |_, _| {}).map_or(true, |report| !report.is_fine());
        let is_missing = ["Err(", "Ok(None)", "Ok([])"].iter().any(|none| answer.starts_with(none));
        let strict = STRICT.iter().any(|strict| what.starts_with(strict)) && !is_missing;
        let strict = strict && !damage.starts_with(HIDES_ROWS);
        if strict || !is_found {
            let from = answer.bytes().zip(right.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(100);
            let (answer, right) = (answer.get(from..).unwrap_or(answer), right.get(from..).unwrap_or(right));
            return Err(format!("{what} (found by a check: {is_found}): …{answer:.300}\n instead of …{right:.300}"));
        }
    }
    Ok(())
}

/// Minimum number of flipped cells, and number of flipped bytes, each in a closed file and in one whose process died:
/// more than a thousand together.
const CELLS: usize = 250;
const BYTES: usize = 300;
const _: () = assert!(2 * (CELLS + BYTES) > 1_000);

/// Pseudo-random numbers, the same in every run of the test.
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % most.max(1) as u64).unwrap()
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        let at = self.below(bytes.len());
        bytes[at] ^= u8::try_from(1 + self.below(255)).unwrap();
    }
}

const TABLES: [(&str, &[&str]); 20] = [
    ("file", &["rowid"]),
    ("workers", &["id"]),
    ("sessions", &["id"]),
    ("runs", &["id"]),
    ("log", &["position"]),
    ("segments", &["position"]),
    ("mail", &["run", "position"]),
    ("tombstones", &["key"]),
    ("blobs", &["id"]),
    ("pieces", &["blob", "number"]),
    ("refs", &["run", "blob"]),
    ("claims", &["blob", "holder"]),
    ("lineage", &["rowid"]),
    ("places", &["run", "path"]),
    ("messages", &["session", "position"]),
    ("session_data", &["session", "secret", "name"]),
    ("verdicts", &["run", "key"]),
    ("outcomes", &["session"]),
    ("files", &["session", "path"]),
    ("connections", &["provider", "principal"]),
];

/// A cell of the file: its table, its column, and which row.
type Cell = (&'static str, String, String);

fn cells(path: &FilePath) -> Vec<Cell> {
    let connection = Connection::open(path).unwrap();
    let mut cells = Vec::new();
    for (table, keys) in TABLES {
        let columns = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns: Vec<String> = columns.column_names().map(str::to_owned).collect();
        let key =
            keys.iter().map(|key| format!("'{key} = ' || quote({key})")).collect::<Vec<_>>().join(" || ' AND ' || ");
        let mut rows = connection.prepare(&format!("SELECT {key} FROM {table}")).unwrap();
        let rows: Vec<String> = rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
        // `log.note` is no longer written.
        for column in columns.iter().filter(|column| (table, column.as_str()) != ("log", "note")) {
            let filled = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE {column} IS NOT NULL)");
            let filled: bool = connection.query_row(&filled, [], |row| row.get(0)).unwrap();
            assert!(filled, "{table}.{column} is empty in the sample");
        }
        for row in rows {
            cells.extend(columns.iter().map(|column| (table, column.clone(), row.clone())));
        }
    }
    cells
}

/// Flips bits in a cell. Returns false if the cell is empty or the table does not accept the value.
fn flip(path: &FilePath, (table, column, row): &Cell, rng: &mut Rng) -> bool {
    let connection = edit(path);
    // Without the triggers that update checksums.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).unwrap();
    let value: SqlValue =
        connection.query_row(&format!("SELECT {column} FROM {table} WHERE {row}"), [], |row| row.get(0)).unwrap();
    let (value, shown) = match value {
        SqlValue::Integer(number) => (SqlValue::Integer(number ^ (1 << rng.below(63))), "?1"),
        SqlValue::Text(text) if !text.is_empty() => {
            let mut bytes = text.into_bytes();
            rng.flip(&mut bytes);
            (SqlValue::Blob(bytes), "CAST(?1 AS TEXT)")
        }
        SqlValue::Blob(mut bytes) if !bytes.is_empty() => {
            rng.flip(&mut bytes);
            (SqlValue::Blob(bytes), "?1")
        }
        _ => return false,
    };
    connection.execute(&format!("UPDATE {table} SET {column} = {shown} WHERE {row}"), [value]).is_ok()
}

/// A file to flip bits in, closed cleanly or as a killed process leaves it, and its answers.
fn sample(directory: &FilePath, dies: bool) -> (PathBuf, Vec<(String, String)>) {
    let (path, copy) = (directory.join("sample.db"), directory.join("copy.db"));
    let store = SqliteStore::open_with(&path, options()).unwrap();
    fill(&store);
    let (wal, copied) = (directory.join("sample.db-wal"), directory.join("copy.db-wal"));
    if dies {
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(wal, copied).unwrap();
        drop(store);
        // Everything is in one file now.
        Connection::open(&copy)
            .unwrap()
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE")
            .unwrap();
    } else {
        drop(store);
        std::fs::copy(&path, &copy).unwrap();
    }
    let again = directory.join("again.db");
    std::fs::copy(&copy, &again).unwrap();
    let report = check_file(&again, |_, _| {}).unwrap();
    assert!(report.is_fine(), "{report}");
    let expected = answers(&again).unwrap();
    assert!(!expected.iter().any(|(_, answer)| reports_damage(answer)), "{expected:?}");
    (copy, expected)
}

/// Damages the file at a path: gets the number of the flip, and returns a description of what was flipped, if anything
/// was.
type Damage<'a> = dyn FnMut(&FilePath, usize, &mut Rng) -> Option<String> + 'a;

/// Damages copies of the sample, and panics with the flips that led to a wrong answer.
fn check_flips(
    sample: &FilePath,
    expected: &[(String, String)],
    (seed, count, least): (u64, usize, usize),
    damage: &mut Damage<'_>,
) {
    let (mut rng, mut flips, mut failures) = (Rng(seed), 0, Vec::new());
    let path = sample.with_file_name("flipped.db");
    for number in 0..count {
        for suffix in ["", "-wal", "-shm", "-lock"] {
            drop(std::fs::remove_file(with_suffix(&path, suffix)));
        }
        std::fs::copy(sample, &path).unwrap();
        let Some(what) = damage(&path, number, &mut rng) else { continue };
        flips += 1;
        if let Err(why) = check_answers(&path, expected, &what) {
            failures.push(format!("{what}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{} of {flips} flips:\n{}", failures.len(), failures.join("\n"));
    assert!(flips >= least, "{flips} of {count}");
}

/// In memory where possible, because a thousand files are written.
fn memory_directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn flip_cells(dies: bool, seed: u64) {
    let directory = memory_directory();
    let (sample, expected) = sample(directory.path(), dies);
    let cells = cells(&sample);
    check_flips(&sample, &expected, (seed, cells.len(), CELLS), &mut |path, number, rng| {
        let cell = &cells[number];
        flip(path, cell, rng).then(|| format!("{cell:?}"))
    });
}

#[test]
fn w08_a_flip_in_any_cell_is_reported_or_changes_no_answer() {
    flip_cells(false, 1);
}

#[test]
fn w08_a_flip_in_any_cell_of_a_killed_process_is_reported_or_changes_no_answer() {
    flip_cells(true, 2);
}

#[test]
fn w08_a_flip_of_any_byte_of_the_file_is_reported_or_changes_no_answer() {
    for (dies, seed) in [(false, 3), (true, 4)] {
        let directory = memory_directory();
        let (sample, expected) = sample(directory.path(), dies);
        check_flips(&sample, &expected, (seed, BYTES, BYTES), &mut |path, _, rng| {
            let mut bytes = std::fs::read(path).unwrap();
            let (at, bits) = (rng.below(bytes.len()), u8::try_from(1 + rng.below(255)).unwrap());
            bytes[at] ^= bits;
            std::fs::write(path, bytes).unwrap();
            Some(format!("byte {at} of page {}", at / 4096 + 1))
        });
    }
}
