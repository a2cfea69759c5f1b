//! References of a commit, which are checked before anything is written.

use rusqlite::Connection;
use windlass_core::RunId;
use windlass_core::store::{Access, ArtifactId, Creation, StoreError};

use super::super::job::{Start, Write};
use super::super::write_tx::JobError;
use super::{access, find, reference};

/// References that a commit adds to a run.
pub(in crate::sqlite) struct ReferenceRequest {
    pub(in crate::sqlite) run: RunId,
    pub(in crate::sqlite) artifacts: Vec<ArtifactId>,
    pub(in crate::sqlite) by: RunId,
}

/// A reference that passed the check.
pub(in crate::sqlite) struct AllowedReference {
    run: RunId,
    blob: i64,
    scope: String,
}

/// `starts` are the new runs that this commit starts.
pub(in crate::sqlite) fn check(
    connection: &Connection,
    write: &Write,
    owner: Option<RunId>,
    starts: &[&Start],
) -> Result<Vec<AllowedReference>, JobError> {
    let mut allowed = Vec::new();
    for ReferenceRequest { run, artifacts, by } in &write.refers {
        let guarded = owner == Some(*run);
        if !guarded && !write.starts.iter().any(|start| start.run == *run) {
            let why = "only the owner of a run, or the commit that starts it, may add references to it";
            return Err(StoreError::Invalid(why.to_owned()).into());
        }
        if !guarded && !starts.iter().any(|start| start.run == *run) {
            continue;
        }
        let created = |run: RunId| -> Option<&Creation> {
            let own = write.create.as_ref().filter(|_| owner == Some(run));
            own.or_else(|| starts.iter().find(|start| start.run == run).map(|start| &start.creation))
        };
        let scope = access::scope(connection, *run, created(*run))?;
        for artifact in artifacts {
            let missing = StoreError::NoArtifact { artifact: *artifact };
            let blob = find(connection, artifact)?.ok_or_else(|| missing.clone())?;
            if !access::may_read(connection, blob, &Access::Run(*by), created(*by))? {
                return Err(missing.into());
            }
            allowed.push(AllowedReference { run: *run, blob, scope: scope.clone() });
        }
    }
    Ok(allowed)
}

/// Writes the allowed references, once the runs exist.
pub(in crate::sqlite) fn refer(connection: &Connection, allowed: &[AllowedReference]) -> rusqlite::Result<()> {
    for AllowedReference { run, blob, scope } in allowed {
        let id = connection
            .prepare_cached("SELECT id FROM runs WHERE run = ?1")?
            .query_row([run.as_bytes()], |row| row.get(0))?;
        reference(connection, id, *blob, Some(scope))?;
    }
    Ok(())
}
