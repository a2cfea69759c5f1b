//! The argv of a command: as it is written, and with the arguments of a call.

use std::fmt;

use serde_json::Value;
use windlass::{ToolError, ToolResult};

use super::Command;

/// The kernel's limit for one argument.
const LONGEST_WORD: usize = 128 * 1024 - 1;

/// Everything that can never work with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCommand(pub Vec<String>);

impl fmt::Display for BadCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for BadCommand {}

/// A word of argv.
enum Word<'a> {
    Plain(&'a str),
    /// The path of an argument.
    Argument(Vec<&'a str>),
    Bad,
}

impl<'a> Word<'a> {
    fn parse(text: &'a str) -> Self {
        let inner = text.strip_prefix("{args.").and_then(|rest| rest.strip_suffix('}'));
        match inner {
            Some(name) if is_name(name) => Self::Argument(name.split('.').collect()),
            _ if text.contains("{args") => Self::Bad,
            _ => Self::Plain(text),
        }
    }
}

/// Whether a word has no placeholder.
pub(super) fn is_plain(text: &str) -> bool {
    matches!(Word::parse(text), Word::Plain(_))
}

fn is_name(name: &str) -> bool {
    let is_step = |step: &str| {
        !step.is_empty() && step.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-'))
    };
    name.split('.').all(is_step)
}

pub(super) fn check(command: &Command) -> Result<(), BadCommand> {
    let mut problems = Vec::new();
    match command.argv.first() {
        None => problems.push("argv is empty: name a program".to_owned()),
        Some(name) if name.is_empty() => problems.push("argv[0] is empty: name a program".to_owned()),
        Some(name) if !matches!(Word::parse(name), Word::Plain(_)) => {
            problems.push(format!("argv[0] is `{name}`: the program must be fixed, not an argument of the call"));
        }
        Some(_) => {}
    }
    for (index, word) in command.argv.iter().enumerate() {
        if word.contains('\0') {
            problems.push(format!("argv[{index}] has a NUL in it"));
        }
        if index > 0 && matches!(Word::parse(word), Word::Bad) {
            problems.push(format!(
                "argv[{index}] is `{word}`: a placeholder must be a whole word, such as `{{args.name}}`"
            ));
        }
    }
    for (name, value) in &command.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            problems.push(format!("env.{name:?} is not a valid variable: no `=` in a name, no NUL anywhere"));
        }
        if name.starts_with("WINDLASS_") {
            problems.push(format!("env.{name} is set by Windlass; choose another name"));
        }
    }
    if let Some(dir) = command.dir.as_ref().filter(|dir| !dir.is_absolute()) {
        problems.push(format!("dir is `{}`: write an absolute path", dir.display()));
    }
    if problems.is_empty() { Ok(()) } else { Err(BadCommand(problems)) }
}

/// Replaces the placeholders by the arguments of a call.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) fn expand(argv: &[String], args: &Value) -> ToolResult<Vec<String>> {
    let mut options_are_over = false;
    let mut words = Vec::with_capacity(argv.len());
    for word in argv {
        options_are_over |= word == "--";
        words.push(match Word::parse(word) {
            Word::Argument(steps) => argument(&steps, args, options_are_over)?,
            Word::Plain(word) => word.to_owned(),
            Word::Bad => return Err(ToolError::unavailable(format!("`{word}` is not a valid word of a command"))),
        });
    }
    Ok(words)
}

fn argument(steps: &[&str], args: &Value, options_are_over: bool) -> ToolResult<String> {
    let pointer = format!("/{}", steps.join("/"));
    let bad = |problem: &str| Err(ToolError::invalid(&pointer, problem));
    let text = match steps.iter().try_fold(args, |value, step| value.get(step)) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
        None | Some(Value::Null) => return bad("is required: it is a word of the command line"),
        Some(_) => return bad("must be a string, a number or a boolean: it is a word of the command line"),
    };
    if text.contains('\0') {
        return bad("must not contain a NUL character");
    }
    if text.starts_with('-') && !options_are_over {
        return bad("must not begin with `-`: the command would take it for an option");
    }
    if text.len() > LONGEST_WORD {
        return bad("is too long for a word of a command line");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sandbox::Launcher;

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn an_argument_is_one_word_whatever_it_contains() {
        let args =
            json!({"a": "x; rm -rf / $(id) `id` \"'\n*", "n": 7, "b": true, "deep": {"er": "ü"}, "neg": -3, "e": ""});
        let argv = argv(&[
            "p",
            "{args.a}",
            "{args.n}",
            "--flag",
            "{args.b}",
            "{args.deep.er}",
            "{args.e}",
            "--",
            "{args.neg}",
        ]);
        let expected = ["p", "x; rm -rf / $(id) `id` \"'\n*", "7", "--flag", "true", "ü", "", "--", "-3"];
        assert_eq!(expand(&argv, &args).unwrap(), expected);
    }

    #[test]
    fn an_argument_that_cannot_be_a_word_is_refused_by_name() {
        let long = "x".repeat(LONGEST_WORD + 1);
        for (args, word) in [
            (json!({}), "is required"),
            (json!({"a": null}), "is required"),
            (json!({"a": ["x"]}), "a string, a number"),
            (json!({"a": {"b": 1}}), "a string, a number"),
            (json!({"a": "-rf"}), "option"),
            (json!({"a": "--"}), "option"),
            (json!({"a": -1}), "option"),
            (json!({"a": "x\0y"}), "NUL"),
            (json!({"a": long}), "too long"),
        ] {
            let error = expand(&argv(&["p", "{args.a}"]), &args).unwrap_err();
            assert_eq!(error.kind(), "invalid_arguments");
            let text = error.to_string();
            assert!(text.contains(word) && text.contains("/a"), "{text}");
        }
        // An argument that happens to be `--` does not end the options.
        let argv = argv(&["p", "--", "{args.a}", "{args.b}"]);
        assert_eq!(expand(&argv, &json!({"a": "--", "b": "-x"})).unwrap(), ["p", "--", "--", "-x"]);
    }

    #[test]
    fn a_command_reports_all_its_problems_at_once() {
        let mut command = Command::new(["{args.p}", "pre{args.x}", "{args.}", "a\0b"], Launcher::new(["l"]));
        command.env =
            [("A=B", "x"), ("WINDLASS_RUN", "x"), ("C", "\0")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        command.dir = Some("here".into());
        let BadCommand(problems) = command.check().unwrap_err();
        let text = problems.join("\n");
        for word in
            ["argv[0] is `{args.p}`", "argv[1]", "argv[2]", "argv[3] has a NUL", "A=B", "WINDLASS_RUN", "\"C\"", "here"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(problems.len(), 8, "{text}");
        assert!(
            Command::new(Vec::<String>::new(), Launcher::new(["l"])).check().unwrap_err().to_string().contains("empty")
        );
        assert_eq!(Command::new(["p", "{args.a-b.c_1}", "{x}"], Launcher::new(["l"])).check(), Ok(()));
    }
}
