//! `cargo xtask soak`: the tests of module `soak`, for as long as asked.
//!
//! They are ordinary tests that do a little in every test run; environment variables make them do a lot. The kills by
//! time come last and alone, because they compare how much is done in their first minute and in their last. Between them
//! come the demo, again and again, a server that is killed and stopped under load, terminals that share a file, and hostile
//! commands. Small disks that fill and are freed need a user who may mount them; otherwise the tests say that they are skipped.

use anyhow::{Result, ensure};

use crate::Misuse;
use crate::cargo::Cargo;

const TESTS: &str = "test --release -p windlass-tests --test it --";
const BINARY: &str = "test --release -p windlass-cli --test it --";
const TOOLS: &str = "test --release -p windlass-tools --test it --";
const DEMO: &str = "the_demo_proves_what_it_says";
const SERVER: &str = "kills_by_time_under_load";
const BESIDE: &str = "second_processes_by_time";
const ATTACKS: &str = "outlives_hostile_commands";
const FILTER: &str = "soak::";
const KILLS: &str = "soak::load::";

/// Enough seeds to reach orderings that one test run never sees, in minutes on a laptop.
const DEFAULT_SEEDS: u64 = 2_000;
/// Stories of the simulator, a few milliseconds each.
const DEFAULT_STORIES: u64 = 100_000;
/// Small disks that fill and are freed, under one caller and under many; some five seconds each.
const DEFAULT_DISKS: u64 = 40;
/// Long enough for some thousand kills by time.
const DEFAULT_MINUTES: u64 = 10;

/// As often as the demo has to prove what it says; some five seconds each.
const DEFAULT_DEMOS: u64 = 20;

#[derive(Debug, PartialEq)]
struct Options {
    /// Of the crash matrix.
    seeds: u64,
    /// Of the simulator.
    stories: u64,
    demos: u64,
    /// Disks that fill and are freed.
    disks: u64,
    minutes: u64,
}

pub(crate) fn main(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let all = [(TESTS, FILTER), (BINARY, DEMO), (BINARY, SERVER), (BINARY, BESIDE), (TOOLS, ATTACKS)];
    for (tests, filter) in all {
        let listed = Cargo::new(tests).args(["--list", filter]).output()?;
        // The test harness calls it a success when a filter matches nothing.
        ensure!(
            listed.lines().any(|line| line.ends_with(": test")),
            "no test matches `{filter}`: nothing would be soaked"
        );
    }
    for soak in invocations(&options) {
        println!("== {soak}");
        soak.run()?;
    }
    Ok(())
}

fn invocations(options: &Options) -> [Cargo; 7] {
    let stories = Cargo::new(TESTS)
        .args(["--nocapture", FILTER, "--skip", KILLS])
        .env("WINDLASS_SOAK_SEEDS", options.seeds.to_string())
        .env("WINDLASS_SIM_SEEDS", options.stories.to_string())
        .env("WINDLASS_SOAK_DISKS", options.disks.to_string());
    let for_minutes = |tests, filter: &str| {
        Cargo::new(tests).args(["--nocapture", filter]).env("WINDLASS_SOAK_MINUTES", options.minutes.to_string())
    };
    let demos = Cargo::new(BINARY).args(["--nocapture", DEMO]).env("WINDLASS_SOAK_DEMOS", options.demos.to_string());
    let [server, beside] = [SERVER, BESIDE].map(|filter| for_minutes(BINARY, filter));
    // What the hostile commands are made of: a test is not built with the examples of its crate.
    let probe = Cargo::new("build --release -p windlass-tools --examples --bins");
    [stories, demos, server, beside, probe, for_minutes(TOOLS, ATTACKS), for_minutes(TESTS, KILLS)]
}

fn parse(args: &[String]) -> Result<Options, Misuse> {
    let mut options = Options {
        seeds: DEFAULT_SEEDS,
        stories: DEFAULT_STORIES,
        demos: DEFAULT_DEMOS,
        disks: DEFAULT_DISKS,
        minutes: DEFAULT_MINUTES,
    };
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        let (flag, value) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (arg, None),
        };
        let field = match flag {
            "--seeds" => &mut options.seeds,
            "--stories" => &mut options.stories,
            "--demos" => &mut options.demos,
            "--disks" => &mut options.disks,
            "--minutes" => &mut options.minutes,
            _ => return Err(Misuse(format!("`soak` takes no argument `{arg}`"))),
        };
        let value = value.or_else(|| args.next()).ok_or_else(|| Misuse(format!("`{flag}` needs a number")))?;
        *field = match value.parse() {
            Ok(number) if number > 0 => number,
            _ => return Err(Misuse(format!("`{flag}` needs a number above zero, not `{value}`"))),
        };
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&args).map_err(|misuse| misuse.to_string())
    }

    #[test]
    fn flags_are_read_in_both_spellings() {
        let (seeds, stories, minutes) = (DEFAULT_SEEDS, DEFAULT_STORIES, DEFAULT_MINUTES);
        let (demos, disks) = (DEFAULT_DEMOS, DEFAULT_DISKS);
        assert_eq!(parsed(""), Ok(Options { seeds, stories, demos, disks, minutes }));
        let all = Options { seeds: 7, stories: 9, demos: 2, disks: 4, minutes: 3 };
        assert_eq!(parsed("--minutes=3 --stories 9 --demos=2 --disks 4 --seeds 7"), Ok(all));
    }

    #[test]
    fn a_wrong_flag_is_named() {
        assert_eq!(parsed("--hours 1"), Err("`soak` takes no argument `--hours`".to_owned()));
        assert_eq!(parsed("--seeds"), Err("`--seeds` needs a number".to_owned()));
        assert_eq!(parsed("--seeds 0"), Err("`--seeds` needs a number above zero, not `0`".to_owned()));
        assert_eq!(parsed("--minutes soon"), Err("`--minutes` needs a number above zero, not `soon`".to_owned()));
    }

    #[test]
    fn the_tests_are_told_by_environment() {
        let [stories, demos, server, beside, probe, attacks, kills] =
            invocations(&Options { seeds: 7, stories: 9, demos: 2, disks: 4, minutes: 3 });
        assert_eq!(
            stories.to_string(),
            "WINDLASS_SOAK_SEEDS=7 WINDLASS_SIM_SEEDS=9 WINDLASS_SOAK_DISKS=4 \
             cargo test --release -p windlass-tests --test it -- --nocapture soak:: --skip soak::load::"
        );
        assert_eq!(
            demos.to_string(),
            "WINDLASS_SOAK_DEMOS=2 cargo test --release -p windlass-cli --test it -- --nocapture \
             the_demo_proves_what_it_says"
        );
        assert_eq!(
            server.to_string(),
            "WINDLASS_SOAK_MINUTES=3 cargo test --release -p windlass-cli --test it -- --nocapture kills_by_time_under_load"
        );
        assert_eq!(probe.to_string(), "cargo build --release -p windlass-tools --examples --bins");
        assert_eq!(
            attacks.to_string(),
            "WINDLASS_SOAK_MINUTES=3 cargo test --release -p windlass-tools --test it -- --nocapture outlives_hostile_commands"
        );
        assert_eq!(
            beside.to_string(),
            "WINDLASS_SOAK_MINUTES=3 cargo test --release -p windlass-cli --test it -- --nocapture second_processes_by_time"
        );
        assert_eq!(
            kills.to_string(),
            "WINDLASS_SOAK_MINUTES=3 cargo test --release -p windlass-tests --test it -- --nocapture soak::load::"
        );
    }
}
