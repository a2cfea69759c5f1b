//! The metadata of a tool. The runtime acts on every field; its documentation says how.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::narrate::Narration;
use crate::id::ToolId;
use crate::limits;
use crate::policy::{Expression, Facts, Unattended};

/// Whether an attempt may be repeated. On replay the stricter of the recorded and the current class applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The attempt changes nothing: it may be repeated freely, and may start before what it depends on is durable.
    Readonly,
    /// The attempt may be repeated with the same idempotency key.
    Idempotent,
    /// The attempt must not be repeated unless it is known that it did not take effect.
    #[default]
    Once,
}

/// Further properties of a tool that its callers should know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hints {
    /// May destroy data that cannot be restored. Never retried automatically; a `readonly` tool cannot have this hint.
    pub destructive: bool,
    /// Returns data from outside systems. The model sees the output marked as untrusted.
    pub open_world: bool,
    /// Attempts take minutes. The default attempt timeout is then an hour.
    pub long_running: bool,
    /// Computes without yielding. Attempts then run on threads of their own.
    pub cpu_bound: bool,
}

/// Which calls of a tool may run at the same time as others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// `Parallel` for readonly and durable tools, `Exclusive` for other atomic tools.
    #[default]
    Auto,
    /// Runs at the same time as any other call.
    Parallel,
    /// Runs alone in its session: waits for the attempts before it, and the ones after it wait for it.
    Exclusive,
    /// One call per key at a time, in order of arrival, across batches and runs.
    Keyed(KeyExpression),
}

/// An expression that computes the key a call queues under: a literal (`'printer'`), an argument (`args.account`), the
/// principal or the cause of the run (`caller`, `cause`), or several of them joined with `+`
/// (`'account-' + args.account`). With the feature `cel`, also any CEL expression on these that returns a string or a
/// number (`args.a == 1 ? 'x' : args.b`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyExpression {
    source: Arc<str>,
    form: KeyForm,
}

/// A parsed key expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyForm {
    Pieces(Vec<KeyPiece>),
    Expression(Expression),
    /// Does not parse; refused when the tool is registered.
    Bad(BadKeyExpression),
}

/// Characters that cannot be part of an argument's name.
fn not_in_names(c: char) -> bool {
    !c.is_alphanumeric() && !matches!(c, '_' | '-')
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPiece {
    Literal(String),
    Argument(Vec<String>),
    Caller,
    Cause,
}

impl KeyPiece {
    fn argument(word: &str) -> Result<Self, &'static str> {
        let mut steps = word.split('.').map(str::to_owned);
        if steps.next().as_deref() != Some("args") {
            return Err("it starts with neither a quote nor `args.`");
        }
        let steps: Vec<String> = steps.collect();
        if steps.is_empty() || steps.iter().any(String::is_empty) {
            return Err("the argument has no name");
        }
        match steps.iter().any(|step| step.contains(not_in_names)) {
            true => Err("an argument's name has only letters, digits, `_` and `-`"),
            false => Ok(Self::Argument(steps)),
        }
    }
}

/// A key expression that does not parse.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "key expression `{source_text}`: {problem}; write a literal ('printer'), an argument (args.account), `caller`, \
     `cause`, several joined with +, or, if the feature `cel` is enabled, a CEL expression on args, caller and cause \
     that returns a string"
)]
pub struct BadKeyExpression {
    source_text: String,
    problem: String,
}

impl KeyExpression {
    /// Parses an expression.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and which forms are allowed.
    pub fn parse(source: &str) -> Result<Self, BadKeyExpression> {
        let expression = Self::from(source);
        match expression.check() {
            Ok(()) => Ok(expression),
            Err(bad) => Err(bad.clone()),
        }
    }

    /// The parse error, if the expression does not parse. `From<&str>` accepts such an expression; the tool is then
    /// refused at registration.
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
                let piece = match word.trim() {
                    "caller" => KeyPiece::Caller,
                    "cause" => KeyPiece::Cause,
                    argument => KeyPiece::argument(argument).map_err(bad)?,
                };
                (piece, after)
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

    /// The key of a call. A missing argument, caller or cause counts as `null`. If the expression fails or returns something
    /// that cannot be a key, its source text is the key: all such calls then queue behind each other, which is safe.
    pub fn evaluate(&self, facts: &Facts<'_>) -> String {
        let pieces = match &self.form {
            KeyForm::Pieces(pieces) => pieces,
            KeyForm::Expression(expression) => {
                return expression.text(facts).unwrap_or_else(|_| self.source.to_string());
            }
            KeyForm::Bad(_) => return self.source.to_string(),
        };
        let mut key = String::new();
        for piece in pieces {
            match piece {
                KeyPiece::Literal(text) => key.push_str(text),
                KeyPiece::Caller => key.push_str(facts.caller.unwrap_or("null")),
                KeyPiece::Cause => key.push_str(facts.cause.unwrap_or("null")),
                KeyPiece::Argument(steps) => {
                    match steps.iter().try_fold(facts.args, |value, step| value.get(step)).unwrap_or(&Value::Null) {
                        Value::String(text) => key.push_str(text),
                        other => key.push_str(&other.to_string()),
                    }
                }
            }
        }
        key
    }
}

/// Accepts any text; [`KeyExpression::check`] tells whether it parses.
impl From<&str> for KeyExpression {
    fn from(source: &str) -> Self {
        let form = Self::pieces(source).map(KeyForm::Pieces).unwrap_or_else(|bad| {
            let expression = Expression::from(source);
            if cfg!(feature = "cel") && expression.can_be_key() {
                KeyForm::Expression(expression)
            } else {
                KeyForm::Bad(bad)
            }
        });
        Self { source: source.into(), form }
    }
}

/// Automatic repetition of failed attempts. Without it, an attempt is repeated only if its failure says that this is
/// safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// The most attempts, the first included.
    pub attempts: u32,
    /// Delay after the first failure. It doubles with each further one, with jitter.
    pub base: Duration,
    /// Longest delay, unless the failure asks for a longer one.
    pub cap: Duration,
}

impl Retry {
    /// At most `attempts`, with delays of half a second and more.
    pub const fn attempts(attempts: u32) -> Self {
        Self { attempts, base: Duration::from_millis(500), cap: limits::RETRY_DELAY_CAP }
    }
}

/// Limits on the calls and attempts of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long one attempt may run; `None` applies a default.
    pub timeout: Option<Duration>,
    /// How long a call may take in all, including queueing and retries.
    pub deadline: Option<Duration>,
    /// How long an attempt that was asked to stop may still run, instead of [`limits::CANCEL_GRACE`].
    pub grace: Option<Duration>,
    /// An attempt that has not called `heartbeat` for this long counts as timed out.
    pub heartbeat: Option<Duration>,
    /// How failed attempts are repeated. For a `once` tool it bounds only the failures that say that they left nothing
    /// behind ([`ToolError::retryable`](crate::tool::ToolError::retryable)); its other failures are never repeated.
    pub retry: Option<Retry>,
    /// The most attempts of this tool that run at once in this runtime.
    pub in_flight: Option<usize>,
    /// The most attempts of this tool that start per second in this runtime; further ones wait.
    pub per_second: Option<u32>,
    /// How many bytes of text the model is shown of one output, instead of [`limits::OUTPUT_BUDGET`].
    pub output_budget: Option<usize>,
    /// How many identical calls with identical results may follow each other, in one body or one session, before the
    /// next one is refused, instead of [`limits::LOOP_LIMIT`].
    pub loop_limit: Option<u32>,
    /// How deeply its calls may be nested in a run, instead of [`limits::CALL_DEPTH`].
    pub max_depth: Option<usize>,
}

/// Whether a person must approve a call before it is attempted. Fails closed: if no person can approve, the call is
/// denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// No approval needed.
    #[default]
    Never,
    /// Every call needs approval.
    Always,
    /// Calls for which the expression is true need approval, and so do calls for which it cannot be evaluated. An
    /// expression that does not compile is refused at registration: `Approval::When("args.cents > 10000".into())`.
    When(Expression),
}

/// What happens to a doubt that neither a pending message nor the tool's `reconcile` settles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDoubt {
    /// A person settles it.
    #[default]
    Ask,
    /// The body receives an `in_doubt` error.
    Fail,
    /// The attempt is repeated, for tools for which a second effect is better than none.
    Rerun,
}

/// Whether a listing of a large toolbox may show the tool as a stub, without its schemas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deferral {
    /// As a stub if the toolbox is large.
    #[default]
    Auto,
    /// Always in full.
    Never,
    /// Always a stub.
    Always,
}

/// How a tool is described and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The title for people; the name if absent.
    pub title: Option<String>,
    /// The description for the model.
    pub description: String,
    /// The tool's own version, recorded with every call.
    pub version: Option<Arc<str>>,
    /// Tags that select tools in listings.
    pub tags: Vec<String>,
    /// Whether listings may show it as a stub.
    pub deferral: Deferral,
    /// Lines for people in the log of the run, when a call starts and when it ends.
    pub narration: Narration,
}

/// The metadata of a tool: everything except its schemas and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSpec {
    /// Stable identity, by which journals refer to the tool. The name, unless set.
    pub id: ToolId,
    /// Earlier ids that journals may still contain.
    pub aliases: Vec<ToolId>,
    /// The name that callers and models use.
    pub name: Arc<str>,
    /// Descriptions for models and people.
    pub about: About,
    /// The effect class of its attempts. Ignored for a durable body, whose steps and calls have their own.
    pub effect: Effect,
    /// Further properties that a caller should know.
    pub hints: Hints,
    /// Conditions that a call must meet before its attempt.
    pub guards: Guards,
    /// Limits on its calls and attempts.
    pub limits: Limits,
}

/// The conditions that a call must meet before its attempt starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    /// Whether a person must approve it.
    pub approval: Approval,
    /// Which calls may run at the same time.
    pub concurrency: Concurrency,
    /// The provider that the session must be connected to. Without the connection the call fails with
    /// `connection_required`.
    pub connection: Option<Arc<str>>,
    /// What happens to a doubt that nothing else settles; `None` uses the runtime's policy.
    pub on_doubt: Option<OnDoubt>,
    /// How long a call waits for its approval, instead of [`limits::APPROVAL_WITHIN`].
    pub approval_within: Option<Duration>,
    /// What happens to a call that needs approval in a runtime without an approver; `None` uses the runtime's policy.
    pub unattended: Option<Unattended>,
    /// How long an approval is valid once given, instead of [`limits::GRANT_VALID`].
    pub grant_valid: Option<Duration>,
    /// Whether it may be started without a waiting caller.
    pub background: Background,
    /// What happens to its runs when their owner dies.
    pub recovery: Recovery,
    /// The target whose circuit breaker its attempts go through.
    pub breaker: Breaker,
}

/// The circuit breaker of a tool. Tools with the same target share one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Breaker {
    /// The host and port of a tool that makes HTTP requests; none for other tools.
    #[default]
    Auto,
    /// None.
    Off,
    /// The breaker of this target.
    Target(Arc<str>),
}

impl Breaker {
    /// The target, if it is known.
    pub fn target(&self) -> Option<&Arc<str>> {
        match self {
            Self::Target(target) => Some(target),
            Self::Auto | Self::Off => None,
        }
    }
}

/// What happens to a tool's runs when the process that owns them dies. For runs that another system completes, see
/// [`Tool::external`](super::Tool::external).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Another worker continues them.
    #[default]
    Rerun,
    /// They end as lost, because their work exists only in the memory of their owner.
    OwnerBound,
}

/// Whether a tool may be started without a waiting caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// It may be started in the background.
    #[default]
    Allowed,
    /// It must be called and awaited.
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
    fn l28_key_expressions_evaluate() {
        let args = json!({"account": "a1", "nested": {"n": 7}});
        let facts = Facts { caller: Some("ada"), ..Facts::of_args(&args) };
        for (source, key) in [
            ("'printer'", "printer"),
            ("args.account", "a1"),
            ("args.nested.n", "7"),
            ("'acc-' + args.account + '+'", "acc-a1+"),
            ("args.missing", "null"),
            ("caller", "ada"),
            ("'of ' + caller + '/' + args.account", "of ada/a1"),
            ("caller + cause", "adanull"),
        ] {
            assert_eq!(KeyExpression::parse(source).unwrap().evaluate(&facts), key, "{source}");
        }
    }

    #[cfg(feature = "cel")]
    #[test]
    fn l28_other_key_expressions_are_cel() {
        let args = json!({"a": 2, "b": "bee", "list": [1]});
        let facts = Facts { cause: Some("turn 7"), ..Facts::of_args(&args) };
        for (source, key) in [
            ("args.a == 1 ? 'x' : args.b", "bee"),
            ("string(args.a) + '/' + args.b", "2/bee"),
            ("args.list[0]", "1"),
            ("caller == null ? cause : caller", "turn 7"),
            ("has(args.c) ? args.c : 'none'", "none"),
            // The result cannot be a key: all such calls share one.
            ("args.missing + ''", "null"),
            ("args.list.map(x, x)", "args.list.map(x, x)"),
            ("(args.missing)", "(args.missing)"),
        ] {
            assert_eq!(KeyExpression::parse(source).unwrap().evaluate(&facts), key, "{source}");
        }
        let error = KeyExpression::parse("session.id").unwrap_err().to_string();
        assert!(error.contains("neither"), "a key depends on nothing that changes: {error}");
    }

    #[test]
    fn bad_key_expressions_are_reported_with_their_text() {
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
