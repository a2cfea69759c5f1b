//! What a tool says about itself. Every field is acted on by the runtime; the doc of each says how.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::narrate::Narration;
use crate::id::ToolId;
use crate::limits;
use crate::policy::{Expression, Facts, Unattended};

/// What repeating an attempt means. On replay the stricter of the recorded and the live class wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing: may be repeated freely and may run before what it depends on is durable.
    Readonly,
    /// May be repeated with the same idempotency key.
    Idempotent,
    /// Must not be repeated unless it is known not to have happened.
    #[default]
    Once,
}

/// What a caller should know about a tool besides its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hints {
    /// May destroy what cannot be restored: never retried automatically, and a `readonly` tool may not claim it.
    pub destructive: bool,
    /// Talks to the world outside: what it returns is marked untrusted in what the model sees.
    pub open_world: bool,
    /// Attempts take minutes: the default attempt timeout is an hour.
    pub long_running: bool,
    /// Computes without yielding: attempts run on threads of their own.
    pub cpu_bound: bool,
}

/// Which calls may overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Readonly and durable tools are parallel, other atomic tools exclusive.
    #[default]
    Auto,
    /// Overlaps with everything.
    Parallel,
    /// Alone in its session: waits for the attempts before it and holds back the ones after it.
    Exclusive,
    /// One at a time per key, first come first served, across batches and runs.
    Keyed(KeyExpression),
}

/// Computes the key a call queues under from its arguments: a literal (`'printer'`), an argument (`args.account`), or
/// several pieces joined with `+` (`'account-' + args.account`). With the feature `cel`, any other CEL expression on `args`
/// that gives a text or a number (`args.a == 1 ? 'x' : args.b`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyExpression {
    source: Arc<str>,
    form: KeyForm,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyForm {
    Pieces(Vec<KeyPiece>),
    Expression(Expression),
    /// Refused when the tool is registered.
    Bad(BadKeyExpression),
}

/// What makes a piece of a key more than an argument's name.
fn not_in_names(c: char) -> bool {
    !c.is_alphanumeric() && !matches!(c, '_' | '-')
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPiece {
    Literal(String),
    Argument(Vec<String>),
}

/// A key expression that does not parse.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "key expression `{source_text}`: {problem}; write a literal ('printer'), an argument (args.account), pieces joined with +, \
     or, where the build has CEL, an expression on args that gives a text"
)]
pub struct BadKeyExpression {
    source_text: String,
    problem: String,
}

impl KeyExpression {
    /// Parses an expression.
    pub fn parse(source: &str) -> Result<Self, BadKeyExpression> {
        let expression = Self::from(source);
        match expression.check() {
            Ok(()) => Ok(expression),
            Err(bad) => Err(bad.clone()),
        }
    }

    /// What is wrong with it, if anything. One that is wrong can be kept until the tool is registered.
    pub fn check(&self) -> Result<(), &BadKeyExpression> {
        match &self.form {
            KeyForm::Bad(bad) => Err(bad),
            _ => Ok(()),
        }
    }

    fn pieces(source: &str) -> Result<Vec<KeyPiece>, BadKeyExpression> {
        let bad = |problem: &str| BadKeyExpression { source_text: source.to_owned(), problem: problem.to_owned() };
        let mut pieces = Vec::new();
        let mut rest = source.trim();
        loop {
            let (piece, after) = if let Some(open) = rest.strip_prefix('\'') {
                let (text, after) = open.split_once('\'').ok_or_else(|| bad("the quote is not closed"))?;
                (KeyPiece::Literal(text.to_owned()), after)
            } else {
                let end = rest.find('+').unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                let mut steps = word.trim().split('.').map(str::to_owned);
                if steps.next().as_deref() != Some("args") {
                    return Err(bad("it starts with neither a quote nor `args.`"));
                }
                let steps: Vec<String> = steps.collect();
                if steps.is_empty() || steps.iter().any(String::is_empty) {
                    return Err(bad("the argument has no name"));
                }
                if steps.iter().any(|step| step.contains(not_in_names)) {
                    return Err(bad("an argument's name has only letters, digits, `_` and `-`"));
                }
                (KeyPiece::Argument(steps), after)
            };
            pieces.push(piece);
            rest = after.trim_start();
            if rest.is_empty() {
                return Ok(pieces);
            }
            rest = rest.strip_prefix('+').ok_or_else(|| bad("pieces are joined with `+`"))?.trim_start();
        }
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The key for these arguments. An argument that is not there counts as `null`, and calls for which the expression
    /// gives nothing that can be a key share its text: such calls have one key, which is the safe side.
    pub fn evaluate(&self, args: &Value) -> String {
        let pieces = match &self.form {
            KeyForm::Pieces(pieces) => pieces,
            KeyForm::Expression(expression) => {
                return expression.text(&Facts::of_args(args)).unwrap_or_else(|_| self.source.to_string());
            }
            KeyForm::Bad(_) => return self.source.to_string(),
        };
        let mut key = String::new();
        for piece in pieces {
            match piece {
                KeyPiece::Literal(text) => key.push_str(text),
                KeyPiece::Argument(steps) => {
                    match steps.iter().try_fold(args, |value, step| value.get(step)).unwrap_or(&Value::Null) {
                        Value::String(text) => key.push_str(text),
                        other => key.push_str(&other.to_string()),
                    }
                }
            }
        }
        key
    }
}

/// Parses what may be wrong; see [`KeyExpression::check`].
impl From<&str> for KeyExpression {
    fn from(source: &str) -> Self {
        let form = Self::pieces(source).map(KeyForm::Pieces).unwrap_or_else(|bad| {
            let expression = Expression::from(source);
            if cfg!(feature = "cel") && expression.sees_only_args() {
                KeyForm::Expression(expression)
            } else {
                KeyForm::Bad(bad)
            }
        });
        Self { source: source.into(), form }
    }
}

/// Automatic repetition of failed attempts. Off unless the tool sets it or a failure says it is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Attempts in all, the first included.
    pub attempts: u32,
    /// Delay after the first failure; doubles with each further one, with jitter.
    pub base: Duration,
    /// Longest delay, unless the failure asks for more.
    pub cap: Duration,
}

impl Retry {
    /// `attempts` in all, with delays from half a second up.
    pub const fn attempts(attempts: u32) -> Self {
        Self { attempts, base: Duration::from_millis(500), cap: limits::RETRY_DELAY_CAP }
    }
}

/// Bounds on a tool's calls and attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Longest one attempt may run; a default applies where this is `None`.
    pub timeout: Option<Duration>,
    /// Longest a call may take in all, queueing and retries included.
    pub deadline: Option<Duration>,
    /// How long an attempt that was asked to stop may still take, instead of [`limits::CANCEL_GRACE`].
    pub grace: Option<Duration>,
    /// An attempt that has not called `heartbeat` for this long counts as timed out.
    pub heartbeat: Option<Duration>,
    /// Repetition of failed attempts.
    pub retry: Option<Retry>,
    /// Most attempts of this tool in flight at once in this runtime.
    pub in_flight: Option<usize>,
    /// Most attempts of this tool started per second in this runtime; the rest wait.
    pub per_second: Option<u32>,
    /// Bytes of text the model is shown of one output, instead of [`limits::OUTPUT_BUDGET`].
    pub output_budget: Option<usize>,
    /// Identical calls with identical results in a row, of one body or handed in for one session, before the next is refused,
    /// instead of [`limits::LOOP_LIMIT`].
    pub loop_limit: Option<u32>,
    /// How deep in a run its calls may stand, instead of [`limits::CALL_DEPTH`].
    pub max_depth: Option<usize>,
}

/// Whether a person must agree before an attempt. Fails closed: a runtime in which nobody can approve denies the call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// No approval needed.
    #[default]
    Never,
    /// Every call needs approval.
    Always,
    /// Calls for which the expression holds need approval, and those for which that cannot be told. One that does not
    /// compile is refused when the tool is registered: `Approval::When("args.cents > 10000".into())`.
    When(Expression),
}

/// What happens to a doubt that neither the mailbox nor the tool's `reconcile` settles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDoubt {
    /// A person settles it.
    #[default]
    Ask,
    /// The body gets an `in_doubt` error.
    Fail,
    /// The attempt is repeated: for tools whose owner prefers twice to never.
    Rerun,
}

/// Whether large toolboxes may list the tool as a stub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deferral {
    /// A stub where the toolbox is large.
    #[default]
    Auto,
    /// Always in full.
    Never,
    /// Always a stub.
    Always,
}

/// Who a tool is: shown to models and people, used to find it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// For people; the name where absent.
    pub title: Option<String>,
    /// For the model.
    pub description: String,
    /// The tool's own version, kept with every call.
    pub version: Option<Arc<str>>,
    /// Selects tools in listings.
    pub tags: Vec<String>,
    /// Whether it may be listed as a stub.
    pub deferral: Deferral,
    /// What people are told while it runs: a line in the log of the run when a call starts and ends.
    pub narration: Narration,
}

/// The cheap half of a tool: everything but its schemas and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSpec {
    /// Stable identity; the name unless set.
    pub id: ToolId,
    /// Earlier ids under which journals may know this tool.
    pub aliases: Vec<ToolId>,
    /// What models call it.
    pub name: Arc<str>,
    /// For models and people.
    pub about: About,
    /// Effect class of its attempts. Meaningless for a durable body, whose steps and calls have their own.
    pub effect: Effect,
    /// What a caller should know.
    pub hints: Hints,
    /// What guards a call.
    pub guards: Guards,
    /// Bounds.
    pub limits: Limits,
}

/// What stands between a call and its attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    /// Whether a person must agree first.
    pub approval: Approval,
    /// Which calls may overlap.
    pub concurrency: Concurrency,
    /// The provider the session must be connected to; without it the call ends `connection_required`.
    pub connection: Option<Arc<str>>,
    /// What happens to a doubt nobody else settles; `None` leaves it to the runtime's policy.
    pub on_doubt: Option<OnDoubt>,
    /// How long a call waits for its approval, instead of [`limits::APPROVAL_WITHIN`].
    pub approval_within: Option<Duration>,
    /// What becomes of a call that needs approval where nobody attends; `None` leaves it to the runtime's policy.
    pub unattended: Option<Unattended>,
    /// How long a grant is valid once given, instead of [`limits::GRANT_VALID`].
    pub grant_valid: Option<Duration>,
    /// Whether it may be started without anyone waiting for it.
    pub background: Background,
    /// What becomes of its runs when their owner dies.
    pub recovery: Recovery,
}

/// What becomes of a tool's runs when the process that owns them dies. A run that something outside finishes is one of a
/// tool that answers later: see [`Tool::external`](super::Tool::external).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Another worker goes on with them.
    #[default]
    Rerun,
    /// They end as lost: what they work on is in the memory of their owner.
    OwnerBound,
}

/// Whether a tool may be started without anyone waiting for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// It may.
    #[default]
    Allowed,
    /// It must be called and waited for.
    Never,
}

impl ToolSpec {
    /// A spec with defaults: id = name, effect `once`, no approval, automatic concurrency.
    pub fn new(name: impl Into<Arc<str>>, description: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            id: ToolId::from(name.clone()),
            aliases: Vec::new(),
            name,
            about: About { description: description.into(), ..About::default() },
            effect: Effect::default(),
            hints: Hints::default(),
            guards: Guards::default(),
            limits: Limits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn key_expressions_evaluate() {
        let args = json!({"account": "a1", "nested": {"n": 7}});
        for (source, key) in [
            ("'printer'", "printer"),
            ("args.account", "a1"),
            ("args.nested.n", "7"),
            ("'acc-' + args.account + '+'", "acc-a1+"),
            ("args.missing", "null"),
        ] {
            assert_eq!(KeyExpression::parse(source).unwrap().evaluate(&args), key, "{source}");
        }
    }

    #[cfg(feature = "cel")]
    #[test]
    fn keys_that_are_no_pieces_are_cel() {
        let args = json!({"a": 2, "b": "bee", "list": [1]});
        for (source, key) in [
            ("args.a == 1 ? 'x' : args.b", "bee"),
            ("string(args.a) + '/' + args.b", "2/bee"),
            ("args.list[0]", "1"),
            ("has(args.c) ? args.c : 'none'", "none"),
            // Nothing that can be a key: all such calls share one.
            ("args.missing + ''", "null"),
            ("args.list.map(x, x)", "args.list.map(x, x)"),
            ("(args.missing)", "(args.missing)"),
        ] {
            assert_eq!(KeyExpression::parse(source).unwrap().evaluate(&args), key, "{source}");
        }
        let error = KeyExpression::parse("session.id").unwrap_err().to_string();
        assert!(error.contains("neither"), "a key depends on arguments alone: {error}");
    }

    #[test]
    fn bad_key_expressions_are_named() {
        for (source, word) in [
            ("", "neither"),
            ("'open", "not closed"),
            ("account", "neither"),
            ("args.", "no name"),
            ("'a' 'b'", "joined"),
            ("args.a b", "letters"),
        ] {
            let error = KeyExpression::parse(source).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(source), "{source}: {error}");
        }
    }
}
