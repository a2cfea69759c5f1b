//! Where the journals end that were added to lately.

use parking_lot::RwLock;
use rusqlite::Connection;
use rustc_hash::FxHashMap;
use windlass_core::RunId;

use super::{End, unsigned};

/// The end of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sqlite) struct Tail {
    /// The place of its newest row; zero if it has none.
    pub(in crate::sqlite) position: i64,
    /// How many records it has.
    pub(in crate::sqlite) end: u64,
}

/// The ends of journals, by the number of the run, that are not in the run's own row: it says where such a journal once
/// ended, and for any other journal it is right.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Tails(RwLock<FxHashMap<i64, Tail>>);

impl Tails {
    pub(in crate::sqlite) fn get(&self, run: i64) -> Option<Tail> {
        self.0.read().get(&run).copied()
    }

    /// Makes known what is committed.
    pub(in crate::sqlite) fn publish(&self, moved: &mut Vec<(i64, Option<Tail>)>) {
        if moved.is_empty() {
            return;
        }
        let mut tails = self.0.write();
        for (run, tail) in moved.drain(..) {
            match tail {
                Some(tail) => tails.insert(run, tail),
                None => tails.remove(&run),
            };
        }
    }

    /// The journals that end in the part of the log up to `packed`.
    pub(in crate::sqlite) fn upto(&self, packed: i64) -> Vec<(i64, Tail)> {
        let tails = self.0.read();
        tails.iter().filter(|(_, tail)| tail.position <= packed).map(|(run, tail)| (*run, *tail)).collect()
    }

    /// Forgets them: the rows in `runs` are right.
    pub(in crate::sqlite) fn forget(&self, packed: i64) {
        self.0.write().retain(|_, tail| tail.position > packed);
    }

    /// Looks through the end of the log as it is in the file.
    pub(in crate::sqlite) fn rebuild(&self, connection: &Connection) -> rusqlite::Result<End> {
        let sql = "SELECT packed, last, max(runs, (SELECT coalesce(max(id), 0) FROM runs)) FROM file";
        let (packed, last, mut runs): (i64, i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut statement =
            connection.prepare("SELECT position, run, seq + count FROM log WHERE position > ?1 ORDER BY position")?;
        let mut rows = statement.query([packed])?;
        let (mut tails, mut last) = (FxHashMap::default(), last.max(packed));
        while let Some(row) = rows.next()? {
            let position = row.get(0)?;
            last = last.max(position);
            let run = row.get(1)?;
            // Also of one that has no row, and cannot get one.
            runs = runs.max(run);
            tails.insert(run, Tail { position, end: unsigned(row.get(2)?) });
        }
        *self.0.write() = tails;
        let newest = connection.query_row("SELECT max(run) FROM runs", [], |row| row.get::<_, Option<Vec<u8>>>(0))?;
        // After an id that nobody can read no other is known to be later.
        let newest = newest.map(|id| RunId::from_bytes(id.try_into().unwrap_or([u8::MAX; 16])));
        Ok(End { last, packed, runs, newest, moved: Vec::new() })
    }
}
