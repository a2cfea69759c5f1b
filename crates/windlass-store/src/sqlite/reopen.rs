//! Going on after a failure, without a restart.
//!
//! **Pages are not trusted after a failed sync.** A group whose sync failed may sit in the system's cache whole: whoever
//! opens the file next finds its frames in the write-ahead log, with good checksums, and takes them for committed. But the
//! system has given up writing them, and says so only once; the next sync succeeds without them. A commit appended
//! behind them would be acknowledged, and after a power cut stand behind a hole, where nobody reads on. So before anything
//! new is accepted, the file is opened again and a checkpoint that empties the log must succeed: it writes every page the
//! log has into the database, anew, syncs that, and the log begins again at its start. Until then the store stays
//! unavailable. A log that is found at opening is treated the same way: whoever left it may have died of a failed sync.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::access::Link;
use super::fault::Fault;
use super::lineage;
use super::open::{self, Options};
use super::place::Place;
use super::schema;

/// How often a file that failed is tried again. Often enough that nobody waits for it, rarely enough to cost nothing.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// How long readers that are under way are waited for. Whoever reads longer is waited for by trying again.
const READERS: Duration = Duration::from_millis(100);

/// The time between a failure and the moment the file works again.
pub(super) struct Outage {
    pub(super) fault: Fault,
    /// The connection to a file, or to a log, that is not at its place any more. Closing it would end the file.
    pub(super) kept: Option<Link>,
}

impl Outage {
    pub(super) fn new(fault: Fault) -> Self {
        Self { fault, kept: None }
    }

    /// Closes the connection, unless it is the last thing that leads to the file.
    pub(super) fn of(fault: Fault, link: Link) -> Self {
        let kept = fault.is_misplaced().then_some(link);
        Self { fault, kept }
    }

    /// Opens the file again. Only a file that was written to just now counts as open.
    pub(super) fn end(&mut self, place: &Place, options: &Options) -> Result<Link, Fault> {
        // Wherever the file is by now: with its log moved into it, it is whole, and a file that was put in its place is
        // not taken for the owner of a log that stands beside it.
        let moved = self.kept.as_ref().map_or(Ok(()), |link| empty_log(&link.connection));
        place.check()?;
        moved?;
        self.kept = None;
        // Other things fail too on a full disk, and say less.
        if self.fault.may_be_for_want_of_room() && !place.has_room() {
            return Err(Fault::Full);
        }
        lineage::check(&place.path).map_err(lineage::Foreign::fault)?;
        let fault = |error: rusqlite::Error| Fault::of(&error);
        let connection = open::writer(&place.path, options).map_err(fault)?;
        place.check()?;
        empty_log(&connection)?;
        lineage::stamp(&connection, options.shared).map_err(fault)?;
        schema::touch(&connection).map_err(fault)?;
        Link::new(connection, place).map_err(fault)
    }
}

/// Moves all of the write-ahead log into the database, syncs that, and empties the log.
pub(super) fn empty_log(connection: &Connection) -> Result<(), Fault> {
    let emptied = connection
        .busy_timeout(READERS)
        .and_then(|()| connection.wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE))
        .and_then(|_| connection.busy_timeout(open::BUSY));
    emptied.map_err(|error| Fault::of(&error))
}
