//! Removes the references of a run that is removed.

use rusqlite::Connection;
use windlass_core::time::Timestamp;

use super::{claim, orphan};

/// The holder of claims on the artifacts of a removed run.
const GRACE_HOLDER: &str = "";

/// Drops the references of a run. Payloads that only it referred to are dropped at once, artifacts from `until` on,
/// because a reader of an artifact may be about to refer to it. Runs in the transaction that removes the run.
pub(in crate::sqlite) fn unreference_run(connection: &Connection, run: i64, until: Timestamp) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("DELETE FROM refs WHERE run = ?1 RETURNING blob, scope IS NOT NULL")?;
    let dropped: Vec<(i64, bool)> =
        statement.query_map([run], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    for (blob, shown) in dropped {
        if shown && !is_referred(connection, blob)? {
            claim(connection, blob, GRACE_HOLDER, until)?;
        }
        orphan(connection, blob)?;
    }
    Ok(())
}

const REFERRED: &str = "SELECT EXISTS (SELECT 1 FROM refs WHERE blob = ?1)";

fn is_referred(connection: &Connection, blob: i64) -> rusqlite::Result<bool> {
    connection.prepare_cached(REFERRED)?.query_row([blob], |row| row.get(0))
}
