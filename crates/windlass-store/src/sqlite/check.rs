//! Looking for damage in a file that was not closed in good order: a little before it is opened, and all of it in the
//! background, while it is used.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode};

use super::fault::Fault;
use super::place::Place;
use super::schema;

/// How many of SQLite's own steps a check goes on before it looks whether somebody wants it to stop: some milliseconds.
const STEPS: i32 = 10_000;

/// Questions about what was written last, each answered by a few reads; whatever one finds is wrong, as its sentence says.
const TAIL: [(&str, &str); 2] = [
    (
        "the last record is of no run",
        "SELECT 1 FROM log WHERE position = (SELECT max(position) FROM log)
             AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run)",
    ),
    ("positions would be used twice", "SELECT 1 FROM file WHERE packed < (SELECT max(position) FROM segments)"),
];

/// The same about all that there is. Nothing is sorted: a file may be larger than what is free beside it.
const WHOLE: [(&str, &str); 5] = [
    (
        "a record is of no run",
        "SELECT 1 FROM log WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run) LIMIT 1",
    ),
    (
        "a packed record is of no run",
        "SELECT 1 FROM segments WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = segments.run) LIMIT 1",
    ),
    (
        "a message is of no run",
        "SELECT 1 FROM mail WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = mail.run) LIMIT 1",
    ),
    (
        "a journal has a gap",
        "SELECT 1 FROM log AS row LEFT JOIN log AS hot ON hot.position = row.previous
             LEFT JOIN segments AS packed ON packed.position = row.previous
         WHERE row.previous != 0 AND coalesce(hot.seq + hot.count, packed.seq + packed.count, -1) != row.seq LIMIT 1",
    ),
    (
        "a packed journal has a gap",
        "SELECT 1 FROM segments AS row LEFT JOIN log AS hot ON hot.position = row.previous
             LEFT JOIN segments AS packed ON packed.position = row.previous
         WHERE row.previous != 0 AND coalesce(hot.seq + hot.count, packed.seq + packed.count, -1) != row.seq LIMIT 1",
    ),
];

/// How the store is, for whoever looks after it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Nothing is known to be wrong.
    Fine,
    /// The file was not closed in good order the last time, and is being looked through. It works as always meanwhile.
    Checking,
    /// Commits are refused. The sentence says why, and what to do; when the cause is gone, the store goes on by itself.
    /// Reads go on where they can.
    Unavailable(String),
    /// The file is damaged. The sentence says where, and what to do; the store goes on with what it can read and write.
    Broken(String),
}

/// Whether what was written last makes sense, in a bounded number of reads. Says what does not.
pub(super) fn at_once(connection: &Connection) -> Result<(), String> {
    let said = |error: rusqlite::Error| error.to_string();
    if let Some(table) = missing(connection).map_err(said)?.first() {
        return Err(format!("the table {table} is missing"));
    }
    ask(connection, &TAIL).map_err(said)?.map_or(Ok(()), Err)
}

/// The tables a file of ours has and this one has not.
fn missing(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut model = Connection::open_in_memory()?;
    schema::create(&mut model)?;
    let found = tables(connection)?;
    Ok(tables(&model)?.into_iter().filter(|table| !found.contains(table)).collect())
}

fn tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// The first of the sentences whose question finds something.
fn ask(connection: &Connection, questions: &[(&str, &str)]) -> rusqlite::Result<Option<String>> {
    for (sentence, sql) in questions {
        if connection.prepare(sql)?.exists([])? {
            return Ok(Some((*sentence).to_owned()));
        }
    }
    Ok(None)
}

/// A check in the background.
pub(super) struct Check {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the check, the writer and whoever asks have in common.
pub(super) struct Shared {
    found: Mutex<Health>,
    word: Mutex<Word>,
    told: Condvar,
}

/// What the check is told to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Go,
    /// Let go of the file: somebody needs it alone for a moment.
    Pause,
    Stop,
}

impl Shared {
    pub(super) fn new(found: Health) -> Arc<Self> {
        Arc::new(Self { found: Mutex::new(found), word: Mutex::new(Word::Go), told: Condvar::new() })
    }

    /// Whether nothing is wrong, and nothing is left to be looked at.
    pub(super) fn is_fine(&self) -> bool {
        *self.found.lock() == Health::Fine
    }

    /// Keeps the check from reading, or lets it go on. What it was at is begun again.
    pub(super) fn pause(&self, pause: bool) {
        self.tell(if pause { Word::Pause } else { Word::Go });
    }

    /// Ends the check for good.
    pub(super) fn stop(&self) {
        self.tell(Word::Stop);
    }

    fn tell(&self, word: Word) {
        let mut told = self.word.lock();
        if *told != Word::Stop {
            *told = word;
        }
        self.told.notify_all();
    }

    /// Waits until the check may go on. False once it is to stop.
    fn may_go_on(&self) -> bool {
        let mut word = self.word.lock();
        while *word == Word::Pause {
            self.told.wait(&mut word);
        }
        *word == Word::Go
    }
}

impl Check {
    /// Looks through the file, unless it is `clean`, in a thread of its own.
    pub(super) fn start(place: &Place, clean: bool) -> std::io::Result<Self> {
        let shared = Shared::new(if clean { Health::Fine } else { Health::Checking });
        let mut thread = None;
        if !clean {
            let (place, shared) = (place.clone(), shared.clone());
            let work = move || conclude(&place, &shared);
            thread = Some(thread::Builder::new().name("windlass-check".to_owned()).spawn(work)?);
        }
        Ok(Self { shared, thread: Mutex::new(thread) })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// What is known so far.
    pub(super) fn found(&self) -> Health {
        self.shared.found.lock().clone()
    }

    pub(super) fn stop(&self) {
        self.shared.stop();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the check of the file had panicked");
        }
    }
}

pub(super) fn conclude(place: &Place, shared: &Arc<Shared>) {
    let path = place.path.display();
    let found = match through(place, shared) {
        Ok(None) => {
            tracing::info!(%path, "the file was not closed in good order, and nothing is wrong with it");
            Health::Fine
        }
        Ok(Some(problem)) => {
            let advice = "keep a copy of it with its -wal file, and restore it from a backup";
            Health::Broken(format!("{path} is damaged ({problem}); {advice}"))
        }
        // Told to stop. What is not known to be fine is not marked clean, so the next opening looks through it.
        Err(Fault::Other(_)) if !shared.may_go_on() => return,
        Err(fault) => Health::Broken(format!("{path} could not be looked through: {}", fault.cause())),
    };
    if let Health::Broken(problem) = &found {
        tracing::error!("{problem}");
    }
    *shared.found.lock() = found;
}

/// Looks through everything; says the first thing that is wrong. Table by table, because what is read in one go keeps
/// the write-ahead log from beginning again.
fn through(place: &Place, shared: &Arc<Shared>) -> Result<Option<String>, Fault> {
    let fault = |error: rusqlite::Error| Fault::of(&error);
    let mut connection = place.reader()?;
    let word = shared.clone();
    connection.progress_handler(STEPS, Some(move || *word.word.lock() != Word::Go)).map_err(fault)?;
    let names = patiently(shared, || tables(&connection)).map_err(fault)?;
    for table in names.iter().map(String::as_str).chain(["sqlite_schema"]) {
        if let Some(problem) = patiently(shared, || integrity(&connection, table)).map_err(fault)? {
            return Ok(Some(format!("{table}: {problem}")));
        }
    }
    patiently(shared, || ask(&connection, &WHOLE)).map_err(fault)
}

/// Does something again for as long as it was only interrupted.
pub(super) fn patiently<T>(shared: &Shared, work: impl Fn() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    loop {
        match work() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) && shared.may_go_on() => {}
            done => return done,
        }
    }
}

fn integrity(connection: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    let quoted = table.replace('\'', "''");
    let said: String = connection
        .query_row(&format!("PRAGMA integrity_check('{quoted}')"), [], |row| row.get(0))
        // A damaged page may also fail the check itself.
        .or_else(|error| match Fault::of(&error) {
            Fault::Damaged(said) => Ok(said),
            _ => Err(error),
        })?;
    Ok(Some(said).filter(|said| said != "ok"))
}
