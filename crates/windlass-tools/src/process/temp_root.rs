//! The folder that contains the temporary folders of all commands of a process.
//!
//! It is sent to the guard and recorded before it is created. So the guard, or the next process, can remove it without
//! knowing the folders in it, and this process can be killed at any moment.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::records::ignore_missing;
use super::table;

/// The folder of one process. Written to a file, and sent to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TempRoot {
    /// Its path.
    pub(crate) folder: PathBuf,
    /// Its record, if records are kept.
    file: Option<PathBuf>,
    /// The process that owns it, as in the record of a command.
    pid: i32,
    start: u64,
    boot: String,
    /// Number of folders created in it so far.
    #[serde(skip)]
    made: u64,
}

impl TempRoot {
    /// Chooses a path and records it among the records of commands, if those are kept. The folder is created with the
    /// first one in it.
    pub(crate) fn new(records: Option<&Path>) -> io::Result<Self> {
        let own = table::own()?;
        let name = uuid::Uuid::new_v4().simple().to_string();
        let temps = Self {
            folder: std::env::temp_dir().join(format!("windlass-{name}")),
            file: records.map(|records| records.join(format!("folder-{name}.json"))),
            pid: own.pid,
            start: own.start,
            boot: table::boot(),
            made: 0,
        };
        if let (Some(records), Some(file)) = (records, &temps.file) {
            fs::create_dir_all(records)?;
            fs::write(file, serde_json::to_vec(&temps)?)?;
        }
        Ok(temps)
    }

    /// Creates a private folder for one command.
    pub(crate) fn make(&mut self) -> io::Result<PathBuf> {
        self.made += 1;
        let path = self.folder.join(self.made.to_string());
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        match make(&path) {
            // This is the first command, or the system has removed an old temporary folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&self.folder).and_then(|()| make(&path))?,
            made => made?,
        }
        Ok(path)
    }

    /// Whether the process that owns it still runs.
    pub(crate) fn is_in_use(&self) -> bool {
        let is_owner = |stat: &table::Stat| stat.start == self.start && stat.lives();
        self.boot == table::boot() && table::find(self.pid).as_ref().is_some_and(is_owner)
    }

    /// Removes its record. Call it when the folder is gone.
    pub(crate) fn forget(&self) -> io::Result<()> {
        self.file.as_deref().map_or(Ok(()), |file| ignore_missing(fs::remove_file(file)))
    }
}
