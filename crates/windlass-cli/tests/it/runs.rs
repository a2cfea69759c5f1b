//! `windlass runs …`

use serde_json::{Value, json};

use crate::world::{Backend, World, both_ways, exists, has, until};

fn echo(world: &World, text: &str) -> String {
    let answer = world.json(&["call", "echo", "--args", &json!({"text": text}).to_string()]);
    answer["run"].as_str().unwrap().to_owned()
}

/// A run that waits for approval.
fn waiting_run(world: &World, cents: u64) -> String {
    let args = json!({"to": "Ada", "cents": cents}).to_string();
    if backend_of(world) == Backend::File {
        let key = format!("pay-{cents}");
        world.fails(6, &["call", "pay", "--key", &key, "--args", &args]);
        return world.json(&["runs", "show", "--key", &key])["run"]["id"].as_str().unwrap().to_owned();
    }
    let run = world.ok(&["-q", "call", "pay", "--detach", "--args", &args]).trim().to_owned();
    until("the run waits for approval", || {
        let inbox = world.json(&["inbox", "--run", &run]);
        inbox["items"].as_array().is_some_and(|items| !items.is_empty()).then_some(())
    });
    run
}

/// Runs a server until this run has finished.
fn drive(world: &World, run: &str) {
    let server = world.serve(&[]);
    until("it has finished", || (world.json(&["runs", "show", run])["run"]["state"] == "finished").then_some(()));
    assert_eq!(server.stop(), 0);
}

/// Whether a server has the file open.
fn backend_of(world: &World) -> Backend {
    let owner = windlass::store::file_owner(world.path("windlass.db")).unwrap();
    if owner.is_some() { Backend::Server } else { Backend::File }
}

#[test]
fn runs_are_listed_for_people_and_for_programs() {
    both_ways(|world, _| {
        let (first, second) = (echo(world, "a"), echo(world, "b"));
        let listed = world.json(&["runs", "list"]);
        let ids: Vec<&str> = listed["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [second.as_str(), first.as_str()], "newest first");
        assert_eq!(listed["more"], false);
        let one = world.json(&["runs", "list", "--limit", "1", "--oldest", "--tool", "echo"]);
        assert_eq!((one["runs"][0]["id"].as_str(), &one["more"]), (Some(first.as_str()), &json!(true)));
        let lines = world.ok(&["runs", "list"]);
        has(&lines, &["RUN", "STATE", "TOOL", &first[..13], "ok", "echo"]);
        assert!(!lines.contains('\u{1b}'), "no colours in a pipe");
        assert_eq!(world.json(&["runs", "list", "--state", "held"])["runs"], json!([]));
        assert_eq!(world.ok(&["runs", "list", "--session", "none"]), "");
    });
}

#[test]
fn every_state_that_is_printed_is_accepted_as_a_filter() {
    both_ways(|world, backend| {
        let (first, second) = (echo(world, "a"), echo(world, "b"));
        for _ in 0..3 {
            world.fails(1, &["call", "broken"]);
        }
        let cancelled = waiting_run(world, 500);
        world.ok(&["runs", "cancel", &cancelled]);
        if backend == Backend::File {
            drive(world, &cancelled);
        }
        let list = |args: &[&str]| world.json(&[&["runs", "list"], args].concat());
        let ids = |listed: &Value| -> Vec<String> {
            listed["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
        };
        until("it is cancelled", || (ids(&list(&["--state", "cancelled"])) == [cancelled.clone()]).then_some(()));
        let ok = ids(&list(&["--state", "ok"]));
        assert!(ok.contains(&first) && ok.contains(&second) && !ok.contains(&cancelled), "{ok:?}");
        let failed = list(&["--state", "failed"]);
        assert_eq!((ids(&failed).len(), &failed["more"]), (3, &json!(false)), "{failed}");
        assert!(failed["runs"].as_array().unwrap().iter().all(|run| run["ending"] == "failed"), "{failed}");
        // The limit counts matching runs, not those that were read.
        let oldest = list(&["--state", "failed", "--limit", "2", "--oldest"]);
        assert_eq!((ids(&oldest).len(), &oldest["more"]), (2, &json!(true)), "{oldest}");
        for state in ["queued", "running", "suspended", "held", "finished", "lost", "in doubt", "in-doubt", "inbox"] {
            world.ok(&["runs", "list", "--state", state]);
        }
    });
}

#[test]
fn a_run_is_found_by_the_key_it_was_started_under() {
    both_ways(|world, _| {
        let args = ["call", "echo", "--args", r#"{"text": "ahoy"}"#, "--key", "7/a"];
        let run = world.json(&args)["run"].as_str().unwrap().to_owned();
        echo(world, "another");
        assert_eq!(world.ok(&["runs", "show", "--key", "7/a"]), world.ok(&["runs", "show", &run]));
        let listed = world.json(&["runs", "list", "--key", "7/a"]);
        assert_eq!(listed["runs"].as_array().unwrap().len(), 1);
        assert_eq!(listed["runs"][0]["id"], run.as_str());
        assert_eq!(world.json(&["runs", "list", "--key", "8/a"])["runs"], json!([]));
        has(&world.fails(3, &["runs", "show", "--key", "8/a"]), &["no run was started under the key `8/a`"]);
        has(&world.fails(2, &["runs", "show"]), &["RUN"]);
        has(&world.fails(2, &["runs", "show", &run, "--key", "7/a"]), &["cannot be used with"]);
    });
}

#[test]
fn l19_l23_a_run_is_shown_as_a_timeline() {
    both_ways(|world, _| {
        let run = echo(world, "ahoy");
        let shown = world.ok(&["runs", "show", &run]);
        has(&shown, &["echo", &run, "ok", "took", "✓ echo text=ahoy", "█", "\"text\": \"ahoy\""]);
        assert!(!shown.contains('\u{1b}'), "no colours in a pipe");
        has(&world.ok(&["--color", "always", "runs", "show", &run]), &["\u{1b}[32m"]);
        let wide = |columns: &str| {
            let output = world.command(&["runs", "show", &run]).env("COLUMNS", columns).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().find(|line| line.contains("echo text")).unwrap().chars().filter(|c| *c == '█').count()
        };
        assert!(wide("160") > wide("70"), "the bars use the available width");
        let journal = world.ok(&["runs", "show", &run, "--journal"]);
        has(&journal, &["    0  /", "finished"]);
        let document = world.json(&["runs", "show", &run, "--journal"]);
        assert!(document["journal"].as_array().is_some_and(|records| !records.is_empty()));
        assert_eq!(document["trace"]["tool"], "echo");
    });
}

#[test]
fn a_unique_prefix_of_an_id_names_a_run() {
    both_ways(|world, _| {
        let runs: Vec<String> = (0..3).map(|i| echo(world, &i.to_string())).collect();
        let shared = runs[0].bytes().zip(runs[1].bytes()).take_while(|(a, b)| a == b).count();
        let whole = world.ok(&["runs", "explain", &runs[0]]);
        // The last digits are random, so a long prefix is unique.
        assert_eq!(world.ok(&["runs", "explain", &runs[0][..28]]), whole);
        assert_eq!(world.ok(&["runs", "explain", &runs[0][..28].replace('-', "").to_uppercase()]), whole);
        let text = world.fails(2, &["runs", "show", &runs[0][..shared.min(8)]]);
        has(&text, &["matches several runs", "type more characters", &runs[0], &runs[1]]);
        has(
            &world.fails(3, &["runs", "show", "ffffffff"]),
            &["no run has an id that begins with `ffffffff`", "windlass runs list"],
        );
        has(&world.fails(2, &["runs", "show", "it"]), &["`it` is not a valid run id"]);
        let unknown = "01890000-0000-7000-8000-000000000000";
        has(&world.fails(3, &["runs", "show", unknown]), &[unknown]);
    });
}

#[test]
fn w12_explain_says_what_a_run_waits_for() {
    both_ways(|world, _| {
        let run = waiting_run(world, 500);
        let text = world.ok(&["runs", "explain", &run]);
        has(&text, &["has been waiting", "pay"]);
        assert_eq!(text.trim().lines().count(), 1, "one sentence: {text}");
        assert_eq!(world.json(&["runs", "explain", &run])["run"], run.as_str());
        let shown = world.ok(&["runs", "show", &run]);
        has(&shown, &["waits for approval", "windlass inbox --run"]);
        has(&world.ok(&["runs", "list", "--state", "inbox"]), &["approval of pay"]);
    });
}

#[test]
fn a_run_is_cancelled_and_shows_by_whom() {
    both_ways(|world, backend| {
        let run = waiting_run(world, 500);
        has(&world.ok(&["runs", "cancel", &run, "--reason", "changed my mind"]), &[&run, "cancelled"]);
        if backend == Backend::File {
            // The cancellation takes effect when the run is driven.
            drive(world, &run);
        }
        let shown = until("it has finished", || {
            let shown = world.json(&["runs", "show", &run]);
            (shown["run"]["state"] == "finished").then_some(shown)
        });
        assert_eq!(shown["run"]["ending"], "cancelled", "{shown}");
        has(&world.ok(&["runs", "show", &run]), &["cancelled by local: changed my mind"]);
        let text = world.fails(4, &["runs", "cancel", &run]);
        has(&text, &["finished"]);
    });
}

#[test]
fn w10_a_run_is_forked_with_a_change_and_compared() {
    both_ways(|world, backend| {
        let run = echo(world, "before");
        let forked = world.ok(&["-q", "runs", "fork", &run, "--at", "start", "--args", r#"{"text": "after"}"#]);
        let forked = forked.trim().to_owned();
        assert_ne!(forked, run);
        if backend == Backend::File {
            drive(world, &forked);
        }
        until("the fork finishes", || {
            (world.json(&["runs", "show", &forked])["run"]["state"] == "finished").then_some(())
        });
        assert_eq!(world.json(&["runs", "show", &forked])["run"]["outcomes"][0]["value"]["text"], "after");
        let compared = world.ok(&["runs", "compare", &run, &forked]);
        has(&compared, &["before", "after"]);
        has(&world.fails(4, &["runs", "fork", &run, "--at", "9/9"]), &["9/9"]);
    });
}

#[test]
fn a_run_is_exported_purged_and_imported() {
    both_ways(|world, _| {
        let run = echo(world, "keep me");
        world.ok(&["runs", "export", &run, "--to", "run.json"]);
        let piped = world.ok(&["runs", "export", &run]);
        assert_eq!(
            serde_json::from_str::<Value>(&piped).unwrap(),
            serde_json::from_str::<Value>(&world.read("run.json")).unwrap()
        );
        has(&world.ok(&["runs", "purge", &run]), &[&run, "purged"]);
        world.fails(3, &["runs", "show", &run]);
        has(&world.ok(&["runs", "import", "run.json"]), &[&run]);
        assert_eq!(world.json(&["runs", "show", &run])["run"]["outcomes"][0]["value"]["text"], "keep me");
        has(&world.fails(3, &["runs", "import", "nothing.json"]), &["the file nothing.json does not exist"]);
        world.write("bad.json", "{\"version\": 1");
        world.fails(2, &["runs", "import", "bad.json"]);
    });
}

#[test]
fn w04_journals_are_checked_against_the_current_tools() {
    both_ways(|world, backend| {
        let run = waiting_run(world, 500);
        has(&world.ok(&["runs", "replay-check", &run]), &["✓", &run]);
        assert_eq!(world.json(&["runs", "replay-check", "--all"])["fit"], 1);
        if backend == Backend::File {
            let config = world.read("windlass.toml").replace("[tool.pay]", "[tool.spend]");
            world.write("windlass.toml", &config);
            let text = world.fails(1, &["runs", "replay-check", &run]);
            has(&text, &["✗", "pay"]);
        }
    });
}

#[test]
fn w04_a_held_run_is_resumed_or_finished_by_hand() {
    let world = World::new();
    let (first, second) = (waiting_run(&world, 500), waiting_run(&world, 600));
    let config = world.read("windlass.toml");
    world.write("windlass.toml", &config.replace("[tool.pay]", "[tool.spend]"));
    for run in [&first, &second] {
        world.ok(&["-q", "inbox", "approve", "--run", run]);
    }
    let server = world.serve(&[]);
    until("they are held", || {
        (world.json(&["runs", "list", "--state", "held"])["runs"].as_array().map(Vec::len) == Some(2)).then_some(())
    });
    has(&world.ok(&["runs", "show", &first]), &["held", "tool missing", "pay"]);
    has(&world.fails(2, &["runs", "finish", &first, "--reason", "paid by hand"]), &["--value JSON or --error MESSAGE"]);
    world.ok(&["runs", "finish", &first, "--value", "{\"paid\": true}", "--reason", "paid by hand"]);
    assert_eq!(world.json(&["runs", "show", &first])["run"]["outcomes"][0]["value"], json!({"paid": true}));
    world.write("windlass.toml", &config);
    server.signal("HUP");
    let ended = || (world.json(&["runs", "show", &second])["run"]["state"] == "finished").then_some(());
    until("the tool is back", || {
        // The reload may have resumed it already.
        world.run(&["runs", "resume", &second]);
        ended()
    });
    assert_eq!(server.stop(), 0);
}

#[test]
fn w01_a_doubt_is_settled_by_a_person_after_a_kill() {
    let world = World::new();
    let mut server = world.serve(&[]);
    let run = world.ok(&["-q", "call", "slow", "--detach"]).trim().to_owned();
    until("the attempt is running", || exists(&world.path("slow/started")));
    server.child.kill().unwrap();
    server.wait();
    let server = world.serve(&[]);
    let item =
        until("the doubt is in the inbox", || world.json(&["inbox", "--kind", "doubt"])["items"].get(0).cloned());
    assert_eq!(item["run"], run.as_str());
    let text = world.ok(&["inbox"]);
    has(&text, &["doubt", "slow", "--did-not-happen", "--give-up", "settle"]);
    // The operator finds the attempt in the books of the other system by its key.
    let key = format!("{run}.0");
    assert_eq!(item["idempotency_key"], key.as_str());
    for args in [&["inbox"][..], &["runs", "show", &run], &["runs", "explain", &run]] {
        has(&world.ok(args), &["idempotency key", &key]);
        assert!(world.json(args).to_string().contains(&format!("\"idempotency_key\":\"{key}\"")), "{args:?}");
    }
    has(&world.fails(2, &["inbox", "settle", "--all", "--reason", "x"]), &["--happened"]);
    world.ok(&["inbox", "settle", "--run", &run, "--happened", "{\"seen\": true}", "--reason", "looked at it"]);
    until("the run finishes", || (world.json(&["runs", "show", &run])["run"]["state"] == "finished").then_some(()));
    let shown = world.ok(&["runs", "show", &run]);
    has(&shown, &["╎", "?", "the process that drove the run died", "settled by local: looked at it", "\"seen\": true"]);
    drop(server);
}
