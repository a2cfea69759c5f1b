//! The command line, shared with the programs of the peers.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use windlass_core::tool::Contract;

use crate::{
    Contender, Engine, Scenario, baseline, engine, instructions, machine,
    measure::{Plan, measure},
    parked,
    report::{self, Report},
    restart, scenario, sustained,
};

const USAGE: &str = "\
The cost of a tool call, of an operation of a durable body, and of a durable step compared with the limits of the disk.

Usage: PROGRAM [--json] [PART…] [--instructions] [--rounds N] [--runs N] [FILTER]

Parts; without one: calls and steps.
  --calls         the cost of calls and operations
  --steps         steps in 1 to 1,024 runs at once on SQLite, and the limits of the disk
  --restart N     open a file with N suspended runs: how soon does a new call return?
  --parked N      park N runs: what do they cost, and how soon do they wake?
  --sustained S   mixed short runs for S seconds: does the rate stay the same, and how large is the file?
  --durable       --steps --restart 100000 --parked 1000000 --sustained 60
  --http          calls and events over HTTP, the binary, commands; `cargo xtask bench` starts a separate program

  --json          print JSON instead of tables; `cargo xtask table` turns it into Markdown
  --instructions  also count instructions of calls and operations, with valgrind's callgrind
  --rounds N      rounds to take the median of
  --runs N        steps in N runs at once only
  FILTER          measure only contenders with this text in their name, and the baseline
";

/// What can be measured. Each list is created when it is needed.
pub struct Bench {
    /// See [`contenders`](crate::contenders).
    pub contenders: fn() -> anyhow::Result<Vec<Box<dyn Contender>>>,
    /// See [`scenarios`](crate::scenarios).
    pub scenarios: fn() -> anyhow::Result<Vec<Box<dyn Scenario>>>,
    /// See [`engines`](crate::engines).
    pub engines: fn() -> anyhow::Result<Vec<Box<dyn Engine>>>,
}

/// The options of the command line.
#[derive(Debug, Default, PartialEq)]
struct Options {
    help: bool,
    json: bool,
    instructions: bool,
    rounds: Option<usize>,
    runs: Option<usize>,
    filter: Option<String>,
    parts: Parts,
    counted: Counted,
}

/// The selected parts.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    calls: bool,
    steps: bool,
    restart: Option<usize>,
    parked: Option<usize>,
    sustained: Option<usize>,
}

impl Parts {
    /// The default parts.
    fn usual() -> Self {
        Self { calls: true, steps: true, ..Self::default() }
    }

    /// Adds all parts on disk, with the sizes of the project's goals.
    fn and_durable(self) -> Self {
        Self { steps: true, restart: Some(100_000), parked: Some(1_000_000), sustained: Some(60), ..self }
    }
}

/// Options that the program passes to itself when it runs under callgrind.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    contender: Option<String>,
    scenario: Option<String>,
    batch: usize,
    iterations: usize,
}

/// Runs the selected benchmarks and prints the report.
///
/// # Errors
///
/// When the command line is invalid, a measured operation fails, or Windlass compiles a schema for a call.
pub fn run(bench: &Bench) -> anyhow::Result<()> {
    let options = parse(std::env::args().skip(1))?;
    if options.help {
        print!("{USAGE}");
        return Ok(());
    }
    let counted = &options.counted;
    if let Some(name) = &counted.contender {
        return instructions::run_counted(&mut (bench.contenders)()?, name, counted.batch, counted.iterations);
    }
    if let Some(name) = &counted.scenario {
        return instructions::run_counted_operations(&mut (bench.scenarios)()?, name, counted.iterations);
    }
    if cfg!(debug_assertions) {
        eprintln!("note: this is not a release build; the figures are meaningless");
    }
    let report = measure_parts(bench, &options)?;
    let text = if options.json { report::json(&report)? + "\n" } else { report::text(&report) };
    print!("{text}");
    Ok(())
}

fn measure_parts(bench: &Bench, options: &Options) -> anyhow::Result<Report> {
    let mut report = Report { machine: machine::Machine::now(), ..Report::default() };
    let (parts, filter) = (&options.parts, options.filter.as_deref().unwrap_or_default());
    if parts.calls {
        let (mut contenders, mut scenarios) = ((bench.contenders)()?, (bench.scenarios)()?);
        contenders.retain(|it| it.name() == baseline::NAME || it.name().contains(filter));
        scenarios.retain(|it| it.name().contains(filter));
        measure_calls(&mut report, &mut contenders, &mut scenarios, options.rounds)?;
        if options.instructions {
            count_instructions(&mut report)?;
        }
    }
    if parts.steps {
        let mut engines = (bench.engines)()?;
        engines.retain(|it| !it.has_runs() || it.name().contains(filter));
        let mut plan = engine::Plan::default();
        plan.rounds = options.rounds.unwrap_or(plan.rounds);
        plan.levels.retain(|level| options.runs.is_none_or(|runs| runs == *level));
        ensure!(!plan.levels.is_empty(), "--runs takes one of {:?}", engine::Plan::default().levels);
        report.steps = Some(engine::measure(&mut engines, &plan)?);
    }
    report.restart = parts.restart.map(restart::restart).transpose()?;
    report.parked = parts.parked.map(parked::park).transpose()?;
    let time = parts.sustained.map(|seconds| Duration::from_secs(seconds as u64));
    report.sustained = time.map(sustained::sustain).transpose()?;
    Ok(report)
}

fn measure_calls(
    report: &mut Report,
    contenders: &mut [Box<dyn Contender>],
    scenarios: &mut [Box<dyn Scenario>],
    rounds: Option<usize>,
) -> anyhow::Result<()> {
    let mut plan = Plan::default();
    plan.rounds = rounds.unwrap_or(plan.rounds);
    let compiled = Contract::compiled();
    report.calls = measure(contenders, &plan)?;
    report.operations =
        scenarios.iter_mut().map(|scenario| scenario::measure(scenario.as_mut())).collect::<anyhow::Result<_>>()?;
    let compiled = Contract::compiled() - compiled;
    ensure!(compiled == 0, "Windlass compiled {compiled} schemas during calls");
    Ok(())
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
            "--calls" => options.parts.calls = true,
            "--steps" => options.parts.steps = true,
            "--rounds" => options.rounds = Some(positive(&argument, &value()?)?),
            "--runs" => options.runs = Some(positive(&argument, &value()?)?),
            "--durable" => options.parts = options.parts.and_durable(),
            "--restart" => options.parts.restart = Some(positive(&argument, &value()?)?),
            "--sustained" => options.parts.sustained = Some(positive(&argument, &value()?)?),
            "--parked" => options.parts.parked = Some(positive(&argument, &value()?)?),
            "--contender" => options.counted.contender = Some(value()?),
            "--scenario" => options.counted.scenario = Some(value()?),
            "--batch" => options.counted.batch = positive(&argument, &value()?)?,
            "--iterations" => options.counted.iterations = positive(&argument, &value()?)?,
            "--http" => bail!("--http is measured by a separate program; `cargo xtask bench --http` starts it"),
            flag if flag.starts_with('-') => bail!("unknown option {flag}; --help lists them"),
            filter if options.filter.is_none() => options.filter = Some(filter.to_owned()),
            more => bail!("only one filter can be given; {more:?} is a second one"),
        }
    }
    if options.parts == Parts::default() {
        options.parts = Parts::usual();
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
    fn options_are_accepted_in_any_order() {
        let expected = Options {
            json: true,
            instructions: true,
            rounds: Some(5),
            filter: Some("base".to_owned()),
            parts: Parts::usual(),
            ..Options::default()
        };
        assert_eq!(parsed("base --rounds 5 --json --instructions").unwrap(), expected);
        assert_eq!(parsed("--instructions --json --rounds 5 base").unwrap(), expected);
    }

    #[test]
    fn named_parts_replace_the_default_ones() {
        let parts = |line| parsed(line).unwrap().parts;
        assert_eq!(parts("--steps"), Parts { steps: true, ..Parts::default() });
        assert_eq!(parts("--parked 5 --calls"), Parts { calls: true, parked: Some(5), ..Parts::default() });
        let durable = Parts { calls: true, ..Parts::default() }.and_durable();
        assert_eq!(parts("--calls --durable --sustained 9"), Parts { sustained: Some(9), ..durable });
    }

    #[test]
    fn errors_name_the_option() {
        let message = |line| parsed(line).unwrap_err().to_string();
        assert!(message("--jsn").contains("--jsn"));
        assert!(message("a b").contains("\"b\""));
        assert!(message("--http").contains("cargo xtask bench --http"));
        assert!(message("--rounds").contains("needs a value"));
        assert!(message("--rounds 0").contains("positive"));
        assert!(message("--parked few").contains("positive"));
    }
}
