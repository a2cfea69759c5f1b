//! The guard: a small process that outlives this one just long enough to kill the commands it left.
//!
//! It reads the list of running commands from a pipe whose write end is held by this process only. The pipe closes when
//! this process ends, however it ends.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use serde::Serialize;

use super::group::KillOutcome;
use super::records::Record;
use super::remove::remove;
use super::temp_root::TempRoot;
use crate::sandbox::Instructions;

/// The server's end of the pipe to the guard, which is started with the first command.
#[derive(Default)]
pub(crate) struct Guard {
    process: Option<(Child, ChildStdin)>,
    live: BTreeMap<i32, Record>,
    /// The folder for the temporary folders of commands, created with the first one.
    temps: Option<TempRoot>,
}

impl Guard {
    /// Starts the guard if it was never started, and sends it the folder of temporary folders, which it removes after
    /// the commands.
    pub(crate) fn begin(&mut self, argv: &[String], records: Option<&Path>) -> io::Result<()> {
        if self.temps.is_some() {
            return Ok(());
        }
        self.temps = Some(TempRoot::new(records)?);
        self.start(argv).inspect_err(|_| self.temps = None)
    }

    /// Creates a temporary folder for a command.
    pub(crate) fn folder(&mut self) -> io::Result<PathBuf> {
        self.temps.as_mut().map_or_else(|| Err(io::ErrorKind::NotFound.into()), TempRoot::make)
    }

    /// Sends it a command. Once this returns, the command dies with this process: what is in a pipe can be read after
    /// the writer's death.
    pub(crate) fn add(&mut self, argv: &[String], record: &Record) -> io::Result<()> {
        self.live.insert(record.pid, record.clone());
        let sent = match &mut self.process {
            Some((_, pipe)) => send(pipe, b'+', record),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        // The guard was killed, or never started. A new one is sent all commands.
        let sent = sent.or_else(|_| self.start(argv));
        if sent.is_err() {
            self.live.remove(&record.pid);
        }
        sent
    }

    /// Tells it that a command has ended.
    pub(crate) fn remove(&mut self, record: &Record) {
        // Removing the folder may have taken so long that another command has the same process id.
        if self.live.get(&record.pid) != Some(record) {
            return;
        }
        let pid = record.pid;
        self.live.remove(&pid);
        let Some((_, pipe)) = &mut self.process else { return };
        // If the guard is gone, a new one will not be sent this command.
        let _ = pipe.write_all(format!("-{pid}\n").as_bytes());
    }

    fn start(&mut self, argv: &[String]) -> io::Result<()> {
        self.stop();
        let (name, args) = argv.split_first().ok_or_else(|| io::Error::other("the launcher has no program"))?;
        let mut command = Command::new(name);
        command.arg0("windlass-guard").args(args).env_clear();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut pipe = child.stdin.take().ok_or_else(|| io::Error::other("the guard has no pipe"))?;
        pipe.write_all(&Instructions::Guard.encode()?)?;
        if let Some(temps) = &self.temps {
            send(&mut pipe, b'*', temps)?;
        }
        for record in self.live.values() {
            send(&mut pipe, b'+', record)?;
        }
        self.process = Some((child, pipe));
        Ok(())
    }

    fn stop(&mut self) {
        if let Some((mut child, pipe)) = self.process.take() {
            drop(pipe);
            // It may still be busy killing. Its exit code must be collected, but not waited for.
            std::thread::spawn(move || child.wait());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop();
    }
}

fn send(pipe: &mut ChildStdin, kind: u8, what: &impl Serialize) -> io::Result<()> {
    let mut line = vec![kind];
    serde_json::to_writer(&mut line, what)?;
    line.push(b'\n');
    pipe.write_all(&line)
}

/// The guard's main loop: reads until the pipe closes, then kills the commands that are left and removes their folders.
pub(crate) fn watch() -> ExitCode {
    // It must not hold a working directory that may be unmounted or removed.
    let _ = std::env::set_current_dir("/");
    let mut live: BTreeMap<i32, Record> = BTreeMap::new();
    let mut temps: Option<TempRoot> = None;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Some(record) = line.strip_prefix('+') {
            if let Ok(record) = serde_json::from_str::<Record>(record) {
                live.insert(record.pid, record);
            }
        } else if let Some(pid) = line.strip_prefix('-').and_then(|pid| pid.parse().ok()) {
            live.remove(&pid);
        } else if let Some(root) = line.strip_prefix('*') {
            temps = serde_json::from_str(root).ok();
        }
    }
    // Kills all groups before waiting for any: one that hangs must not keep the others alive.
    let kills: Vec<_> = live.into_values().map(|record| std::thread::spawn(move || record.kill())).collect();
    let outcomes: Vec<_> = kills.into_iter().map(std::thread::JoinHandle::join).collect();
    let all_dead = outcomes.iter().all(|outcome| matches!(outcome, Ok(KillOutcome::AlreadyGone | KillOutcome::Killed)));
    // A folder that is not removed now has a record, so the next process removes it.
    if let (true, Some(temps)) = (all_dead, temps)
        && remove(&temps.folder, usize::MAX).is_ok()
    {
        let _ = temps.forget();
    }
    ExitCode::SUCCESS
}
