//! Checks the secrets of sessions in a whole file.

use rusqlite::Connection;
use serde_json::Value;

use super::super::audit::CheckReport;
use super::super::seal::{self, UnsealError};
use super::super::sealing_keys::SealingKeys;

const SECRETS: &str = "SELECT sessions.name, session_data.name, value FROM session_data
    JOIN sessions ON sessions.id = session_data.session WHERE secret = 1";

/// Checks that every secret can be unsealed. A missing key is reported once for the whole file.
pub(in crate::sqlite) fn check_secrets(
    view: &Connection,
    keys: &SealingKeys,
    report: &mut CheckReport,
) -> rusqlite::Result<()> {
    let mut statement = view.prepare(SECRETS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (session, name, sealed): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        report.keys.extend(seal::key_of(&Value::String(sealed.clone())).map(str::to_owned));
        match seal::open_secret(keys, &session, &name, sealed) {
            Ok(_) | Err(UnsealError::Missing(_)) => {}
            Err(error) => {
                let why = error.sentence(keys);
                report.add_problem(format!("the secret {name:?} of session {session:?} cannot be opened: {why}"));
            }
        }
    }
    Ok(())
}
