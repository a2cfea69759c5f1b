//! Moving the write-ahead log into the database, beside the writer.
//!
//! Most of it is moved on a thread of its own, while the writer goes on. What the writer wrote meanwhile is little, and is
//! moved by the writer itself between two groups: only then can the log begin again at its start.

use std::fs::OpenOptions;
use std::io::{BufWriter, Read};
use std::path::Path;
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::fault::Fault;
use super::open::{self, Options};
use super::place::Place;

/// Pages in the write-ahead log after which they are moved into the database: 8 MiB. Rarely enough to cost little, often
/// enough that a restart has little to read through.
const PAGES: i32 = 2_048;

/// Pages after which the log's file is made as long as it will get. Those who write little never get there.
const MANY: i32 = 256;

/// How long the log's file is made: as many pages as there are until it begins again, with what is written meanwhile. Each
/// has a header of 24 bytes.
const ROOM: u64 = (PAGES as u64 + 256) * (4_096 + 24);

/// Fills the log's file with zeros beyond its end, which the log takes for nothing. A file that grows by a page with every
/// sync is allocated piece by piece, and syncing it costs up to twice as much, also later, when it is written over.
/// Nobody may write to it meanwhile. Without room on the disk it stays as it is.
pub(super) fn lengthen(log: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(log)?;
    let missing = ROOM.saturating_sub(file.metadata()?.len());
    std::io::copy(&mut std::io::repeat(0).take(missing), &mut BufWriter::with_capacity(1 << 20, &mut file))?;
    Ok(())
}

#[derive(Default)]
pub(super) struct Checkpoints {
    moving: Option<JoinHandle<Result<Connection, Fault>>>,
    /// Pages that were moved, if somebody who reads kept the log from beginning again.
    moved: i32,
    /// The log's file is as long as it gets.
    is_long: bool,
}

/// What the writer does next.
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// Moves the rest.
    Rest,
    /// Gives up the connection.
    Failed(Fault),
}

impl Checkpoints {
    /// Whether pages of a log of so many are about to be moved.
    pub(super) fn begins(&self, pages: i32) -> bool {
        let moved = if pages < self.moved { 0 } else { self.moved };
        self.moving.is_none() && pages - moved >= PAGES
    }

    /// Looks after a log of so many pages, after each group, while nobody writes to it.
    pub(super) fn look(&mut self, place: &Place, options: &Options, pages: i32) -> Next {
        if !self.is_long && pages >= MANY {
            self.is_long = true;
            if let Err(error) = lengthen(place.log()) {
                tracing::debug!(%error, "the write-ahead log could not be lengthened, and is slower for it");
            }
        }
        if let Some(moving) = self.moving.take_if(|moving| moving.is_finished()) {
            self.moved = pages;
            return conclude(moving);
        }
        if pages < self.moved {
            self.moved = 0;
        }
        if self.moving.is_none() && pages - self.moved >= PAGES {
            let (place, options) = (place.clone(), *options);
            let work = move || move_pages(&place, &options);
            // Without a thread the writer does all of it.
            match thread::Builder::new().name("windlass-checkpoint".to_owned()).spawn(work) {
                Ok(moving) => self.moving = Some(moving),
                Err(_) => return Next::Rest,
            }
        }
        Next::Nothing
    }

    /// Whether a log of so many pages needs nothing.
    pub(super) fn is_at_rest(&self, pages: i32) -> bool {
        self.moving.is_none() && pages - self.moved < PAGES && (self.is_long || pages < MANY)
    }

    /// Waits for the thread, so that its connection is not the last one.
    pub(super) fn end(&mut self) -> Next {
        self.moving.take().map_or(Next::Nothing, conclude)
    }
}

fn conclude(moving: JoinHandle<Result<Connection, Fault>>) -> Next {
    match moving.join() {
        // From here on the log may begin again, and the writer sees to it that it begins with a stamp.
        Ok(Ok(_reader)) => Next::Rest,
        Ok(Err(fault)) => Next::Failed(fault),
        Err(_) => Next::Failed(Fault::Other("the thread that moves the write-ahead log panicked".to_owned())),
    }
}

/// Returns a connection that reads from the log: as long as it does, the log cannot begin again behind the writer's back.
fn move_pages(place: &Place, options: &Options) -> Result<Connection, Fault> {
    let fault = |error: rusqlite::Error| Fault::of(&error);
    let reader = place.reader()?;
    reader.execute_batch("BEGIN; SELECT 1 FROM file").map_err(fault)?;
    let connection = open::writer(&place.path, options).map_err(fault)?;
    place.check()?;
    match connection.wal_checkpoint_v2(Some("main"), CheckpointMode::PASSIVE).map_err(fault) {
        // What somebody who reads is still looking at is moved the next time.
        Ok(_) | Err(Fault::Busy) => Ok(reader),
        Err(fault) => Err(fault),
    }
}
