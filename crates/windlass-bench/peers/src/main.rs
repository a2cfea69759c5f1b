//! `windlass-bench-peers`: the cost of a tool call in other runtimes, compared with Windlass and the baseline.
//!
//! To run it, in this folder: `cargo run --release --ignore-rust-version -- [--json] [--instructions] [FILTER]`.
//!
//! Each peer is used through the API of its own documentation, with its default settings. Nothing subscribes to
//! `tracing`, and no peer stores anything; Windlass keeps its journal in memory.
//!
//! One of the peers turns on `preserve_order` of `serde_json` for the whole program, so all contenders, including the
//! baseline, use other maps here than in `windlass-bench`: compare figures of one program only.

mod behest;
mod everruns;
mod rig;

use windlass_bench::{Contender, cli, engines, scenarios};

fn main() -> anyhow::Result<()> {
    cli::run(&cli::Bench { contenders, scenarios, engines })
}

fn contenders() -> anyhow::Result<Vec<Box<dyn Contender>>> {
    let mut contenders = windlass_bench::contenders()?;
    contenders.extend(peers()?);
    Ok(contenders)
}

fn peers() -> anyhow::Result<Vec<Box<dyn Contender>>> {
    Ok(vec![
        Box::new(rig::Rig::new(rig::Validation::None)?),
        Box::new(rig::Rig::new(rig::Validation::Own)?),
        Box::new(rig::Rig::new(rig::Validation::InFront)?),
        Box::new(everruns::Everruns::new()?),
        Box::new(behest::Behest::new()?),
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn peers_do_the_work() {
        for mut peer in super::peers().unwrap() {
            windlass_bench::contender::check(peer.as_mut()).unwrap();
        }
    }
}
