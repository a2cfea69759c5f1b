//! `windlass sessions`, on a file and through a server

use serde_json::json;

use crate::world::{World, exists, has, until};

#[test]
fn l20_a_session_is_opened_written_shown_closed_and_purged_on_a_file() {
    let world = World::new();
    has(&world.ok(&["sessions", "open", "ada", "--title", "Trip to Rome"]), &["ada  open", "title: Trip to Rome"]);
    has(&world.fails(3, &["sessions", "show", "bob"]), &["no session \"bob\""]);
    assert_eq!(world.ok(&["sessions", "send", "ada", "hello there"]), "message 1\n");
    let again = ["sessions", "send", "ada", "I am an agent", "--author", "agent", "--key", "k"];
    assert_eq!(world.ok(&again), "message 2\n");
    assert_eq!(world.ok(&again), "message 2 (posted before)\n");
    let shown = world.ok(&["sessions", "show", "ada"]);
    has(&shown, &["ada  open", "title: Trip to Rome", "1  user: hello there", "2  agent: I am an agent"]);
    assert!(!world.ok(&["sessions", "show", "ada", "--last", "1"]).contains("hello there"));
    has(&world.ok(&["sessions", "list"]), &["SESSION", "ada", "open", "Trip to Rome"]);
    let json = world.json(&["sessions", "list", "--open"]);
    assert_eq!((&json["sessions"][0]["messages"], &json["more"]), (&json!(2), &json!(false)));
    has(&world.fails(4, &["sessions", "purge", "ada"]), &["is open and cannot be purged"]);
    assert_eq!(world.ok(&["sessions", "close", "ada", "--reason", "we are back"]), "ada closed\n");
    has(&world.fails(4, &["sessions", "send", "ada", "late"]), &["session \"ada\" is closed"]);
    has(
        &world.fails(4, &["call", "pay", "--session", "ada", "--args", "{\"to\":\"Ada\",\"cents\":1}"]),
        &["is closed"],
    );
    has(&world.ok(&["sessions", "show", "ada"]), &["ada  closed: we are back"]);
    assert_eq!(world.json(&["sessions", "list", "--open"])["sessions"], json!([]));
    assert_eq!(world.ok(&["sessions", "purge", "ada"]), "ada purged\n");
    has(&world.fails(3, &["sessions", "purge", "ada"]), &["no session"]);
}

#[test]
fn e27_data_and_secrets_are_managed_through_a_server() {
    let world = World::new();
    let server = world.serve(&[]);
    world.ok(&["sessions", "open", "ada"]);
    assert_eq!(world.ok(&["sessions", "data", "set", "ada", "cart", "{\"items\": [1]}"]), "cart set\n");
    assert_eq!(world.json(&["sessions", "data", "get", "ada", "cart"]), json!({"items": [1]}));
    assert_eq!(world.ok(&["sessions", "data", "list", "ada"]), "cart\n");
    has(&world.fails(2, &["sessions", "data", "set", "ada", "cart", "{"]), &["the value"]);
    let secret = world.path("token.txt");
    std::fs::write(&secret, "s3cret\n").unwrap();
    let set = ["sessions", "secrets", "set", "ada", "token", "--from", secret.to_str().unwrap()];
    assert_eq!(world.ok(&set), "token set\n");
    assert_eq!(world.ok(&["sessions", "secrets", "list", "ada"]), "token\n");
    assert_eq!(world.ok(&["sessions", "secrets", "delete", "ada", "token"]), "token deleted\n");
    assert_eq!(world.ok(&["sessions", "data", "delete", "ada", "cart"]), "cart deleted\n");
    has(&world.fails(3, &["sessions", "data", "get", "ada", "cart"]), &["no value"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn l20_b02_the_tools_of_a_session_are_shown_and_changed() {
    let world = World::new();
    world.ok(&["sessions", "open", "ada"]);
    has(&world.fails(3, &["sessions", "tools", "bob"]), &["no session \"bob\""]);
    let tools = |more: &[&str]| world.json(&[&["sessions", "tools", "ada"], more].concat());
    has(&world.ok(&["sessions", "tools", "ada"]), &["ada shows all tools", "can be called: "]);
    let all = tools(&[])["tools"].clone();
    let hidden = world.ok(&["sessions", "tools", "ada", "--hide", "pay", "planned"]);
    has(&hidden, &["ada shows all tools", "hidden: pay, planned"]);
    let call = ["call", "pay", "--session", "ada", "--args", "{\"to\":\"Ada\",\"cents\":1}"];
    has(&world.fails(1, &call), &["session \"ada\" hides the tool `pay`"]);
    let listed = world.json(&["tools", "list", "--session", "ada"]);
    assert!(!listed["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "pay"), "{listed}");
    let only = tools(&["--only", "pay", "--reveal", "echo"]);
    assert_eq!((&only["shown"], &only["revealed"]), (&json!(["pay"]), &json!(["echo"])));
    assert_eq!((&only["hidden"], &only["unknown"]), (&json!(["planned"]), &json!(["planned"])));
    assert_eq!(tools(&["--show", "planned"])["shown"], json!(["pay", "planned"]));
    has(&world.fails(2, &["sessions", "tools", "ada", "--hide", "no name"]), &["`no name` is not a tool name"]);
    assert_eq!(tools(&["--reset"])["tools"], all);
}

#[test]
fn l20_settings_are_set_changed_and_removed() {
    let world = World::new();
    has(&world.fails(2, &["sessions", "open", "ada", "--agent", "nothing"]), &["no tool `nothing`"]);
    let opened = world.ok(&["sessions", "open", "ada", "--agent", "echo", "--model", "m-1", "--window", "8000"]);
    has(&opened, &["agent: echo", "model: m-1", "window: 8000 tokens"]);
    let change = ["sessions", "configure", "ada", "--wake", "user", "--turns", "refuse", "--max-runs", "5"];
    has(&world.ok(&change), &["agent: echo", "wake: every message of a user", "turns: refused", "max-runs: 5"]);
    let removed = world.ok(&["sessions", "configure", "ada", "--unset", "agent", "--unset", "window"]);
    assert!(!removed.contains("agent:") && !removed.contains("window:"), "{removed}");
    has(&world.fails(2, &["sessions", "configure", "ada"]), &["nothing to change"]);
    has(&world.fails(3, &["sessions", "configure", "bob", "--model", "m"]), &["no session \"bob\""]);
    has(&world.ok(&["sessions", "context", "ada"]), &["model: m-1", "window: not set", "messages", "tools", "data"]);
}

/// A tool that is called as a turn, and waits for a file.
const TURN: &str = r#"
[tool.turn]
description = "Waits for a file named go."
command = ["sh", "-c", "touch started; while [ ! -e go ]; do sleep 0.02; done; cat"]
input = { session = "string", message = "integer" }
dir = "slow"
sandbox = { level = "best_effort" }
"#;

fn with_turn() -> World {
    let world = World::new();
    world.write("windlass.toml", &(world.read("windlass.toml") + TURN));
    world
}

#[test]
fn l20_a_message_wakes_the_agent_of_its_session_and_the_session_is_waited_for() {
    let world = with_turn();
    world.ok(&["sessions", "open", "ada", "--agent", "turn"]);
    // Without a server the turn is queued.
    let sent = world.json(&["sessions", "send", "ada", "hello", "--wake", "--key", "k"]);
    let run = sent["run"].as_str().unwrap().to_owned();
    let again = world.ok(&["sessions", "send", "ada", "hello", "--wake", "--key", "k"]);
    assert_eq!(again, format!("message 1, run {run} (posted before)\n"));
    has(&world.fails(6, &["sessions", "wait", "ada"]), &["not idle", &run, "windlass serve"]);
    let server = world.serve(&[]);
    until("the turn is running", || exists(&world.path("slow/started")));
    has(&world.fails(6, &["sessions", "wait", "ada", "--timeout", "10ms"]), &["not idle", &run]);
    let busy = world.fails(4, &["sessions", "send", "ada", "now", "--wake", "--turn", "refuse"]);
    has(&busy, &["busy with the turn of run", &run]);
    std::fs::write(world.path("slow/go"), "").unwrap();
    assert_eq!(world.ok(&["sessions", "wait", "ada", "--timeout", "60s"]), "ada is idle\n");
    assert_eq!(server.stop(), 0);
}

#[test]
fn b11_two_processes_share_the_turns_of_a_session_through_its_server() {
    let world = with_turn();
    let mut server = world.serve(&[]);
    world.ok(&["sessions", "open", "ada", "--agent", "turn"]);
    let sent =
        |text: &str| world.json(&["sessions", "send", "ada", text, "--wake"])["run"].as_str().unwrap().to_owned();
    let first = sent("one");
    until("the turn is running", || exists(&world.path("slow/started")));
    let second = sent("two");
    has(&world.fails(4, &["sessions", "send", "ada", "x", "--wake", "--turn", "refuse"]), &[&first]);
    // The process that has the turn is killed. Its turn still has the session, in doubt, and the next one waits.
    server.child.kill().unwrap();
    server.wait();
    let _server = world.serve(&[]);
    until("the turn is in doubt", || world.ok(&["inbox"]).contains(&first[..8]).then_some(()));
    has(&world.fails(4, &["sessions", "send", "ada", "x", "--wake", "--turn", "refuse"]), &[&first]);
    has(&world.ok(&["runs", "explain", &second]), &[&first]);
    std::fs::write(world.path("slow/go"), "").unwrap();
    world.ok(&["inbox", "settle", "--run", &first, "--happened", "1", "--reason", "seen"]);
    assert_eq!(world.ok(&["sessions", "wait", "ada", "--timeout", "60s"]), "ada is idle\n");
    let runs = world.json(&["runs", "list", "--session", "ada"])["runs"].clone();
    let ended: Vec<_> = runs.as_array().unwrap().iter().map(|run| run["ending"].clone()).collect();
    assert_eq!(ended, ["ok", "ok"]);
}

#[test]
fn l20_l23_a_session_is_watched_across_a_restart_until_it_is_purged() {
    let world = World::new();
    let server = world.serve(&[]);
    world.ok(&["sessions", "open", "ada"]);
    world.ok(&["sessions", "send", "ada", "one"]);
    has(&world.fails(2, &["sessions", "watch", "ada", "--from", "3.0"]), &["--from", "position"]);
    let mut command = world.command(&["--json", "sessions", "watch", "ada"]);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut next = || -> serde_json::Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["message"]["content"][0]["text"], "one");
    assert_eq!(server.stop(), 0);
    let _server = world.serve(&[]);
    world.ok(&["sessions", "send", "ada", "two"]);
    let two = next();
    assert_eq!((&two["message"]["content"][0]["text"], &two["kind"]), (&json!("two"), &json!("message_posted")));
    world.ok(&["sessions", "close", "ada"]);
    world.ok(&["sessions", "purge", "ada"]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "the watch ends with the session");
    let from = two["position"].as_str().unwrap();
    assert_eq!(world.ok(&["sessions", "watch", "ada", "--from", from]), "");
}
