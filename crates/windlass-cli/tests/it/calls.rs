//! `windlass call`

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{Backend, World, both_ways, exists, has, until};

#[test]
fn b10_a_tool_is_called_on_a_file_and_through_a_server() {
    both_ways(|world, _| {
        let out = world.ok(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]);
        assert_eq!(out.trim(), "{\n  \"text\": \"ahoy\"\n}");
        let answer = world.json(&["call", "echo", "--args", r#"{"text": "ahoy", "times": 2}"#]);
        assert_eq!(answer["outcome"]["value"], json!({"text": "ahoy", "times": 2}));
        assert!(answer["run"].as_str().is_some_and(|run| run.len() == 36), "{answer}");
    });
}

#[test]
fn arguments_come_from_files_and_from_standard_input() {
    let world = World::new();
    world.write("args.json", r#"{"text": "from a file"}"#);
    has(&world.ok(&["call", "echo", "--args", "@args.json"]), &["from a file"]);
    let done = world.run_with(&["call", "echo", "--args", "-"], r#"{"text": "from a pipe"}"#);
    assert_eq!(done.code, 0, "{}", done.err);
    has(&done.out, &["from a pipe"]);
}

#[test]
fn e02_a_failed_call_exits_with_one_and_its_message() {
    both_ways(|world, _| {
        has(&world.fails(1, &["call", "broken"]), &["failed: ", "out of paper"]);
        let done = world.run(&["--json", "call", "broken"]);
        assert_eq!(done.code, 1);
        let answer: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(answer["outcome"]["error"]["kind"], "failed", "{answer}");
        let text = world.fails(1, &["call", "echo", "--args", r#"{"text": 7, "tims": 1}"#]);
        has(&text, &["invalid_arguments", "/text", "did you mean `times`?"]);
        assert_eq!(text.matches("is not of type").count(), 1, "{text}");
    });
}

#[test]
fn l12_a_key_never_starts_a_second_run() {
    both_ways(|world, _| {
        let call = |text: &str| {
            world.run(&["--json", "call", "echo", "--key", "k1", "--args", &json!({"text": text}).to_string()])
        };
        let run =
            |done: &crate::world::Done| serde_json::from_str::<serde_json::Value>(&done.out).unwrap()["run"].clone();
        let (first, second) = (call("a"), call("a"));
        assert_eq!(run(&first), run(&second));
        let other = call("b");
        assert_eq!(other.code, 4, "{}{}", other.out, other.err);
        has(&other.err, &["key_reused", "another"]);
        has(
            &world.fails(2, &["call", "echo", "--key", "two words", "--args", r#"{"text": "a"}"#]),
            &["visible ASCII characters"],
        );
    });
}

#[test]
fn w02_a_call_that_waits_for_a_person_is_reported_and_not_lost() {
    let world = World::new();
    let text = world.fails(6, &["call", "pay", "--args", r#"{"to": "Ada", "cents": 500}"#]);
    has(&text, &["has been waiting", "args.cents > 100", "windlass inbox", "the run is not finished"]);
    let listed = world.json(&["runs", "list", "--state", "inbox"]);
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{listed}");
    let server = world.serve(&[]);
    let text = world.fails(6, &["call", "pay", "--wait=100ms", "--args", r#"{"to": "Ada", "cents": 600}"#]);
    has(&text, &["has been waiting"]);
    drop(server);
}

/// A process that has the file open must not wait for a person, who could not open it.
#[test]
fn w01_a_call_in_doubt_on_a_file_is_reported_at_once() {
    let world = World::new();
    let config = world.read("windlass.toml").replace("[tool.slow]", "[tool.slow]\ntimeout = \"300ms\"");
    world.write("windlass.toml", &config);
    let baseline = Instant::now();
    world.ok(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]);
    let (baseline, began) = (baseline.elapsed(), Instant::now());
    let text = world.fails(6, &["call", "slow"]);
    let took = began.elapsed().saturating_sub(baseline);
    has(&text, &["it is unknown whether attempt 1 of call of tool `slow` took effect", "timed out", "windlass inbox"]);
    assert!(took < Duration::from_secs(3), "{took:?}, of which 300 ms are the tool's");
}

#[test]
fn a_detached_call_is_driven_by_the_next_server() {
    let world = World::new();
    let done = world.run(&["call", "echo", "--detach", "--session", "s1", "--args", r#"{"text": "later"}"#]);
    assert_eq!(done.code, 0, "{}", done.err);
    has(&done.err, &["windlass serve"]);
    let run = done.out.trim().to_owned();
    assert_eq!(world.json(&["runs", "show", &run])["run"]["state"], "queued");
    let _server = world.serve(&[]);
    let shown = until("the run finishes", || {
        let shown = world.json(&["runs", "show", &run]);
        (shown["run"]["state"] == "finished").then_some(shown)
    });
    assert_eq!(shown["run"]["outcomes"][0]["value"]["text"], "later");
    assert_eq!(shown["run"]["session"], "s1");
}

#[test]
fn an_interrupted_call_continues_in_the_server() {
    let world = World::new();
    let server = world.serve(&[]);
    let mut command = world.command(&["call", "slow", "--key", "slow", "--args", "{}"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    until("the attempt is running", || exists(&world.path("slow/started")));
    server.has_been_asked_for_an_outcome(None);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let run = world.json(&["runs", "list"])["runs"][0]["id"].as_str().unwrap().to_owned();
    let expected = format!(
        "run {run} continues on the server; see it with `windlass runs show {run}`, or stop it with `windlass runs cancel {run}`\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "nothing else, because it is not a terminal");
    has(&world.ok(&["runs", "explain", "--key", "slow"]), &[&run, "attempt 1 of call of tool `slow` started"]);
    world.write("slow/go", "");
    has(&world.ok(&["call", "slow", "--key", "slow"]), &["{}"]);
    drop(server);
}

#[test]
fn a_second_interrupt_ends_a_call_on_a_file_and_loses_nothing() {
    let world = World::new();
    let mut child = world.command(&["call", "slow", "--key", "slow"]).spawn().unwrap();
    until("the attempt is running", || exists(&world.path("slow/started")));
    let pid = child.id().to_string();
    let code = until("it exits", || {
        Command::new("kill").args(["-s", "INT", &pid]).status().unwrap();
        child.try_wait().unwrap()
    });
    assert_eq!(code.code(), Some(130));
    let listed = world.json(&["runs", "list", "--tool", "slow"]);
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_ne!(listed["runs"][0]["state"], "finished");
}

#[test]
fn an_interrupted_call_on_a_file_prints_at_once_what_it_waits_for() {
    let world = World::new();
    let mut command = world.command(&["call", "slow"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    until("the attempt is running", || exists(&world.path("slow/started")));
    let pid = child.id().to_string();
    let interrupt = || assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let began = Instant::now();
    interrupt();
    let mut note = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut note).unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let expected = "waiting up to 10 s for the attempt in flight to end; press Ctrl-C again to stop now; \
                    the call will then be in doubt\n";
    assert_eq!(note, expected);
    interrupt();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(6), "a second interrupt does not wait: {:?}", began.elapsed());
}

#[test]
fn quiet_prints_only_the_result() {
    both_ways(|world, backend| {
        let done = world.run(&["-q", "call", "echo", "--detach", "--args", r#"{"text": "x"}"#]);
        assert_eq!(done.err, "", "{backend:?}");
        assert_eq!(done.out.trim().len(), 36);
        if backend == Backend::Server {
            until("it exits", || {
                (world.json(&["runs", "show", done.out.trim()])["run"]["state"] == "finished").then_some(())
            });
        }
    });
}

/// A terminal: the end that a program writes to, and the end that shows it.
fn terminal() -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&shown).unwrap();
    unlockpt(&shown).unwrap();
    let name = ptsname(&shown, Vec::new()).unwrap().into_string().unwrap();
    let written = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    (written, shown.into())
}

#[test]
fn a_call_shows_on_a_terminal_what_it_waits_for() {
    both_ways(|world, backend| {
        let (written, mut shown) = terminal();
        let mut command = world.command(&["call", "slow"]);
        let mut child = command.stdout(Stdio::piped()).stderr(written).spawn().unwrap();
        drop(command);
        let mut text = String::new();
        until("it says what it waits for", || {
            let mut part = [0; 1_000];
            let read = shown.read(&mut part).unwrap();
            text.push_str(&String::from_utf8_lossy(&part[..read]));
            text.contains("waiting for call of tool `slow` … ").then_some(())
        });
        world.write("slow/go", "");
        let mut rest = String::new();
        // Reading from a terminal that no program has open any more is an error.
        let _ = shown.read_to_string(&mut rest);
        assert!(rest.ends_with("\r\u{1b}[K"), "{backend:?}: the line is removed at the end: {rest:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    });
}
