//! The cost of a command tool over starting the same program directly.

use std::process::{Command as Bare, Stdio};
use std::time::Instant;

use anyhow::ensure;
use serde_json::json;
use windlass::tool::Schemas;
use windlass::{Effect, Tool, ToolSpec, Windlass};
use windlass_bench::drive;
use windlass_bench::percentile::Sorted;
use windlass_tools::command::Command;
use windlass_tools::sandbox::{Launcher, Level, Sandbox};

use crate::report::CommandCost;

/// The argument that makes this program the launcher of commands.
pub(crate) const LAUNCH: &str = "launch";

const CALLS: usize = 300;
const PROGRAM: &str = "/bin/true";

pub(crate) fn measure() -> anyhow::Result<CommandCost> {
    drive::threads()?.block_on(in_turn())
}

/// One call of each kind in turn, so that other load on the machine affects all of them alike.
async fn in_turn() -> anyhow::Result<CommandCost> {
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::this_program([LAUNCH]).records(folder.path());
    let sandboxes = [Sandbox::off(), Sandbox { level: Level::BestEffort, ..Sandbox::default() }];
    let names = ["unconfined", "confined"];
    let tool = |(name, sandbox): (&'static str, Sandbox)| -> Tool {
        let command = Command { sandbox, ..Command::new([PROGRAM], launcher.clone()) };
        command.tool(ToolSpec::new(name.to_owned(), "Does nothing"), Schemas::any()).effect(Effect::Readonly)
    };
    let tools = names.into_iter().zip(sandboxes).map(tool);
    let windlass = tools.fold(Windlass::in_memory(), |builder, tool| builder.tool(tool)).await?;
    let (mut bare, mut ours) = (Vec::with_capacity(CALLS), [Vec::with_capacity(CALLS), Vec::with_capacity(CALLS)]);
    for number in 0..CALLS {
        let begin = Instant::now();
        let ended = Bare::new(PROGRAM).stdin(Stdio::null()).output()?;
        bare.push(begin.elapsed());
        ensure!(ended.status.success(), "{PROGRAM} ended with {}", ended.status);
        for (name, times) in names.into_iter().zip(&mut ours) {
            let begin = Instant::now();
            let outcome = windlass.call_json(name, json!({ "n": number })).await?;
            times.push(begin.elapsed());
            ensure!(outcome.result.is_ok(), "the command failed: {:?}", outcome.result);
        }
    }
    windlass.shutdown().await?;
    let [unconfined, confined] = ours.map(Sorted::new);
    let bare = Sorted::new(bare);
    Ok(CommandCost {
        bare_p50_us: bare.us(50.0),
        bare_p99_us: bare.us(99.0),
        tool_p50_us: unconfined.us(50.0),
        tool_p99_us: unconfined.us(99.0),
        sandboxed_p50_us: confined.us(50.0),
        sandboxed_p99_us: confined.us(99.0),
    })
}
