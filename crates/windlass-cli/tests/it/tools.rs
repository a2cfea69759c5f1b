//! `windlass tools`, `token`, `completions`

use std::process::Stdio;

use serde_json::json;

use crate::world::{World, both_ways, exists, has, until};

#[test]
fn tools_are_listed_shown_and_tried() {
    both_ways(|world, _| {
        let list = world.ok(&["tools", "list"]);
        has(&list, &["TOOL", "echo", "readonly", "pay", "once", "sometimes", "Returns its arguments."]);
        let named = |tools: &serde_json::Value| -> Vec<String> {
            tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(named(&world.json(&["tools", "list", "--tag", "demo"])), ["echo"]);
        let openai: serde_json::Value =
            serde_json::from_str(&world.ok(&["tools", "list", "--format", "openai"])).unwrap();
        assert_eq!(openai["tools"][0]["type"], "function", "{openai}");
        let anthropic: serde_json::Value =
            serde_json::from_str(&world.ok(&["tools", "list", "--format", "anthropic"])).unwrap();
        assert!(anthropic["tools"][0]["input_schema"].is_object(), "{anthropic}");
        has(&world.ok(&["tools", "show", "pay"]), &["pay", "args.cents > 100", "\"cents\"", "arguments"]);
        assert_eq!(world.json(&["tools", "show", "pay"])["effect"], "once");
    });
}

#[test]
fn inspecting_tools_needs_no_file_and_creates_none() {
    let world = World::new();
    has(&world.ok(&["tools", "list"]), &["echo"]);
    has(&world.ok(&["tools", "try", "pay", "--args", r#"{"to": "Ada", "cents": 500}"#]), &["would wait for approval"]);
    assert!(!world.path("windlass.db").exists());
}

#[test]
fn b02_a_layer_is_checked_before_a_file_is_created_and_shown_with_its_runs() {
    let world = World::empty();
    let config = r#"
        [tool]
        lookup = { description = "Find.", command = ["cat"], effect = "readonly" }
        erase = { description = "Erase.", command = ["cat"] }
        [layer.guest]
        hide = ["erase"]
    "#;
    world.write("windlass.toml", config);
    has(&world.fails(4, &["call", "lookup", "--layer", "nope"]), &["there is no layer `nope`", "[layer.nope]"]);
    has(&world.fails(3, &["call", "erase", "--layer", "guest"]), &["there is no tool `erase`", "--layer guest"]);
    has(&world.ok(&["tools", "show", "lookup", "--layer", "guest"]), &["Find."]);
    has(&world.fails(3, &["tools", "show", "erase", "--layer", "guest"]), &["there is no tool `erase`"]);
    assert!(!world.path("windlass.db").exists(), "nothing was opened");

    let run = world.ok(&["-q", "call", "lookup", "--detach", "--layer", "guest"]).trim().to_owned();
    has(&world.ok(&["runs", "show", &run]), &["through layer guest"]);
    has(&world.ok(&["runs", "explain", &run]), &["called through guest"]);
    world.ok(&["token", "create", "root", "--scope", "admin"]);
    world.ok(&["token", "create", "bot", "--scope", "read", "--layer", "guest"]);
    has(&world.ok(&["token", "list"]), &["LAYER", "guest"]);
}

#[test]
fn w07_try_shows_what_a_call_would_do_without_making_it() {
    both_ways(|world, _| {
        let check = |args: serde_json::Value| world.run(&["tools", "try", "pay", "--args", &args.to_string()]);
        has(&check(json!({"to": "Ada", "cents": 5})).out, &["would run", "effect once"]);
        let asks = check(json!({"to": "Ada", "cents": 500}));
        assert_eq!(asks.code, 0);
        has(&asks.out, &["would wait for approval", "args.cents > 100"]);
        let wrong = check(json!({"to": 7, "cents": 5}));
        assert_eq!(wrong.code, 1);
        has(&wrong.out, &["would be refused", "/to"]);
        if world.path("windlass.db").exists() {
            assert_eq!(world.json(&["runs", "list"])["runs"], json!([]), "no call was made");
        }
    });
}

#[test]
fn tokens_are_created_and_listed_on_a_file() {
    let world = World::new();
    has(&world.fails(4, &["token", "create", "ada", "--scope", "read"]), &["the first token needs the scope `admin`"]);
    let created = world.run(&["token", "create", "root", "--scope", "admin,read"]);
    assert_eq!(created.code, 0, "{}", created.err);
    has(&created.err, &["the secret is shown only now"]);
    let secret = created.out.trim().to_owned();
    // A user that can open the file can do everything with it.
    world.ok(&["token", "create", "ada", "--scope", "read,call", "--expires", "7d"]);
    let list = world.ok(&["token", "list"]);
    has(&list, &["root", "ada", "read,call", "in 6 d", "never"]);
    assert!(!list.contains(&secret));
    has(&world.fails(3, &["token", "revoke", "zzzz"]), &["windlass token list"]);
    has(&world.fails(2, &["token", "create", "x", "--scope", "all"]), &["admin"]);
}

#[test]
fn e26_a_token_allows_its_scopes_until_it_is_revoked() {
    let world = World::new();
    let admin = world.ok(&["-q", "token", "create", "root", "--scope", "admin,read"]).trim().to_owned();
    let server = world.serve(&[]);
    let token = world.ok(&["-q", "--token", &admin, "token", "create", "ada", "--scope", "read"]).trim().to_owned();
    let with = |token: &str, args: &[&str]| world.run(&[&["--token", token], args].concat()).code;
    assert_eq!(with(&token, &["runs", "list"]), 0);
    assert_eq!(with(&token, &["call", "echo", "--args", r#"{"text": "x"}"#]), 4, "it may only read");
    assert_eq!(with("nonsense", &["runs", "list"]), 4);
    assert_eq!(world.run(&["runs", "list"]).code, 4, "once there are tokens, one is required");
    let by_variable = world.command(&["runs", "list"]).env("WINDLASS_TOKEN", &token).output().unwrap();
    assert!(by_variable.status.success());
    let tokens = world.json(&["--token", &admin, "token", "list"]);
    let of_ada = tokens["tokens"].as_array().unwrap().iter().find(|token| token["name"] == "ada").unwrap();
    let id = of_ada["id"].as_str().unwrap().to_owned();
    world.ok(&["--token", &admin, "token", "revoke", &id]);
    has(&world.fails(4, &["--token", &token, "runs", "list"]), &["token"]);
    drop(server);
}

#[test]
fn e26_a_token_that_may_only_call_waits_for_its_call() {
    let world = World::new();
    let admin = world.ok(&["-q", "token", "create", "root", "--scope", "admin,read"]).trim().to_owned();
    let server = world.serve(&[]);
    let token = world.ok(&["-q", "--token", &admin, "token", "create", "bot", "--scope", "call"]).trim().to_owned();
    let mut call = world.command(&["--json", "--token", &token, "call", "slow"]);
    let call = call.stdout(Stdio::piped()).spawn().unwrap();
    until("the call runs", || exists(&world.path("slow/started")));
    server.has_been_asked_for_an_outcome(Some(&admin));
    world.write("slow/go", "");
    let output = call.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["outcome"]["path"], "/", "{answer}");
    let run = answer["run"].as_str().unwrap();
    has(&world.fails(4, &["--token", &token, "runs", "show", run]), &["lacks the scope `read`"]);
    drop(server);
}

#[test]
fn l23_without_an_admin_token_one_is_created_while_the_server_is_stopped() {
    let world = World::new();
    world.ok(&["-q", "token", "create", "lost", "--scope", "admin"]);
    let server = world.serve(&[]);
    // The way that the message names is open.
    let text = world.fails(4, &["token", "create", "root", "--scope", "admin"]);
    has(&text, &["a token that has the scope `admin`", "stop the server and create one on its file"]);
    assert_eq!(server.stop(), 0);
    let admin = world.ok(&["-q", "token", "create", "root", "--scope", "admin"]).trim().to_owned();
    let server = world.serve(&[]);
    has(&world.ok(&["--token", &admin, "token", "list"]), &["lost", "root"]);
    drop(server);
}

#[test]
fn every_shell_has_a_completion_script() {
    let world = World::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        has(&world.ok(&["completions", shell]), &["windlass", "replay-check"]);
    }
    has(&world.fails(2, &["completions", "cmd"]), &["bash"]);
}

#[test]
fn help_lists_the_exit_codes() {
    let world = World::empty();
    has(&world.ok(&["--help"]), &["Exit codes", "demo", "serve", "130 interrupted"]);
    has(&world.ok(&["runs", "--help"]), &["replay-check", "compare"]);
    has(&world.ok(&["--version"]), &["windlass "]);
    assert!(!world.ok(&["--help"]).contains("sandbox-launch"));
}

#[test]
fn e26_a_token_is_revoked_by_its_name() {
    let world = World::new();
    let create = |name: &str| world.ok(&["-q", "token", "create", name, "--scope", "admin"]);
    for name in ["root", "ada", "adam", "adele"] {
        create(name);
    }
    let names = || {
        let list = world.json(&["token", "list"]);
        let tokens = list["tokens"].as_array().unwrap().clone();
        let mut names: Vec<String> = tokens.iter().map(|token| token["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let several = world.fails(2, &["token", "revoke", "ad"]);
    has(&several, &["several tokens", "ada", "adam", "adele"]);
    for token in world.json(&["token", "list"])["tokens"].as_array().unwrap() {
        let (id, is_named) = (token["id"].as_str().unwrap(), token["name"] != "root");
        assert_eq!(several.contains(id), is_named, "{several}");
    }
    assert_eq!(names(), ["ada", "adam", "adele", "root"], "an ambiguous name revokes nothing");
    has(&world.ok(&["token", "revoke", "ada"]), &["ada  revoked"]);
    has(&world.ok(&["token", "revoke", "adel"]), &["adele  revoked"]);
    assert_eq!(names(), ["adam", "root"]);
    has(&world.fails(3, &["token", "revoke", "eve"]), &["there is no token `eve`", "windlass token list"]);
}

#[test]
fn e26_an_empty_token_counts_as_none() {
    let world = World::new();
    world.ok(&["token", "create", "root", "--scope", "admin"]);
    for (variable, args) in [("WINDLASS_TOKEN", &["runs", "list"][..]), ("WINDLASS_SERVER", &["runs", "list"])] {
        let done = world.command(args).env(variable, "").output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{variable}: {}", String::from_utf8_lossy(&done.stderr));
    }
    world.ok(&["--token", "", "runs", "list"]);
    let server = world.serve(&[]);
    has(&world.fails(4, &["--token", "", "runs", "list"]), &["the request has no token"]);
    drop(server);
}

#[test]
fn a_call_of_an_unknown_tool_creates_no_file() {
    let world = World::new();
    let files = || {
        let found = std::fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        found.filter(|name| name.to_string_lossy().contains("windlass.db")).count()
    };
    for args in [
        &["call", "ecoh"][..],
        &["call", "ecoh", "--detach"],
        &["--json", "call", "ecoh"],
        &["tools", "show", "ecoh"],
        &["tools", "try", "ecoh"],
    ] {
        has(&world.fails(3, args), &["there is no tool `ecoh`", "did you mean `echo`?"]);
        assert_eq!(files(), 0, "{args:?}");
    }
    world.ok(&["tools", "list"]);
    assert_eq!(files(), 0);
    // In an existing file the failed call is recorded.
    world.ok(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]);
    has(&world.fails(3, &["call", "ecoh"]), &["did you mean `echo`?"]);
    assert_eq!(world.json(&["runs", "list"])["runs"].as_array().map(Vec::len), Some(2));
}
