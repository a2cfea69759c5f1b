//! `windlass-bench`: what a tool call costs, and a durable step.

use windlass_bench::{cli, contenders, engines, scenarios};

fn main() -> anyhow::Result<()> {
    cli::run(&cli::Bench { contenders, scenarios, engines })
}
