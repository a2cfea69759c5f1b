//! `windlass-bench-durable-peers`: durable steps in other engines, beside Windlass and the disk's own limits.
//!
//! To run it: `cargo xtask bench --peers --steps`. It needs:
//!
//! - Restate's server: the file `RESTATE_SERVER` names, or else its npm package, which `npm` brings into the build's folder.
//! - PostgreSQL's programs, for DBOS: in the folder `POSTGRES_BIN` names, where Debian has them, or on the path.
//!
//! A peer that is not there is left out, and the reason is printed.
//!
//! Each peer is asked through the API that its own documentation shows, at its default settings but for what its module
//! says. Its server has a folder and ports of its own and ends with the program. Figures include whoever waits for the
//! workflows: that is this process for all of them.

mod dbos;
mod http;
mod postgres;
mod restate;
mod server;

use windlass_bench::{Engine, cli, contenders, scenarios};

fn main() -> anyhow::Result<()> {
    cli::run(&cli::Bench { contenders, scenarios, engines })
}

fn engines() -> anyhow::Result<Vec<Box<dyn Engine>>> {
    let mut engines = windlass_bench::engines()?;
    let peers: [(&str, fn() -> anyhow::Result<Box<dyn Engine>>); 2] =
        [(restate::NAME, restate::engine), (dbos::NAME, dbos::engine)];
    for (name, start) in peers {
        match start() {
            Ok(peer) => engines.push(peer),
            Err(error) => eprintln!("note: {name} is left out: {error:#}"),
        }
    }
    Ok(engines)
}
