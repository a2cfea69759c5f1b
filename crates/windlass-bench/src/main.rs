//! `windlass-bench`: the cost of a tool call and of a durable step.

use windlass_bench::{cli, contenders, engines, scenarios};

fn main() -> anyhow::Result<()> {
    cli::run(&cli::Bench { contenders, scenarios, engines })
}
