//! A database file as the disk of a crash matrix.

use std::path::PathBuf;
use std::sync::Arc;

use windlass_core::testing::Disk;
use windlass_store::{Durability, SqliteStore};

use crate::store::Store;

/// A database file as the disk of a crash matrix. It does not wait for syncs, because the matrix kills processes, not
/// machines.
pub struct SqliteDisk(PathBuf);

impl SqliteDisk {
    /// A disk at this path. The file should not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

impl Disk for SqliteDisk {
    /// # Panics
    ///
    /// If the file cannot be opened.
    fn open(&self) -> Arc<dyn Store> {
        match SqliteStore::open_with(&self.0, Durability::Relaxed) {
            Ok(store) => Arc::new(store),
            Err(error) => panic!("{error}"),
        }
    }
}
