//! `windlass demo`

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{World, has, no_trace, until};

/// The demo must be over by then, unattended.
const LIMIT: Duration = Duration::from_secs(20);

/// What the demo proved, in the words of its last line.
fn proven(out: &str) -> Value {
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[test]
fn w01_w02_the_demo_proves_what_it_says_three_times() {
    let world = World::empty();
    // `cargo xtask soak` asks for more.
    let rounds = std::env::var("WINDLASS_SOAK_DEMOS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        let began = Instant::now();
        let done = world.run(&["demo", "--yes", "--dir", &format!("demo-{round}")]);
        assert_eq!(done.code, 0, "{}{}", done.out, done.err);
        assert!(began.elapsed() < LIMIT, "it took {:?}", began.elapsed());
        has(
            &done.out,
            &[
                "five searches, two at a time",
                "ms queued",
                "waits for approval",
                "args.cents > 10000",
                "kill -9",
                "signal: 9",
                "in doubt",
                "the tool's reconcile looked into the bank's ledger",
                "✓ effects counted by the bank: 1\n",
                "░",
                "█",
                "╎ a process died",
                "runs show",
            ],
        );
        assert!(!done.out.contains('✗') && !done.out.contains('\u{1b}'), "{}", done.out);
        assert_eq!(world.read(&format!("demo-{round}/ledger.jsonl")).lines().count(), 1);
    }
    // The commands it names work, without a server.
    let shown = world.ok(&["--file", "demo-0/demo.db", "runs", "list"]);
    has(&shown, &["book_trip", "ok"]);
}

#[test]
fn a_demo_for_programs_ends_with_what_was_proven() {
    let world = World::empty();
    let done = world.run(&["--json", "demo", "--yes", "--dir", "d"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let proven = proven(&done.out);
    assert_eq!(proven["ok"], true, "{proven}");
    assert!(proven["proven"].as_array().unwrap().iter().all(|claim| claim["holds"] == true), "{proven}");
    // Its ordinary place is a folder of its own.
    let run = proven["run"].as_str().unwrap().to_owned();
    let shown = world.ok(&["--file", "d/demo.db", "runs", "show", &run]);
    has(&shown, &["book_trip", "charge", "the doubt was settled by the tool itself", "the process that drove it died"]);
}

#[test]
fn w02_whoever_says_no_is_not_charged() {
    let world = World::empty();
    for answer in ["n\n", ""] {
        let done = world.run_with(&["demo", "--dir", "d"], answer);
        assert_eq!(done.code, 0, "{}{}", done.out, done.err);
        has(&done.out, &["Charge Ada", "[y/N]", "effects counted by the bank: 0", "denied"]);
        assert_eq!(world.read("d/ledger.jsonl"), "");
    }
    let done = world.run_with(&["demo", "--dir", "d"], "y\n");
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert_eq!(world.read("d/ledger.jsonl").lines().count(), 1);
}

/// A small generator with a fixed seed: the moments differ, and are the same in every run of the test.
fn moments(seed: u64) -> impl Iterator<Item = Duration> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(Duration::from_millis((state >> 33) % 5_000))
    })
}

/// Processes that have this folder open as the demo's file.
fn servers(world: &World) -> Vec<String> {
    let wanted = world.path("d").canonicalize().map(|path| path.display().to_string()).unwrap_or_default();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let of = |entry: std::fs::DirEntry| {
        let folder = std::fs::read_link(entry.path().join("cwd")).ok()?;
        (folder.display().to_string() == wanted).then(|| entry.file_name().to_string_lossy().into_owned())
    };
    processes.filter_map(of).collect()
}

#[test]
fn w01_a_demo_that_was_killed_at_any_moment_leaves_nothing_in_the_way_of_the_next() {
    let world = World::empty();
    for moment in moments(7).take(5) {
        let mut command = world.command(&["demo", "--yes", "--dir", "d"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // By time on purpose: any moment must do.
        std::thread::sleep(moment);
        child.kill().unwrap();
        child.wait().unwrap();
        until("its server is gone, too", || servers(&world).is_empty().then_some(()));
    }
    let done = world.run(&["demo", "--yes", "--dir", "d"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    no_trace(&done);
    // Whatever the killed ones had begun, no booking was paid twice.
    let ledger = world.read("d/ledger.jsonl");
    let mut keys: Vec<Value> =
        ledger.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone()).collect();
    let all = keys.len();
    keys.sort_by_key(ToString::to_string);
    keys.dedup();
    assert_eq!(keys.len(), all, "{ledger}");
}

#[test]
fn an_interrupted_demo_ends_its_server() {
    let world = World::empty();
    let mut command = world.command(&["demo", "--yes", "--dir", "d"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    until("its server is there", || (!servers(&world).is_empty()).then_some(()));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    until("its server is gone", || servers(&world).is_empty().then_some(()));
}
