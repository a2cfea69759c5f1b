//! A command that runs: started, watched, ended.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cleaner;
use super::group::{Group, LOOK_EVERY, longer};
use super::records::{Record, forgotten};
use super::table;
use crate::sandbox::Launcher;

/// A command's group while it runs. Dropping it kills the group and blocks until it is dead.
pub(crate) struct Running {
    child: Child,
    pub(crate) group: Group,
    record: Record,
    launcher: Launcher,
    stage: Stage,
}

/// How far its end has come.
#[derive(Clone, Copy)]
enum Stage {
    /// Nobody has asked for the leader's exit code, so the group's number is its own.
    Led,
    /// All of it was killed; the leader was dead by then.
    Killed(u64),
    /// Nothing of it is left, nor of its records.
    Over,
}

/// Our ends of its pipes.
pub(crate) struct Pipes {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Running {
    /// Starts a launcher, which waits for its orders. By the time it can be given any, guard and record know of it.
    pub(crate) fn start(launcher: &Launcher, key: &str, temp: PathBuf) -> io::Result<(Self, Pipes)> {
        let none = || io::Error::other("the launcher has no program");
        let (name, args) = launcher.argv().split_first().ok_or_else(none)?;
        let mut command = Command::new(name);
        command.args(args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let group = match Group::of_child(child.id()) {
            Ok(group) => group,
            Err(error) => {
                // It has no orders, and nothing beneath it.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(error);
            }
        };
        let record = Record { pid: group.pid, start: group.start, boot: table::boot(), key: key.to_owned(), temp };
        let running = Self { child, group, record, launcher: launcher.clone(), stage: Stage::Led };
        running.launcher.guard().lock().add(launcher.argv(), &running.record)?;
        if let Some(folder) = launcher.folder() {
            running.record.keep(folder)?;
        }
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(io::Error::other("no pipes")) };
        Ok((running, Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() }))
    }

    /// Resolves when the leader has ended. Its exit code is still there to be asked for.
    pub(crate) fn ended(&self) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let pid = Pid::from_raw(self.group.pid).ok_or_else(|| io::Error::other("no process"))?;
        let fd: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
        // Deprecated for types that may change or close their descriptor meanwhile, which this one does not; what is to
        // replace it is unsafe, since it has to take the word of its caller for that.
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(async move {
            loop {
                let mut ready = fd.readable().await?;
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
                if waitid(WaitId::Pid(pid), options)?.is_some() {
                    return Ok(());
                }
                ready.clear_ready();
            }
        })
    }

    /// Kills what the leader left of its group, and waits until it is dead. To be called when the leader has ended.
    pub(crate) async fn finish(&mut self) -> io::Result<ExitStatus> {
        // While nobody has asked for the leader's exit code, the number is certainly its group's.
        self.group.signal(Signal::KILL);
        let status = self.child.wait();
        let dead = table::now();
        self.stage = Stage::Killed(dead);
        let mut pause = LOOK_EVERY;
        while !self.group.is_gone(dead) {
            tokio::time::sleep(pause).await;
            pause = longer(pause);
        }
        let left = self.clear();
        // Only an attempt that left much waits for what others left.
        while left.is_some() && cleaner::is_full() {
            tokio::time::sleep(pause).await;
            pause = longer(pause);
        }
        self.stage = Stage::Over;
        if let Some(job) = left {
            job.leave();
        }
        status
    }

    /// Removes its folder, if there is little in it. Guard and record know of it until nothing of it is left on the disk either.
    fn clear(&self) -> Option<cleaner::Job> {
        let (record, launcher) = (self.record.clone(), self.launcher.clone());
        cleaner::remove_now(self.record.temp.clone(), move || {
            if let Some(folder) = launcher.folder() {
                forgotten(record.forget(folder), folder);
            }
            launcher.guard().lock().remove(&record);
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let dead = match self.stage {
            Stage::Over => return,
            Stage::Killed(dead) => dead,
            Stage::Led => {
                self.group.signal(Signal::KILL);
                table::now()
            }
        };
        if self.group.wait_until_gone(dead) {
            // At once: it is dead, or about to be and alone.
            let _ = self.child.wait();
            if let Some(job) = self.clear() {
                job.leave();
            }
        } else {
            // Guard and record stay: it is killed again when we are gone.
            tracing::error!(group = self.group.pid, "a command's process group was killed and does not die");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::process::cleaner::tests::{fill_up, hold_up};

    /// Longer than anything here takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A command that has ended, and left so many files in its folder.
    fn ended(base: &Path, files: usize) -> (Running, PathBuf) {
        let temp = base.join(files.to_string());
        fs::create_dir(&temp).unwrap();
        for number in 0..files {
            fs::write(temp.join(number.to_string()), "x").unwrap();
        }
        let child = Command::new("/bin/true").process_group(0).spawn().unwrap();
        let group = Group::of_child(child.id()).unwrap();
        let record =
            Record { pid: group.pid, start: group.start, boot: table::boot(), key: String::new(), temp: temp.clone() };
        (Running { child, group, record, launcher: Launcher::new(["none"]), stage: Stage::Led }, temp)
    }

    fn until_gone(folder: &Path) {
        let started = Instant::now();
        while folder.exists() {
            assert!(started.elapsed() < PATIENCE, "{} is still there", folder.display());
            std::thread::yield_now();
        }
    }

    /// All in one test, because it holds up the one cleaner of this process.
    #[tokio::test]
    async fn e26_what_a_command_left_delays_no_result_of_another() {
        let base = tempfile::tempdir().unwrap();
        let cleaner = hold_up();
        let (mut large, folder) = ended(base.path(), 1_000);
        tokio::time::timeout(PATIENCE, large.finish()).await.unwrap().unwrap();
        assert!(folder.exists(), "the call is over before its folder is gone");

        fill_up();
        for files in [0, 3] {
            let (mut small, folder) = ended(base.path(), files);
            tokio::time::timeout(PATIENCE, small.finish()).await.expect("it waits for others").unwrap();
            assert!(!folder.exists());
        }
        let (mut larger, other) = ended(base.path(), 2_000);
        let waits = tokio::time::timeout(Duration::from_millis(100), larger.finish()).await;
        assert!(waits.is_err() && other.exists(), "it waits until there is room for what it left");
        drop(larger);
        drop(cleaner);
        until_gone(&folder);
        until_gone(&other);
    }
}
