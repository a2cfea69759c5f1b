//! Windlass over HTTP, and the cost of its binary: `cargo xtask bench --http`.
//!
//! The server and its clients are separate processes. The library is measured in turn with the server, on a similar
//! file with as many concurrent calls: the ratio is the cost of HTTP. Each uses its own allocator: the server that of
//! the binary, the library that of the system.

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
Windlass over HTTP compared with the library, and the cost of its binary.

Usage: cargo xtask bench --http [--json] [--rounds N]

  --json      print JSON instead of tables; `cargo xtask table` turns it into Markdown
  --rounds N  rounds to take the median of
";

fn main() -> ExitCode {
    // With this argument the program is the launcher of its own command tools.
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
        eprintln!("note: this is not a release build; the figures are meaningless");
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
    eprintln!("the events of one run to many readers");
    let fan_out = fan_out::measure(fan_out::READERS, fan_out::STEPS)?;
    Ok(Report { machine, http: Http { calls, fan_out, start, command } })
}

#[derive(Debug, PartialEq)]
struct Options {
    json: bool,
    rounds: usize,
}

/// Parses the command line; none if help is requested.
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
