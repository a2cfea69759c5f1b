//! Shared test fixtures: a working directory, a launcher, and helpers that look at processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::tool::Schemas;
use windlass::{Effect, Outcome, Tool, ToolSpec, Windlass};
use windlass_tools::command::Command;
use windlass_tools::sandbox::{Launcher, support};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct World {
    base: tempfile::TempDir,
    pub(crate) launcher: Launcher,
}

impl World {
    pub(crate) fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("work")).unwrap();
        fs::create_dir(base.path().join("secret")).unwrap();
        fs::write(base.path().join("secret/key.txt"), "SECRET").unwrap();
        let launcher = Launcher::new([env!("CARGO_BIN_EXE_windlass-launch")]).records(base.path().join("records"));
        Self { base, launcher }
    }

    pub(crate) fn base(&self) -> &Path {
        self.base.path()
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.base().join("work")
    }

    /// The number of recorded commands.
    pub(crate) fn records(&self) -> usize {
        let is_command = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with("folder-");
        fs::read_dir(self.base().join("records")).map_or(0, |entries| entries.flatten().filter(is_command).count())
    }

    /// The recorded folders of temporary folders, each with its record.
    pub(crate) fn folders(&self) -> Vec<(PathBuf, PathBuf)> {
        let entries = fs::read_dir(self.base().join("records")).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let folder = |file: &PathBuf| {
            let record: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
            Some(PathBuf::from(record.get("folder")?.as_str()?))
        };
        files.filter_map(|file| Some((folder(&file)?, file))).collect()
    }

    /// A command that runs in the working directory.
    pub(crate) fn command(&self, argv: &[&str]) -> Command {
        Command { dir: Some(self.work()), ..Command::new(argv.iter().copied(), self.launcher.clone()) }
    }

    pub(crate) fn sh(&self, script: &str) -> Command {
        self.command(&["/bin/sh", "-c", script])
    }

    pub(crate) fn probe(&self, args: &[&str]) -> Command {
        let probe = probe();
        let argv: Vec<&str> = [probe.to_str().unwrap()].into_iter().chain(args.iter().copied()).collect();
        self.command(&argv)
    }
}

/// The program whose attempts are tested: an example of this crate.
pub(crate) fn probe() -> PathBuf {
    let built = std::env::current_exe().unwrap();
    let probe = built.parent().unwrap().parent().unwrap().join("examples/probe");
    assert!(probe.exists(), "{} is missing: build this crate's examples first", probe.display());
    probe
}

/// Runs a test again in a process of its own with an environment variable, if it would disturb others. Returns true in
/// that process, and false in this one after the test has passed there.
pub(crate) fn alone(test: &str, variable: &str, value: &str) -> bool {
    let mark = "WINDLASS_TEST_ALONE";
    if std::env::var_os(mark).is_some() {
        return true;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(mark, "1")
        .env(variable, value)
        .output()
        .unwrap();
    let printed = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(child.status.success() && printed.contains("1 passed"), "{}: {printed}", child.status);
    println!("{printed}");
    false
}

/// A folder in memory if there is one: removing deeply nested folders can take seconds on a disk.
pub(crate) fn memory() -> &'static str {
    if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }
}

/// Drops root's capabilities from this thread and its children, so that file permissions apply to it.
pub(crate) fn drop_capabilities() {
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

/// A read-only tool, so that the end of the command is the outcome of the call.
pub(crate) fn tool(command: Command) -> Tool {
    command.tool(ToolSpec::new("run", "Runs a command"), Schemas::any()).effect(Effect::Readonly)
}

pub(crate) async fn call(command: Command, args: Value) -> Outcome {
    let windlass = Windlass::in_memory().tool(tool(command)).await.unwrap();
    windlass.call_json("run", args).await.unwrap()
}

pub(crate) async fn value(command: Command) -> Value {
    let outcome = call(command, json!({})).await;
    outcome.value().cloned().unwrap_or_else(|| panic!("{:?}", outcome.result))
}

pub(crate) async fn error(command: Command) -> (String, String) {
    let outcome = call(command, json!({})).await;
    let error = outcome.result.expect_err("it should have failed");
    (error.kind().to_owned(), error.to_string())
}

/// Whether this kernel can sandbox commands. If not, checks that they are refused.
pub(crate) async fn can_confine(world: &World) -> bool {
    let support = support();
    if support.is_whole() {
        return true;
    }
    println!("this kernel cannot sandbox commands ({}): checking that they are refused", support.missing().join("; "));
    let (kind, message) = error(world.sh("echo hello")).await;
    assert_eq!(kind, "unavailable");
    assert!(message.contains("best_effort"), "{message}");
    false
}

pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits for a condition without an event.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The processes of the probe's tree, once all of them run.
pub(crate) async fn grown(folder: &Path) -> Vec<i32> {
    let names = ["root", "left", "right", "leftmost", "rightmost"];
    let read = |name: &str| fs::read_to_string(folder.join(format!("{name}.pid"))).ok();
    until("the tree has grown", || names.iter().all(|name| read(name).is_some())).await;
    let texts: Vec<String> = names.iter().filter_map(|name| read(name)).collect();
    assert!(texts.iter().all(|text| text.ends_with(" false")), "a process left the group: {texts:?}");
    let pids: Vec<i32> = texts.iter().filter_map(|text| text.split(' ').next()?.parse().ok()).collect();
    assert!(pids.len() == 5 && pids.iter().all(|pid| lives(*pid)), "{pids:?}");
    pids
}

/// A command that starts a tree of processes. It finds its own program by `/proc/self/exe`.
pub(crate) fn tree(world: &World) -> Command {
    let work = world.work();
    let mut command = world.probe(&["tree", work.to_str().unwrap()]);
    command.sandbox.read.push("/proc".into());
    command
}
