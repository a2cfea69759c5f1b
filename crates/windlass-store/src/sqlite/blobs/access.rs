//! Who may read an artifact. The only place that looks at runs for it.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::RunId;
use windlass_core::store::{Access, Creation};

/// How whoever stores or reads is written down.
pub(super) fn holder(access: &Access) -> String {
    match access {
        Access::Owner => "owner".to_owned(),
        Access::Session(name) => format!("session:{name}"),
        Access::Run(run) => format!("run:{run}"),
    }
}

/// What decides to whom a run shows things.
struct Lineage {
    session: Option<String>,
    parent: Option<RunId>,
}

pub(super) const LINEAGE: &str =
    "SELECT (SELECT name FROM sessions WHERE sessions.id = runs.session), parent_run FROM runs WHERE run = ?1";

fn lineage(connection: &Connection, run: RunId) -> rusqlite::Result<Option<Lineage>> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Lineage { session: row.get(0)?, parent: row.get::<_, Option<[u8; 16]>>(1)?.map(RunId::from_bytes) })
    };
    connection.prepare_cached(LINEAGE)?.query_row([run.as_bytes()], read).optional()
}

/// To whom a run shows what it refers to: its session, or else its family, by the first run of it that is known.
/// `creation` is what is known of a run that is not there yet.
pub(super) fn scope(connection: &Connection, run: RunId, creation: Option<&Creation>) -> rusqlite::Result<String> {
    let mut at = run;
    let mut known = match creation {
        Some(creation) => Some(Lineage {
            session: creation.session.as_deref().map(str::to_owned),
            parent: creation.parent.as_ref().map(|parent| parent.0),
        }),
        None => lineage(connection, run)?,
    };
    while let Some(Lineage { session, parent }) = known {
        if let Some(session) = session {
            return Ok(holder(&Access::Session(session.into())));
        }
        let Some(above) = parent else { break };
        at = above;
        known = lineage(connection, above)?;
    }
    Ok(holder(&Access::Run(at)))
}

/// Whether a blob is there for whoever asks.
pub(super) fn may_read(
    connection: &Connection,
    blob: i64,
    by: &Access,
    creation: Option<&Creation>,
) -> rusqlite::Result<bool> {
    let run = match by {
        Access::Owner => return Ok(true),
        Access::Session(_) => return is_shown(connection, blob, &holder(by)),
        Access::Run(run) => *run,
    };
    Ok(is_shown(connection, blob, &scope(connection, run, creation)?)?
        || is_shown(connection, blob, &holder(by))?
        || is(connection, OWN, blob, run)?
        || is(connection, OF_CHILDREN, blob, run)?)
}

pub(super) const SHOWN: &str = "SELECT EXISTS (SELECT 1 FROM refs WHERE blob = ?1 AND scope = ?2)
    OR EXISTS (SELECT 1 FROM claims WHERE blob = ?1 AND holder = ?2)";

/// Whether a reference or a claim shows it to this holder.
fn is_shown(connection: &Connection, blob: i64, holder: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached(SHOWN)?.query_row(params![blob, holder], |row| row.get(0))
}

/// A family may have lost the runs it was named by; what a run itself referred to stays its own.
pub(super) const OWN: &str = "SELECT EXISTS (SELECT 1 FROM refs
    WHERE run = (SELECT id FROM runs WHERE run = ?2) AND blob = ?1 AND scope IS NOT NULL)";

pub(super) const OF_CHILDREN: &str = "SELECT EXISTS (SELECT 1 FROM runs CROSS JOIN refs ON refs.run = runs.id
    WHERE runs.parent_run = ?2 AND refs.blob = ?1 AND refs.scope IS NOT NULL)";

fn is(connection: &Connection, sql: &str, blob: i64, run: RunId) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql)?.query_row(params![blob, run.as_bytes()], |row| row.get(0))
}
