//! What the file looks like, and how an older file becomes a current one.

use rusqlite::Error::UserFunctionError;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};
use windlass_core::RunId;

use super::{backup, blobs, check, lineage, log, migrate_notes, outline, places, sum};

/// Marks a file as ours in its header ("WLAS"), so that no other program's database is ever written to.
pub(super) const APPLICATION_ID: i32 = 0x574c_4153;

/// The schema this build reads and writes.
pub(super) const VERSION: i32 = 8;

/// - `file` is one row: how often the file was opened, what reply keys are signed with, up to where the log is packed,
///   whether the last to open it closed it in good order, a position that none of its records is beyond as long as nothing
///   was added since rows at its end went, whether it is a backup that nobody opened yet, and the highest `runs.id` of
///   those that are gone.
/// - `sessions` keeps names short in the tables that repeat them.
/// - `mail` keeps the rows of consumed messages without their text, so that neither positions nor dedupe keys come back.
const TABLES: &str = "
CREATE TABLE file (
    openings INTEGER NOT NULL,
    secret   BLOB NOT NULL,
    packed   INTEGER NOT NULL DEFAULT 0,
    clean    INTEGER NOT NULL DEFAULT 1,
    last     INTEGER NOT NULL DEFAULT 0,
    copy     INTEGER NOT NULL DEFAULT 0,
    runs     INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO file (openings, secret) VALUES (0, randomblob(32));

CREATE TABLE workers (
    id    INTEGER PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT;
CREATE INDEX workers_by_lease ON workers (until);

CREATE TABLE sessions (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE mail (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    dedupe   TEXT,
    body     TEXT,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX mail_by_dedupe ON mail (run, dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX mail_unread ON mail (run, position) WHERE body IS NOT NULL;
";

/// - `runs.id` stands for the run in the other tables: a third of the size of the run's own id. It grows, so it is also
///   the order in which turns arrived. It is handed out by the writer: SQLite's own way to never hand one out twice writes
///   a page for it every time.
/// - `runs.opening` is the opening of the file under which the epoch was handed out: it tells an owner in this process
///   from one that died with an earlier process. `runs.clean` says that no owner before the last one can be alive.
/// - `runs.wake` is when a queued or suspended run is due; nothing for a run that somebody drives or nobody will.
/// - `runs.turn` is set while the run is a turn that is not over.
/// - `runs.asks` says that something in `parks` needs a person.
/// - `runs.base` is the number of the first record of this generation.
/// - `runs.ended` is when a finished run ended; `runs.summary` is 0 while its journal is whole, 1 while it is being removed,
///   2 once the row is all that is left.
/// - `runs.tail` and `runs.length` say where the journal ends, unless it has rows beyond `file.packed`.
/// - The partial indexes answer the filters; an index holds only the rows its filter shows. A run that is created and
///   finished in one commit is in none of them but `runs_ended` and `runs_by_tool`, which grow at their ends. The filter
///   of finished runs has none of its own: nearly all runs are finished, so walking all of them in their order finds them
///   as fast. Every index that a new run is in is one more page that its first commit writes.
const RUNS: &str = "
CREATE TABLE runs (
    id          INTEGER PRIMARY KEY,
    run         BLOB NOT NULL UNIQUE,
    tool        TEXT NOT NULL,
    created     INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    opening     INTEGER NOT NULL,
    worker      INTEGER NOT NULL,
    orderly     INTEGER NOT NULL,
    clean       INTEGER NOT NULL DEFAULT 1,
    phase       INTEGER NOT NULL,
    state       TEXT NOT NULL,
    wake        INTEGER,
    key         TEXT,
    session     INTEGER,
    turn        INTEGER,
    parent_run  BLOB,
    parent_path TEXT,
    generation  INTEGER NOT NULL DEFAULT 0,
    base        INTEGER NOT NULL DEFAULT 0,
    examined    INTEGER NOT NULL DEFAULT 0,
    doubts      TEXT,
    parks       TEXT,
    asks        INTEGER NOT NULL DEFAULT 0,
    tail        INTEGER NOT NULL DEFAULT 0,
    length      INTEGER NOT NULL DEFAULT 0,
    ended       INTEGER,
    summary     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_open ON runs (phase, run) WHERE phase < 4;
CREATE INDEX runs_due ON runs (wake, run) WHERE wake IS NOT NULL;
CREATE INDEX runs_doubted ON runs (run) WHERE doubts IS NOT NULL;
CREATE INDEX runs_inbox ON runs (run) WHERE doubts IS NOT NULL OR asks = 1;
CREATE UNIQUE INDEX runs_by_key ON runs (key) WHERE key IS NOT NULL;
CREATE INDEX runs_by_session ON runs (session, run) WHERE session IS NOT NULL;
CREATE INDEX runs_turns ON runs (session, id) WHERE turn IS NOT NULL;
CREATE INDEX runs_by_parent ON runs (parent_run, run) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_by_tool ON runs (tool, run);
";

/// See `log.rs`.
const LOG: &str = "
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     TEXT NOT NULL
) STRICT;
CREATE INDEX log_by_session ON log (session) WHERE session IS NOT NULL;

CREATE TABLE segments (
    position INTEGER PRIMARY KEY,
    first    INTEGER NOT NULL,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     BLOB NOT NULL
) STRICT;
CREATE INDEX segments_by_session ON segments (session, first) WHERE session IS NOT NULL;
";

/// Nothing writes it any more, but the checksums of the rows cover it: see `migrate_notes.rs`.
const NOTE: &str = "ALTER TABLE log ADD COLUMN note TEXT;";

/// Finished runs by how much of them is left and when they ended.
const ENDED: &str = "CREATE INDEX runs_ended ON runs (summary, ended) WHERE ended IS NOT NULL;";

/// The keys of runs that are gone.
const RETENTION: &str = "
CREATE TABLE tombstones (
    key   TEXT PRIMARY KEY,
    run   BLOB NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_age ON tombstones (since);
";

/// For people: what they see has no numbers that only the file understands. They need functions that only Windlass's own
/// connections have, for ids and for what is packed. Made anew by every migration.
const VIEWS: &str = "
DROP VIEW IF EXISTS run;
CREATE VIEW run AS
    SELECT windlass_id(runs.run) AS run, tool, datetime(created / 1000000, 'unixepoch') AS created,
           datetime(ended / 1000000, 'unixepoch') AS ended,
           json_extract(state, '$.state') AS state, key, sessions.name AS session, windlass_id(parent_run) AS parent,
           CASE WHEN wake BETWEEN 0 AND 9223372036854775806
                THEN datetime(wake / 1000000, 'unixepoch') END AS wakes, doubts, parks
    FROM runs LEFT JOIN sessions ON sessions.id = runs.session;

DROP VIEW IF EXISTS journal;
CREATE VIEW journal AS
    SELECT windlass_id(runs.run) AS run, piece.seq + record.key AS seq, record.value AS record
    FROM (SELECT run, seq, windlass_lines(body) AS lines FROM segments
          UNION ALL SELECT run, seq, windlass_lines(body) FROM log) AS piece
    JOIN runs ON runs.id = piece.run, json_each(piece.lines) AS record;
";

/// What makes a file of one version one of the next: the first entry is for files of version 1.
const MIGRATIONS: [&[&str]; 7] = [FROM_V1, FROM_V2, FROM_V3, FROM_V4, FROM_V5, FROM_V6, FROM_V7];

/// Version 7 wrote the rows of short runs after their records; `migrate_notes.rs` writes those that are missing. It kept neither
/// the places of runs in the queues of keys nor the types of artifacts.
const FROM_V7: &[&str] = &[places::DDL, "DROP TRIGGER IF EXISTS blobs_sum;", blobs::MEDIA_TYPES, sum::BLOBS_TRIGGER];

/// Version 6 took any log that lay beside the file, and had no checksums. What it wrote stays without.
const FROM_V6: &[&str] = &[lineage::DDL, sum::COLUMNS, sum::TRIGGERS];

/// Version 5 had at most one run without a row, and noted only its birth.
const FROM_V5: &[&str] = &["DROP VIEW IF EXISTS run;
     DROP VIEW IF EXISTS journal;
     ALTER TABLE log RENAME COLUMN birth TO note;"];

/// Version 4 wrote the row of every run with its first records.
const FROM_V4: &[&str] = &["ALTER TABLE log ADD COLUMN birth TEXT;"];

/// Version 3 had SQLite hand out the numbers of runs, and an index of those that somebody drives.
const FROM_V3: &[&str] = &[
    "DROP VIEW IF EXISTS run;
     DROP VIEW IF EXISTS journal;
     ALTER TABLE file ADD COLUMN runs INTEGER NOT NULL DEFAULT 0;
     UPDATE file SET runs = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'runs'), 0);
     DROP INDEX runs_open;
     DROP INDEX runs_driven;
     DROP INDEX runs_due;
     DROP INDEX runs_doubted;
     DROP INDEX runs_inbox;
     DROP INDEX runs_by_key;
     DROP INDEX runs_by_session;
     DROP INDEX runs_turns;
     DROP INDEX runs_by_parent;
     DROP INDEX runs_by_tool;
     DROP INDEX runs_ended;
     ALTER TABLE runs RENAME TO old;",
    RUNS,
    "INSERT INTO runs (id, run, tool, created, epoch, opening, worker, orderly, clean, phase, state, wake, key, session,
                       turn, parent_run, parent_path, generation, base, examined, doubts, parks, asks, tail, length,
                       ended, summary)
        SELECT id, run, tool, created, epoch, opening, worker, orderly, clean, phase, state, wake, key, session,
               turn, parent_run, parent_path, generation, base, examined, doubts, parks, asks, tail, length,
               ended, summary
        FROM old ORDER BY id;
     DROP TABLE old;",
    ENDED,
];

/// Version 2 could not list the runs of a tool.
const FROM_V2: &[&str] = &["CREATE INDEX runs_by_tool ON runs (tool, run);"];

/// Version 1 had a row for each record, found by an index instead of by the row before, and did not know when runs ended.
const FROM_V1: &[&str] = &[
    "ALTER TABLE file ADD COLUMN packed INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE file ADD COLUMN clean INTEGER NOT NULL DEFAULT 1;
     ALTER TABLE file ADD COLUMN last INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE file ADD COLUMN copy INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE runs ADD COLUMN ended INTEGER;
     ALTER TABLE runs ADD COLUMN summary INTEGER NOT NULL DEFAULT 0;
     UPDATE runs SET ended = created WHERE phase = 4;
     ALTER TABLE runs ADD COLUMN tail INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE runs ADD COLUMN length INTEGER NOT NULL DEFAULT 0;
     UPDATE runs SET (tail, length) =
        (SELECT coalesce(max(position), 0), coalesce(max(seq) + 1, 0) FROM log WHERE log.run = runs.id);
     UPDATE file SET packed = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'log'), 0);
     DROP INDEX log_by_session;
     ALTER TABLE log RENAME TO old;",
    LOG,
    "INSERT INTO log (position, run, seq, count, previous, session, body)
        SELECT position, run, seq, 1,
               coalesce((SELECT position FROM old AS before WHERE before.run = old.run AND before.seq = old.seq - 1), 0),
               session, body
        FROM old ORDER BY position;
     DROP TABLE old;",
    blobs::DDL,
    ENDED,
    RETENTION,
];

/// Whose file it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// Nobody's yet.
    Empty,
    /// Ours, with this schema.
    Windlass(i32),
    /// Somebody else's; says what it is.
    Foreign(&'static str),
}

/// Reads whose file it is without changing it.
pub(super) fn identify(connection: &Connection) -> rusqlite::Result<Identity> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let application = match number("application_id") {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            return Ok(Identity::Foreign("it is not an SQLite database"));
        }
        other => other?,
    };
    if application == APPLICATION_ID {
        return Ok(Identity::Windlass(number("user_version")?));
    }
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application == 0 && tables == 0 {
        return Ok(Identity::Empty);
    }
    Ok(Identity::Foreign("it is an SQLite database of another program"))
}

/// Makes an empty file ours. One transaction: a crash leaves it empty or finished.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let parts = [TABLES, RUNS, LOG, NOTE, ENDED, RETENTION, blobs::DDL, places::DDL];
    let parts = parts.into_iter().chain([lineage::DDL, sum::COLUMNS, blobs::MEDIA_TYPES]);
    for statements in parts.chain([sum::TRIGGERS, sum::BLOBS_TRIGGER, VIEWS]) {
        transaction.execute_batch(statements)?;
    }
    note_shape(&transaction)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Makes a file of an older version one of this. One transaction: a crash leaves it as it was or finished. A file that is
/// damaged stays as it is: what is moved or made anew would hide where.
pub(super) fn migrate(connection: &mut Connection, from: i32) -> rusqlite::Result<()> {
    let said: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if said != "ok" {
        return Err(corrupt(said));
    }
    // The first version that has checksums of its schema and of its own row.
    if from >= 7 {
        check_own_row(connection)?;
    }
    let transaction = connection.transaction()?;
    let older = usize::try_from(from).unwrap_or(1).max(1) - 1;
    for statements in MIGRATIONS.iter().skip(older).copied().flatten() {
        transaction.execute_batch(statements)?;
    }
    migrate_notes::write_rows(&transaction)?;
    transaction.execute_batch(VIEWS)?;
    note_shape(&transaction)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

fn note_shape(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE file SET shape = ?1", [sum::shape(connection)?]).map(|_| ())
}

/// What is wrong with the schema, if it is not the one that was written.
pub(super) fn misshapen(connection: &Connection) -> rusqlite::Result<Option<String>> {
    if let Some(table) = check::missing(connection)?.first() {
        return Ok(Some(format!("the table {table} is missing")));
    }
    let stated: Option<i64> = connection.query_row("SELECT max(shape) FROM file", [], |row| row.get(0))?;
    let is_ours = stated.is_none_or(|stated| sum::shape(connection).is_ok_and(|shape| shape == stated));
    Ok((!is_ours).then(|| "its schema is damaged".to_owned()))
}

/// What SQLite says of a file that it finds damaged itself.
fn corrupt(said: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT), Some(said))
}

/// Refuses a file whose schema or own row is damaged: that has what reply keys are signed with, and where the log goes on.
pub(super) fn check_own_row(connection: &Connection) -> rusqlite::Result<()> {
    if let Some(problem) = misshapen(connection)? {
        return Err(corrupt(problem));
    }
    let [own, ..] = sum::QUESTIONS;
    let rows: i64 = connection.query_row("SELECT count(*) FROM file", [], |row| row.get(0))?;
    match connection.prepare(own)?.exists([])? {
        false if rows == 1 => Ok(()),
        _ => Err(corrupt("the row of the file itself is damaged".to_owned())),
    }
}

/// What the views and the triggers need.
pub(super) fn add_functions(connection: &Connection) -> rusqlite::Result<()> {
    sum::add_function(connection)?;
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("windlass_id", 1, flags, |context| {
        let id: Option<[u8; 16]> = context.get(0)?;
        Ok(id.map(|id| RunId::from_bytes(id).to_string()))
    })?;
    connection.create_scalar_function("windlass_lines", 1, flags, |context| match context.get_raw(0) {
        ValueRef::Blob(segment) => {
            let rows = log::unpack(0, segment).map_err(|error| UserFunctionError(error.into()))?;
            Ok(array(rows.iter().map(|row| &*row.body)))
        }
        other => Ok(array(std::iter::once(other.as_str()?))),
    })
}

/// Lines of JSON as one array.
fn array<'a>(bodies: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = bodies.flat_map(|body| body.split('\n')).map(outline::json).collect();
    format!("[{}]", lines.join(","))
}

/// Counts this opening of the file; returns its number and the file's secret. Whoever had a lease died with the opening
/// before.
pub(super) fn count_opening(connection: &mut Connection) -> rusqlite::Result<(i64, [u8; 32])> {
    let transaction = connection.transaction()?;
    transaction.execute("DELETE FROM workers", [])?;
    backup::restore(&transaction)?;
    let sql = "UPDATE file SET openings = openings + 1, clean = 0 RETURNING openings, secret";
    let counted = transaction.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    transaction.commit()?;
    Ok(counted)
}

/// Whether whoever opened the file last closed it in good order.
pub(super) fn is_clean(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT clean FROM file", [], |row| row.get(0))
}

/// Says that the file is closed in good order.
pub(super) fn mark_clean(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE file SET clean = 1", []).map(|_| ())
}

/// Writes one page that is there already, to see whether the file can be written and synced.
pub(super) fn touch(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "user_version", VERSION)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The steps of SQLite's plan for a statement.
    pub(in crate::sqlite) fn plan(sql: &str) -> String {
        let mut connection = Connection::open_in_memory().unwrap();
        add_functions(&connection).unwrap();
        create(&mut connection).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.raw_query().mapped(|row| row.get::<_, String>(3)).collect::<Result<Vec<_>, _>>();
        steps.unwrap().join("; ")
    }

    /// Whether nothing is walked from end to end, or sorted.
    pub(in crate::sqlite) fn is_indexed(plan: &str) -> bool {
        !plan.contains("SCAN") && !plan.contains("TEMP B-TREE")
    }
}
