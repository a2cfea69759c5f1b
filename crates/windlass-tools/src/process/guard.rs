//! The guard: a small process that outlives this one for as long as it takes to kill what it left.
//!
//! It reads what runs from a pipe whose other end is ours alone. The pipe closes with us, however we end.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use serde::Serialize;

use super::group::Fate;
use super::records::Record;
use super::remove::remove;
use super::temps::Temps;
use crate::sandbox::Orders;

/// Our end of it. Not there before the first command.
#[derive(Default)]
pub(crate) struct Guard {
    process: Option<(Child, ChildStdin)>,
    live: BTreeMap<i32, Record>,
    /// Where the temporary folders of commands are. Not there before the first one.
    temps: Option<Temps>,
}

impl Guard {
    /// Starts it, if it was never started, and tells it where temporary folders will be: they go with us like the commands.
    pub(crate) fn begin(&mut self, argv: &[String], records: Option<&Path>) -> io::Result<()> {
        if self.temps.is_some() {
            return Ok(());
        }
        self.temps = Some(Temps::new(records)?);
        self.start(argv).inspect_err(|_| self.temps = None)
    }

    /// Makes a temporary folder for a command.
    pub(crate) fn folder(&mut self) -> io::Result<PathBuf> {
        self.temps.as_mut().map_or_else(|| Err(io::ErrorKind::NotFound.into()), Temps::make)
    }

    /// Tells it of a command. Once this returns, the command dies with us: what is in a pipe is read, also after the writer's
    /// death.
    pub(crate) fn add(&mut self, argv: &[String], record: &Record) -> io::Result<()> {
        self.live.insert(record.pid, record.clone());
        let told = match &mut self.process {
            Some((_, pipe)) => tell(pipe, b'+', record),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        // Somebody killed it, or it was never there. The next one is told everything.
        let told = told.or_else(|_| self.start(argv));
        if told.is_err() {
            self.live.remove(&record.pid);
        }
        told
    }

    /// Tells it that a command is over.
    pub(crate) fn remove(&mut self, record: &Record) {
        // Its folder may have taken so long that another command has its number.
        if self.live.get(&record.pid) != Some(record) {
            return;
        }
        let pid = record.pid;
        self.live.remove(&pid);
        let Some((_, pipe)) = &mut self.process else { return };
        // If it is gone, the next one will not hear of this command at all.
        let _ = pipe.write_all(format!("-{pid}\n").as_bytes());
    }

    fn start(&mut self, argv: &[String]) -> io::Result<()> {
        self.stop();
        let (name, args) = argv.split_first().ok_or_else(|| io::Error::other("the launcher has no program"))?;
        let mut command = Command::new(name);
        command.arg0("windlass-guard").args(args).env_clear();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut pipe = child.stdin.take().ok_or_else(|| io::Error::other("the guard has no pipe"))?;
        pipe.write_all(&Orders::Guard.encode()?)?;
        if let Some(temps) = &self.temps {
            tell(&mut pipe, b'*', temps)?;
        }
        for record in self.live.values() {
            tell(&mut pipe, b'+', record)?;
        }
        self.process = Some((child, pipe));
        Ok(())
    }

    fn stop(&mut self) {
        if let Some((mut child, pipe)) = self.process.take() {
            drop(pipe);
            // It may still be busy killing; nobody has to wait for that, but somebody must ask for its exit code.
            std::thread::spawn(move || child.wait());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop();
    }
}

fn tell(pipe: &mut ChildStdin, kind: u8, what: &impl Serialize) -> io::Result<()> {
    let mut line = vec![kind];
    serde_json::to_writer(&mut line, what)?;
    line.push(b'\n');
    pipe.write_all(&line)
}

/// The guard itself: reads until the pipe closes, then kills what is left, and removes what that left.
pub(crate) fn watch() -> ExitCode {
    // It must hold no folder that somebody wants to unmount or remove.
    let _ = std::env::set_current_dir("/");
    let mut live: BTreeMap<i32, Record> = BTreeMap::new();
    let mut temps: Option<Temps> = None;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Some(record) = line.strip_prefix('+') {
            if let Ok(record) = serde_json::from_str::<Record>(record) {
                live.insert(record.pid, record);
            }
        } else if let Some(pid) = line.strip_prefix('-').and_then(|pid| pid.parse().ok()) {
            live.remove(&pid);
        } else if let Some(told) = line.strip_prefix('*') {
            temps = serde_json::from_str(told).ok();
        }
    }
    // All of them before we wait for any: a group that hangs must not save the others.
    let ends: Vec<_> = live.into_values().map(|record| std::thread::spawn(move || record.end())).collect();
    let fates: Vec<_> = ends.into_iter().map(std::thread::JoinHandle::join).collect();
    let is_over = fates.iter().all(|fate| matches!(fate, Ok(Fate::Gone | Fate::Killed)));
    // Whatever is not removed now has a record, by which the next process does it.
    if let (true, Some(temps)) = (is_over, temps)
        && remove(&temps.folder, usize::MAX).is_ok()
    {
        let _ = temps.forget();
    }
    ExitCode::SUCCESS
}
