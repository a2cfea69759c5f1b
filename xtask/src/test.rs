//! `cargo xtask test`: every gate a change has to pass, in one command.
//!
//! Cheap gates first; the first failure ends it and says how to repeat that gate alone.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cargo::Cargo;
use crate::{Missing, api, deny, no_arguments, rows};

pub(crate) fn main(args: &[String]) -> Result<()> {
    no_arguments("test", args)?;
    set_up()?;
    let installed = Installed { nextest: Cargo::new("nextest --version").succeeds(), cargo_deny: deny::cargo_deny() };
    let gates = gates(installed);
    let mut passed: Vec<(&str, Duration)> = Vec::new();
    for gate in &gates {
        println!("\n== {}: {}", gate.name, gate.repeat());
        let start = Instant::now();
        let result = gate.run();
        let took = start.elapsed();
        if let Err(error) = result {
            summary(&passed);
            println!("  FAILED  {:8}  {:>8}", gate.name, seconds(took));
            return Err(error.context(format!("gate `{}` failed; repeat it with `{}`", gate.name, gate.repeat())));
        }
        println!("-- {} passed in {}", gate.name, seconds(took));
        passed.push((gate.name, took));
    }
    summary(&passed);
    println!("all {} gates passed in {}", passed.len(), seconds(passed.iter().map(|(_, took)| *took).sum()));
    Ok(())
}

/// What this machine has beyond Rust itself.
struct Installed {
    nextest: bool,
    cargo_deny: Option<Cargo>,
}

struct Gate {
    name: &'static str,
    work: Work,
}

enum Work {
    Cargo(Cargo),
    Rows,
    Api,
    Licences,
}

impl Gate {
    fn run(&self) -> Result<()> {
        match &self.work {
            Work::Cargo(cargo) => cargo.run(),
            Work::Rows => rows::gate(),
            Work::Api => api::gate(),
            Work::Licences => deny::own_gate(),
        }
    }

    /// The command that runs this gate alone.
    fn repeat(&self) -> String {
        match &self.work {
            Work::Cargo(cargo) => cargo.to_string(),
            Work::Rows => "cargo xtask rows".to_owned(),
            Work::Api => "cargo xtask api".to_owned(),
            Work::Licences => "cargo xtask deny".to_owned(),
        }
    }
}

/// The gates in the order they run.
fn gates(installed: Installed) -> Vec<Gate> {
    let cargo = |name, line: &str| Gate { name, work: Work::Cargo(Cargo::new(line)) };
    let mut gates = vec![
        cargo("fmt", "fmt --all --check"),
        cargo("clippy", "clippy --workspace --all-targets --locked -- -D warnings"),
        Gate { name: "rows", work: Work::Rows },
    ];
    if installed.nextest {
        gates.push(cargo("tests", "nextest run --workspace --locked"));
        gates.push(cargo("doctests", "test --doc --workspace --locked"));
    } else {
        // Plain `cargo test` runs the doctests too.
        gates.push(cargo("tests", "test --workspace --locked"));
    }
    gates.push(Gate { name: "api", work: Work::Api });
    gates.push(Gate {
        name: "docs",
        work: Work::Cargo(Cargo::new("doc --workspace --no-deps --locked").env("RUSTDOCFLAGS", "-D warnings")),
    });
    let work = installed.cargo_deny.map_or(Work::Licences, Work::Cargo);
    gates.push(Gate { name: "licences", work });
    gates
}

/// Brings in what a minimal Rust installation lacks.
fn set_up() -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let installed = || Cargo::new(subcommand).args(["--version"]).succeeds();
        if installed() {
            continue;
        }
        println!("== set-up: rustup component add {component}");
        let added = Command::new("rustup").args(["component", "add", component]).status();
        if !(added.is_ok_and(|status| status.success()) && installed()) {
            let by_hand = format!("install {component}, as with `rustup component add {component}`");
            return Err(
                Missing(format!("`cargo {subcommand}` is missing and could not be installed; {by_hand}")).into()
            );
        }
    }
    // Now rather than after all the gates before it: who has to install something by hand should know at once.
    api::set_up().map(drop)
}

fn summary(passed: &[(&str, Duration)]) {
    println!("\n== summary");
    for (name, took) in passed {
        println!("  passed  {name:8}  {:>8}", seconds(*took));
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(installed: Installed, expected: &[&str]) {
        let gates: Vec<String> =
            gates(installed).iter().map(|gate| format!("{}: {}", gate.name, gate.repeat())).collect();
        assert_eq!(gates, expected);
    }

    #[test]
    fn gates_where_everything_is_installed() {
        check(
            Installed { nextest: true, cargo_deny: Some(Cargo::new("deny check")) },
            &[
                "fmt: cargo fmt --all --check",
                "clippy: cargo clippy --workspace --all-targets --locked -- -D warnings",
                "rows: cargo xtask rows",
                "tests: cargo nextest run --workspace --locked",
                "doctests: cargo test --doc --workspace --locked",
                "api: cargo xtask api",
                "docs: RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked",
                "licences: cargo deny check",
            ],
        );
    }

    #[test]
    fn gates_with_rust_alone() {
        check(
            Installed { nextest: false, cargo_deny: None },
            &[
                "fmt: cargo fmt --all --check",
                "clippy: cargo clippy --workspace --all-targets --locked -- -D warnings",
                "rows: cargo xtask rows",
                "tests: cargo test --workspace --locked",
                "api: cargo xtask api",
                "docs: RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked",
                "licences: cargo xtask deny",
            ],
        );
    }
}
