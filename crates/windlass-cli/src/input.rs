//! JSON and files given on the command line.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_server::wire::RawJson;

use crate::exit::{Exit, Failure, Result};
use crate::style::plain;

/// The size limit of one argument, which is the server's limit on a request.
const MOST_BYTES: u64 = 4 * 1024 * 1024;
/// How many characters of a line are shown around a mistake.
const SNIPPET: usize = 60;

/// A JSON value from the command line: itself, `-` for standard input, `@FILE` for a file.
pub fn json(text: &str, what: &str) -> Result<Value> {
    read(text, what)
}

/// The same, kept byte for byte.
pub fn raw(text: &str, what: &str) -> Result<RawJson> {
    read(text, what)
}

fn read<T: DeserializeOwned>(text: &str, what: &str) -> Result<T> {
    let (text, from) = match text.strip_prefix('@') {
        Some(file) => (file_text(Path::new(file))?, format!("{what} ({file})")),
        None if text == "-" => (stdin_text()?, format!("{what} (standard input)")),
        None => (text.to_owned(), what.to_owned()),
    };
    windlass::store::read_json(text.as_bytes()).map_err(|error| not_json(&text, &from, &error))
}

/// The same for an optional argument.
pub fn maybe_json(text: Option<&str>, what: &str) -> Result<Option<Value>> {
    text.map(|text| json(text, what)).transpose()
}

/// The whole text of a file, or of standard input for `-`.
pub fn text(from: &Path) -> Result<String> {
    if from == Path::new("-") { stdin_text() } else { file_text(from) }
}

fn stdin_text() -> Result<String> {
    bounded(std::io::stdin().lock(), "standard input")
}

fn file_text(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| read_failed(&name, &error))?;
    bounded(file, &name)
}

fn bounded(from: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| read_failed(name, &error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Failure::usage(format!("{name} is larger than {MOST_BYTES} bytes, the size limit of a request")));
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{name} is not UTF-8 text")))
}

/// Why a file could not be read, with the exit code for it.
pub fn read_failed(name: &str, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(Exit::NotFound, format!("the file {name} does not exist")),
        _ => Failure::new(Exit::Unreachable, format!("could not read {name}: {error}")),
    }
}

/// Describes a syntax error and its position, with a mark under it.
fn not_json(text: &str, what: &str, error: &serde_json::Error) -> Failure {
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or(&reason);
    let (line, column) = (error.line().max(1), error.column().max(1));
    let source = text.lines().nth(line - 1).unwrap_or_default();
    // The parser counts columns in bytes; they are shown in characters.
    let before = source.char_indices().take_while(|(at, _)| *at + 1 < column).count();
    let from = before.saturating_sub(SNIPPET / 2);
    let snippet: String = source.chars().skip(from).take(SNIPPET).collect();
    let mark = " ".repeat(before - from);
    let snippet = plain(&snippet);
    let position = format!("line {line}, column {}", before + 1);
    Failure::usage(format!("{what} is not valid JSON: {reason} at {position}\n    {snippet}\n    {mark}^"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b08_a_json_syntax_error_is_shown_with_its_position() {
        let failure = json("{\"cents\": 12 \"x\": 1}", "--args").unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        let expected = "--args is not valid JSON: expected `,` or `}` at line 1, column 14\n    \
                        {\"cents\": 12 \"x\": 1}\n                 ^";
        assert_eq!(failure.message, expected);
    }

    #[test]
    fn an_error_far_into_a_long_line_is_shown_with_its_surroundings() {
        let text = format!("[\"{}\", oops]", "ü".repeat(500));
        let failure = json(&text, "--args").unwrap_err();
        let lines: Vec<&str> = failure.message.lines().collect();
        let mark = lines[2].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[1].chars().nth(mark), Some('o'), "{}", failure.message);
        assert!(lines[1].chars().count() <= SNIPPET + 4);
    }

    #[test]
    fn arguments_are_read_from_files_and_a_missing_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("args.json");
        std::fs::write(&path, "{\"a\": 1}").unwrap();
        assert_eq!(json(&format!("@{}", path.display()), "--args").unwrap(), serde_json::json!({"a": 1}));
        let failure = json("@/no/such/file", "--args").unwrap_err();
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::NotFound, "the file /no/such/file does not exist"));
    }
}
