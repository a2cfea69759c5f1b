//! Contents of session files. The rows of `files` refer to blobs like those of `refs` do.

use rusqlite::Connection;
use windlass_core::store::{Access, ArtifactId};
use windlass_core::time::Timestamp;

use super::{access, claim, find, orphan};

/// The blob with this content, if it exists and the accessor may read it.
pub(in crate::sqlite) fn readable(
    connection: &Connection,
    content: &ArtifactId,
    by: &Access,
) -> rusqlite::Result<Option<i64>> {
    let Some(blob) = find(connection, content)? else { return Ok(None) };
    Ok(access::may_read(connection, blob, by, None)?.then_some(blob))
}

pub(super) const HAS_FILE: &str = "SELECT EXISTS (SELECT 1 FROM files WHERE blob = ?1)";

/// A file of `session`, which had this blob as content, was removed or replaced. The session may read it until then.
pub(in crate::sqlite) fn release(
    connection: &Connection,
    blob: i64,
    session: Option<(&str, Timestamp)>,
) -> rusqlite::Result<()> {
    if connection.prepare_cached(HAS_FILE)?.query_row([blob], |row| row.get(0))? {
        return Ok(());
    }
    if let Some((name, until)) = session {
        claim(connection, blob, &access::holder(&Access::Session(name.into())), until)?;
    }
    orphan(connection, blob)
}
