//! Narration: a line for people about a call, such as "Reading AGENTS.md".

use std::collections::BTreeMap;

use serde_json::Value;

use super::contract::Contract;
use super::secrets::{Secrets, property_schemas};

/// How many characters of an argument a line shows.
const SHOWN_CHARS: usize = 60;

/// Narration templates by locale, such as `en` or `de-CH`. `{path}` in a template is replaced by the argument `path`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narration(BTreeMap<String, Lines>);

/// The templates of one locale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    start: Option<String>,
    end: Option<String>,
    failure: Option<String>,
}

/// Which template of a locale to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The call starts.
    Start,
    /// The call has succeeded.
    End,
    /// The call has failed.
    Failure,
}

impl Narration {
    /// Sets the templates of a locale for the start of a call and for its success.
    pub fn add(&mut self, locale: &str, start: &str, end: &str) {
        let lines = self.0.entry(locale.to_owned()).or_default();
        (lines.start, lines.end) = (Some(start.to_owned()), Some(end.to_owned()));
    }

    /// Sets the template of a locale for a failed call. Without one, a failure has no line.
    pub fn add_failure(&mut self, locale: &str, failure: &str) {
        self.0.entry(locale.to_owned()).or_default().failure = Some(failure.to_owned());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The line for these arguments: in the locale, else in its language, else in English, else `None`. It never
    /// contains a value that the schema marks as secret.
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

/// The locales to try, in order: `de-Latn-CH`, `de-Latn`, `de`, `en`.
fn chain(locale: &str) -> impl Iterator<Item = &str> {
    fn shorter<'l>(locale: &&'l str) -> Option<&'l str> {
        locale.rfind(['-', '_']).map(|end| &locale[..end])
    }
    std::iter::successors(Some(locale), shorter).chain(["en"])
}

fn shown(name: &str, args: &Value, contract: &Contract) -> String {
    let root = contract.input();
    let value = &args[name];
    let text = match (value, Secrets { root }.redact(value, &property_schemas(root, name))) {
        (Value::Null, _) => return "…".to_owned(),
        (_, Some(Value::String(text))) => text,
        (Value::String(text), None) => text.clone(),
        (_, Some(other)) => other.to_string(),
        (other, None) => other.to_string(),
    };
    // Keep it on one line, whatever the argument contains.
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
    fn e12_a_line_is_chosen_by_locale_and_never_shows_a_secret() {
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
        assert_eq!(line("de-CH", Phase::Failure).unwrap(), "Could not read a", "English is the fallback");
        let silent = Tool::new("x", "", |_: serde_json::Value| async { Ok(()) });
        assert_eq!(silent.narrate("en", Phase::Failure, &json!({})), None);
    }
}
