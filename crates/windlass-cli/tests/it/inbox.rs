//! `windlass inbox`, `resolve`, `signal`

use serde_json::{Value, json};

use crate::world::{World, has, until};

fn items(world: &World) -> Vec<Value> {
    world.json(&["inbox"])["items"].as_array().unwrap().clone()
}

fn pay(world: &World, cents: u64) -> String {
    let args = json!({"to": "Ada", "cents": cents}).to_string();
    world.ok(&["-q", "call", "pay", "--detach", "--args", &args]).trim().to_owned()
}

fn value(world: &World, run: &str) -> Value {
    until("the run finishes", || {
        let shown = world.json(&["runs", "show", run]);
        (shown["run"]["state"] == "finished").then(|| shown["run"]["outcomes"][0].clone())
    })
}

#[test]
fn w02_e07_approvals_are_shown_and_decided_one_by_one() {
    let world = World::new();
    let server = world.serve(&[]);
    let empty = world.run(&["inbox"]);
    assert_eq!((empty.code, empty.out.as_str(), empty.err.as_str()), (0, "", "the inbox is empty\n"));
    let (yes, no) = (pay(&world, 500), pay(&world, 700));
    until("both ask", || (items(&world).len() == 2).then_some(()));
    let text = world.ok(&["inbox", "list", "--kind", "approval"]);
    has(&text, &["approval", "\"cents\":500", "args.cents > 100", "windlass inbox approve", &yes]);
    assert!(!text.contains('\u{1b}'));
    let id =
        |run: &str| items(&world).iter().find(|item| item["run"] == run).unwrap()["id"].as_str().unwrap().to_owned();
    let approved = id(&yes);
    world.ok(&["inbox", "approve", &approved, "--reason", "fair"]);
    assert_eq!(value(&world, &yes)["value"]["cents"], 500);
    has(&world.ok(&["runs", "show", &yes]), &["approved by local: fair"]);
    // A late decision is refused.
    let late = world.fails(4, &["inbox", "deny", &approved]);
    has(&late, &[&approved]);
    world.ok(&["inbox", "deny", &id(&no), "--reason", "too much"]);
    let denied = value(&world, &no);
    assert_eq!(denied["error"]["kind"], "denied", "{denied}");
    has(denied["error"]["message"].as_str().unwrap(), &["too much"]);
    drop(server);
}

#[test]
fn w02_items_are_decided_by_filter_on_a_file_and_continue_with_a_server() {
    let world = World::new();
    let server = world.serve(&[]);
    let runs: Vec<String> = (0..4).map(|i| pay(&world, 200 + i)).collect();
    until("all ask", || (items(&world).len() == 4).then_some(()));
    assert_eq!(server.stop(), 0);
    has(&world.fails(2, &["inbox", "approve"]), &["no items selected", "--all"]);
    has(&world.fails(2, &["inbox", "approve", "abc", "--all"]), &["cannot be used with"]);
    has(&world.fails(3, &["inbox", "approve", "nope"]), &["no inbox item has an id that begins with `nope`"]);
    has(
        &world.fails(3, &["inbox", "answer", "--all", "--value", "1"]),
        &["the inbox has no matching item of kind input"],
    );
    let done = world.run(&["inbox", "approve", "--tool", "pay", "--reason", "all fair"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert_eq!(done.out.lines().count(), 4, "{}", done.out);
    has(&done.err, &["windlass serve"]);
    let _server = world.serve(&[]);
    for (run, cents) in runs.iter().zip(200..) {
        assert_eq!(value(&world, run)["value"]["cents"], cents);
    }
}

#[test]
fn l08_l10_a_question_is_answered_from_the_inbox_and_by_its_key() {
    let world = World::new();
    let server = world.serve_demo();
    let ask = |question: &str| {
        let args = json!({"question": question}).to_string();
        world.ok(&["-q", "call", "ask_customer", "--detach", "--args", &args]).trim().to_owned()
    };
    let (first, second, third) = (ask("window or aisle?"), ask("vegetarian?"), ask("how many bags?"));
    until("all ask", || (items(&world).len() == 3).then_some(()));
    has(&world.ok(&["inbox", "--kind", "input"]), &["window or aisle?", "windlass inbox answer"]);
    world.ok(&["inbox", "answer", "--run", &first, "--value", "\"window\""]);
    assert_eq!(value(&world, &first)["value"], "window");
    let key =
        |run: &str| items(&world).iter().find(|item| item["run"] == run).unwrap()["key"].as_str().unwrap().to_owned();
    let (second_key, third_key) = (key(&second), key(&third));
    assert_eq!(world.ok(&["resolve", &second_key, "--value", "true"]).trim(), "accepted");
    assert_eq!(value(&world, &second)["value"], true);
    has(&world.fails(4, &["resolve", &second_key, "--value", "false"]), &["the first answer counts"]);
    // Without a server, the answer is stored until one drives the run.
    assert_eq!(server.stop(), 0);
    world.ok(&["resolve", &third_key, "--error", "no bags at all", "--code", "no_bags"]);
    let _server = world.serve_demo();
    has(value(&world, &third)["error"]["message"].as_str().unwrap(), &["no bags at all"]);
    has(&world.fails(2, &["resolve", &third_key]), &["--value JSON"]);
    world.fails(3, &["resolve", "no-such-key", "--value", "1"]);
}

#[test]
fn l13_a_signal_reaches_its_run_once() {
    let world = World::new();
    let _server = world.serve_demo();
    let args = r#"{"flight": "WL 7"}"#;
    let run = world.ok(&["-q", "call", "await_boarding", "--detach", "--args", args]).trim().to_owned();
    has(&world.fails(2, &["signal", &run, "boardin", "--value", "\"B4\""]), &["boardin"]);
    world.ok(&["signal", &run, "boarding", "--value", "\"B4\"", "--key", "s1"]);
    assert_eq!(value(&world, &run)["value"], "WL 7 boards at B4");
    has(&world.fails(4, &["signal", &run, "boarding", "--value", "\"B5\"", "--key", "s2"]), &["finished"]);
}

#[test]
fn e06_a_connection_is_asked_for_and_given() {
    let world = World::new();
    let _server = world.serve(&[]);
    let run = world.ok(&["-q", "call", "linked", "--detach"]).trim().to_owned();
    until("it asks", || (items(&world).len() == 1).then_some(()));
    has(&world.ok(&["inbox"]), &["connection", "windlass inbox connect github"]);
    assert_eq!(world.ok(&["inbox", "connect", "github", "--no-credential"]).trim(), "1 run notified");
    assert_eq!(value(&world, &run)["value"], json!({}));
}
