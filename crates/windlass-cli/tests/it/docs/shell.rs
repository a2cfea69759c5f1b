//! A reader at a terminal: one shell for a whole chapter, in a folder of its own.

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

/// What the shell says when a command is over, and how it ended.
const OVER: &str = "-- over --";

/// The port the chapters name.
const PORT: &str = "7117";

/// Ports that nobody is given by the system, so that nobody takes one between looking and listening.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

pub(super) struct Shell {
    // Gone last, when nobody works in it any more.
    folder: tempfile::TempDir,
    bash: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    port: String,
    apart: usize,
}

/// What a command printed, and its exit code.
struct Said {
    code: i32,
    text: String,
}

impl Shell {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "apart"] {
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
            // A group of its own, which ends as a whole.
            .process_group(0)
            .spawn()
            .expect("bash can be started");
        let input = bash.stdin.take().unwrap();
        let (say, lines) = channel();
        let output = BufReader::new(bash.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        let mut shell = Self { folder, bash, input, lines, port: free_port().to_string(), apart: 0 };
        shell.say("exec 2>&1");
        shell
    }

    /// Where the reader stands.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("home").join(name)
    }

    /// Saves what a chapter says to save.
    pub(super) fn save(&self, name: &str, text: &str, add: bool) {
        let before = if add { std::fs::read_to_string(self.path(name)).unwrap() + "\n" } else { String::new() };
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, before + &self.here(text)).unwrap();
    }

    /// Types a command, and compares what it prints.
    pub(super) fn type_in(&mut self, shown: &Shown, eventually: bool) -> Result<(), String> {
        let command = self.here(&shown.command);
        if let Some((front, rest)) = apart(&command) {
            return self.leave_running(front, rest, &shown.output);
        }
        let began = Instant::now();
        loop {
            let said = self.say(&command);
            let printed = self.there(&said.text);
            if said.code == 0 && fits(&shown.output, &printed) {
                return Ok(());
            }
            if !eventually || began.elapsed() > PATIENCE {
                return Err(format!("it ended with {} and printed:\n{printed}", said.code));
            }
        }
    }

    /// Types commands whose output is not shown.
    pub(super) fn script(&mut self, text: &str) -> Result<(), String> {
        let said = self.say(&self.here(text));
        if said.code == 0 { Ok(()) } else { Err(format!("it ended with {}: {}", said.code, self.there(&said.text))) }
    }

    /// A command that goes on beside the others. What it prints comes when it comes, and is looked at apart.
    fn leave_running(&mut self, front: &str, rest: &str, shown: &[String]) -> Result<(), String> {
        self.apart += 1;
        let out = self.folder.path().join("apart").join(self.apart.to_string());
        self.say(&format!("mkfifo {}", out.display()));
        let lines = lines_of(out.clone());
        // Before the command, so that one which goes elsewhere by itself still does.
        self.say(&format!(">{} 2>&1 {} &{rest}", out.display(), self.at_our_port(front)));
        let (began, mut printed) = (Instant::now(), String::new());
        while !begins(shown, &self.there(&printed)) {
            match lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => printed = printed + &line + "\n",
                Err(_) => return Err(format!("it printed:\n{}", self.there(&printed))),
            }
        }
        Ok(())
    }

    /// A server listens where the chapters say unless told otherwise; here somebody else may be there.
    fn at_our_port(&self, command: &str) -> String {
        if command.contains("--listen") {
            return command.to_owned();
        }
        command.replace("windlass serve", &format!("windlass serve --listen 127.0.0.1:{}", self.port))
    }

    /// The chapter's words as they are meant here.
    fn here(&self, text: &str) -> String {
        text.replace(PORT, &self.port)
    }

    /// What was printed here in the chapter's words.
    fn there(&self, text: &str) -> String {
        let home = self.path("").display().to_string();
        text.replace(&self.port, PORT).replace(home.trim_end_matches('/'), "/home/you")
    }

    fn say(&mut self, command: &str) -> Said {
        // Nothing reads what is typed next.
        writeln!(self.input, "{{ {command}\n}} </dev/null\nprintf '\\n%s %s\\n' '{OVER}' $?").unwrap();
        let mut lines = Vec::new();
        let began = Instant::now();
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => match line.strip_prefix(OVER) {
                    Some(code) => return Said { code: code.trim().parse().unwrap(), text: lines.join("\n") },
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
        // The group, with whatever the chapter left running.
        let group = format!("-{}", self.bash.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _ = self.bash.wait();
    }
}

/// What somebody writes into a pipe. It is read to its end, also if nobody listens any more: whoever writes is not to stop.
fn lines_of(pipe: PathBuf) -> Receiver<String> {
    let (say, lines) = channel();
    std::thread::spawn(move || {
        let Ok(pipe) = std::fs::File::open(pipe) else { return };
        BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(say.send(line)));
    });
    lines
}

/// A command that is left running, `windlass serve & server=$!`: before the sign and after it.
fn apart(command: &str) -> Option<(&str, &str)> {
    let (front, rest) = command.rsplit_once(" &")?;
    let rest_is_simple = rest.is_empty() || rest.starts_with(' ') && rest.ends_with("=$!");
    (rest_is_simple && !front.ends_with('&')).then_some((front, rest))
}

/// What a shell says about its jobs, each in its own way.
fn is_notice(line: &str) -> bool {
    line.contains("bash: line ") && ["Killed", "Terminated"].iter().any(|word| line.contains(word))
}

/// Another one for every shell, whether they are in one process or in several.
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
fn what_is_left_running_is_told_from_what_ends() {
    assert_eq!(apart("windlass serve & server=$!"), Some(("windlass serve", " server=$!")));
    assert_eq!(apart("windlass serve &"), Some(("windlass serve", "")));
    assert_eq!(apart("curl 'a?b&c' && echo"), None);
    assert_eq!(apart("a && b"), None);
    assert!(is_notice("bash: line 7: 123 Killed                  windlass serve") && !is_notice("Killed"));
}
