//! `windlass serve`

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::world::{World, exists, has, until};

#[test]
fn a_server_prints_its_address_when_it_is_ready() {
    let world = World::new();
    let mut server = world.serve(&[]);
    assert_eq!(server.ready["ready"], true);
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
    assert_eq!(server.ready["pid"], server.child.id());
    assert!(server.child.try_wait().unwrap().is_none());
    // Commands find it by the file, and by its address.
    world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
    let elsewhere = World::empty();
    let listed = elsewhere.json(&["--server", &server.url, "runs", "list"]);
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1));
    let by_variable = elsewhere.command(&["runs", "list"]).env("WINDLASS_SERVER", &server.url).output().unwrap();
    assert!(by_variable.status.success());
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_server_prints_one_line_for_people() {
    let world = World::new();
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    has(&line, &["windlass serves", "windlass.db at http://127.0.0.1:"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_server_that_is_asked_to_stop_shuts_down_cleanly() {
    let world = World::new();
    let server = world.serve(&[]);
    let run = world.ok(&["-q", "call", "slow", "--detach"]).trim().to_owned();
    until("the attempt is running", || exists(&world.path("slow/started")));
    server.signal("TERM");
    // It waits for the running attempt.
    world.write("slow/go", "");
    let mut server = server;
    assert_eq!(server.wait(), 0);
    let shown = world.json(&["runs", "show", &run]);
    assert_eq!(shown["run"]["state"], "finished", "{shown}");
    assert_eq!(shown["run"]["epoch"], 1, "no other process had to recover it");
}

/// Imitates a server that was just killed: its lock is still held, and names its address.
fn lock_of_killed_server(world: &World) -> std::fs::File {
    let lock = std::fs::File::create(world.path("windlass.db-lock")).unwrap();
    lock.lock().unwrap();
    world.write("windlass.db-lock", "1 2026-01-01T00:00:00Z windlass\naddress http://127.0.0.1:1\n");
    lock
}

/// Waits for the note that the command waits. Returns the rest of standard error, which must stay open.
fn expect_waiting_note(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let note = lines.find(|line| line.contains("does not respond"));
    has(&note.expect("it prints that it waits"), &["waiting up to 3 s"]);
    lines
}

#[test]
fn a_new_server_waits_for_a_killed_one_to_be_gone() {
    let world = World::new();
    let lock = lock_of_killed_server(&world);
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _stderr = expect_waiting_note(&mut child);
    drop(lock);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    has(&line, &["windlass serves"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn commands_wait_for_a_killed_server_to_be_gone() {
    let world = World::new();
    world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
    let lock = lock_of_killed_server(&world);
    let mut command = world.command(&["--json", "runs", "list"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _stderr = expect_waiting_note(&mut child);
    drop(lock);
    let listed = child.wait_with_output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_second_interrupt_stops_a_server_at_once() {
    let world = World::new();
    let mut server = world.serve(&[]);
    world.ok(&["-q", "call", "slow", "--detach"]);
    until("the attempt is running", || exists(&world.path("slow/started")));
    server.signal("INT");
    // Until the first signal is handled, a second one may be merged with it.
    let began = Instant::now();
    let code = until("the server exits", || {
        if began.elapsed().as_millis() > 200 {
            server.signal("INT");
        }
        server.child.try_wait().unwrap()
    });
    assert_eq!(code.code(), Some(130));
}

#[test]
fn a_changed_config_is_reloaded_on_a_signal_and_automatically() {
    let world = World::new();
    let server = world.serve(&[]);
    let tools = || -> Vec<String> {
        let list = world.json(&["tools", "list"]);
        list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let config = world.read("windlass.toml");
    world.write("windlass.toml", &config.replace("[tool.echo]", "[tool.parrot]"));
    server.signal("HUP");
    until("the new tool is there", || tools().contains(&"parrot".to_owned()).then_some(()));
    // Without a signal, the change is noticed by itself.
    world.write("windlass.toml", &config);
    until("the old tool is back", || tools().contains(&"echo".to_owned()).then_some(()));
    // An invalid file changes nothing.
    world.write("windlass.toml", "[tool.echo");
    server.signal("HUP");
    world.ok(&["--server", &server.url, "call", "echo", "--args", r#"{"text": "still here"}"#]);
}

#[test]
fn w04_a_run_continues_when_its_tool_is_back_in_the_config() {
    let world = World::new();
    let server = world.serve(&[]);
    let run =
        world.ok(&["-q", "call", "pay", "--args", r#"{"to": "Ada", "cents": 500}"#, "--detach"]).trim().to_owned();
    until("it waits for approval", || (world.json(&["inbox"])["items"] != serde_json::json!([])).then_some(()));
    let tools = || world.json(&["tools", "list"])["tools"].as_array().map_or(0, Vec::len);
    let state = || world.json(&["runs", "show", &run])["run"]["state"].clone();
    until("it is suspended", || (state() == "suspended").then_some(()));
    let config = world.read("windlass.toml");
    world.write("windlass.toml", "");
    server.signal("HUP");
    until("the tool is removed", || (tools() == 0).then_some(()));
    world.ok(&["inbox", "approve", "--run", &run]);
    until("it is held", || (state() == "held").then_some(()));
    world.write("windlass.toml", &config);
    server.signal("HUP");
    until("it has finished", || (state() == "finished").then_some(()));
}

#[test]
fn e26_a_public_address_needs_tokens() {
    let world = World::new();
    let text = world.fails(4, &["serve", "--listen", "0.0.0.0:0"]);
    has(&text, &["token", "127.0.0.1"]);
    let token = world.ok(&["-q", "token", "create", "ada", "--scope", "admin,read"]).trim().to_owned();
    let server = world.serve_at("0.0.0.0:0", &[]);
    assert_eq!(world.run(&["--token", &token, "runs", "list"]).code, 0);
    assert_eq!(world.run(&["runs", "list"]).code, 4);
    drop(server);
}

#[test]
fn a_supervised_server_exits_with_its_supervisor() {
    let world = World::new();
    let mut server = world.serve_demo();
    drop(server.child.stdin.take());
    assert_eq!(server.wait(), 0);
}

#[test]
fn the_log_goes_to_standard_error_at_the_chosen_level() {
    let world = World::new();
    let mut command = world.command(&["--json", "-v", "serve", "--listen", "127.0.0.1:0"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let pid = ready["pid"].to_string();
    assert!(std::process::Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(child.wait().unwrap().success());
    has(&log, &["INFO"]);
    assert!(!log.contains('\u{1b}'), "no colours in a pipe: {log}");
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    let wrong = world.command(&["serve"]).env("WINDLASS_LOG", "windlass=loud").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
