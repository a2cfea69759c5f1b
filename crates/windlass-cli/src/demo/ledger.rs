//! The outside world of the demo: the bank's ledger, and a log of the searches. They are plain files that Windlass does not
//! know of, so that the effects are counted independently.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A charge in the bank's ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Charge {
    /// The idempotency key the bank was given.
    pub(super) key: String,
    /// The customer who paid.
    pub(super) customer: String,
    /// The amount.
    pub(super) cents: u64,
    /// The receipt's number.
    pub(super) receipt: String,
}

/// The bank's ledger.
#[derive(Clone, Debug)]
pub(super) struct Ledger(PathBuf);

impl Ledger {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Records a charge. It is on disk when this returns.
    pub(super) fn charge(&self, key: &str, customer: &str, cents: u64) -> io::Result<Charge> {
        let number = self.charges()?.len() + 1;
        let (key, customer) = (key.to_owned(), customer.to_owned());
        let charge = Charge { key, customer, cents, receipt: format!("R-{number:04}") };
        let mut line = serde_json::to_vec(&charge)?;
        line.push(b'\n');
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(&line)?;
        file.sync_data()?;
        Ok(charge)
    }

    /// All charges.
    pub(super) fn charges(&self) -> io::Result<Vec<Charge>> {
        Ok(lines(&self.0)?.iter().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The charges of one run: an idempotency key begins with the id of its run.
    pub(super) fn charges_of(&self, run: &str) -> io::Result<Vec<Charge>> {
        Ok(self.charges()?.into_iter().filter(|charge| charge.key.starts_with(run)).collect())
    }

    /// Records a search.
    pub(super) fn record_search(&self, run: &str, what: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.searches())?;
        file.write_all(format!("{run} {what}\n").as_bytes())
    }

    /// The number of searches of a run.
    pub(super) fn searches_of(&self, run: &str) -> io::Result<usize> {
        Ok(lines(&self.searches())?.iter().filter(|line| line.starts_with(run)).count())
    }

    fn searches(&self) -> PathBuf {
        self.0.with_extension("searches")
    }
}

/// The complete lines of a file; none if it does not exist. Text after the last line break was not written completely.
fn lines(path: &Path) -> io::Result<Vec<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut lines = Vec::new();
    let mut reader = BufReader::new(file);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(lines);
        }
        lines.push(line.trim_end().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_keeps_every_charge_and_counts_by_run() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(&folder.path().join("ledger.jsonl"));
        assert_eq!(ledger.charges().unwrap(), []);
        let first = ledger.charge("run-a/1", "Ada", 500).unwrap();
        ledger.charge("run-b/1", "Grace", 7).unwrap();
        assert_eq!(ledger.charges_of("run-a").unwrap(), [first]);
        assert_eq!(ledger.charges().unwrap().len(), 2);
        ledger.record_search("run-a", "air").unwrap();
        ledger.record_search("run-b", "air").unwrap();
        assert_eq!(ledger.searches_of("run-a").unwrap(), 1);
    }

    #[test]
    fn an_incomplete_line_is_not_a_charge() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = Ledger::new(&path);
        ledger.charge("run-a/1", "Ada", 500).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"key\":\"run-a/2\"").unwrap();
        assert_eq!(ledger.charges().unwrap().len(), 1);
    }
}
