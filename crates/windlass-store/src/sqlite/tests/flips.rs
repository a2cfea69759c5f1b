//! Flipped bytes, in every table and column and anywhere in the file: what is answered is what was answered before, or the
//! damage is named.

use std::path::Path as FilePath;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::types::Value as SqlValue;
use windlass_core::run::record::DoubtCause;
use windlass_core::run::state::{Blocked, Doubt, Park, RunInfo};
use windlass_core::store::{Access, ArtifactId, Artifacts, Filter, KeyPlace, Turn};

use super::super::check_file;
use super::super::place::beside;
use super::packing::count;
use super::*;

const ARTIFACT: &[u8] = b"what was made, in some words that are long enough to be flipped here and there";

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

/// One of everything: packed, keyed, finished, doubted, suspended with mail, out of line, purged, with an artifact.
fn fill(store: &SqliteStore) {
    let say = |n, seq, changes| commit(store, owner(n, seq, changes)).unwrap();
    say(1, 0, vec![Change::Create(creation("t", None, Some("s"))), append(json!([1, 0]))]);
    let mut seq = 1;
    while count(store.path(), "segments") == 0 || seq < 20 {
        say(1, seq, vec![append(json!([1, seq]))]);
        seq += 1;
    }
    say(2, 0, vec![Change::Create(creation("u", Some("key"), None)), append(json!("begun"))]);
    say(2, 1, vec![append(json!("done")), finish()]);
    say(3, 0, vec![Change::Create(creation("t", None, None)), append(json!("x".repeat(20_000)))]);
    let (at, path) = (Timestamp::default(), Path::root().child(1));
    let on = Blocked::Input { name: "n".into(), at: None };
    let park = Park { path: path.clone(), operation: "wait".to_owned(), on, since: at, until: None };
    let suspended = RunState::Suspended { wake: Some(Timestamp::from_micros(50)) };
    let places = [true, false].map(|held| {
        let path = if held { Path::root() } else { path.clone() };
        KeyPlace { path, key: "till".into(), ticket: 5 + u64::from(!held), held }
    });
    let keys = Change::Keys(places.to_vec());
    say(3, 1, vec![append(json!("waits")), Change::Parks(vec![park]), keys, Change::State(suspended)]);
    commit(store, signal(3, json!("first"), Some("dedupe"))).unwrap();
    commit(store, signal(3, json!("y".repeat(20_000)), None)).unwrap();
    say(4, 0, vec![Change::Create(creation("t", Some("spent"), None)), append(json!(1)), finish()]);
    block_on(store.purge(run(4), Timestamp::default())).unwrap();
    let (operation, cause) = ("pay".to_owned(), DoubtCause::WorkerLost);
    let doubt = Doubt { path, attempt: 1, operation, cause, over_by: at, since: at, said: None };
    let child = Creation { parent: Some(Box::new((run(1), Path::root().child(7)))), ..creation("t", None, None) };
    say(5, 0, vec![Change::Create(child), append(json!("failed")), Change::Doubts(vec![doubt]), finish()]);
    let upload = block_on(store.begin(Access::Run(run(1)), Timestamp::from_micros(i64::MAX))).unwrap();
    block_on(Artifacts::append(store, upload, ARTIFACT.to_vec())).unwrap();
    let artifact = block_on(Artifacts::finish(store, upload, "text/plain".into())).unwrap().id;
    let refer = Change::Refer { run: run(1), artifacts: vec![artifact], by: run(1) };
    say(1, seq, vec![append(json!("refers")), refer]);
    block_on(store.renew(WorkerId::from_number(7), Timestamp::from_micros(9))).unwrap();
    // A turn that waits for the one before it, and an upload that was not ended.
    let turn = Creation { turn: Turn::Queue, ..creation("u", None, Some("s")) };
    let start = Change::Start { run: run(7), creation: turn, records: vec![record(json!("turn"))] };
    commit(store, Commit { guard: Guard::Outsider, changes: vec![start] }).unwrap();
    let open = block_on(store.begin(Access::Run(run(1)), Timestamp::from_micros(i64::MAX))).unwrap();
    block_on(Artifacts::append(store, open, b"not ended".to_vec())).unwrap();
    // Running when the process dies.
    say(6, 0, vec![Change::Create(creation("u", Some("running"), Some("s"))), append(json!("begun"))]);
    say(6, 1, vec![append(json!("goes on"))]);
}

/// Whether an answer names damage itself.
fn names(answer: &str) -> bool {
    answer.contains("Damaged {") || answer.contains("damaged: Some(")
}

/// What the file answers, by name. Nothing if it refuses to be opened, which is an answer to nobody.
fn answers(path: &FilePath) -> Option<Vec<(String, String)>> {
    let store = SqliteStore::open_with(path, options()).ok()?;
    let mut all = Vec::new();
    let mut say = |what: &str, answer: String| all.push((what.to_owned(), answer));
    say("secret", format!("{:?}", store.secret()));
    let short = |info: RunInfo| format!("{info:?}");
    for n in 1..=7 {
        say(&format!("info {n}"), format!("{:?}", block_on(store.info(run(n))).map(|info| info.map(short))));
        say(&format!("journal {n}"), format!("{:?}", block_on(store.journal(run(n), 0))));
        say(&format!("page {n}"), format!("{:?}", block_on(store.page(run(n), 1, 3))));
    }
    for key in ["key", "running", "spent"] {
        say(&format!("key {key}"), format!("{:?}", block_on(store.keyed(key.into()))));
        let create = vec![Change::Create(creation("t", Some(key), None)), append(json!(1))];
        say(&format!("taken {key}"), format!("{:?}", commit(&store, owner(9, 0, create))));
    }
    say("feed", format!("{:?}", block_on(store.feed("s".into(), 0, 99))));
    for n in [3, 5] {
        say(&format!("mail {n}"), format!("{:?}", block_on(store.mail(run(n), 0))));
    }
    say("places", format!("{:?}", block_on(store.key_places())));
    say("told", format!("{:?}", block_on(store.told(run(3), "dedupe".into()))));
    let filters = [Filter::All, Filter::Running, Filter::Suspended, Filter::Finished, Filter::Held, Filter::Inbox];
    let filters = filters.into_iter().chain([Filter::Doubted, Filter::Session("s".into()), Filter::Children(run(1))]);
    for filter in filters {
        say(&format!("list {filter:?}"), format!("{:?}", block_on(store.list(filter, None, 99))));
    }
    let artifact = ArtifactId::of(ARTIFACT);
    say("size", format!("{:?}", block_on(Artifacts::size(&store, artifact, Access::Owner))));
    say("artifact type", format!("{:?}", block_on(Artifacts::media_type(&store, artifact, Access::Owner))));
    for by in [Access::Owner, Access::Session("s".into())] {
        say(&format!("artifact {by:?}"), format!("{:?}", block_on(Artifacts::read(&store, artifact, by, 0, 999))));
    }
    say("due", format!("{:?}", block_on(store.due(Timestamp::from_micros(99), 9))));
    // The suspended run goes on to its end.
    let claimed = block_on(store.claim(run(3), claimant()));
    say("claim 3", format!("{claimed:?}"));
    if let Ok(claimed) = claimed
        && claimed.damaged.is_none()
    {
        let guard = Guard::Owner { run: run(3), epoch: claimed.epoch, expected_seq: claimed.seq };
        let changes = vec![append(json!("the end")), Change::Examined(2), Change::Consumed(vec![1, 2]), finish()];
        let ended = commit(&store, Commit { guard, changes });
        say("end 3", format!("{ended:?}"));
        if ended.is_ok() {
            say("ended 3", format!("{:?}", block_on(store.journal(run(3), 0))));
        }
    }
    Some(all)
}

/// What no check after the fact makes up for: these must be what they were, or say that they are damaged.
const STRICT: [&str; 7] = ["secret", "journal", "page", "mail", "claim", "artifact", "ended"];

/// Why a damaged file is not as it should be.
fn wrong(path: &FilePath, expected: &[(String, String)]) -> Result<(), String> {
    // As it was before it was opened, which writes to it.
    let kept = path.with_file_name("kept.db");
    std::fs::copy(path, &kept).unwrap();
    let Some(found) = answers(path) else { return Ok(()) };
    for (what, answer) in &found {
        let Some((_, right)) = expected.iter().find(|(other, _)| other == what) else { continue };
        if answer == right || names(answer) {
            continue;
        }
        let is_named = check_file(&kept, |_, _| {}).map_or(true, |report| !report.is_fine());
        let is_missing = ["Err(", "Ok(None)", "Ok([])"].iter().any(|none| answer.starts_with(none));
        let strict = STRICT.iter().any(|strict| what.starts_with(strict)) && !is_missing;
        if strict || !is_named {
            let from = answer.bytes().zip(right.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(100);
            let (answer, right) = (answer.get(from..).unwrap_or(answer), right.get(from..).unwrap_or(right));
            return Err(format!("{what} (named by a check: {is_named}): …{answer:.300}\n instead of …{right:.300}"));
        }
    }
    Ok(())
}

/// Flips of cells that are made at least, and of bytes, each in a file that was closed and in one whose process died: more than
/// a thousand together.
const CELLS: usize = 250;
const BYTES: usize = 300;
const _: () = assert!(2 * (CELLS + BYTES) > 1_000);

/// The same numbers every time.
struct Dice(u64);

impl Dice {
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

const TABLES: [(&str, &[&str]); 14] = [
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
        // Nothing writes `log.note` any more.
        for column in columns.iter().filter(|column| (table, column.as_str()) != ("log", "note")) {
            let filled = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE {column} IS NOT NULL)");
            let filled: bool = connection.query_row(&filled, [], |row| row.get(0)).unwrap();
            assert!(filled, "nothing is in {table}.{column} of the sample");
        }
        for row in rows {
            cells.extend(columns.iter().map(|column| (table, column.clone(), row.clone())));
        }
    }
    cells
}

/// Flips something in a cell. False if nothing is in it, or the file takes no such value.
fn flip(path: &FilePath, (table, column, row): &Cell, dice: &mut Dice) -> bool {
    let connection = edit(path);
    // What keeps checksums does not see it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).unwrap();
    let value: SqlValue =
        connection.query_row(&format!("SELECT {column} FROM {table} WHERE {row}"), [], |row| row.get(0)).unwrap();
    let (value, shown) = match value {
        SqlValue::Integer(number) => (SqlValue::Integer(number ^ (1 << dice.below(63))), "?1"),
        SqlValue::Text(text) if !text.is_empty() => {
            let mut bytes = text.into_bytes();
            dice.flip(&mut bytes);
            (SqlValue::Blob(bytes), "CAST(?1 AS TEXT)")
        }
        SqlValue::Blob(mut bytes) if !bytes.is_empty() => {
            dice.flip(&mut bytes);
            (SqlValue::Blob(bytes), "?1")
        }
        _ => return false,
    };
    connection.execute(&format!("UPDATE {table} SET {column} = {shown} WHERE {row}"), [value]).is_ok()
}

/// A file to flip bytes in, closed in good order or as a process left it that died, and what it answers.
fn sample(directory: &FilePath, dies: bool) -> (PathBuf, Vec<(String, String)>) {
    let (path, copy) = (directory.join("sample.db"), directory.join("copy.db"));
    let store = SqliteStore::open_with(&path, options()).unwrap();
    fill(&store);
    let (wal, copied) = (directory.join("sample.db-wal"), directory.join("copy.db-wal"));
    if dies {
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(wal, copied).unwrap();
        drop(store);
        // All of it is in one file.
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
    assert!(!expected.iter().any(|(_, answer)| names(answer)), "{expected:?}");
    (copy, expected)
}

/// How a file is damaged: the how many-eth flip of a file at this place; says what was flipped, if anything was.
type Harm<'a> = dyn FnMut(&FilePath, usize, &mut Dice) -> Option<String> + 'a;

/// Flips, looks, and says what was wrong with which flips.
fn look(
    sample: &FilePath,
    expected: &[(String, String)],
    (seed, count, least): (u64, usize, usize),
    harm: &mut Harm<'_>,
) {
    let (mut dice, mut flips, mut failures) = (Dice(seed), 0, Vec::new());
    let path = sample.with_file_name("flipped.db");
    for number in 0..count {
        for suffix in ["", "-wal", "-shm", "-lock"] {
            drop(std::fs::remove_file(beside(&path, suffix)));
        }
        std::fs::copy(sample, &path).unwrap();
        let Some(what) = harm(&path, number, &mut dice) else { continue };
        flips += 1;
        if let Err(why) = wrong(&path, expected) {
            failures.push(format!("{what}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{} of {flips} flips:\n{}", failures.len(), failures.join("\n"));
    assert!(flips >= least, "{flips} of {count}");
}

/// In memory, where there is such a place: a thousand files are written.
fn quick() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn flip_cells(dies: bool, seed: u64) {
    let directory = quick();
    let (sample, expected) = sample(directory.path(), dies);
    let cells = cells(&sample);
    look(&sample, &expected, (seed, cells.len(), CELLS), &mut |path, number, dice| {
        let cell = &cells[number];
        flip(path, cell, dice).then(|| format!("{cell:?}"))
    });
}

#[test]
fn w08_a_flip_in_any_cell_is_named_or_changes_no_answer() {
    flip_cells(false, 1);
}

#[test]
fn w08_a_flip_in_any_cell_that_a_killed_process_left_is_named_or_changes_no_answer() {
    flip_cells(true, 2);
}

#[test]
fn w08_a_flip_of_any_byte_of_the_file_is_named_or_changes_no_answer() {
    for (dies, seed) in [(false, 3), (true, 4)] {
        let directory = quick();
        let (sample, expected) = sample(directory.path(), dies);
        look(&sample, &expected, (seed, BYTES, BYTES), &mut |path, _, dice| {
            let mut bytes = std::fs::read(path).unwrap();
            let (at, bits) = (dice.below(bytes.len()), u8::try_from(1 + dice.below(255)).unwrap());
            bytes[at] ^= bits;
            std::fs::write(path, bytes).unwrap();
            Some(format!("byte {at} of page {}", at / 4096 + 1))
        });
    }
}
