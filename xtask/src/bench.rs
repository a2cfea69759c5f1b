//! `cargo xtask bench`: our benchmarks, or with `--peers` other systems and ours in one process.
//!
//! The peers are a package outside the workspace: their dependencies must not enter the workspace's lock file. One of
//! them asks for a newer compiler than it needs, hence `--ignore-rust-version`.

use anyhow::Result;

use crate::cargo::Cargo;

const OURS: &str = "run --release -p windlass-bench --";
const PEERS: &str = "run --release --ignore-rust-version --manifest-path crates/windlass-bench/peers/Cargo.toml --";

pub(crate) fn main(args: &[String]) -> Result<()> {
    invocation(args).run()
}

/// Everything but `--peers` is the benchmark program's business.
fn invocation(args: &[String]) -> Cargo {
    let peers = args.iter().any(|arg| arg == "--peers");
    Cargo::new(if peers { PEERS } else { OURS }).args(args.iter().filter(|arg| *arg != "--peers").cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(args: &[&str], expected: &str) {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        assert_eq!(invocation(&args).to_string(), expected);
    }

    #[test]
    fn arguments_are_passed_on() {
        check(&[], "cargo run --release -p windlass-bench --");
        check(&["--json", "batch"], "cargo run --release -p windlass-bench -- --json batch");
    }

    #[test]
    fn peers_choose_the_other_package_and_are_not_passed_on() {
        check(
            &["batch", "--peers", "--json"],
            "cargo run --release --ignore-rust-version --manifest-path crates/windlass-bench/peers/Cargo.toml -- batch --json",
        );
    }
}
