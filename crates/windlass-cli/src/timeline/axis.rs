//! Maps time to columns. Long idle periods are compressed, so that a run that waited three days for a person still shows
//! the details of its two seconds of work.

use std::time::Duration;

use super::tree::{Span, SpanKind};
use crate::style::{duration, width};

/// The columns of a compressed period: enough for a text such as `┄3 d┄` in the scale.
const COMPRESSED: usize = 9;
/// At most this many periods are compressed, because each takes columns from the rest.
const MAX_COMPRESSED: usize = 3;
/// The fewest columns between two ticks.
const TICK_DISTANCE: f64 = 10.0;

/// A period that is mapped to columns linearly.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: i64,
    to: i64,
    left: f64,
    right: f64,
    compressed: bool,
}

/// Maps instants to columns.
#[derive(Debug)]
pub(super) struct Axis {
    pieces: Vec<Piece>,
    columns: usize,
}

impl Axis {
    pub(super) fn new<'a>(spans: impl Iterator<Item = &'a Span>, start: i64, end: i64, columns: usize) -> Self {
        let gaps = idle_periods(spans, start, end, columns);
        let idle: i64 = gaps.iter().map(|(from, to)| to - from).sum();
        let busy = (end - start - idle).max(1) as f64;
        let free = (columns - gaps.len() * COMPRESSED) as f64;
        let mut pieces = Vec::new();
        let (mut time, mut left) = (start, 0.0);
        let mut push = |from: i64, to: i64, wide: f64, compressed: bool| {
            pieces.push(Piece { from, to, left, right: left + wide, compressed });
            left += wide;
        };
        for (from, to) in gaps {
            push(time, from, (from - time) as f64 / busy * free, false);
            push(from, to, COMPRESSED as f64, true);
            time = to;
        }
        push(time, end, (end - time) as f64 / busy * free, false);
        Self { pieces, columns }
    }

    /// The column of an instant, as a fraction.
    fn at(&self, time: i64) -> f64 {
        let piece = self.pieces.iter().find(|piece| time <= piece.to).or(self.pieces.last());
        let Some(piece) = piece else { return 0.0 };
        let length = (piece.to - piece.from).max(1) as f64;
        let share = ((time - piece.from) as f64 / length).clamp(0.0, 1.0);
        piece.left + share * (piece.right - piece.left)
    }

    /// The column of an instant.
    pub(super) fn column(&self, time: i64) -> usize {
        (self.at(time) as usize).min(self.columns.saturating_sub(1))
    }

    /// The columns of a span: at least one.
    pub(super) fn columns(&self, span: &Span) -> std::ops::RangeInclusive<usize> {
        let first = self.column(span.from);
        let last = (self.at(span.to).ceil() as usize).saturating_sub(1).min(self.columns.saturating_sub(1));
        first..=last.max(first)
    }

    /// The scale above the bars: the time since the start.
    pub(super) fn scale(&self, start: i64) -> String {
        let mut line: Vec<char> = Vec::new();
        let mut put = |column: usize, text: &str| {
            let free = line.is_empty() || column > line.len();
            if free && column + width(text) <= self.columns {
                line.resize(column, ' ');
                line.extend(text.chars());
            }
        };
        for piece in &self.pieces {
            if piece.compressed {
                let length = duration(Duration::from_micros((piece.to - piece.from).unsigned_abs()));
                // The larger unit alone is precise enough here.
                let length: Vec<&str> = length.split(' ').take(2).collect();
                put(piece.left.ceil() as usize, &format!("┄{}┄", length.join(" ")));
                continue;
            }
            let Some(step) = step(piece) else { continue };
            let mut tick = (piece.from - start).div_euclid(step) * step + start;
            if tick < piece.from {
                tick += step;
            }
            while tick < piece.to {
                put(self.column(tick), &tick_label(tick - start, step));
                tick += step;
            }
        }
        line.into_iter().collect()
    }
}

/// The idle periods to compress: those far longer than all the work together.
fn idle_periods<'a>(spans: impl Iterator<Item = &'a Span>, start: i64, end: i64, columns: usize) -> Vec<(i64, i64)> {
    let mut busy: Vec<(i64, i64)> = spans
        .filter(|span| matches!(span.kind, SpanKind::Queued | SpanKind::Running))
        .map(|span| (span.from, span.to))
        .collect();
    busy.sort_unstable();
    let mut gaps = Vec::new();
    let mut covered = start;
    for (from, to) in busy.into_iter().chain([(end, end)]) {
        if from > covered {
            gaps.push((covered, from));
        }
        covered = covered.max(to);
    }
    let idle: i64 = gaps.iter().map(|(from, to)| to - from).sum();
    let work = end - start - idle;
    gaps.retain(|(from, to)| work > 0 && (to - from) > 4 * work);
    gaps.sort_unstable_by_key(|(from, to)| from - to);
    gaps.truncate(MAX_COMPRESSED.min(columns / (3 * COMPRESSED)));
    gaps.sort_unstable();
    gaps
}

/// A round distance between ticks, in microseconds; `None` if there is no room for a tick.
fn step(piece: &Piece) -> Option<i64> {
    let wide = piece.right - piece.left;
    let length = piece.to - piece.from;
    if wide < 2.0 || length <= 0 {
        return None;
    }
    let least = length as f64 / wide * TICK_DISTANCE;
    let seconds = |count: i64| count * 1_000_000;
    let small = (0..6).flat_map(|power| [1, 2, 5].map(|digit| digit * 10i64.pow(power))).map(|micros| micros * 10);
    let large = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400];
    let days = (1..9).flat_map(|power| [2, 5, 10].map(|digit| digit * 10i64.pow(power - 1))).map(|days| days * 86_400);
    let mut steps = small.filter(|step| *step < 1_000_000).chain(large.into_iter().chain(days).map(seconds));
    steps.find(|step| *step as f64 >= least)
}

/// The label of a tick, just long enough to differ from the next one, which is a step away.
fn tick_label(micros: i64, step: i64) -> String {
    const SECOND: i64 = 1_000_000;
    const DAY: i64 = 86_400 * SECOND;
    if micros == 0 {
        return "0".to_owned();
    }
    if micros < SECOND {
        return match step % 1_000 {
            0 => format!("{}ms", micros / 1_000),
            _ => format!("{:.2}ms", micros as f64 / 1e3),
        };
    }
    let (days, seconds) = (micros / DAY, micros % DAY / SECOND);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let day = if days > 0 { format!("{days}d") } else { String::new() };
    if days > 0 && step % DAY == 0 {
        return day;
    }
    if step >= 60 * SECOND && (days > 0 || hours > 0) {
        return format!("{day}{hours}h{minutes:02}");
    }
    let part = fraction(micros % SECOND, step);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}{part}s"),
        (0, 0, _) => format!("{minutes}:{seconds:02}{part}"),
        _ => format!("{day}{}{hours}:{minutes:02}:{seconds:02}{part}", if days > 0 { " " } else { "" }),
    }
}

/// The fraction of a second, with as many digits as the step needs: `.25`.
fn fraction(micros: i64, step: i64) -> String {
    let digits = (0..6).find(|digits| step % 10_i64.pow(6 - digits) == 0).unwrap_or(6);
    let text = format!("{micros:06}");
    if digits == 0 { String::new() } else { format!(".{}", &text[..digits as usize]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l23_neighbouring_ticks_have_different_labels() {
        const SECOND: i64 = 1_000_000;
        const DAY: i64 = 86_400 * SECOND;
        for (micros, step, expected) in [
            (0, 10, "0"),
            (250, 50, "0.25ms"),
            (20_000, 5_000, "20ms"),
            (SECOND, 500_000, "1.0s"),
            (1_500_000, 500_000, "1.5s"),
            (1_020_000, 20_000, "1.02s"),
            (1_000_050, 50, "1.00005s"),
            (3 * SECOND, SECOND, "3s"),
            (90 * SECOND, 30 * SECOND, "1:30"),
            (61 * SECOND + 200_000, 100_000, "1:01.2"),
            (3_600 * SECOND, 900 * SECOND, "1h00"),
            (3_630 * SECOND, 30 * SECOND, "1:00:30"),
            (2 * DAY, DAY, "2d"),
            (DAY + 21_600 * SECOND, 21_600 * SECOND, "1d6h00"),
            (3 * DAY + 5 * SECOND, 5 * SECOND, "3d 0:00:05"),
        ] {
            assert_eq!(tick_label(micros, step), expected, "{micros} {step}");
        }
        // For every start and every length.
        for start in [0, 999_990, SECOND, 59 * SECOND, 3_599 * SECOND, DAY, 400 * DAY] {
            for length in (1..15).map(|power| 10_i64.pow(power)) {
                let piece = Piece { from: start, to: start + length, left: 0.0, right: 100.0, compressed: false };
                let Some(step) = step(&piece) else { continue };
                let first = start.div_euclid(step) * step;
                let labels: Vec<String> = (0..10).map(|n| tick_label(first + n * step, step)).collect();
                let mut distinct = labels.clone();
                distinct.sort();
                distinct.dedup();
                assert_eq!(distinct.len(), labels.len(), "{start} {length}: {labels:?}");
            }
        }
    }
}
