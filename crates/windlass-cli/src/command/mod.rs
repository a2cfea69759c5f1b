//! The commands, written against the API.

mod call;
mod connections;
mod files;
mod inbox;
mod list;
mod maintenance;
mod runs;
mod session_turns;
mod session_watch;
mod sessions;
mod show;
mod text;
mod tokens;
mod tools;
mod watch;

use std::time::Duration;

use crate::api::{self, Api, OpenMode};
use crate::args::{Cli, Command, Global, InboxCommand, RunsCommand, SessionsCommand, TokenCommand, ToolsCommand};
use crate::exit::{Exit, Result};
use crate::out::Out;
use crate::{completions, demo, serve};

pub use text::{activity_line, ago, ending, state};

/// Closing a file without attempts in flight takes less than this, and needs no note.
const CLOSE_SILENTLY: Duration = Duration::from_millis(200);

/// Executes a command.
pub async fn run(cli: Cli) -> Result<()> {
    let Cli { command, global } = cli;
    let out = Out::new(&global);
    match command {
        Command::Demo(args) => demo::run(&args, &out).await,
        Command::Serve(args) => serve::run(&args, &global, &out).await,
        Command::Completions { shell } => completions::print(shell),
        Command::Check(args) => maintenance::check(&args, &global, &out).await,
        Command::Doctor => maintenance::doctor(&global, &out).await,
        Command::Restore(args) => maintenance::restore(&args, &global, &out),
        Command::Runs { command: RunsCommand::Watch { run, from } } => watch::run(&run, from, &global, &out).await,
        Command::Sessions { command: SessionsCommand::Watch { session, from } } => {
            session_watch::run(&session, from, &global, &out).await
        }
        Command::SandboxLaunch => Ok(()),
        command => with_api(command, &global, &out).await,
    }
}

/// Executes a command that makes requests to the API.
async fn with_api(command: Command, global: &Global, out: &Out) -> Result<()> {
    let tool = match &command {
        Command::Call(args) => Some((args.tool.as_str(), args.layer.as_deref())),
        _ => None,
    };
    let waits = matches!(&command, Command::Call(args) if !args.detach);
    let api = api::open(global, open_mode(&command), tool).await?;
    let done = tokio::select! {
        done = request(command, &api, out) => done,
        interrupted = crate::interrupt::wait() => Err(interrupted),
    };
    let interrupted = matches!(&done, Err(failure) if failure.exit == Exit::Interrupted);
    let (remote, waited_for) = (api.is_remote(), api.waits_for());
    if interrupted && waits && remote {
        out.note(&continues(waited_for));
    }
    let closed = if interrupted { close_after_interrupt(api, out).await } else { api.close().await };
    if let (true, false, Some(run)) = (interrupted, remote, waited_for) {
        out.note(&format!(
            "see it with `windlass runs show {run}`; the next server continues it if it is not finished"
        ));
    }
    // A failure of the command matters more than a failure to close the file.
    done.and(closed)
}

/// What becomes of the run that an interrupted command waited for.
fn continues(run: Option<windlass::RunId>) -> String {
    match run {
        Some(run) => format!(
            "run {run} continues on the server; see it with `windlass runs show {run}`, or stop it with `windlass runs \
             cancel {run}`"
        ),
        None => {
            "if the server has received the call, its run continues there; `windlass runs list` shows it".to_owned()
        }
    }
}

/// Closes the file, and says what this waits for. A second signal ends the process meanwhile.
async fn close_after_interrupt(api: Api, out: &Out) -> Result<()> {
    let mut closing = std::pin::pin!(api.close());
    tokio::select! {
        closed = &mut closing => return closed,
        () = tokio::time::sleep(CLOSE_SILENTLY) => {}
    }
    out.note(&format!(
        "waiting up to {} s for the attempt in flight to end; press Ctrl-C again to stop now; the call will then be in doubt",
        windlass::limits::DRAIN.as_secs()
    ));
    closing.await
}

/// Only commands that need it drive the runs of a file: inspecting a file must not change anything.
fn open_mode(command: &Command) -> OpenMode {
    match command {
        Command::Call(args) if !args.detach => OpenMode::Drive,
        Command::Call(_) => OpenMode::Enqueue,
        Command::Runs { command: RunsCommand::Resume { .. } } => OpenMode::Drive,
        Command::Runs { command: RunsCommand::Import { .. } } => OpenMode::Init,
        Command::Runs { command: RunsCommand::ReplayCheck { .. } } => OpenMode::Replay,
        Command::Tools { .. } => OpenMode::Tools,
        Command::Token { command: TokenCommand::Create { .. } } => OpenMode::Init,
        // The agent must be a tool of the config.
        Command::Sessions { command: SessionsCommand::Open { settings, .. } } if settings.agent.is_some() => {
            OpenMode::Enqueue
        }
        Command::Sessions { command: SessionsCommand::Open { .. } } => OpenMode::Init,
        Command::Sessions { command: SessionsCommand::Configure { .. } | SessionsCommand::Context { .. } } => {
            OpenMode::Replay
        }
        Command::Gc => OpenMode::Collect,
        _ => OpenMode::Inspect,
    }
}

async fn request(command: Command, api: &Api, out: &Out) -> Result<()> {
    match command {
        Command::Call(args) => call::run(&args, api, out).await,
        Command::Runs { command } => runs(command, api, out).await,
        Command::Inbox { command, filter } => match command {
            None => inbox::list(&filter, api, out).await,
            Some(InboxCommand::List(filter)) => inbox::list(&filter, api, out).await,
            Some(command) => inbox::act(command, api, out).await,
        },
        Command::Resolve(args) => runs::resolve(&args, api, out).await,
        Command::Signal(args) => runs::signal(&args, api, out).await,
        Command::Tools { command } => match command {
            ToolsCommand::List { tag, layer, session, format, schemas } => {
                let which = (tag.as_deref(), layer.as_deref(), session.as_deref());
                tools::list(which, format, schemas, api, out).await
            }
            ToolsCommand::Show { name, layer } => tools::show(&name, layer.as_deref(), api, out).await,
            ToolsCommand::Try { name, args, session, layer, principal, cause } => {
                principal.map_or(Ok(()), |principal| api.act_for(&principal))?;
                tools::check(&name, &args, (session, layer, cause), api, out).await
            }
        },
        Command::Token { command } => tokens::run(command, api, out).await,
        Command::Sessions { command } => sessions::run(command, api, out).await,
        Command::Connections { command } => connections::run(command, api, out).await,
        Command::Files { command } => files::run(command, api, out).await,
        Command::Gc => maintenance::gc(api, out).await,
        Command::Backup { to } => maintenance::backup(&to, api, out).await,
        // The others need no API, or open it themselves.
        _ => Ok(()),
    }
}

async fn runs(command: RunsCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        RunsCommand::List(args) => list::run(&args, api, out).await,
        RunsCommand::Show { run, key, journal } => show::run(named(run, key, api).await?, journal, api, out).await,
        RunsCommand::Watch { .. } => Ok(()),
        RunsCommand::Cancel { runs, reason } => runs::cancel(&runs, &reason, api, out).await,
        RunsCommand::Fork { run, at, args, result } => runs::fork(&run, at, args, &result, api, out).await,
        RunsCommand::Output { run, path, offset, limit } => runs::output(&run, &path, offset, limit, api, out).await,
        RunsCommand::Explain { run, key } => runs::explain(named(run, key, api).await?, api, out).await,
        RunsCommand::Export { run, to } => runs::export(&run, to.as_deref(), api, out).await,
        RunsCommand::Import { from } => runs::import(&from, api, out).await,
        RunsCommand::Purge { runs } => runs::purge(&runs, api, out).await,
        RunsCommand::ReplayCheck { runs, .. } => runs::replay_check(&runs, api, out).await,
        RunsCommand::Resume { runs } => runs::resume(&runs, api, out).await,
        RunsCommand::Finish { run, result, reason } => runs::finish(&run, &result, reason, api, out).await,
        RunsCommand::Compare { a, b } => runs::compare(&a, &b, api, out).await,
    }
}

/// The run that is named by an id, a prefix of it, or the key it was started under.
async fn named(run: Option<String>, key: Option<String>, api: &Api) -> Result<windlass::RunId> {
    match (run, key) {
        (_, Some(key)) => api.run_by_key(&key).await,
        (run, None) => api.run(&run.unwrap_or_default()).await,
    }
}
