//! Runs every example as a process, and compares its output.
//!
//! These tests are not with the other end-to-end tests, because cargo builds programs for the tests of their own
//! package only.

#![allow(clippy::expect_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The path of an example.
macro_rules! example {
    ($name:literal) => {
        Path::new(env!(concat!("CARGO_BIN_EXE_", $name)))
    };
}

/// The output of an example, with run ids replaced.
fn output(program: &Path, file: Option<&str>) -> String {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new(program).args(file).current_dir(folder.path()).output().expect("the example starts");
    let text = String::from_utf8(output.stdout).expect("the example prints text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    if let Some(file) = file {
        assert!(folder.path().join(file).exists(), "the example did not use its file");
    }
    without_ids(&text)
}

/// `text` with every run id replaced by `<run>`.
fn without_ids(text: &str) -> String {
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
    let id_at = |text: &str| {
        let id = text.get(..36)?;
        let groups: Vec<&str> = id.split('-').collect();
        let hex = groups.iter().all(|group| group.chars().all(|c| c.is_ascii_hexdigit()));
        (hex && groups.iter().map(|group| group.len()).eq(GROUPS)).then_some(id.len())
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match id_at(rest) {
            Some(length) => {
                out.push_str("<run>");
                rest = &rest[length..];
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

#[track_caller]
fn check(program: &Path, file: Option<&str>, expected: &str) {
    assert_eq!(output(program, file).trim_end(), expected.trim_matches('\n'));
}

#[test]
fn quickstart_prints_its_results() {
    check(
        example!("quickstart"),
        Some("app.db"),
        r#"
typed:    2 + 3 = 5
by name:  5.0
in batch: call_1 -> 2.0
in batch: call_2 -> {"error":{"kind":"invalid_arguments","message":"the arguments do not fit the tool's schema: /b: \"one\" is not of type \"number\"","retryable":false,"violations":[{"message":"\"one\" is not of type \"number\"","pointer":"/b"}]}}
in batch: call_3 -> {"error":{"kind":"unavailable","message":"there is no tool `ad`; did you mean `add`?","retryable":false}}
journal:  run <run> has 1 record(s) in app.db
"#,
    );
}

#[test]
fn quickstart_needs_no_argument() {
    assert!(output(example!("quickstart"), None).contains("in quickstart.db"));
}

#[test]
fn e03_atomic_shows_every_kind_of_error_and_hides_the_internal_one() {
    let printed = output(example!("atomic"), None);
    assert!(!printed.contains("hunter2"), "{printed}");
    let after = |title: &str| printed.split_once(title).map_or("", |(_, rest)| rest);
    assert!(after("Plain:").trim_start().starts_with("100 °F are 37.8 °C\n  37.8\n"), "{printed}");
    let retried = "attempt 1 of 3 sends its key\n  attempt 2 of 3 sends its key\n  ada@example.com is subscribed\n  \
                   the list has 1 request(s)\n";
    assert!(after("Retried with one key:").trim_start().starts_with(retried), "{printed}");
    assert!(after("A closure:").trim_start().starts_with("3\n"), "{printed}");
    let errors: Vec<&str> = after("Errors, as the model sees them:").trim().lines().map(str::trim).collect();
    let expected = [
        r#"withdraw: {"error":{"kind":"failed","message":"the account holds 500 cents; ask for less","retryable":false}}"#,
        r#"withdraw: {"error":{"kind":"invalid_arguments","message":"the arguments do not fit the tool's schema: /cents: -1 is less than the minimum of 0; Additional properties are not allowed ('currency' was unexpected)","retryable":false,"violations":[{"message":"-1 is less than the minimum of 0","pointer":"/cents"},{"message":"Additional properties are not allowed ('currency' was unexpected)","pointer":""}]}}"#,
        r#"settings: {"error":{"kind":"internal","message":"an internal error occurred (correlation id <run>:/:1)","retryable":false}}"#,
        r#"withdrew: {"error":{"kind":"unavailable","message":"there is no tool `withdrew`; did you mean `withdraw`?","retryable":false}}"#,
    ];
    assert_eq!(errors, expected);
}

#[test]
fn l09_l21_durable_prints_its_journal_and_repeats_nothing() {
    check(
        example!("durable"),
        Some("trip.db"),
        r#"
booked: {"car":"a car in Oslo","receipt":"Ada paid 120","room":"a room in Oslo","seat":"12A","weather":["day 1 in Oslo: rain","day 2 in Oslo: sun","day 3 in Oslo: rain"]}
effects: 4
journal:
  /    call of tool `book_trip`     accepted, entered, finished
  0    step "look up the fare"      finished
  1    step "reserve a seat"        finished
  2    call of tool `charge`        intended, finished
  3    batch of 2 calls             entered
  3/0  call of tool `find_room`     finished
  3/1  call of tool `find_car`      finished
  4    batch of 3 calls             entered
  4/0  call of tool `weather`       finished
  4/1  call of tool `weather`       finished
  4/2  call of tool `weather`       finished
  5    2 parallel steps             entered
  5/0  step "mail the customer"     intended, finished
  5/1  step "mail the hotel"        intended, finished
attached again: "Ada paid 120"
effects: 4
"#,
    );
}

#[test]
fn l03_by_hand_fetches_a_schema_once_and_only_when_needed() {
    check(
        example!("by_hand"),
        None,
        r#"
302 tools, 0 schemas fetched
price:     {"cents":30}
beside it: [Text { text: "apple costs 30 cents" }], raw "apple,30"
no price:  {"error":{"kind":"failed","message":"no price for \"plum\"","retryable":false}}
basket:    75
remote_7:  "remote_7 did {\"x\":1}" (1 fetched)
remote_7:  {"error":{"kind":"invalid_arguments","message":"the arguments do not fit the tool's schema: \"x\" is a required property","retryable":false,"violations":[{"message":"\"x\" is a required property","pointer":""}]}} (1 fetched)
unlisted:  "remote_4711 did {\"x\":1}" (2 fetched)
remote_13: {"error":{"kind":"unavailable","message":"the catalogue has no schema of remote_13","retryable":false}}
"#,
    );
}

#[test]
fn l16_a_file_is_readable_in_its_session_only() {
    let expected = r#"
the outcome: {"rows":100000}
refers to:   "report.csv", 1642641 bytes, text/csv
ada sees:    "1642641 bytes, beginning with \"0,0\\n1,1\\n2,4\""
bob sees:    nothing
the program: 100000 lines, in 7 pieces of up to 262144 bytes
"#;
    check(example!("artifacts"), None, expected);
    check(example!("artifacts"), Some("app.db"), expected);
}

#[test]
fn b02_layers_shadow_hide_and_unmount_tools() {
    check(
        example!("layers"),
        None,
        r#"
all sessions see:        delete_all, greet
the guest sees:          add_event, greet, list_events
all sessions:
  greet: "Hello, Ada."
  delete_all: null
  add_event: {"error":{"kind":"unavailable","message":"there is no tool `add_event`","retryable":false}}
the guest:
  greet: "Good day, Ada."
  delete_all: {"error":{"kind":"unavailable","message":"there is no tool `delete_all`","retryable":false}}
  add_event: "add_event is done"
now the guest sees:      greet, news
  greet: "Hello, Ada."
all sessions still see:  delete_all, greet, news
"#,
    );
}

#[test]
fn w11_the_crash_matrix_runs_on_your_own_tools() {
    let printed = output(example!("crash_matrix"), None);
    let blocks: Vec<&str> = printed.lines().filter(|line| !line.starts_with(' ')).collect();
    let titles: Vec<&str> = blocks.iter().filter_map(|line| line.split(':').next()).collect();
    let expected = [
        "a charge, in memory",
        "a trip, in memory",
        "a trip, two crashes each",
        "a question, with its answer",
        "a charge, on SQLite",
        "a trip, on SQLite",
    ];
    assert_eq!(titles, expected);
    // The number of commits may change. Every crash point must be tried, and money must move exactly once.
    for line in &blocks {
        let numbers: Vec<u32> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        assert!(matches!(numbers[..], [points, runs] if points >= 6 && runs >= points), "{line}");
    }
    assert_eq!(printed.matches("  charge: 1\n").count(), 6, "{printed}");
    assert!(printed.contains("  outcome: [\"receipt 1\"]\n"), "{printed}");
    assert_eq!(printed.matches("  seat: 1\n").count(), 3, "{printed}");
    let outcome = r#"  outcome: [{"fare":120,"receipt":"receipt 1","seat":"12A"}]"#;
    assert_eq!(printed.matches(outcome).count(), 3, "{printed}");
}

#[test]
fn w01_a_person_settles_a_doubt_after_a_real_crash() {
    check(
        example!("doubt"),
        Some("doubt.db"),
        r#"
the first process succeeded: false
in doubt: call of tool `charge` at / (attempt 1): the worker was lost during the attempt
the provider's ledger has 1 charge(s) of run <run>
outcome:  "Ada paid 500"
doubts:   0
charges:  1
journal:  settled by Person("grace"): found it in the provider's ledger
"#,
    );
}

#[test]
fn every_example_is_tested() {
    let this = include_str!("output.rs");
    for entry in std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("the examples are there") {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            assert!(this.contains(&format!("example!(\"{name}\")")), "no test runs the example `{name}`");
        }
    }
}

#[test]
fn l10_w03_waiting_outlives_its_process_and_undoes_a_denied_run() {
    let printed = output(example!("waiting"), Some("waiting.db"));
    // The runs print in either order.
    let (messages, rest): (Vec<&str>, Vec<&str>) = printed.lines().partition(|line| line.contains("the manager says"));
    assert_eq!(messages.len(), 2, "{printed}");
    let expected = [
        "the process is gone, the runs wait",
        "both are answered",
        r#""12A: Ada paid 24000""#,
        "  seat 12A is free again",
        r#"{"error":{"kind":"denied","message":"denied by grace: owes us money","retryable":false}}"#,
    ];
    assert_eq!(rest, expected);
}

/// Kills the process when the test fails, so that it does not outlive it.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn l09_l10_agent_backend_continues_after_a_kill_and_repeats_no_tool() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(example!("agent_backend"));
    command.arg("agent.db").current_dir(folder.path());
    let mut first = Killed(command.stdout(Stdio::piped()).spawn().expect("the example starts"));
    let mut printed = String::new();
    for line in BufReader::new(first.0.stdout.take().expect("its output")).lines() {
        let line = line.expect("the example prints text");
        printed += &format!("{line}\n");
        if line.starts_with("waiting for approval") {
            break;
        }
    }
    drop(first);
    let before = r#"
  find_orders runs
  open_ticket runs
call_1: ["order 7 of Ada: lamp, 4500 cents, delivered"]
call_2: "ticket of Ada: broken lamp"
waiting for approval: call of tool `refund`
"#;
    assert_eq!(printed.trim_end(), before.trim_matches('\n'));
    let mut command = Command::new(example!("agent_backend"));
    let second = command.args(["agent.db", "grace"]).current_dir(folder.path()).output().expect("the example starts");
    let after = r#"
grace approved: call of tool `refund`
  refund runs
call_3: "4500 cents refunded for order 7"
assistant: "You get 4500 cents back for the lamp."
"#;
    let printed = String::from_utf8(second.stdout).expect("the example prints text");
    assert_eq!(printed.trim_end(), after.trim_matches('\n'), "{}", String::from_utf8_lossy(&second.stderr));
    let page = include_str!("../../docs/agent-backend.md");
    for shown in [before, after] {
        assert!(page.contains(shown.trim_matches('\n')), "docs/agent-backend.md does not show this output:\n{shown}");
    }
}

#[test]
fn serve_answers_over_http_until_it_is_terminated() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("app.db");
    let mut command = Command::new(example!("serve"));
    command.args(["app.db", "127.0.0.1:0"]).current_dir(folder.path());
    let mut server = Killed(command.spawn().expect("the example starts"));
    // The server announces its address beside the database file.
    let began = Instant::now();
    let address = loop {
        let owner = windlass::store::file_owner(&file).expect("the lock file can be read");
        if let Some(address) = owner.and_then(|owner| owner.address) {
            break address;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the server announced no address");
        std::thread::yield_now();
    };
    let host = address.trim_start_matches("http://");
    let body = r#"{"tool": "add", "args": {"a": 2, "b": 3}}"#;
    let head = "Content-Type: application/json\r\nConnection: close\r\n";
    let mut stream = TcpStream::connect(host).expect("the server accepts connections");
    let length = body.len();
    write!(stream, "POST /v1/calls HTTP/1.1\r\nHost: {host}\r\n{head}Content-Length: {length}\r\n\r\n{body}")
        .expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the server answers");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.contains(r#""value":5.0"#), "{response}");

    let pid = server.0.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill starts").success());
    assert!(server.0.wait().expect("the server ends").success(), "SIGTERM shuts the server down cleanly");
    let owner = windlass::store::file_owner(&file).expect("the lock file can be read");
    assert!(owner.is_none(), "the file is closed");
}
