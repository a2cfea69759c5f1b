//! A program as a tool.
//!
//! The arguments of a call go to the program's standard input, as JSON; what it prints on standard output is the result; what it
//! prints on standard error is shown line by line to whoever watches the run; how it ends says whether it worked:
//!
//! | it ends with | the call ends |
//! |---|---|
//! | 0 | with its output |
//! | 64, 65 (`EX_USAGE`, `EX_DATAERR`) | `invalid_arguments` |
//! | 69 (`EX_UNAVAILABLE`), 126, 127 (a shell could not run something) | `unavailable` |
//! | 75 (`EX_TEMPFAIL`): nothing was done, and it may be tried again | `failed`, and is tried again, also if it acts once |
//! | 77 (`EX_NOPERM`) | `denied` |
//! | a signal, or 130 to 159, which stand for one | in doubt, if it acts once; see below |
//! | anything else | `failed`, with the last of its standard error |
//!
//! [`Command::exits`] and [`Command::on_signal`] change that.
//!
//! **The environment** has `PATH`, `HOME` (the working directory), `LANG`, `TMPDIR` (a folder of its own, gone when it ends), what
//! [`Command::env`] sets, and what it needs to act only once: `WINDLASS_IDEMPOTENCY_KEY` (the same for all attempts of a call),
//! `WINDLASS_RUN`, `WINDLASS_PATH` and `WINDLASS_ATTEMPT`. Nothing of ours.
//!
//! **Arguments in argv**: a word that is `{args.name}` (or `{args.a.b}`) stands for that argument: a text, a number or a boolean. It
//! becomes one word whatever is in it, and no shell looks at it. A value that begins with `-` would be taken for an option, and is
//! refused unless a word `--` comes before it. Every process on the machine can read the words of a running command: secrets belong
//! into its environment.
//!
//! **Its end**: when the program ends, whatever it left running is killed. When the call is cancelled or times out, it gets
//! SIGTERM and the tool's grace, then SIGKILL. If it ends with 0 meanwhile, that counts; anything else says nothing about what was
//! done, so an attempt that acts once is in doubt. See [`process`](crate::process).
//!
//! **Killed**: a command that a signal ends had begun, and nobody can tell how far it came. If it acts once, the call is in doubt,
//! whether another program, the system, its own fault or one of its limits ended it. One that is `readonly` or `idempotent` is tried
//! again, unless it did it to itself or ran into a limit (such as SIGSEGV and SIGXCPU): then it has `failed`.
//!
//! **Not begun**: what could not be started for want of space, memory, files or processes has done nothing. It is tried again a few
//! times, also if it acts once, and if that does not help the call has `failed` and says that it may be tried again.

mod exits;
#[cfg(target_os = "linux")]
mod listen;
mod reply;
#[cfg(target_os = "linux")]
mod run;
mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass::{Atomic, Call, Output as ToolOutput, Schemas, Tool, ToolError, ToolResult, ToolSpec};

pub use exits::Exit;
pub use words::BadCommand;

use crate::sandbox::{Launcher, Sandbox};
use crate::secret::{Redactor, Secrets, Text};

/// Takes secrets out of a text.
pub type Redact = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// As large as the runtime's own limit for a request: larger results belong into files.
pub const MAX_OUTPUT: usize = 4 << 20;

/// The search path of a command that has none of its own.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A program, and how it is run. Make one with [`Command::new`] and change what differs.
#[derive(Clone)]
pub struct Command {
    /// The program and its arguments; see the [module](self) for what may be in them.
    pub argv: Vec<String>,
    /// Where it runs, and may read and write. Nothing: in its temporary folder, which is gone when it ends.
    pub dir: Option<PathBuf>,
    /// What its environment has besides.
    pub env: BTreeMap<String, String>,
    /// What its environment has besides and is read anew for every call, because there are secrets in it. Whatever it prints is
    /// shown without them.
    pub secret_env: BTreeMap<String, Text>,
    /// Where these secrets are.
    pub secrets: Secrets,
    /// What it may touch.
    pub sandbox: Sandbox,
    /// What its standard output is.
    pub output: Output,
    /// What exit codes mean where they do not mean what the [table](self) says.
    pub exits: BTreeMap<i32, Exit>,
    /// What it means that it was ended by a signal that is not ours, where that is not as the [module](self) says.
    pub on_signal: Option<Exit>,
    /// Bytes of standard output. A command that prints more runs to its end, and the call fails and says so: a part of a result is
    /// none.
    pub max_output: usize,
    /// Takes secrets out of whatever it prints.
    pub redact: Option<Redact>,
    /// Who starts it.
    pub launcher: Launcher,
}

/// What a command's standard output is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// JSON if it can be read as that, nothing if it is empty, else text.
    #[default]
    Auto,
    /// JSON; anything else is a failure.
    Json,
    /// Text, without the line break at its end. What is not UTF-8 is replaced by `�`.
    Text,
}

impl Command {
    /// A command in its default sandbox.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>, launcher: Launcher) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            dir: None,
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            secrets: Secrets::default(),
            sandbox: Sandbox::default(),
            output: Output::default(),
            exits: BTreeMap::new(),
            on_signal: None,
            max_output: MAX_OUTPUT,
            redact: None,
            launcher,
        }
    }

    /// All that can never work with it. A tool made of such a command refuses every call.
    pub fn check(&self) -> Result<(), BadCommand> {
        words::check(self)
    }

    /// A tool that runs it. Dropping an attempt kills it, and blocks until it is dead: a few milliseconds.
    pub fn tool(self, spec: ToolSpec, schemas: Schemas) -> Tool {
        Tool::atomic(spec, schemas, Body(Arc::new(self)))
    }

    /// Lets this command settle doubts about another tool's attempts: it gets the same arguments and the same idempotency key, must
    /// change nothing, and prints `{"happened": VALUE}`, `{"did_not_happen": true}` or `{"unknown": true}`. Anything else, a failure
    /// too, counts as unknown.
    #[must_use]
    pub fn reconcile(self, tool: Tool) -> Tool {
        let command = Arc::new(Self { output: Output::Json, ..self });
        tool.reconcile(move |call: Call| {
            let command = command.clone();
            async move { reply::reconciled(output(command, call).await?) }
        })
    }
}

impl Command {
    /// The command with its secrets as they are now.
    fn with_secrets(&self) -> ToolResult<Self> {
        let mut seen = Redactor::default();
        let mut command = self.clone();
        for (name, text) in &self.secret_env {
            let value = text.resolve_noting(&self.secrets, &mut seen);
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
        Box::pin(async move { Ok(ToolOutput::value(output(command, call).await?)) })
    }
}

/// One run of a command, as a value.
async fn output(command: Arc<Command>, call: Call) -> ToolResult<serde_json::Value> {
    let command = if command.secret_env.is_empty() { command } else { Arc::new(command.with_secrets()?) };
    command.check().map_err(|bad| ToolError::unavailable(format!("`{}`: {bad}", call.tool())))?;
    #[cfg(target_os = "linux")]
    {
        let end = run::run(&command, &call).await?;
        reply::value(&command, &end, call.effect())
    }
    #[cfg(not(target_os = "linux"))]
    Err(ToolError::unavailable(format!("`{}` is a command, and commands are run on Linux only", call.tool())))
}
