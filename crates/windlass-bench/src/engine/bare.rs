//! The limits of the disk, which no engine can exceed that syncs before it returns a result.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use rusqlite::{Connection, params};
use tempfile::TempDir;

use super::{Engine, marks::Run};
use crate::cpu;

/// A plain file.
///
/// It grows with every append, so every sync also writes the file's size. A log that is overwritten, as SQLite's is
/// after its first checkpoint, may be faster.
pub const SYNC: &str = "fdatasync of 4 KiB appends";

/// A table that only grows. Every commit adds one row for each run; with one run, these are single-row commits.
pub const SQLITE: &str = "bare SQLite";

/// Bytes appended before each sync: a page.
const PAGE: usize = 4_096;

/// Commits that fill the log up to its first checkpoint. From then on it is overwritten, like the log of an engine that
/// has run for a while.
const WARM_UP: usize = 1_100;

/// Bytes of a row: about the record of a small step.
const ROW: usize = 256;

/// Both limits.
///
/// # Errors
///
/// When a temporary file cannot be created.
pub fn engines() -> anyhow::Result<Vec<Box<dyn Engine>>> {
    let sync = Syncs { folder: tempfile::tempdir()?, file: None };
    let rows = Rows { folder: tempfile::tempdir()?, connection: None };
    Ok(vec![Box::new(sync), Box::new(rows)])
}

struct Syncs {
    folder: TempDir,
    file: Option<File>,
}

impl Engine for Syncs {
    fn name(&self) -> &str {
        SYNC
    }

    fn takes(&self, runs: usize) -> bool {
        runs == 1
    }

    fn has_runs(&self) -> bool {
        false
    }

    fn prepare(&mut self, _runs: usize) -> anyhow::Result<()> {
        let path = self.folder.path().join("appended");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        file.sync_all()?;
        self.file = Some(file);
        Ok(())
    }

    fn take(&mut self, _runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let file = self.file.as_mut().context("nothing is prepared")?;
        let (page, mut run) = ([7; PAGE], Run::enter(steps));
        for _ in 0..steps {
            file.write_all(&page)?;
            file.sync_data()?;
            run.answered();
        }
        Ok(vec![run])
    }

    fn cpu(&self) -> Option<Duration> {
        cpu::of_this()
    }
}

struct Rows {
    folder: TempDir,
    connection: Option<Connection>,
}

impl Engine for Rows {
    fn name(&self) -> &str {
        SQLITE
    }

    fn has_runs(&self) -> bool {
        false
    }

    fn prepare(&mut self, _runs: usize) -> anyhow::Result<()> {
        self.connection = None;
        self.folder = tempfile::tempdir()?;
        let connection = Connection::open(self.folder.path().join("bare.db"))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.execute("create table log (position integer primary key, run integer, body blob) strict", [])?;
        connection.pragma_update(None, "synchronous", "off")?;
        for _ in 0..WARM_UP {
            connection.execute("insert into log (run, body) values (0, zeroblob(?1))", [ROW as i64])?;
        }
        connection.pragma_update(None, "synchronous", "full")?;
        connection.query_row("pragma wal_checkpoint(restart)", [], |_| Ok(()))?;
        self.connection = Some(connection);
        Ok(())
    }

    fn take(&mut self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let connection = self.connection.as_mut().context("nothing is prepared")?;
        let (body, mut run) = ([7_u8; ROW], Run::enter(steps));
        for _ in 0..steps {
            let transaction = connection.transaction()?;
            let mut insert = transaction.prepare_cached("insert into log (run, body) values (?1, ?2)")?;
            for number in 0..runs {
                insert.execute(params![number as i64, &body[..]])?;
            }
            drop(insert);
            transaction.commit()?;
            run.answered();
        }
        Ok(vec![run])
    }

    fn cpu(&self) -> Option<Duration> {
        cpu::of_this()
    }
}
