//! The tails of journals that were appended to recently.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;
use rusqlite::{Connection, OptionalExtension, Row};
use rustc_hash::FxHashMap;
use windlass_core::RunId;

use super::{LogEnd, is_intact, select_log, unsigned};
use crate::sqlite::damage::Damage;

/// The end of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sqlite) struct JournalTail {
    /// The position of its newest row; zero if it has none.
    pub(in crate::sqlite) position: i64,
    /// The number of its records.
    pub(in crate::sqlite) length: u64,
}

/// Tails by the number of the run, for journals that are longer than their run's row says. For all other journals the
/// row in `runs` is current.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct JournalTails {
    ends: RwLock<FxHashMap<i64, JournalTail>>,
    /// The position of the last record that the tails include.
    last: AtomicI64,
}

impl JournalTails {
    pub(in crate::sqlite) fn get(&self, run: i64) -> Option<JournalTail> {
        self.ends.read().get(&run).copied()
    }

    /// Records after this position may be in the file without being published yet.
    pub(in crate::sqlite) fn last(&self) -> i64 {
        self.last.load(Ordering::Acquire)
    }

    /// Publishes the tails of a committed group, up to the record at this position.
    pub(in crate::sqlite) fn publish(&self, changed_tails: &mut Vec<(i64, Option<JournalTail>)>, last: i64) {
        if changed_tails.is_empty() {
            return;
        }
        let mut tails = self.ends.write();
        for (run, tail) in changed_tails.drain(..) {
            match tail {
                Some(tail) => tails.insert(run, tail),
                None => tails.remove(&run),
            };
        }
        self.last.store(last, Ordering::Release);
    }

    /// The journals whose tail is at most `packed`.
    pub(in crate::sqlite) fn upto(&self, packed: i64) -> Vec<(i64, JournalTail)> {
        let tails = self.ends.read();
        tails.iter().filter(|(_, tail)| tail.position <= packed).map(|(run, tail)| (*run, *tail)).collect()
    }

    /// Removes these tails, because the rows in `runs` are current.
    pub(in crate::sqlite) fn forget(&self, packed: i64) {
        self.ends.write().retain(|_, tail| tail.position > packed);
    }

    /// Rebuilds the tails by scanning the end of the log in the file.
    pub(in crate::sqlite) fn rebuild(&self, connection: &Connection) -> rusqlite::Result<LogEnd> {
        let sql = "SELECT packed, last, max(runs, (SELECT coalesce(max(id), 0) FROM runs)) FROM file";
        let (packed, last, mut runs): (i64, i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut statement = connection.prepare(select_log!("WHERE position > ?1 ORDER BY position"))?;
        let mut rows = statement.query([packed])?;
        let (mut tails, mut last, mut damaged) = (FxHashMap::default(), last.max(packed), Vec::new());
        while let Some(row) = rows.next()? {
            let (position, run): (i64, i64) = (row.get(0)?, row.get(1)?);
            let tail = JournalTail {
                position,
                length: unsigned(row.get(2)?).saturating_add(row.get::<_, u32>(3).unwrap_or(0).into()),
            };
            if is_intact(row)? {
                last = last.max(position);
                // Also the number of a run whose row is lost.
                runs = runs.max(run);
                tails.insert(run, tail);
                continue;
            }
            // Its position counts as used, unless it is so large that it must be damaged.
            last = last.max(Some(position).filter(|position| *position < MAX_POSITION).unwrap_or(last));
            damaged.push(attribute_damage(connection, &mut tails, row, (run, tail))?);
        }
        *self.ends.write() = tails;
        self.last.store(last, Ordering::Release);
        let newest = connection.query_row("SELECT max(run) FROM runs", [], |row| row.get::<_, Option<Vec<u8>>>(0))?;
        // If the largest id cannot be read, no id counts as larger.
        let newest = newest.map(|id| RunId::from_bytes(id.try_into().unwrap_or([u8::MAX; 16])));
        Ok(LogEnd { last, packed, runs, newest, changed_tails: Vec::new(), damaged })
    }
}

/// No valid position is larger.
const MAX_POSITION: i64 = i64::MAX / 2;

/// A damaged row may name a wrong run or a wrong previous row. A journal that ends with it must not look complete
/// without it, so it becomes the tail of every journal it may belong to, where a read finds the damage.
fn attribute_damage(
    connection: &Connection,
    tails: &mut FxHashMap<i64, JournalTail>,
    row: &Row<'_>,
    (run, tail): (i64, JournalTail),
) -> rusqlite::Result<Damage> {
    let previous: i64 = row.get(4)?;
    let mut owners: Vec<i64> =
        tails.iter().filter(|(_, tail)| tail.position == previous).map(|(run, _)| *run).collect();
    let mut statement = connection.prepare("SELECT id FROM runs WHERE tail = ?1 OR tail = ?2")?;
    let resting = statement.query_map([previous, tail.position], |row| row.get(0))?;
    owners.extend(resting.collect::<rusqlite::Result<Vec<i64>>>()?.into_iter().filter(|_| previous != 0));
    owners.push(run);
    let mut name = connection.prepare("SELECT run FROM runs WHERE id = ?1")?;
    let mut named = None;
    for owner in owners {
        tails.insert(owner, tail);
        let id = name.query_row([owner], |row| row.get::<_, [u8; 16]>(0)).optional()?;
        named = named.or(id.map(RunId::from_bytes));
    }
    Ok(Damage { run: named, location: format!("its journal at position {}", tail.position) })
}
