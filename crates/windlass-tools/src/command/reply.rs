//! What a command printed, as a value.

use serde_json::Value;
use windlass::{Effect, Reconciled, ToolError, ToolResult};

use super::{Command, Exit, Output, exits};
use crate::sandbox::{Level, Sandbox};

/// How a command ended, and what it had printed by then.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) struct End {
    /// Its exit code, or else the signal that ended it.
    pub(super) code: Result<i32, i32>,
    pub(super) stdout: Vec<u8>,
    /// Everything it printed there, also what was too much.
    pub(super) printed: u64,
    /// The last of its standard error.
    pub(super) last_words: String,
    /// Why we ended it, if we did.
    pub(super) stopped: Option<String>,
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) fn value(command: &Command, end: &End, effect: Effect) -> ToolResult<Value> {
    let name = command.argv.first().map_or("the command", String::as_str);
    let died_of = |signal| command.on_signal.unwrap_or_else(|| Exit::of_signal(signal, effect));
    let (exit, how) = match (&end.stopped, end.code) {
        (Some(why), _) => (Exit::of_limit(effect), why.clone()),
        (None, Ok(code)) => {
            let usual = || exits::signal_of(code).map_or_else(|| Exit::of(code), died_of);
            let exit = command.exits.get(&code).copied().unwrap_or_else(usual);
            let signal = exits::signal_of(code).map(signal_name);
            let stands_for = signal.map(|signal| format!(", which stands for {signal}")).unwrap_or_default();
            (exit, format!("ended with code {code}{stands_for}"))
        }
        (None, Err(signal)) => (died_of(signal), format!("was ended by {}", signal_name(signal))),
    };
    let words = end.last_words.trim();
    let mut message = if words.is_empty() { format!("`{name}` {how}") } else { format!("`{name}` {how}: {words}") };
    if exit != Exit::Ok && end.stopped.is_none() {
        message.extend(barred(&command.sandbox, end.code, words));
    }
    if let Some(error) = exit.error(message) {
        return Err(error);
    }
    if end.printed > end.stdout.len() as u64 {
        return Err(ToolError::failed(format!(
            "`{name}` {how}, and printed {} bytes, which is more than the {} it may (max_output); nothing of it was kept",
            end.printed, command.max_output
        )));
    }
    let text = String::from_utf8_lossy(&end.stdout);
    let text = command.redact.as_ref().map_or_else(|| text.to_string(), |redact| redact(&text));
    read(command.output, &text)
        .map_err(|problem| ToolError::failed(format!("`{name}` {how}, but what it printed is not JSON: {problem}")))
}

/// What to say of a failure that sounds as if the sandbox was in the way. It may have been something else: a command is told the
/// same by a lock as by a file of somebody else's.
fn barred(sandbox: &Sandbox, code: Result<i32, i32>, words: &str) -> Option<String> {
    if sandbox.level == Level::Off {
        return None;
    }
    let words = words.to_lowercase();
    let says = |signs: &[&str]| signs.iter().any(|sign| words.contains(sign));
    let network = !sandbox.network && says(&NETWORK);
    let denied = says(&DENIED) || matches!(code, Ok(77 | 126));
    let keys = match (network, denied) {
        (false, false) => return None,
        (true, _) => "`sandbox.network = true` would let it use the network",
        (false, true) if sandbox.network => {
            "`sandbox.read` and `sandbox.write` would let it at files outside of its folder"
        }
        (false, true) => {
            "`sandbox.read` and `sandbox.write` would let it at files outside of its folder, `sandbox.network = true` at the network"
        }
    };
    Some(format!(" (it runs in a sandbox, which may be why: {keys})"))
}

/// What commands say, in small letters, when they are kept from something.
const DENIED: [&str; 6] =
    ["permission denied", "operation not permitted", "permissionerror", "access denied", "eacces", "eperm"];

/// What they say when there is nobody to talk to.
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
        Output::Json => serde_json::from_str(text),
        Output::Text => Ok(plain()),
        Output::Auto if text.trim().is_empty() => Ok(Value::Null),
        Output::Auto => Ok(serde_json::from_str(text).unwrap_or_else(|_| plain())),
    }
}

/// Names people know; the rest by number.
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

/// What a command that reconciles has found out.
pub(super) fn reconciled(answer: Value) -> ToolResult<Reconciled<Value>> {
    let bad = || {
        let wanted = r#"{"happened": VALUE}, {"did_not_happen": true} or {"unknown": true}"#;
        ToolError::failed(format!("a command that reconciles prints {wanted}, not {answer:.200}"))
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

    fn end(stdout: &str, code: Result<i32, i32>) -> End {
        let (stdout, last_words) = (stdout.as_bytes().to_vec(), "oops\n".to_owned());
        End { code, printed: stdout.len() as u64, stdout, last_words, stopped: None }
    }

    fn command(output: Output) -> Command {
        Command { output, ..Command::new(["prog"], Launcher::new(["l"])) }
    }

    #[test]
    fn output_is_read_as_it_was_declared() {
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
        let lossy = End { stdout: vec![b'a', 0xff], printed: 2, ..end("", Ok(0)) };
        assert_eq!(value(&command(Output::Text), &lossy, Effect::Readonly).unwrap(), json!("a\u{fffd}"));
    }

    #[test]
    fn the_end_decides_the_kind_and_the_last_words_are_told() {
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
    fn e26_a_failure_that_sounds_like_the_sandbox_names_the_keys_that_open_it() {
        let check = |sandbox: &Sandbox, code: i32, words: &str, said: &[&str], unsaid: &[&str]| {
            let command = Command { sandbox: sandbox.clone(), ..command(Output::Auto) };
            let end = End { last_words: words.to_owned(), ..end("", Ok(code)) };
            let error = value(&command, &end, Effect::Readonly).unwrap_err().to_string();
            said.iter().for_each(|word| assert!(error.contains(word), "{word} is not in {error}"));
            unsaid.iter().for_each(|word| assert!(!error.contains(word), "{word} is in {error}"));
        };
        let (shut, open) = (Sandbox::default(), Sandbox { network: true, ..Sandbox::default() });
        let (files, network) = ("`sandbox.read` and", "`sandbox.network = true`");
        check(&shut, 1, "cat: /etc/shadow: Permission denied", &["may be why", files, network], &[]);
        check(&open, 1, "PermissionError: [Errno 13]", &[files], &[network]);
        check(&shut, 6, "curl: (6) Could not resolve host: a.example", &[network], &[files]);
        check(&shut, 77, "", &[files, network], &[]);
        check(&open, 6, "curl: (6) Could not resolve host: a.example", &[], &["it runs in a sandbox"]);
        check(&shut, 1, "no such city", &[], &["it runs in a sandbox"]);
        check(&Sandbox::off(), 1, "Permission denied", &[], &["it runs in a sandbox"]);
    }

    #[test]
    fn too_much_is_said_and_secrets_are_not() {
        let more = End { printed: 99, ..end("{}", Ok(0)) };
        let error = value(&command(Output::Auto), &more, Effect::Readonly).unwrap_err().to_string();
        assert!(error.contains("99 bytes") && error.contains("max_output") && error.contains("code 0"), "{error}");
        let mut own = command(Output::Json);
        own.redact = Some(std::sync::Arc::new(|text: &str| text.replace("hunter2", "***")));
        assert_eq!(value(&own, &end("[\"hunter2\"]", Ok(0)), Effect::Readonly).unwrap(), json!(["***"]));
    }

    #[test]
    fn w01_a_reconcile_command_says_one_of_three_things_or_nothing() {
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
