//! What a call returns: errors with values, images and files, secrets, and long outputs that are read in parts.

use serde_json::{Value, json};

use crate::world::{World, both_ways, has, until};

const CONFIG: &str = r#"
[policy]
attended = true

[standard]
tools = ["read_output"]

[tool.seat]
description = "Has no seat."
command = ["sh", "-c", 'echo "{\"error\": {\"message\": \"no seat is left\", \"code\": \"sold_out\", \"data\": {\"next\": [7, 8]}}}"; exit 3']
sandbox = { level = "best_effort" }

[tool.chart]
description = "Draws a chart."
command = ["printf", "\\211PNG"]
media_type = "image/png"
effect = "readonly"
sandbox = { level = "best_effort" }

[tool.report]
description = "Writes a report."
command = ["cat", "report.json"]
dir = "reports"
output_as = "content"
effect = "readonly"
sandbox = { level = "best_effort" }

[tool.login]
description = "Logs in."
command = ["printf", '{"token": "correct-%s-battery", "user": "ada"}', "horse"]
output = { token = "secret", user = "string" }
sandbox = { level = "best_effort" }

[tool.long]
description = "Prints much."
command = ["seq", "1", "2000"]
output_as = "text"
output_budget = "1 KB"
effect = "readonly"
sandbox = { level = "best_effort" }

[tool.pull]
description = "Needs a connection, as it finds out."
command = ["sh", "-c", 'if [ -e connected ]; then echo pulled; else echo "{\"error\": {\"connection\": \"github\"}}"; exit 1; fi']
dir = "work"
sandbox = { level = "best_effort" }
narration.en = { start = "Pulling", end = "Pulled", waiting = "Waiting to pull" }
"#;

const MARKER: &str = "correct-horse-battery";

fn configure(world: &World) {
    world.write("windlass.toml", CONFIG);
    for folder in ["reports", "work"] {
        std::fs::create_dir_all(world.path(folder)).unwrap();
    }
    let file = "A".repeat(200_000);
    let report = json!({"content": [{"type": "text", "text": "two pages"},
        {"type": "audio", "media_type": "audio/wav", "data": "AAAA"},
        {"type": "file", "media_type": "text/csv", "name": "../t.csv", "data": file}]});
    world.write("reports/report.json", &report.to_string());
}

fn both(test: impl Fn(&World)) {
    let world = World::new();
    configure(&world);
    test(&world);
    let world = World::new();
    configure(&world);
    let server = world.serve(&[]);
    test(&world);
    drop(server);
}

#[test]
fn e29_the_value_of_an_error_is_printed_and_in_the_document() {
    both(|world| {
        let text = world.fails(1, &["call", "seat"]);
        has(&text, &["failed (sold_out): no seat is left", "\"next\": ["]);
        let done = world.run(&["--json", "call", "seat"]);
        let answer: Value = serde_json::from_str(&done.out).unwrap();
        let expected = json!({"kind": "failed", "message": "no seat is left", "code": "sold_out",
                              "data": {"next": [7, 8]}, "retryable": false});
        assert_eq!(answer["outcome"]["error"], expected);
        let run = answer["run"].as_str().unwrap();
        has(&world.ok(&["runs", "show", run, "--journal"]), &[r#""data":{"next":[7,8]}"#]);
    });
}

#[test]
fn e04_images_audio_and_files_of_commands_are_listed_and_saved() {
    both(|world| {
        let _ = std::fs::remove_dir_all(world.path("saved"));
        has(&world.ok(&["call", "chart", "--save", "saved"]), &["[image: image/png, 4 bytes]"]);
        assert_eq!(std::fs::read(world.path("saved/output-1.png")).unwrap(), b"\x89PNG");
        let out = world.ok(&["call", "report", "--save", "saved"]);
        has(
            &out,
            &["two pages", "[audio: audio/wav, 3 bytes]", "[file: ../t.csv, text/csv, 150000 bytes, artifact b3:"],
        );
        assert!(!out.contains("null"), "{out}");
        assert_eq!(std::fs::read(world.path("saved/output-1.wav")).unwrap(), [0; 3]);
        assert_eq!(std::fs::read(world.path("saved/t.csv")).unwrap(), vec![0; 150_000], "inside of the folder");
        has(&world.fails(4, &["call", "chart", "--save", "saved"]), &["could not write", "output-1.png"]);
        let answer = world.json(&["call", "report"]);
        let shown = &answer["outcome"]["shown_content"];
        assert_eq!(shown[0], json!({"type": "text", "text": "two pages"}), "{answer}");
        assert_eq!(shown[1], json!({"type": "audio", "media_type": "audio/wav", "data": "AAAA"}));
        assert_eq!((&shown[2]["type"], &shown[2]["size"]), (&json!("file"), &json!(150_000)));
        assert_eq!(answer["outcome"]["content"], *shown, "nothing had to be cut");
        has(&world.ok(&["runs", "show", answer["run"].as_str().unwrap()]), &["[audio: audio/wav, 3 bytes]"]);
    });
}

#[test]
fn e26_a_secret_output_is_neither_printed_nor_in_the_file_in_clear() {
    let world = World::new();
    configure(&world);
    let (run, log) = {
        let mut command = world.command(&["--json", "call", "login"]);
        let done = command.env("WINDLASS_LOG", "trace").output().unwrap();
        let out = String::from_utf8(done.stdout).unwrap();
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(answer["outcome"]["value"], json!({"token": "•••", "user": "ada"}));
        (answer["run"].as_str().unwrap().to_owned(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let shown = [
        log,
        world.ok(&["call", "login"]),
        world.ok(&["runs", "show", &run, "--journal"]),
        world.ok(&["--json", "runs", "show", &run, "--journal"]),
        world.ok(&["runs", "output", &run]),
        world.ok(&["--json", "runs", "watch", &run]),
        world.ok(&["runs", "explain", &run]),
    ];
    for text in shown {
        assert!(!text.contains(MARKER), "{text}");
    }
    for entry in std::fs::read_dir(world.path(".")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        assert!(!bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes()), "{}", path.display());
    }
    has(&world.ok(&["runs", "export", &run]), &[MARKER]);
}

#[test]
fn e10_a_long_output_is_read_by_command_route_and_tool() {
    both(|world| {
        let whole: String = (1..=2000).map(|n| format!("{n}\n")).collect();
        let whole = whole.trim_end();
        let answer = world.json(&["call", "long", "--session", "s1"]);
        let (run, shown) = (answer["run"].as_str().unwrap(), answer["outcome"]["shown"].as_str().unwrap());
        assert!(shown.len() <= 1_000 && shown.contains("read on with the tool read_output from offset "), "{shown}");
        assert_eq!(world.ok(&["runs", "output", run]).trim_end(), whole);
        let page = world.json(&["runs", "output", run, "/", "--offset", "2", "--limit", "5"]);
        let expected = json!({"run": run, "path": "/", "text": "2\n3\n4", "offset": 2, "next_offset": 7,
                              "total_bytes": whole.len()});
        assert_eq!(page, expected);
        has(&world.fails(3, &["runs", "output", run, "4/1"]), &["no output at 4/1"]);
        let args = json!({"output": format!("windlass://run/{run}/"), "offset": 2, "limit": 3}).to_string();
        let read = world.json(&["call", "read_output", "--session", "s1", "--args", &args]);
        assert_eq!(read["outcome"]["value"]["text"], "2\n3");
        let refused = world.fails(1, &["call", "read_output", "--session", "s2", "--args", &args]);
        has(&refused, &["denied", "only outputs of the same session"]);
        let alone = world.json(&["call", "long"])["outcome"]["shown"].to_string();
        has(&alone, &["read on with GET /v1/runs/", "`windlass runs output "]);
    });
}

#[test]
fn e06_e12_a_command_that_needs_a_connection_waits_for_it_and_says_so() {
    let world = World::new();
    configure(&world);
    let _server = world.serve(&[]);
    let run = world.ok(&["-q", "call", "pull", "--detach"]).trim().to_owned();
    until("it asks", || world.ok(&["inbox"]).contains("windlass inbox connect github").then_some(()));
    world.write("work/connected", "");
    assert_eq!(world.ok(&["inbox", "connect", "github", "--no-credential"]).trim(), "1 run notified");
    let seen = world.ok(&["runs", "watch", &run]);
    has(&seen, &["Pulling", "Waiting to pull: github", "Pulled in "]);
    let run = world.json(&["runs", "show", &run]);
    assert_eq!(run["run"]["outcomes"][0]["value"], "pulled");
}

#[test]
fn e12_a_tool_without_a_template_is_announced_by_its_title() {
    both_ways(|world, _| {
        let answer = world.json(&["call", "echo", "--args", r#"{"text": "ahoy"}"#]);
        let seen = world.ok(&["runs", "watch", answer["run"].as_str().unwrap()]);
        has(&seen, &["Echo: text=ahoy", "Echo: done in "]);
    });
}
