//! How a command ends badly: a sentence for people, a number for programs.

use std::fmt;
use std::process::ExitCode;

/// What the number a process ends with means. Part of the interface: it does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything went well.
    Ok = 0,
    /// The call or the run failed.
    Failed = 1,
    /// Wrong use: flags, arguments, the config file.
    Usage = 2,
    /// What was named does not exist.
    NotFound = 3,
    /// Refused: its state or the permission does not allow it.
    Refused = 4,
    /// The store or the server cannot be reached.
    Unreachable = 5,
    /// Waiting took too long; the work goes on.
    TimedOut = 6,
    /// Interrupted from the keyboard.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What programs are told.
    pub exit: Exit,
    /// What people are told: the thing, the place, and the way out. Empty where everything was said before.
    pub sentence: String,
    /// The name of the problem as the API has it, where it came from there.
    pub problem: Option<String>,
}

impl Failure {
    /// A failure with a sentence.
    pub fn new(exit: Exit, sentence: impl Into<String>) -> Self {
        Self { exit, sentence: sentence.into(), problem: None }
    }

    /// Everything was said already: only the number is left.
    pub fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// Wrong use.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Usage, sentence)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// What commands return.
pub type Result<T> = std::result::Result<T, Failure>;
