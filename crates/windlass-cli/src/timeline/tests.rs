use serde_json::{Value, json};
use windlass_server::wire::{Activity, Time};

use super::{SpanKind, Tree, cause, draw};
use crate::style::{Style, width};

const RUN: &str = "01010101-0101-0101-0101-010101010101";
const CHILD: &str = "02020202-0202-0202-0202-020202020202";

fn time(millis: i64) -> Time {
    windlass::Timestamp::from_micros(millis * 1_000).into()
}

fn at(path: &str, millis: i64, kind: &str, mut detail: Value) -> Activity {
    // Progress is live, and has no position.
    let position = (kind != "progress").then_some("0.0");
    let fields = json!({"run": RUN, "position": position, "path": path, "at": time(millis), "kind": kind});
    for (name, value) in fields.as_object().unwrap() {
        detail.as_object_mut().unwrap().entry(name).or_insert(value.clone());
    }
    serde_json::from_value(detail).unwrap()
}

fn call(path: &str, millis: i64, tool: &str, args: Value) -> Activity {
    at(path, millis, "call_started", json!({"tool": tool, "args": args}))
}

fn ended(path: &str, millis: i64, queued: f64, running: f64) -> Activity {
    let times = json!({"queued_ms": queued, "running_ms": running, "total_ms": queued + running});
    at(path, millis, "call_finished", json!({"tool": "x", "attempts": 1, "times": times}))
}

/// Parallel searches, an approval, and a charge during which the process dies.
fn trip() -> Vec<Activity> {
    let approval = json!({"on": {"kind": "approval", "tool": "charge", "digest": "d", "why": "cents > 100"}});
    vec![
        at("/", 0, "run_started", json!({"what": "call of tool `trip`"})),
        call("/", 0, "trip", json!({"city": "Oslo"})),
        at("0", 0, "operation_started", json!({"operation": "batch", "name": "2"})),
        call("0/0", 0, "search", json!({"q": "air"})),
        ended("0/0", 1_000, 0.0, 1_000.0),
        call("0/1", 0, "search", json!({"q": "rail"})),
        ended("0/1", 2_000, 1_000.0, 1_000.0),
        call("1", 2_000, "charge", json!({"cents": 900})),
        at("1", 2_000, "parked", approval),
        at("1", 3_000, "granted", json!({"by": "ada", "reason": "fine"})),
        at("1", 3_000, "attempt_started", json!({"attempt": 1})),
        at("/", 4_000, "run_recovered", json!({})),
        at("1", 4_000, "in_doubt", json!({"attempt": 1, "cause": "worker_lost"})),
        at("1", 5_000, "settled", json!({"attempt": 1, "by": "tool", "reason": "in the ledger"})),
        ended("1", 5_000, 2_000.0, 1_000.0),
        ended("/", 5_000, 0.0, 5_000.0),
        at("/", 5_000, "run_finished", json!({"ending": "ok"})),
    ]
}

fn tree(activities: &[Activity], now_millis: i64) -> Tree {
    Tree::of(activities, time(now_millis))
}

fn drawing(activities: &[Activity], now: i64, columns: usize) -> String {
    let style = Style { colour: false, width: columns };
    draw(&tree(activities, now), &style).iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[test]
fn l19_l23_a_run_is_drawn_with_queue_waits_and_doubt() {
    let expected = "                       0         1s        2s        3s        4s
✓ trip city=Oslo       ──────────────────────────────────────────────────    5.00 s
├─ ✓ 2 calls           ────────────────────                    ╎             2.00 s
│  ├─ ✓ search q=air   ██████████                              ╎             1.00 s
│  └─ ✓ search q=rail  ░░░░░░░░░░██████████                    ╎             2.00 s (1.00 s queued)
└─ ✓ charge cents=900                      ··········██████████??????????    3.00 s
░ queued   █ running   · waiting   ? in doubt   ╎ a process died
    2.00 s  … charge waits for approval: cents > 100
    3.00 s  ✓ charge: approved by ada: fine
    4.00 s  ✕ the process that drove the run died; another process drives it now
    4.00 s  ? charge is in doubt: the process died during the attempt
    5.00 s  ✓ charge: doubt settled by the tool itself: in the ledger";
    // 21 columns of names, 50 of bars, 24 of times, and the gaps.
    let drawn = drawing(&trip(), 9_000, 21 + 2 + 50 + 2 + 24);
    assert_eq!(drawn, expected, "\n{drawn}");
}

#[test]
fn open_calls_are_drawn_up_to_now() {
    let open: Vec<Activity> = trip().into_iter().take(9).collect();
    let tree = tree(&open, 4_000);
    let charge = tree.rows.last().unwrap();
    assert_eq!((charge.sign.1, charge.micros), ('…', 2_000_000));
    assert_eq!(charge.spans.last().unwrap().kind, SpanKind::Parked);
    assert_eq!(tree.rows[0].sign.1, '●', "the body is running: {:?}", tree.rows[0]);
    assert_eq!(tree.end, 4_000_000);
}

#[test]
fn an_unrecorded_attempt_runs_from_its_first_progress_message() {
    let mut open: Vec<Activity> = trip().into_iter().take(4).collect();
    open.push(call("0/1", 0, "search", json!({"q": "rail"})));
    open.push(at("0/0", 500, "progress", json!({"message": "asking"})));
    let tree = tree(&open, 1_000);
    let of = |name: &str| tree.rows.iter().find(|row| row.about == name).unwrap();
    assert_eq!(of("q=air").sign.1, '●');
    let last = of("q=air").spans.last().map(|span| (span.from, span.to, span.kind));
    assert_eq!(last, Some((500_000, 1_000_000, SpanKind::Running)));
    assert_eq!(of("q=rail").sign.1, '○');
}

#[test]
fn l23_a_call_that_is_announced_before_it_is_recorded_has_one_line() {
    let mut open: Vec<Activity> = trip().into_iter().take(3).collect();
    let announced = json!({"tool": "search", "args": {"q": "rail"}, "position": null});
    open.push(at("0/1", 200, "call_started", announced));
    let of = |tree: &Tree| -> Vec<(char, u64)> {
        let rows = tree.rows.iter().filter(|row| row.about == "q=rail");
        rows.map(|row| (row.sign.1, row.micros)).collect()
    };
    assert_eq!(of(&tree(&open, 1_000)), [('○', 800_000)], "it is shown while it is open");
    open.push(call("0/1", 200, "search", json!({"q": "rail"})));
    open.push(ended("0/1", 1_200, 0.0, 1_000.0));
    assert_eq!(of(&tree(&open, 2_000)), [('✓', 1_000_000)], "one line, although it is reported twice");
}

#[test]
fn a_call_with_progress_before_its_record_has_one_line() {
    let mut open: Vec<Activity> = trip().into_iter().take(3).collect();
    open.push(at("0/1", 300, "progress", json!({"message": "asking the railway"})));
    let unrecorded = tree(&open, 1_000);
    let row = unrecorded.rows.last().unwrap();
    assert_eq!((row.name.as_str(), row.branch.as_str()), ("1 more", "   └─ "), "the other call is not recorded yet");
    let row = &unrecorded.rows[unrecorded.rows.len() - 2];
    assert_eq!((row.name.as_str(), row.sign.1, row.branch.as_str()), ("asking the railway", '●', "   ├─ "));
    open.push(call("0/1", 0, "search", json!({"q": "rail"})));
    open.push(ended("0/1", 1_000, 300.0, 700.0));
    let recorded = tree(&open, 1_000);
    assert_eq!(recorded.rows.len(), unrecorded.rows.len());
    let row = &recorded.rows[recorded.rows.len() - 2];
    let spans: Vec<(i64, i64, SpanKind)> = row.spans.iter().map(|span| (span.from, span.to, span.kind)).collect();
    assert_eq!(spans, [(0, 300_000, SpanKind::Queued), (300_000, 1_000_000, SpanKind::Running)]);
    assert_eq!((row.name.as_str(), row.queued), ("search", 300_000));
}

#[test]
fn days_of_waiting_leave_room_for_seconds_of_work() {
    const DAY: i64 = 86_400_000;
    let mut slow = trip();
    for activity in slow.iter_mut().skip(9) {
        activity.at = time(activity.at.as_micros() / 1_000 + 3 * DAY);
    }
    let drawn = drawing(&slow, 0, 110);
    assert!(drawn.contains("┄3 d┄"), "{drawn}");
    let air = drawn.lines().find(|line| line.contains("q=air")).unwrap();
    assert!(air.matches('█').count() > 8, "{drawn}");
    assert!(drawn.lines().any(|line| line.trim_start().starts_with("3 d 0 h  ✓ charge: approved by ada")), "{drawn}");
}

#[test]
fn every_line_of_bars_fits_the_terminal() {
    for columns in [60, 72, 80, 100, 132, 250] {
        let style = Style { colour: false, width: columns };
        let tree = tree(&trip(), 0);
        for line in draw(&tree, &style).iter().take(1 + tree.rows.len()) {
            assert!(width(line) <= columns.max(66), "{columns}: {} {line}", width(line));
        }
    }
    assert_eq!(draw(&Tree::default(), &Style::PLAIN), Vec::<String>::new(), "there are no activities yet");
}

#[test]
fn failures_events_and_child_runs_are_drawn() {
    let mut all = trip();
    all.truncate(2);
    all.push(at("0", 100, "emitted", json!({"name": "sent", "value": 1})));
    all.push(at("1", 200, "spawned", json!({"child": CHILD, "tool": "mail"})));
    let child = |kind: &str, millis: i64, mut detail: Value| {
        detail["run"] = json!(CHILD);
        detail["parent"] = json!({"run": RUN, "path": "1"});
        at("/", millis, kind, detail)
    };
    all.push(child("call_started", 250, json!({"tool": "mail", "args": {"to": "a\u{1b}[31m"}})));
    let failure = json!({"kind": "failed", "message": "bounced", "retryable": false});
    let times = json!({"queued_ms": 0.0, "running_ms": 50.0, "total_ms": 50.0});
    let end = json!({"tool": "mail", "attempts": 3, "times": times, "failure": failure});
    all.push(child("call_finished", 300, end));
    let drawn = drawing(&all, 400, 100);
    assert!(drawn.contains("├─ · event sent 1"), "{drawn}");
    assert!(drawn.contains("└─ · starts mail 02020202-"), "{drawn}");
    assert!(drawn.contains("   └─ ✗ mail to=a□[31m"), "{drawn}");
    assert!(drawn.contains("50 ms, 3 attempts"), "{drawn}");
    assert!(drawn.contains("✗ mail: failed: bounced"), "{drawn}");
    assert!(!drawn.contains('\u{1b}'), "control characters must not reach the terminal");
}

#[test]
fn a_new_generation_has_its_own_tree() {
    let mut all = trip();
    all.truncate(2);
    all.push(at("/", 100, "run_continued", json!({"generation": 1})));
    all.push(call("/", 100, "trip", json!({"city": "Bergen"})));
    let drawn = drawing(&all, 200, 100);
    assert!(drawn.contains("trip city=Oslo") && drawn.contains("trip city=Bergen"), "{drawn}");
    assert!(drawn.contains("continues as generation 1"), "{drawn}");
}

#[test]
fn unknown_activities_of_a_newer_server_are_ignored() {
    let mut all = trip();
    all.push(at("/", 5_000, "future_kind", json!({"detail": ["a", "b"]})));
    assert_eq!(tree(&all, 0), tree(&trip(), 0));
}

#[test]
fn the_timeline_has_colours_if_they_are_on() {
    let style = Style { colour: true, width: 100 };
    let drawn = draw(&tree(&trip(), 0), &style).join("\n");
    assert!(drawn.contains("\u{1b}[32m██"), "running is green");
    assert!(drawn.contains("\u{1b}[33m░"), "queued is yellow");
    assert!(drawn.contains("\u{1b}[35m??"), "doubt is violet");
}

#[test]
fn w01_the_cause_of_a_doubt_includes_the_attempts_message() {
    assert_eq!(cause("timed_out", ""), "the attempt timed out");
    let unclear = "the tool could not determine whether it happened: connection lost";
    assert_eq!(cause("unclear", "connection lost"), unclear);
}

/// The tree of a trace, as `runs show` draws it.
fn of_trace(activities: Vec<Activity>, now: i64) -> Tree {
    let trace = serde_json::from_value(
        json!({"run": RUN, "tool": "trip", "activities": activities, "children": [], "truncated": false}),
    );
    Tree::of_trace(&trace.unwrap(), time(now))
}

#[test]
fn l23_an_attempt_with_an_earlier_time_than_its_call_is_drawn_as_running() {
    // The record of the call has a later reading of the clock than that of its attempt.
    let tree = of_trace(
        vec![
            at("/", 0, "run_started", json!({"what": "call of tool `trip`"})),
            call("/", 0, "trip", json!({})),
            call("0", 12, "charge", json!({"cents": 900})),
            at("0", 11, "attempt_started", json!({"attempt": 1})),
        ],
        2_000,
    );
    let charge = tree.rows.last().unwrap();
    assert_eq!((charge.name.as_str(), charge.sign.1), ("charge", '●'));
    let last = charge.spans.last().map(|span| (span.to, span.kind));
    assert_eq!(last, Some((2_000_000, SpanKind::Running)), "{:?}", charge.spans);
    assert!(charge.spans.iter().all(|span| span.from <= span.to), "{:?}", charge.spans);
}

#[test]
fn l23_signals_are_shown_with_their_names() {
    let sent = json!({"operation": "signal", "name": format!("news to run {CHILD}")});
    let received = json!({"operation": "receive", "name": "news"});
    let all = [
        call("/", 0, "trip", json!({})),
        at("0", 1, "operation_started", sent),
        at("1", 2, "operation_started", received),
    ];
    let names: Vec<String> = tree(&all, 10).rows.into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["trip".to_owned(), format!("sends news to run {CHILD}"), "signal news".to_owned()]);
}
