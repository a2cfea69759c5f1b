//! The server that is measured: as the `windlass` binary has it, but with tools in Rust.
//!
//! Serves on a file in the folder that is its argument until standard input ends. The first line of its output says where.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use mimalloc::MiMalloc;
use windlass_server::Options;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: windlass-bench-server FOLDER")?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let windlass = windlass_bench_http::open(folder.as_ref()).await?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let stop = async {
            // Whoever started us holds the other end, and lets go of it or dies.
            let end = || std::io::stdin().read_to_end(&mut Vec::new());
            drop(tokio::task::spawn_blocking(end).await);
        };
        windlass_server::serve(listener, windlass, Options::default(), stop).await?;
        Ok(())
    })
}
