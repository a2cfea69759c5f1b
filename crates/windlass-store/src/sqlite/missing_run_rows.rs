//! Writes the rows of runs that a file of schema version 5, 6 or 7 has only as notes in its log.
//!
//! Those versions wrote the row of a short run after its records: the column `log.note` of the first record has the
//! content of that row, and the note of the last one how the run ended. A killed process may have left such runs
//! without a row.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rusqlite::{Connection, ErrorCode, Row as SqlRow};
use serde::Deserialize;
use serde_json::Value;
use windlass_core::run::state::{Ending, RunState};
use windlass_core::store::Creation;
use windlass_core::time::Timestamp;
use windlass_core::{RunId, WorkerId};

use super::job::EncodedState;
use super::log::{self, JournalTail, unsigned};
use super::read;
use super::write_tx::{self, RunRow};

/// Rows of the log whose run has no row. Runs up to `packed` have one.
const ROWLESS: &str = log::select_log!(
    "WHERE position > (SELECT packed FROM file) AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run)
     ORDER BY position"
);

/// Writes the missing rows, before anything else reads `runs`.
pub(super) fn write_rows(transaction: &Connection) -> rusqlite::Result<()> {
    let mut found = BTreeMap::<i64, RowlessRun>::new();
    let mut statement = transaction.prepare(ROWLESS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        found.entry(row.get(1)?).or_default().add_row(row)?;
    }
    // Runs of earlier openings have rows, so these runs belong to the last opening.
    let opening = transaction.query_row("SELECT openings FROM file", [], |row| row.get(0))?;
    found.into_iter().try_for_each(|(id, found)| found.write(transaction, id, opening))
}

/// What the log has about a run without a row.
#[derive(Default)]
struct RowlessRun {
    start: Option<NotedStart>,
    ending: Option<Ending>,
    /// The time of the last record in the first commit that ended the run.
    ended: Option<Timestamp>,
    session: Option<i64>,
    tail: JournalTail,
    /// Whether one of its rows in the log is damaged.
    damaged: bool,
}

impl RowlessRun {
    fn add_row(&mut self, row: &SqlRow<'_>) -> rusqlite::Result<()> {
        self.damaged |= !log::is_intact(row)?;
        let length = unsigned(row.get(2)?).saturating_add(unsigned(row.get(3)?));
        self.tail = JournalTail { position: row.get(0)?, length };
        self.session = row.get(5)?;
        let note = row.get_ref(7)?.as_str_or_null().unwrap_or(None);
        let Some((start, ending)) = note.and_then(decode) else { return Ok(()) };
        self.start = self.start.take().or(start);
        if ending.is_some() {
            let last = row.get_ref(6)?.as_str().unwrap_or_default().lines().last().unwrap_or_default();
            self.ended = self.ended.or(read::decode(last).ok().map(|log::RecordTime { at }| at));
            self.ending = ending;
        }
        Ok(())
    }

    fn write(self, transaction: &Connection, id: i64, opening: i64) -> rusqlite::Result<()> {
        // Records without a start are damage, which a check of the file reports.
        let Some(NotedStart { run, epoch, creation }) = self.start else { return Ok(()) };
        let state = self.ending.map_or(RunState::Running, |ending| RunState::Finished { ending });
        let state =
            EncodedState::encode(&state).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        let row = RunRow {
            run,
            epoch,
            creation: &creation,
            state: &state,
            session: self.session,
            turn: false,
            wake: None,
            tail: self.tail,
            ended: self.ending.map(|_| self.ended.unwrap_or(creation.at)),
        };
        match write_tx::insert(transaction, id, opening, &row) {
            Ok(()) if !self.damaged => Ok(()),
            // No row has this checksum, so the run is shown as damaged.
            Ok(()) => transaction.execute("UPDATE runs SET sum = -1 WHERE id = ?1", [id]).map(drop),
            // The id or the key belongs to another run, so the note is damaged.
            Err(error) if self.damaged && error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The content of a run's first note.
#[derive(Debug, PartialEq)]
struct NotedStart {
    run: RunId,
    epoch: u64,
    creation: Creation,
}

/// How a run started, ended, or both. `None` if the note cannot be decoded.
fn decode(note: &str) -> Option<(Option<NotedStart>, Option<Ending>)> {
    match note.as_bytes().first()? {
        b'[' => serde_json::from_str::<StartNote>(note).ok()?.start(),
        b'{' => Some((Some(serde_json::from_str::<StartNoteV5>(note).ok()?.start()), None)),
        _ => Some((None, Some(serde_json::from_value(Value::from(note)).ok()?))),
    }
}

/// The note of a started run: a JSON array of these values.
#[derive(Deserialize)]
struct StartNote {
    /// The ids of the run and of its worker, in Base64.
    ids: String,
    epoch: u64,
    at: Timestamp,
    tool: String,
    #[serde(default)]
    key: Option<String>,
    /// How the run ended, if the same commit ended it.
    #[serde(default)]
    ending: Option<Ending>,
}

impl StartNote {
    fn start(self) -> Option<(Option<NotedStart>, Option<Ending>)> {
        let Self { ids, epoch, at, tool, key, ending } = self;
        let ids = URL_SAFE_NO_PAD.decode(ids).ok()?;
        let (run, worker) = ids.split_first_chunk::<16>()?;
        let worker = WorkerId::from_number(u64::from_be_bytes(worker.try_into().ok()?));
        let creation = Creation { tool: tool.into(), at, worker, key: key.map(Into::into), ..Creation::default() };
        Some((Some(NotedStart { run: RunId::from_bytes(*run), epoch, creation }), ending))
    }
}

/// The note of a started run in schema version 5.
#[derive(Deserialize)]
struct StartNoteV5 {
    run: RunId,
    tool: String,
    at: Timestamp,
    epoch: u64,
    worker: u64,
}

impl StartNoteV5 {
    fn start(self) -> NotedStart {
        let Self { run, tool, at, epoch, worker } = self;
        let worker = WorkerId::from_number(worker);
        NotedStart { run, epoch, creation: Creation { tool: tool.into(), at, worker, ..Creation::default() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w08_notes_of_older_versions_are_decoded() {
        let start = |tool: &str, key: Option<&str>| {
            let (at, worker) = (Timestamp::from_micros(7), WorkerId::from_number(u64::MAX));
            let (tool, key) = (tool.into(), key.map(Into::into));
            let creation = Creation { tool, at, worker, key, ..Creation::default() };
            Some(NotedStart { run: RunId::from_bytes([1; 16]), epoch: 1, creation })
        };
        let ids = "AQEBAQEBAQEBAQEBAQEBAf__________";
        let expected = [
            (format!(r#"["{ids}",1,7,"t"]"#), (start("t", None), None)),
            (format!(r#"["{ids}",1,7,"t","k"]"#), (start("t", Some("k")), None)),
            (format!(r#"["{ids}",1,7,"t",null,"lost"]"#), (start("t", None), Some(Ending::Lost))),
            (format!(r#"["{ids}",1,7,"a \"b\"\n","ü\\","ok"]"#), (start("a \"b\"\n", Some("ü\\")), Some(Ending::Ok))),
            ("failed".to_owned(), (None, Some(Ending::Failed))),
            ("cancelled".to_owned(), (None, Some(Ending::Cancelled))),
        ];
        for (note, read) in expected {
            assert_eq!(decode(&note), Some(read), "{note}");
        }
        for nonsense in ["", "well", "[]", "{}", "[1,2,3,4]", r#"["AQ",1,7,"t"]"#, r#"["x",1,7,"t",null,"well"]"#] {
            assert_eq!(decode(nonsense), None, "{nonsense}");
        }
    }
}
