//! Your own Rust tools over HTTP: open a file, serve it until Ctrl-C or SIGTERM.
//!
//! `cargo run -p windlass-examples --bin serve [file] [address]`, then
//! `curl --json '{"tool": "add", "args": {"a": 2, "b": 3}}' http://127.0.0.1:7117/v1/calls`.

use windlass::prelude::*;
use windlass_server::Serve;

/// Add two numbers.
#[tool(effect = readonly)]
async fn add(a: f64, b: f64) -> ToolResult<f64> {
    Ok(a + b)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().unwrap_or_else(|| "serve.db".to_owned());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:7117".to_owned());
    let windlass = Windlass::open(file).tool(add).await?;
    windlass.serve(address).await
}
