//! Principals, causes and provider metadata on the command line.

use serde_json::json;

use crate::world::{World, both_ways, has};

#[test]
fn l28_b13_a_call_names_its_principal_and_cause_and_runs_are_listed_by_them() {
    both_ways(|world, _| {
        let call = |principal: &str, cause: &str, key: &str| {
            let args = ["call", "echo", "--args", r#"{"text": "a"}"#, "--key", key];
            let answer = world.json(&[&args[..], &["--principal", principal, "--cause", cause]].concat());
            answer["run"].as_str().unwrap().to_owned()
        };
        let first = call("ada", "turn 1", "k1");
        let second = call("bob", "turn 1", "k2");
        let third = call("ada", "turn 2", "k3");
        let listed = |filter: &[&str]| -> Vec<String> {
            let list = world.json(&[&["runs", "list", "--oldest"], filter].concat());
            list["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(listed(&["--principal", "ada"]), [first.clone(), third.clone()]);
        assert_eq!(listed(&["--cause", "turn 1"]), [first.clone(), second.clone()]);
        assert_eq!(listed(&["--cause", "turn 1", "--principal", "bob"]), [second.as_str()]);
        assert_eq!(listed(&["--key", "k3"]), [third.as_str()]);
        let shown = world.json(&["runs", "show", &second]);
        let run = &shown["run"];
        assert_eq!([&run["principal"], &run["cause"], &run["key"]], [&json!("bob"), &json!("turn 1"), &json!("k2")]);
        let created = run["created"].as_str().unwrap();
        assert_eq!(listed(&["--created-from", created]), [second.clone(), third.clone()]);
        assert_eq!(listed(&["--created-before", created]), [first.as_str()]);
        has(&world.ok(&["runs", "show", &first]), &["for ada", "cause turn 1", "key k1"]);
        has(&world.ok(&["runs", "list"]), &["FOR", "CAUSE", "ada", "bob", "turn 2"]);
        has(&world.ok(&["runs", "explain", &first]), &["for ada", "cause turn 1"]);
        has(&world.fails(2, &["runs", "list", "--created-from", "yesterday"]), &["--created-from"]);
        has(&world.fails(2, &["call", "echo", "--principal", " "]), &["`principal` must have 1 to 255"]);
    });
    let world = World::new();
    world.ok(&["call", "echo", "--args", r#"{"text": "a"}"#]);
    let list = world.ok(&["runs", "list"]);
    assert!(!list.contains(" FOR  ") && !list.contains("CAUSE"), "no run names a principal or a cause: {list}");
}

#[test]
fn l28_a_token_acts_for_its_principal() {
    let world = World::new();
    let server = world.serve(&[]);
    let create = |name: &str, scopes: &str, more: &[&str]| {
        world.ok(&[&["-q", "token", "create", name, "--scope", scopes], more].concat()).trim().to_owned()
    };
    let root = create("root", "admin,read,call,impersonate", &[]);
    let as_root = |args: &[&str]| world.run(&[&["--token", &root], args].concat());
    let made = as_root(&["-q", "token", "create", "laptop", "--scope", "read,call", "--principal", "ada"]);
    let laptop = made.out.trim().to_owned();
    has(&as_root(&["token", "list"]).out, &["PRINCIPAL", "laptop", "ada", "impersonate"]);
    let call = ["--json", "call", "echo", "--args", r#"{"text": "a"}"#];
    let done = world.run(&[&["--token", &laptop], &call[..]].concat());
    let run = serde_json::from_str::<serde_json::Value>(&done.out).unwrap()["run"].as_str().unwrap().to_owned();
    has(&as_root(&["runs", "show", &run]).out, &["for ada"]);
    let other = as_root(&[&call[..], &["--principal", "bob"]].concat());
    let other = serde_json::from_str::<serde_json::Value>(&other.out).unwrap()["run"].as_str().unwrap().to_owned();
    has(&as_root(&["runs", "show", &other]).out, &["for bob"]);
    let hidden = world.run(&["--token", &laptop, "runs", "show", &other]);
    assert_eq!(hidden.code, 3, "it looks missing: {}", hidden.err);
    let refused = world.run(&[&["--token", &laptop], &call[..], &["--principal", "bob"]].concat());
    assert_eq!(refused.code, 4, "{}", refused.err);
    has(&refused.err, &["impersonate"]);
    drop(server);
}

#[test]
fn l26_metadata_is_printed_byte_for_byte() {
    both_ways(|world, _| {
        let raw = "{ \"b\":1.50, \"a\":[1,  2], \"a\":\"\\u00e9\\/\"}";
        let call = ["call", "echo", "--args", r#"{"text": "a"}"#, "--metadata", raw];
        let printed = world.ok(&[&["--json"], &call[..]].concat());
        has(&printed, &[&format!("\"metadata\": {raw}"), "\"call\": {"]);
        let run = serde_json::from_str::<serde_json::Value>(&printed).unwrap()["run"].as_str().unwrap().to_owned();
        has(&world.ok(&["--json", "runs", "show", &run]), &[&format!("\"metadata\": {raw}")]);
        has(&world.fails(2, &["call", "echo", "--metadata", "{"]), &["--metadata"]);
    });
}

#[test]
fn w07_l28_a_try_is_made_for_a_principal() {
    let world = World::new();
    world.write("tries.toml", "[tool.pay]\ndescription = \"Pay.\"\ncommand = [\"cat\"]\napproval = \"caller == 'guest' && cause == 'mail'\"\n");
    let check = |more: &[&str]| world.ok(&[&["--config", "tries.toml", "tools", "try", "pay"], more].concat());
    has(&check(&["--principal", "guest", "--cause", "mail"]), &["would wait for approval"]);
    has(&check(&["--principal", "guest", "--cause", "chat"]), &["would run"]);
    has(&check(&[]), &["would run"]);
}
