//! A running command: started, watched, ended.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cleaner;
use super::group::{FIRST_POLL_INTERVAL, Group, next_interval};
use super::records::{Record, log_removal};
use super::table;
use crate::sandbox::Launcher;

/// The process group of a running command. Dropping it kills the group and blocks until it is dead.
pub(crate) struct Running {
    child: Child,
    pub(crate) group: Group,
    record: Record,
    launcher: Launcher,
    stage: GroupStage,
}

/// How far the end of a group has come.
#[derive(Clone, Copy)]
enum GroupStage {
    /// The leader's exit code has not been collected, so the process id cannot have been reused.
    Unreaped,
    /// The whole group was killed; the leader was dead at this time.
    Killed(u64),
    /// The group is gone, and so are its records.
    Over,
}

/// Our ends of its pipes.
pub(crate) struct Pipes {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Running {
    /// Starts a launcher, which waits for its instructions. It is known to the guard and recorded before it can get
    /// any.
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
                // It has no instructions and no children.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(error);
            }
        };
        let record = Record { pid: group.pid, start: group.start, boot: table::boot(), key: key.to_owned(), temp };
        let running = Self { child, group, record, launcher: launcher.clone(), stage: GroupStage::Unreaped };
        running.launcher.guard().lock().add(launcher.argv(), &running.record)?;
        if let Some(folder) = launcher.folder() {
            running.record.keep(folder)?;
        }
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("the launcher has no pipes"));
        };
        Ok((running, Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() }))
    }

    /// Resolves when the leader has ended. Its exit code is not collected yet.
    pub(crate) fn ended(&self) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let pid = Pid::from_raw(self.group.pid).ok_or_else(|| io::Error::other("the launcher has no process id"))?;
        let fd: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
        // Deprecated because a type may change or close its descriptor meanwhile. `OwnedFd` does not, and the
        // replacement is unsafe.
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

    /// Kills the rest of the group, and waits until it is dead. Call it when the leader has ended.
    pub(crate) async fn finish(&mut self) -> io::Result<ExitStatus> {
        // Until the leader is waited for, its process id cannot be reused.
        self.group.signal(Signal::KILL);
        let status = self.child.wait();
        let dead = table::now();
        self.stage = GroupStage::Killed(dead);
        let mut pause = FIRST_POLL_INTERVAL;
        while !self.group.is_gone(dead) {
            tokio::time::sleep(pause).await;
            pause = next_interval(pause);
        }
        let left = self.clear();
        // Only an attempt that left a large folder waits for a full queue.
        while left.is_some() && cleaner::is_full() {
            tokio::time::sleep(pause).await;
            pause = next_interval(pause);
        }
        self.stage = GroupStage::Over;
        if let Some(job) = left {
            job.enqueue();
        }
        status
    }

    /// Removes its folder if that has few entries. The guard and the record keep it until it is gone from the disk.
    fn clear(&self) -> Option<cleaner::Job> {
        let (record, launcher) = (self.record.clone(), self.launcher.clone());
        cleaner::remove_now(self.record.temp.clone(), move || {
            if let Some(folder) = launcher.folder() {
                log_removal(record.forget(folder), folder);
            }
            launcher.guard().lock().remove(&record);
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let dead = match self.stage {
            GroupStage::Over => return,
            GroupStage::Killed(dead) => dead,
            GroupStage::Unreaped => {
                self.group.signal(Signal::KILL);
                table::now()
            }
        };
        if self.group.wait_until_gone(dead) {
            // Does not block for long: the leader is dead, or a single process that is about to be.
            let _ = self.child.wait();
            if let Some(job) = self.clear() {
                job.enqueue();
            }
        } else {
            // The guard and the record keep the group: it is killed again when this process ends.
            tracing::error!(group = self.group.pid, "the process group of a command was killed and still lives");
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
    use crate::process::cleaner::tests::{block_cleaner, fill_queue};

    /// Longer than anything here takes on a busy machine.
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A command that has ended and left this many files in its folder.
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
        (Running { child, group, record, launcher: Launcher::new(["none"]), stage: GroupStage::Unreaped }, temp)
    }

    fn wait_until_gone(folder: &Path) {
        let started = Instant::now();
        while folder.exists() {
            assert!(started.elapsed() < TIMEOUT, "{} is still there", folder.display());
            std::thread::yield_now();
        }
    }

    /// One test, because it blocks the one cleaner thread of this process.
    #[tokio::test]
    async fn e26_the_files_of_a_command_do_not_delay_the_result_of_another() {
        let base = tempfile::tempdir().unwrap();
        let cleaner = block_cleaner();
        let (mut large, folder) = ended(base.path(), 1_000);
        tokio::time::timeout(TIMEOUT, large.finish()).await.unwrap().unwrap();
        assert!(folder.exists(), "the call is over before its folder is gone");

        fill_queue();
        for files in [0, 3] {
            let (mut small, folder) = ended(base.path(), files);
            tokio::time::timeout(TIMEOUT, small.finish()).await.expect("a small folder waits for the queue").unwrap();
            assert!(!folder.exists());
        }
        let (mut larger, other) = ended(base.path(), 2_000);
        let waits = tokio::time::timeout(Duration::from_millis(100), larger.finish()).await;
        assert!(waits.is_err() && other.exists(), "a large folder waits for room in the queue");
        drop(larger);
        drop(cleaner);
        wait_until_gone(&folder);
        wait_until_gone(&other);
    }
}
