//! What one tool call costs: Windlass beside a bare baseline and, in the package under `peers/`, beside other runtimes.
//!
//! Every contender runs the same tool ([`fixture`]) in the same process and takes turns with all others ([`measure`]),
//! so that whatever else the machine is doing hits them alike. Ratios are worth more than figures.
//!
//! What a durable body's operations cost is measured beside that, in [`scenario`]s; what runs do on disk, many at once and
//! beside the disk's own limits, in [`engine`]s.
//!
//! To add a contender, implement [`Contender`] and put it into [`contenders`].

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
mod patient;
pub mod percentile;
pub mod replay;
pub mod report;
pub mod restart;
pub mod scenario;
pub mod steps;
pub mod sustained;
pub mod windlass;

pub use contender::Contender;
pub use engine::Engine;
pub use scenario::Scenario;

/// The contenders of this package: the baseline first, as the others are compared with it.
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
    use ::windlass::Durability;
    use steps::{Kind, Place, Steps};

    let mut scenarios: Vec<Box<dyn Scenario>> = vec![
        Box::new(Steps::new(Kind::Once, Place::Memory, 1, 10_000)?),
        Box::new(Steps::new(Kind::Readonly, Place::Memory, 1, 10_000)?),
        Box::new(replay::Replay::new(Kind::Once, 10_000)?),
        Box::new(replay::Replay::new(Kind::Readonly, 10_000)?),
    ];
    for durability in [Durability::Full, Durability::Relaxed] {
        scenarios.push(Box::new(Steps::new(Kind::Once, Place::File(durability), 1, 200)?));
        scenarios.push(Box::new(Steps::new(Kind::Once, Place::File(durability), 64, 50)?));
        scenarios.push(Box::new(Steps::new(Kind::Readonly, Place::File(durability), 1, 10_000)?));
    }
    Ok(scenarios)
}

/// The engines: the disk's own limits first, as ours are compared with them.
///
/// # Errors
///
/// When one of them cannot be set up.
pub fn engines() -> anyhow::Result<Vec<Box<dyn Engine>>> {
    let mut engines = engine::bare::engines()?;
    engines.extend(engine::ours::engines()?);
    Ok(engines)
}
