//! The result of a command, and how it fails.

use std::sync::Arc;

use serde_json::json;
use windlass::run::{Cursor, Happening};
use windlass::tool::Schemas;
use windlass::{Effect, ToolCall, ToolSpec, Windlass};
use windlass_tools::command::{Command, Exit, Output};
use windlass_tools::sandbox::{Launcher, Level, support};

use crate::world::{World, call, error, tool, value};

/// With as much of a sandbox as this kernel supports: these tests do not depend on it.
fn sh(world: &World, script: &str) -> Command {
    let mut command = world.sh(script);
    command.sandbox.level = if support().is_whole() { Level::Required } else { Level::BestEffort };
    command
}

#[tokio::test]
async fn arguments_are_standard_input_and_standard_output_is_the_result() {
    let world = World::new();
    let args = json!({"text": "ü\n\"quoted\"", "list": [1, 2.5, null], "big": "x".repeat(300_000)});
    let outcome = call(sh(&world, "cat"), args.clone()).await;
    assert_eq!(outcome.value(), Some(&args));
    // A command that does not read its input neither waits nor blocks.
    let outcome = call(sh(&world, "echo '[1]'"), args).await;
    assert_eq!(outcome.value(), Some(&json!([1])));
    assert_eq!(value(sh(&world, "true")).await, json!(null));
}

#[tokio::test]
async fn arguments_in_argv_are_not_read_by_a_shell() {
    let world = World::new();
    let mut command = world.command(&["/bin/echo", "-n", "{args.a}", "--", "{args.b}"]);
    command.sandbox.level = Level::BestEffort;
    command.output = Output::Text;
    let args = json!({"a": "$(id); `id` && *", "b": "-e"});
    let outcome = call(command.clone(), args).await;
    assert_eq!(outcome.value(), Some(&json!("$(id); `id` && * -- -e")));
    let outcome = call(command, json!({"a": "-e", "b": ""})).await;
    assert_eq!(outcome.result.unwrap_err().kind(), "invalid_arguments");
}

#[tokio::test]
async fn the_exit_code_decides_the_error_kind_and_stderr_is_in_the_message() {
    let world = World::new();
    for (code, kind) in
        [(1, "failed"), (64, "invalid_arguments"), (65, "invalid_arguments"), (69, "unavailable"), (77, "denied")]
    {
        let (seen, message) = error(sh(&world, &format!("echo 'because of {code}' >&2; exit {code}"))).await;
        assert_eq!(seen, kind, "{code}");
        assert!(message.contains(&format!("because of {code}")), "{message}");
    }
    let (kind, message) = error(sh(&world, "kill -SEGV $$")).await;
    assert!(kind == "failed" && message.contains("SIGSEGV"), "{message}");
    let mut own = sh(&world, "echo nothing found; exit 1");
    own.exits = [(1, Exit::Ok)].into();
    assert_eq!(value(own).await, json!("nothing found"));
}

#[tokio::test]
async fn e08_a_command_that_did_nothing_is_retried_with_the_same_key() {
    let world = World::new();
    let script =
        "echo $WINDLASS_ATTEMPT $WINDLASS_IDEMPOTENCY_KEY >> tries; [ $WINDLASS_ATTEMPT = 1 ] && exit 75; echo done";
    let once = tool(sh(&world, script)).effect(Effect::Once);
    let windlass = Windlass::in_memory().tool(once).await.unwrap();
    let outcome = windlass.call_json("run", json!({})).await.unwrap();
    assert_eq!(outcome.value(), Some(&json!("done")));
    let tries = std::fs::read_to_string(world.work().join("tries")).unwrap();
    let tries: Vec<(&str, &str)> = tries.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(tries.len(), 2);
    assert!(tries[0].1 == tries[1].1 && tries[0].0 != tries[1].0, "{tries:?}");
}

#[tokio::test]
async fn l23_standard_error_is_progress_line_by_line_without_secrets() {
    let world = World::new();
    // It continues only after its first line was seen.
    let script =
        "echo first hunter2 >&2; until [ -e go ]; do sleep 0.01; done; printf 'second' >&2; echo '\"hunter2\"'";
    let mut command = sh(&world, script);
    command.redact = Some(Arc::new(|text: &str| text.replace("hunter2", "[redacted]")));
    let windlass = Windlass::in_memory().tool(tool(command)).await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let mut watch = windlass.runtime().watch(run, Cursor::START).await.unwrap();
    let mut lines = Vec::new();
    while let Some(activity) = watch.next().await {
        if let Happening::Progress { message } = activity.unwrap().what {
            lines.push(message);
            std::fs::write(world.work().join("go"), "").unwrap();
        }
    }
    assert_eq!(lines, ["first [redacted]", "second"]);
    assert_eq!(windlass.runtime().attach(run).await.unwrap()[0].value(), Some(&json!("[redacted]")));
}

#[tokio::test]
async fn output_over_the_limit_is_an_error_and_the_command_runs_to_its_end() {
    let world = World::new();
    let mut command = sh(&world, "head -c 300000 /dev/zero; echo x > ended");
    command.max_output = 1000;
    let (kind, message) = error(command).await;
    assert_eq!(kind, "failed");
    assert!(
        message.contains("300000 bytes") && message.contains("1000") && message.contains("max_output"),
        "{message}"
    );
    assert!(world.work().join("ended").exists());
    let mut command = sh(&world, "printf '%s' 1234567890");
    command.max_output = 10;
    assert_eq!(value(command).await, json!(1_234_567_890));
}

#[tokio::test]
async fn much_standard_error_is_limited() {
    let world = World::new();
    let outcome = value(sh(&world, "yes 'line of noise' | head -c 5000000 >&2; echo fine")).await;
    assert_eq!(outcome, json!("fine"));
    let (_, message) = error(sh(&world, "head -c 3000000 /dev/zero >&2; exit 1")).await;
    assert!(message.len() < 20_000, "{}", message.len());
}

#[tokio::test]
async fn a_command_that_cannot_be_run_reports_why() {
    let world = World::new();
    for (argv, word) in [
        (&["/no/such/program"][..], "/no/such/program"),
        (&["no-such-program"], "PATH"),
        (&["/etc/passwd"], "executable"),
        (&["./missing"], "missing"),
    ] {
        let (kind, message) = error(Command { sandbox: sh(&world, "").sandbox, ..world.command(argv) }).await;
        assert_eq!(kind, "unavailable", "{message}");
        assert!(message.contains(word) && message.contains("could not be run"), "{argv:?}: {message}");
    }
    let mut nowhere = sh(&world, "true");
    nowhere.dir = Some("/no/such/folder".into());
    let (kind, message) = error(nowhere).await;
    assert!(kind == "unavailable" && message.contains("/no/such/folder"), "{message}");
    let mut bad = sh(&world, "true");
    bad.launcher = Launcher::new(["/no/launcher"]);
    let (kind, message) = error(bad).await;
    assert!(kind == "unavailable" && message.contains("/no/launcher"), "{message}");
    let mut bad = sh(&world, "true");
    bad.argv[0] = "{args.program}".to_owned();
    let (kind, message) = error(bad).await;
    assert!(kind == "unavailable" && message.contains("argv[0]"), "{message}");
    assert_eq!(world.records(), 0);
}

#[tokio::test]
async fn a_command_cannot_imitate_its_launcher() {
    let world = World::new();
    // It prints a message like the launcher's, but cannot know the nonce.
    let script = "echo 00000000000000000000000000000000 it cannot be sandboxed >&2; \
                  cat /proc/self/cmdline | tr '\\0' ' '; exit 125";
    let (kind, message) = error(sh(&world, script)).await;
    assert!(kind == "failed" && message.contains("code 125"), "{message}");
}

#[tokio::test]
async fn a_script_in_the_working_directory_runs() {
    let world = World::new();
    let script = world.work().join("tool.sh");
    std::fs::write(&script, "#!/bin/sh\nread line\necho \"$line\"\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = world.command(&["./tool.sh"]);
    command.sandbox.level = sh(&world, "").sandbox.level;
    assert_eq!(call(command, json!({"x": 1})).await.value(), Some(&json!({"x": 1})));
}

#[tokio::test]
async fn concurrent_commands_get_their_own_results() {
    let world = World::new();
    let echo = sh(&world, "cat").tool(ToolSpec::new("run", "Echoes"), Schemas::any()).effect(Effect::Readonly);
    let windlass = Windlass::in_memory().tool(echo).await.unwrap();
    let calls = (0..40).map(|n| ToolCall::new("run", json!({"n": n})));
    let outcomes = windlass.batch(calls).await.unwrap();
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.value(), Some(&json!({"n": n})));
    }
    assert_eq!(world.records(), 0);
}
