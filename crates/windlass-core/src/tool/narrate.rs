//! A human line about a call: "Reading AGENTS.md".

use std::collections::BTreeMap;

use serde_json::Value;

use super::contract::Contract;

/// How much of an argument a line shows.
const SHOWN_CHARS: usize = 60;
/// What stands for an argument that must not be shown.
const HIDDEN: &str = "•••";

/// Templates by locale, such as `en` or `de-CH`. `{path}` in a template stands for the argument of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narration(BTreeMap<String, Lines>);

/// The two lines of a locale.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lines {
    start: String,
    end: String,
}

/// Which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The call begins.
    Start,
    /// It has ended well.
    End,
}

impl Narration {
    /// Adds the lines of a locale.
    pub fn add(&mut self, locale: &str, start: &str, end: &str) {
        self.0.insert(locale.to_owned(), Lines { start: start.to_owned(), end: end.to_owned() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The line for these arguments: in the locale, else in its language, else in English, else `None`. Arguments that
    /// the schema marks as secret (`writeOnly`, or the format `password`) are never in it.
    pub(crate) fn line(&self, locale: &str, phase: Phase, args: &Value, contract: &Contract) -> Option<String> {
        let language = locale.split(['-', '_']).next().unwrap_or(locale);
        let lines = [locale, language, "en"].iter().find_map(|name| self.0.get(*name))?;
        let template = if phase == Phase::Start { &lines.start } else { &lines.end };
        let mut line = String::with_capacity(template.len() + 32);
        let mut rest = template.as_str();
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

fn shown(name: &str, args: &Value, contract: &Contract) -> String {
    let schema = &contract.input()["properties"][name];
    if schema["writeOnly"] == true || schema["format"] == "password" {
        return HIDDEN.to_owned();
    }
    let text = match &args[name] {
        Value::String(text) => text.clone(),
        Value::Null => return "…".to_owned(),
        other => other.to_string(),
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

    fn line(template: &str, locale: &str, args: serde_json::Value) -> Option<String> {
        let schemas = crate::tool::Schemas::input(json!({
            "type": "object",
            "properties": {"path": {"type": "string"}, "token": {"type": "string", "writeOnly": true}}
        }));
        let mut spec = ToolSpec::new("read", "");
        spec.about.narration.add("en", template, "Done");
        spec.about.narration.add("de", "Lese {path}", "Fertig");
        let nothing = Tool::new("x", "", |_: serde_json::Value| async { Ok(()) });
        Tool::lazy(spec, move |_| Ok(schemas.clone()), nothing.body().clone()).narrate(locale, Phase::Start, &args)
    }

    #[test]
    fn e12_a_line_names_what_happens_by_locale_and_never_a_secret() {
        let args = || json!({"path": "AGENTS.md", "token": "hunter2"});
        assert_eq!(line("Reading {path}", "en-GB", args()).unwrap(), "Reading AGENTS.md");
        assert_eq!(line("Reading {path}", "de-CH", args()).unwrap(), "Lese AGENTS.md");
        assert_eq!(line("Reading {path}", "fr", args()).unwrap(), "Reading AGENTS.md");
        assert_eq!(line("With {token}", "en", args()).unwrap(), "With •••");
        assert_eq!(line("{missing} and {", "en", args()).unwrap(), "… and {");
        let long = line("{path}", "en", json!({"path": "ü\n".repeat(100)})).unwrap();
        assert!(long.chars().count() == 61 && !long.contains('\n'), "{long}");
    }
}
