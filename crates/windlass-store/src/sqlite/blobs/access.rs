//! Access to artifacts. The only module of blobs that reads the table of runs.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::RunId;
use windlass_core::store::{Access, Creation};

/// The text form of an accessor in the columns `refs.scope` and `claims.holder`.
pub(super) fn holder(access: &Access) -> String {
    match access {
        Access::Owner => "owner".to_owned(),
        Access::Session(name) => format!("session:{name}"),
        Access::Principal { name, .. } => format!("principal:{name}"),
        Access::Run(run) => format!("run:{run}"),
    }
}

/// The session and the parent of a run, which decide who shares its artifacts.
struct Ancestry {
    session: Option<String>,
    parent: Option<RunId>,
}

pub(super) const ANCESTRY: &str =
    "SELECT (SELECT name FROM sessions WHERE sessions.id = runs.session), parent_run FROM runs WHERE run = ?1";

fn ancestry(connection: &Connection, run: RunId) -> rusqlite::Result<Option<Ancestry>> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Ancestry { session: row.get(0)?, parent: row.get::<_, Option<[u8; 16]>>(1)?.map(RunId::from_bytes) })
    };
    connection.prepare_cached(ANCESTRY)?.query_row([run.as_bytes()], read).optional()
}

/// The scope that shares a run's artifacts: its session, or else its family, named by the oldest known ancestor.
/// `creation` describes a run that does not exist yet.
pub(super) fn scope(connection: &Connection, run: RunId, creation: Option<&Creation>) -> rusqlite::Result<String> {
    let mut at = run;
    let mut next = match creation {
        Some(creation) => Some(Ancestry {
            session: creation.session.as_deref().map(str::to_owned),
            parent: creation.parent.as_ref().map(|parent| parent.0),
        }),
        None => ancestry(connection, run)?,
    };
    while let Some(Ancestry { session, parent }) = next {
        if let Some(session) = session {
            return Ok(holder(&Access::Session(session.into())));
        }
        let Some(above) = parent else { break };
        at = above;
        next = ancestry(connection, above)?;
    }
    Ok(holder(&Access::Run(at)))
}

/// Whether this accessor may read a blob.
pub(super) fn may_read(
    connection: &Connection,
    blob: i64,
    by: &Access,
    creation: Option<&Creation>,
) -> rusqlite::Result<bool> {
    let run = match by {
        Access::Owner => return Ok(true),
        Access::Session(_) => return is_shown(connection, blob, &holder(by)),
        Access::Principal { name, session } => {
            let is_in_session = match session {
                Some(session) => is_shown(connection, blob, &holder(&Access::Session(session.clone())))?,
                None => true,
            };
            let is_own = || -> rusqlite::Result<bool> {
                let sql = params![blob, name];
                let by_run = connection.prepare_cached(PRINCIPAL_REFERENCE)?.query_row(sql, |row| row.get(0))?;
                Ok(by_run || is_shown(connection, blob, &holder(by))?)
            };
            return Ok(is_in_session && is_own()?);
        }
        Access::Run(run) => *run,
    };
    Ok(is_shown(connection, blob, &scope(connection, run, creation)?)?
        || is_shown(connection, blob, &holder(by))?
        || exists(connection, OWN_REFERENCE, blob, run)?
        || exists(connection, CHILD_REFERENCE, blob, run)?)
}

pub(super) const SHOWN: &str = "SELECT EXISTS (SELECT 1 FROM refs WHERE blob = ?1 AND scope = ?2)
    OR EXISTS (SELECT 1 FROM claims WHERE blob = ?1 AND holder = ?2)
    OR EXISTS (SELECT 1 FROM files CROSS JOIN sessions ON sessions.id = files.session
               WHERE files.blob = ?1 AND 'session:' || sessions.name = ?2)";

/// Whether a reference, a claim or a file makes the blob readable for this holder.
fn is_shown(connection: &Connection, blob: i64, holder: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached(SHOWN)?.query_row(params![blob, holder], |row| row.get(0))
}

/// A family may have lost the ancestor that named it. A run can still read what it refers to itself.
pub(super) const OWN_REFERENCE: &str = "SELECT EXISTS (SELECT 1 FROM refs
    WHERE run = (SELECT id FROM runs WHERE run = ?2) AND blob = ?1 AND scope IS NOT NULL)";

pub(super) const CHILD_REFERENCE: &str = "SELECT EXISTS (SELECT 1 FROM runs CROSS JOIN refs ON refs.run = runs.id
    WHERE runs.parent_run = ?2 AND refs.blob = ?1 AND refs.scope IS NOT NULL)";

pub(super) const PRINCIPAL_REFERENCE: &str = "SELECT EXISTS (SELECT 1 FROM refs CROSS JOIN runs ON runs.id = refs.run
    WHERE refs.blob = ?1 AND refs.scope IS NOT NULL AND runs.principal = ?2)";

fn exists(connection: &Connection, sql: &str, blob: i64, run: RunId) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql)?.query_row(params![blob, run.as_bytes()], |row| row.get(0))
}
