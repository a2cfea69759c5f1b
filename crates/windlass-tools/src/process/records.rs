//! Records of running commands, for a process that starts after this one has died.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Leftovers;
use super::cleaner::remove_soon;
use super::group::{Group, KillOutcome};
use super::table;
use super::temp_root::TempRoot;

/// A running command. Written to a file, and sent to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) boot: String,
    /// The idempotency key of its call, which is also in its environment.
    pub(crate) key: String,
    /// Its private temporary folder, which is removed after it ends.
    pub(crate) temp: PathBuf,
}

impl Record {
    pub(crate) fn group(&self) -> Group {
        Group { pid: self.pid, start: self.start }
    }

    /// Kills the command, if it still runs.
    pub(crate) fn kill(&self) -> KillOutcome {
        if self.boot == table::boot() { self.group().kill(&self.key) } else { KillOutcome::AlreadyGone }
    }

    fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}-{}.json", self.pid, self.start))
    }

    /// Written before the command starts. Not synced, because a machine that stops has no processes left.
    pub(crate) fn keep(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(self.file(folder), serde_json::to_vec(self)?)
    }

    pub(crate) fn forget(&self, folder: &Path) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.file(folder)))
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
            // The guard of a process that has just died removes records too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        if let Ok(temps) = serde_json::from_slice::<TempRoot>(&text) {
            folders.push((path, temps));
            continue;
        }
        // A record that is incomplete belongs to a launcher that never got its instructions.
        let Ok(record) = serde_json::from_slice::<Record>(&text) else {
            ignore_missing(fs::remove_file(&path))?;
            continue;
        };
        match record.kill() {
            KillOutcome::AlreadyGone => {}
            KillOutcome::Killed => found.killed.push(record.pid),
            KillOutcome::Unknown => {
                found.unsure.push(record.pid);
                in_use.push(record.temp);
                continue;
            }
            KillOutcome::StillAlive => {
                let pid = record.pid;
                let problem = format!("process group {pid}, left by a command, was killed and still lives");
                return Err(io::Error::other(problem));
            }
        }
        remove_soon(record.temp, move || log_removal(ignore_missing(fs::remove_file(&path)), &path));
    }
    for (path, temps) in folders {
        let is_in_use = temps.is_in_use() || in_use.iter().any(|temp| temp.starts_with(&temps.folder));
        if !is_in_use {
            remove_soon(temps.folder, move || log_removal(ignore_missing(fs::remove_file(&path)), &path));
        }
    }
    Ok(found)
}

/// Treats a file that does not exist as removed.
pub(crate) fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Logs a record that could not be removed.
pub(crate) fn log_removal(removed: io::Result<()>, record: &Path) {
    if let Err(error) = removed {
        tracing::warn!(record = %record.display(), "the record of a command cannot be removed: {error}");
    }
}
