//! The log of a server: to standard error, so that standard output stays for answers.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{Colour, Global};
use crate::exit::{Failure, Result};

/// What is logged: `WINDLASS_LOG`, such as `info,windlass_store=debug`, or what -q and -v say.
pub(crate) fn start(global: &Global) -> Result<()> {
    let filter = match std::env::var("WINDLASS_LOG") {
        Ok(text) if !text.is_empty() => text.parse::<Targets>().map_err(|error| {
            Failure::usage(format!("WINDLASS_LOG={text} cannot be read: {error}; write info, or windlass_store=debug"))
        })?,
        _ => Targets::new().with_default(level(global)),
    };
    let colours = match global.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => std::io::stderr().is_terminal(),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    // A second log in one process says nothing new.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Ok(())
}

fn level(global: &Global) -> LevelFilter {
    match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    }
}
