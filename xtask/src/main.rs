//! The project's chores, run as `cargo xtask <command>`.
//!
//! One file per command. Nothing here is shipped, and nothing shipped depends on it.

mod api;
mod bench;
mod cargo;
mod contract;
mod deny;
mod python;
mod rows;
mod soak;
mod source;
mod spdx;
mod table;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <command>

  test                                run every gate: format, lints, rows, tests, the API's description, docs, licences
  rows [--json | --write]             which row of the contract is proven by which test; --write updates docs/contract.md
  api                                 hold a real server to its own description, with schemathesis
  deny                                check licences, bans and sources of all dependencies
  bench [--json] [--peers] [part…] [filter]
                                      benchmarks; `bench --help` lists the parts. With --peers other systems in the same
                                      run: tool runtimes beside --calls, Restate and DBOS beside --steps
  table < results.json                Markdown tables of what `bench --json` printed
  soak [--seeds N] [--stories N] [--demos N] [--disks N] [--minutes M]
                                      the long tests: many seeds, many stories of the simulator, kills by time
  help                                this text
";

/// The command line itself was wrong, or something is missing that could not be installed. Told apart from a failed gate:
/// exit code 2 instead of 1.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let result = match command.as_str() {
        "test" => test::main(rest),
        "rows" => rows::main(rest),
        "api" => api::main(rest),
        "deny" => deny::main(rest),
        "bench" => bench::main(rest),
        "table" => table::main(rest),
        "soak" => soak::main(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(Misuse(format!("no command named `{other}`")).into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Misuse>() => {
            eprintln!("error: {error}\n\n{USAGE}");
            ExitCode::from(EXIT_USAGE)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<Missing>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// A command line that makes no sense; the message says which part.
#[derive(Debug)]
struct Misuse(String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Something a gate needs is not there and could not be installed; the message says what, and what to do.
#[derive(Debug)]
struct Missing(String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// For commands that take no arguments at all.
fn no_arguments(command: &str, args: &[String]) -> anyhow::Result<()> {
    match args.first() {
        None => Ok(()),
        Some(extra) => Err(Misuse(format!("`{command}` takes no argument `{extra}`")).into()),
    }
}
