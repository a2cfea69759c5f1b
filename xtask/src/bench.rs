//! `cargo xtask bench`: our benchmarks, or with `--peers` other systems and ours in one run.
//!
//! The peers are two packages outside the workspace: their dependencies must not enter the workspace's lock file. One has
//! tool runtimes beside `--calls`; one of those asks for a newer compiler than it needs, hence `--ignore-rust-version`. The
//! other has durable engines beside `--steps`, and all that is about the disk. What is about HTTP is a program of its own,
//! too, because it needs the server and the binary.

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::cargo::Cargo;

const OURS: &str = "run --release -p windlass-bench --";
const CALLS: &str = "run --release --ignore-rust-version --manifest-path crates/windlass-bench/peers/Cargo.toml --";
const DURABLE: &str = "run --release --manifest-path crates/windlass-bench/durable-peers/Cargo.toml --";

const HTTP: &str = "run --release -p windlass-bench-http --";
/// What it starts, from the same folder.
const BINARIES: &str = "build --release -p windlass-cli -p windlass-bench-http";

/// Parts that are about the disk, and whether a number follows.
const DURABLE_PARTS: [(&str, bool); 5] =
    [("--steps", false), ("--durable", false), ("--restart", true), ("--parked", true), ("--sustained", true)];

pub(crate) fn main(args: &[String]) -> Result<()> {
    let programs = all_invocations(args);
    if args.iter().any(|arg| arg == "--http") {
        Cargo::new(BINARIES).run()?;
    }
    if programs.len() == 1 || !args.iter().any(|arg| arg == "--json") {
        return programs.iter().try_for_each(Cargo::run);
    }
    let reports = programs.iter().map(|program| {
        let text = program.output()?;
        serde_json::from_str(&text).with_context(|| format!("`{program}` printed no JSON object"))
    });
    println!("{:#}", Value::Object(merged(reports.collect::<Result<_>>()?)));
    Ok(())
}

/// With `--http`, its program after those of the other parts that are named. What it heeds of the rest is how often and how.
fn all_invocations(args: &[String]) -> Vec<Cargo> {
    let (http, rest): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| *arg == "--http");
    let rest: Vec<String> = rest.into_iter().cloned().collect();
    if http.is_empty() {
        return invocations(&rest);
    }
    let is_part = |arg: &String| arg == "--calls" || DURABLE_PARTS.iter().any(|(part, _)| part == arg);
    let mut programs = if rest.iter().any(is_part) { invocations(&rest) } else { Vec::new() };
    let rounds = rest.iter().position(|arg| arg == "--rounds").map_or(&[][..], |at| &rest[at..rest.len().min(at + 2)]);
    let json = rest.iter().filter(|arg| *arg == "--json").take(1);
    programs.push(Cargo::new(HTTP).args(json.chain(rounds)));
    programs
}

/// Each program with what is asked of it. Everything but `--peers` is the programs' business, but which part has which
/// peers.
fn invocations(args: &[String]) -> Vec<Cargo> {
    let (mut calls, mut durable, mut both) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match DURABLE_PARTS.iter().find(|(part, _)| part == arg) {
            Some((_, number)) => durable.extend([arg].into_iter().chain(rest.by_ref().take(usize::from(*number)))),
            None if arg == "--calls" || arg == "--instructions" => calls.push(arg),
            None => both.push(arg),
        }
    }
    if !both.iter().any(|arg| *arg == "--peers") {
        return vec![Cargo::new(OURS).args(args)];
    }
    both.retain(|arg| *arg != "--peers");
    let (part, usual) = (["--calls".to_owned(), "--steps".to_owned()], calls.is_empty() && durable.is_empty());
    if usual || (!calls.is_empty() && !calls.contains(&&part[0])) {
        calls.push(&part[0]);
    }
    if usual {
        durable.push(&part[1]);
    }
    let asked = [(CALLS, calls), (DURABLE, durable)];
    let asked = asked.into_iter().filter(|(_, parts)| !parts.is_empty());
    asked.map(|(program, parts)| Cargo::new(program).args(parts).args(both.iter().copied())).collect()
}

/// All parts in one object; what several say, such as of the machine, is taken from the first.
fn merged(reports: Vec<Map<String, Value>>) -> Map<String, Value> {
    let mut all = Map::new();
    for (part, value) in reports.into_iter().flatten() {
        all.entry(part).or_insert(value);
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &[(&str, &str)]) {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let lines: Vec<String> = all_invocations(&args).iter().map(Cargo::to_string).collect();
        let expected: Vec<String> =
            expected.iter().map(|(program, args)| format!("cargo {program} {args}").trim_end().to_owned()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn without_peers_everything_is_passed_on() {
        check("", &[(OURS, "")]);
        check("--json --parked 5 batch", &[(OURS, "--json --parked 5 batch")]);
    }

    #[test]
    fn peers_are_measured_beside_the_parts_they_can_be_compared_with() {
        check("--peers", &[(CALLS, "--calls"), (DURABLE, "--steps")]);
        check("--json --peers --calls batch", &[(CALLS, "--calls --json batch")]);
        check("--peers --instructions", &[(CALLS, "--instructions --calls")]);
        check("--steps --rounds 5 --peers", &[(DURABLE, "--steps --rounds 5")]);
        check("--peers --calls --parked 5 --json", &[(CALLS, "--calls --json"), (DURABLE, "--parked 5 --json")]);
    }

    #[test]
    fn http_is_a_program_of_its_own() {
        check("--http", &[(HTTP, "")]);
        check("--http --json --rounds 5", &[(HTTP, "--json --rounds 5")]);
        check("--steps --http --json", &[(OURS, "--steps --json"), (HTTP, "--json")]);
        check("--http --steps --peers", &[(DURABLE, "--steps"), (HTTP, "")]);
    }

    #[test]
    fn reports_become_one() {
        let report = |value: Value| value.as_object().cloned().unwrap_or_default();
        let reports = vec![report(json!({ "machine": 1, "calls": [2] })), report(json!({ "machine": 3, "steps": 4 }))];
        assert_eq!(Value::Object(merged(reports)), json!({ "machine": 1, "calls": [2], "steps": 4 }));
    }
}
