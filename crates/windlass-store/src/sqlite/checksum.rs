//! Checksums of rows: a row that does not match its checksum is damaged.
//!
//! Rows that answers depend on have a column `sum` with the CRC-32 of their other columns. It detects every flipped
//! byte, and all but one in four thousand million other changes. A row without a checksum was written before checksums
//! existed and counts as unverified. Tables whose rows change have a trigger that updates the checksum; it leaves a row
//! alone that was damaged before, so that it stays detectable.

use super::connections;
use super::key_places;
use super::sessions;
use crc32fast::Hasher;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

/// The checksum of some columns, in order.
pub(super) fn checksum<'a>(values: impl IntoIterator<Item = ValueRef<'a>>) -> i64 {
    let mut running = ChecksumState { hasher: Hasher::new(), short: [0; SHORT], used: 0 };
    for value in values {
        match value {
            ValueRef::Null => running.add(0, 0),
            ValueRef::Integer(number) => running.add(1, number.cast_unsigned()),
            ValueRef::Real(number) => running.add(2, number.to_bits()),
            ValueRef::Text(bytes) => running.add_long(3, bytes),
            ValueRef::Blob(bytes) => running.add_long(4, bytes),
        }
    }
    running.flush();
    i64::from(running.hasher.finalize())
}

/// Size of the buffer for short values: rows have more numbers than texts, and the hasher is faster with long input.
const SHORT: usize = 128;

struct ChecksumState {
    hasher: Hasher,
    short: [u8; SHORT],
    used: usize,
}

impl ChecksumState {
    fn add(&mut self, tag: u8, number: u64) {
        if self.used + 9 > SHORT {
            self.flush();
        }
        self.short[self.used] = tag;
        self.short[self.used + 1..self.used + 9].copy_from_slice(&number.to_le_bytes());
        self.used += 9;
    }

    /// Includes the length, so that a byte cannot move from one column to the next.
    fn add_long(&mut self, tag: u8, bytes: &[u8]) {
        self.add(tag, bytes.len() as u64);
        self.flush();
        self.hasher.update(bytes);
    }

    fn flush(&mut self) {
        self.hasher.update(&self.short[..self.used]);
        self.used = 0;
    }
}

/// Whether the first `covered` columns of a row match the checksum in the next column.
pub(super) fn is_intact(row: &Row<'_>, covered: usize) -> rusqlite::Result<bool> {
    let stated = match row.get_ref(covered)? {
        ValueRef::Null => return Ok(true),
        ValueRef::Integer(stated) => stated,
        _ => return Ok(false),
    };
    // The column after them exists, so they do.
    Ok(checksum((0..covered).map(|column| row.get_ref(column).unwrap_or(ValueRef::Null))) == stated)
}

/// The tables of a Windlass database.
pub(super) const TABLES: [&str; 12] = [
    "file",
    "workers",
    "sessions",
    "mail",
    "runs",
    "log",
    "segments",
    "tombstones",
    "blobs",
    "pieces",
    "refs",
    "claims",
];

/// The checksum of the schema of these tables and of the views.
pub(super) fn schema_checksum(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT type, name, tbl_name, sql FROM sqlite_schema
               WHERE tbl_name IN ('file', 'workers', 'sessions', 'mail', 'runs', 'log', 'segments', 'tombstones',
                                  'blobs', 'pieces', 'refs', 'claims', 'run', 'journal', 'messages', 'session_data', 'verdicts',
                                  'files', 'outcomes', 'connections')
               ORDER BY type, name";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut sums = Vec::new();
    while let Some(row) = rows.next()? {
        let columns = (0..4).map(|column| row.get_ref(column)).collect::<rusqlite::Result<Vec<_>>>()?;
        sums.push(checksum(columns));
    }
    Ok(checksum(sums.into_iter().map(ValueRef::Integer)))
}

/// Adds the SQL function `windlass_sum(…)` to a connection.
pub(super) fn add_function(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("windlass_sum", -1, flags, |context| {
        Ok(checksum((0..context.len()).map(|argument| context.get_raw(argument))))
    })
}

/// The checksum of a row of `runs`, whose columns have this prefix. It includes the name of the session, because the
/// session's number means nothing by itself. The column `deaths`, which version 9 added, is added to the sum only if it
/// is not zero, and the columns of version 10 only if one of them is set, so that older rows keep their checksum.
macro_rules! run_checksum {
    ($($p:literal)?) => {
        concat!(
            "windlass_sum(", $($p,)? "id, ", $($p,)? "run, ", $($p,)? "tool, ", $($p,)? "created, ", $($p,)? "epoch, ",
            $($p,)? "opening, ", $($p,)? "worker, ", $($p,)? "orderly, ", $($p,)? "clean, ", $($p,)? "phase, ",
            $($p,)? "state, ", $($p,)? "wake, ", $($p,)? "key, ", $($p,)? "session, ",
            "(SELECT name FROM sessions WHERE sessions.id = ", $($p,)? "session), ", $($p,)? "turn, ",
            $($p,)? "parent_run, ", $($p,)? "parent_path, ", $($p,)? "generation, ", $($p,)? "base, ",
            $($p,)? "examined, ", $($p,)? "doubts, ", $($p,)? "parks, ", $($p,)? "asks, ", $($p,)? "tail, ",
            $($p,)? "length, ", $($p,)? "ended, ", $($p,)? "summary, ", $($p,)? "mail) + ",
            "iif(", $($p,)? "deaths = 0, 0, windlass_sum(", $($p,)? "deaths)) + ",
            "iif(", $($p,)? "principal IS NULL AND ", $($p,)? "cause IS NULL, 0, windlass_sum(", $($p,)? "principal, ",
            $($p,)? "cause))"
        )
    };
}
pub(super) use run_checksum;

/// Whether a row of `runs` matches its checksum.
macro_rules! run_is_intact {
    () => {
        concat!("(runs.sum IS NULL OR runs.sum = ", run_checksum!("runs."), ")")
    };
}
pub(super) use run_is_intact;

/// A trigger that updates the checksum of a changed row, unless the row was damaged before.
macro_rules! checksum_trigger {
    ($table:literal, $changes:literal, $old:expr, $new:expr, $key:literal) => {
        concat!(
            "CREATE TRIGGER ",
            $table,
            "_sum AFTER UPDATE OF ",
            $changes,
            " ON ",
            $table,
            " WHEN old.sum IS NULL OR old.sum = ",
            $old,
            " BEGIN UPDATE ",
            $table,
            " SET sum = ",
            $new,
            " WHERE ",
            $key,
            "; END;\n"
        )
    };
}

/// The columns that version 7 added. Besides the checksums of rows, `file.shape` is the checksum of the schema, and
/// `runs.mail` is the number of messages of a run: without it, a missing last message would not be noticed.
pub(super) const COLUMNS: &str = "
ALTER TABLE file ADD COLUMN shape INTEGER;
ALTER TABLE runs ADD COLUMN mail INTEGER;
ALTER TABLE file ADD COLUMN sum INTEGER;
ALTER TABLE mail ADD COLUMN sum INTEGER;
ALTER TABLE runs ADD COLUMN sum INTEGER;
ALTER TABLE log ADD COLUMN sum INTEGER;
ALTER TABLE segments ADD COLUMN sum INTEGER;
ALTER TABLE tombstones ADD COLUMN sum INTEGER;
ALTER TABLE blobs ADD COLUMN sum INTEGER;
ALTER TABLE pieces ADD COLUMN sum INTEGER;
ALTER TABLE refs ADD COLUMN sum INTEGER;
ALTER TABLE claims ADD COLUMN sum INTEGER;
";

pub(super) const TRIGGERS: &str = concat!(
    checksum_trigger!(
        "file",
        "openings, secret, packed, clean, last, copy, runs, shape",
        "windlass_sum(old.openings, old.secret, old.packed, old.clean, old.last, old.copy, old.runs, old.shape)",
        "windlass_sum(openings, secret, packed, clean, last, copy, runs, shape)",
        "true"
    ),
    checksum_trigger!(
        "mail",
        "run, position, dedupe, body",
        "windlass_sum(old.run, old.position, old.dedupe, old.body)",
        "windlass_sum(new.run, new.position, new.dedupe, new.body)",
        "run = new.run AND position = new.position"
    ),
    checksum_trigger!(
        "refs",
        "run, blob, scope",
        "windlass_sum(old.run, old.blob, old.scope)",
        "windlass_sum(new.run, new.blob, new.scope)",
        "run = new.run AND blob = new.blob"
    ),
    checksum_trigger!(
        "claims",
        "blob, holder, until",
        "windlass_sum(old.blob, old.holder, old.until)",
        "windlass_sum(new.blob, new.holder, new.until)",
        "blob = new.blob AND holder = new.holder"
    ),
);

/// The trigger of `runs` since version 10.
pub(super) const RUNS_TRIGGER: &str = checksum_trigger!(
    "runs",
    "run, tool, created, epoch, opening, worker, orderly, clean, phase, state, wake, key, session, turn, parent_run,
     parent_path, generation, base, examined, doubts, parks, asks, tail, length, ended, summary, mail, deaths, principal,
     cause",
    run_checksum!("old."),
    run_checksum!("new."),
    "id = new.id"
);

/// The trigger of `blobs` since version 8.
pub(super) const BLOBS_TRIGGER: &str = checksum_trigger!(
    "blobs",
    "digest, size, opening, media_type",
    "windlass_sum(old.digest, old.size, old.opening, old.media_type)",
    "windlass_sum(new.digest, new.size, new.opening, new.media_type)",
    "id = new.id"
);

/// Queries for damaged rows, one for each table: the run, if it can be named, and the location.
pub(super) const DAMAGE_QUERIES: [&str; 18] = [
    "SELECT NULL, 'the row of the file itself' FROM file
     WHERE sum != windlass_sum(openings, secret, packed, clean, last, copy, runs, shape)",
    concat!("SELECT run, 'its row in the table of runs' FROM runs WHERE sum != ", run_checksum!()),
    "SELECT (SELECT runs.run FROM runs WHERE runs.id = log.run), 'its journal at position ' || position FROM log
     WHERE sum != windlass_sum(position, run, seq, count, previous, session, body, note)",
    "SELECT (SELECT runs.run FROM runs WHERE runs.id = segments.run), 'its packed journal at position ' || position
     FROM segments WHERE sum != windlass_sum(position, first, run, seq, count, previous, session, body)",
    "SELECT (SELECT runs.run FROM runs WHERE runs.id = mail.run), 'its message ' || position FROM mail
     WHERE sum != windlass_sum(run, position, dedupe, body)",
    "SELECT run, 'the key ' || key || ' of a removed run' FROM tombstones WHERE sum != windlass_sum(key, run, since)",
    "SELECT NULL, 'the row of artifact ' || hex(digest) FROM blobs
     WHERE sum != windlass_sum(digest, size, opening, media_type)",
    "SELECT NULL, 'piece ' || number || ' of artifact ' || (SELECT hex(digest) FROM blobs WHERE id = blob) FROM pieces
     WHERE sum != windlass_sum(blob, number, length, body)",
    "SELECT (SELECT runs.run FROM runs WHERE runs.id = refs.run), 'its reference to content ' || blob FROM refs
     WHERE sum != windlass_sum(run, blob, scope)",
    "SELECT NULL, 'a claim on content ' || blob FROM claims WHERE sum != windlass_sum(blob, holder, until)",
    key_places::DAMAGED,
    sessions::DAMAGED[0],
    sessions::DAMAGED[1],
    sessions::DAMAGED[2],
    sessions::DAMAGED[3],
    sessions::files::DAMAGED,
    sessions::DAMAGED[4],
    connections::DAMAGED,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w08_the_checksum_of_given_columns_never_changes() {
        // Stored in files, so it must never change.
        let (text, blob) = (ValueRef::Text(b"paid"), ValueRef::Blob(b"paid"));
        assert_eq!(checksum([]), 0);
        assert_eq!(checksum([ValueRef::Integer(7), ValueRef::Null, text]), EXPECTED);
        let many = || std::iter::repeat_n(ValueRef::Integer(-1), 40);
        assert_ne!(checksum(many()), checksum(many().chain([ValueRef::Null])), "more than fits into the buffer");
        let different = [
            checksum([text, text]),
            checksum([ValueRef::Text(b"paidp"), ValueRef::Text(b"aid")]),
            checksum([text, blob]),
            checksum([ValueRef::Integer(0)]),
            checksum([ValueRef::Real(0.0)]),
            checksum([ValueRef::Null]),
            checksum([ValueRef::Null, ValueRef::Null]),
        ];
        let all: std::collections::BTreeSet<i64> = different.into();
        assert_eq!(all.len(), different.len());
    }

    const EXPECTED: i64 = 2_966_081_228;
}
