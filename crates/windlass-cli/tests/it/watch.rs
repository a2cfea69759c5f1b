//! `windlass runs watch`

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::world::{PATIENCE, World, exists, has, until};

/// A `runs watch` process and its lines.
fn watch(world: &World, args: &[&str]) -> (Child, Receiver<String>) {
    let mut command = world.command(&[&["runs", "watch"], args].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, lines) = channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    (child, lines)
}

fn wait_for(lines: &Receiver<String>, word: &str) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {word:?} in {seen:?}"));
        let found = line.contains(word);
        seen.push(line);
        if found {
            return seen;
        }
    }
}

#[test]
fn l23_b12_a_watch_continues_across_a_restart_without_gaps_or_repeats() {
    let world = World::new();
    let mut server = world.serve(&[]);
    let run = world.ok(&["-q", "call", "slow", "--detach"]).trim().to_owned();
    until("the attempt is running", || exists(&world.path("slow/started")));
    let (mut child, lines) = watch(&world, &[&run, "--json"]);
    let mut seen = wait_for(&lines, "attempt_started");
    server.child.kill().unwrap();
    server.wait();
    let _server = world.serve(&[]);
    seen.extend(wait_for(&lines, "in_doubt"));
    world.ok(&["inbox", "settle", "--run", &run, "--happened", "1", "--reason", "seen"]);
    seen.extend(wait_for(&lines, "run_finished"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let events: Vec<Value> = seen.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let recorded: Vec<&str> = events.iter().filter_map(|event| event["position"].as_str()).collect();
    let again = world.command(&["--json", "runs", "watch", &run]).output().unwrap();
    let again = String::from_utf8(again.stdout).unwrap();
    let whole: Vec<String> = again
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|event| event["position"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(recorded, whole, "an early and a late watcher see the same events");
    // From a position on, only later events.
    let late = world.command(&["--json", "runs", "watch", &run, "--from", &whole[2]]).output().unwrap();
    assert_eq!(String::from_utf8(late.stdout).unwrap().lines().count(), whole.len() - 3);
}

#[test]
fn l23_a_run_is_watched_before_and_after_a_server_starts() {
    let world = World::new();
    let run = world.ok(&["-q", "call", "echo", "--detach", "--args", r#"{"text": "x"}"#]).trim().to_owned();
    let (mut child, lines) = watch(&world, &[&run[..18]]);
    wait_for(&lines, "run recorded in the store");
    // The watcher does not block the server from opening the file.
    let _server = world.serve(&[]);
    let seen = wait_for(&lines, "run finished (ok)").join("\n");
    has(&seen, &["Echo: done in"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut notes = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut notes).unwrap();
    has(&notes, &["no server drives the run"]);
}

#[test]
fn a_watch_exits_with_the_result_of_its_run() {
    let world = World::new();
    let done = world.run(&["--json", "call", "broken"]);
    let run = serde_json::from_str::<Value>(&done.out).unwrap()["run"].as_str().unwrap().to_owned();
    has(&world.fails(1, &["runs", "watch", &run]), &["Broken: failed", "out of paper"]);
    has(&world.fails(3, &["runs", "watch", "ffffffff"]), &["no run has an id that begins with"]);
    has(&world.fails(2, &["runs", "watch", &run, "--from", "x"]), &["RECORD.INDEX"]);
}
