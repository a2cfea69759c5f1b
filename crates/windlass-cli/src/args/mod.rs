//! What can be typed: commands, options, and what they mean.

mod inbox;
mod runs;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

pub use inbox::{Decision, InboxCommand, Kind as InboxKindName, Picked, SettleArgs, Wanted};
pub use runs::{ListArgs, Result as GivenResult, RunsCommand, StateFilter};

const AFTER: &str = "\
Exit codes: 0 ok · 1 the call or run failed · 2 wrong use · 3 not found · 4 refused · 5 store or server out of reach · \
6 timed out waiting · 130 interrupted";

/// A durable tool runtime for AI agents: a crash ends a process, never a run.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, after_help = AFTER, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What applies to every command.
    #[command(flatten)]
    pub global: Global,
}

/// Reads what was typed. `--wait 5s` is taken for `--wait=5s` where it means nothing else: `--wait` alone is an option too, so
/// what follows it may be the tool.
pub fn read(typed: Vec<OsString>) -> Result<Cli, clap::Error> {
    let read = Cli::try_parse_from(&typed).or_else(|wrong| {
        let joined = joined(typed).ok_or(()).and_then(|typed| Cli::try_parse_from(typed).map_err(drop));
        joined.map_err(|()| wrong)
    });
    read.map(|mut cli| {
        // A variable that is set to nothing is not set.
        for word in [&mut cli.global.server, &mut cli.global.token] {
            *word = word.take().filter(|word| !word.is_empty());
        }
        cli
    })
}

/// The same with the time in the same word as its option, if there is one behind it.
fn joined(mut typed: Vec<OsString>) -> Option<Vec<OsString>> {
    let is_time = |word: &OsString| word.to_str().is_some_and(|word| word.parse::<Span>().is_ok());
    let at = typed.windows(2).position(|pair| pair[0] == "--wait" && is_time(&pair[1]))?;
    let time = typed.remove(at + 1);
    typed[at].push("=");
    typed[at].push(time);
    Some(typed)
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The database file [default: the config's `file`, or windlass.db]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// The config file [default: windlass.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// A server to talk to, instead of the one that has the file open
    #[arg(long, global = true, value_name = "URL", env = "WINDLASS_SERVER")]
    pub server: Option<String>,
    /// The token to show to the server
    #[arg(long, global = true, value_name = "TOKEN", env = "WINDLASS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Write JSON for programs: one document, or one line for each event
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    pub color: Colour,
    /// Say only what was asked for
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// In a terminal that knows them.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Everything there is to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch a charge survive kill -9: the main job, on a file of its own
    Demo(DemoArgs),
    /// Serve the API on the file, and drive its runs
    Serve(ServeArgs),
    /// Call a tool
    Call(CallArgs),
    /// Look at runs, and tell them things
    Runs {
        /// What to do.
        #[command(subcommand)]
        command: RunsCommand,
    },
    /// What waits for a person: approvals, doubts, input, connections
    #[command(args_conflicts_with_subcommands = true)]
    Inbox {
        /// What to do; lists unless said.
        #[command(subcommand)]
        command: Option<InboxCommand>,
        /// Which items.
        #[command(flatten)]
        wanted: Wanted,
    },
    /// Answer a wait or a pending call by its reply key
    Resolve(ResolveArgs),
    /// Send a signal to a run
    Signal(SignalArgs),
    /// Which tools there are
    Tools {
        /// What to do.
        #[command(subcommand)]
        command: ToolsCommand,
    },
    /// Who may use the server
    Token {
        /// What to do.
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Check the config file
    Check(CheckArgs),
    /// Say what works here and what does not: file, server, sandbox
    Doctor,
    /// Let go of everything that is kept no longer
    Gc,
    /// Write a copy of the file while work goes on
    Backup {
        /// Where to; nothing may be there yet
        #[arg(value_hint = ValueHint::FilePath)]
        to: PathBuf,
    },
    /// Put a backup in the file's place
    Restore(RestoreArgs),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Becomes a sandboxed command; started by command tools only.
    #[command(hide = true, name = "sandbox-launch")]
    SandboxLaunch,
}

/// `windlass demo`
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Approve the charge without asking
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Where to keep the demo's files [default: a new temporary directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// `windlass serve`
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where to listen [default: the config's `listen`, or 127.0.0.1:7117]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The demo's tools, charging in this ledger, and ending with whoever holds its standard input.
    #[arg(long, hide = true, value_name = "LEDGER")]
    pub demo: Option<PathBuf>,
}

/// `windlass call`
#[derive(Clone, Debug, Args)]
pub struct CallArgs {
    /// The tool's name
    pub tool: String,
    /// Its arguments: JSON, `-` for standard input, `@FILE` for a file
    #[arg(long, short, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
    pub args: String,
    /// Wait for the end, at most so long (30s, 5m; for ever unless said)
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, conflicts_with = "detach")]
    pub wait: Option<Option<Span>>,
    /// Return as soon as the run is in the store
    #[arg(long)]
    pub detach: bool,
    /// Names the run: the same key never starts a second one
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The session the run belongs to
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// The layer the call is made through
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
}

/// `windlass resolve`
#[derive(Clone, Debug, Args)]
pub struct ResolveArgs {
    /// The reply key
    pub key: String,
    /// With what
    #[command(flatten)]
    pub result: GivenResult,
    /// Whoever was to answer was cancelled
    #[arg(long, conflicts_with_all = ["value", "error"])]
    pub cancelled: bool,
}

/// `windlass signal`
#[derive(Clone, Debug, Args)]
pub struct SignalArgs {
    /// Which run; a unique beginning of its id will do
    pub run: String,
    /// Which signal
    pub name: String,
    /// What it says: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", default_value = "null", allow_hyphen_values = true)]
    pub value: String,
    /// Names the signal: the same key is never sent twice
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

/// `windlass tools …`
#[derive(Clone, Debug, Subcommand)]
pub enum ToolsCommand {
    /// Every tool
    List {
        /// Only those with this tag
        #[arg(long)]
        tag: Option<String>,
        /// As this layer shows them
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
        /// As models are told of them (implies --json)
        #[arg(long, value_enum)]
        format: Option<ToolFormat>,
    },
    /// One tool, with its schema and policy
    Show {
        /// Its name
        name: String,
        /// As this layer shows it
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
    },
    /// What would become of a call; nothing is run
    Try {
        /// The tool's name
        name: String,
        /// The arguments: JSON, `-` or `@FILE`
        #[arg(long, short, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
        args: String,
        /// The session the call would belong to
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// The layer the call would be made through
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
    },
}

/// How tools are written for models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToolFormat {
    /// As OpenAI's models are told of them.
    Openai,
    /// As Anthropic's models are told of them.
    Anthropic,
}

/// `windlass token …`
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token; its secret is shown once
    Create {
        /// Who it is for; decisions are recorded under this name
        name: String,
        /// What it allows
        #[arg(long, value_enum, value_delimiter = ',', required = true)]
        scope: Vec<ScopeName>,
        /// How long it is valid, such as 30d [default: for ever]
        #[arg(long, value_name = "TIME")]
        expires: Option<Span>,
        /// See and call tools through this layer only
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
    },
    /// Every token, without its secret
    List,
    /// Make a token void
    Revoke {
        /// Its name or its id; a beginning will do
        #[arg(value_name = "TOKEN")]
        which: String,
    },
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeName {
    /// Look at everything.
    Read,
    /// Make calls, send signals, cancel.
    Call,
    /// Approve, settle, answer, connect.
    Approve,
    /// Tokens, imports, purges, backups.
    Admin,
}

/// `windlass check`
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Print the JSON Schema of the config file, for editors
    #[arg(long)]
    pub schema: bool,
}

/// `windlass restore`
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_hint = ValueHint::FilePath)]
    pub from: PathBuf,
    /// Move a file that is there aside first
    #[arg(long)]
    pub replace: bool,
}

/// A stretch of time as people type it: `250ms`, `30s`, `5m`, `2h`, `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub std::time::Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("`{text}` is no length of time: write a number and a unit, such as 250ms, 30s, 5m, 2h, 7d");
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let whole = number.checked_mul(millis).ok_or_else(wrong)?;
        Ok(Self(std::time::Duration::from_millis(whole)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_well_defined() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_says_what_it_does() {
        fn check(command: &clap::Command, silent: &mut Vec<String>) {
            let hidden = |argument: &&clap::Arg| argument.is_hide_set();
            for argument in command.get_arguments().filter(|argument| !hidden(argument)) {
                if argument.get_help().is_none() {
                    silent.push(format!("{} {}", command.get_name(), argument.get_id()));
                }
            }
            for inner in command.get_subcommands() {
                if inner.get_about().is_none() {
                    silent.push(inner.get_name().to_owned());
                }
                check(inner, silent);
            }
        }
        let mut silent = Vec::new();
        check(&Cli::command(), &mut silent);
        assert_eq!(silent, Vec::<String>::new());
    }

    #[test]
    fn a_time_may_stand_behind_wait_where_nothing_else_can_be_meant() {
        let check = |words: &[&str]| {
            let typed = ["windlass", "call"].iter().chain(words).map(OsString::from).collect();
            match read(typed).map(|cli| cli.command) {
                Ok(Command::Call(args)) => Ok((args.tool, args.wait)),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        let five = Some(Some(Span(Duration::from_secs(5))));
        let weather = |wait| Ok(("weather".to_owned(), wait));
        assert_eq!(check(&["weather", "--wait=5s"]), weather(five));
        assert_eq!(check(&["weather", "--wait", "5s"]), weather(five));
        assert_eq!(check(&["--wait", "5s", "weather"]), weather(five));
        assert_eq!(check(&["--wait", "weather"]), weather(Some(None)));
        assert_eq!(check(&["--wait", "5s"]), Ok(("5s".to_owned(), Some(None))), "it may be a tool");
        let refused = check(&["weather", "--wait", "soon"]).unwrap_err();
        assert!(refused.contains("unexpected argument 'soon'"), "{refused}");
    }

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        for (text, millis) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)]
        {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))));
        }
        for text in ["", "5", "s", "5 s", "-1s", "1.5h", "99999999999999999999d", "18446744073709551615d"] {
            assert!(text.parse::<Span>().unwrap_err().contains("such as 250ms"), "{text}");
        }
    }
}
