//! The command line: commands, options and their help.

mod connections;
mod files;
mod inbox;
mod runs;
mod session_settings;
mod sessions;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

pub use connections::ConnectionsCommand;
pub use files::FilesCommand;
pub use inbox::{Decision, InboxCommand, InboxFilterArgs, InboxKindName, Selection, SettleArgs};
pub use runs::{ListArgs, ResultArgs, RunsCommand, StateFilter};
pub use session_settings::{SettingName, SettingsArgs, TurnName, WakeName};
pub use sessions::{AuthorName, DataCommand, SecretsCommand, SessionListArgs, SessionToolsArgs, SessionsCommand};

const AFTER: &str = "\
Exit codes: 0 ok · 1 the call or run failed · 2 usage error · 3 not found · 4 refused · 5 store or server unreachable · \
6 timed out waiting · 130 interrupted";

/// A durable tool runtime for AI agents: a crash ends a process, never a run.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, after_help = AFTER, propagate_version = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// The options of every command.
    #[command(flatten)]
    pub global: Global,
}

/// Parses the command line. `--wait 5s` is read as `--wait=5s` if it has no other meaning: `--wait` is valid without a value,
/// so the next word may be the tool.
pub fn parse(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let parsed = Cli::try_parse_from(&words).or_else(|error| {
        let joined = join_wait(words).ok_or(()).and_then(|words| Cli::try_parse_from(words).map_err(drop));
        joined.map_err(|()| error)
    });
    parsed.map(|mut cli| {
        // An environment variable that is set to nothing counts as not set.
        for value in [&mut cli.global.server, &mut cli.global.token] {
            *value = value.take().filter(|value| !value.is_empty());
        }
        cli
    })
}

/// Joins `--wait` with the duration that follows it, if one does.
fn join_wait(mut words: Vec<OsString>) -> Option<Vec<OsString>> {
    let is_duration = |word: &OsString| word.to_str().is_some_and(|word| word.parse::<DurationArg>().is_ok());
    let at = words.windows(2).position(|pair| pair[0] == "--wait" && is_duration(&pair[1]))?;
    let duration = words.remove(at + 1);
    words[at].push("=");
    words[at].push(duration);
    Some(words)
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The database file [default: the config's `file`, or windlass.db]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// The config file [default: windlass.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The server to use, instead of the one that has the file open
    #[arg(long, global = true, value_name = "URL", env = "WINDLASS_SERVER")]
    pub server: Option<String>,
    /// The token for the server
    #[arg(long, global = true, value_name = "TOKEN", env = "WINDLASS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Print JSON: one document, or one line per event
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    pub color: Colour,
    /// Print only the result
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Log more; repeat for even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// In a terminal that supports them.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a demo in which a card charge survives kill -9, on a file of its own
    Demo(DemoArgs),
    /// Serve the API on the file, and drive its runs
    Serve(ServeArgs),
    /// Call a tool
    Call(CallArgs),
    /// List, inspect and control runs
    Runs {
        /// The subcommand.
        #[command(subcommand)]
        command: RunsCommand,
    },
    /// Items that wait for a person: approvals, doubts, input, connections
    #[command(args_conflicts_with_subcommands = true)]
    Inbox {
        /// The subcommand; `list` by default.
        #[command(subcommand)]
        command: Option<InboxCommand>,
        /// Which items.
        #[command(flatten)]
        filter: InboxFilterArgs,
    },
    /// List, read, write and close sessions
    Sessions {
        /// The subcommand.
        #[command(subcommand)]
        command: SessionsCommand,
    },
    /// List and remove connections to providers; `inbox connect` makes them
    Connections {
        /// The subcommand.
        #[command(subcommand)]
        command: ConnectionsCommand,
    },
    /// List, read, write and delete the files of a session
    Files {
        /// The subcommand.
        #[command(subcommand)]
        command: FilesCommand,
    },
    /// Answer a wait or a pending call by its reply key
    Resolve(ResolveArgs),
    /// Send a signal to a run
    Signal(SignalArgs),
    /// List and inspect tools
    Tools {
        /// The subcommand.
        #[command(subcommand)]
        command: ToolsCommand,
    },
    /// Manage access tokens of the server
    Token {
        /// The subcommand.
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Check the config file
    Check(CheckArgs),
    /// Check this installation: config, file, server, sandbox
    Doctor,
    /// Delete everything whose retention time has passed
    Gc,
    /// Back up the file while it is in use
    Backup {
        /// The backup file, which must not exist yet
        #[arg(value_hint = ValueHint::FilePath)]
        to: PathBuf,
    },
    /// Restore the file from a backup
    Restore(RestoreArgs),
    /// Print a shell completion script
    Completions {
        /// The shell
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
    /// The directory for the demo's files [default: a new temporary directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// `windlass serve`
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The address to listen on [default: the config's `listen`, or 127.0.0.1:7117]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Serve the demo's tools with this ledger, and stop when standard input is closed.
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
    /// Wait for the outcome, for at most this long (30s, 5m) [default: without limit]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, conflicts_with = "detach")]
    pub wait: Option<Option<DurationArg>>,
    /// Return as soon as the run is in the store
    #[arg(long)]
    pub detach: bool,
    /// The idempotency key: a key that was used before returns its run instead of starting another
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The session of the run
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// The layer through which the call is made
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
    /// For whom the run acts [default: the token's principal, or none]
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// What caused the run: the id of a message, a turn or a frame
    #[arg(long, value_name = "TEXT")]
    pub cause: Option<String>,
    /// Data of the model's provider, returned with the outcome byte for byte: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub metadata: Option<String>,
    /// Save the images, audio and files of the output into this folder
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, conflicts_with = "detach")]
    pub save: Option<PathBuf>,
}

/// `windlass resolve`
#[derive(Clone, Debug, Args)]
pub struct ResolveArgs {
    /// The reply key
    pub key: String,
    /// The answer
    #[command(flatten)]
    pub result: ResultArgs,
    /// There will be no answer: the work that should have given it was cancelled
    #[arg(long, conflicts_with_all = ["value", "error"])]
    pub cancelled: bool,
}

/// `windlass signal`
#[derive(Clone, Debug, Args)]
pub struct SignalArgs {
    /// The run, by id or a unique prefix of it
    pub run: String,
    /// The name of the signal
    pub name: String,
    /// Its value: JSON, `-` or `@FILE`
    #[arg(long, value_name = "JSON", default_value = "null", allow_hyphen_values = true)]
    pub value: String,
    /// The idempotency key: a signal with the same key is delivered once
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

/// `windlass tools …`
#[derive(Clone, Debug, Subcommand)]
pub enum ToolsCommand {
    /// List the tools
    List {
        /// Only tools with this tag
        #[arg(long)]
        tag: Option<String>,
        /// As seen through this layer
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
        /// As this session sees them
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// In the format that a model API expects (implies --json)
        #[arg(long, value_enum)]
        format: Option<ToolFormat>,
        /// Load the schemas that are not loaded yet, and show them (with --json or --format)
        #[arg(long)]
        schemas: bool,
    },
    /// Show one tool, with its schema and policy
    Show {
        /// The tool's name
        name: String,
        /// As seen through this layer
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
    },
    /// Check what a call would do, without making it
    Try {
        /// The tool's name
        name: String,
        /// The arguments: JSON, `-` or `@FILE`
        #[arg(long, short, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
        args: String,
        /// The session of the call
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// The layer through which the call is made
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
        /// For whom the run would act
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
        /// What would cause the run
        #[arg(long, value_name = "TEXT")]
        cause: Option<String>,
    },
}

/// The formats in which model APIs expect tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToolFormat {
    /// OpenAI's format.
    Openai,
    /// Anthropic's format.
    Anthropic,
}

/// `windlass token …`
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token; its secret is shown once
    Create {
        /// The owner's name, under which decisions are recorded
        name: String,
        /// What the token allows
        #[arg(long, value_enum, value_delimiter = ',', required = true)]
        scope: Vec<ScopeName>,
        /// How long the token is valid, such as 30d [default: without limit]
        #[arg(long, value_name = "DURATION")]
        expires: Option<DurationArg>,
        /// Restrict the token to the tools of this layer
        #[arg(long, value_name = "LAYER")]
        layer: Option<String>,
        /// For whom the owner acts: without the scope `admin`, the token sees only the runs of this principal [default: the name]
        #[arg(long, value_name = "PRINCIPAL")]
        principal: Option<String>,
    },
    /// List the tokens, without their secrets
    List,
    /// Revoke a token
    Revoke {
        /// The token's name or id, or a unique prefix of either
        // Not called `token`, which is the id of the global option.
        #[arg(value_name = "TOKEN")]
        which: String,
    },
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeName {
    /// Read the runs of the token's principal, and the tools.
    Read,
    /// Make calls and read their runs, send signals, cancel.
    Call,
    /// Approve, settle, answer, connect.
    Approve,
    /// Act for another principal, and see its runs.
    Impersonate,
    /// The runs of all principals, tokens, imports, purges, backups.
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
    /// If the file exists, move it aside first
    #[arg(long)]
    pub replace: bool,
}

/// A duration on the command line: `250ms`, `30s`, `5m`, `2h`, `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationArg(pub std::time::Duration);

impl std::str::FromStr for DurationArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("`{text}` is not a valid duration (expected for example `500ms`, `10s`, `5m`, `2h`, `3d`)");
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
    fn every_option_has_help() {
        fn check(command: &clap::Command, undocumented: &mut Vec<String>) {
            let hidden = |argument: &&clap::Arg| argument.is_hide_set();
            for argument in command.get_arguments().filter(|argument| !hidden(argument)) {
                if argument.get_help().is_none() {
                    undocumented.push(format!("{} {}", command.get_name(), argument.get_id()));
                }
            }
            for inner in command.get_subcommands() {
                if inner.get_about().is_none() {
                    undocumented.push(inner.get_name().to_owned());
                }
                check(inner, undocumented);
            }
        }
        let mut undocumented = Vec::new();
        check(&Cli::command(), &mut undocumented);
        assert_eq!(undocumented, Vec::<String>::new());
    }

    #[test]
    fn wait_takes_the_next_word_as_its_duration_if_unambiguous() {
        let check = |words: &[&str]| {
            let words = ["windlass", "call"].iter().chain(words).map(OsString::from).collect();
            match parse(words).map(|cli| cli.command) {
                Ok(Command::Call(args)) => Ok((args.tool, args.wait)),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        let five = Some(Some(DurationArg(Duration::from_secs(5))));
        let weather = |wait| Ok(("weather".to_owned(), wait));
        assert_eq!(check(&["weather", "--wait=5s"]), weather(five));
        assert_eq!(check(&["weather", "--wait", "5s"]), weather(five));
        assert_eq!(check(&["--wait", "5s", "weather"]), weather(five));
        assert_eq!(check(&["--wait", "weather"]), weather(Some(None)));
        assert_eq!(check(&["--wait", "5s"]), Ok(("5s".to_owned(), Some(None))), "a tool may have this name");
        let refused = check(&["weather", "--wait", "soon"]).unwrap_err();
        assert!(refused.contains("unexpected argument 'soon'"), "{refused}");
    }

    #[test]
    fn durations_are_parsed_and_invalid_ones_are_refused() {
        for (text, millis) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)]
        {
            assert_eq!(text.parse(), Ok(DurationArg(Duration::from_millis(millis))));
        }
        for text in ["", "5", "s", "5 s", "-1s", "1.5h", "99999999999999999999d", "18446744073709551615d"] {
            assert!(text.parse::<DurationArg>().unwrap_err().contains("is not a valid duration"), "{text}");
        }
    }
}
