//! Draws rows as lines of text.

use std::time::Duration;

use super::axis::Axis;
use super::tree::{Row, SpanKind, Tree};
use crate::style::{Style, Tint, duration, fit, pad, width};

/// The fewest columns for bars, however narrow the terminal is.
const MIN_BARS: usize = 16;
/// Bars do not become clearer beyond this width.
const MAX_BARS: usize = 100;
/// The most columns for names.
const MAX_NAMES: usize = 46;

impl SpanKind {
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

/// Draws a scale, a line for each call and operation, a legend, and the notes.
pub fn draw(tree: &Tree, style: &Style) -> Vec<String> {
    if tree.rows.is_empty() {
        return Vec::new();
    }
    let tails: Vec<String> = tree.rows.iter().map(tail).collect();
    let tails_wide = tails.iter().map(|tail| width(tail)).max().unwrap_or(0);
    let names_wide = tree.rows.iter().map(|row| width(&name(row))).max().unwrap_or(0);
    let names_wide = names_wide.min(MAX_NAMES).min(style.width * 2 / 5);
    let bars = style.width.saturating_sub(names_wide + tails_wide + 4).clamp(MIN_BARS, MAX_BARS);
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
        let at = duration(Duration::from_micros((note.at - tree.start).unsigned_abs()));
        let sign = style.paint(note.sign.0, &note.sign.1.to_string());
        // Not cut at the end of the line, because the note may say what to do.
        lines.push(format!("{at:>10}  {sign} {}", note.text));
    }
    lines
}

/// The name column of a row, without colours.
fn name(row: &Row) -> String {
    let about = if row.about.is_empty() { String::new() } else { format!(" {}", row.about) };
    format!("{}{} {}{about}", row.branch, row.sign.1, row.name)
}

fn label(row: &Row, columns: usize, style: &Style) -> String {
    let fitted = pad(&fit(&name(row), columns), columns);
    let head = format!("{}{} ", row.branch, row.sign.1);
    // Each part has its own colour, if cutting has left it intact.
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

/// Draws the bar of a row. A column shows the most important kind of its spans.
fn bar(row: &Row, axis: &Axis, columns: usize, deaths: &[usize], style: &Style) -> String {
    let mut cells: Vec<Option<SpanKind>> = vec![None; columns];
    for span in &row.spans {
        // Queueing or waiting without a duration is not shown.
        if span.from == span.to && span.kind != SpanKind::Running {
            continue;
        }
        for cell in &mut cells[axis.columns(span)] {
            *cell = (*cell).max(Some(span.kind));
        }
    }
    let ink = |(column, cell): (usize, &Option<SpanKind>)| match cell {
        Some(kind) => kind.ink(),
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

/// The duration, and how much of it was spent in the queue.
fn tail(row: &Row) -> String {
    if row.spans.iter().all(|span| span.from == span.to) {
        return String::new();
    }
    let mut tail = format!("{:>8}", duration(Duration::from_micros(row.micros)));
    // Less than one percent is not worth mentioning.
    if row.queued >= 1_000 && row.queued * 100 > row.micros {
        tail.push_str(&format!(" ({} queued)", duration(Duration::from_micros(row.queued))));
    }
    if row.attempts > 1 {
        tail.push_str(&format!(", {} attempts", row.attempts));
    }
    tail
}

/// The legend of the signs that occur in the bars.
fn legend(tree: &Tree, style: &Style) -> String {
    let all = [
        (SpanKind::Queued, "queued"),
        (SpanKind::Running, "running"),
        (SpanKind::Parked, "waiting"),
        (SpanKind::Doubt, "in doubt"),
    ];
    let shown = |kind: SpanKind| {
        let is_drawn =
            |span: &super::tree::Span| span.kind == kind && (span.from < span.to || kind == SpanKind::Running);
        tree.rows.iter().flat_map(|row| &row.spans).any(is_drawn)
    };
    let mut words: Vec<String> = all
        .into_iter()
        .filter(|(kind, _)| shown(*kind))
        .map(|(kind, word)| {
            let (tint, sign) = kind.ink();
            format!("{} {word}", style.paint(tint, &sign.to_string()))
        })
        .collect();
    if tree.notes.iter().any(|note| note.line) {
        words.push(format!("{} a process died", style.paint(Tint::Bad, "╎")));
    }
    words.join("   ")
}
