//! What Windlass does over HTTP, and what its binary costs: `cargo xtask bench --http`.
//!
//! The server is a process of its own; whoever asks it is another. The library is measured in turn with it, on a file like
//! its file, with as many calls at once: the ratio is what HTTP costs. Each has the allocator it comes with: the server that of the
//! binary, the library that of the system.

mod command;
mod fan_out;
mod library;
mod load;
mod report;
mod server;
mod start;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use windlass_bench::machine::Machine;

use report::{Http, Report};

const USAGE: &str = "\
What Windlass does over HTTP, beside the library, and what its binary costs.

Usage: cargo xtask bench --http [--json] [--rounds N]

  --json      print JSON instead of tables; `cargo xtask table` makes Markdown of it
  --rounds N  rounds to take the median of
";

fn main() -> ExitCode {
    // Commands of tools are started through a program that answers to this: ourselves.
    if std::env::args().nth(1).as_deref() == Some(command::LAUNCH) {
        return windlass_tools::sandbox::launch_main();
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = parse(arguments)? else {
        print!("{USAGE}");
        return Ok(());
    };
    if cfg!(debug_assertions) {
        eprintln!("note: not a release build, the figures mean nothing");
    }
    let report = measure(options.rounds)?;
    let text = if options.json { serde_json::to_string_pretty(&report)? } else { report.to_string() };
    println!("{}", text.trim_end());
    Ok(())
}

fn measure(rounds: usize) -> anyhow::Result<Report> {
    let machine = Machine::now();
    eprintln!("the binary: start, memory, size");
    let start = start::measure()?;
    eprintln!("commands");
    let command = command::measure()?;
    let calls = load::measure(rounds)?;
    eprintln!("one run's events to many readers");
    let fan_out = fan_out::measure(fan_out::READERS, fan_out::STEPS)?;
    Ok(Report { machine, http: Http { calls, fan_out, start, command } })
}

#[derive(Debug, PartialEq)]
struct Options {
    json: bool,
    rounds: usize,
}

/// Nothing if help is asked for.
fn parse(arguments: Vec<String>) -> anyhow::Result<Option<Options>> {
    let mut options = Options { json: false, rounds: 3 };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--json" => options.json = true,
            "--rounds" => {
                let value = arguments.next().context("--rounds needs a value")?;
                match value.parse() {
                    Ok(rounds) if rounds > 0 => options.rounds = rounds,
                    _ => bail!("--rounds needs a positive number, not {value:?}"),
                }
            }
            other => bail!("unknown option {other}; --help lists them"),
        }
    }
    Ok(Some(options))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Options>, String> {
        parse(line.split_whitespace().map(str::to_owned).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_read() {
        assert_eq!(parsed("--rounds 5 --json"), Ok(Some(Options { json: true, rounds: 5 })));
        assert_eq!(parsed("--help"), Ok(None));
        assert!(parsed("--rounds 0").unwrap_err().contains("positive"));
        assert!(parsed("--fast").unwrap_err().contains("--fast"));
    }
}
