//! `windlass runs …`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use windlass_server::wire::Time;

/// The subcommands of `runs`.
#[derive(Clone, Debug, Subcommand)]
pub enum RunsCommand {
    /// List runs, newest first
    List(ListArgs),
    /// Show one run: its timeline, what it waits for, its outcome
    Show {
        /// The run, by id or a unique prefix of it
        #[arg(required_unless_present = "key")]
        run: Option<String>,
        /// The run that was started under this idempotency key
        #[arg(long, conflicts_with = "run")]
        key: Option<String>,
        /// Also print every record of its journal
        #[arg(long)]
        journal: bool,
    },
    /// Follow a run to its end
    Watch {
        /// The run, by id or a unique prefix of it
        run: String,
        /// Continue after this event position (RECORD.INDEX) instead of from the start
        #[arg(long, value_name = "POSITION")]
        from: Option<String>,
    },
    /// Print the text that a call of a run returned, or a part of it
    Output {
        /// The run, by id or a unique prefix of it
        run: String,
        /// The path of the call in the run
        #[arg(default_value = "/")]
        path: String,
        /// The byte to begin at
        #[arg(long, value_name = "BYTES", default_value_t = 0)]
        offset: u64,
        /// The most bytes to print [default: all]
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Cancel runs
    Cancel {
        /// The runs
        #[arg(required = true)]
        runs: Vec<String>,
        /// The reason, which is recorded
        #[arg(long, default_value = "cancelled from the command line")]
        reason: String,
    },
    /// Start a run that continues another run from a path, with one change
    Fork {
        /// The run
        run: String,
        /// `start`, `end`, or the path of the first operation that is executed again
        #[arg(long, value_name = "PATH")]
        at: String,
        /// Make the call at the path with these arguments: JSON, `-` or `@FILE`
        #[arg(long, value_name = "JSON", conflicts_with_all = ["value", "error"])]
        args: Option<String>,
        /// Do not execute the operation at the path, but give it this result
        #[command(flatten)]
        result: ResultArgs,
    },
    /// Explain why a run does not proceed, and what would make it proceed
    Explain {
        /// The run, by id or a unique prefix of it
        #[arg(required_unless_present = "key")]
        run: Option<String>,
        /// The run that was started under this idempotency key
        #[arg(long, conflicts_with = "run")]
        key: Option<String>,
    },
    /// Export a run as a document for another store
    Export {
        /// The run
        run: String,
        /// The file to write [default: standard output]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        to: Option<PathBuf>,
    },
    /// Import a run that was exported
    Import {
        /// The document; `-` for standard input
        #[arg(value_hint = ValueHint::FilePath)]
        from: PathBuf,
    },
    /// Delete finished runs now
    Purge {
        /// The runs
        #[arg(required = true)]
        runs: Vec<String>,
    },
    /// Check whether journals still match the current tools; executes nothing
    ReplayCheck {
        /// The runs
        #[arg(required_unless_present = "all")]
        runs: Vec<String>,
        /// All runs that are not finished
        #[arg(long, conflicts_with = "runs")]
        all: bool,
    },
    /// Resume held runs
    Resume {
        /// The runs
        #[arg(required = true)]
        runs: Vec<String>,
    },
    /// End a held run with a result given by hand
    Finish {
        /// The run
        run: String,
        /// Its result
        #[command(flatten)]
        result: ResultArgs,
        /// The reason, which is recorded
        #[arg(long)]
        reason: String,
    },
    /// Show where two runs differ
    Compare {
        /// The first run
        a: String,
        /// The second run
        b: String,
    },
}

/// Which runs are listed.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// Only runs in this state
    #[arg(long, value_enum)]
    pub state: Option<StateFilter>,
    /// Only runs of this tool
    #[arg(long)]
    pub tool: Option<String>,
    /// Only runs in this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only runs that act for this principal
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// Only runs with this cause
    #[arg(long, value_name = "TEXT")]
    pub cause: Option<String>,
    /// Only runs that were created at this time or later (2026-09-21T14:00:00Z)
    #[arg(long, value_name = "TIME")]
    pub created_from: Option<Time>,
    /// Only runs that were created before this time
    #[arg(long, value_name = "TIME")]
    pub created_before: Option<Time>,
    /// Only runs that this run started
    #[arg(long, value_name = "RUN")]
    pub parent: Option<String>,
    /// Only the run that was started under this idempotency key
    #[arg(long)]
    pub key: Option<String>,
    /// List the oldest first
    #[arg(long)]
    pub oldest: bool,
    /// List at most this many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub limit: u64,
}

/// The states by which runs are filtered: every state that `runs list` prints, and some that cover several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateFilter {
    /// Waits for a worker.
    Queued,
    /// A worker drives it.
    Running,
    /// Waits for time, a person, a message or another run.
    Suspended,
    /// Held until its cause is removed.
    Held,
    /// Finished, with any ending.
    Finished,
    /// Finished, and succeeded.
    Ok,
    /// Finished, and failed.
    Failed,
    /// Finished by a cancellation.
    Cancelled,
    /// Lost with the process that drove it.
    Lost,
    /// Has an attempt in doubt.
    #[value(alias = "in doubt", alias = "doubted")]
    InDoubt,
    /// Has an item in the inbox.
    Inbox,
}

/// A result given on the command line: a value or an error.
#[derive(Clone, Debug, Default, Args)]
pub struct ResultArgs {
    /// The value: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", conflicts_with = "error", allow_hyphen_values = true)]
    pub value: Option<String>,
    /// A failure with this message
    #[arg(long, value_name = "MESSAGE")]
    pub error: Option<String>,
    /// The code of the failure, for programs
    #[arg(long, value_name = "CODE", requires = "error")]
    pub code: Option<String>,
    /// What else the failure reports: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", requires = "error", allow_hyphen_values = true)]
    pub data: Option<String>,
}
