//! `windlass-bench-durable-peers`: durable steps in other engines, compared with Windlass and the limits of the disk.
//!
//! To run it: `cargo xtask bench --peers --steps`. It needs:
//!
//! - Restate's server: the file that `RESTATE_SERVER` names, or its npm package, which `npm`
//!   installs into the build folder.
//! - PostgreSQL's programs, for DBOS: in the folder that `POSTGRES_BIN` names, in Debian's folder, or on the path.
//!
//! A peer that is not available is left out, and the reason is printed.
//!
//! Each peer is used through the API of its own documentation, with default settings except where its module says
//! otherwise. Its server has a folder and ports of its own and ends with the program. The figures include the client
//! that waits for the workflows, which is this process for all of them.

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
