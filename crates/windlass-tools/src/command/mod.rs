//! A program as a tool.
//!
//! The program reads the arguments of the call as JSON from standard input. Its standard output is the result, the
//! lines of its standard error are the progress of the run, and its exit code decides whether the call succeeded:
//!
//! | exit code | the call ends |
//! |---|---|
//! | 0 | with its output |
//! | 64, 65 (`EX_USAGE`, `EX_DATAERR`) | `invalid_arguments` |
//! | 69 (`EX_UNAVAILABLE`), 126, 127 (a shell could not run something) | `unavailable` |
//! | 75 (`EX_TEMPFAIL`): nothing was done | `failed`, and is retried, also if its effect is `once` |
//! | 77 (`EX_NOPERM`) | `denied` |
//! | a signal, or 130 to 159, which represent one | in doubt if its effect is `once`; see below |
//! | anything else | `failed`, with the end of its standard error |
//!
//! [`Command::exits`] and [`Command::on_signal`] change that.
//!
//! **Environment**: `PATH`, `HOME` (the working directory), `LANG`, `TMPDIR` (a private folder, removed after the
//! command), the variables of [`Command::env`], and what the program needs to act only once: `WINDLASS_IDEMPOTENCY_KEY`
//! (the same for all attempts of a call), `WINDLASS_RUN`, `WINDLASS_PATH` and `WINDLASS_ATTEMPT`. Nothing of the
//! server's own environment.
//!
//! **Arguments in argv**: a word `{args.name}` (or `{args.a.b}`) is replaced by that argument: a string, a number or a
//! boolean. It becomes exactly one word whatever it contains, and no shell reads it. A value that begins with `-` would
//! be taken for an option and is refused unless a word `--` comes before it. Every process on the machine can read the
//! words of a running command: secrets belong into its environment.
//!
//! **End**: when the program ends, everything it left running is killed. When the call is cancelled or times out, the
//! program gets SIGTERM and the tool's grace, then SIGKILL. If it ends with 0 in that time, the call succeeds. Any
//! other end does not show what was done, so an attempt whose effect is `once` is in doubt. See
//! [`process`](crate::process).
//!
//! **Killed by a signal**: the command had begun, and how far it came is unknown. If its effect is `once`, the call is
//! in doubt, whatever sent the signal: another program, the kernel, a bug or a limit. A `readonly` or `idempotent`
//! command is retried, unless it caused the signal itself or exceeded a limit (such as SIGSEGV and SIGXCPU): then it
//! has `failed`.
//!
//! **Session files**: with [`Command::session_files`], the working directory is a private copy of the files of the
//! call's session. When the command has succeeded and all its processes are dead, the regular files that it changed or
//! deleted are changed in the session, in the commit that records the outcome. A file that was changed in the session
//! meanwhile, or that exceeds its limits, stays as it is; the outcome then names it, says why, and has its content as a
//! file. Links, devices and empty directories are not stored. Such a tool is exclusive in its session. A command that
//! fails, or whose effect is `readonly`, changes nothing. An attempt that is repeated begins with the files that the
//! session has by then.
//!
//! **Not started**: a command that could not be started because of a shortage of space, memory, files or processes has
//! done nothing. It is retried a few times, also if its effect is `once`. If that does not help, the call has `failed`
//! with an error that can be retried.

mod argv;
#[cfg(target_os = "linux")]
mod capture;
mod exits;
#[cfg(target_os = "linux")]
mod files;
mod hidden;
mod result;
#[cfg(target_os = "linux")]
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass::tool::spec::Concurrency;
use windlass::tool::{Atomic, Schemas};
use windlass::{Call, Output as ToolOutput, Tool, ToolError, ToolResult, ToolSpec};

pub use argv::BadCommand;
pub use exits::Exit;
pub use hidden::HiddenFile;

#[cfg(target_os = "linux")]
use crate::media;
use crate::sandbox::{Launcher, Sandbox};
use crate::secret::{Redactor, Secrets, Text};

/// Removes secrets from a text.
pub type Redact = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The runtime's own limit for a request: larger results belong into files.
pub const MAX_OUTPUT: usize = 4 << 20;

/// The search path of a command that does not set its own.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A program, and how it is run. Create one with [`Command::new`] and set the fields that differ.
#[derive(Clone)]
pub struct Command {
    /// The program and its arguments; see the [module](self) for placeholders.
    pub argv: Vec<String>,
    /// The working directory, which it may read and write. If not set, its temporary folder, which is removed when it
    /// ends.
    pub dir: Option<PathBuf>,
    /// Whether the files of the call's session are its working directory, instead of `dir`. What it changes there is
    /// changed in the session together with the outcome; see the [module](self).
    pub session_files: bool,
    /// The folder of the config, with which [`hidden_files`](Command::hidden_files) recognizes relative arguments that are
    /// files there. It does not change how the command runs.
    pub base: Option<PathBuf>,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
    /// Additional environment variables with secrets, which are read for every call and removed from its output.
    pub secret_env: BTreeMap<String, Text>,
    /// The secrets these variables name.
    pub secrets: Secrets,
    /// What it may access.
    pub sandbox: Sandbox,
    /// How its standard output is read.
    pub output: Output,
    /// If set, its standard output is a file of this media type, such as `image/png`, however `output` is set.
    pub media_type: Option<String>,
    /// The meaning of exit codes that differ from the [table](self).
    pub exits: BTreeMap<i32, Exit>,
    /// The meaning of death by a signal that we did not send, if it differs from the [module](self)'s description.
    pub on_signal: Option<Exit>,
    /// Limit for standard output, in bytes. A command that prints more runs to its end, and the call fails: a partial
    /// result is not a result.
    pub max_output: usize,
    /// Removes secrets from everything it prints.
    pub redact: Option<Redact>,
    /// The launcher that starts it.
    pub launcher: Launcher,
}

/// How a command's standard output is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// JSON if it can be parsed as that, null if it is empty, otherwise text.
    #[default]
    Auto,
    /// JSON; anything else is a failure.
    Json,
    /// JSON with content blocks: `{"value"?: …, "content": […]}`. A block is `{"type": "text", "text"}`, or one of the
    /// types `image`, `audio` and `file` with `media_type`, `name` (optional) and `data` in Base64.
    Content,
    /// Text, without the line break at its end. Bytes that are not UTF-8 are replaced by `�`.
    Text,
}

impl Command {
    /// A command in its default sandbox.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>, launcher: Launcher) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            dir: None,
            session_files: false,
            base: None,
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            secrets: Secrets::default(),
            sandbox: Sandbox::default(),
            output: Output::default(),
            media_type: None,
            exits: BTreeMap::new(),
            on_signal: None,
            max_output: MAX_OUTPUT,
            redact: None,
            launcher,
        }
    }

    /// Finds everything that can never work. A tool with such a command refuses every call.
    pub fn check(&self) -> Result<(), BadCommand> {
        argv::check(self)
    }

    /// A tool that runs the command. Dropping an attempt kills it and blocks until it is dead: a few milliseconds.
    pub fn tool(self, spec: ToolSpec, schemas: Schemas) -> Tool {
        let is_exclusive = self.session_files;
        let tool = Tool::atomic(spec, schemas, Body(Arc::new(self)));
        // Two commands that work on copies of the same files would undo each other's changes.
        if is_exclusive { tool.with(|spec| spec.guards.concurrency = Concurrency::Exclusive) } else { tool }
    }

    /// Lets this command settle doubts about the attempts of another tool. It gets the same arguments and the same
    /// idempotency key, must change nothing, and prints `{"happened": VALUE}`, `{"did_not_happen": true}` or
    /// `{"unknown": true}`. Anything else, including a failure, counts as unknown.
    #[must_use]
    pub fn reconcile(self, tool: Tool) -> Tool {
        let command = Arc::new(Self { output: Output::Json, media_type: None, session_files: false, ..self });
        tool.reconcile(move |call: Call| {
            let command = command.clone();
            async move { result::reconciled(output(command, call).await?.value) }
        })
    }
}

impl Command {
    /// The command with the current values of its secrets.
    async fn with_secrets(&self, call: &Call) -> ToolResult<Self> {
        let names = self.secret_env.values().flat_map(Text::secrets);
        let secrets = self.secrets.for_call(names, call).await?;
        let mut seen = Redactor::default();
        let mut command = self.clone();
        for (name, text) in &self.secret_env {
            let value = text.resolve_noting(&secrets, &mut seen);
            let value = value.map_err(|error| ToolError::unavailable(format!("env.{name}: {error}")))?;
            command.env.insert(name.clone(), value.expose().to_owned());
        }
        let also = self.redact.clone();
        command.redact = Some(Arc::new(move |text: &str| {
            let text = seen.redact(text);
            also.as_ref().map_or_else(|| text.to_string(), |also| also(&text))
        }));
        Ok(command)
    }
}

struct Body(Arc<Command>);

impl Atomic for Body {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<ToolOutput>> {
        let command = self.0.clone();
        Box::pin(output(command, call))
    }
}

/// Runs a command once.
async fn output(command: Arc<Command>, call: Call) -> ToolResult<ToolOutput> {
    let command = if command.secret_env.is_empty() { command } else { Arc::new(command.with_secrets(&call).await?) };
    command.check().map_err(|bad| ToolError::unavailable(format!("`{}`: {bad}", call.tool())))?;
    #[cfg(target_os = "linux")]
    {
        let workspace = match command.session_files {
            true => Some(files::Workspace::make(&command, &call).await?),
            false => None,
        };
        let command = match &workspace {
            Some(space) => Arc::new(Command { dir: Some(space.folder().to_owned()), ..(*command).clone() }),
            None => command,
        };
        let end = run::run(&command, &call).await?;
        let output = match &command.media_type {
            Some(media_type) => {
                result::check(&command, &end, call.effect())?;
                media::output(&call, media_type, &end.stdout).await
            }
            None => media::stored(&call, result::output(&command, &end, call.effect())?).await,
        };
        let output = match (output, workspace) {
            (Ok(output), Some(space)) => space.conclude(&call, output).await,
            (output, _) => output,
        };
        output.map_err(|error| media::not_stored(error, call.effect()))
    }
    #[cfg(not(target_os = "linux"))]
    Err(ToolError::unavailable(format!("`{}` is a command, and commands run on Linux only", call.tool())))
}
