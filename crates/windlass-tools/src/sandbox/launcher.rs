//! The program that starts commands, and its record of those that run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Kept;

/// A program that calls [`launch_main`](super::launch_main), and the commands it has running. Clones share the same
/// state: one launcher is enough for all commands of a process.
///
/// With the first command it starts a guard: a process that notices when this one is gone, however it died, and kills
/// the process groups of all commands that are left.
#[derive(Clone)]
pub struct Launcher(Arc<Inner>);

struct Inner {
    argv: Vec<String>,
    records: Option<PathBuf>,
    kept: Vec<Kept>,
    #[cfg(target_os = "linux")]
    guard: parking_lot::Mutex<crate::process::guard::Guard>,
}

impl Launcher {
    /// Starts commands with this program and these arguments. A program that is named by a path is protected from
    /// commands: they may read it, but not replace it.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let argv: Vec<String> = argv.into_iter().map(Into::into).collect();
        let program = argv.first().filter(|name| name.contains('/')).map(PathBuf::from);
        Self::with(argv, None, program.map(starter).into_iter().collect())
    }

    /// Starts commands with the program that is running now and these arguments. Given the arguments, the program must
    /// call [`launch_main`](super::launch_main) and do nothing else. Its file is protected: commands may read it, but
    /// not replace it.
    pub fn this_program(args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let argv = std::iter::once("/proc/self/exe".to_owned()).chain(args.into_iter().map(Into::into)).collect();
        Self::with(argv, None, std::env::current_exe().map(starter).into_iter().collect())
    }

    /// Keeps a record of every running command in this folder, for [`kill_leftovers`](crate::process::kill_leftovers)
    /// to read after this process and its guard have both died. Call it before the launcher is cloned: clones made
    /// earlier keep their own settings.
    #[must_use]
    pub fn records(self, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let mut kept = self.0.kept.clone();
        kept.push(Kept::new("the records of running commands", &folder));
        Self::with(self.0.argv.clone(), Some(folder), kept)
    }

    /// Protects these files from every command: a command whose sandbox includes one of them is not run. The folder of
    /// [records](Launcher::records) is protected too. Call it before the launcher is cloned: clones made earlier keep
    /// their own settings.
    #[must_use]
    pub fn keep(self, files: impl IntoIterator<Item = Kept>) -> Self {
        let kept = self.0.kept.iter().cloned().chain(files).collect();
        Self::with(self.0.argv.clone(), self.0.records.clone(), kept)
    }

    fn with(argv: Vec<String>, records: Option<PathBuf>, kept: Vec<Kept>) -> Self {
        Self(Arc::new(Inner {
            argv,
            records,
            kept,
            #[cfg(target_os = "linux")]
            guard: parking_lot::Mutex::default(),
        }))
    }

    /// The program and its arguments.
    pub fn argv(&self) -> &[String] {
        &self.0.argv
    }

    /// The folder of the records.
    pub fn folder(&self) -> Option<&Path> {
        self.0.records.as_deref()
    }

    /// The files that are protected from every command.
    pub fn kept(&self) -> &[Kept] {
        &self.0.kept
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn guard(&self) -> &parking_lot::Mutex<crate::process::guard::Guard> {
        &self.0.guard
    }
}

/// A command that replaced this program would run without a sandbox the next time.
fn starter(program: PathBuf) -> Kept {
    Kept::new("the program that starts commands", program).readable()
}

impl std::fmt::Debug for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Launcher({:?})", self.0.argv)
    }
}
