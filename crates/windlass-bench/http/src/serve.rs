//! The measured server: like that of the `windlass` binary, but with tools in Rust.
//!
//! Its argument is the folder of its file. It prints its address in the first line, and serves until standard input
//! ends.

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
            // The process that started this one holds the other end of the pipe until it ends.
            let end = || std::io::stdin().read_to_end(&mut Vec::new());
            drop(tokio::task::spawn_blocking(end).await);
        };
        windlass_server::serve(listener, windlass, Options::default(), stop).await?;
        Ok(())
    })
}
