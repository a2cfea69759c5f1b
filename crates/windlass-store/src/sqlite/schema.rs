//! What the file looks like, and how an older file becomes a current one.

use rusqlite::{Connection, ErrorCode};

/// Marks a file as ours in its header ("WLAS"), so that no other program's database is ever written to.
pub(super) const APPLICATION_ID: i32 = 0x574c_4153;

/// The schema this build reads and writes.
pub(super) const VERSION: i32 = 1;

/// - `runs.id` stands for the run in the other tables: a third of the size of the run's own id, and runs created
///   together lie together, so that appends to many runs touch few pages.
/// - `runs.opening` is the opening of the file under which the epoch was handed out: it tells an owner in this process
///   from one that died with an earlier process.
/// - `runs.phase` and the partial indexes answer the filters; an index holds only the rows its filter shows.
/// - `log` is only ever appended to, in the order of `position`, which is never used twice.
const V1: &str = "
CREATE TABLE openings (latest INTEGER NOT NULL) STRICT;
INSERT INTO openings (latest) VALUES (0);

CREATE TABLE runs (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    run      BLOB NOT NULL UNIQUE,
    tool     TEXT NOT NULL,
    created  INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    opening  INTEGER NOT NULL,
    orderly  INTEGER NOT NULL DEFAULT 0,
    examined INTEGER NOT NULL DEFAULT 0,
    phase    INTEGER NOT NULL,
    state    TEXT NOT NULL,
    doubts   TEXT
) STRICT;
CREATE INDEX runs_running ON runs (run) WHERE phase = 0;
CREATE INDEX runs_held ON runs (run) WHERE phase = 1;
CREATE INDEX runs_doubted ON runs (run) WHERE doubts IS NOT NULL;

CREATE TABLE log (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX log_by_run ON log (run, seq);

CREATE TABLE mail (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    body     TEXT NOT NULL,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
";

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
    transaction.execute_batch(V1)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Counts this opening of the file and returns its number.
pub(super) fn count_opening(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("UPDATE openings SET latest = latest + 1 RETURNING latest", [], |row| row.get(0))
}
