//! Problems of a config file, each with its position, a suggestion and help.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::tree::Span;

/// How many characters of a line are shown; of a longer line, the part around the problem.
const SHOWN_CHARS: usize = 110;

/// How many problems are rendered: more than one corrects before the next check.
const MAX_RENDERED: usize = 100;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file is not valid.
    Error,
    /// The file is valid, but probably contains a mistake.
    Warning,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The kind of problem, for programs: `unknown_key`, `bad_value`, ….
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// The text next to the marker, usually a suggestion.
    pub label: Option<String>,
    /// What to do.
    pub help: Option<String>,
    span: Option<Span>,
    /// The marked value may be a secret, so it is not printed.
    hidden: bool,
}

impl Problem {
    pub(crate) fn error(code: &'static str, span: &Span, message: impl Into<String>) -> Self {
        let span = Some(span.clone());
        Self { severity: Severity::Error, code, message: message.into(), label: None, help: None, span, hidden: false }
    }

    pub(crate) fn warning(code: &'static str, span: &Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, span, message) }
    }

    /// A problem with the file as a whole.
    pub(crate) fn of_file(code: &'static str, message: impl Into<String>) -> Self {
        Self { span: None, ..Self::error(code, &(0..0), message) }
    }

    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub(crate) fn start(&self) -> usize {
        self.span.as_ref().map_or(0, |span| span.start)
    }

    pub(crate) fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }
}

/// The text of a file, and where its lines begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    lines: Vec<usize>,
}

impl Source {
    pub(crate) fn new(path: &Path, text: String) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { path: path.to_owned(), text, lines }
    }

    /// Line and column of a byte, both counted from one, columns in characters.
    pub(crate) fn position(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= at).max(1);
        let start = self.lines[line - 1];
        let before = self.text.get(start..at).map_or(0, |text| text.chars().count());
        (line, before + 1)
    }

    /// A line without its end.
    fn line(&self, number: usize) -> &str {
        let start = self.lines[number - 1];
        let end = self.lines.get(number).copied().unwrap_or(self.text.len());
        self.text[start..end].trim_end_matches(['\n', '\r'])
    }
}

/// The problems of a file, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    source: Arc<Source>,
    list: Vec<Problem>,
}

impl Problems {
    pub(crate) fn new(source: Arc<Source>, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(Problem::start);
        list.dedup();
        Self { source, list }
    }

    /// These and others of the same file.
    pub(crate) fn and(self, others: Self) -> Self {
        Self::new(self.source, self.list.into_iter().chain(others.list).collect())
    }

    /// The problems.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of errors, and the number of warnings.
    pub fn count(&self) -> (usize, usize) {
        let errors = self.list.iter().filter(|problem| problem.severity == Severity::Error).count();
        (errors, self.list.len() - errors)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// The line and column of a problem, counted from one; `None` if it is about the file as a whole.
    pub fn position(&self, problem: &Problem) -> Option<(usize, usize)> {
        problem.span().map(|span| self.source.position(span.start))
    }

    /// The problems as text for people, with the lines they are about.
    pub fn render(&self, colours: bool) -> String {
        let paint = Paint { on: colours };
        let mut text = String::new();
        for (index, problem) in self.list.iter().take(MAX_RENDERED).enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{gap}{}", self.render_one(problem, &paint));
        }
        if self.list.len() > MAX_RENDERED {
            let _ = writeln!(text, "\n… and {} more", self.list.len() - MAX_RENDERED);
        }
        text
    }

    /// The problems as JSON for programs.
    pub fn json(&self) -> Value {
        let one = |problem: &Problem| {
            let severity = if problem.severity == Severity::Error { "error" } else { "warning" };
            let position = self.position(problem);
            json!({
                "severity": severity,
                "code": problem.code,
                "file": self.source.path.display().to_string(),
                "line": position.map(|(line, _)| line),
                "column": position.map(|(_, column)| column),
                "message": problem.message,
                "label": problem.label,
                "help": problem.help,
            })
        };
        Value::Array(self.list.iter().map(one).collect())
    }

    fn render_one(&self, problem: &Problem, paint: &Paint) -> String {
        let word = match problem.severity {
            Severity::Error => paint.red("error"),
            Severity::Warning => paint.yellow("warning"),
        };
        let mut text = format!("{word}: {}\n", paint.bold(&problem.message));
        let path = self.source.path.display();
        let Some(span) = problem.span() else {
            let _ = writeln!(text, "  --> {path}");
            if let Some(help) = &problem.help {
                let _ = writeln!(text, "   = help: {help}");
            }
            return text;
        };
        let (line, column) = self.source.position(span.start);
        let margin = " ".repeat(line.to_string().len());
        let bar = paint.blue("|");
        let snippet = self.snippet(span, line, column);
        let _ = writeln!(text, "{margin}{} {path}:{line}:{column}", paint.blue("-->"));
        let _ = writeln!(text, "{margin} {bar}");
        let _ = writeln!(text, "{} {bar} {}", paint.blue(&line.to_string()), snippet.line);
        let label = problem.label.as_ref().map(|label| format!(" {label}")).unwrap_or_default();
        let mark = format!("{}{label}", "^".repeat(snippet.length));
        let _ = writeln!(text, "{margin} {bar} {}{}", " ".repeat(snippet.start), paint.red(&mark));
        if let Some(help) = &problem.help {
            let _ = writeln!(text, "{margin} {} help: {help}", paint.blue("="));
        }
        text
    }

    /// Replaces values that may be secrets by dots, whichever problem shows the line.
    fn hide(&self, line: usize, chars: &mut [char]) {
        for span in self.list.iter().filter(|problem| problem.hidden).filter_map(Problem::span) {
            let (first, from) = self.source.position(span.start);
            let (last, to) = self.source.position(span.end);
            let from = if first == line { from - 1 } else { 0 };
            let to = if last == line { to - 1 } else { chars.len() };
            if (first..=last).contains(&line) {
                let hidden = chars.get_mut(from..to).unwrap_or_default();
                hidden.iter_mut().filter(|c| !matches!(c, '"' | '\'')).for_each(|c| *c = '•');
            }
        }
    }

    fn snippet(&self, span: &Span, line: usize, column: usize) -> Snippet {
        let mut chars: Vec<char> =
            self.source.line(line).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let start = (column - 1).min(chars.len());
        let marked = self.source.text.get(span.clone()).unwrap_or_default();
        let marked = marked.lines().next().unwrap_or_default().chars().count();
        let length = marked.min(chars.len() - start).max(1);
        self.hide(line, &mut chars);
        let from = if start + length > SHOWN_CHARS { start.saturating_sub(SHOWN_CHARS / 3) } else { 0 };
        let mut shown: String = chars.iter().skip(from).take(SHOWN_CHARS).collect();
        let cut = usize::from(from > 0);
        if cut == 1 {
            shown.insert(0, '…');
        }
        if from + SHOWN_CHARS < chars.len() {
            shown.push('…');
        }
        let start = start - from + cut;
        Snippet { line: shown, start, length: length.min(SHOWN_CHARS.saturating_sub(start).max(1)) }
    }
}

struct Snippet {
    line: String,
    start: usize,
    length: usize,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

impl std::error::Error for Problems {}

struct Paint {
    on: bool,
}

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        if self.on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn red(&self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn yellow(&self, text: &str) -> String {
        self.with("1;33", text)
    }

    fn blue(&self, text: &str) -> String {
        self.with("1;34", text)
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str, problem: Problem) -> Problems {
        Problems::new(Arc::new(Source::new(Path::new("w.toml"), text.to_owned())), vec![problem])
    }

    #[test]
    fn a_problem_is_rendered_with_its_line_and_a_marker() {
        let text = "a = 1\nübel = [\"é\", oops]\n";
        let at = text.find("oops").unwrap();
        let problem = Problem::error("bad", &(at..at + 4), "no").label("here").help("write `1`");
        let shown = "error: no\n --> w.toml:2:14\n  |\n2 | übel = [\"é\", oops]\n  |              ^^^^ here\n  = help: write `1`\n";
        assert_eq!(problems(text, problem).render(false), shown);
    }

    #[test]
    fn a_hidden_value_is_not_printed() {
        let text = "token = \"hunter2\" # old";
        let problem = Problem::error("bad", &(8..17), "no").hidden();
        let shown = problems(text, problem).render(false);
        assert!(shown.contains("1 | token = \"•••••••\" # old\n  |         ^^^^^^^^^\n"), "{shown}");
    }

    #[test]
    fn long_lines_are_shown_around_the_problem() {
        let text = format!("{}x{}", "-".repeat(300), "-".repeat(300));
        let shown = problems(&text, Problem::error("bad", &(300..301), "no")).render(false);
        let lines: Vec<&str> = shown.lines().collect();
        let (line, mark) = (lines[3].chars().collect::<Vec<_>>(), lines[4]);
        assert!(line.len() < 125, "{shown}");
        let column = mark.chars().position(|c| c == '^').unwrap();
        assert_eq!(line[column], 'x', "{shown}");
    }

    #[test]
    fn colours_are_only_used_if_requested() {
        let found = problems("a", Problem::warning("bad", &(0..1), "no"));
        assert!(!found.render(false).contains('\u{1b}'));
        assert!(found.render(true).contains("\u{1b}[1;33mwarning"));
    }

    #[test]
    fn a_problem_at_the_end_of_the_file_is_shown() {
        for text in ["", "a = ", "a = \n"] {
            let shown = problems(text, Problem::error("bad", &(text.len()..text.len()), "no")).render(false);
            assert!(shown.contains('^'), "{shown}");
        }
    }
}
