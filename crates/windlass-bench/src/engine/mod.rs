//! Journaled steps: steps per second, time per step, CPU time per step.
//!
//! An [`Engine`] runs several workflows at once, each with steps one after another. All engines take turns in rounds,
//! together with the limits of the disk ([`bare`]), so that other load on the machine affects them alike.

pub mod bare;
pub mod marks;
pub mod ours;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::measure::median;
use crate::percentile::Sorted;
use marks::Run;

/// Something that makes durable steps.
pub trait Engine {
    /// The name in the report, unique in a run.
    fn name(&self) -> &str;

    /// Whether it can be measured with this many concurrent runs.
    fn takes(&self, runs: usize) -> bool {
        runs > 0
    }

    /// Whether it has runs that begin and end. The bare limits do not.
    fn has_runs(&self) -> bool {
        true
    }

    /// Prepares for this many concurrent runs. Not measured.
    ///
    /// # Errors
    ///
    /// When the preparation fails.
    fn prepare(&mut self, runs: usize) -> anyhow::Result<()>;

    /// Makes `steps` steps in each of `runs` concurrent runs, and waits for the end of all runs. Measured.
    ///
    /// # Errors
    ///
    /// When a run fails.
    fn take(&mut self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>>;

    /// Makes `steps` steps in each run, with `runs` runs one after another in each of several lanes. None if not
    /// supported.
    ///
    /// # Errors
    ///
    /// When a run fails.
    fn take_in_lanes(&mut self, _lanes: usize, _runs: usize, _steps: u32) -> Option<anyhow::Result<Vec<Run>>> {
        None
    }

    /// CPU time used so far by all participating threads and processes, if the system reports it.
    fn cpu(&self) -> Option<Duration>;
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Rounds to take the median of.
    pub rounds: usize,
    /// The intended length of one engine's turn in a round.
    pub turn: Duration,
    /// Numbers of concurrent runs, each measured by itself.
    pub levels: Vec<usize>,
    /// Total steps of the warm-up, which also measures the rate.
    pub warm_up: usize,
    /// Runs whose first step is measured, for each number of lanes.
    pub firsts: usize,
}

impl Default for Plan {
    fn default() -> Self {
        let levels = vec![1, 16, 64, 256, 1_024];
        Self { rounds: 5, turn: Duration::from_secs(1), levels, warm_up: 400, firsts: 800 }
    }
}

/// Fewest steps of a run: with fewer, the start and end of runs would dominate.
const LEAST: u32 = 20;

/// Most steps of a run, for engines that limit the length of a journal.
const MOST: u32 = 20_000;

/// Steps of a run whose first step is measured.
const FEW: u32 = 3;

/// Numbers of concurrent lanes in which first steps are measured.
const LANES: [usize; 3] = [2, 16, 64];

/// The figures of an engine with this many concurrent runs.
#[derive(Debug, Clone, Serialize)]
pub struct StepRow {
    /// The engine.
    pub engine: String,
    /// Runs at once.
    pub runs: usize,
    /// Steps of each run, one after another.
    pub steps_per_run: u32,
    /// Steps per second of all runs, the median of all rounds, like everything below.
    pub steps_per_s: f64,
    /// The steps per second of every round.
    pub rounds: Vec<f64>,
    /// From the start of a step to its result: the median.
    pub p50_us: f64,
    /// The 99th percentile of the same.
    pub p99_us: f64,
    /// CPU time per step of all participants, if the system reports it.
    pub cpu_us_per_step: Option<f64>,
}

/// How the first step of a run compares with the next one.
#[derive(Debug, Clone, Serialize)]
pub struct FirstRow {
    /// The engine.
    pub engine: String,
    /// Runs at once.
    pub runs: usize,
    /// From starting a run to the result of its first step, the median; of single runs only.
    pub first_p50_us: Option<f64>,
    /// From entering the body to the result of its first step, the median.
    pub entered_p50_us: f64,
    /// From there to the result of the next step, the median.
    pub next_p50_us: f64,
}

/// The figures of all engines.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Steps {
    /// By number of runs and engine.
    pub rows: Vec<StepRow>,
    /// First steps, by engine.
    pub first: Vec<FirstRow>,
}

impl Steps {
    /// The steps per second of one engine divided by those of another, with this many runs: the median of the ratios of
    /// all rounds, so that slow drifts of the machine cancel out.
    #[must_use]
    pub fn ratio(&self, (one, other): (&str, &str), runs: usize) -> Option<f64> {
        let rounds = |engine: &str| {
            let row = self.rows.iter().find(|row| row.engine == engine && row.runs == runs);
            row.map(|row| &row.rounds)
        };
        let ratios = rounds(one)?.iter().zip(rounds(other)?).map(|(one, other)| one / other).collect();
        Some(median(ratios))
    }
}

/// Measures all engines.
///
/// # Errors
///
/// When one of them fails.
pub fn measure(engines: &mut [Box<dyn Engine>], plan: &Plan) -> anyhow::Result<Steps> {
    let mut steps = Steps::default();
    for &runs in &plan.levels {
        eprintln!("steps in {runs} runs at once");
        steps.rows.extend(level(engines, plan, runs)?);
    }
    for engine in engines.iter_mut().filter(|engine| plan.firsts > 0 && engine.has_runs()) {
        steps.first.push(first(engine.as_mut(), plan.firsts)?);
        for lanes in LANES {
            steps.first.extend(first_in_lanes(engine.as_mut(), lanes, plan.firsts)?);
        }
    }
    Ok(steps)
}

fn level(engines: &mut [Box<dyn Engine>], plan: &Plan, runs: usize) -> anyhow::Result<Vec<StepRow>> {
    let mut taking: Vec<_> = engines.iter_mut().filter(|engine| engine.takes(runs)).collect();
    let mut counts = Vec::with_capacity(taking.len());
    for engine in &mut taking {
        let warm = plan.warm_up.div_ceil(runs) as u32;
        let rate = turn(engine.as_mut(), runs, warm)?.steps_per_s;
        counts.push(steps_for(rate, runs, plan.turn));
    }
    let mut rounds = vec![Vec::with_capacity(plan.rounds); taking.len()];
    for _ in 0..plan.rounds {
        for ((engine, &steps), rows) in taking.iter_mut().zip(&counts).zip(&mut rounds) {
            rows.push(turn(engine.as_mut(), runs, steps)?);
        }
    }
    Ok(rounds.iter().map(|rows| middle(rows)).collect())
}

/// The number of steps per run for a turn of this length.
fn steps_for(rate: f64, runs: usize, turn: Duration) -> u32 {
    ((rate * turn.as_secs_f64() / runs as f64) as u32).clamp(LEAST, MOST)
}

fn turn(engine: &mut dyn Engine, runs: usize, steps: u32) -> anyhow::Result<StepRow> {
    let name = engine.name().to_owned();
    engine.prepare(runs).with_context(|| format!("{name} cannot be prepared for {runs} runs"))?;
    let (cpu, begin) = (engine.cpu(), Instant::now());
    let taken = engine.take(runs, steps).with_context(|| format!("{name}, {runs} runs of {steps} steps"))?;
    let elapsed = begin.elapsed();
    let cpu = cpu.zip(engine.cpu()).map(|(before, after)| after.saturating_sub(before));
    let laps: Vec<Duration> = taken.iter().flat_map(Run::laps).collect();
    ensure!(!laps.is_empty(), "{name}: no step was measured");
    let count = runs as f64 * f64::from(steps);
    let (laps, steps_per_s) = (Sorted::new(laps), count / elapsed.as_secs_f64());
    Ok(StepRow {
        engine: name,
        runs,
        steps_per_run: steps,
        steps_per_s,
        rounds: vec![steps_per_s],
        p50_us: laps.us(50.0),
        p99_us: laps.us(99.0),
        cpu_us_per_step: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count),
    })
}

/// The medians of several rounds of one engine.
fn middle(rows: &[StepRow]) -> StepRow {
    let of = |figure: fn(&StepRow) -> f64| median(rows.iter().map(figure).collect());
    let cpu: Option<Vec<f64>> = rows.iter().map(|row| row.cpu_us_per_step).collect();
    StepRow {
        engine: rows.first().map(|row| row.engine.clone()).unwrap_or_default(),
        runs: rows.first().map_or(0, |row| row.runs),
        steps_per_run: rows.first().map_or(0, |row| row.steps_per_run),
        steps_per_s: of(|row| row.steps_per_s),
        rounds: rows.iter().map(|row| row.steps_per_s).collect(),
        p50_us: of(|row| row.p50_us),
        p99_us: of(|row| row.p99_us),
        cpu_us_per_step: cpu.map(median),
    }
}

/// Runs of a few steps one after another, measured from the start of each.
fn first(engine: &mut dyn Engine, count: usize) -> anyhow::Result<FirstRow> {
    let (mut first, mut entered, mut next) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        engine.prepare(1)?;
        let begin = Instant::now();
        for run in engine.take(1, FEW)? {
            first.extend(run.first_answer().map(|answer| answer.saturating_duration_since(begin)));
            entered.extend(run.laps().take(1));
            next.extend(run.laps().skip(1));
        }
    }
    ensure!(!first.is_empty() && !next.is_empty(), "{}: no step was measured", engine.name());
    let median = |times| Sorted::new(times).us(50.0);
    Ok(FirstRow {
        engine: engine.name().to_owned(),
        runs: 1,
        first_p50_us: Some(median(first)),
        entered_p50_us: median(entered),
        next_p50_us: median(next),
    })
}

/// The same in several lanes at once.
fn first_in_lanes(engine: &mut dyn Engine, lanes: usize, count: usize) -> anyhow::Result<Option<FirstRow>> {
    let Some(taken) = engine.take_in_lanes(lanes, count.div_ceil(lanes), FEW) else { return Ok(None) };
    let taken = taken.with_context(|| format!("{} in {lanes} lanes", engine.name()))?;
    let (entered, next): (Vec<_>, Vec<_>) = (
        taken.iter().flat_map(|run| run.laps().take(1)).collect(),
        taken.iter().flat_map(|run| run.laps().skip(1)).collect(),
    );
    ensure!(!entered.is_empty() && !next.is_empty(), "{}: no step was measured", engine.name());
    let median = |times| Sorted::new(times).us(50.0);
    let engine = engine.name().to_owned();
    let (entered_p50_us, next_p50_us) = (median(entered), median(next));
    Ok(Some(FirstRow { engine, runs: lanes, first_p50_us: None, entered_p50_us, next_p50_us }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_as_many_steps_as_fit_into_its_time() {
        let second = Duration::from_secs(1);
        assert_eq!(steps_for(6_400.0, 64, second), 100);
        assert_eq!(steps_for(10.0, 64, second), LEAST);
        assert_eq!(steps_for(1e9, 1, second), MOST);
    }

    #[test]
    fn rounds_are_reduced_to_their_medians() {
        let row = |rate, cpu| StepRow {
            engine: "one".to_owned(),
            runs: 4,
            steps_per_run: 20,
            steps_per_s: rate,
            rounds: vec![rate],
            p50_us: rate,
            p99_us: 2.0 * rate,
            cpu_us_per_step: cpu,
        };
        let all = middle(&[row(3.0, Some(1.0)), row(1.0, Some(5.0)), row(2.0, Some(3.0))]);
        assert_eq!((all.steps_per_s, all.p99_us, all.cpu_us_per_step), (2.0, 4.0, Some(3.0)));
        assert_eq!(all.rounds, [3.0, 1.0, 2.0]);
        assert_eq!(middle(&[row(1.0, None), row(2.0, Some(1.0))]).cpu_us_per_step, None);
    }

    #[test]
    fn engines_are_compared_round_by_round() {
        let row = |engine: &str, rounds: [f64; 3]| StepRow {
            engine: engine.to_owned(),
            runs: 1,
            steps_per_run: 20,
            steps_per_s: rounds[0],
            rounds: rounds.to_vec(),
            p50_us: 1.0,
            p99_us: 1.0,
            cpu_us_per_step: None,
        };
        let steps = Steps { rows: vec![row("a", [2.0, 40.0, 600.0]), row("b", [1.0, 10.0, 200.0])], first: Vec::new() };
        assert_eq!(steps.ratio(("a", "b"), 1), Some(3.0));
        assert_eq!(steps.ratio(("a", "c"), 1), None);
        assert_eq!(steps.ratio(("a", "b"), 2), None);
    }

    #[test]
    fn our_engines_and_the_bare_ones_make_every_step() {
        let plan = Plan { rounds: 1, turn: Duration::from_millis(1), levels: vec![1, 3], warm_up: 3, firsts: 2 };
        let steps = measure(&mut crate::engines().unwrap(), &plan).unwrap();
        let at = |runs: usize| steps.rows.iter().filter(|row| row.runs == runs).count();
        assert_eq!((at(1), at(3), steps.first.len()), (5, 4, 3 * (1 + LANES.len())));
        assert!(steps.rows.iter().all(|row| row.steps_per_s > 0.0 && row.p99_us >= row.p50_us));
    }
}
