//! `cargo xtask rows`: which row of the contract is proven by which test.
//!
//! A test cites rows in its name: `l09_l22_finished_step_is_not_run_again` proves L09 and L22. `docs/contract.md` says what
//! each row is and how much of it holds; a row that holds, or partly, must have a test that runs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::Misuse;
use crate::cargo::root;
use crate::contract::{self, Contract, PAGE, RowState};
use crate::source::{code_only, is_word};

/// The contract: a letter for each family, and how many rows it has.
const FAMILIES: [(char, u8); 5] = [('L', 28), ('E', 30), ('A', 11), ('B', 13), ('W', 14)];
const SCANNED: [&str; 4] = ["crates", "tests", "examples", "xtask"];

pub(crate) fn main(args: &[String]) -> Result<()> {
    let as_json = match args {
        [] => false,
        [flag] if flag == "--json" => true,
        [flag] if flag == "--write" => return write(&root()),
        _ => return Err(Misuse(format!("`rows` takes `--json` or `--write`, not `{}`", args.join(" "))).into()),
    };
    let report = Report::of(&root())?;
    let text = if as_json { format!("{:#}\n", report.to_json()) } else { report.to_string() };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The list is long, and `head` closes its input early.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot write the list")?,
    }
    report.verdict()
}

/// The gate of `cargo xtask test`: the counts only.
pub(crate) fn gate() -> Result<()> {
    let report = Report::of(&root())?;
    println!("{}", report.summary());
    report.verdict()
}

/// Makes the last column of the contract again.
fn write(root: &Path) -> Result<()> {
    let report = Report::of(root)?;
    let path = root.join(PAGE);
    fs::write(&path, report.contract.rewritten(|row| report.cell(row)))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("{PAGE} is written; {}", report.summary());
    Ok(())
}

/// A row of the contract, or something that looks like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    /// Position in [`FAMILIES`], so that rows sort as the contract has them.
    family: usize,
    number: u8,
}

impl Row {
    /// Exactly one family letter, in either case, and two digits.
    pub(crate) fn parse(text: &str) -> Option<Row> {
        let [letter, tens, ones] = text.as_bytes() else { return None };
        let letter = char::from(letter.to_ascii_uppercase());
        let family = FAMILIES.iter().position(|&(name, _)| name == letter)?;
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| byte - b'0');
        Some(Row { family, number: digit(tens)? * 10 + digit(ones)? })
    }

    fn is_known(self) -> bool {
        (1..=FAMILIES[self.family].1).contains(&self.number)
    }

    pub(crate) fn all() -> impl Iterator<Item = Row> {
        FAMILIES
            .iter()
            .enumerate()
            .flat_map(|(family, &(_, last))| (1..=last).map(move |number| Row { family, number }))
    }

    /// The rows a function's name starts with; `e2e_…` and `l09` alone cite nothing.
    fn cited_by(name: &str) -> Vec<Row> {
        if name.as_bytes().get(3) != Some(&b'_') {
            return Vec::new();
        }
        name.split('_').map_while(Row::parse).collect()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:02}", FAMILIES[self.family].0, self.number)
    }
}

/// A function whose name cites rows.
#[derive(Debug, Clone, PartialEq)]
struct Citing {
    rows: Vec<Row>,
    name: String,
    /// Relative to the root, with forward slashes.
    file: String,
    line: usize,
    /// Carries `#[ignore]`: it is listed, but proves nothing.
    ignored: bool,
    /// Carries a test attribute. Tests made by a macro do not; what has none and cites no known row is not a test.
    attributed: bool,
}

/// All functions in `source` whose names look like citations.
fn citing_functions(file: &str, source: &str) -> Vec<Citing> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let before = &code[..at];
        if before.ends_with(is_word) {
            continue;
        }
        let after = code[at + "fn ".len()..].trim_start();
        let name = &after[..after.find(|c| !is_word(c)).unwrap_or(after.len())];
        let rows = Row::cited_by(name);
        if rows.is_empty() || !after[name.len()..].starts_with(['(', '<']) {
            continue;
        }
        // Attributes stand between the item before and the function.
        let head = &before[before.rfind(['{', '}', ';']).map_or(0, |end| end + 1)..];
        found.push(Citing {
            rows,
            name: name.to_owned(),
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            ignored: attributes(head).any(|attribute| attribute.starts_with("ignore")),
            attributed: attributes(head).any(|attribute| !attribute.starts_with("cfg") && attribute.contains("test")),
        });
    }
    found
}

/// The insides of `#[…]` in `head`.
fn attributes(head: &str) -> impl Iterator<Item = &str> {
    head.split("#[").skip(1).map(|tail| tail.split(']').next().unwrap_or_default().trim_start())
}

struct Report {
    contract: Contract,
    states: BTreeMap<Row, RowState>,
    tests: BTreeMap<Row, Vec<Citing>>,
    /// Tests that cite a row the contract does not have.
    unknown: Vec<Citing>,
}

impl Report {
    fn of(root: &Path) -> Result<Report> {
        let path = root.join(PAGE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut citing = Vec::new();
        for directory in SCANNED {
            for path in rust_files(&root.join(directory))? {
                let source = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let relative = path.strip_prefix(root).unwrap_or(&path);
                citing.extend(citing_functions(&relative.to_string_lossy().replace('\\', "/"), &source));
            }
        }
        Ok(Report::new(Contract::parse(&text)?, citing))
    }

    fn new(contract: Contract, citing: Vec<Citing>) -> Report {
        let states = contract.states();
        let mut report = Report { contract, states, tests: BTreeMap::new(), unknown: Vec::new() };
        for test in citing {
            let (known, unknown): (Vec<Row>, Vec<Row>) = test.rows.iter().partition(|row| row.is_known());
            for row in known {
                report.tests.entry(row).or_default().push(test.clone());
            }
            // `fn b64_encode` is a helper, not a citation of a row B64.
            if test.attributed && !unknown.is_empty() {
                report.unknown.push(test);
            }
        }
        report
    }

    fn tests(&self, row: Row) -> &[Citing] {
        self.tests.get(&row).map_or(&[], Vec::as_slice)
    }

    fn state(&self, row: Row) -> &RowState {
        self.states.get(&row).unwrap_or(&RowState::NotYet)
    }

    /// What the contract says of the tests of a row. Those that are ignored prove nothing.
    fn cell(&self, row: Row) -> String {
        contract::cell(self.tests(row).iter().filter(|test| !test.ignored).map(|test| test.name.as_str()))
    }

    fn has_test(&self, row: Row) -> bool {
        self.tests(row).iter().any(|test| !test.ignored)
    }

    /// Rows that hold, or partly, without a test that runs.
    fn unproven(&self) -> Vec<Row> {
        let claimed = |row: &Row| *self.state(*row) != RowState::NotYet;
        Row::all().filter(|row| claimed(row) && !self.has_test(*row)).collect()
    }

    fn summary(&self) -> String {
        let count = |word: &str| self.states.values().filter(|state| state.word() == word).count();
        let (proven, partly, not_yet) = (count("proven"), count("partly"), count("not yet"));
        format!("{} rows: {proven} proven, {partly} partly, {not_yet} not yet", Row::all().count())
    }

    fn verdict(&self) -> Result<()> {
        let mut complaints: Vec<String> = self
            .unknown
            .iter()
            .map(|test| {
                let rows: Vec<String> = test.rows.iter().filter(|row| !row.is_known()).map(Row::to_string).collect();
                format!("{}:{}: test `{}` cites unknown row {}", test.file, test.line, test.name, rows.join(", "))
            })
            .collect();
        complaints.extend(self.unproven().iter().map(|row| {
            format!("{PAGE}: {row} is marked `{}`, but no test that runs cites it", self.state(*row).word())
        }));
        let stale: Vec<String> = self.contract.stale(|row| self.cell(row)).iter().map(Row::to_string).collect();
        if !stale.is_empty() {
            let rows = stale.join(", ");
            complaints.push(format!("{PAGE}: the tests of {rows} have changed; run `cargo xtask rows --write`"));
        }
        if !complaints.is_empty() {
            bail!("{}", complaints.join("\n       "));
        }
        Ok(())
    }

    fn to_json(&self) -> serde_json::Value {
        let test =
            |test: &Citing| json!({ "name": test.name, "file": test.file, "line": test.line, "ignored": test.ignored });
        let rows: Vec<_> = Row::all()
            .map(|row| {
                let missing = match self.state(row) {
                    RowState::Partly(missing) => Some(missing),
                    _ => None,
                };
                json!({
                    "id": row.to_string(),
                    "state": self.state(row).word(),
                    "missing": missing,
                    "tests": self.tests(row).iter().map(test).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "ok": self.verdict().is_ok(),
            "rows": rows,
            "unknown": self.unknown.iter().map(test).collect::<Vec<_>>(),
            "unproven": self.unproven().iter().map(Row::to_string).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in Row::all() {
            let tests = self.tests(row);
            let state = self.state(row).word();
            if tests.is_empty() {
                writeln!(f, "{row}  {state:7}  -")?;
            }
            for Citing { name, file, line, ignored, .. } in tests {
                let ignored = if *ignored { "  (ignored)" } else { "" };
                writeln!(f, "{row}  {state:7}  {name}  {file}:{line}{ignored}")?;
            }
        }
        writeln!(f, "{}", self.summary())
    }
}

/// All `*.rs` below `directory` in a stable order, without build output and hidden directories. None if it is absent.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_path_buf()];
    while let Some(directory) = pending.pop() {
        if !directory.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() && name != "target" && !name.starts_with('.') {
                pending.push(entry.path());
            } else if kind.is_file() && name.ends_with(".rs") {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report on a contract where the rows in `proven` are, and whose last column is up to date.
    fn report(proven: &[&str], source: &str) -> Report {
        let state = |row: &str| if proven.contains(&row) { "proven" } else { "not yet" };
        let rows: String =
            Row::all().map(|row| format!("| {row} | It works. | {} | |\n", state(&row.to_string()))).collect();
        let stale = Report::new(Contract::parse(&rows).unwrap(), citing_functions("a.rs", source));
        let page = stale.contract.rewritten(|row| stale.cell(row));
        Report::new(Contract::parse(&page).unwrap(), citing_functions("a.rs", source))
    }

    /// `line name rows` of every citing function.
    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let found: Vec<String> = citing_functions("a.rs", source)
            .iter()
            .map(|test| {
                let rows: Vec<String> = test.rows.iter().map(Row::to_string).collect();
                format!("{} {} {}", test.line, test.name, rows.join(","))
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_contract_has_96_rows() {
        assert_eq!(Row::all().count(), 96);
        assert!(Row::all().all(|row| row.is_known() && Row::parse(&row.to_string()) == Some(row)));
        for outside in ["L00", "L29", "E31", "A12", "B14", "W15"] {
            assert!(!Row::parse(outside).unwrap().is_known(), "{outside}");
        }
        for other in ["X01", "L1", "L001", "e2e", "", "LL1", "é01"] {
            assert_eq!(Row::parse(other), None, "{other}");
        }
    }

    #[test]
    fn names_cite_one_row_or_several() {
        check("#[test]\nfn l09_step() {}", &["2 l09_step L09"]);
        check("#[tokio::test(flavor = \"x\")]\nasync fn w01_l22_e08_doubt() {}", &["2 w01_l22_e08_doubt W01,L22,E08"]);
        check("tests! { fn b04_generic<S: Store>() {} }", &["1 b04_generic B04"]);
        check("fn a01_after_a02_second() {}", &["1 a01_after_a02_second A01"]);
    }

    #[test]
    fn other_names_cite_nothing() {
        check("fn e2e_flow() {}\nfn l9_x() {}\nfn l090_x() {}\nfn l09() {}\nfn all_l09_x() {}", &[]);
        check("fn $l09_name() {}\nl09_called();\nlet l09_x: fn (u8);\nmyfn l09_x()", &[]);
    }

    #[test]
    fn comments_and_strings_cite_nothing() {
        check(
            "// fn l01_a() {}\n/* fn l02_b() {} */\nconst X: &str = \"fn l03_c() {}\";\nfn l04_d() {}",
            &["4 l04_d L04"],
        );
    }

    #[test]
    fn an_unknown_row_fails_by_name() {
        let error = report(&[], "#[test]\nfn l99_l01_nothing() {}").verdict().unwrap_err();
        assert_eq!(error.to_string(), "a.rs:2: test `l99_l01_nothing` cites unknown row L99");
    }

    #[test]
    fn a_helper_that_looks_like_an_unknown_row_passes() {
        report(&[], "fn b64_encode() {}\n#[cfg(test)]\nfn b64_decode() {}").verdict().unwrap();
    }

    #[test]
    fn a_proven_row_needs_a_test_that_runs() {
        report(&["L01"], "#[test]\nfn l01_ok() {}").verdict().unwrap();
        let missing = "docs/contract.md: L02 is marked `proven`, but no test that runs cites it";
        for source in ["", "#[test]\n#[ignore = \"slow\"]\nfn l02_ignored() {}", "// fn l02_commented_out() {}"] {
            assert_eq!(report(&["L02"], source).verdict().unwrap_err().to_string(), missing, "{source}");
        }
    }

    #[test]
    fn ignoring_one_test_does_not_ignore_the_next() {
        report(&["L02"], "#[test]\n#[ignore]\nfn l01_x() {}\n\n#[test]\nfn l02_y() {}").verdict().unwrap();
    }

    #[test]
    fn a_stale_column_names_the_command() {
        let mut changed = report(&[], "#[test]\nfn l01_l02_x() {}");
        changed.tests.clear();
        let stale = "docs/contract.md: the tests of L01, L02 have changed; run `cargo xtask rows --write`";
        assert_eq!(changed.verdict().unwrap_err().to_string(), stale);
    }

    #[test]
    fn json_says_what_the_verdict_says() {
        let json = report(&["L02"], "#[test]\nfn l01_x() {}").to_json();
        assert_eq!(json["ok"], false);
        assert_eq!(json["unproven"], json!(["L02"]));
        assert_eq!((&json["rows"][0]["state"], &json["rows"][1]["state"]), (&json!("not yet"), &json!("proven")));
        assert_eq!(
            json["rows"][0]["tests"][0],
            json!({ "name": "l01_x", "file": "a.rs", "line": 2, "ignored": false })
        );
    }
}
