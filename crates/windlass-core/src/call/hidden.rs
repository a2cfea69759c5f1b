//! Failures whose cause callers do not see. The log has it, and the correlation id finds it there.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a cause was printed because there is no log.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// Logs the cause of a failure.
pub(crate) fn log(correlation: &str, name: &str, cause: fmt::Arguments<'_>) {
    tracing::error!(correlation, name, "{cause}");
    // Without a subscriber the cause would be lost. Once is enough to say how to see all of them.
    if !tracing::dispatcher::has_been_set() && !PRINTED.swap(true, Ordering::AcqRel) {
        eprintln!(
            "windlass: `{name}`: {cause} (correlation id {correlation})\n\
             windlass: no tracing subscriber is installed, so later errors of this kind are not shown. Install one at the \
             start of `main`, for example `tracing_subscriber::fmt::init();`"
        );
    }
}
