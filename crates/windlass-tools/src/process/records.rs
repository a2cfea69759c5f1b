//! Records of the commands that run, for whoever comes after us.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Leftovers;
use super::cleaner::remove_soon;
use super::group::{Fate, Group};
use super::table;
use super::temps::Temps;

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

    /// Ends what it is about.
    pub(crate) fn end(&self) -> Fate {
        if self.boot == table::boot() { self.group().end(&self.key) } else { Fate::Gone }
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
        gone(fs::remove_file(self.file(folder)))
    }
}

pub(crate) fn kill_leftovers(folder: &Path) -> io::Result<Leftovers> {
    let mut found = Leftovers::default();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    let (mut folders, mut in_use) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = match fs::read(&path) {
            // The guard of a process that has just died cleans up too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        if let Ok(temps) = serde_json::from_slice::<Temps>(&text) {
            folders.push((path, temps));
            continue;
        }
        // A record that was not written to its end is of a launcher that never got its orders.
        let Ok(record) = serde_json::from_slice::<Record>(&text) else {
            gone(fs::remove_file(&path))?;
            continue;
        };
        match record.end() {
            Fate::Gone => {}
            Fate::Killed => found.killed.push(record.pid),
            Fate::Unsure => {
                found.unsure.push(record.pid);
                in_use.push(record.temp);
                continue;
            }
            Fate::Hangs => {
                let pid = record.pid;
                return Err(io::Error::other(format!("process group {pid}, left by a command, does not die")));
            }
        }
        remove_soon(record.temp, move || forgotten(gone(fs::remove_file(&path)), &path));
    }
    for (path, temps) in folders {
        let is_in_use = temps.is_in_use() || in_use.iter().any(|temp| temp.starts_with(&temps.folder));
        if !is_in_use {
            remove_soon(temps.folder, move || forgotten(gone(fs::remove_file(&path)), &path));
        }
    }
    Ok(found)
}

/// What is not there is removed.
pub(crate) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Says what became of a record that is about nothing any more.
pub(crate) fn forgotten(removed: io::Result<()>, record: &Path) {
    if let Err(error) = removed {
        tracing::warn!(record = %record.display(), "a command's record cannot be removed: {error}");
    }
}
