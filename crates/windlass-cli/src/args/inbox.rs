//! `windlass inbox …`

use clap::{Args, Subcommand, ValueEnum};

use super::runs::Result;

/// What can be done about what waits.
#[derive(Clone, Debug, Subcommand)]
pub enum InboxCommand {
    /// What waits, oldest first
    List(Wanted),
    /// Let calls be made
    Approve(Decision),
    /// Deny calls
    Deny(Decision),
    /// Say whether attempts happened
    Settle(SettleArgs),
    /// Answer what is asked
    Answer {
        /// Which items
        #[command(flatten)]
        picked: Picked,
        /// With what
        #[command(flatten)]
        result: Result,
    },
    /// Say that a provider is connected
    Connect {
        /// Which provider
        provider: String,
        /// It will not be, and why
        #[arg(long, value_name = "WHY")]
        refused: Option<String>,
    },
}

/// Which items are shown.
#[derive(Clone, Debug, Default, Args)]
pub struct Wanted {
    /// Only items of this kind
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Only those of runs of this tool
    #[arg(long)]
    pub tool: Option<String>,
    /// Only those of this run
    #[arg(long)]
    pub run: Option<String>,
    /// Only those of runs of this session
    #[arg(long)]
    pub session: Option<String>,
    /// Also calls of tools that connected programs brought, which wait for those
    #[arg(long)]
    pub programs: bool,
}

impl Wanted {
    /// Whether anything narrows it down.
    pub fn narrows(&self) -> bool {
        self.kind.is_some() || self.tool.is_some() || self.run.is_some() || self.session.is_some()
    }
}

/// Which items something is done about: those that are named, or all that fit.
#[derive(Clone, Debug, Args)]
pub struct Picked {
    /// The items; a unique beginning of the id will do
    #[arg(value_name = "ITEM", conflicts_with_all = ["all", "kind", "tool", "run", "session", "programs"])]
    pub ids: Vec<String>,
    /// Everything that waits
    #[arg(long)]
    pub all: bool,
    /// Or those that fit
    #[command(flatten)]
    pub wanted: Wanted,
}

/// A decision about calls.
#[derive(Clone, Debug, Args)]
pub struct Decision {
    /// Which items
    #[command(flatten)]
    pub picked: Picked,
    /// Why; it is recorded
    #[arg(long)]
    pub reason: Option<String>,
}

/// How attempts are settled.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("how").required(true).multiple(false))]
pub struct SettleArgs {
    /// Which items
    #[command(flatten)]
    pub picked: Picked,
    /// It happened, and returned this: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", group = "how", allow_hyphen_values = true)]
    pub happened: Option<String>,
    /// It happened, and failed with this message
    #[arg(long, value_name = "MESSAGE", group = "how")]
    pub failed: Option<String>,
    /// It did not happen: it is attempted again
    #[arg(long, group = "how")]
    pub did_not_happen: bool,
    /// Nobody can tell: the body gets an error
    #[arg(long, group = "how")]
    pub give_up: bool,
    /// Why; it is recorded
    #[arg(long)]
    pub reason: String,
}

/// What somebody has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Approve or deny.
    Approval,
    /// Settle.
    Doubt,
    /// Answer.
    Input,
    /// Connect.
    Connection,
}
