//! Looking for damage in a file: a little before it is opened, and all of it in the background, while it is used. A file that
//! was closed in good order counts as fine meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode};
use windlass_core::troubles::Troubles;

use super::access;
use super::damage::{self, Damage, Noticed};
use super::fault::Fault;
use super::place::Place;
use super::sum;

/// How many of SQLite's own steps a check goes on before it looks whether somebody wants it to stop: some milliseconds.
const STEPS: i32 = 10_000;

/// A file up to this size is looked through at once: it takes a fraction of a second. A larger one waits for a calm
/// moment, because reading it takes a processor, and the processes that crash are often those with much to do.
const SMALL: u64 = 16 << 20;

/// A second with fewer groups of commits than this is calm.
const CALM: u64 = 50;
const SECOND: Duration = Duration::from_secs(1);

/// Pages by which the write-ahead log may grow while a table is read, which keeps it from beginning again: 64 MiB.
const GROWTH: i32 = 16_384;

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
    ask(connection, &TAIL).map_err(said)?.map_or(Ok(()), Err)
}

/// The tables a file of ours has and this one has not.
pub(super) fn missing(connection: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    let found = tables(connection)?;
    Ok(sum::TABLES.into_iter().filter(|table| !found.iter().any(|found| found == table)).collect())
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
    /// Groups of commits so far.
    groups: AtomicU64,
    /// Pages in the write-ahead log.
    pages: AtomicI32,
    noticed: Arc<Noticed>,
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
    pub(super) fn new(found: Health, noticed: Arc<Noticed>) -> Arc<Self> {
        let (found, word) = (Mutex::new(found), Mutex::new(Word::Go));
        let (groups, pages) = (AtomicU64::new(0), AtomicI32::new(0));
        Arc::new(Self { found, word, told: Condvar::new(), groups, pages, noticed })
    }

    /// Remembers what the writer, or whoever works for it, found damaged.
    pub(super) fn notice(&self, damage: &Damage) {
        self.noticed.notice(damage);
    }

    /// Says that a group was committed, and how long the write-ahead log is now.
    pub(super) fn committed(&self, pages: i32) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// What is known so far.
    pub(super) fn found(&self) -> Health {
        self.found.lock().clone()
    }

    /// Whether nothing is wrong, and nothing is left to be looked at.
    pub(super) fn is_fine(&self) -> bool {
        *self.found.lock() == Health::Fine && self.noticed.is_empty()
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

    /// False once it is to stop.
    fn wait_a_second(&self) -> bool {
        let (mut word, until) = (self.word.lock(), Instant::now() + SECOND);
        while *word != Word::Stop && !self.told.wait_until(&mut word, until).timed_out() {}
        *word != Word::Stop
    }

    /// Waits for a second in which little is written, however long that takes. Ends early when it is to stop.
    fn wait_for_calm(&self) {
        let mut word = self.word.lock();
        while *word != Word::Stop {
            let (before, until) = (self.groups.load(Ordering::Relaxed), Instant::now() + SECOND);
            while *word != Word::Stop && !self.told.wait_until(&mut word, until).timed_out() {}
            if self.groups.load(Ordering::Relaxed) - before < CALM {
                return;
            }
        }
    }
}

impl Check {
    /// Looks through the file in a thread of its own. A `clean` one can wait for a calm second: a process that is soon over does
    /// not read it, and no index is known to be sound before it was looked through.
    pub(super) fn start(place: &Place, clean: bool, noticed: Arc<Noticed>) -> std::io::Result<Self> {
        let shared = Shared::new(if clean { Health::Fine } else { Health::Checking }, noticed);
        let (place, at_work) = (place.clone(), shared.clone());
        let work = move || {
            give_way();
            if clean {
                at_work.wait_for_calm();
            }
            if at_work.may_go_on() {
                conclude(&place, &at_work);
            }
        };
        let thread = thread::Builder::new().name("windlass-check".to_owned()).spawn(work)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// What is known so far of the file at `path`: what was noticed tells more than that it is still being looked through.
    pub(super) fn found(&self, path: &Path) -> Health {
        let found = self.shared.found();
        match self.shared.noticed.sentence(path) {
            Some(sentence) if !matches!(found, Health::Broken(_)) => Health::Broken(sentence),
            _ => found,
        }
    }

    /// The whole file was checked, and this is all that is wrong with it. A check in the background that is under way goes on.
    pub(super) fn conclude(&self, problems: &[String]) {
        self.shared.noticed.replace(problems);
        let mut found = self.shared.found.lock();
        if matches!(*found, Health::Broken(_)) {
            *found = Health::Fine;
        }
    }

    pub(super) fn stop(&self) {
        self.shared.stop();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the check of the file had panicked");
        }
    }
}

/// Lets every other thread go first. Where that cannot be had, the check is only less polite.
#[cfg(target_os = "linux")]
fn give_way() {
    // On Linux this concerns the calling thread alone.
    let _ = rustix::process::setpriority_process(None, 19);
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

pub(super) fn conclude(place: &Place, shared: &Arc<Shared>) {
    let (path, troubles) = (place.path.display(), Troubles::new());
    let found = loop {
        match through(place, shared) {
            Ok(None) => {
                tracing::debug!(%path, "the file was looked through, and nothing is wrong with it");
                break Health::Fine;
            }
            Ok(Some(problem)) => {
                let advice = "keep a copy of it with its -wal file, and restore it from a backup";
                break Health::Broken(format!("{path} is damaged ({problem}); {advice}"));
            }
            // Told to stop. What is not known to be fine is not marked clean, so the next opening looks through it.
            Err(Fault::Other(_)) if !shared.may_go_on() => return,
            // A disk that fails now may work in a moment, and says nothing of what is on it.
            Err(fault) => {
                let cause = fault.cause();
                let problem = format!("{path} could not be looked through: {cause}; it is tried again every second");
                if let Some(untold) = troubles.met(&cause, access::now()) {
                    tracing::error!(untold, "{problem}");
                }
                *shared.found.lock() = Health::Broken(problem);
                if !shared.wait_a_second() {
                    return;
                }
            }
        }
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
    let reading = Arc::new(Reading::new(place, shared));
    let interrupt = reading.clone();
    connection.progress_handler(STEPS, Some(move || interrupt.must_end())).map_err(fault)?;
    let names = reading.patiently(|| tables(&connection)).map_err(fault)?;
    for table in names.iter().map(String::as_str).chain(["sqlite_schema"]) {
        if let Some(problem) = reading.patiently(|| integrity(&connection, table)).map_err(fault)? {
            return Ok(Some(format!("{table}: {problem}")));
        }
    }
    for question in sum::QUESTIONS {
        let found = reading.patiently(|| damage::ask(&connection, question, 1)).map_err(fault)?;
        if let Some(damage) = found.first() {
            return Ok(Some(damage.sentence()));
        }
    }
    for question in WHOLE {
        if let Some(problem) = reading.patiently(|| ask(&connection, &[question])).map_err(fault)? {
            return Ok(Some(problem));
        }
    }
    Ok(None)
}

/// How the file may be read while others use it.
pub(super) struct Reading {
    shared: Arc<Shared>,
    is_small: bool,
    /// Pages in the write-ahead log when the reading began.
    pages: AtomicI32,
}

impl Reading {
    pub(super) fn new(place: &Place, shared: &Arc<Shared>) -> Self {
        let is_small = std::fs::metadata(&place.path).is_ok_and(|file| file.len() <= SMALL);
        Self { shared: shared.clone(), is_small, pages: AtomicI32::new(0) }
    }

    /// Whether somebody wants it to stop, or the write-ahead log has grown too long over it.
    fn must_end(&self) -> bool {
        let grown = self.shared.pages.load(Ordering::Relaxed) - self.pages.load(Ordering::Relaxed);
        grown > GROWTH || *self.shared.word.lock() != Word::Go
    }

    /// Does something when it is calm, and again for as long as it was only interrupted.
    pub(super) fn patiently<T>(&self, work: impl Fn() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        loop {
            if !self.is_small {
                self.shared.wait_for_calm();
            }
            self.pages.store(self.shared.pages.load(Ordering::Relaxed), Ordering::Relaxed);
            match work() {
                Err(error)
                    if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
                        && self.shared.may_go_on() => {}
                done => return done,
            }
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
