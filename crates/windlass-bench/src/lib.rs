//! What one tool call costs: Windlass beside a bare baseline and, in the package under `peers/`, beside other runtimes.
//!
//! Every contender runs the same tool ([`fixture`]) in the same process and takes turns with all others ([`measure`]),
//! so that whatever else the machine is doing hits them alike. Ratios are worth more than figures.
//!
//! To add a contender, implement [`Contender`] and put it into [`contenders`].

mod allocations;
pub mod baseline;
pub mod cli;
pub mod contender;
pub mod drive;
pub mod fixture;
pub mod instructions;
pub mod measure;
pub mod report;

pub use contender::Contender;

/// The contenders of this package: the baseline first, as the others are compared with it.
///
/// # Errors
///
/// When one of them cannot be set up.
pub fn contenders() -> anyhow::Result<Vec<Box<dyn Contender>>> {
    Ok(vec![Box::new(baseline::Baseline::new()?)])
}
