//! A second process on a file that another process has open: it uses the server, or reports the owner, and does not touch
//! the file or its commands.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::killed::Dice;
use crate::world::{Done, PATIENCE, World, exists, has, until};

/// `windlass call slow`, with its command running.
fn slow_call(world: &World) -> Child {
    let mut command = world.command(&["--json", "call", "slow"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the command has started", || exists(&world.path("slow/started")));
    child
}

fn wait(child: Child) -> Done {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Done { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Sends a signal to a process that may have exited meanwhile.
fn signal(child: &Child, name: &str) {
    let _ = Command::new("kill").args(["-s", name, &child.id().to_string()]).stderr(Stdio::null()).status();
}

/// The number of recorded commands, without the records of their folders.
fn commands(world: &World) -> usize {
    let records = std::fs::read_dir(world.path("windlass.db-commands")).into_iter().flatten();
    records.filter(|record| !record.as_ref().unwrap().file_name().to_string_lossy().starts_with("folder-")).count()
}

#[test]
fn w01_a_second_process_beside_a_call_touches_nothing_of_it() {
    let world = World::new();
    let first = slow_call(&world);
    let owner = format!("process {} ", first.id());
    for second in [
        &["call", "echo", "--args", r#"{"text": "ahoy"}"#][..],
        &["serve", "--listen", "127.0.0.1:0"],
        &["runs", "list"],
    ] {
        has(&world.fails(5, second), &[owner.as_str(), "has had it open"]);
        assert_eq!(commands(&world), 1, "after {second:?}");
    }
    world.write("slow/go", "");
    let done = wait(first);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(world.json(&["runs", "list"])["runs"].as_array().map(Vec::len), Some(1));
}

/// A stopped process is still alive.
#[test]
fn w01_a_stopped_process_keeps_its_command() {
    let world = World::new();
    let first = slow_call(&world);
    signal(&first, "STOP");
    has(&world.fails(5, &["call", "echo", "--args", r#"{"text": "ahoy"}"#]), &["has had it open"]);
    signal(&first, "CONT");
    world.write("slow/go", "");
    let done = wait(first);
    assert_eq!(done.code, 0, "{done:?}");
}

/// The next process on the file ends the commands of a dead one, whichever name of the file each used.
#[test]
fn w01_leftover_commands_are_found_by_every_name_of_the_file() {
    let world = World::new();
    std::os::unix::fs::symlink(world.path("windlass.db"), world.path("other.db")).unwrap();
    world.ok(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]);
    let mut command = world.command(&["--file", "other.db", "call", "slow"]);
    let mut first = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the command has started", || exists(&world.path("slow/started")));
    assert_eq!(commands(&world), 1, "one folder for all names");
    first.kill().unwrap();
    first.wait().unwrap();
    world.ok(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]);
    assert_eq!(commands(&world), 0);
}

/// The charge records its key, and then takes a while.
const BANK: &str = r#"
[tool.charge]
description = "Charges a card, once."
command = ["sh", "-c", "echo $WINDLASS_IDEMPOTENCY_KEY >> ledger; sleep 0.05; cat"]
input = { order = "string" }
dir = "bank"
sandbox = { level = "best_effort" }

[tool.charge.reconcile]
command = ["sh", "-c", "if grep -qxF $WINDLASS_IDEMPOTENCY_KEY ledger; then echo '{\"happened\": \"found\"}'; else echo '{\"did_not_happen\": true}'; fi"]
"#;

/// A user who repeats a command until it succeeds.
struct Terminal<'w> {
    world: &'w World,
    number: u64,
    dice: Dice,
}

impl Terminal<'_> {
    /// Makes charges, and returns the run of each key.
    fn work(mut self, end: Instant) -> BTreeMap<String, String> {
        let mut runs = BTreeMap::new();
        for n in 0.. {
            if n >= 3 && Instant::now() >= end {
                break;
            }
            if self.dice.below(4) == 0 {
                self.inspect();
            }
            let key = format!("t{}.{n}", self.number);
            runs.insert(key.clone(), self.charge(&key));
        }
        runs
    }

    /// Inspects the file, or serves it for a moment. Another terminal may have it open meanwhile.
    fn inspect(&mut self) {
        let args: &[&str] = match self.dice.below(3) {
            0 => &["--json", "serve", "--listen", "127.0.0.1:0"],
            1 => &["runs", "list"],
            _ => &["inbox"],
        };
        let mut command = self.world.command(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if args.contains(&"serve") {
            self.pause(500);
            signal(&child, ["TERM", "KILL"][self.dice.below(2) as usize]);
        }
        let done = wait(child);
        // 3: the file does not exist yet.
        assert!([0, 3, 5, -1].contains(&done.code), "{args:?}: {done:?}");
    }

    /// Charges once, whatever happens to the processes that do it.
    fn charge(&mut self, key: &str) -> String {
        let args = format!(r#"{{"order": "{key}"}}"#);
        let began = Instant::now();
        let mut kills = 0;
        loop {
            assert!(began.elapsed() < PATIENCE, "{key} does not finish");
            let mut command = self.world.command(&["--json", "call", "charge", "--key", key, "--args", &args]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            match self.dice.below(4) {
                // More kills than this would count as a crash loop.
                0 if kills < 2 => {
                    self.pause(300);
                    signal(&child, "KILL");
                    kills += 1;
                }
                1 => {
                    self.pause(200);
                    signal(&child, "STOP");
                    self.pause(400);
                    signal(&child, "CONT");
                }
                _ => {}
            }
            let done = wait(child);
            match done.code {
                0 => {
                    let answer: Value = serde_json::from_str(&done.out).unwrap();
                    return answer["run"].as_str().unwrap().to_owned();
                }
                // Another terminal has the file open, or the process was killed.
                5 | -1 => {}
                // Other processes died at the same operation, so the run is held.
                6 => self.resume(),
                _ => panic!("{key}: {done:?}"),
            }
        }
    }

    fn resume(&self) {
        let listed = self.world.run(&["--json", "runs", "list", "--state", "held"]);
        let listed: Value = serde_json::from_str(&listed.out).unwrap_or_default();
        for run in listed["runs"].as_array().into_iter().flatten() {
            self.world.run(&["runs", "resume", run["id"].as_str().unwrap()]);
        }
    }

    fn pause(&mut self, millis: u64) {
        std::thread::sleep(Duration::from_millis(self.dice.below(millis)));
    }
}

/// Three terminals in one folder, whose processes are killed and stopped at random: for the time that `cargo xtask soak` sets,
/// otherwise for a few calls each.
#[test]
fn w01_l12_second_processes_by_time() {
    let minutes: u64 = std::env::var("WINDLASS_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let world = World::empty();
    world.write("windlass.toml", BANK);
    std::fs::create_dir(world.path("bank")).unwrap();
    world.write("bank/ledger", "");
    let world = &world;
    let terminals: Vec<BTreeMap<String, String>> = std::thread::scope(|scope| {
        let terminal = |number| Terminal { world, number, dice: Dice(13 + number) };
        let terminals: Vec<_> = (0..3).map(|number| scope.spawn(move || terminal(number).work(end))).collect();
        terminals.into_iter().map(|terminal| terminal.join().unwrap()).collect()
    });
    let runs_by_key: BTreeMap<String, String> = terminals.into_iter().flatten().collect();
    let ledger = world.read("bank/ledger");
    for (key, run) in &runs_by_key {
        assert_eq!(ledger.lines().filter(|line| line.starts_with(run.as_str())).count(), 1, "{key}: {ledger}");
    }
    assert_eq!(ledger.lines().count(), runs_by_key.len(), "effects without a call: {ledger}");
    println!("{} charges from three terminals: none lost, none made twice", runs_by_key.len());
}
