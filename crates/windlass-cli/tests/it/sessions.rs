//! `windlass sessions`, on a file and through a server

use serde_json::json;

use crate::world::{World, has};

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
