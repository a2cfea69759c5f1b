//! `windlass-bench`: what one tool call costs.

fn main() -> anyhow::Result<()> {
    windlass_bench::cli::run(windlass_bench::contenders()?, windlass_bench::scenarios()?)
}
