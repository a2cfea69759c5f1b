//! `windlass inbox …`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::runs::ResultArgs;

/// The subcommands of `inbox`.
#[derive(Clone, Debug, Subcommand)]
pub enum InboxCommand {
    /// List the items, oldest first
    List(InboxFilterArgs),
    /// Approve calls
    Approve(Decision),
    /// Deny calls
    Deny(Decision),
    /// Settle doubts: record whether attempts happened
    Settle(SettleArgs),
    /// Answer requests for input
    Answer {
        /// Which items
        #[command(flatten)]
        selection: Selection,
        /// The answer
        #[command(flatten)]
        result: ResultArgs,
    },
    /// Connect a provider: the credential is read from standard input, unless `--no-credential` is given
    Connect {
        /// The provider
        provider: String,
        /// Read the credential from this file [default: standard input]
        #[arg(long, value_name = "FILE", conflicts_with = "refused")]
        from: Option<PathBuf>,
        /// Keep no credential: the provider only counts as connected
        #[arg(long, conflicts_with_all = ["from", "refused"])]
        no_credential: bool,
        /// How many seconds the credential is valid [default: it does not expire]
        #[arg(long, value_name = "SECONDS", conflicts_with = "refused")]
        expires_in: Option<u64>,
        /// Whose connection it is [default: the token's principal, or none]
        #[arg(long)]
        principal: Option<String>,
        /// Record instead that it will not be connected, and why
        #[arg(long, value_name = "REASON")]
        refused: Option<String>,
    },
}

/// Which items are shown.
#[derive(Clone, Debug, Default, Args)]
pub struct InboxFilterArgs {
    /// Only items of this kind
    #[arg(long, value_enum)]
    pub kind: Option<InboxKindName>,
    /// Only items of runs of this tool
    #[arg(long)]
    pub tool: Option<String>,
    /// Only items of this run
    #[arg(long)]
    pub run: Option<String>,
    /// Only items of runs in this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only items of runs that act for this principal
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// Also calls of tools that connected clients execute, which wait for those clients
    #[arg(long)]
    pub client_calls: bool,
}

impl InboxFilterArgs {
    /// Whether the filter excludes anything.
    pub fn is_narrow(&self) -> bool {
        let texts = [&self.tool, &self.run, &self.session, &self.principal];
        self.kind.is_some() || texts.iter().any(|text| text.is_some())
    }
}

/// Which items a command acts on: the named ones, or all that match a filter.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// The items, by id or a unique prefix of it
    #[arg(value_name = "ITEM", conflicts_with_all = ["all", "kind", "tool", "run", "session", "client_calls"])]
    pub ids: Vec<String>,
    /// All items
    #[arg(long)]
    pub all: bool,
    /// The items that match
    #[command(flatten)]
    pub filter: InboxFilterArgs,
}

/// A decision about calls.
#[derive(Clone, Debug, Args)]
pub struct Decision {
    /// Which items
    #[command(flatten)]
    pub selection: Selection,
    /// The reason, which is recorded
    #[arg(long)]
    pub reason: Option<String>,
}

/// How attempts are settled.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("settlement").required(true).multiple(false))]
pub struct SettleArgs {
    /// Which items
    #[command(flatten)]
    pub selection: Selection,
    /// The attempt happened and returned this: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", group = "settlement", allow_hyphen_values = true)]
    pub happened: Option<String>,
    /// The attempt happened and failed with this message
    #[arg(long, value_name = "MESSAGE", group = "settlement")]
    pub failed: Option<String>,
    /// The attempt did not happen: make it again
    #[arg(long, group = "settlement")]
    pub did_not_happen: bool,
    /// It cannot be found out: the tool body receives an error
    #[arg(long, group = "settlement")]
    pub give_up: bool,
    /// The reason, which is recorded
    #[arg(long)]
    pub reason: String,
}

/// The kinds of inbox items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InboxKindName {
    /// A call to approve or deny.
    Approval,
    /// A doubt to settle.
    Doubt,
    /// A request for input to answer.
    Input,
    /// A provider to connect.
    Connection,
}
