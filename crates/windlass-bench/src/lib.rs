//! The cost of a tool call: Windlass compared with a bare baseline and, in the package under `peers/`, with other
//! runtimes.
//!
//! Every contender runs the same tool ([`fixture`]) in the same process and takes turns with all others ([`measure`]),
//! so that other load on the machine affects them alike. Ratios are more reliable than absolute figures.
//!
//! [`scenario`]s measure the cost of a durable body's operations, [`engine`]s the cost of many concurrent runs on disk
//! compared with the limits of the disk.
//!
//! To add a contender, implement [`Contender`] and add it to [`contenders`].

mod allocations;
pub mod baseline;
pub mod cli;
pub mod contender;
pub mod cpu;
pub mod drive;
pub mod engine;
pub mod fixture;
pub mod instructions;
pub mod machine;
pub mod measure;
pub mod parked;

pub mod percentile;
pub mod replay;
pub mod report;
pub mod restart;
pub mod scenario;
pub mod steps;
pub mod sustained;
mod waiting;
pub mod windlass;

pub use contender::Contender;
pub use engine::Engine;
pub use scenario::Scenario;

/// The contenders of this package. The baseline is first, because the others are compared with it.
///
/// # Errors
///
/// When one of them cannot be set up.
pub fn contenders() -> anyhow::Result<Vec<Box<dyn Contender>>> {
    Ok(vec![
        Box::new(baseline::Baseline::new()?),
        Box::new(windlass::Windlass::new(windlass::Body::Dynamic)?),
        Box::new(windlass::Windlass::new(windlass::Body::Typed)?),
    ])
}

/// The scenarios, those on the memory store first.
///
/// # Errors
///
/// When one of them cannot be set up.
pub fn scenarios() -> anyhow::Result<Vec<Box<dyn Scenario>>> {
    use ::windlass::store::Durability;
    use steps::{JournalLocation, Kind, Steps};

    let mut scenarios: Vec<Box<dyn Scenario>> = vec![
        Box::new(Steps::new(Kind::Once, JournalLocation::Memory, 1, 10_000)?),
        Box::new(Steps::new(Kind::Readonly, JournalLocation::Memory, 1, 10_000)?),
        Box::new(replay::Replay::new(Kind::Once, 10_000)?),
        Box::new(replay::Replay::new(Kind::Readonly, 10_000)?),
    ];
    for durability in [Durability::Full, Durability::Relaxed] {
        scenarios.push(Box::new(Steps::new(Kind::Once, JournalLocation::File(durability), 1, 200)?));
        scenarios.push(Box::new(Steps::new(Kind::Once, JournalLocation::File(durability), 64, 50)?));
        scenarios.push(Box::new(Steps::new(Kind::Readonly, JournalLocation::File(durability), 1, 10_000)?));
    }
    Ok(scenarios)
}

/// The engines. The limits of the disk are first, because Windlass is compared with them.
///
/// # Errors
///
/// When one of them cannot be set up.
pub fn engines() -> anyhow::Result<Vec<Box<dyn Engine>>> {
    let mut engines = engine::bare::engines()?;
    engines.extend(engine::ours::engines()?);
    Ok(engines)
}
