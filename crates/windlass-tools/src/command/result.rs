//! Turns the output of a command into a value.

use serde::Deserialize;
use serde_json::Value;
use windlass::tool::Reconciled;
use windlass::{Content, Effect, Output as ToolOutput, ToolError, ToolResult};

use super::{Command, Exit, Output, exits};
use crate::sandbox::{Level, Sandbox};

/// How a command ended, and its output.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) struct CommandEnd {
    /// Its exit code, or the signal that ended it.
    pub(super) code: Result<i32, i32>,
    pub(super) stdout: Vec<u8>,
    /// Bytes printed to standard output, including those beyond the limit.
    pub(super) printed: u64,
    /// The end of its standard error.
    pub(super) stderr_tail: String,
    /// Why we killed it, if we did.
    pub(super) stopped: Option<String>,
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) fn output(command: &Command, end: &CommandEnd, effect: Effect) -> ToolResult<ToolOutput> {
    let how = check(command, end, effect)?;
    let name = name_of(command);
    let value = read(command.output, &printed(command, end))
        .map_err(|problem| ToolError::failed(format!("`{name}` {how}, but its output is not JSON: {problem}")))?;
    if command.output != Output::Content {
        return Ok(ToolOutput::value(value));
    }
    let blocks: Blocks = serde_json::from_value(value).map_err(|problem| {
        let wanted = r#"{"value"?: …, "content": […]}"#;
        ToolError::failed(format!("`{name}` {how}, but its output is not {wanted}: {problem}"))
    })?;
    Ok(blocks.content.into_iter().fold(ToolOutput::value(blocks.value), ToolOutput::with))
}

/// An output of content blocks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocks {
    #[serde(default)]
    value: Value,
    content: Vec<Content>,
}

fn name_of(command: &Command) -> &str {
    command.argv.first().map_or("the command", String::as_str)
}

/// Checks that a command succeeded and that its output is complete. Returns how it ended.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) fn check(command: &Command, end: &CommandEnd, effect: Effect) -> ToolResult<String> {
    let name = name_of(command);
    let of_signal = |signal| command.on_signal.unwrap_or_else(|| Exit::of_signal(signal, effect));
    let (exit, how) = match (&end.stopped, end.code) {
        (Some(why), _) => (Exit::of_limit(effect), why.clone()),
        (None, Ok(code)) => {
            let default = || exits::signal_of(code).map_or_else(|| Exit::of(code), of_signal);
            let exit = command.exits.get(&code).copied().unwrap_or_else(default);
            let signal = exits::signal_of(code).map(signal_name);
            let meaning = signal.map(|signal| format!(", which means {signal}")).unwrap_or_default();
            (exit, format!("ended with code {code}{meaning}"))
        }
        (None, Err(signal)) => (of_signal(signal), format!("was ended by {}", signal_name(signal))),
    };
    if let Some(said) = SaidError::of(command, end).filter(|_| exit.is_known_failure()) {
        return Err(said.error(exit));
    }
    let tail = end.stderr_tail.trim();
    let mut message = if tail.is_empty() { format!("`{name}` {how}") } else { format!("`{name}` {how}: {tail}") };
    if exit != Exit::Ok && end.stopped.is_none() {
        message.extend(command.hidden_hint(tail).or_else(|| sandbox_hint(&command.sandbox, end.code, tail)));
    }
    if let Some(error) = exit.error(message) {
        return Err(error);
    }
    if end.printed > end.stdout.len() as u64 {
        return Err(ToolError::failed(format!(
            "`{name}` {how} and printed {} bytes, more than its limit of {} (max_output); the output was discarded",
            end.printed, command.max_output
        )));
    }
    Ok(how)
}

/// The standard output, without secrets.
fn printed(command: &Command, end: &CommandEnd) -> String {
    let text = String::from_utf8_lossy(&end.stdout);
    command.redact.as_ref().map_or_else(|| text.to_string(), |redact| redact(&text))
}

/// What a command that fails may print to standard output: `{"error": {"message", "code"?, "data"?}}` or
/// `{"error": {"connection": PROVIDER}}`. Anything else it prints is ignored, as the output of a failed command is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaidError {
    error: SaidDetails,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SaidDetails {
    Connection(NeededConnection),
    Failure(SaidFailure),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeededConnection {
    connection: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaidFailure {
    message: String,
    code: Option<String>,
    data: Option<Value>,
}

impl SaidError {
    fn of(command: &Command, end: &CommandEnd) -> Option<Self> {
        let is_whole = end.printed == end.stdout.len() as u64;
        is_whole.then(|| serde_json::from_str(&printed(command, end)).ok()).flatten()
    }

    /// The exit code decides about the kind.
    fn error(self, exit: Exit) -> ToolError {
        let SaidFailure { message, code, data } = match self.error {
            SaidDetails::Connection(NeededConnection { connection }) => {
                return ToolError::connection_required(connection);
            }
            SaidDetails::Failure(failure) => failure,
        };
        let mut error = exit.error(message.clone()).unwrap_or_else(|| ToolError::failed(message));
        if let Some(code) = code {
            error = error.with_code(code);
        }
        if let Some(data) = data {
            error = error.with_data(data);
        }
        error
    }
}

/// A hint for a failure that looks as if the sandbox caused it. The cause may be another: a command gets the same error
/// from the sandbox as from a file without permission.
fn sandbox_hint(sandbox: &Sandbox, code: Result<i32, i32>, stderr: &str) -> Option<String> {
    if sandbox.level == Level::Off {
        return None;
    }
    let stderr = stderr.to_lowercase();
    let mentions = |signs: &[&str]| signs.iter().any(|sign| stderr.contains(sign));
    let network = !sandbox.network && mentions(&NETWORK);
    let denied = mentions(&DENIED) || matches!(code, Ok(77 | 126));
    let keys = match (network, denied) {
        (false, false) => return None,
        (true, _) => "`sandbox.network = true` allows the network",
        (false, true) if sandbox.network => "`sandbox.read` and `sandbox.write` allow files outside of its folder",
        (false, true) => {
            "`sandbox.read` and `sandbox.write` allow files outside of its folder, `sandbox.network = true` allows the \
             network"
        }
    };
    Some(format!(" (it runs in a sandbox, which may be the cause: {keys})"))
}

/// What commands print, in lower case, when an access is denied.
const DENIED: [&str; 6] =
    ["permission denied", "operation not permitted", "permissionerror", "access denied", "eacces", "eperm"];

/// What they print when the network is not available.
const NETWORK: [&str; 8] = [
    "socket",
    "could not resolve",
    "couldn't resolve",
    "name resolution",
    "network is unreachable",
    "getaddrinfo",
    "can't connect",
    "failed to connect",
];

fn read(output: Output, text: &str) -> Result<Value, serde_json::Error> {
    let plain = || Value::String(text.strip_suffix('\n').unwrap_or(text).to_owned());
    match output {
        Output::Json | Output::Content => serde_json::from_str(text),
        Output::Text => Ok(plain()),
        Output::Auto if text.trim().is_empty() => Ok(Value::Null),
        Output::Auto => Ok(serde_json::from_str(text).unwrap_or_else(|_| plain())),
    }
}

/// The name of a well-known signal, otherwise its number.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL (killed from outside, or out of memory)",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU (its limit of processor time)",
        25 => "SIGXFSZ (its limit of file size)",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

/// The answer of a command that reconciles.
pub(super) fn reconciled(answer: Value) -> ToolResult<Reconciled<Value>> {
    let bad = || {
        let wanted = r#"{"happened": VALUE}, {"did_not_happen": true} or {"unknown": true}"#;
        ToolError::failed(format!("a reconcile command must print {wanted}, but printed {answer:.200}"))
    };
    let Value::Object(fields) = &answer else { return Err(bad()) };
    let mut fields = fields.iter();
    match (fields.next(), fields.next()) {
        (Some((name, value)), None) => match (name.as_str(), value) {
            ("happened", value) => Ok(Reconciled::Happened(value.clone())),
            ("did_not_happen", Value::Bool(true)) => Ok(Reconciled::DidNotHappen),
            ("unknown", Value::Bool(true)) => Ok(Reconciled::Unknown),
            _ => Err(bad()),
        },
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sandbox::Launcher;

    fn end(stdout: &str, code: Result<i32, i32>) -> CommandEnd {
        let (stdout, stderr_tail) = (stdout.as_bytes().to_vec(), "oops\n".to_owned());
        CommandEnd { code, printed: stdout.len() as u64, stdout, stderr_tail, stopped: None }
    }

    fn value(command: &Command, end: &CommandEnd, effect: Effect) -> ToolResult<Value> {
        output(command, end, effect).map(|output| output.value)
    }

    fn command(output: Output) -> Command {
        Command { output, ..Command::new(["prog"], Launcher::new(["l"])) }
    }

    #[test]
    fn output_is_parsed_as_declared() {
        for (output, text, expected) in [
            (Output::Auto, "{\"a\": 1}\n", json!({"a": 1})),
            (Output::Auto, "7", json!(7)),
            (Output::Auto, "seven\n", json!("seven")),
            (Output::Auto, " \n", json!(null)),
            (Output::Auto, "{\"a\": 1} {}", json!("{\"a\": 1} {}")),
            (Output::Text, "7\n\n", json!("7\n")),
            (Output::Text, "", json!("")),
            (Output::Json, "[1]", json!([1])),
        ] {
            assert_eq!(value(&command(output), &end(text, Ok(0)), Effect::Readonly).unwrap(), expected, "{text}");
        }
        let error = value(&command(Output::Json), &end("seven", Ok(0)), Effect::Readonly).unwrap_err();
        assert!(error.to_string().contains("not JSON"), "{error}");
        let lossy = CommandEnd { stdout: vec![b'a', 0xff], printed: 2, ..end("", Ok(0)) };
        assert_eq!(value(&command(Output::Text), &lossy, Effect::Readonly).unwrap(), json!("a\u{fffd}"));
    }

    #[test]
    fn e04_a_command_prints_content_blocks() {
        let text = r#"{"value": {"pages": 1}, "content": [{"type": "text", "text": "one page"},
            {"type": "image", "media_type": "image/png", "name": "p.png", "data": "iVBORw=="},
            {"type": "audio", "media_type": "audio/wav", "data": "AAA="}]}"#;
        let made = output(&command(Output::Content), &end(text, Ok(0)), Effect::Once).unwrap();
        assert_eq!(made.value, json!({"pages": 1}));
        let image = windlass::Artifact::new("image/png", [137u8, 80, 78, 71].as_slice()).named("p.png");
        let audio = windlass::Artifact::new("audio/wav", [0u8, 0].as_slice());
        assert_eq!(made.content, [Content::text("one page"), Content::Image(image), Content::Audio(audio)]);
        for bad in ["{}", r#"{"content": [{"type": "picture"}]}"#, r#"{"content": [], "more": 1}"#, "no JSON"] {
            let error = output(&command(Output::Content), &end(bad, Ok(0)), Effect::Once).unwrap_err().to_string();
            assert!(error.contains("but its output is not "), "{bad}: {error}");
        }
    }

    #[test]
    fn the_exit_code_decides_the_error_kind_and_stderr_is_in_the_message() {
        for (code, kind, word) in [
            (Ok(3), "failed", "code 3: oops"),
            (Ok(65), "invalid_arguments", "oops"),
            (Ok(77), "denied", "code 77"),
            (Err(11), "failed", "SIGSEGV"),
            (Err(40), "failed", "signal 40"),
            (Ok(143), "failed", "SIGTERM"),
        ] {
            let error = value(&command(Output::Auto), &end("{}", code), Effect::Readonly).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
        let mut own = command(Output::Auto);
        own.exits = [(1, Exit::Ok), (0, Exit::Denied)].into();
        own.on_signal = Some(Exit::Denied);
        assert_eq!(value(&own, &end("none", Ok(1)), Effect::Once).unwrap(), json!("none"));
        assert_eq!(value(&own, &end("", Ok(0)), Effect::Once).unwrap_err().kind(), "denied");
        for death in [Err(9), Ok(137)] {
            assert_eq!(value(&own, &end("", death), Effect::Once).unwrap_err().kind(), "denied");
            let error = value(&command(Output::Auto), &end("", death), Effect::Once).unwrap_err();
            assert!(error.kind() == "in_doubt" && error.to_string().contains("SIGKILL"), "{error}");
        }
    }

    #[test]
    fn e29_a_failing_command_prints_its_error_as_json() {
        let mut own = command(Output::Auto);
        own.redact = Some(std::sync::Arc::new(|text: &str| text.replace("hunter2", "***")));
        let failed = |text: &str, code| value(&own, &end(text, code), Effect::Once).unwrap_err();
        let said =
            r#"{"error": {"message": "sold out hunter2", "code": "sold_out", "data": {"left": ["hunter2", 0]}}}"#;
        let error = failed(said, Ok(3));
        assert_eq!(error.to_string(), "failed: sold out ***");
        assert_eq!((error.code(), error.data()), (Some("sold_out"), Some(&json!({"left": ["***", 0]}))));
        assert!(matches!(failed(said, Ok(75)), ToolError::Failed { retry: windlass::tool::Retryable::Yes, .. }));
        let denied = failed(said, Ok(77));
        assert_eq!((denied.to_string().as_str(), denied.data()), ("denied: sold out ***", None));
        for other in ["", "{}", r#"{"error": "no"}"#, r#"{"error": {"message": "m", "cod": 1}}"#, r#"{"error": {}}"#] {
            let error = failed(other, Ok(3));
            assert!(error.to_string().ends_with("code 3: oops") && error.data().is_none(), "{other}: {error}");
        }
        assert_eq!(value(&own, &end(said, Ok(0)), Effect::Once).unwrap()["error"]["code"], "sold_out", "it succeeded");
        assert_eq!(failed(said, Err(9)).kind(), "in_doubt", "a killed command does not vouch for what it printed");
        let cut = CommandEnd { printed: 999, ..end(said, Ok(3)) };
        assert_eq!(value(&own, &cut, Effect::Once).unwrap_err().data(), None, "part of an output is no error");
    }

    #[test]
    fn e06_a_failing_command_names_the_connection_it_needs() {
        let said = r#"{"error": {"connection": "github"}}"#;
        for code in [1, 69, 77] {
            let error = value(&command(Output::Auto), &end(said, Ok(code)), Effect::Once).unwrap_err();
            assert!(matches!(error, ToolError::ConnectionRequired { provider } if provider == "github"));
        }
        assert_eq!(value(&command(Output::Auto), &end(said, Err(9)), Effect::Once).unwrap_err().kind(), "in_doubt");
    }

    #[test]
    fn e26_a_failure_that_looks_like_the_sandbox_names_the_keys_that_allow_it() {
        let check = |sandbox: &Sandbox, code: i32, stderr: &str, expected: &[&str], unexpected: &[&str]| {
            let command = Command { sandbox: sandbox.clone(), ..command(Output::Auto) };
            let end = CommandEnd { stderr_tail: stderr.to_owned(), ..end("", Ok(code)) };
            let error = value(&command, &end, Effect::Readonly).unwrap_err().to_string();
            expected.iter().for_each(|word| assert!(error.contains(word), "{word} is not in {error}"));
            unexpected.iter().for_each(|word| assert!(!error.contains(word), "{word} is in {error}"));
        };
        let (shut, open) = (Sandbox::default(), Sandbox { network: true, ..Sandbox::default() });
        let (files, network) = ("`sandbox.read` and", "`sandbox.network = true`");
        check(&shut, 1, "cat: /etc/shadow: Permission denied", &["may be the cause", files, network], &[]);
        check(&open, 1, "PermissionError: [Errno 13]", &[files], &[network]);
        check(&shut, 6, "curl: (6) Could not resolve host: a.example", &[network], &[files]);
        check(&shut, 77, "", &[files, network], &[]);
        check(&open, 6, "curl: (6) Could not resolve host: a.example", &[], &["it runs in a sandbox"]);
        check(&shut, 1, "no such city", &[], &["it runs in a sandbox"]);
        check(&Sandbox::off(), 1, "Permission denied", &[], &["it runs in a sandbox"]);
    }

    #[test]
    fn output_over_the_limit_fails_and_secrets_are_redacted() {
        let more = CommandEnd { printed: 99, ..end("{}", Ok(0)) };
        let error = value(&command(Output::Auto), &more, Effect::Readonly).unwrap_err().to_string();
        assert!(error.contains("99 bytes") && error.contains("max_output") && error.contains("code 0"), "{error}");
        let mut own = command(Output::Json);
        own.redact = Some(std::sync::Arc::new(|text: &str| text.replace("hunter2", "***")));
        assert_eq!(value(&own, &end("[\"hunter2\"]", Ok(0)), Effect::Readonly).unwrap(), json!(["***"]));
    }

    #[test]
    fn w01_a_reconcile_command_prints_one_of_three_answers() {
        assert_eq!(reconciled(json!({"happened": [1]})).unwrap(), Reconciled::Happened(json!([1])));
        assert_eq!(reconciled(json!({"happened": null})).unwrap(), Reconciled::Happened(json!(null)));
        assert_eq!(reconciled(json!({"did_not_happen": true})).unwrap(), Reconciled::DidNotHappen);
        assert_eq!(reconciled(json!({"unknown": true})).unwrap(), Reconciled::Unknown);
        for bad in [
            json!(null),
            json!("did_not_happen"),
            json!({}),
            json!({"did_not_happen": false}),
            json!({"did_not_happen": 1}),
            json!({"did_not_happen": true, "happened": 1}),
            json!({"didnothappen": true}),
        ] {
            let error = reconciled(bad.clone()).unwrap_err().to_string();
            assert!(error.contains("did_not_happen"), "{bad}: {error}");
        }
    }
}
