//! A line that says how far something long is.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::out::Out;

/// What is over sooner needs no line.
const LONG: Duration = Duration::from_millis(300);
const BETWEEN: Duration = Duration::from_millis(100);
const COLUMNS: u64 = 30;

/// Written over itself, on standard error, where somebody looks.
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

    /// So many of so many are done.
    pub(crate) fn tell(&mut self, done: u64, of: u64) {
        let due = self.drawn.map_or(self.began.elapsed() > LONG, |drawn| drawn.elapsed() > BETWEEN);
        if self.on && due {
            let full = (done.min(of) * COLUMNS).checked_div(of).unwrap_or(0);
            let bar = format!("{}{}", "█".repeat(full as usize), "░".repeat((COLUMNS - full) as usize));
            eprint!("\r{} {bar} {done} of {of}\u{1b}[K", self.what);
            self.drawn = Some(Instant::now());
        }
    }
}

/// Awaits something that says nothing of how far it is; how long it takes must do.
pub(crate) async fn during<T>(what: &'static str, out: &Out, work: impl Future<Output = T>) -> T {
    let mut progress = Progress::new(what, out);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(BETWEEN) => progress.tick(),
        }
    }
}

impl Progress {
    fn tick(&mut self) {
        if self.on && self.began.elapsed() > LONG {
            let seconds = Duration::from_secs(self.began.elapsed().as_secs());
            eprint!("\r{} … {}\u{1b}[K", self.what, crate::style::took(seconds));
            self.drawn = Some(Instant::now());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            eprint!("\r\u{1b}[K");
            // Where nobody reads any more there is nothing to clean up.
            let _ = std::io::stderr().flush();
        }
    }
}
