//! Terminal output: colours, widths and durations. Text from outside is stripped of control characters.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The meaning of a piece of text, shown as a colour if colours are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tint {
    /// The terminal's default.
    Plain,
    /// Headings and names.
    Bold,
    /// Minor details.
    Dim,
    /// Succeeded or running.
    Good,
    /// Failed.
    Bad,
    /// Queued.
    Wait,
    /// Parked.
    Park,
    /// In doubt.
    Doubt,
}

impl Tint {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Wait => "33",
            Self::Park => "34",
            Self::Doubt => "35",
        }
    }
}

/// Whether colours are used, and how wide a line may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Colours are on.
    pub colour: bool,
    /// Columns of a line.
    pub width: usize,
}

impl Style {
    /// For pipes, files and tests.
    pub const PLAIN: Self = Self { colour: false, width: 100 };

    /// `text` in the colour of `tint`, if colours are on.
    pub fn paint(&self, tint: Tint, text: &str) -> String {
        if self.colour && tint != Tint::Plain && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", tint.code())
        } else {
            text.to_owned()
        }
    }
}

/// Makes text from outside safe to print: control characters and marks that change the writing direction become a blank
/// or a box.
pub fn plain(text: &str) -> String {
    let is_direction_mark =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let safe = |c: char| match c {
        '\n' | '\t' | '\r' => ' ',
        c if c.is_control() || is_direction_mark(c) => '\u{25a1}',
        c => c,
    };
    text.chars().map(safe).collect()
}

/// A number with its noun: `1 tool`, `2 tools`.
pub fn counted(number: impl std::fmt::Display, word: &str) -> String {
    let number = number.to_string();
    let end = if number == "1" { "" } else { "s" };
    format!("{number} {word}{end}")
}

/// The number of columns that `text` takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` in at most `columns`, cut with an ellipsis if it is longer.
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let next = c.width().unwrap_or(0);
        if used + next + 1 > columns {
            break;
        }
        used += next;
        out.push(c);
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// `text` followed by blanks up to `columns`.
pub fn pad(text: &str, columns: usize) -> String {
    let blanks = columns.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(blanks))
}

/// A duration for people: `0.4 ms`, `312 ms`, `4.21 s`, `2 min 3 s`, `3 d 4 h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match duration.as_micros() {
        0..1_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        1_000..1_000_000 => format!("{} ms", duration.as_millis()),
        1_000_000..60_000_000 => format!("{:.2} s", duration.as_secs_f64()),
        _ if seconds < 3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Lays out rows of cells as lines. Each column is as wide as its widest cell; the last one is cut at the end of the line.
pub fn table(rows: &[Vec<(Tint, String)>], style: &Style) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|(_, text)| width(text)).max();
    let widths: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
    let line = |row: &Vec<(Tint, String)>| {
        let mut out = String::new();
        let mut used = 0;
        for (column, (tint, text)) in row.iter().enumerate() {
            let last = column + 1 == row.len();
            let text = if last { fit(text, style.width.saturating_sub(used).max(12)) } else { text.clone() };
            let blanks = if last { 0 } else { widths[column] + 2 - width(&text) };
            out.push_str(&style.paint(*tint, &text));
            out.push_str(&" ".repeat(blanks));
            used += widths[column] + 2;
        }
        out.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_direction_marks_are_replaced() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\td\u{202e}e\u{7}"), "a□[2Jb c d□e□");
        assert_eq!(plain("grüße 界"), "grüße 界");
    }

    #[test]
    fn text_is_cut_at_columns_not_at_bytes() {
        assert_eq!(fit("windlass", 8), "windlass");
        assert_eq!(fit("windlasses", 8), "windlas…");
        assert_eq!(fit("世界世界", 5), "世界…");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(pad("世", 4), "世  ");
    }

    #[test]
    fn durations_are_formatted_with_a_fitting_unit() {
        for (micros, text) in [
            (0, "0.0 ms"),
            (420, "0.4 ms"),
            (312_400, "312 ms"),
            (4_210_000, "4.21 s"),
            (123_000_000, "2 min 3 s"),
            (10_740_000_000, "2 h 59 min"),
            (273_600_000_000, "3 d 4 h"),
        ] {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn colours_are_only_used_when_they_are_on() {
        assert_eq!(Style::PLAIN.paint(Tint::Bad, "no"), "no");
        let colour = Style { colour: true, width: 80 };
        assert_eq!(colour.paint(Tint::Bad, "no"), "\u{1b}[31mno\u{1b}[0m");
        assert_eq!(colour.paint(Tint::Plain, "no"), "no");
    }

    #[test]
    fn tables_are_aligned_and_cut_at_the_end_of_the_line() {
        let cell = |text: &str| (Tint::Plain, text.to_owned());
        let rows = vec![vec![cell("a"), cell("bbb"), cell("c")], vec![cell("aaaa"), cell("b"), cell(&"x".repeat(40))]];
        let lines = table(&rows, &Style { colour: false, width: 30 });
        assert_eq!(lines[0], "a     bbb  c");
        assert_eq!(lines[1], format!("aaaa  b    {}…", "x".repeat(18)));
    }
}
