//! The log of a server. It goes to standard error; standard output is for results.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{Colour, Global};
use crate::exit::{Failure, Result};

/// Starts the log with the filter in `WINDLASS_LOG`, such as `info,windlass_store=debug`, or else by -q and -v.
pub(crate) fn start(global: &Global) -> Result<()> {
    let filter = match std::env::var("WINDLASS_LOG") {
        Ok(text) if !text.is_empty() => text.parse::<Targets>().map_err(|error| {
            Failure::usage(format!("WINDLASS_LOG={text} is not a valid filter: {error} (expected for example `info` or `windlass_store=debug`)"))
        })?,
        _ => Targets::new().with_default(level(global)),
    };
    let colours = match global.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => std::io::stderr().is_terminal(),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    // Fails only if the process already has a log, which is then used.
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
