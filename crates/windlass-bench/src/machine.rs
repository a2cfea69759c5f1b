//! What the figures were measured on, and how busy it was: figures of a busy machine are no figures.

use std::fmt;
use std::fs;

use serde::Serialize;

/// The machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Cores this process may use.
    pub cores: usize,
    /// How many processes wanted to run in the minute before, where the system tells.
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
        self.load_before.map_or(Ok(()), |load| write!(f, ", load {load:.2} when it began"))
    }
}

fn parse(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_of_the_last_minute_comes_first() {
        assert_eq!(parse("0.24 1.02 1.33 1/340 8712\n"), Some(0.24));
        assert_eq!(parse(""), None);
        assert_eq!(Machine { cores: 2, load_before: None }.to_string(), "2 cores");
    }
}
