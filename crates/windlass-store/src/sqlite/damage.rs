//! Damage that was found by a read, a claim, packing or a check. It is reported until a check of the whole file finds
//! none.

use std::path::Path;

use parking_lot::Mutex;
use rusqlite::Connection;
use windlass_core::RunId;

use super::checksum;

/// Locations that are kept. Further ones add no information.
const MAX_KNOWN: usize = 100;
/// Locations that one message names.
const MAX_NAMED: usize = 3;

/// A location where the file does not contain what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) run: Option<RunId>,
    pub(super) location: String,
}

impl Damage {
    pub(super) fn sentence(&self) -> String {
        match self.run {
            Some(run) => format!("run {run}: {} is damaged", self.location),
            None => format!("{} is damaged", self.location),
        }
    }
}

/// Messages about all damage that is known.
#[derive(Default)]
pub(super) struct KnownDamage(Mutex<Vec<String>>);

impl KnownDamage {
    pub(super) fn record(&self, damage: &Damage) {
        let sentence = damage.sentence();
        let mut sentences = self.0.lock();
        if sentences.len() < MAX_KNOWN && !sentences.contains(&sentence) {
            tracing::error!("{sentence}");
            sentences.push(sentence);
        }
    }

    /// Replaces the known damage by the result of a check of the whole file.
    pub(super) fn replace(&self, problems: &[String]) {
        *self.0.lock() = problems.to_vec();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// What is damaged and what to do, or `None` if no damage is known.
    pub(super) fn sentence(&self, path: &Path) -> Option<String> {
        let sentences = self.0.lock();
        if sentences.is_empty() {
            return None;
        }
        let more = sentences.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let named = sentences.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
        Some(format!(
            "{} is damaged ({named}{more}); damaged runs are held and cannot be read, everything else works; keep a copy \
             of the file with its -wal file, and restore it from a backup, or finish those runs by hand and purge \
             them, and check the file again",
            path.display()
        ))
    }
}

/// Checks every row that has a checksum. Returns at most `limit` locations.
pub(super) fn find(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<Damage>> {
    let mut found = Vec::new();
    for query in checksum::DAMAGE_QUERIES {
        found.extend(run_query(connection, query, limit - found.len())?);
    }
    Ok(found)
}

/// Runs one query for damaged rows.
pub(super) fn run_query(connection: &Connection, query: &str, limit: usize) -> rusqlite::Result<Vec<Damage>> {
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map([], |row| {
        let run: Option<Vec<u8>> = row.get(0)?;
        let location: Option<String> = row.get(1)?;
        let run = run.and_then(|run| run.try_into().ok()).map(RunId::from_bytes);
        Ok(Damage { run, location: location.unwrap_or_else(|| "unnamed content".to_owned()) })
    })?;
    rows.take(limit).collect()
}
