//! The arguments of `windlass connections`.

use clap::Subcommand;

/// Subcommands of `connections`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConnectionsCommand {
    /// List connections, without their credentials
    List {
        /// Only connections of this principal
        #[arg(long)]
        principal: Option<String>,
    },
    /// Remove a connection and its credential
    Remove {
        /// The provider
        provider: String,
        /// Whose connection it is [default: the token's principal, or none]
        #[arg(long)]
        principal: Option<String>,
    },
}
