//! The folder in which a process keeps the temporary folders of its commands.
//!
//! Guard and record know of it before it is made. So the guard, or the next process, needs to know none of the folders in it,
//! and a process can be killed at any moment.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::records::gone;
use super::table;

/// One process's folder. Kept in a file, and told to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Temps {
    /// Where it is.
    pub(crate) folder: PathBuf,
    /// The file that tells of it, if one does.
    file: Option<PathBuf>,
    /// The process whose it is, as in a command's record.
    pid: i32,
    start: u64,
    boot: String,
    /// Folders made so far.
    #[serde(skip)]
    made: u64,
}

impl Temps {
    /// Chooses a folder, and records it among the records of commands, if there are any. It is made with the first one in it.
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

    /// A new private folder for one command.
    pub(crate) fn make(&mut self) -> io::Result<PathBuf> {
        self.made += 1;
        let path = self.folder.join(self.made.to_string());
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        match make(&path) {
            // It is the first one; or the system removes what is old.
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&self.folder).and_then(|()| make(&path))?,
            made => made?,
        }
        Ok(path)
    }

    /// Whether the process whose it is may still use it.
    pub(crate) fn is_in_use(&self) -> bool {
        let is_owner = |stat: &table::Stat| stat.start == self.start && stat.lives();
        self.boot == table::boot() && table::look(self.pid).as_ref().is_some_and(is_owner)
    }

    /// To be called when it is gone.
    pub(crate) fn forget(&self) -> io::Result<()> {
        self.file.as_deref().map_or(Ok(()), |file| gone(fs::remove_file(file)))
    }
}
