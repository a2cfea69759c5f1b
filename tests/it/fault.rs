//! Breaks the disk of a real process. A test runs its body in a child of this binary whose system calls can be made to
//! fail: by a small preloaded C library, by the limit on file sizes, or on a small file system that is really full. If
//! the machine has no means for that, the test reports that it is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the file that tells the library which calls fail. Its presence also marks a process as the child.
const CONTROL: &str = "WINDLASS_FAULT";
const LIBRARY: &str = include_str!("fault.c");

pub(crate) const EIO: i32 = 5;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;

/// What a child needs besides a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// Calls fail on command.
    Library,
    /// A write beyond the limit on file sizes is an error, not the end of the process.
    Sizes,
    /// File systems can be mounted, visible to the child only.
    Mounts,
    /// The user is not root, so that file permissions apply to it.
    Unprivileged,
}

/// A child's directory, and the means to break its disk.
#[derive(Clone)]
pub(crate) struct Broken {
    pub(crate) dir: PathBuf,
    control: PathBuf,
}

impl Broken {
    /// From now on these calls (`write`, `sync`, `truncate`) fail for files with this suffix.
    pub(crate) fn fail(&self, calls: &[(&str, &str, i32)]) {
        let lines: String = calls.iter().map(|(call, end, error)| format!("{call} {end} {error}\n")).collect();
        std::fs::write(&self.control, lines).expect("the control file is written");
    }

    /// Everything works again. Returns what failed in the meantime.
    pub(crate) fn mend(&self) -> String {
        std::fs::write(&self.control, "").expect("the control file is written");
        std::fs::read_to_string(self.control.with_extension("control.struck")).unwrap_or_default()
    }
}

/// Runs the body of `test`, which names itself, in a child.
pub(crate) fn in_child(test: &str, means: Means, body: impl FnOnce(&Broken)) {
    if let Some(control) = std::env::var_os(CONTROL).map(PathBuf::from) {
        let dir = control.parent().expect("it is in a directory").join("work");
        std::fs::create_dir_all(&dir).expect("a directory");
        body(&Broken { dir, control: control.clone() });
        std::fs::write(control.with_extension("done"), "").expect("the parent is told");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut command) = command(means, directory.path()) else {
        return eprintln!("skipped: this machine has no means to break a disk for {test}");
    };
    let control = directory.path().join("fault.control");
    let child = command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CONTROL, &control).output();
    let child = child.expect("the child starts");
    let said = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(child.status.success(), "{said}");
    assert!(control.with_extension("done").exists(), "there is no test {test}: {said}");
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{line}"));
}

/// This binary, started with the means to break its disk.
fn command(means: Means, dir: &Path) -> Option<Command> {
    let binary = std::env::current_exe().expect("this binary");
    let works = |program: &str, args: &[&str]| {
        cfg!(target_os = "linux")
            && Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    match means {
        Means::Library => {
            let (source, library) = (dir.join("fault.c"), dir.join("fault.so"));
            std::fs::write(&source, LIBRARY).expect("the library's source");
            let paths = [source.to_str()?, library.to_str()?];
            if !works("cc", &["-shared", "-fPIC", paths[0], "-o", paths[1], "-ldl"]) {
                return None;
            }
            let mut command = Command::new(binary);
            command.env("LD_PRELOAD", library);
            Some(command)
        }
        Means::Sizes if works("prlimit", &["--version"]) => {
            let mut command = Command::new("sh");
            command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(binary);
            Some(command)
        }
        Means::Mounts if works("unshare", &["-m", "true"]) => {
            let mut command = Command::new("unshare");
            command.arg("-m").arg(binary);
            Some(command)
        }
        // Root must become another user first, because permissions do not apply to it.
        Means::Unprivileged if !works("sh", &["-c", "test $(id -u) = 0"]) => Some(Command::new(binary)),
        Means::Unprivileged => {
            let user = ["--reuid=65534", "--clear-groups", "--"];
            Command::new("chmod").arg("777").arg(dir).status().ok()?;
            if !works("setpriv", &[user.as_slice(), &[binary.to_str()?, "--list"]].concat()) {
                return None;
            }
            let mut command = Command::new("setpriv");
            command.args(user).arg(binary);
            Some(command)
        }
        _ => None,
    }
}
