//! Time and allocations per call.
//!
//! All contenders are warmed up, then take turns in rounds: A B C A B C …. A turn lasts a few milliseconds. Each round
//! yields one figure per contender, and the median over the rounds is reported. The ratio to the baseline is the median
//! of the ratios within each round, so that slow drifts of the machine cancel out.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::{Contender, allocations, baseline, contender, report::Row};

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Rounds that count.
    pub rounds: usize,
    /// The shortest turn of one contender in a round.
    pub turn: Duration,
    /// The batch sizes to measure, each by itself.
    pub batches: Vec<usize>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 61, turn: Duration::from_millis(8), batches: vec![1, 64] }
    }
}

/// Rounds that do not count.
const WARM_UP: usize = 3;

/// Calls prepared at a time: enough to make the clock's resolution and entering a runtime negligible, and few enough
/// for the arguments to stay in the processor's cache.
const CALLS_AT_A_TIME: usize = 256;

/// Measures all contenders, the baseline among them.
///
/// # Errors
///
/// When a contender does not do the work ([`contender::check`]), or some of its measured calls fail.
pub fn measure(contenders: &mut [Box<dyn Contender>], plan: &Plan) -> anyhow::Result<Vec<Row>> {
    for contender in contenders.iter_mut() {
        contender::check(contender.as_mut())?;
    }
    let mut rows = Vec::new();
    for &batch in &plan.batches {
        rows.extend(measure_batch(contenders, plan, batch)?);
    }
    Ok(rows)
}

fn measure_batch(contenders: &mut [Box<dyn Contender>], plan: &Plan, batch: usize) -> anyhow::Result<Vec<Row>> {
    let mut rounds = vec![Vec::with_capacity(plan.rounds); contenders.len()];
    for round in 0..WARM_UP + plan.rounds {
        for (contender, figures) in contenders.iter_mut().zip(&mut rounds) {
            let figure = turn(contender.as_mut(), batch, plan.turn)?;
            if round >= WARM_UP {
                figures.push(figure);
            }
        }
    }
    let reference = contenders.iter().position(|contender| contender.name() == baseline::NAME);
    let mut rows = Vec::with_capacity(contenders.len());
    for (contender, figures) in contenders.iter_mut().zip(&rounds) {
        let ratios = reference.map(|it| figures.iter().zip(&rounds[it]).map(|(a, b)| a / b).collect());
        let ns_per_call = median(figures.clone());
        let (allocs_per_call, bytes_per_call) = allocated(contender.as_mut(), batch)?;
        rows.push(Row {
            name: contender.name().to_owned(),
            batch,
            ns_per_call,
            calls_per_s: 1e9 / ns_per_call,
            allocs_per_call,
            bytes_per_call,
            ratio_to_baseline: ratios.map(median),
            instructions_per_call: None,
        });
    }
    Ok(rows)
}

/// One turn: nanoseconds per call.
fn turn(contender: &mut dyn Contender, batch: usize, least: Duration) -> anyhow::Result<f64> {
    let batches = CALLS_AT_A_TIME.div_ceil(batch);
    let (mut elapsed, mut calls) = (Duration::ZERO, 0);
    while elapsed < least {
        contender.prepare(batch, batches);
        let start = Instant::now();
        let succeeded = measured_section(contender);
        elapsed += start.elapsed();
        all_succeeded(contender, succeeded, batch * batches)?;
        calls += succeeded;
    }
    Ok(elapsed.as_nanos() as f64 / calls as f64)
}

/// Allocations and allocated bytes per call.
fn allocated(contender: &mut dyn Contender, batch: usize) -> anyhow::Result<(f64, f64)> {
    let batches = CALLS_AT_A_TIME.div_ceil(batch);
    contender.prepare(batch, batches);
    let (succeeded, allocated) = allocations::count(|| measured_section(contender));
    all_succeeded(contender, succeeded, batch * batches)?;
    let calls = succeeded as f64;
    Ok((allocated.allocations as f64 / calls, allocated.bytes as f64 / calls))
}

fn all_succeeded(contender: &dyn Contender, succeeded: usize, calls: usize) -> anyhow::Result<()> {
    ensure!(succeeded == calls, "{}: only {succeeded} of {calls} calls succeeded", contender.name());
    Ok(())
}

/// The calls and nothing else. [`instructions`](crate::instructions) selects this function by its name.
#[inline(never)]
pub(crate) fn measured_section(contender: &mut dyn Contender) -> usize {
    contender.run()
}

/// The middle figure, or the mean of the two in the middle; NaN if there is none.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => figures[n / 2],
        n => f64::midpoint(figures[n / 2 - 1], figures[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn baseline_is_measured_against_itself() {
        let plan = Plan { rounds: 2, turn: Duration::from_micros(1), batches: vec![1, 3] };
        let rows = measure(&mut crate::contenders().unwrap(), &plan).unwrap();
        let baseline: Vec<_> = rows.iter().filter(|row| row.name == baseline::NAME).collect();
        assert_eq!(baseline.iter().map(|row| row.batch).collect::<Vec<_>>(), [1, 3]);
        for row in baseline {
            assert_eq!(row.ratio_to_baseline, Some(1.0));
            assert!(row.ns_per_call > 0.0 && row.allocs_per_call >= 1.0 && row.bytes_per_call > row.allocs_per_call);
        }
    }
}
