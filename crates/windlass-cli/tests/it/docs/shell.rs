//! A shell that executes a whole chapter, in a temporary folder.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use super::chapter::Shown;
use super::shown::{begins, fits};
use crate::world::PATIENCE;

/// Printed by the shell with the exit code after each command.
const OVER: &str = "-- over --";

/// The port in the chapters.
const PORT: &str = "7117";

/// Ports that the system does not assign by itself, so that none is taken between the check and its use.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

pub(super) struct Shell {
    folder: tempfile::TempDir,
    bash: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    port: String,
    /// The number of background commands so far.
    background: usize,
}

/// The output of a command and its exit code.
struct CommandOutput {
    code: i32,
    text: String,
}

impl Shell {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "background"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_windlass"), folder.path().join("bin/windlass")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = Command::new("bash")
            .args(["--norc", "--noprofile"])
            .env_clear()
            .env("PATH", format!("{}:{path}", folder.path().join("bin").display()))
            .env("HOME", folder.path().join("home"))
            .env("LANG", "C.UTF-8")
            .env("COLUMNS", "100")
            .current_dir(folder.path().join("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A process group, so that all of it can be killed.
            .process_group(0)
            .spawn()
            .expect("bash starts");
        let input = bash.stdin.take().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(bash.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut shell = Self { folder, bash, input, lines, port: free_port().to_string(), background: 0 };
        shell.execute("exec 2>&1");
        shell
    }

    /// A path in the current directory of the shell.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("home").join(name)
    }

    /// Saves a file of the chapter.
    pub(super) fn save(&self, name: &str, text: &str, add: bool) {
        let before = if add { std::fs::read_to_string(self.path(name)).unwrap() + "\n" } else { String::new() };
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, before + &self.to_local(text)).unwrap();
    }

    /// Executes a command, and compares its output.
    pub(super) fn check(&mut self, shown: &Shown, eventually: bool) -> Result<(), String> {
        let command = self.to_local(&shown.command);
        if let Some((front, rest)) = background(&command) {
            return self.run_in_background(front, rest, &shown.output);
        }
        let began = Instant::now();
        loop {
            let output = self.execute(&command);
            let printed = self.to_chapter(&output.text);
            if output.code == 0 && fits(&shown.output, &printed) {
                return Ok(());
            }
            if !eventually || began.elapsed() > PATIENCE {
                return Err(format!("it exited with {} and printed:\n{printed}", output.code));
            }
        }
    }

    /// Executes commands whose output is not shown.
    pub(super) fn script(&mut self, text: &str) -> Result<(), String> {
        let output = self.execute(&self.to_local(text));
        match output.code {
            0 => Ok(()),
            code => Err(format!("it exited with {code}: {}", self.to_chapter(&output.text))),
        }
    }

    /// Starts a command in the background, and waits for its expected output.
    fn run_in_background(&mut self, front: &str, rest: &str, shown: &[String]) -> Result<(), String> {
        self.background += 1;
        let out = self.folder.path().join("background").join(self.background.to_string());
        self.execute(&format!("mkfifo {}", out.display()));
        let lines = lines_of(out.clone());
        // The redirection comes first, so that one in the command itself takes precedence.
        self.execute(&format!(">{} 2>&1 {} &{rest}", out.display(), self.with_port(front)));
        let (began, mut printed) = (Instant::now(), String::new());
        while !begins(shown, &self.to_chapter(&printed)) {
            match lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => printed = printed + &line + "\n",
                Err(_) => return Err(format!("it printed:\n{}", self.to_chapter(&printed))),
            }
        }
        Ok(())
    }

    /// Adds a free port to a server command, because the default port may be in use.
    fn with_port(&self, command: &str) -> String {
        if command.contains("--listen") {
            return command.to_owned();
        }
        command.replace("windlass serve", &format!("windlass serve --listen 127.0.0.1:{}", self.port))
    }

    /// Replaces the port of the chapter by that of this shell.
    fn to_local(&self, text: &str) -> String {
        text.replace(PORT, &self.port)
    }

    /// Replaces the port and the home folder of this shell by those of the chapter.
    fn to_chapter(&self, text: &str) -> String {
        let home = self.path("").display().to_string();
        text.replace(&self.port, PORT).replace(home.trim_end_matches('/'), "/home/you")
    }

    fn execute(&mut self, command: &str) -> CommandOutput {
        // Without standard input, the command cannot read the next commands.
        writeln!(self.input, "{{ {command}\n}} </dev/null\nprintf '\\n%s %s\\n' '{OVER}' $?").unwrap();
        let mut lines = Vec::new();
        let began = Instant::now();
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => match line.strip_prefix(OVER) {
                    Some(code) => return CommandOutput { code: code.trim().parse().unwrap(), text: lines.join("\n") },
                    None if is_notice(&line) => {}
                    None => lines.push(line),
                },
                Err(RecvTimeoutError::Timeout) => panic!("{command}: not over within {PATIENCE:?}: {lines:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{command}: the shell has ended: {lines:?}"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The whole group, with the background commands.
        let group = format!("-{}", self.bash.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _ = self.bash.wait();
    }
}

/// The lines of a named pipe. It is read to its end even without a receiver, so that the writer does not block.
fn lines_of(pipe: PathBuf) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let Ok(pipe) = std::fs::File::open(pipe) else { return };
        BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    lines
}

/// Splits a background command such as `windlass serve & server=$!` at the `&`.
fn background(command: &str) -> Option<(&str, &str)> {
    let (front, rest) = command.rsplit_once(" &")?;
    let rest_is_simple = rest.is_empty() || rest.starts_with(' ') && rest.ends_with("=$!");
    (rest_is_simple && !front.ends_with('&')).then_some((front, rest))
}

/// Whether a line is a message of the shell about its jobs.
fn is_notice(line: &str) -> bool {
    line.contains("bash: line ") && ["Killed", "Terminated"].iter().any(|word| line.contains(word))
}

/// A different port for every shell, in this process and in others.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let length = u32::from(PORTS.end - PORTS.start);
    loop {
        let at = (std::process::id() * 101 + NEXT.fetch_add(1, Ordering::Relaxed)) % length;
        let port = PORTS.start + u16::try_from(at).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn background_commands_are_recognized() {
    assert_eq!(background("windlass serve & server=$!"), Some(("windlass serve", " server=$!")));
    assert_eq!(background("windlass serve &"), Some(("windlass serve", "")));
    assert_eq!(background("curl 'a?b&c' && echo"), None);
    assert_eq!(background("a && b"), None);
    assert!(is_notice("bash: line 7: 123 Killed                  windlass serve") && !is_notice("Killed"));
}
