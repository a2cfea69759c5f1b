//! A temporary folder with a config, and processes that run in it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A test fails if something takes longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"
[policy]
attended = true

[tool.echo]
description = "Returns its arguments."
command = ["cat"]
input = { text = "string: What to return", times = "integer?" }
effect = "readonly"
sandbox = { level = "best_effort" }
tags = ["demo"]

[tool.pay]
description = "Pays something, after asking."
command = ["cat"]
input = { to = "string", cents = "integer" }
approval = "args.cents > 100"
sandbox = { level = "best_effort" }

[tool.broken]
description = "Always fails."
command = ["sh", "-c", "echo out of paper >&2; exit 1"]
effect = "readonly"
sandbox = { level = "best_effort" }

[tool.linked]
description = "Needs a connection."
command = ["cat"]
effect = "readonly"
connection = "github"
sandbox = { level = "best_effort" }

# Waits for a file, so that a test decides when it ends.
[tool.slow]
description = "Waits for a file named go."
command = ["sh", "-c", "touch started; while [ ! -e go ]; do sleep 0.02; done; cat"]
dir = "slow"
sandbox = { level = "best_effort" }
"#;

pub(crate) struct World {
    folder: tempfile::TempDir,
}

/// The output of a process and its exit code.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self::empty();
        std::fs::write(world.path("windlass.toml"), CONFIG).unwrap();
        std::fs::create_dir(world.path("slow")).unwrap();
        world
    }

    /// Without a config.
    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// The binary in this folder, without the environment variables that it reads.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.here(Command::new(env!("CARGO_BIN_EXE_windlass")), args)
    }

    /// The same with a limit on open files.
    pub(crate) fn command_within(&self, files: usize, args: &[&str]) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_windlass")]);
        self.here(shell, args)
    }

    fn here(&self, mut command: Command, args: &[&str]) -> Command {
        command.args(args).current_dir(self.folder.path()).env("COLUMNS", "120").stdin(Stdio::null());
        for name in ["WINDLASS_SERVER", "WINDLASS_TOKEN", "WINDLASS_LOG", "NO_COLOR"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        done(self.command(args).output().unwrap())
    }

    /// The same with something on its standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> Done {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that exits without reading prints why.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        done(child.wait_with_output().unwrap())
    }

    /// The output of a command that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, 0, "windlass {}: {}{}", args.join(" "), done.out, done.err);
        done.out
    }

    /// The JSON document of a command that must succeed.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let out = self.ok(&[&["--json"], args].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("windlass {}: {error}: {out}", args.join(" ")))
    }

    /// The output of a command that must fail with this exit code.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, code, "windlass {}: {}{}", args.join(" "), done.out, done.err);
        no_trace(&done);
        format!("{}{}", done.out, done.err)
    }

    /// A server on this folder's file.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        self.serve_at("127.0.0.1:0", args)
    }

    /// The same on another address.
    pub(crate) fn serve_at(&self, address: &str, args: &[&str]) -> Server {
        Self::serving(self.command(&["--json", "serve", "--listen", address]), args)
    }

    /// The same with a limit on open files.
    pub(crate) fn serve_within(&self, files: usize) -> Server {
        Self::serving(self.command_within(files, &["--json", "serve", "--listen", "127.0.0.1:0"]), &[])
    }

    fn serving(mut command: Command, args: &[&str]) -> Server {
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::piped());
        Server::start(command)
    }

    /// A server with the tools of the demo.
    pub(crate) fn serve_demo(&self) -> Server {
        self.serve(&["--demo", "ledger.jsonl"])
    }
}

/// Asserts that an error message shows no internals of the program.
#[track_caller]
pub(crate) fn no_trace(done: &Done) {
    for word in ["panicked", "RUST_BACKTRACE", "src/", "Error {", "Os {"] {
        assert!(!done.err.contains(word), "{}", done.err);
    }
}

fn done(output: Output) -> Done {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
    pub(crate) ready: Value,
    /// Notified when the server closes its standard output, which it does when it exits.
    ended: Receiver<()>,
}

impl Server {
    /// Waits until a command has asked for the outcome of its run and was told that there is none yet.
    pub(crate) fn has_been_asked_for_an_outcome(&self, token: Option<&str>) {
        let address = self.url.trim_start_matches("http://");
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        until("a command asks for an outcome", || {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n{token}Connection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text.contains(r#"route="/v1/runs/{run}/outcome",status="202""#).then_some(())
        });
    }

    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            let output = child.wait_with_output().unwrap();
            panic!("no server: {line}{}", String::from_utf8_lossy(&output.stderr));
        };
        // Keep reading: a closed pipe could end a process that prints.
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut lines, &mut std::io::sink());
            // The test may be over already.
            let _ = sender.send(());
        });
        let mut errors = child.stderr.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
        let url = ready["url"].as_str().unwrap().to_owned();
        Self { child, url, ready, ended }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Stops the server cleanly, and returns its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.signal("TERM");
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> i32 {
        assert_ne!(self.ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Timeout), "the server does not exit");
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls until there is a result. Other processes send no notification.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
pub(crate) fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

/// Runs a test on a file alone, and again with a server on it.
pub(crate) fn both_ways(test: impl Fn(&World, Backend)) {
    let world = World::new();
    test(&world, Backend::File);
    let world = World::new();
    let server = world.serve(&[]);
    test(&world, Backend::Server);
    drop(server);
}

/// What a command talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    File,
    Server,
}

pub(crate) fn exists(path: &Path) -> Option<()> {
    path.exists().then_some(())
}
