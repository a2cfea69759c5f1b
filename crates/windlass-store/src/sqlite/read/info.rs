//! Reads what the store knows about a run from its row.

use rusqlite::Row as SqlRow;
use serde::de::DeserializeOwned;
use windlass_core::run::state::{Hold, RunInfo, RunState};
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId, WorkerId};

use super::{ReadError, decode, text};

/// The info of a run whose row is damaged.
pub(super) fn damaged_info(row: &SqlRow<'_>, run: RunId, location: String) -> RunInfo {
    RunInfo {
        run,
        tool: text(row, 1).unwrap_or_default().into(),
        created: Timestamp::from_micros(row.get(2).unwrap_or(0)),
        state: RunState::Held { hold: Hold::Damaged { run, place: location } },
        doubts: Vec::new(),
        parks: Vec::new(),
        epoch: row.get::<_, i64>(6).unwrap_or(0).unsigned_abs(),
        generation: row.get(7).unwrap_or(0),
        session: row.get(8).unwrap_or(None),
        parent: None,
        ended: None,
        worker: WorkerId::from_number(row.get::<_, i64>(12).unwrap_or(0).cast_unsigned()),
        deaths: row.get::<_, i64>(13).unwrap_or(0).unsigned_abs(),
        key: row.get(14).unwrap_or(None),
        principal: row.get(15).unwrap_or(None),
        cause: row.get(16).unwrap_or(None),
    }
}

/// Reads the columns of `select_infos!` of an intact row.
pub(super) fn info(row: &SqlRow<'_>) -> Result<RunInfo, ReadError> {
    Ok(RunInfo {
        run: RunId::from_bytes(row.get(0)?),
        tool: text(row, 1)?.into(),
        created: Timestamp::from_micros(row.get(2)?),
        state: decode(text(row, 3)?)?,
        doubts: list(row, 4)?,
        parks: list(row, 5)?,
        epoch: row.get::<_, i64>(6)?.unsigned_abs(),
        generation: row.get(7)?,
        session: row.get(8)?,
        parent: parent(row, 9)?,
        ended: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_micros),
        worker: WorkerId::from_number(row.get::<_, i64>(12)?.cast_unsigned()),
        deaths: row.get::<_, i64>(13)?.unsigned_abs(),
        key: row.get(14)?,
        principal: row.get(15)?,
        cause: row.get(16)?,
    })
}

/// Reads a list from a column that is null for an empty list.
fn list<T: DeserializeOwned>(row: &SqlRow<'_>, column: usize) -> Result<Vec<T>, ReadError> {
    match row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from)? {
        Some(text) => Ok(decode(text)?),
        None => Ok(Vec::new()),
    }
}

/// Reads the parent run from this column and its path from the next one.
pub(super) fn parent(row: &SqlRow<'_>, column: usize) -> Result<Option<Box<(RunId, Path)>>, ReadError> {
    let Some(run) = row.get::<_, Option<[u8; 16]>>(column)? else { return Ok(None) };
    let path = text(row, column + 1)?.parse()?;
    Ok(Some(Box::new((RunId::from_bytes(run), path))))
}
