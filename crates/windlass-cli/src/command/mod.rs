//! What each command does, written once against the API.

mod call;
mod care;
mod inbox;
mod list;
mod runs;
mod say;
mod show;
mod tokens;
mod tools;
mod watch;

use crate::api::{self, Api, Open};
use crate::args::{Cli, Command, Global, InboxCommand, RunsCommand, TokenCommand, ToolsCommand};
use crate::exit::Result;
use crate::out::Out;
use crate::{completions, demo, serve};

pub use say::{activity_line, ago, ending, state};

/// Does what was asked for.
pub async fn run(cli: Cli) -> Result<()> {
    let Cli { command, global } = cli;
    let out = Out::new(&global);
    match command {
        Command::Demo(args) => demo::run(&args, &out).await,
        Command::Serve(args) => serve::run(&args, &global, &out).await,
        Command::Completions { shell } => completions::print(shell),
        Command::Check(args) => care::check(&args, &global, &out).await,
        Command::Doctor => care::doctor(&global, &out).await,
        Command::Restore(args) => care::restore(&args, &global, &out),
        Command::Runs { command: RunsCommand::Watch { run, from } } => watch::run(&run, from, &global, &out).await,
        Command::SandboxLaunch => Ok(()),
        command => with_api(command, &global, &out).await,
    }
}

/// Commands that ask one question, or say one thing.
async fn with_api(command: Command, global: &Global, out: &Out) -> Result<()> {
    let tool = match &command {
        Command::Call(args) => Some((args.tool.as_str(), args.layer.as_deref())),
        _ => None,
    };
    let api = api::open(global, how(&command), tool).await?;
    let done = tokio::select! {
        done = ask(command, &api, out) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    };
    // What was asked for is more worth telling than what went wrong with closing the file.
    let closed = api.close().await;
    done.and(closed)
}

/// Only what cannot be done otherwise drives the runs of a file: looking at it must not move anything.
fn how(command: &Command) -> Open {
    match command {
        Command::Call(args) if !args.detach => Open::Drive,
        Command::Call(_) => Open::Create,
        Command::Runs { command: RunsCommand::Resume { .. } } => Open::Drive,
        Command::Runs { command: RunsCommand::Import { .. } } => Open::Begin,
        Command::Runs { command: RunsCommand::ReplayCheck { .. } } => Open::Replay,
        Command::Tools { .. } => Open::Tools,
        Command::Token { command: TokenCommand::Create { .. } } => Open::Begin,
        Command::Gc => Open::Tidy,
        _ => Open::Look,
    }
}

async fn ask(command: Command, api: &Api, out: &Out) -> Result<()> {
    match command {
        Command::Call(args) => call::run(&args, api, out).await,
        Command::Runs { command } => runs(command, api, out).await,
        Command::Inbox { command, wanted } => match command {
            None => inbox::list(&wanted, api, out).await,
            Some(InboxCommand::List(wanted)) => inbox::list(&wanted, api, out).await,
            Some(command) => inbox::act(command, api, out).await,
        },
        Command::Resolve(args) => runs::resolve(&args, api, out).await,
        Command::Signal(args) => runs::signal(&args, api, out).await,
        Command::Tools { command } => match command {
            ToolsCommand::List { tag, layer, format } => {
                tools::list((tag.as_deref(), layer.as_deref()), format, api, out).await
            }
            ToolsCommand::Show { name, layer } => tools::show(&name, layer.as_deref(), api, out).await,
            ToolsCommand::Try { name, args, session, layer } => {
                tools::check(&name, &args, (session, layer), api, out).await
            }
        },
        Command::Token { command } => tokens::run(command, api, out).await,
        Command::Gc => care::gc(api, out).await,
        Command::Backup { to } => care::backup(&to, api, out).await,
        // The others need no API, or see to it themselves.
        _ => Ok(()),
    }
}

async fn runs(command: RunsCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        RunsCommand::List(args) => list::run(&args, api, out).await,
        RunsCommand::Show { run, journal } => show::run(&run, journal, api, out).await,
        RunsCommand::Watch { .. } => Ok(()),
        RunsCommand::Cancel { runs, reason } => runs::cancel(&runs, &reason, api, out).await,
        RunsCommand::Fork { run, at, args, result } => runs::fork(&run, at, args, &result, api, out).await,
        RunsCommand::Explain { run } => runs::explain(&run, api, out).await,
        RunsCommand::Export { run, to } => runs::export(&run, to.as_deref(), api, out).await,
        RunsCommand::Import { from } => runs::import(&from, api, out).await,
        RunsCommand::Purge { runs } => runs::purge(&runs, api, out).await,
        RunsCommand::ReplayCheck { runs, .. } => runs::replay_check(&runs, api, out).await,
        RunsCommand::Resume { runs } => runs::resume(&runs, api, out).await,
        RunsCommand::Finish { run, result, reason } => runs::finish(&run, &result, reason, api, out).await,
        RunsCommand::Compare { a, b } => runs::compare(&a, &b, api, out).await,
    }
}
