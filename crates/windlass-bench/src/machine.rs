//! The machine of the measurement, and its load: figures of a busy machine are not reliable.

use std::fmt;
use std::fs;

use serde::Serialize;

/// With a load average above this, other programs were running.
const QUIET: f64 = 0.5;

/// The machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Cores this process may use.
    pub cores: usize,
    /// The load average of the minute before, if the system reports it.
    pub load_before: Option<f64>,
}

impl Machine {
    /// This machine, now.
    #[must_use]
    pub fn now() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, Into::into);
        let load = fs::read_to_string("/proc/loadavg").ok();
        Self { cores, load_before: load.and_then(|line| parse(&line)) }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::now()
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores", self.cores)?;
        let Some(load) = self.load_before else { return Ok(()) };
        write!(f, ", load {load:.2} at the start")?;
        if load > QUIET {
            // Waiting for a core takes milliseconds, as long as many syncs.
            write!(f, ": busy, so figures of few runs depend on the scheduler, and their ratios are meaningless")?;
        }
        Ok(())
    }
}

fn parse(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_of_the_last_minute_is_the_first_number() {
        assert_eq!(parse("0.24 1.02 1.33 1/340 8712\n"), Some(0.24));
        assert_eq!(parse(""), None);
        let text = |load_before| Machine { cores: 2, load_before }.to_string();
        assert_eq!(text(None), "2 cores");
        assert_eq!(text(Some(0.1)), "2 cores, load 0.10 at the start");
        assert!(text(Some(7.0)).contains("busy"));
    }
}
