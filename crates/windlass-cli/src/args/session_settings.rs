//! The settings of a session on the command line.

use clap::{Args, ValueEnum};

/// Flags that set the model, the agent and the limits of a session.
#[derive(Clone, Debug, Default, Args)]
pub struct SettingsArgs {
    /// The tool that a wake calls as a turn
    #[arg(long, value_name = "TOOL")]
    pub agent: Option<String>,
    /// The model, by any name
    #[arg(long)]
    pub model: Option<String>,
    /// The context window of the model, in tokens
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub window: Option<u64>,
    /// Which messages wake the session
    #[arg(long, value_enum, value_name = "WHICH")]
    pub wake: Option<WakeName>,
    /// What becomes of a wake while the session has a turn that is not over
    #[arg(long, value_enum, value_name = "POLICY")]
    pub turns: Option<TurnName>,
    /// The most unfinished runs
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub max_runs: Option<u64>,
}

/// Which messages wake a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WakeName {
    /// Those that ask for it.
    Asked,
    /// Those, and every message of a user.
    User,
}

/// What becomes of a new turn while the session has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TurnName {
    /// It waits.
    Queue,
    /// It is refused.
    Refuse,
}

/// A setting that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SettingName {
    /// The agent.
    Agent,
    /// The model.
    Model,
    /// The context window.
    Window,
    /// The limit of unfinished runs.
    MaxRuns,
}
