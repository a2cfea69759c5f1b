//! `windlass demo`

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{World, has, no_trace, until};

/// The demo must finish within this time if it is unattended.
const LIMIT: Duration = Duration::from_secs(20);

/// The JSON document in the last line.
fn report(out: &str) -> Value {
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[test]
fn w01_w02_the_demo_proves_what_it_says_three_times() {
    let world = World::empty();
    // `cargo xtask soak` sets more.
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
                "the tool's reconcile function found the charge in the bank's ledger",
                "✓ charges in the bank's ledger: 1\n",
                "░",
                "█",
                "╎ a process died",
                "runs show",
            ],
        );
        assert!(!done.out.contains('✗') && !done.out.contains('\u{1b}'), "{}", done.out);
        assert_eq!(world.read(&format!("demo-{round}/ledger.jsonl")).lines().count(), 1);
    }
    // The printed commands work without a server.
    let shown = world.ok(&["--file", "demo-0/demo.db", "runs", "list"]);
    has(&shown, &["book_trip", "ok"]);
}

#[test]
fn a_demo_with_json_output_ends_with_its_claims() {
    let world = World::empty();
    let done = world.run(&["--json", "demo", "--yes", "--dir", "d"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let report = report(&done.out);
    assert_eq!(report["ok"], true, "{report}");
    assert!(report["claims"].as_array().unwrap().iter().all(|claim| claim["holds"] == true), "{report}");
    let run = report["run"].as_str().unwrap().to_owned();
    let shown = world.ok(&["--file", "d/demo.db", "runs", "show", &run]);
    has(&shown, &["book_trip", "charge", "doubt settled by the tool itself", "the process that drove the run died"]);
}

#[test]
fn w02_a_denied_charge_is_not_made() {
    let world = World::empty();
    for answer in ["n\n", ""] {
        let done = world.run_with(&["demo", "--dir", "d"], answer);
        assert_eq!(done.code, 0, "{}{}", done.out, done.err);
        has(&done.out, &["Charge Ada", "[y/N]", "charges in the bank's ledger: 0", "denied"]);
        assert_eq!(world.read("d/ledger.jsonl"), "");
    }
    let done = world.run_with(&["demo", "--dir", "d"], "y\n");
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert_eq!(world.read("d/ledger.jsonl").lines().count(), 1);
}

/// Pseudo-random durations, which are the same in every run of the test.
fn moments(seed: u64) -> impl Iterator<Item = Duration> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(Duration::from_millis((state >> 33) % 5_000))
    })
}

/// The processes that run in the demo's folder.
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
        // A sleep on purpose: the demo must survive a kill at any time.
        std::thread::sleep(moment);
        child.kill().unwrap();
        child.wait().unwrap();
        until("its server has exited, too", || servers(&world).is_empty().then_some(()));
    }
    let done = world.run(&["demo", "--yes", "--dir", "d"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    no_trace(&done);
    // The killed demos have not charged anything twice.
    let ledger = world.read("d/ledger.jsonl");
    let mut keys: Vec<Value> =
        ledger.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone()).collect();
    let all = keys.len();
    keys.sort_by_key(ToString::to_string);
    keys.dedup();
    assert_eq!(keys.len(), all, "{ledger}");
}

#[test]
fn an_interrupted_demo_stops_its_server() {
    let world = World::empty();
    let mut command = world.command(&["demo", "--yes", "--dir", "d"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    until("its server runs", || (!servers(&world).is_empty()).then_some(()));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    until("its server has exited", || servers(&world).is_empty().then_some(()));
}
