//! A progress line for long operations.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::out::Out;

/// Operations that end sooner show no line.
const DELAY: Duration = Duration::from_millis(300);
const INTERVAL: Duration = Duration::from_millis(100);
const COLUMNS: u64 = 30;
/// What the elapsed time takes at the end of a line.
const DURATION_WIDTH: usize = 16;

/// Redraws one line on standard error, if that is a terminal.
pub(crate) struct Progress {
    what: String,
    began: Instant,
    drawn: Option<Instant>,
    on: bool,
    width: usize,
}

impl Progress {
    pub(crate) fn new(what: &str, out: &Out) -> Self {
        let on = std::io::stderr().is_terminal() && !out.quiet && !out.json;
        Self {
            what: what.to_owned(),
            began: Instant::now(),
            drawn: None,
            on,
            width: out.style.width.saturating_sub(DURATION_WIDTH),
        }
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
pub(crate) async fn during<T>(what: &str, out: &Out, work: impl Future<Output = T>) -> T {
    Progress::new(what, out).during(work).await
}

impl Progress {
    /// Changes what the line says. The elapsed time goes on.
    pub(crate) fn set(&mut self, what: &str) {
        what.clone_into(&mut self.what);
    }

    /// Shows the elapsed time until the work is done.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(INTERVAL) => self.tick(),
            }
        }
    }

    /// Removes the line, so that another one can be printed in its place.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            eprint!("\r\u{1b}[K");
        }
    }

    fn tick(&mut self) {
        if self.on && self.began.elapsed() > DELAY {
            let seconds = Duration::from_secs(self.began.elapsed().as_secs());
            // A line that wraps could not be redrawn.
            let what: String = self.what.chars().take(self.width).collect();
            eprint!("\r{what} … {}\u{1b}[K", crate::style::duration(seconds));
            self.drawn = Some(Instant::now());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            self.clear();
            // If standard error is closed, there is nothing to clean up.
            let _ = std::io::stderr().flush();
        }
    }
}
