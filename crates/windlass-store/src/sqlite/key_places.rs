//! Positions of runs in the queues of keys. They are restored when the file is opened, before any run continues.

use rusqlite::{Connection, params};
use windlass_core::RunId;
use windlass_core::store::KeyPlace;

use super::damage::{Damage, KnownDamage};
use super::log::{signed, unsigned};
use super::read::ReadError;

/// Each row has a checksum; see `checksum.rs`.
pub(super) const DDL: &str = "
CREATE TABLE places (
    run    INTEGER NOT NULL,
    path   TEXT NOT NULL,
    key    TEXT NOT NULL,
    ticket INTEGER NOT NULL,
    held   INTEGER NOT NULL,
    sum    INTEGER NOT NULL,
    PRIMARY KEY (run, path)
) STRICT, WITHOUT ROWID;
";

/// The location of damage, for error messages.
const KEY_PLACE: &str = "its position in the queue of a key";

/// Selects damaged rows.
pub(super) const DAMAGED: &str = "SELECT (SELECT runs.run FROM runs WHERE runs.id = places.run),
    'its position in the queue of a key' FROM places WHERE sum != windlass_sum(run, path, key, ticket, held)";

const ALL: &str = "SELECT runs.run, path, places.key, ticket, held,
                          places.sum = windlass_sum(places.run, path, places.key, ticket, held), phase < 4
                   FROM places LEFT JOIN runs ON runs.id = places.run";

/// Replaces the positions of a run.
pub(super) fn set(connection: &Connection, run: i64, places: &[KeyPlace]) -> rusqlite::Result<()> {
    forget(connection, run)?;
    let sql = "INSERT INTO places (run, path, key, ticket, held, sum)
               VALUES (?1, ?2, ?3, ?4, ?5, windlass_sum(?1, ?2, ?3, ?4, ?5))";
    for KeyPlace { path, key, ticket, held } in places {
        let mut statement = connection.prepare_cached(sql)?;
        statement.execute(params![run, path.to_string(), key, signed(*ticket), i64::from(*held)])?;
    }
    Ok(())
}

/// Deletes all positions of a run.
pub(super) fn forget(connection: &Connection, run: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM places WHERE run = ?1")?.execute([run]).map(|_| ())
}

/// The positions of all unfinished runs. Damaged ones are recorded and left out.
pub(super) fn all(connection: &Connection, known_damage: &KnownDamage) -> Result<Vec<(RunId, KeyPlace)>, ReadError> {
    let mut places = Vec::new();
    let mut statement = connection.prepare_cached(ALL)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let run = row.get::<_, Option<[u8; 16]>>(0)?.map(RunId::from_bytes);
        let path = row.get_ref(1)?.as_str().ok().and_then(|path| path.parse().ok());
        let is_open = row.get::<_, Option<bool>>(6)?.unwrap_or(false);
        match (path.filter(|_| row.get(5).unwrap_or(false)), run) {
            (Some(path), Some(run)) if is_open => {
                let (key, ticket, held) = (row.get::<_, String>(2)?.into(), unsigned(row.get(3)?), row.get(4)?);
                places.push((run, KeyPlace { path, key, ticket, held }));
            }
            // The run is finished.
            (Some(_), _) => {}
            (None, run) => known_damage.record(&Damage { run, location: KEY_PLACE.to_owned() }),
        }
    }
    Ok(places)
}
