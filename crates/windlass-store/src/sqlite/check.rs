//! Checks a file for damage: briefly when it is opened, and completely in the background while it is used. A file that
//! was closed cleanly counts as intact meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode};
use windlass_core::troubles::Troubles;

use super::checksum;
use super::damage::{self, Damage, KnownDamage};
use super::db_file::DbFile;
use super::fault::Fault;
use super::write_access;

/// SQLite's virtual machine steps between two checks for an interrupt: some milliseconds.
const STEPS_BETWEEN_POLLS: i32 = 10_000;

/// A file up to this size is checked at once, in a fraction of a second. A larger one waits for low load, because
/// reading it keeps a processor busy, and processes that crash often have much to do.
const SMALL_FILE: u64 = 16 << 20;

/// A second with fewer groups of commits than this has low load.
const CALM_GROUPS: u64 = 50;
const SECOND: Duration = Duration::from_secs(1);

/// Pages by which the write-ahead log may grow while a table is read, which keeps the log from restarting: 64 MiB.
const MAX_WAL_GROWTH: i32 = 16_384;

/// Queries about the end of the log, each answered by a few reads. Any result is a problem, described by the text.
const TAIL_CHECKS: [(&str, &str); 2] = [
    (
        "the last record belongs to no run",
        "SELECT 1 FROM log WHERE position = (SELECT max(position) FROM log)
             AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run)",
    ),
    ("positions would be used twice", "SELECT 1 FROM file WHERE packed < (SELECT max(position) FROM segments)"),
];

/// Queries about the whole file. They sort nothing, because a file may be larger than the free space on its disk.
const FULL_CHECKS: [(&str, &str); 5] = [
    (
        "a record belongs to no run",
        "SELECT 1 FROM log WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run) LIMIT 1",
    ),
    (
        "a packed record belongs to no run",
        "SELECT 1 FROM segments WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = segments.run) LIMIT 1",
    ),
    (
        "a message belongs to no run",
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

/// The state of the store, for its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// No problem is known.
    Fine,
    /// The file was not closed cleanly the last time and is being checked. It works normally meanwhile.
    Checking,
    /// Commits are refused. The text has the cause and the remedy. The store recovers by itself when the cause is gone.
    /// Reads continue where possible.
    Unavailable(String),
    /// The file is damaged. The text has the location and the remedy. The store continues with what it can read and
    /// write.
    Broken(String),
}

/// Checks the end of the log with a bounded number of reads. The error describes the problem.
pub(super) fn quick_check(connection: &Connection) -> Result<(), String> {
    let message = |error: rusqlite::Error| error.to_string();
    first_problem(connection, &TAIL_CHECKS).map_err(message)?.map_or(Ok(()), Err)
}

/// The tables of a Windlass database that this file lacks.
pub(super) fn missing(connection: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    let found = tables(connection)?;
    Ok(checksum::TABLES.into_iter().filter(|table| !found.iter().any(|found| found == table)).collect())
}

fn tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// The text of the first query that finds something.
fn first_problem(connection: &Connection, questions: &[(&str, &str)]) -> rusqlite::Result<Option<String>> {
    for (sentence, sql) in questions {
        if connection.prepare(sql)?.exists([])? {
            return Ok(Some((*sentence).to_owned()));
        }
    }
    Ok(None)
}

/// A background check of the file.
pub(super) struct BackgroundCheck {
    state: Arc<CheckState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the check shares with the writer and with callers of [`health`](super::SqliteStore::health).
pub(super) struct CheckState {
    health: Mutex<Health>,
    command: Mutex<CheckCommand>,
    changed: Condvar,
    /// Groups of commits so far.
    groups: AtomicU64,
    /// Pages in the write-ahead log.
    pages: AtomicI32,
    known_damage: Arc<KnownDamage>,
}

/// What the check must do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckCommand {
    Run,
    /// Stop reading: the writer needs exclusive access for a moment.
    Pause,
    Stop,
}

impl CheckState {
    pub(super) fn new(health: Health, known_damage: Arc<KnownDamage>) -> Arc<Self> {
        let (health, command) = (Mutex::new(health), Mutex::new(CheckCommand::Run));
        let (groups, pages) = (AtomicU64::new(0), AtomicI32::new(0));
        Arc::new(Self { health, command, changed: Condvar::new(), groups, pages, known_damage })
    }

    /// Records damage that the writer or its packer found.
    pub(super) fn record(&self, damage: &Damage) {
        self.known_damage.record(damage);
    }

    /// Records that a group was committed, and the length of the write-ahead log.
    pub(super) fn committed(&self, pages: i32) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// The result so far.
    pub(super) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Whether the check is finished and no problem is known.
    pub(super) fn is_fine(&self) -> bool {
        *self.health.lock() == Health::Fine && self.known_damage.is_empty()
    }

    /// Pauses or resumes the check. An interrupted query starts again.
    pub(super) fn pause(&self, pause: bool) {
        self.send(if pause { CheckCommand::Pause } else { CheckCommand::Run });
    }

    /// Stops the check for good.
    pub(super) fn stop(&self) {
        self.send(CheckCommand::Stop);
    }

    fn send(&self, command: CheckCommand) {
        let mut changed = self.command.lock();
        if *changed != CheckCommand::Stop {
            *changed = command;
        }
        self.changed.notify_all();
    }

    /// Waits while the check is paused. Returns false once it must stop.
    fn may_continue(&self) -> bool {
        let mut command = self.command.lock();
        while *command == CheckCommand::Pause {
            self.changed.wait(&mut command);
        }
        *command == CheckCommand::Run
    }

    /// Returns false once the check must stop.
    fn wait_a_second(&self) -> bool {
        let (mut command, until) = (self.command.lock(), Instant::now() + SECOND);
        while *command != CheckCommand::Stop && !self.changed.wait_until(&mut command, until).timed_out() {}
        *command != CheckCommand::Stop
    }

    /// Waits for a second with low load, however long that takes. Returns early when the check must stop.
    fn wait_for_low_load(&self) {
        let mut command = self.command.lock();
        while *command != CheckCommand::Stop {
            let (before, until) = (self.groups.load(Ordering::Relaxed), Instant::now() + SECOND);
            while *command != CheckCommand::Stop && !self.changed.wait_until(&mut command, until).timed_out() {}
            if self.groups.load(Ordering::Relaxed) - before < CALM_GROUPS {
                return;
            }
        }
    }
}

impl BackgroundCheck {
    /// Starts a thread that checks the file. The check of a `clean` file waits for low load, so that short-lived
    /// processes do not read the whole file.
    pub(super) fn start(db_file: &DbFile, clean: bool, known_damage: Arc<KnownDamage>) -> std::io::Result<Self> {
        let state = CheckState::new(if clean { Health::Fine } else { Health::Checking }, known_damage);
        let (db_file, thread_state) = (db_file.clone(), state.clone());
        let work = move || {
            lower_priority();
            if clean {
                thread_state.wait_for_low_load();
            }
            if thread_state.may_continue() {
                run_check(&db_file, &thread_state);
            }
        };
        let thread = thread::Builder::new().name("windlass-check".to_owned()).spawn(work)?;
        Ok(Self { state, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn state(&self) -> Arc<CheckState> {
        self.state.clone()
    }

    /// The health of the file at `path`. Known damage takes precedence over a check that is still running.
    pub(super) fn health(&self, path: &Path) -> Health {
        let found = self.state.health();
        match self.state.known_damage.sentence(path) {
            Some(sentence) if !matches!(found, Health::Broken(_)) => Health::Broken(sentence),
            _ => found,
        }
    }

    /// Records the result of a check of the whole file. A background check that is running continues.
    pub(super) fn set_result(&self, problems: &[String]) {
        self.state.known_damage.replace(problems);
        let mut found = self.state.health.lock();
        if matches!(*found, Health::Broken(_)) {
            *found = Health::Fine;
        }
    }

    pub(super) fn stop(&self) {
        self.state.stop();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the background check of the file panicked");
        }
    }
}

/// Gives this thread the lowest priority. If that fails, the check only competes more with other threads.
#[cfg(target_os = "linux")]
fn lower_priority() {
    // On Linux this affects only the calling thread.
    let _ = rustix::process::setpriority_process(None, 19);
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

pub(super) fn run_check(db_file: &DbFile, state: &Arc<CheckState>) {
    let (path, troubles) = (db_file.path.display(), Troubles::new());
    let found = loop {
        match check_all(db_file, state) {
            Ok(None) => {
                tracing::debug!(%path, "checked the file and found no problem");
                break Health::Fine;
            }
            Ok(Some(problem)) => {
                let advice = "keep a copy of it with its -wal file, and restore it from a backup";
                break Health::Broken(format!("{path} is damaged ({problem}); {advice}"));
            }
            // Stopped. A file that was not completely checked is not marked clean, so the next opening checks it.
            Err(Fault::Other(_)) if !state.may_continue() => return,
            // A failing disk may work again soon, and its error says nothing about the content of the file.
            Err(fault) => {
                let cause = fault.cause();
                let problem = format!("{path} could not be checked: {cause}; the check is tried again every second");
                if let Some(untold) = troubles.met(&cause, write_access::now()) {
                    tracing::error!(untold, "{problem}");
                }
                *state.health.lock() = Health::Broken(problem);
                if !state.wait_a_second() {
                    return;
                }
            }
        }
    };
    if let Health::Broken(problem) = &found {
        tracing::error!("{problem}");
    }
    *state.health.lock() = found;
}

/// Checks everything and returns the first problem. Works table by table, because a long read keeps the write-ahead log
/// from restarting.
fn check_all(db_file: &DbFile, state: &Arc<CheckState>) -> Result<Option<String>, Fault> {
    let fault = |error: rusqlite::Error| Fault::of(&error);
    let mut connection = db_file.reader()?;
    let reading = Arc::new(BackgroundRead::new(db_file, state));
    let interrupt = reading.clone();
    connection.progress_handler(STEPS_BETWEEN_POLLS, Some(move || interrupt.must_end())).map_err(fault)?;
    let names = reading.retry_interrupted(|| tables(&connection)).map_err(fault)?;
    for table in names.iter().map(String::as_str).chain(["sqlite_schema"]) {
        if let Some(problem) = reading.retry_interrupted(|| integrity(&connection, table)).map_err(fault)? {
            return Ok(Some(format!("{table}: {problem}")));
        }
    }
    for question in checksum::DAMAGE_QUERIES {
        let found = reading.retry_interrupted(|| damage::run_query(&connection, question, 1)).map_err(fault)?;
        if let Some(damage) = found.first() {
            return Ok(Some(damage.sentence()));
        }
    }
    for question in FULL_CHECKS {
        if let Some(problem) = reading.retry_interrupted(|| first_problem(&connection, &[question])).map_err(fault)? {
            return Ok(Some(problem));
        }
    }
    Ok(None)
}

/// A read that gives way to the writer.
pub(super) struct BackgroundRead {
    state: Arc<CheckState>,
    is_small: bool,
    /// Pages in the write-ahead log when the read started.
    pages: AtomicI32,
}

impl BackgroundRead {
    pub(super) fn new(db_file: &DbFile, state: &Arc<CheckState>) -> Self {
        let is_small = std::fs::metadata(&db_file.path).is_ok_and(|file| file.len() <= SMALL_FILE);
        Self { state: state.clone(), is_small, pages: AtomicI32::new(0) }
    }

    /// Whether the read must be interrupted: on a command, or because the write-ahead log has grown too long.
    fn must_end(&self) -> bool {
        let grown = self.state.pages.load(Ordering::Relaxed) - self.pages.load(Ordering::Relaxed);
        grown > MAX_WAL_GROWTH || *self.state.command.lock() != CheckCommand::Run
    }

    /// Runs a query under low load, and repeats it as long as it is only interrupted.
    pub(super) fn retry_interrupted<T>(&self, work: impl Fn() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        loop {
            if !self.is_small {
                self.state.wait_for_low_load();
            }
            self.pages.store(self.state.pages.load(Ordering::Relaxed), Ordering::Relaxed);
            match work() {
                Err(error)
                    if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
                        && self.state.may_continue() => {}
                done => return done,
            }
        }
    }
}

fn integrity(connection: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    let quoted = table.replace('\'', "''");
    let message: String = connection
        .query_row(&format!("PRAGMA integrity_check('{quoted}')"), [], |row| row.get(0))
        // A damaged page may also make the check itself fail.
        .or_else(|error| match Fault::of(&error) {
            Fault::Damaged(message) => Ok(message),
            _ => Err(error),
        })?;
    Ok(Some(message).filter(|message| message != "ok"))
}
