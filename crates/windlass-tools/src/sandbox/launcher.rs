//! Who starts commands, and keeps account of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Kept;

/// A program that answers to [`launch_main`](super::launch_main), and what it has running. Cloning shares it: one is enough for
/// all commands of a process.
///
/// With the first command it starts a guard: a process that sees when this one is gone, however it died, and kills every
/// command's process group that is left.
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
    /// Starts commands by this program with these arguments. A program that is named by its path is kept from commands: they may
    /// read it, and not replace it.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let argv: Vec<String> = argv.into_iter().map(Into::into).collect();
        let program = argv.first().filter(|name| name.contains('/')).map(PathBuf::from);
        Self::with(argv, None, program.map(starter).into_iter().collect())
    }

    /// Starts commands by the very program that runs now, with these arguments, by which it must know to call
    /// [`launch_main`](super::launch_main) and nothing else. Its file is kept from commands: they may read it, and not replace it.
    pub fn this_program(args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let argv = std::iter::once("/proc/self/exe".to_owned()).chain(args.into_iter().map(Into::into)).collect();
        Self::with(argv, None, std::env::current_exe().map(starter).into_iter().collect())
    }

    /// Keeps a record of every command that runs in this folder, for
    /// [`kill_leftovers`](crate::process::kill_leftovers) to read where this process and its guard both died. Must be called
    /// before the launcher is shared: the others keep what they have.
    #[must_use]
    pub fn records(self, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let mut kept = self.0.kept.clone();
        kept.push(Kept::new("the record of what runs", &folder));
        Self::with(self.0.argv.clone(), Some(folder), kept)
    }

    /// Keeps these files from every command: one whose sandbox has one of them in it is not run. The folder of
    /// [records](Launcher::records) is one of them. Must be called before the launcher is shared: the others keep what they have.
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

    /// Where records are kept.
    pub fn folder(&self) -> Option<&Path> {
        self.0.records.as_deref()
    }

    /// What is kept from every command.
    pub fn kept(&self) -> &[Kept] {
        &self.0.kept
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn guard(&self) -> &parking_lot::Mutex<crate::process::guard::Guard> {
        &self.0.guard
    }
}

/// A command that replaced it would run without a sandbox with the next one.
fn starter(program: PathBuf) -> Kept {
    Kept::new("the program that starts commands", program).readable()
}

impl std::fmt::Debug for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Launcher({:?})", self.0.argv)
    }
}
