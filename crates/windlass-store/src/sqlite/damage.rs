//! Damage that was noticed: by a read, a claim, packing, or a check. It is told until a check of the whole file finds none.

use std::path::Path;

use parking_lot::Mutex;
use rusqlite::Connection;
use windlass_core::RunId;

use super::sum;

/// Places that are told; a file with more than this has one problem.
const TOLD: usize = 100;
/// Places that one sentence names.
const NAMED: usize = 3;

/// A place where the file does not hold what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) run: Option<RunId>,
    pub(super) place: String,
}

impl Damage {
    pub(super) fn sentence(&self) -> String {
        match self.run {
            Some(run) => format!("run {run}: {} is damaged", self.place),
            None => format!("{} is damaged", self.place),
        }
    }
}

/// What is known to be damaged.
#[derive(Default)]
pub(super) struct Noticed(Mutex<Vec<String>>);

impl Noticed {
    pub(super) fn notice(&self, damage: &Damage) {
        let sentence = damage.sentence();
        let mut known = self.0.lock();
        if known.len() < TOLD && !known.contains(&sentence) {
            tracing::error!("{sentence}");
            known.push(sentence);
        }
    }

    /// What a check of the whole file found is all there is.
    pub(super) fn replace(&self, problems: &[String]) {
        *self.0.lock() = problems.to_vec();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// What is damaged, and what to do; nothing if nothing is known to be.
    pub(super) fn sentence(&self, path: &Path) -> Option<String> {
        let known = self.0.lock();
        if known.is_empty() {
            return None;
        }
        let more = known.len().saturating_sub(NAMED);
        let more = if more > 0 { format!("; and {more} places more") } else { String::new() };
        let named = known.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
        Some(format!(
            "{} is damaged ({named}{more}); what is damaged is not answered and its runs are held, all else goes on; keep a \
             copy of the file with its -wal file, and restore it from a backup, or finish those runs by hand and purge them, \
             and check the file again",
            path.display()
        ))
    }
}

/// Looks through every row that has a checksum. At most so many damages.
pub(super) fn find(connection: &Connection, most: usize) -> rusqlite::Result<Vec<Damage>> {
    let mut found = Vec::new();
    for question in sum::QUESTIONS {
        found.extend(ask(connection, question, most - found.len())?);
    }
    Ok(found)
}

/// What one question finds.
pub(super) fn ask(connection: &Connection, question: &str, most: usize) -> rusqlite::Result<Vec<Damage>> {
    let mut statement = connection.prepare(question)?;
    let rows = statement.query_map([], |row| {
        let run: Option<Vec<u8>> = row.get(0)?;
        let place: Option<String> = row.get(1)?;
        let run = run.and_then(|run| run.try_into().ok()).map(RunId::from_bytes);
        Ok(Damage { run, place: place.unwrap_or_else(|| "content without a name".to_owned()) })
    })?;
    rows.take(most).collect()
}
