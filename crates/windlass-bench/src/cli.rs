//! The command line, shared with the peers' program.

use anyhow::{Context as _, bail, ensure};
use windlass_core::tool::Contract;

use crate::{
    Contender, Scenario, baseline, instructions,
    measure::{Plan, measure},
    parked,
    report::{self, Report},
    scenario,
};

const USAGE: &str = "\
What one tool call costs, and one operation of a durable body.

Usage: PROGRAM [--json] [--instructions] [--rounds N] [FILTER]
       PROGRAM [--json] --parked N

  --json          print JSON instead of a table
  --instructions  also count instructions, with valgrind's callgrind
  --rounds N      rounds to take the median of
  --parked N      park so many runs on SQLite instead, a million say, and report what they cost
  FILTER          measure only contenders and scenarios whose name contains this, and the baseline
";

/// What the command line asks for.
#[derive(Debug, Default, PartialEq)]
struct Options {
    help: bool,
    json: bool,
    instructions: bool,
    rounds: Option<usize>,
    parked: Option<usize>,
    filter: Option<String>,
    counted: Counted,
}

/// What the program passes to itself when it runs under callgrind.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    contender: Option<String>,
    scenario: Option<String>,
    batch: usize,
    iterations: usize,
}

/// Does what the command line asks for with these contenders and scenarios, and prints the report.
///
/// # Errors
///
/// When the command line is not understood, a contender or scenario fails, or Windlass compiles a schema for a call.
pub fn run(mut contenders: Vec<Box<dyn Contender>>, mut scenarios: Vec<Box<dyn Scenario>>) -> anyhow::Result<()> {
    let options = parse(std::env::args().skip(1))?;
    if options.help {
        print!("{USAGE}");
        return Ok(());
    }
    if let Some(runs) = options.parked {
        let parked = parked::park(runs)?;
        let text = if options.json { serde_json::to_string_pretty(&parked)? } else { parked.to_string() };
        println!("{text}");
        return Ok(());
    }
    let counted = &options.counted;
    if let Some(name) = &counted.contender {
        return instructions::run_counted(&mut contenders, name, counted.batch, counted.iterations);
    }
    if let Some(name) = &counted.scenario {
        return instructions::run_counted_operations(&mut scenarios, name, counted.iterations);
    }
    if let Some(filter) = &options.filter {
        contenders.retain(|it| it.name() == baseline::NAME || it.name().contains(filter.as_str()));
        scenarios.retain(|it| it.name().contains(filter.as_str()));
    }
    if cfg!(debug_assertions) {
        eprintln!("note: not a release build, the figures mean nothing");
    }
    let mut report = measure_all(&mut contenders, &mut scenarios, options.rounds)?;
    if options.instructions {
        count_instructions(&mut report)?;
    }
    let text = if options.json { report::json(&report)? + "\n" } else { report::tables(&report) };
    print!("{text}");
    Ok(())
}

fn measure_all(
    contenders: &mut [Box<dyn Contender>],
    scenarios: &mut [Box<dyn Scenario>],
    rounds: Option<usize>,
) -> anyhow::Result<Report> {
    let mut plan = Plan::default();
    plan.rounds = rounds.unwrap_or(plan.rounds);
    let compiled = Contract::compiled();
    let calls = measure(contenders, &plan)?;
    let operations =
        scenarios.iter_mut().map(|scenario| scenario::measure(scenario.as_mut())).collect::<anyhow::Result<_>>()?;
    let compiled = Contract::compiled() - compiled;
    ensure!(compiled == 0, "Windlass compiled {compiled} schemas while calls were made");
    Ok(Report { calls, operations })
}

fn count_instructions(report: &mut Report) -> anyhow::Result<()> {
    if !instructions::available()? {
        eprintln!("note: valgrind is not installed, so instructions are not counted");
        return Ok(());
    }
    for row in &mut report.calls {
        eprintln!("counting the instructions of {}, batch of {}", row.name, row.batch);
        instructions::count(row)?;
    }
    for row in &mut report.operations {
        eprintln!("counting the instructions of {}", row.name);
        instructions::count_operations(row)?;
    }
    Ok(())
}

fn parse(arguments: impl IntoIterator<Item = String>) -> anyhow::Result<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => options.help = true,
            "--json" => options.json = true,
            "--instructions" => options.instructions = true,
            "--rounds" => options.rounds = Some(positive(&argument, &value()?)?),
            "--parked" => options.parked = Some(positive(&argument, &value()?)?),
            "--contender" => options.counted.contender = Some(value()?),
            "--scenario" => options.counted.scenario = Some(value()?),
            "--batch" => options.counted.batch = positive(&argument, &value()?)?,
            "--iterations" => options.counted.iterations = positive(&argument, &value()?)?,
            flag if flag.starts_with('-') => bail!("unknown option {flag}; --help lists them"),
            filter if options.filter.is_none() => options.filter = Some(filter.to_owned()),
            more => bail!("only one filter can be given, not {more:?} too"),
        }
    }
    Ok(options)
}

fn positive(option: &str, value: &str) -> anyhow::Result<usize> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => bail!("{option} needs a positive number, not {value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> anyhow::Result<Options> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_in_any_order() {
        let expected = Options {
            json: true,
            instructions: true,
            rounds: Some(5),
            filter: Some("base".to_owned()),
            ..Options::default()
        };
        assert_eq!(parsed("base --rounds 5 --json --instructions").unwrap(), expected);
        assert_eq!(parsed("--instructions --json --rounds 5 base").unwrap(), expected);
    }

    #[test]
    fn mistakes_are_named() {
        let message = |line| parsed(line).unwrap_err().to_string();
        assert!(message("--jsn").contains("--jsn"));
        assert!(message("a b").contains("\"b\""));
        assert!(message("--rounds").contains("needs a value"));
        assert!(message("--rounds 0").contains("positive"));
        assert!(message("--parked few").contains("positive"));
    }
}
