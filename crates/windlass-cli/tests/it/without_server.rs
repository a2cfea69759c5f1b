//! Commands on a file that no server has open: they drive the run that they are about, and leave the others as they are.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::prelude::*;
use windlass::run::Filter;

use crate::world::{World, exists, has, until};

/// Sleeps for a moment. The tool is in no config, so a process of the command line would hold its run.
#[tool]
async fn nap(ctx: &mut Ctx) -> ToolResult<u32> {
    ctx.sleep(SLEEP).await?;
    Ok(1)
}

const CONFIG: &str = r#"
[policy]
attended = true

[tool.echo]
description = "Returns its arguments."
command = ["sh", "-c", "echo echo >> effects; cat"]
input = { text = "string?" }
dir = "work"
sandbox = { level = "best_effort" }

[tool.pay]
description = "Pays something, after asking."
command = ["sh", "-c", "echo pay >> effects; cat"]
input = { cents = "integer" }
approval = "args.cents > 100"
dir = "work"
sandbox = { level = "best_effort" }

# Waits for a file, so that a test decides when it ends.
[tool.slow]
description = "Waits for a file named go."
command = ["sh", "-c", "echo slow >> effects; touch started; while [ ! -e go ]; do sleep 0.02; done; cat"]
concurrency = "'till'"
dir = "work"
sandbox = { level = "best_effort" }

# The same without a key.
[tool.brief]
description = "Waits for a file named go."
command = ["sh", "-c", "echo brief >> effects; touch started; while [ ! -e go ]; do sleep 0.02; done; cat"]
dir = "work"
sandbox = { level = "best_effort" }
"#;

/// A file with a run that a killed server left in the middle of an attempt, a run whose sleep is over, a queued run, and a
/// run with an approval that is decided.
struct LeftRuns {
    world: World,
    /// The interrupted run, the sleeper, the queued run, and the decided one.
    runs: [String; 4],
}

impl LeftRuns {
    fn new() -> Self {
        let world = World::empty();
        world.write("windlass.toml", CONFIG);
        std::fs::create_dir(world.path("work")).unwrap();
        let mut server = world.serve(&[]);
        let decided = world.ok(&["-q", "call", "pay", "--args", r#"{"cents": 500}"#, "--detach"]).trim().to_owned();
        until("it waits for approval", || {
            (world.json(&["runs", "show", &decided])["run"]["state"] == "suspended").then_some(())
        });
        let interrupted = world.ok(&["-q", "call", "slow", "--detach"]).trim().to_owned();
        until("the attempt has started", || exists(&world.path("work/started")));
        server.child.kill().unwrap();
        server.wait();
        let sleeper = asleep(&world);
        let queued = world.ok(&["-q", "call", "echo", "--detach"]).trim().to_owned();
        world.ok(&["-q", "inbox", "approve", "--run", &decided]);
        Self { world, runs: [interrupted, sleeper, queued, decided] }
    }

    /// Everything that is stored about the runs.
    fn stored(&self) -> Vec<Value> {
        let mut all = Vec::new();
        for run in &self.runs {
            let mut shown = self.world.json(&["runs", "show", run])["run"].clone();
            // The sentence contains the current time.
            shown.as_object_mut().unwrap().remove("sentence");
            let journal = self.world.json(&["runs", "show", run, "--journal"])["journal"].clone();
            all.push(json!({ "run": shown, "journal": journal }));
        }
        all
    }

    fn effects(&self) -> Vec<String> {
        self.world.read("work/effects").lines().map(str::to_owned).collect()
    }
}

/// How long the sleeper sleeps. Its process has closed the file by then.
const SLEEP: Duration = Duration::from_millis(1_500);

/// A run that another program suspended, and whose sleep is over.
fn asleep(world: &World) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let began = Instant::now();
    let run = runtime.block_on(async {
        let opening = Windlass::open(world.path("windlass.db")).tool(nap).suspend_after(Duration::ZERO);
        let windlass = opening.own_runs_only().await.unwrap();
        let run = windlass.start(nap::call()).await.unwrap().id();
        while windlass.list(Filter::suspended(), None, 9).await.unwrap().iter().all(|info| info.run != run) {
            tokio::task::yield_now().await;
        }
        windlass.shutdown().await.unwrap();
        run.to_string()
    });
    until("the sleep is over", || (began.elapsed() > SLEEP + Duration::from_millis(100)).then_some(()));
    run
}

/// Starts a command in the background, whose run is in the middle of an attempt.
fn slow_call(world: &World, args: &[&str]) -> std::process::Child {
    std::fs::remove_file(world.path("work/started")).unwrap();
    let mut command = world.command(args);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the attempt has started", || exists(&world.path("work/started")));
    child
}

#[test]
fn w01_a_command_without_a_server_leaves_other_runs_as_they_are() {
    let left = LeftRuns::new();
    let (world, before) = (&left.world, left.stored());
    let states: Vec<&str> = before.iter().map(|one| one["run"]["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["running", "suspended", "queued", "suspended"]);
    // A call that ends, one that fails, and one that waits for a person.
    has(&world.ok(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]), &["ahoy"]);
    world.fails(6, &["call", "pay", "--args", r#"{"cents": 700}"#]);
    assert_eq!(left.stored(), before);
    assert_eq!(left.effects(), ["slow", "echo"]);
    // A call that is killed in the middle.
    let mut killed = slow_call(world, &["call", "brief", "--key", "brief"]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(left.stored(), before);
    assert_eq!(left.effects(), ["slow", "echo", "brief"]);
    // The same call again continues its own run: the attempt is in doubt.
    has(&world.fails(6, &["call", "brief", "--key", "brief"]), &["it is unknown whether attempt 1"]);
    assert_eq!((left.stored(), left.effects().len()), (before, 3));
    // The next server continues all of them.
    let [interrupted, sleeper, queued, decided] = &left.runs;
    let server = world.serve(&[]);
    for run in [queued, decided] {
        until("it ends", || (world.json(&["runs", "show", run])["run"]["state"] == "finished").then_some(()));
    }
    let doubts = world.json(&["inbox", "--kind", "doubt", "--run", interrupted]);
    has(&doubts.to_string(), &["the worker was lost"]);
    until("it is held", || (world.json(&["runs", "show", sleeper])["run"]["state"] == "held").then_some(()));
    let mut effects = left.effects();
    effects.sort();
    assert_eq!(effects, ["brief", "echo", "echo", "pay", "slow"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn w01_resume_without_a_server_drives_one_run() {
    let left = LeftRuns::new();
    let (world, mut before) = (&left.world, left.stored());
    let [interrupted, _, queued, decided] = &left.runs;
    // A run that waits is not resumed.
    for (run, why) in [(queued, "it starts when a worker claims it"), (decided, "the approval by local is recorded")] {
        has(&world.fails(4, &["runs", "resume", run]), &["the run is not held", why]);
    }
    assert_eq!(left.stored(), before);
    let done = world.run(&["runs", "resume", interrupted]);
    assert_eq!(done.code, 0, "{done:?}");
    has(&done.out, &["resumed"]);
    has(&done.err, &["it is unknown whether attempt 1 of call of tool `slow` took effect"]);
    let mut after = left.stored();
    assert_eq!(after[0]["run"]["epoch"], 2, "it had a second owner");
    assert_eq!((after.split_off(1), left.effects()), (before.split_off(1), vec!["slow".to_owned()]));
}

#[test]
fn e09_a_call_that_queues_behind_a_run_without_a_server_names_that_run() {
    let left = LeftRuns::new();
    let (world, before) = (&left.world, left.stored());
    let text = world.fails(6, &["call", "slow"]);
    let interrupted = &left.runs[0];
    has(&text, &["key `till`", &format!("this process leaves run {interrupted} as it is")]);
    assert_eq!((left.stored(), left.effects()), (before, vec!["slow".to_owned()]));
}

#[test]
fn w12_decisions_and_dead_owners_are_shown_without_a_server() {
    let left = LeftRuns::new();
    let world = &left.world;
    let [interrupted, _, queued, decided] = &left.runs;
    for (run, words) in [
        (interrupted, &["the process that drove it is gone", "`resume` continues it here"][..]),
        (queued, &["it starts when a worker claims it"]),
        (decided, &["the approval by local is recorded", "the next process that drives the run applies it"]),
    ] {
        let done = world.run(&["runs", "explain", run]);
        has(&done.out, words);
        has(&done.err, &["start one with `windlass serve`"]);
    }
    let text = world.ok(&["inbox", "--run", decided]);
    has(&text, &["the approval by local is recorded; the next server applies it", "`windlass serve`"]);
    assert!(!text.contains("inbox approve"), "{text}");
    assert_eq!(world.json(&["inbox", "--run", decided])["items"][0]["recorded"], "the approval by local");
}
