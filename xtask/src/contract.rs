//! `docs/contract.md`: a table of rows for each family. The state of a row is written by hand, the tests that prove it are
//! generated.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::rows::Row;

pub(crate) const PAGE: &str = "docs/contract.md";

/// Tests that a row shows; the others are counted.
const SHOWN: usize = 3;

/// How much of a row's sentence holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowState {
    /// Tests prove the whole sentence.
    Proven,
    /// What is missing.
    Partly(String),
    NotYet,
}

impl RowState {
    fn parse(text: &str) -> Option<RowState> {
        match text {
            "proven" => Some(RowState::Proven),
            "not yet" => Some(RowState::NotYet),
            _ => match text.strip_prefix("partly: ")?.trim() {
                "" => None,
                missing => Some(RowState::Partly(missing.to_owned())),
            },
        }
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            RowState::Proven => "proven",
            RowState::Partly(_) => "partly",
            RowState::NotYet => "not yet",
        }
    }
}

/// The page, line by line.
#[derive(Debug)]
pub(crate) struct Contract {
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Prose(String),
    Row(ContractRow),
}

#[derive(Debug)]
struct ContractRow {
    row: Row,
    behaviour: String,
    state: RowState,
    proven_by: String,
}

impl Contract {
    /// Every row of the contract exactly once, in order.
    pub(crate) fn parse(text: &str) -> Result<Contract> {
        let mut lines = Vec::new();
        let mut expected = Row::all();
        for (index, line) in text.lines().enumerate() {
            let at = format!("{PAGE}:{}", index + 1);
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let Some(row) = cells.get(1).filter(|_| line.starts_with('|')).and_then(|id| Row::parse(id)) else {
                lines.push(Line::Prose(line.to_owned()));
                continue;
            };
            match expected.next() {
                Some(next) if next == row => {}
                Some(next) => bail!("{at}: this is row {row}, but {next} comes next"),
                None => bail!("{at}: the contract has no row {row} after the last one"),
            }
            let [_, _, behaviour, state, proven_by, ""] = cells[..] else {
                bail!("{at}: row {row} needs four cells: row, behaviour, state, proven by");
            };
            if behaviour.is_empty() {
                bail!("{at}: row {row} says nothing");
            }
            let Some(state) = RowState::parse(state) else {
                bail!(
                    "{at}: the state of {row} is `proven`, `partly: …` with what is missing, or `not yet`, not `{state}`"
                );
            };
            let (behaviour, proven_by) = (behaviour.to_owned(), proven_by.to_owned());
            lines.push(Line::Row(ContractRow { row, behaviour, state, proven_by }));
        }
        match expected.next() {
            Some(row) => bail!("{PAGE}: row {row} is missing"),
            None => Ok(Contract { lines }),
        }
    }

    pub(crate) fn states(&self) -> BTreeMap<Row, RowState> {
        self.rows().map(|line| (line.row, line.state.clone())).collect()
    }

    /// The rows whose last cell is not what it would be.
    pub(crate) fn stale(&self, proven_by: impl Fn(Row) -> String) -> Vec<Row> {
        self.rows().filter(|line| line.proven_by != proven_by(line.row)).map(|line| line.row).collect()
    }

    /// The page with its last cells made again.
    pub(crate) fn rewritten(&self, proven_by: impl Fn(Row) -> String) -> String {
        let mut page = String::new();
        for line in &self.lines {
            match line {
                Line::Prose(text) => page.push_str(text),
                Line::Row(ContractRow { row, behaviour, state, .. }) => {
                    let missing = match state {
                        RowState::Partly(missing) => format!(": {missing}"),
                        _ => String::new(),
                    };
                    let (word, tests) = (state.word(), proven_by(*row));
                    page.push_str(&format!("| {row} | {behaviour} | {word}{missing} | {tests} |"));
                }
            }
            page.push('\n');
        }
        page
    }

    fn rows(&self) -> impl Iterator<Item = &ContractRow> {
        self.lines.iter().filter_map(|line| match line {
            Line::Row(row) => Some(row),
            Line::Prose(_) => None,
        })
    }
}

/// The last cell of a row: the first tests that cite it, and how many more there are.
pub(crate) fn cell<'t>(tests: impl Iterator<Item = &'t str>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in tests {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return "no test".to_owned();
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} +{more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(of: impl Fn(Row) -> String) -> String {
        let rows: Vec<String> = Row::all().map(of).collect();
        format!("# Title\n\n| row | behaviour | state | proven by |\n|---|---|---|---|\n{}\n", rows.join("\n"))
    }

    fn plain(row: Row) -> String {
        format!("| {row} | It works. | not yet | no test |")
    }

    fn refusal(text: &str) -> String {
        Contract::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_page_is_read_and_written_back() {
        let text = page(plain);
        let contract = Contract::parse(&text).unwrap();
        assert_eq!(contract.states().len(), Row::all().count());
        assert_eq!(contract.rewritten(|_| "no test".to_owned()), text);
        assert_eq!(contract.stale(|_| "no test".to_owned()), []);
        let first = Row::all().next().unwrap();
        let tests = |row| if row == first { "`l01_x`".to_owned() } else { "no test".to_owned() };
        assert_eq!(contract.stale(tests), [first]);
        let rewritten = Contract::parse(&contract.rewritten(tests)).unwrap();
        assert_eq!(rewritten.stale(tests), []);
    }

    #[test]
    fn rows_are_there_once_and_in_order() {
        assert_eq!(refusal("nothing"), "docs/contract.md: row L01 is missing");
        let text = page(plain);
        assert_eq!(
            refusal(&text.replace("| L02 |", "| L03 |")),
            "docs/contract.md:6: this is row L03, but L02 comes next"
        );
        let again = format!("{text}{}\n", plain(Row::all().next().unwrap()));
        assert!(refusal(&again).contains("no row L01 after the last one"), "{}", refusal(&again));
        assert!(refusal(&text.replace("| W14 |", "| W15 |")).contains("this is row W15, but W14 comes next"));
    }

    #[test]
    fn a_state_says_what_is_missing() {
        assert_eq!(RowState::parse("proven"), Some(RowState::Proven));
        assert_eq!(RowState::parse("partly: no clock"), Some(RowState::Partly("no clock".to_owned())));
        assert_eq!(RowState::parse("not yet"), Some(RowState::NotYet));
        for other in ["", "done", "partly", "partly: ", "Proven"] {
            assert_eq!(RowState::parse(other), None, "{other}");
        }
        let text = page(plain).replacen("| not yet |", "| done |", 1);
        assert!(refusal(&text).starts_with("docs/contract.md:5: the state of L01 is `proven`, "), "{}", refusal(&text));
        let text = page(plain).replacen("| not yet |", "| not | yet |", 1);
        assert_eq!(refusal(&text), "docs/contract.md:5: row L01 needs four cells: row, behaviour, state, proven by");
    }

    #[test]
    fn a_cell_shows_three_tests_and_counts_the_others() {
        let of = |names: &[&'static str]| cell(names.iter().copied());
        assert_eq!(of(&[]), "no test");
        assert_eq!(of(&["a", "b", "a"]), "`a`, `b`");
        assert_eq!(of(&["a", "b", "c"]), "`a`, `b`, `c`");
        assert_eq!(of(&["a", "b", "c", "d", "e"]), "`a`, `b`, `c` +2 more");
    }
}
