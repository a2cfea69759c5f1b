//! `windlass files …`

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

/// The subcommands of `files`.
#[derive(Clone, Debug, Subcommand)]
pub enum FilesCommand {
    /// List a directory
    Ls {
        /// The session
        session: String,
        /// The directory
        #[arg(default_value = "/")]
        directory: String,
        /// Everything below the directory
        #[arg(short = 'R', long)]
        recursive: bool,
    },
    /// Print a file
    Cat {
        /// The session
        session: String,
        /// The path in the session
        path: String,
    },
    /// Write a file
    Put {
        /// The session
        session: String,
        /// The local file; `-` for standard input
        #[arg(value_name = "LOCAL", value_hint = ValueHint::FilePath)]
        from: PathBuf,
        /// The path in the session
        path: String,
        /// Only if the current content has this hash
        #[arg(long, value_name = "HASH", conflicts_with = "new")]
        if_hash: Option<String>,
        /// Only if there is no file at the path
        #[arg(long)]
        new: bool,
    },
    /// Save a file locally
    Get {
        /// The session
        session: String,
        /// The path in the session
        path: String,
        /// The local file or folder; `-` for standard output [default: the name of the file]
        #[arg(value_name = "LOCAL", value_hint = ValueHint::AnyPath)]
        to: Option<PathBuf>,
    },
    /// Delete a file, or an empty directory
    Rm {
        /// The session
        session: String,
        /// The path in the session
        path: String,
        /// Delete a directory with everything in it
        #[arg(short, long)]
        recursive: bool,
    },
}
