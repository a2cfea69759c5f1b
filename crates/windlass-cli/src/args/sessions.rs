//! `windlass sessions …`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::DurationArg;
use super::session_settings::{SettingName, SettingsArgs, TurnName};

/// The subcommands of `sessions`.
#[derive(Clone, Debug, Subcommand)]
pub enum SessionsCommand {
    /// List sessions, newest first
    List(SessionListArgs),
    /// Show one session and its latest messages
    Show {
        /// The session
        session: String,
        /// How many of the latest messages
        #[arg(long, value_name = "COUNT", default_value_t = 20)]
        last: u64,
    },
    /// Open a session, or set the title and settings of one that is open
    Open {
        /// The session
        session: String,
        /// Its title
        #[arg(long)]
        title: Option<String>,
        /// The principal it belongs to
        #[arg(long)]
        owner: Option<String>,
        /// Its settings.
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Change the settings of a session
    Configure {
        /// The session
        session: String,
        /// Its settings.
        #[command(flatten)]
        settings: SettingsArgs,
        /// Remove a setting
        #[arg(long, value_enum, value_name = "SETTING")]
        unset: Vec<SettingName>,
    },
    /// Post a message to a session
    Send {
        /// The session
        session: String,
        /// The text; `-` for standard input
        text: String,
        /// Who wrote it
        #[arg(long, value_enum, default_value_t = AuthorName::User)]
        author: AuthorName,
        /// What caused it
        #[arg(long)]
        cause: Option<String>,
        /// The idempotency key: a message with the same key is posted once
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Wake the session: start a turn of its agent
        #[arg(long, conflicts_with = "no_wake")]
        wake: bool,
        /// Do not wake the session, whatever its setting
        #[arg(long)]
        no_wake: bool,
        /// What becomes of the turn while the session has one that is not over
        #[arg(long, value_enum, value_name = "POLICY", requires = "wake")]
        turn: Option<TurnName>,
    },
    /// Print the messages of a session and what its runs do, as it happens
    Watch {
        /// The session
        session: String,
        /// Continue at this position instead of from the start
        #[arg(long, value_name = "POSITION")]
        from: Option<String>,
    },
    /// Wait until a session has no unfinished run
    Wait {
        /// The session
        session: String,
        /// Wait at most this long (30s, 5m) [default: without limit]
        #[arg(long, value_name = "DURATION")]
        timeout: Option<DurationArg>,
    },
    /// Show what fills the context of a session's model
    Context {
        /// The session
        session: String,
    },
    /// Show or change which tools a session shows
    #[command(after_help = "The options are applied in this order: --reset, --only, --show, --reveal, --hide.")]
    Tools(SessionToolsArgs),
    /// Close a session: it refuses calls, messages and other writes from then on
    Close {
        /// The session
        session: String,
        /// The reason, which is kept
        #[arg(long, default_value = "closed from the command line")]
        reason: String,
        /// Cancel its unfinished runs, which go on otherwise
        #[arg(long)]
        cancel: bool,
    },
    /// Remove the messages, data and secrets of closed sessions
    Purge {
        /// The sessions
        #[arg(required = true)]
        sessions: Vec<String>,
    },
    /// List, read, set and delete the values of a session
    Data {
        /// The subcommand.
        #[command(subcommand)]
        command: DataCommand,
    },
    /// List, set and delete the secrets of a session
    Secrets {
        /// The subcommand.
        #[command(subcommand)]
        command: SecretsCommand,
    },
}

/// `windlass sessions tools`
#[derive(Clone, Debug, Args)]
pub struct SessionToolsArgs {
    /// The session
    pub session: String,
    /// Show these tools, and no longer hide them
    #[arg(long, value_name = "TOOL", num_args = 1..)]
    pub show: Vec<String>,
    /// Show only these tools
    #[arg(long, value_name = "TOOL", num_args = 1..)]
    pub only: Vec<String>,
    /// Hide these tools
    #[arg(long, value_name = "TOOL", num_args = 1..)]
    pub hide: Vec<String>,
    /// Show these tools with their schemas, besides those that are shown
    #[arg(long, value_name = "TOOL", num_args = 1..)]
    pub reveal: Vec<String>,
    /// Show all tools, as a new session does
    #[arg(long)]
    pub reset: bool,
}

/// `windlass sessions list`
#[derive(Clone, Debug, Args)]
pub struct SessionListArgs {
    /// Only open sessions
    #[arg(long, conflicts_with = "closed")]
    pub open: bool,
    /// Only closed sessions
    #[arg(long)]
    pub closed: bool,
    /// Only sessions of this principal
    #[arg(long)]
    pub owner: Option<String>,
    /// How many
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
}

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthorName {
    /// The person who uses the session.
    User,
    /// The agent.
    Agent,
    /// A tool.
    Tool,
    /// The program around them.
    System,
}

/// `windlass sessions data …`
#[derive(Clone, Debug, Subcommand)]
pub enum DataCommand {
    /// List the names of the values
    List {
        /// The session
        session: String,
    },
    /// Print a value as JSON
    Get {
        /// The session
        session: String,
        /// The name of the value
        name: String,
    },
    /// Set a value
    Set {
        /// The session
        session: String,
        /// The name of the value
        name: String,
        /// The value: JSON, `-` or `@FILE`
        #[arg(value_name = "JSON", allow_hyphen_values = true)]
        value: String,
    },
    /// Delete a value
    Delete {
        /// The session
        session: String,
        /// The name of the value
        name: String,
    },
}

/// `windlass sessions secrets …`
#[derive(Clone, Debug, Subcommand)]
pub enum SecretsCommand {
    /// List the names of the secrets
    List {
        /// The session
        session: String,
    },
    /// Set a secret; it is read from standard input, because other users of the machine can see arguments
    Set {
        /// The session
        session: String,
        /// The name of the secret
        name: String,
        /// Read the secret from this file instead
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        from: Option<PathBuf>,
    },
    /// Delete a secret
    Delete {
        /// The session
        session: String,
        /// The name of the secret
        name: String,
    },
}
