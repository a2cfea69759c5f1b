//! Copies the write-ahead log into the database in the background.
//!
//! Most pages are copied by a separate thread while the writer continues. The few pages that are written meanwhile are
//! copied by the writer itself between two groups: only then can the log restart at its beginning.

use std::fs::OpenOptions;
use std::io::{BufWriter, Read};
use std::path::Path;
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::db_file::DbFile;
use super::fault::Fault;
use super::open::{self, Options};

/// Pages in the write-ahead log that start a checkpoint: 8 MiB. Rarely enough to cost little, often enough that a
/// restart has little to read.
const CHECKPOINT_PAGES: i32 = 2_048;

/// Pages after which the log's file is preallocated. A process that writes little never gets there.
const PREALLOCATE_PAGES: i32 = 256;

/// The preallocated length: the pages until the log restarts, with those that are written meanwhile. Each has a header
/// of 24 bytes.
const PREALLOCATED_BYTES: u64 = (CHECKPOINT_PAGES as u64 + 256) * (4_096 + 24);

/// Extends the log's file with zeros, which SQLite ignores. A file that grows by a page with every sync is allocated
/// piece by piece, and syncing it costs up to twice as much, also later, when it is overwritten. The caller must not
/// write to the log meanwhile. If the disk is full, the file stays as it is.
pub(super) fn preallocate(wal: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(wal)?;
    let missing = PREALLOCATED_BYTES.saturating_sub(file.metadata()?.len());
    std::io::copy(&mut std::io::repeat(0).take(missing), &mut BufWriter::with_capacity(1 << 20, &mut file))?;
    Ok(())
}

#[derive(Default)]
pub(super) struct Checkpoints {
    thread: Option<JoinHandle<Result<Connection, Fault>>>,
    /// Pages that were copied while a reader kept the log from restarting.
    copied: i32,
    /// Whether the log's file is preallocated.
    is_preallocated: bool,
}

/// What the writer must do next.
pub(super) enum CheckpointStep {
    Nothing,
    /// Copy the rest of the pages.
    Rest,
    /// Drop the connection.
    Failed(Fault),
}

impl Checkpoints {
    /// Whether a log with this many pages needs a checkpoint that is not running yet.
    pub(super) fn is_due(&self, pages: i32) -> bool {
        let copied = if pages < self.copied { 0 } else { self.copied };
        self.thread.is_none() && pages - copied >= CHECKPOINT_PAGES
    }

    /// Maintains a log with this many pages. Called after each group, while nothing is written to the log.
    pub(super) fn after_group(&mut self, db_file: &DbFile, options: &Options, pages: i32) -> CheckpointStep {
        if !self.is_preallocated && pages >= PREALLOCATE_PAGES {
            self.is_preallocated = true;
            if let Err(error) = preallocate(db_file.wal()) {
                tracing::debug!(%error, "could not preallocate the write-ahead log; syncs are slower");
            }
        }
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            self.copied = pages;
            return join(thread);
        }
        if pages < self.copied {
            self.copied = 0;
        }
        if self.thread.is_none() && pages - self.copied >= CHECKPOINT_PAGES {
            let (db_file, options) = (db_file.clone(), *options);
            let work = move || copy_pages(&db_file, &options);
            // Without a thread, the writer copies all pages.
            match std::thread::Builder::new().name("windlass-checkpoint".to_owned()).spawn(work) {
                Ok(thread) => self.thread = Some(thread),
                Err(_) => return CheckpointStep::Rest,
            }
        }
        CheckpointStep::Nothing
    }

    /// Whether a log with this many pages needs no maintenance.
    pub(super) fn is_idle(&self, pages: i32) -> bool {
        self.thread.is_none()
            && pages - self.copied < CHECKPOINT_PAGES
            && (self.is_preallocated || pages < PREALLOCATE_PAGES)
    }

    /// Waits for the thread, so that its connection is not the last one to close.
    pub(super) fn finish(&mut self) -> CheckpointStep {
        self.thread.take().map_or(CheckpointStep::Nothing, join)
    }
}

fn join(thread: JoinHandle<Result<Connection, Fault>>) -> CheckpointStep {
    match thread.join() {
        // From here on the log may restart, and the writer stamps it when it does.
        Ok(Ok(_reader)) => CheckpointStep::Rest,
        Ok(Err(fault)) => CheckpointStep::Failed(fault),
        Err(_) => CheckpointStep::Failed(Fault::Other("the checkpoint thread panicked".to_owned())),
    }
}

/// Copies pages. Returns a connection that reads from the log: while it is open, the log cannot restart before the
/// writer is ready.
fn copy_pages(db_file: &DbFile, options: &Options) -> Result<Connection, Fault> {
    let fault = |error: rusqlite::Error| Fault::of(&error);
    let reader = db_file.reader()?;
    reader.execute_batch("BEGIN; SELECT 1 FROM file").map_err(fault)?;
    let connection = open::writer(&db_file.path, options).map_err(fault)?;
    db_file.check()?;
    match connection.wal_checkpoint_v2(Some("main"), CheckpointMode::PASSIVE).map_err(fault) {
        // Pages that a reader still uses are copied by the next checkpoint.
        Ok(_) | Err(Fault::Busy) => Ok(reader),
        Err(fault) => Err(fault),
    }
}
