//! How a command fails: a message for people, an exit code for programs.

use std::fmt;
use std::process::ExitCode;

/// The exit codes. They are part of the interface and do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// The call or the run failed.
    Failed = 1,
    /// Usage error: flags, arguments, the config file.
    Usage = 2,
    /// The named run, tool, file or token does not exist.
    NotFound = 3,
    /// Refused: the state of the target or the permissions do not allow it.
    Refused = 4,
    /// The store or the server is unreachable.
    Unreachable = 5,
    /// The wait timed out; the run continues.
    TimedOut = 6,
    /// Interrupted from the keyboard.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code, for programs.
    pub exit: Exit,
    /// The message, for people: what failed, on what, why, and what to do. Empty if it was already printed.
    pub message: String,
    /// The name of the problem in the API, if the failure came from there.
    pub problem: Option<String>,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), problem: None }
    }

    /// A failure whose message was already printed.
    pub fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// A usage error.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;
