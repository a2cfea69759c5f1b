//! `cargo xtask rows`: which row of the contract is proven by which test.
//!
//! A test cites rows in its name: `l09_l22_finished_step_is_not_run_again` proves L09 and L22. `tests/rows.txt` lists
//! the rows we claim; each must have a test that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::Misuse;
use crate::cargo::root;
use crate::source::{code_only, is_word};

/// The contract: a letter for each family, and how many rows it has.
const FAMILIES: [(char, u8); 5] = [('L', 25), ('E', 26), ('A', 11), ('B', 12), ('W', 13)];
const SCANNED: [&str; 4] = ["crates", "tests", "examples", "xtask"];
const CLAIMS: &str = "tests/rows.txt";

pub(crate) fn main(args: &[String]) -> Result<()> {
    let as_json = match args {
        [] => false,
        [flag] if flag == "--json" => true,
        _ => return Err(Misuse(format!("`rows` takes only `--json`, not `{}`", args.join(" "))).into()),
    };
    let report = Report::of(&root())?;
    let text = if as_json { format!("{:#}\n", report.to_json()) } else { report.to_string() };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The list is long; whoever reads it through `head` is served.
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

/// A row of the contract, or something that looks like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    /// Position in [`FAMILIES`], so that rows sort as the contract has them.
    family: usize,
    number: u8,
}

impl Row {
    /// Exactly one family letter, in either case, and two digits.
    fn parse(text: &str) -> Option<Row> {
        let [letter, tens, ones] = text.as_bytes() else { return None };
        let letter = char::from(letter.to_ascii_uppercase());
        let family = FAMILIES.iter().position(|&(name, _)| name == letter)?;
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| byte - b'0');
        Some(Row { family, number: digit(tens)? * 10 + digit(ones)? })
    }

    fn is_known(self) -> bool {
        (1..=FAMILIES[self.family].1).contains(&self.number)
    }

    fn all() -> impl Iterator<Item = Row> {
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

/// The rows `tests/rows.txt` claims.
fn claims(text: &str) -> Result<BTreeSet<Row>> {
    let mut claimed = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let id = line.split('#').next().unwrap_or_default().trim();
        if id.is_empty() {
            continue;
        }
        match Row::parse(id) {
            Some(row) if row.is_known() => claimed.insert(row),
            _ => bail!("{CLAIMS}:{}: `{id}` is not a row of the contract", index + 1),
        };
    }
    Ok(claimed)
}

struct Report {
    claimed: BTreeSet<Row>,
    tests: BTreeMap<Row, Vec<Citing>>,
    /// Tests that cite a row the contract does not have.
    unknown: Vec<Citing>,
}

impl Report {
    fn of(root: &Path) -> Result<Report> {
        let path = root.join(CLAIMS);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut citing = Vec::new();
        for directory in SCANNED {
            for path in rust_files(&root.join(directory))? {
                let source = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let relative = path.strip_prefix(root).unwrap_or(&path);
                citing.extend(citing_functions(&relative.to_string_lossy().replace('\\', "/"), &source));
            }
        }
        Ok(Report::new(claims(&text)?, citing))
    }

    fn new(claimed: BTreeSet<Row>, citing: Vec<Citing>) -> Report {
        let mut report = Report { claimed, tests: BTreeMap::new(), unknown: Vec::new() };
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

    fn is_proven(&self, row: Row) -> bool {
        self.tests(row).iter().any(|test| !test.ignored)
    }

    /// Rows claimed without a test that runs.
    fn unproven(&self) -> Vec<Row> {
        self.claimed.iter().copied().filter(|&row| !self.is_proven(row)).collect()
    }

    fn summary(&self) -> String {
        let proven = Row::all().filter(|&row| self.is_proven(row)).count();
        format!("{proven} of {} rows have a test; {} are claimed in {CLAIMS}", Row::all().count(), self.claimed.len())
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
        complaints
            .extend(self.unproven().iter().map(|row| format!("{CLAIMS} claims {row}, but no test that runs cites it")));
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
                json!({
                    "id": row.to_string(),
                    "claimed": self.claimed.contains(&row),
                    "proven": self.is_proven(row),
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
            let claim = if self.claimed.contains(&row) { "claimed" } else { "" };
            if tests.is_empty() {
                writeln!(f, "{row}  {claim:7}  -")?;
            }
            for Citing { name, file, line, ignored, .. } in tests {
                let ignored = if *ignored { "  (ignored)" } else { "" };
                writeln!(f, "{row}  {claim:7}  {name}  {file}:{line}{ignored}")?;
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

    fn report(claimed: &str, source: &str) -> Report {
        Report::new(claims(claimed).unwrap(), citing_functions("a.rs", source))
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
    fn the_contract_has_87_rows() {
        assert_eq!(Row::all().count(), 87);
        assert!(Row::all().all(|row| row.is_known() && Row::parse(&row.to_string()) == Some(row)));
        for outside in ["L00", "L26", "E27", "A12", "B13", "W14"] {
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
        let error = report("", "#[test]\nfn l99_l01_nothing() {}").verdict().unwrap_err();
        assert_eq!(error.to_string(), "a.rs:2: test `l99_l01_nothing` cites unknown row L99");
    }

    #[test]
    fn a_helper_that_looks_like_an_unknown_row_passes() {
        report("", "fn b64_encode() {}\n#[cfg(test)]\nfn b64_decode() {}").verdict().unwrap();
    }

    #[test]
    fn a_claimed_row_needs_a_test_that_runs() {
        report("L01 # with a remark\n\n# a comment\n", "#[test]\nfn l01_ok() {}").verdict().unwrap();
        let missing = "tests/rows.txt claims L02, but no test that runs cites it";
        for source in ["", "#[test]\n#[ignore = \"slow\"]\nfn l02_ignored() {}", "// fn l02_commented_out() {}"] {
            assert_eq!(report("L02", source).verdict().unwrap_err().to_string(), missing, "{source}");
        }
    }

    #[test]
    fn ignoring_one_test_does_not_ignore_the_next() {
        report("L02", "#[test]\n#[ignore]\nfn l01_x() {}\n\n#[test]\nfn l02_y() {}").verdict().unwrap();
    }

    #[test]
    fn claims_are_checked() {
        let error = claims("L01\nL26\n").unwrap_err();
        assert_eq!(error.to_string(), "tests/rows.txt:2: `L26` is not a row of the contract");
    }

    #[test]
    fn json_says_what_the_verdict_says() {
        let json = report("L02", "#[test]\nfn l01_x() {}").to_json();
        assert_eq!(json["ok"], false);
        assert_eq!(json["unproven"], json!(["L02"]));
        assert_eq!(
            json["rows"][0]["tests"][0],
            json!({ "name": "l01_x", "file": "a.rs", "line": 2, "ignored": false })
        );
    }
}
