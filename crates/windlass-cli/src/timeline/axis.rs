//! From time to columns. A long stretch in which nothing but waiting happened is squeezed: a run that waited three days
//! for a person still shows what it did in its two seconds of work.

use std::time::Duration;

use super::tree::{Phase, Span};
use crate::style::{took, width};

/// Columns a squeezed stretch has: enough for `┄ 3 d ┄`-like words in the scale.
const SQUEEZED: usize = 9;
/// At most so many stretches are squeezed: each takes columns from the rest.
const MOST_SQUEEZED: usize = 3;
/// The least columns between two ticks.
const BETWEEN_TICKS: f64 = 10.0;

#[derive(Clone, Copy, Debug)]
struct Piece {
    from: i64,
    to: i64,
    left: f64,
    right: f64,
    squeezed: bool,
}

/// Maps instants to columns.
#[derive(Debug)]
pub(super) struct Axis {
    pieces: Vec<Piece>,
    columns: usize,
}

impl Axis {
    pub(super) fn new<'a>(spans: impl Iterator<Item = &'a Span>, start: i64, end: i64, columns: usize) -> Self {
        let gaps = squeezable(spans, start, end, columns);
        let idle: i64 = gaps.iter().map(|(from, to)| to - from).sum();
        let busy = (end - start - idle).max(1) as f64;
        let free = (columns - gaps.len() * SQUEEZED) as f64;
        let mut pieces = Vec::new();
        let (mut time, mut left) = (start, 0.0);
        let mut push = |from: i64, to: i64, wide: f64, squeezed: bool| {
            pieces.push(Piece { from, to, left, right: left + wide, squeezed });
            left += wide;
        };
        for (from, to) in gaps {
            push(time, from, (from - time) as f64 / busy * free, false);
            push(from, to, SQUEEZED as f64, true);
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

    /// The columns of a stretch: at least one.
    pub(super) fn columns(&self, span: &Span) -> std::ops::RangeInclusive<usize> {
        let first = self.column(span.from);
        let last = (self.at(span.to).ceil() as usize).saturating_sub(1).min(self.columns.saturating_sub(1));
        first..=last.max(first)
    }

    /// The line above the bars: how long after the start each place is.
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
            if piece.squeezed {
                let words = took(Duration::from_micros((piece.to - piece.from).unsigned_abs()));
                // The second unit of a long time is no news here.
                let words: Vec<&str> = words.split(' ').take(2).collect();
                put(piece.left.ceil() as usize, &format!("┄{}┄", words.join(" ")));
                continue;
            }
            let Some(step) = step(piece) else { continue };
            let mut tick = (piece.from - start).div_euclid(step) * step + start;
            if tick < piece.from {
                tick += step;
            }
            while tick < piece.to {
                put(self.column(tick), &tick_words(tick - start));
                tick += step;
            }
        }
        line.into_iter().collect()
    }
}

/// Stretches without work that are far longer than all the work together.
fn squeezable<'a>(spans: impl Iterator<Item = &'a Span>, start: i64, end: i64, columns: usize) -> Vec<(i64, i64)> {
    let mut busy: Vec<(i64, i64)> = spans
        .filter(|span| matches!(span.phase, Phase::Queued | Phase::Running))
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
    gaps.truncate(MOST_SQUEEZED.min(columns / (3 * SQUEEZED)));
    gaps.sort_unstable();
    gaps
}

/// A round distance between ticks, in microseconds; nothing where there is no room for any.
fn step(piece: &Piece) -> Option<i64> {
    let wide = piece.right - piece.left;
    let length = piece.to - piece.from;
    if wide < 2.0 || length <= 0 {
        return None;
    }
    let least = length as f64 / wide * BETWEEN_TICKS;
    let seconds = |count: i64| count * 1_000_000;
    let small = (0..6).flat_map(|power| [1, 2, 5].map(|digit| digit * 10i64.pow(power))).map(|micros| micros * 10);
    let large = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400];
    let days = (1..9).flat_map(|power| [2, 5, 10].map(|digit| digit * 10i64.pow(power - 1))).map(|days| days * 86_400);
    let mut steps = small.filter(|step| *step < 1_000_000).chain(large.into_iter().chain(days).map(seconds));
    steps.find(|step| *step as f64 >= least)
}

/// A tick in as few characters as say it.
fn tick_words(micros: i64) -> String {
    let seconds = micros / 1_000_000;
    match micros {
        0 => "0".to_owned(),
        _ if micros % 1_000 != 0 => format!("{:.2}ms", micros as f64 / 1e3),
        _ if micros < 1_000_000 => format!("{}ms", micros / 1_000),
        _ if micros % 1_000_000 != 0 => format!("{:.1}s", micros as f64 / 1e6),
        _ if seconds < 60 => format!("{seconds}s"),
        _ if seconds < 3_600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{}h{:02}", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86_400),
    }
}
