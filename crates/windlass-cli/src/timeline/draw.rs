//! From rows to lines of text.

use std::time::Duration;

use super::axis::Axis;
use super::tree::{Phase, Row, Tree};
use crate::style::{Style, Tint, fit, pad, took, width};

/// The least columns bars are drawn on, however narrow the terminal is.
const LEAST_BARS: usize = 16;
/// Bars get no clearer beyond this.
const MOST_BARS: usize = 100;
/// The most of a line that names may take.
const MOST_NAMES: usize = 46;

impl Phase {
    fn ink(self) -> (Tint, char) {
        match self {
            Self::Inside => (Tint::Dim, '─'),
            Self::Parked => (Tint::Park, '·'),
            Self::Queued => (Tint::Wait, '░'),
            Self::Doubt => (Tint::Doubt, '?'),
            Self::Running => (Tint::Good, '█'),
        }
    }
}

/// The picture: a scale, a line for each call and operation, a legend, and what is worth a sentence.
pub fn draw(tree: &Tree, style: &Style) -> Vec<String> {
    if tree.rows.is_empty() {
        return Vec::new();
    }
    let tails: Vec<String> = tree.rows.iter().map(tail).collect();
    let tails_wide = tails.iter().map(|tail| width(tail)).max().unwrap_or(0);
    let names_wide = tree.rows.iter().map(|row| width(&name(row))).max().unwrap_or(0);
    let names_wide = names_wide.min(MOST_NAMES).min(style.width * 2 / 5);
    let bars = style.width.saturating_sub(names_wide + tails_wide + 4).clamp(LEAST_BARS, MOST_BARS);
    let axis = Axis::new(tree.rows.iter().flat_map(|row| &row.spans), tree.start, tree.end, bars);
    let deaths: Vec<usize> = tree.notes.iter().filter(|note| note.line).map(|note| axis.column(note.at)).collect();

    let scale = axis.scale(tree.start);
    let mut lines = vec![style.paint(Tint::Dim, format!("{}  {scale}", " ".repeat(names_wide)).trim_end())];
    for (row, tail) in tree.rows.iter().zip(&tails) {
        let label = label(row, names_wide, style);
        lines.push(format!("{label}  {}  {}", bar(row, &axis, bars, &deaths, style), style.paint(Tint::Dim, tail)));
    }
    lines.push(legend(tree, style));
    for note in &tree.notes {
        let at = took(Duration::from_micros((note.at - tree.start).unsigned_abs()));
        let sign = style.paint(note.sign.0, &note.sign.1.to_string());
        // The sentence is whole: it says what to do.
        lines.push(format!("{at:>10}  {sign} {}", note.text));
    }
    lines
}

/// The row without colours: as wide as it is drawn.
fn name(row: &Row) -> String {
    let about = if row.about.is_empty() { String::new() } else { format!(" {}", row.about) };
    format!("{}{} {}{about}", row.branch, row.sign.1, row.name)
}

fn label(row: &Row, columns: usize, style: &Style) -> String {
    let fitted = pad(&fit(&name(row), columns), columns);
    let head = format!("{}{} ", row.branch, row.sign.1);
    // Coloured piece by piece, where the pieces are still there after cutting.
    let Some(rest) = fitted.strip_prefix(&head) else { return fitted };
    let (named, about) = match rest.strip_prefix(row.name.as_str()) {
        Some(about) => (row.name.as_str(), about),
        None => (rest, ""),
    };
    format!(
        "{}{} {}{}",
        style.paint(Tint::Dim, &row.branch),
        style.paint(row.sign.0, &row.sign.1.to_string()),
        named,
        style.paint(Tint::Dim, about)
    )
}

/// Each column shows what counts most of what happened in it.
fn bar(row: &Row, axis: &Axis, columns: usize, deaths: &[usize], style: &Style) -> String {
    let mut cells: Vec<Option<Phase>> = vec![None; columns];
    for span in &row.spans {
        // A moment of queueing or waiting is nothing anybody could see.
        if span.from == span.to && span.phase != Phase::Running {
            continue;
        }
        for cell in &mut cells[axis.columns(span)] {
            *cell = (*cell).max(Some(span.phase));
        }
    }
    let ink = |(column, cell): (usize, &Option<Phase>)| match cell {
        Some(phase) => phase.ink(),
        None if deaths.contains(&column) => (Tint::Bad, '╎'),
        None => (Tint::Plain, ' '),
    };
    let mut out = String::new();
    let mut open: Option<(Tint, String)> = None;
    for (tint, sign) in cells.iter().enumerate().map(ink) {
        match &mut open {
            Some((same, text)) if *same == tint => text.push(sign),
            _ => {
                if let Some((tint, text)) = open.replace((tint, sign.to_string())) {
                    out.push_str(&style.paint(tint, &text));
                }
            }
        }
    }
    if let Some((tint, text)) = open {
        out.push_str(&style.paint(tint, &text));
    }
    out
}

/// How long it took, and what of that was spent queueing.
fn tail(row: &Row) -> String {
    if row.spans.iter().all(|span| span.from == span.to) {
        return String::new();
    }
    let mut tail = format!("{:>8}", took(Duration::from_micros(row.micros)));
    // A hundredth of the whole is no queue.
    if row.queued >= 1_000 && row.queued * 100 > row.micros {
        tail.push_str(&format!(" ({} queued)", took(Duration::from_micros(row.queued))));
    }
    if row.attempts > 1 {
        tail.push_str(&format!(", {} attempts", row.attempts));
    }
    tail
}

/// What the signs of the bars mean, of those that are there.
fn legend(tree: &Tree, style: &Style) -> String {
    let all = [
        (Phase::Queued, "queued"),
        (Phase::Running, "running"),
        (Phase::Parked, "waiting"),
        (Phase::Doubt, "in doubt"),
    ];
    let there = |phase: Phase| {
        let shown = |span: &super::tree::Span| span.phase == phase && (span.from < span.to || phase == Phase::Running);
        tree.rows.iter().flat_map(|row| &row.spans).any(shown)
    };
    let mut words: Vec<String> = all
        .into_iter()
        .filter(|(phase, _)| there(*phase))
        .map(|(phase, word)| {
            let (tint, sign) = phase.ink();
            format!("{} {word}", style.paint(tint, &sign.to_string()))
        })
        .collect();
    if tree.notes.iter().any(|note| note.line) {
        words.push(format!("{} a process died", style.paint(Tint::Bad, "╎")));
    }
    words.join("   ")
}
