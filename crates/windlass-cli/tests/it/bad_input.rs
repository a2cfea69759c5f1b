//! Mistakes of the user: each has a helpful message and an exit code.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::world::{World, both_ways, has};

#[test]
fn wrong_flags_exit_with_two_and_a_suggestion() {
    let world = World::empty();
    for (args, words) in [
        (&["cal"][..], &["call"][..]),
        (&["runs", "lst"], &["list"]),
        (&["runs", "list", "--stat", "held"], &["--state"]),
        (&["runs", "list", "--state", "hold"], &["held"]),
        (&["runs", "list", "--limit", "0"], &["1..=100000"]),
        (
            &["call", "x", "--wait=soon"],
            &["`soon` is not a valid duration (expected for example `500ms`, `10s`, `5m`, `2h`, `3d`)"],
        ),
        (&["call", "x", "--wait=1s", "--detach"], &["cannot be used with"]),
        (&["--color", "red", "doctor"], &["always", "never"]),
        (&["token", "create", "ada"], &["--scope"]),
        (&["inbox", "settle", "--all"], &["--happened"]),
        (&["serve", "--listen", "here"], &["--listen: `here` is not a valid address", "127.0.0.1:7117"]),
        (&[], &["Usage"]),
    ] {
        has(&world.fails(2, args), words);
    }
}

#[test]
fn b08_invalid_json_is_shown_with_its_position() {
    both_ways(|world, _| {
        let text = world.fails(2, &["call", "echo", "--args", r#"{"text": "a" "times": 1}"#]);
        has(&text, &["--args is not valid JSON: expected `,` or `}` at line 1, column 14", "\n                 ^"]);
        let text = world.fails(2, &["call", "echo", "--args", "[1]"]);
        has(&text, &["object"]);
        has(&world.fails(3, &["call", "echo", "--args", "@missing.json"]), &["the file missing.json does not exist"]);
        let done = world.run_with(&["call", "echo", "--args", "-"], "not json");
        assert_eq!(done.code, 2);
        has(&done.err, &["--args (standard input) is not valid JSON"]);
    });
}

#[test]
fn l02_an_unknown_tool_is_reported_with_a_suggestion() {
    both_ways(|world, _| {
        let text = world.fails(3, &["call", "ehco", "--args", r#"{"text": "x"}"#]);
        has(&text, &["did you mean `echo`?"]);
        assert_eq!(text.matches("ehco").count(), 1, "it is named once: {text}");
        has(&world.fails(3, &["tools", "show", "ehco"]), &["ehco", "echo"]);
    });
}

#[test]
fn a_missing_file_is_named_and_not_made_by_looking() {
    let world = World::empty();
    for args in [
        &["runs", "list"][..],
        &["inbox"],
        &["gc"],
        &["--file", "other.db", "runs", "list"],
        &["backup", "copy.db"],
        &["token", "list"],
        &["token", "revoke", "t"],
        &["runs", "replay-check", "--all"],
        &["runs", "watch", "0"],
    ] {
        has(&world.fails(3, args), &[".db does not exist", "windlass serve"]);
    }
    world.ok(&["tools", "list"]);
    has(&world.fails(3, &["tools", "show", "echo"]), &["echo"]);
    world.run(&["doctor"]);
    assert_eq!(std::fs::read_dir(world.path("")).unwrap().count(), 0, "nothing was created");
    has(&world.fails(5, &["--file", "no/folder/x.db", "call", "echo"]), &["no/folder", "does not exist"]);
}

#[test]
fn an_unreachable_server_exits_with_five() {
    let world = World::empty();
    // Other tests listen on 127.0.0.1 only, so that none of them takes this port over.
    let free = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    has(
        &world.fails(5, &["--server", &url, "runs", "list"]),
        &["could not reach the server at", &url, "windlass serve"],
    );
    has(&world.fails(2, &["--server", "nonsense", "runs", "list"]), &["`nonsense` is not a valid server URL"]);
    // A server of another protocol, that sends before or after it is sent a request.
    for reads_first in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            if reads_first {
                stream.read_exact(&mut [0; 16]).unwrap();
            }
            stream.write_all(b"220 mail ready\r\n").unwrap();
            // The client closes the connection: until then the response stays readable for it.
            std::io::copy(&mut stream, &mut std::io::sink())
        });
        let text = world.fails(5, &["--server", &other, "runs", "list"]);
        has(&text, &["could not reach the server"]);
        if reads_first {
            has(&text, &["the response is not HTTP"]);
        }
        let _ = server.join().unwrap();
    }
}

#[test]
fn a_port_in_use_is_named() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let text = world.fails(5, &["serve", "--listen", &address]);
    has(&text, &[&address, "in use", "--listen"]);
    assert!(!world.path("windlass.db").exists(), "nothing was opened");
}

#[test]
fn a_second_server_on_a_file_is_refused() {
    let world = World::new();
    let server = world.serve(&[]);
    let text = world.fails(5, &["serve", "--listen", "127.0.0.1:0"]);
    has(&text, &["is already served at", &server.url, "process", "--file"]);
    world.ok(&["runs", "list"]);
    assert_eq!(server.stop(), 0);
    // It has closed the file, and another server can open it.
    drop(world.serve(&[]));
}

#[test]
fn a_file_that_a_program_without_a_server_has_open_is_named() {
    let world = World::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let windlass = runtime.block_on(async { windlass::Windlass::open(world.path("windlass.db")).await }).unwrap();
    let pid = std::process::id().to_string();
    for args in [&["runs", "list"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let began = Instant::now();
        has(&world.fails(5, args), &["windlass.db", &pid, "stop that process"]);
        // The wait itself is under a second; the rest is for a loaded machine.
        assert!(began.elapsed() < Duration::from_secs(2), "{args:?}: {:?}", began.elapsed());
    }
    runtime.block_on(windlass.shutdown()).unwrap();
    world.ok(&["runs", "list"]);
}

#[test]
fn a_file_that_is_not_a_database_is_not_changed() {
    let world = World::new();
    let text = "Dear diary, today I was opened by a program.\n".repeat(100);
    world.write("windlass.db", &text);
    for args in [&["runs", "list"][..], &["serve", "--listen", "127.0.0.1:0"], &["call", "echo"]] {
        has(&world.fails(5, args), &["windlass.db", "is not a Windlass database"]);
    }
    assert_eq!(world.read("windlass.db"), text);
    has(&world.fails(1, &["doctor"]), &["✗", "file"]);
}

#[test]
fn a_damaged_file_is_reported_without_internals() {
    let world = World::new();
    for text in ["a", "b", "c"] {
        world.ok(&["call", "echo", "--args", &serde_json::json!({ "text": text.repeat(2_000) }).to_string()]);
    }
    let mut bytes = std::fs::read(world.path("windlass.db")).unwrap();
    bytes[4_096..].fill(0x5a);
    std::fs::write(world.path("windlass.db"), &bytes).unwrap();
    for args in [&["serve", "--listen", "127.0.0.1:0"][..], &["runs", "list"]] {
        has(&world.fails(5, args), &["windlass.db", "backup"]);
    }
    has(&world.fails(1, &["doctor"]), &["✗ file"]);
}

#[test]
fn an_invalid_config_is_shown_with_positions() {
    let world = World::new();
    let config = world
        .read("windlass.toml")
        .replace("command = [\"cat\"]\ninput = { text", "comand = [\"cat\"]\ninput = { text");
    world.write("windlass.toml", &config);
    for args in [&["check"][..], &["serve", "--listen", "127.0.0.1:0"], &["call", "echo"]] {
        has(&world.fails(2, args), &["comand", "command", "windlass.toml"]);
    }
    // Runs can be inspected all the same.
    world.write("empty.toml", "");
    world.ok(&["--config", "empty.toml", "token", "create", "root", "--scope", "admin"]);
    let done = world.run(&["runs", "list"]);
    assert_eq!(done.code, 0, "{}", done.err);
    has(&done.err, &["warning: windlass.toml has 2 errors (`windlass check` shows them)"]);
    assert_eq!(done.err.matches("warning: ").count(), 1, "{}", done.err);
}

#[test]
fn a_missing_config_file_has_the_same_exit_code_for_every_command() {
    let world = World::new();
    world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
    for command in
        [&["check"][..], &["serve", "--listen", "127.0.0.1:0"], &["call", "echo"], &["runs", "list"], &["gc"]]
    {
        let args = [&["--config", "nothing.toml"], command].concat();
        has(&world.fails(3, &args), &["the config file nothing.toml does not exist"]);
    }
}

#[test]
fn runs_can_be_inspected_with_an_invalid_config() {
    let world = World::new();
    let store = "[store]\nfile = \"other.db\"\n[retention]\nfull = \"forever\"\n";
    world.write("windlass.toml", &(store.to_owned() + &world.read("windlass.toml")));
    world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
    world.write("windlass.toml", &(store.to_owned() + "[tool.echo]\ncomand = [\"cat\"]\n"));
    for args in [
        &["runs", "list"][..],
        &["inbox"],
        &["gc"],
        &["backup", "copy.db"],
        &["restore", "copy.db", "--replace"],
        &["token", "create", "root", "--scope", "admin"],
        &["token", "list"],
    ] {
        let done = world.run(args);
        assert_eq!(done.code, 0, "{args:?}: {}", done.err);
        has(&done.err, &["windlass.toml has", "`windlass check` shows them", "without its tools"]);
        assert_eq!(done.err.lines().filter(|line| line.contains("windlass.toml")).count(), 1, "{}", done.err);
    }
    assert!(!world.path("windlass.db").exists(), "the file is the one in the config");
    for args in [&["call", "echo"][..], &["tools", "list"], &["runs", "replay-check", "--all"]] {
        has(&world.fails(2, args), &["comand"]);
    }
    // Commands that need the file or the retention times do not guess them.
    world.write("windlass.toml", "[store\nfile = \"other.db\"\n");
    for args in [&["restore", "copy.db", "--replace"][..], &["token", "create", "a", "--scope", "admin"]] {
        has(&world.fails(2, args), &["the database file is not known", "--file"]);
    }
    has(&world.fails(2, &["--file", "other.db", "gc"]), &["the retention times are not known"]);
    world.ok(&["--file", "other.db", "runs", "list"]);
    world.ok(&["--file", "other.db", "token", "create", "a", "--scope", "admin"]);
}

#[test]
fn errors_are_json_with_the_json_option() {
    let world = World::empty();
    let done = world.run(&["--json", "runs", "show", "ffffffff"]);
    let error: serde_json::Value = serde_json::from_str(&done.err).unwrap();
    assert_eq!(error["error"]["exit"], done.code, "{error}");
    assert_eq!(done.out, "");
}
