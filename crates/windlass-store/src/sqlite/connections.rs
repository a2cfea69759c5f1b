//! Connections: a sealed credential for each provider and principal, and the runs that wait for one.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rusqlite::{Connection, Row, params};
use serde_json::Value;
use windlass_core::RunId;
use windlass_core::run::state::Park;
use windlass_core::store::{
    AppliedChange, ConnectionAnswer, ConnectionChange, ConnectionInfo, ConnectionKey, ConnectionWrite, Connections,
    ConnectionsOf, Credential, Promise, StoreError, StoredConnection,
};
use windlass_core::time::Timestamp;

use super::SqliteStore;
use super::audit::CheckReport;
use super::checksum;
use super::damage::Damage;
use super::job::{Job, PendingMessage};
use super::log::{signed, unsigned};
use super::read::{ReadError, Readers};
use super::seal::{self, UnsealError};
use super::sealing_keys::SealingKeys;
use super::write_tx::{JobError, WriteTx};

/// The table that version 12 added. `principal` is empty in the connections of no principal, because no principal has
/// an empty name.
pub(super) const DDL: &str = "
CREATE TABLE connections (
    provider   TEXT NOT NULL,
    principal  TEXT NOT NULL,
    created    INTEGER NOT NULL,
    updated    INTEGER NOT NULL,
    expires    INTEGER,
    problem    TEXT,
    revision   INTEGER NOT NULL,
    credential TEXT,
    sum        INTEGER NOT NULL,
    PRIMARY KEY (provider, principal)
) STRICT, WITHOUT ROWID;
";

/// Selects damaged rows. It names no provider: a damaged name may be part of a credential.
pub(super) const DAMAGED: &str = "SELECT NULL, 'the row of a connection' FROM connections
     WHERE sum != windlass_sum(provider, principal, created, updated, expires, problem, revision, credential)";

/// Selects the columns of [`ConnectionRow`].
macro_rules! select_connections {
    ($which:literal) => {
        concat!(
            "SELECT provider, principal, created, updated, expires, problem, revision, credential, sum FROM connections ",
            $which
        )
    };
}

const FIND: &str = select_connections!("WHERE provider = ?1 AND principal = ?2");
const LIST: &str = select_connections!("WHERE ?1 IS NULL OR principal = ?1 ORDER BY provider, principal");
const ALL: &str = select_connections!("ORDER BY provider, principal");

const WRITE: &str = "INSERT OR REPLACE INTO connections
    (provider, principal, created, updated, expires, problem, revision, credential, sum)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8))";

const DELETE: &str = "DELETE FROM connections WHERE provider = ?1 AND principal = ?2";

/// The runs of a principal that may wait for a connection.
const WAITING: &str = "SELECT run, parks FROM runs
    WHERE (doubts IS NOT NULL OR asks = 1) AND principal IS ?1 AND parks IS NOT NULL AND run > x'' ORDER BY run";

/// A connection with its sealed credential.
struct ConnectionRow {
    info: ConnectionInfo,
    sealed: Option<String>,
}

impl ConnectionRow {
    fn read(row: &Row<'_>) -> Result<Self, ReadError> {
        if !checksum::is_intact(row, 8)? {
            return Err(ReadError::Damaged(Damage { run: None, location: "the row of a connection".to_owned() }));
        }
        let (principal, sealed): (String, Option<String>) = (row.get(1)?, row.get(7)?);
        let principal = (!principal.is_empty()).then(|| principal.into());
        let info = ConnectionInfo {
            key: ConnectionKey { provider: row.get(0)?, principal },
            created: Timestamp::from_micros(row.get(2)?),
            updated: Timestamp::from_micros(row.get(3)?),
            expires: row.get::<_, Option<i64>>(4)?.map(Timestamp::from_micros),
            problem: row.get(5)?,
            revision: unsigned(row.get(6)?),
            has_credential: sealed.is_some(),
        };
        Ok(Self { info, sealed })
    }

    fn find(connection: &Connection, key: &ConnectionKey) -> Result<Option<Self>, ReadError> {
        let mut statement = connection.prepare_cached(FIND)?;
        let mut rows = statement.query(params![key.provider, column(key)])?;
        rows.next()?.map(Self::read).transpose()
    }

    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let ConnectionInfo { key, created, updated, expires, problem, revision, .. } = &self.info;
        let expires = expires.map(Timestamp::as_micros);
        connection.prepare_cached(WRITE)?.execute(params![
            key.provider,
            column(key),
            created.as_micros(),
            updated.as_micros(),
            expires,
            problem,
            signed(*revision),
            self.sealed
        ])?;
        Ok(())
    }
}

/// The principal as the table has it.
fn column(key: &ConnectionKey) -> &str {
    key.principal.as_deref().unwrap_or_default()
}

/// A write to a connection, with its credential sealed on the thread that submits it.
pub(super) struct ConnectionJob {
    key: ConnectionKey,
    at: Timestamp,
    change: ConnectionChange,
    sealed: Option<String>,
}

impl ConnectionJob {
    fn encode(write: ConnectionWrite, keys: &SealingKeys) -> Result<Self, StoreError> {
        let ConnectionWrite { key, at, change } = write;
        let credential = match &change {
            ConnectionChange::Connect { credential, .. } => credential.as_ref(),
            ConnectionChange::Refresh { credential, .. } => Some(credential),
            _ => None,
        };
        let sealed = credential.map(|text| seal::seal_credential(keys, &key, text.expose())).transpose()?;
        Ok(Self { key, at, change, sealed })
    }

    pub(super) fn bytes(&self) -> usize {
        self.sealed.as_ref().map_or(0, String::len)
    }
}

impl WriteTx<'_> {
    /// Applies a write and tells the runs that wait for the connection.
    pub(super) fn write_connection(&mut self, job: &ConnectionJob) -> Result<ConnectionAnswer, JobError> {
        let connection = self.connection;
        let found = match ConnectionRow::find(connection, &job.key) {
            Ok(found) => found,
            // A new credential replaces a damaged row, and a deletion removes it.
            Err(ReadError::Damaged(_))
                if matches!(job.change, ConnectionChange::Connect { .. } | ConnectionChange::Delete) =>
            {
                let deleted =
                    connection.prepare_cached(DELETE)?.execute(params![job.key.provider, column(&job.key)])?;
                if matches!(job.change, ConnectionChange::Delete) {
                    return Ok(ConnectionAnswer { changed: deleted > 0, told: Vec::new() });
                }
                None
            }
            Err(ReadError::Sql(error)) => return Err(error.into()),
            Err(error) => return Err(error.into_store_error(None).into()),
        };
        let applied = job.change.apply(&job.key, job.at, found.as_ref().map(|found| &found.info));
        let changed = applied.is_some();
        let messages = self.connection_messages(job)?;
        match applied {
            Some(AppliedChange::Set { info, .. }) => {
                ConnectionRow { info, sealed: job.sealed.clone() }.write(connection)?;
            }
            Some(AppliedChange::Update(info)) => {
                ConnectionRow { info, sealed: found.and_then(|found| found.sealed) }.write(connection)?;
            }
            Some(AppliedChange::Delete) => {
                connection.prepare_cached(DELETE)?.execute(params![job.key.provider, column(&job.key)])?;
            }
            None => {}
        }
        let mut told = Vec::new();
        for (run, message) in messages {
            if let Some(message) = message {
                self.deliver(&message)?;
            }
            told.push(run);
        }
        Ok(ConnectionAnswer { changed, told })
    }

    /// The runs that wait for the connection, each with its message unless it had that before. Nothing is written.
    fn connection_messages(&mut self, job: &ConnectionJob) -> Result<Vec<(RunId, Option<PendingMessage>)>, JobError> {
        let Some((message, dedupe)) = job.change.message(&job.key) else { return Ok(Vec::new()) };
        let mut messages = Vec::new();
        for run in waiting(self.connection, &job.key)? {
            let message = PendingMessage::new(run, &message, dedupe.clone())?;
            match self.takes(&message) {
                Ok(()) => messages.push((run, Some(message))),
                Err(JobError::Refused(StoreError::Duplicate { .. })) => messages.push((run, None)),
                // It has ended, or cannot be read; then it is held and can only be ended.
                Err(JobError::Refused(error)) => tracing::debug!(%run, %error, "a run was not told of a connection"),
                Err(error) => return Err(error),
            }
        }
        Ok(messages)
    }
}

fn waiting(connection: &Connection, key: &ConnectionKey) -> rusqlite::Result<Vec<RunId>> {
    let mut statement = connection.prepare_cached(WAITING)?;
    let mut rows = statement.query([&key.principal])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        // A row that cannot be read belongs to a damaged run, which is held.
        let parks: Vec<Park> = serde_json::from_str(row.get_ref(1)?.as_str().unwrap_or_default()).unwrap_or_default();
        if parks.iter().any(|park| key.answers(park)) {
            runs.push(RunId::from_bytes(row.get(0)?));
        }
    }
    Ok(runs)
}

impl Readers {
    fn connection(&self, key: &ConnectionKey) -> Result<Option<StoredConnection>, StoreError> {
        let found = self.with_reader(None, |connection| ConnectionRow::find(connection, key))?;
        let Some(ConnectionRow { info, sealed }) = found else { return Ok(None) };
        let credential = sealed.map(|sealed| seal::open_credential(self.keys(), key, sealed)).transpose();
        let unsealable = |error: UnsealError| StoreError::UnsealableCredential {
            connection: key.to_string(),
            why: error.sentence(self.keys()),
        };
        Ok(Some(StoredConnection { info, credential: credential.map_err(unsealable)?.map(Credential::new) }))
    }

    fn list_connections(&self, of: &ConnectionsOf) -> Result<Vec<ConnectionInfo>, StoreError> {
        let principal: Option<Arc<str>> = match of {
            ConnectionsOf::All => None,
            ConnectionsOf::Principal(principal) => Some(principal.clone().unwrap_or_default()),
        };
        self.with_reader(None, |connection| {
            let mut statement = connection.prepare_cached(LIST)?;
            let mut rows = statement.query([principal])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(ConnectionRow::read(row)?.info);
            }
            Ok(found)
        })
    }
}

impl Connections for SqliteStore {
    fn write_connection(&self, write: ConnectionWrite) -> BoxFuture<'_, Result<ConnectionAnswer, StoreError>> {
        // Sealed and queued at once, so that a write that was submitted is made even if its future is dropped.
        let (promise, ticket) = Promise::pair();
        let queued = ConnectionJob::encode(write, self.readers.keys())
            .and_then(|job| self.queue.push(Job::Connection(Box::new(job), promise)));
        Box::pin(async move {
            queued?;
            ticket.await
        })
    }

    fn connection(&self, key: ConnectionKey) -> BoxFuture<'_, Result<Option<StoredConnection>, StoreError>> {
        Box::pin(async move { self.readers.connection(&key) })
    }

    fn list_connections(&self, of: ConnectionsOf) -> BoxFuture<'_, Result<Vec<ConnectionInfo>, StoreError>> {
        Box::pin(async move { self.readers.list_connections(&of) })
    }
}

/// Checks that every credential can be unsealed. A missing key is reported once for the whole file.
pub(super) fn check_credentials(
    view: &Connection,
    keys: &SealingKeys,
    report: &mut CheckReport,
) -> rusqlite::Result<()> {
    let mut statement = view.prepare(ALL)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // Damaged rows are reported by their checksums.
        let Ok(ConnectionRow { info, sealed: Some(sealed) }) = ConnectionRow::read(row) else { continue };
        report.keys.extend(seal::key_of(&Value::String(sealed.clone())).map(str::to_owned));
        match seal::open_credential(keys, &info.key, sealed) {
            Ok(_) | Err(UnsealError::Missing(_)) => {}
            Err(error) => {
                let why = error.sentence(keys);
                report.add_problem(format!("the credential of {} cannot be opened: {why}", info.key));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn e06_every_query_about_connections_uses_an_index() {
        for sql in [FIND, WAITING, DELETE] {
            let plan = plan(sql);
            assert!(is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
