//! A human line about a call: "Reading AGENTS.md".

use std::collections::BTreeMap;

use serde_json::Value;

use super::contract::Contract;
use super::secrets::{Secrets, places};

/// How much of an argument a line shows.
const SHOWN_CHARS: usize = 60;

/// Templates by locale, such as `en` or `de-CH`. `{path}` in a template stands for the argument of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narration(BTreeMap<String, Lines>);

/// The lines of a locale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    start: Option<String>,
    end: Option<String>,
    failure: Option<String>,
}

/// Which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The call begins.
    Start,
    /// It has ended well.
    End,
    /// It has failed.
    Failure,
}

impl Narration {
    /// Adds what is said in a locale when a call starts and when it has ended well.
    pub fn add(&mut self, locale: &str, start: &str, end: &str) {
        let lines = self.0.entry(locale.to_owned()).or_default();
        (lines.start, lines.end) = (Some(start.to_owned()), Some(end.to_owned()));
    }

    /// Adds what is said in a locale when a call has failed. Without it nothing is.
    pub fn add_failure(&mut self, locale: &str, failure: &str) {
        self.0.entry(locale.to_owned()).or_default().failure = Some(failure.to_owned());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The line for these arguments: in the locale, else in its language, else in English, else `None`. Whatever the
    /// schema marks as secret is never in it.
    pub(crate) fn line(&self, locale: &str, phase: Phase, args: &Value, contract: &Contract) -> Option<String> {
        let template = chain(locale).find_map(|locale| {
            let lines = self.0.get(locale)?;
            match phase {
                Phase::Start => lines.start.as_deref(),
                Phase::End => lines.end.as_deref(),
                Phase::Failure => lines.failure.as_deref(),
            }
        })?;
        let mut line = String::with_capacity(template.len() + 32);
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            line.push_str(before);
            let Some((name, after)) = after.split_once('}') else {
                line.push('{');
                rest = after;
                break;
            };
            line.push_str(&shown(name, args, contract));
            rest = after;
        }
        line.push_str(rest);
        Some(line)
    }
}

/// `de-Latn-CH`, `de-Latn`, `de`, `en`.
fn chain(locale: &str) -> impl Iterator<Item = &str> {
    fn shorter<'l>(locale: &&'l str) -> Option<&'l str> {
        locale.rfind(['-', '_']).map(|end| &locale[..end])
    }
    std::iter::successors(Some(locale), shorter).chain(["en"])
}

fn shown(name: &str, args: &Value, contract: &Contract) -> String {
    let root = contract.input();
    let value = &args[name];
    let text = match (value, Secrets { root }.redact(value, &places(root, name))) {
        (Value::Null, _) => return "…".to_owned(),
        (_, Some(Value::String(text))) => text,
        (Value::String(text), None) => text.clone(),
        (_, Some(other)) => other.to_string(),
        (other, None) => other.to_string(),
    };
    // One line, whatever the argument contains.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tool::{Tool, ToolSpec, narrate::Phase};

    fn tool(template: &str) -> Tool {
        let schemas = crate::tool::Schemas::input(json!({
            "type": "object",
            "properties": {"path": {"type": "string"}, "token": {"type": "string", "writeOnly": true},
                           "login": {"type": "object", "properties": {"pin": {"x-secret": true}}}}
        }));
        let mut spec = ToolSpec::new("read", "");
        spec.about.narration.add("en", template, "Read {path}");
        spec.about.narration.add_failure("en", "Could not read {path}");
        spec.about.narration.add("de", "Lese {path}", "{path} gelesen");
        spec.about.narration.add("de-AT", "Les {path}", "Glesen");
        let nothing = Tool::new("x", "", |_: serde_json::Value| async { Ok(()) });
        Tool::lazy(spec, move |_| Ok(schemas.clone()), nothing.body().clone())
    }

    fn line(template: &str, locale: &str, args: serde_json::Value) -> Option<String> {
        tool(template).narrate(locale, Phase::Start, &args)
    }

    #[test]
    fn e12_a_line_names_what_happens_by_locale_and_never_a_secret() {
        let args = || json!({"path": "AGENTS.md", "token": "hunter2", "login": {"user": "ann", "pin": 1234}});
        assert_eq!(line("Reading {path}", "en-GB", args()).unwrap(), "Reading AGENTS.md");
        assert_eq!(line("Reading {path}", "de-CH", args()).unwrap(), "Lese AGENTS.md");
        assert_eq!(line("Reading {path}", "de-AT", args()).unwrap(), "Les AGENTS.md");
        assert_eq!(line("Reading {path}", "fr", args()).unwrap(), "Reading AGENTS.md");
        assert_eq!(line("With {token}", "en", args()).unwrap(), "With •••");
        assert_eq!(line("As {login}", "en", args()).unwrap(), r#"As {"pin":"•••","user":"ann"}"#);
        assert_eq!(line("{missing} and {", "en", args()).unwrap(), "… and {");
        let long = line("{path}", "en", json!({"path": "ü\n".repeat(100)})).unwrap();
        assert!(long.chars().count() == 61 && !long.contains('\n'), "{long}");
    }

    #[test]
    fn e12_every_phase_has_a_line_in_the_nearest_locale_that_has_one() {
        let tool = tool("Reading {path}");
        let line = |locale, phase| tool.narrate(locale, phase, &json!({"path": "a"}));
        assert_eq!(line("de-CH", Phase::End).unwrap(), "a gelesen");
        assert_eq!(line("en", Phase::Failure).unwrap(), "Could not read a");
        assert_eq!(line("de-CH", Phase::Failure).unwrap(), "Could not read a", "rather English than nothing");
        let silent = Tool::new("x", "", |_: serde_json::Value| async { Ok(()) });
        assert_eq!(silent.narrate("en", Phase::Failure, &json!({})), None);
    }
}
