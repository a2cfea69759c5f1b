//! A progress line for long operations.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::out::Out;

/// Operations that end sooner show no line.
const DELAY: Duration = Duration::from_millis(300);
const INTERVAL: Duration = Duration::from_millis(100);
const COLUMNS: u64 = 30;

/// Redraws one line on standard error, if that is a terminal.
pub(crate) struct Progress {
    what: &'static str,
    began: Instant,
    drawn: Option<Instant>,
    on: bool,
}

impl Progress {
    pub(crate) fn new(what: &'static str, out: &Out) -> Self {
        let on = std::io::stderr().is_terminal() && !out.quiet && !out.json;
        Self { what, began: Instant::now(), drawn: None, on }
    }

    /// Shows that `done` of `of` are done.
    pub(crate) fn update(&mut self, done: u64, of: u64) {
        let due = self.drawn.map_or(self.began.elapsed() > DELAY, |drawn| drawn.elapsed() > INTERVAL);
        if self.on && due {
            let full = (done.min(of) * COLUMNS).checked_div(of).unwrap_or(0);
            let bar = format!("{}{}", "█".repeat(full as usize), "░".repeat((COLUMNS - full) as usize));
            eprint!("\r{} {bar} {done} of {of}\u{1b}[K", self.what);
            self.drawn = Some(Instant::now());
        }
    }
}

/// Awaits work whose progress is unknown, and shows the elapsed time instead.
pub(crate) async fn during<T>(what: &'static str, out: &Out, work: impl Future<Output = T>) -> T {
    let mut progress = Progress::new(what, out);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(INTERVAL) => progress.tick(),
        }
    }
}

impl Progress {
    fn tick(&mut self) {
        if self.on && self.began.elapsed() > DELAY {
            let seconds = Duration::from_secs(self.began.elapsed().as_secs());
            eprint!("\r{} … {}\u{1b}[K", self.what, crate::style::duration(seconds));
            self.drawn = Some(Instant::now());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            eprint!("\r\u{1b}[K");
            // If standard error is closed, there is nothing to clean up.
            let _ = std::io::stderr().flush();
        }
    }
}
