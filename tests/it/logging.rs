//! What a program sees of failures whose cause callers do not see.

use std::process::Command;

use serde_json::{Value, json};
use windlass::{Effect, Tool, ToolResult, Windlass};

/// Tells this binary that it is the program.
const PROGRAM: &str = "WINDLASS_TEST_NO_SUBSCRIBER";

/// Two internal errors in a program without a subscriber. Does nothing unless the test below starts it.
#[tokio::test]
async fn program() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let body = |_: Value| async {
        let text: ToolResult<String> = std::fs::read_to_string("/nowhere/at-all").map_err(Into::into);
        text
    };
    let tool = Tool::new("read_notes", "Reads the notes.", body).effect(Effect::Readonly);
    let windlass = Windlass::in_memory().tool(tool).await.unwrap();
    for _ in 0..2 {
        windlass.call_json("read_notes", json!({})).await.unwrap();
    }
}

#[test]
fn e03_without_a_subscriber_the_first_internal_error_is_printed_with_how_to_see_the_others() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["logging::program", "--exact", "--nocapture"])
        .env(PROGRAM, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    assert_eq!(printed.matches("No such file or directory").count(), 1, "{printed}");
    assert!(printed.contains("`read_notes`: internal error: ") && printed.contains("correlation id"), "{printed}");
    assert!(printed.contains("tracing_subscriber::fmt::init()"), "{printed}");
}

#[test]
fn an_error_that_main_returns_is_printed_as_its_sentence() {
    let error = windlass::Error::Closed;
    assert_eq!(format!("{error:?}"), error.to_string());
}
