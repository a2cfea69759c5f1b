//! Where the journals end that were added to lately.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;
use rusqlite::{Connection, OptionalExtension, Row};
use rustc_hash::FxHashMap;
use windlass_core::RunId;

use super::{End, hot, is_sound, unsigned};
use crate::sqlite::damage::Damage;

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
pub(in crate::sqlite) struct Tails {
    ends: RwLock<FxHashMap<i64, Tail>>,
    /// The position of the last record that they count.
    last: AtomicI64,
}

impl Tails {
    pub(in crate::sqlite) fn get(&self, run: i64) -> Option<Tail> {
        self.ends.read().get(&run).copied()
    }

    /// Records beyond this position may be in the file and not be counted yet.
    pub(in crate::sqlite) fn last(&self) -> i64 {
        self.last.load(Ordering::Acquire)
    }

    /// Makes known what is committed, up to the record at this position.
    pub(in crate::sqlite) fn publish(&self, moved: &mut Vec<(i64, Option<Tail>)>, last: i64) {
        if moved.is_empty() {
            return;
        }
        let mut tails = self.ends.write();
        for (run, tail) in moved.drain(..) {
            match tail {
                Some(tail) => tails.insert(run, tail),
                None => tails.remove(&run),
            };
        }
        self.last.store(last, Ordering::Release);
    }

    /// The journals that end in the part of the log up to `packed`.
    pub(in crate::sqlite) fn upto(&self, packed: i64) -> Vec<(i64, Tail)> {
        let tails = self.ends.read();
        tails.iter().filter(|(_, tail)| tail.position <= packed).map(|(run, tail)| (*run, *tail)).collect()
    }

    /// Forgets them: the rows in `runs` are right.
    pub(in crate::sqlite) fn forget(&self, packed: i64) {
        self.ends.write().retain(|_, tail| tail.position > packed);
    }

    /// Looks through the end of the log as it is in the file.
    pub(in crate::sqlite) fn rebuild(&self, connection: &Connection) -> rusqlite::Result<End> {
        let sql = "SELECT packed, last, max(runs, (SELECT coalesce(max(id), 0) FROM runs)) FROM file";
        let (packed, last, mut runs): (i64, i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut statement = connection.prepare(hot!("WHERE position > ?1 ORDER BY position"))?;
        let mut rows = statement.query([packed])?;
        let (mut tails, mut last, mut damaged) = (FxHashMap::default(), last.max(packed), Vec::new());
        while let Some(row) = rows.next()? {
            let (position, run): (i64, i64) = (row.get(0)?, row.get(1)?);
            let tail =
                Tail { position, end: unsigned(row.get(2)?).saturating_add(row.get::<_, u32>(3).unwrap_or(0).into()) };
            if is_sound(row)? {
                last = last.max(position);
                // Also of one whose row is lost.
                runs = runs.max(run);
                tails.insert(run, tail);
                continue;
            }
            // Its place is taken all the same, unless no position can come after it.
            last = last.max(Some(position).filter(|position| *position < FAR).unwrap_or(last));
            damaged.push(lost(connection, &mut tails, row, (run, tail))?);
        }
        *self.ends.write() = tails;
        self.last.store(last, Ordering::Release);
        let newest = connection.query_row("SELECT max(run) FROM runs", [], |row| row.get::<_, Option<Vec<u8>>>(0))?;
        // After an id that nobody can read no other is known to be later.
        let newest = newest.map(|id| RunId::from_bytes(id.try_into().unwrap_or([u8::MAX; 16])));
        Ok(End { last, packed, runs, newest, moved: Vec::new(), damaged })
    }
}

/// No position that was ever handed out is beyond.
const FAR: i64 = i64::MAX / 2;

/// A damaged row may say that it is another run's, or follow another row. Whichever journal it ends must not look whole
/// without it: it is the end of each that it can be of, where reading finds the damage.
fn lost(
    connection: &Connection,
    tails: &mut FxHashMap<i64, Tail>,
    row: &Row<'_>,
    (run, tail): (i64, Tail),
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
    Ok(Damage { run: named, place: format!("its journal at position {}", tail.position) })
}
