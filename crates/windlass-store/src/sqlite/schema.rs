//! The schema of the file, and its migrations.

use rusqlite::Error::UserFunctionError;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};
use windlass_core::RunId;

use super::{
    backup, blobs, check, checksum, connections, key_places, large_values, log, missing_run_rows, sessions, wal_stamp,
};

/// Marks a file as a Windlass database in its header ("WLAS"), so that no other program's database is ever written to.
pub(super) const APPLICATION_ID: i32 = 0x574c_4153;

/// The schema version of this build.
pub(super) const VERSION: i32 = 12;

/// - `file` has one row: the number of openings, the secret that signs reply keys, the position up to which the log is
///   packed, whether the last owner closed the file cleanly, the last position that was in use when rows at the end of
///   the log were removed, whether the file is a backup that was not opened yet, and the highest `runs.id` of removed
///   runs.
/// - `sessions` maps session names to numbers, so that the other tables need not repeat the names. The rest of a session
///   is in `sessions/mod.rs`.
/// - `mail` keeps the rows of consumed messages without their text, so that neither positions nor dedupe keys are used
///   again.
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

/// - `runs.id` identifies the run in the other tables: a third of the size of the run's own id. It increases, so it is
///   also the order in which turns arrived. The writer assigns it, because SQLite's `AUTOINCREMENT` writes an extra
///   page each time.
/// - `runs.opening` is the opening of the file in which the epoch was assigned. It distinguishes an owner in this
///   process from one that died with an earlier process. `runs.clean` says that no owner before the last one can be
///   alive.
/// - `runs.deaths` counts owners that died without releasing the run.
/// - `runs.wake` is when a queued or suspended run is due; null for other runs.
/// - `runs.turn` is set while the run is an unfinished turn.
/// - `runs.asks` says that an entry of `parks` needs a person.
/// - `runs.base` is the number of the first record of this generation.
/// - `runs.ended` is when a finished run ended; `runs.summary` is 0 while its journal is complete, 1 while the journal
///   is being removed, 2 once only the row is left.
/// - `runs.tail` and `runs.length` are the tail of the journal, unless it has rows after `file.packed`.
/// - The partial indexes answer the filters; each contains only the rows that its filter shows. A run that is created
///   and finished in one commit is in none of them but `runs_ended` and `runs_by_tool`, which grow at their ends. The
///   filter of finished runs has no index: nearly all runs are finished, so scanning all of them in order is as fast.
///   Every index with an entry for a new run adds a page to its first commit.
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

/// No longer written, but the checksums of the rows cover it: see `missing_run_rows.rs`.
const NOTE_COLUMN: &str = "ALTER TABLE log ADD COLUMN note TEXT;";

/// Who a run acts for and what caused it. A run that names neither has no entry in these indexes.
const ATTRIBUTION: &str = "
ALTER TABLE runs ADD COLUMN principal TEXT;
ALTER TABLE runs ADD COLUMN cause TEXT;
CREATE INDEX runs_by_principal ON runs (principal, run) WHERE principal IS NOT NULL;
CREATE INDEX runs_by_cause ON runs (cause, run) WHERE cause IS NOT NULL;
";

const DEATHS_COLUMN: &str = "ALTER TABLE runs ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;";

/// Finished runs by how much of them is left and when they ended.
const ENDED_INDEX: &str = "CREATE INDEX runs_ended ON runs (summary, ended) WHERE ended IS NOT NULL;";

/// The keys of removed runs.
const TOMBSTONES: &str = "
CREATE TABLE tombstones (
    key   TEXT PRIMARY KEY,
    run   BLOB NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_age ON tombstones (since);
";

/// Views for people, with run ids instead of internal numbers. They use functions that only Windlass's own connections
/// have, for ids and for packed records. Every migration creates them again.
const VIEWS: &str = "
DROP VIEW IF EXISTS run;
CREATE VIEW run AS
    SELECT windlass_id(runs.run) AS run, tool, datetime(runs.created / 1000000, 'unixepoch') AS created,
           datetime(ended / 1000000, 'unixepoch') AS ended,
           json_extract(state, '$.state') AS state, key, sessions.name AS session, principal, cause,
           windlass_id(parent_run) AS parent,
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

/// The statements that upgrade a file to the next version. The first entry is for version 1.
const MIGRATIONS: [&[&str]; 11] =
    [FROM_V1, FROM_V2, FROM_V3, FROM_V4, FROM_V5, FROM_V6, FROM_V7, FROM_V8, FROM_V9, FROM_V10, FROM_V11];

/// In version 11 a session was a title with messages, data and secrets, and connections were not kept. New files are created with these statements too.
const FROM_V11: &[&str] = &[sessions::SETTINGS, sessions::files::DDL, sessions::OUTCOMES, connections::DDL];

/// In version 10 a session was only a name.
const FROM_V10: &[&str] = &[sessions::DDL, sessions::TRIGGER];

/// Version 9 recorded neither the principal nor the cause of a run.
const FROM_V9: &[&str] = &["DROP TRIGGER IF EXISTS runs_sum;", ATTRIBUTION, checksum::RUNS_TRIGGER];

/// Version 8 found dead owners in the journals of their runs. Those are no longer counted.
const FROM_V8: &[&str] = &["DROP TRIGGER IF EXISTS runs_sum;", DEATHS_COLUMN];

/// Version 7 wrote the rows of short runs after their records; `missing_run_rows.rs` writes those that are missing. It
/// stored neither the positions of runs in the queues of keys nor the media types of artifacts.
const FROM_V7: &[&str] =
    &[key_places::DDL, "DROP TRIGGER IF EXISTS blobs_sum;", blobs::MEDIA_TYPES, checksum::BLOBS_TRIGGER];

/// Version 6 accepted any write-ahead log next to the file, and had no checksums. Its rows stay without.
const FROM_V6: &[&str] = &[wal_stamp::DDL, checksum::COLUMNS, checksum::TRIGGERS];

/// Version 5 had at most one run without a row, and its notes had only how a run started.
const FROM_V5: &[&str] = &["DROP VIEW IF EXISTS run;
     DROP VIEW IF EXISTS journal;
     ALTER TABLE log RENAME COLUMN birth TO note;"];

/// Version 4 wrote the row of every run with its first records.
const FROM_V4: &[&str] = &["ALTER TABLE log ADD COLUMN birth TEXT;"];

/// In version 3 SQLite assigned the numbers of runs, and there was an index of running runs.
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
    ENDED_INDEX,
];

/// Version 2 could not list the runs of a tool.
const FROM_V2: &[&str] = &["CREATE INDEX runs_by_tool ON runs (tool, run);"];

/// Version 1 had a row for each record, found by an index instead of by the next row, and did not store when runs
/// ended.
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
    ENDED_INDEX,
    TOMBSTONES,
];

/// The kind of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// An empty file.
    Empty,
    /// A Windlass database with this schema version.
    Windlass(i32),
    /// Another kind of file, with a description.
    Foreign(&'static str),
}

/// Identifies the file without changing it.
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

/// Creates the schema in an empty file. One transaction: a crash leaves the file empty or complete.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let parts = [TABLES, RUNS, LOG, NOTE_COLUMN, ENDED_INDEX, TOMBSTONES, blobs::DDL, key_places::DDL];
    let parts =
        parts.into_iter().chain([wal_stamp::DDL, checksum::COLUMNS, blobs::MEDIA_TYPES, DEATHS_COLUMN, ATTRIBUTION]);
    let triggers = [checksum::TRIGGERS, checksum::RUNS_TRIGGER, checksum::BLOBS_TRIGGER, sessions::TRIGGER];
    for statements in parts.chain([sessions::DDL]).chain(triggers).chain(FROM_V11.iter().copied()).chain([VIEWS]) {
        transaction.execute_batch(statements)?;
    }
    record_schema_checksum(&transaction)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Upgrades a file of an older version. One transaction: a crash leaves the file unchanged or complete. A damaged file
/// is not upgraded, because moving and recreating rows would hide the location of the damage.
pub(super) fn migrate(connection: &mut Connection, from: i32) -> rusqlite::Result<()> {
    let message: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if message != "ok" {
        return Err(corrupt(message));
    }
    // Version 7 is the first with checksums of the schema and of the row in `file`.
    if from >= 7 {
        check_own_row(connection)?;
    }
    let transaction = connection.transaction()?;
    let older = usize::try_from(from).unwrap_or(1).max(1) - 1;
    for statements in MIGRATIONS.iter().skip(older).copied().flatten() {
        transaction.execute_batch(statements)?;
    }
    missing_run_rows::write_rows(&transaction)?;
    transaction.execute_batch(VIEWS)?;
    record_schema_checksum(&transaction)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

fn record_schema_checksum(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE file SET shape = ?1", [checksum::schema_checksum(connection)?]).map(|_| ())
}

/// The problem of the schema, if it is not the one that was created.
pub(super) fn schema_problem(connection: &Connection) -> rusqlite::Result<Option<String>> {
    if let Some(table) = check::missing(connection)?.first() {
        return Ok(Some(format!("the table {table} is missing")));
    }
    let stated: Option<i64> = connection.query_row("SELECT max(shape) FROM file", [], |row| row.get(0))?;
    let is_ours = stated.is_none_or(|stated| checksum::schema_checksum(connection).is_ok_and(|shape| shape == stated));
    Ok((!is_ours).then(|| "its schema is damaged".to_owned()))
}

/// The error that SQLite returns for a damaged file.
fn corrupt(message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT), Some(message))
}

/// Refuses a file whose schema or row in `file` is damaged: that row has the secret that signs reply keys and the
/// position where the log continues.
pub(super) fn check_own_row(connection: &Connection) -> rusqlite::Result<()> {
    if let Some(problem) = schema_problem(connection)? {
        return Err(corrupt(problem));
    }
    let [own, ..] = checksum::DAMAGE_QUERIES;
    let rows: i64 = connection.query_row("SELECT count(*) FROM file", [], |row| row.get(0))?;
    match connection.prepare(own)?.exists([])? {
        false if rows == 1 => Ok(()),
        _ => Err(corrupt("the row of the file itself is damaged".to_owned())),
    }
}

/// Adds the SQL functions that the views and triggers need.
pub(super) fn add_functions(connection: &Connection) -> rusqlite::Result<()> {
    checksum::add_function(connection)?;
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

/// Combines lines of JSON into one array.
fn array<'a>(bodies: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = bodies.flat_map(|body| body.split('\n')).map(large_values::json).collect();
    format!("[{}]", lines.join(","))
}

/// Counts this opening of the file; returns its number and the file's secret. Deletes all leases, because their workers
/// died with the previous opening.
pub(super) fn count_opening(connection: &mut Connection) -> rusqlite::Result<(i64, [u8; 32])> {
    let transaction = connection.transaction()?;
    transaction.execute("DELETE FROM workers", [])?;
    backup::restore(&transaction)?;
    let sql = "UPDATE file SET openings = openings + 1, clean = 0 RETURNING openings, secret";
    let counted = transaction.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    transaction.commit()?;
    Ok(counted)
}

/// Whether the last owner closed the file cleanly.
pub(super) fn is_clean(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT clean FROM file", [], |row| row.get(0))
}

/// Marks the file as closed cleanly.
pub(super) fn mark_clean(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE file SET clean = 1", []).map(|_| ())
}

/// Writes an existing page, to verify that the file can be written and synced.
pub(super) fn touch(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "user_version", VERSION)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The steps of SQLite's query plan for a statement.
    pub(in crate::sqlite) fn plan(sql: &str) -> String {
        let mut connection = Connection::open_in_memory().unwrap();
        add_functions(&connection).unwrap();
        create(&mut connection).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.raw_query().mapped(|row| row.get::<_, String>(3)).collect::<Result<Vec<_>, _>>();
        steps.unwrap().join("; ")
    }

    /// Whether a plan has no full scan and no sort.
    pub(in crate::sqlite) fn is_indexed(plan: &str) -> bool {
        !plan.contains("SCAN") && !plan.contains("TEMP B-TREE")
    }
}
