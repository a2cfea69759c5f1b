//! What becomes of the blobs of a run that is no longer kept.

use rusqlite::Connection;
use windlass_core::time::Timestamp;

use super::{claim, loosen};

/// The holder of claims on what a purged run referred to.
const NO_HOLDER: &str = "";

/// The run is no longer kept, nor what it alone referred to: payloads at once, artifacts from `until` on, because somebody
/// who was shown one may be about to refer to it. In the transaction that forgets the run.
pub(in crate::sqlite) fn unreference_run(connection: &Connection, run: i64, until: Timestamp) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("DELETE FROM refs WHERE run = ?1 RETURNING blob, scope IS NOT NULL")?;
    let dropped: Vec<(i64, bool)> =
        statement.query_map([run], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    for (blob, shown) in dropped {
        if shown && !is_referred(connection, blob)? {
            claim(connection, blob, NO_HOLDER, until)?;
        }
        loosen(connection, blob)?;
    }
    Ok(())
}

const REFERRED: &str = "SELECT EXISTS (SELECT 1 FROM refs WHERE blob = ?1)";

fn is_referred(connection: &Connection, blob: i64) -> rusqlite::Result<bool> {
    connection.prepare_cached(REFERRED)?.query_row([blob], |row| row.get(0))
}
