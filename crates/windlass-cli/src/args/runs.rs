//! `windlass runs …`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

/// What can be done with runs.
#[derive(Clone, Debug, Subcommand)]
pub enum RunsCommand {
    /// Which runs there are, newest first
    List(ListArgs),
    /// One run: its timeline, what it waits for, what it came to
    Show {
        /// Which run; a unique beginning of its id will do
        run: String,
        /// Every record of its journal, too
        #[arg(long)]
        journal: bool,
    },
    /// Follow a run to its end
    Watch {
        /// Which run; a unique beginning of its id will do
        run: String,
        /// Go on after this place (RECORD.INDEX) instead of from the start
        #[arg(long, value_name = "PLACE")]
        from: Option<String>,
    },
    /// Cancel runs
    Cancel {
        /// Which runs
        #[arg(required = true)]
        runs: Vec<String>,
        /// Why
        #[arg(long, default_value = "cancelled from the command line")]
        reason: String,
    },
    /// Make a run that goes on from a place of another, with something changed there
    Fork {
        /// Which run
        run: String,
        /// Where: `start`, `end`, or the path of the first operation that is made anew
        #[arg(long, value_name = "PATH")]
        at: String,
        /// The call there is made with these arguments: JSON, `-` or `@FILE`
        #[arg(long, value_name = "JSON", conflicts_with_all = ["value", "error"])]
        args: Option<String>,
        /// Or the operation there is not made, and came to this
        #[command(flatten)]
        result: Result,
    },
    /// Why a run does not go on, and what would move it
    Explain {
        /// Which run
        run: String,
    },
    /// Write a run as a document for another store
    Export {
        /// Which run
        run: String,
        /// Where to [default: standard output]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        to: Option<PathBuf>,
    },
    /// Read a run that was exported
    Import {
        /// The document; `-` for standard input
        #[arg(value_hint = ValueHint::FilePath)]
        from: PathBuf,
    },
    /// Forget finished runs at once
    Purge {
        /// Which runs
        #[arg(required = true)]
        runs: Vec<String>,
    },
    /// Whether journals fit the tools of today; nothing is run
    ReplayCheck {
        /// Which runs
        #[arg(required_unless_present = "all")]
        runs: Vec<String>,
        /// Every run that is not finished
        #[arg(long, conflicts_with = "runs")]
        all: bool,
    },
    /// Take up held runs again
    Resume {
        /// Which runs
        #[arg(required = true)]
        runs: Vec<String>,
    },
    /// End a held run by hand
    Finish {
        /// Which run
        run: String,
        /// What it came to
        #[command(flatten)]
        result: Result,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// Where two runs differ
    Compare {
        /// One run
        a: String,
        /// The other
        b: String,
    },
}

/// Which runs are listed.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// Only those that stand like this
    #[arg(long, value_enum)]
    pub state: Option<StateFilter>,
    /// Only those of this tool
    #[arg(long)]
    pub tool: Option<String>,
    /// Only those of this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only those that this run started
    #[arg(long, value_name = "RUN")]
    pub parent: Option<String>,
    /// Oldest first
    #[arg(long)]
    pub oldest: bool,
    /// At most so many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub limit: u64,
}

/// Where runs stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateFilter {
    /// Not taken up yet.
    Queued,
    /// Somebody drives it.
    Running,
    /// Only waits.
    Suspended,
    /// Held until the cause is gone.
    Held,
    /// Over.
    Finished,
    /// Something of it is in doubt.
    Doubted,
    /// Something of it waits for a person.
    Inbox,
}

/// What something came to: a value or an error.
#[derive(Clone, Debug, Default, Args)]
pub struct Result {
    /// It came to this: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", conflicts_with = "error", allow_hyphen_values = true)]
    pub value: Option<String>,
    /// It failed with this message
    #[arg(long, value_name = "MESSAGE")]
    pub error: Option<String>,
    /// A short name of the error for programs
    #[arg(long, value_name = "CODE", requires = "error")]
    pub code: Option<String>,
}
