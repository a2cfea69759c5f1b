//! The database file of a runtime.

use std::path::Path;
use std::sync::Arc;

use windlass_core::{Error, Result};
use windlass_store::{BackupError, CheckReport, Health, SqliteStore};

/// The database file of a runtime: its state, its checks, its backups. See [`Windlass::file`](crate::Windlass::file).
#[derive(Clone)]
pub struct File {
    store: Arc<SqliteStore>,
}

impl File {
    pub(crate) fn new(store: Arc<SqliteStore>) -> Self {
        Self { store }
    }

    /// Where it is, with its links followed.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Whether it takes commits, and whether it is whole as far as is known.
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Checks the whole file while work goes on, and blocks its thread for as long as reading the file takes.
    /// [`health`](File::health) then says what this found, and no longer what was found before.
    pub fn check(&self) -> Result<CheckReport> {
        self.store.check(|_, _| {}).map_err(|error| Error::System(Box::new(error)))
    }

    /// Writes a copy of the file while work goes on; it appears when it is whole. Overwrites nothing. Opening the copy restores
    /// it: whatever unfinished runs may have done after it was taken is in doubt, and reply keys are void; see
    /// [`SqliteStore::backup`]. Dropping the future does not stop it.
    pub async fn backup(&self, to: impl AsRef<Path>) -> Result<()> {
        self.store.backup(to).await.map_err(|error| match error {
            BackupError::Exists { .. } | BackupError::Damaged { .. } => Error::Conflict(error.to_string()),
            error => Error::System(Box::new(error)),
        })
    }

    /// Where the keys are that secrets in the file are sealed with, if there were any secrets yet. They are in no backup: keep
    /// a copy of this file somewhere else.
    pub fn key_file(&self) -> Option<&Path> {
        self.store.key_file()
    }

    /// Writes beside the file at which address this process answers, for a process that finds the file in use.
    pub fn announce(&self, address: Option<&str>) -> Result<()> {
        self.store.announce(address).map_err(|error| Error::System(Box::new(error)))
    }
}
