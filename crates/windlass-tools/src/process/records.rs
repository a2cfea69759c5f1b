//! Records of the commands that run, for whoever comes after us.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Leftovers;
use super::group::{Fate, Group};
use super::table;

/// One command that runs. Kept in a file, and told to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) boot: String,
    /// The idempotency key of its call, which its environment has too.
    pub(crate) key: String,
    /// Its private temporary folder, which goes with it.
    pub(crate) temp: PathBuf,
}

impl Record {
    pub(crate) fn group(&self) -> Group {
        Group { pid: self.pid, start: self.start }
    }

    /// Ends what it is about, and removes what that left.
    pub(crate) fn end(&self) -> Fate {
        let fate = if self.boot == table::boot() { self.group().end(&self.key) } else { Fate::Gone };
        if matches!(fate, Fate::Gone | Fate::Killed) {
            self.remove_temp();
        }
        fate
    }

    pub(crate) fn remove_temp(&self) {
        match fs::remove_dir_all(&self.temp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %self.temp.display(), "a command's temporary folder cannot be removed: {error}");
            }
            _ => {}
        }
    }

    fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}-{}.json", self.pid, self.start))
    }

    /// Written before the command is: not synced, because a machine that stops has no processes left.
    pub(crate) fn keep(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(self.file(folder), serde_json::to_vec(self)?)
    }

    pub(crate) fn forget(&self, folder: &Path) -> io::Result<()> {
        match fs::remove_file(self.file(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

pub(crate) fn kill_leftovers(folder: &Path) -> io::Result<Leftovers> {
    let mut found = Leftovers::default();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        // A record that was not written to its end is of a launcher that never got its orders.
        if let Ok(record) = serde_json::from_slice::<Record>(&fs::read(&path)?) {
            match record.end() {
                Fate::Gone => {}
                Fate::Killed => found.killed.push(record.pid),
                Fate::Unsure => {
                    found.unsure.push(record.pid);
                    continue;
                }
                Fate::Hangs => {
                    let pid = record.pid;
                    return Err(io::Error::other(format!("process group {pid}, left by a command, does not die")));
                }
            }
        }
        fs::remove_file(&path)?;
    }
    Ok(found)
}
