//! Narration: a line for people about a call, such as "Reading AGENTS.md".

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::contract::Contract;
use super::secrets::HIDDEN;
use crate::run::state::Blocked;

/// How many characters of an argument a line shows.
const SHOWN_CHARS: usize = 60;

/// How many arguments a line without a template shows.
const SHOWN_ARGS: usize = 3;

/// The filters that a placeholder may have.
pub const FILTERS: [&str; 2] = ["basename", "host"];

/// Narration templates by locale, such as `en` or `de-CH`.
///
/// `{path}` in a template is replaced by the argument `path`, `{path|basename}` by the last part of that path, and
/// `{url|host}` by the host of that URL. Secrets are never shown. A phase without a template has a line that is made of
/// the tool's title, in English or German.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narration(BTreeMap<String, Lines>);

/// The templates of one locale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    start: Option<String>,
    waiting: Option<String>,
    end: Option<String>,
    failure: Option<String>,
}

/// Which template of a locale to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The call starts.
    Start,
    /// The call waits.
    Waiting(WaitReason),
    /// The call has succeeded.
    End,
    /// The call has failed.
    Failure,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A person who approves it.
    Approval,
    /// A connection to a provider.
    Connection,
    /// An answer by reply key.
    Answer,
}

impl WaitReason {
    /// What a park waits for, if that is worth a line.
    pub(crate) fn of(on: &Blocked) -> Option<Self> {
        match on {
            Blocked::Approval { .. } => Some(Self::Approval),
            Blocked::Connection { .. } => Some(Self::Connection),
            Blocked::Input { .. } => Some(Self::Answer),
            _ => None,
        }
    }
}

impl Narration {
    /// Sets the templates of a locale for the start of a call and for its success.
    pub fn add(&mut self, locale: &str, start: &str, end: &str) {
        let lines = self.0.entry(locale.to_owned()).or_default();
        (lines.start, lines.end) = (Some(start.to_owned()), Some(end.to_owned()));
    }

    /// Sets the template of a locale for a call that waits for an approval, a connection or an answer.
    pub fn add_waiting(&mut self, locale: &str, waiting: &str) {
        self.0.entry(locale.to_owned()).or_default().waiting = Some(waiting.to_owned());
    }

    /// Sets the template of a locale for a failed call.
    pub fn add_failure(&mut self, locale: &str, failure: &str) {
        self.0.entry(locale.to_owned()).or_default().failure = Some(failure.to_owned());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The line for these arguments: in the locale, else in its language, else in English; `None` without a template.
    /// It never contains a value that the schema marks as secret.
    pub(crate) fn line(&self, locale: &str, phase: Phase, args: &Value, contract: &Contract) -> Option<String> {
        let template = chain(locale).find_map(|locale| {
            let lines = self.0.get(locale)?;
            match phase {
                Phase::Start => lines.start.as_deref(),
                Phase::Waiting(_) => lines.waiting.as_deref(),
                Phase::End => lines.end.as_deref(),
                Phase::Failure => lines.failure.as_deref(),
            }
        })?;
        let args = &*without_secrets(args, contract);
        let mut line = String::with_capacity(template.len() + 32);
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            line.push_str(before);
            let Some((name, after)) = after.split_once('}') else {
                line.push('{');
                rest = after;
                break;
            };
            let (name, filter) = name.split_once('|').map_or((name, None), |(name, filter)| (name, Some(filter)));
            line.push_str(&one_line(&shown(name, filter, args)));
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

/// The line of a tool without a template for this phase: its title, and what is known.
pub(crate) fn default_line(
    title: &str,
    locale: &str,
    phase: Phase,
    (args, contract): (&Value, Option<&Contract>),
) -> String {
    let german = locale.split(['-', '_']).next() == Some("de");
    let what = match (phase, german) {
        (Phase::Start, _) => contract.map(|contract| brief(args, contract)).unwrap_or_default(),
        (Phase::Waiting(WaitReason::Approval), false) => "waiting for approval".to_owned(),
        (Phase::Waiting(WaitReason::Approval), true) => "wartet auf Freigabe".to_owned(),
        (Phase::Waiting(WaitReason::Connection), false) => "waiting for a connection".to_owned(),
        (Phase::Waiting(WaitReason::Connection), true) => "wartet auf eine Verbindung".to_owned(),
        (Phase::Waiting(WaitReason::Answer), false) => "waiting for an answer".to_owned(),
        (Phase::Waiting(WaitReason::Answer), true) => "wartet auf eine Antwort".to_owned(),
        (Phase::End, false) => "done".to_owned(),
        (Phase::End, true) => "fertig".to_owned(),
        (Phase::Failure, false) => "failed".to_owned(),
        (Phase::Failure, true) => "fehlgeschlagen".to_owned(),
    };
    let title = one_line(title);
    if what.is_empty() { title } else { format!("{title}: {what}") }
}

/// The title of a tool that has none: `read_file` becomes "Read file".
pub(crate) fn title_of(name: &str) -> String {
    let words = name.replace(['_', '-', '.'], " ");
    let mut letters = words.trim().chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The first arguments in short form: `city=Oslo, days=3`.
fn brief(args: &Value, contract: &Contract) -> String {
    let args = &*without_secrets(args, contract);
    let Some(map) = args.as_object() else { return String::new() };
    let pairs = map.keys().take(SHOWN_ARGS).map(|name| {
        let name_shown = one_line(name);
        format!("{name_shown}={}", one_line(&shown(name, None, args)))
    });
    let more = if map.len() > SHOWN_ARGS { ", …" } else { "" };
    format!("{}{more}", pairs.collect::<Vec<_>>().join(", "))
}

/// The arguments without their secrets. All of them are hidden if they do not fit the schema, because then a secret may
/// be anywhere.
fn without_secrets<'a>(args: &'a Value, contract: &Contract) -> Cow<'a, Value> {
    let secrets = contract.secret_places(args);
    if secrets.is_empty() {
        return Cow::Borrowed(args);
    }
    let mut clean = args.clone();
    secrets.hide(&mut clean);
    Cow::Owned(clean)
}

/// An argument as text; `args` have no secrets.
fn shown(name: &str, filter: Option<&str>, args: &Value) -> String {
    match (&args[name], filter) {
        (Value::Null, _) => "…".to_owned(),
        (Value::String(text), Some("basename")) => basename(text).to_owned(),
        (Value::String(text), Some("host")) if text != HIDDEN => host(text).unwrap_or("…").to_owned(),
        (Value::String(text), _) => text.clone(),
        (other, _) => other.to_string(),
    }
}

/// The last part of a path.
fn basename(path: &str) -> &str {
    let path = path.trim_end_matches(['/', '\\']);
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// The host of a URL, without user, password and port.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    Some(&host[..end]).filter(|host| !host.is_empty())
}

/// A bounded text without control characters, whatever an argument contains.
fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::{Tool, ToolSpec};

    fn tool(template: &str) -> Tool {
        let schemas = crate::tool::Schemas::input(json!({
            "type": "object",
            "properties": {"path": {"type": "string"}, "token": {"type": "string", "writeOnly": true},
                           "url": {"type": "string"}, "login": {"type": "object", "properties": {"pin": {"x-secret": true}}}}
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
        let unfit = line("As {login} of {path}", "en", json!({"path": "a", "login": [{"pin": 1234}]})).unwrap();
        assert_eq!(unfit, "As … of …", "in arguments that do not fit the schema, a secret may be anywhere");
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
    }

    #[test]
    fn e12_filters_shorten_paths_and_urls_and_never_show_more() {
        let args = json!({"path": "/srv/app/AGENTS.md", "url": "https://ann:pw@docs.example:8443/a?key=1",
                          "token": "https://secret.example/"});
        let shown = |template: &str| line(template, "en", args.clone()).unwrap();
        assert_eq!(shown("Reading {path|basename} of {url|host}"), "Reading AGENTS.md of docs.example");
        assert_eq!(shown("{token|host} {token|basename}"), "••• •••");
        assert_eq!(shown("{path|host}"), "…", "it is not a URL");
        for (url, expected) in [
            ("http://[::1]:80/x", "[::1]"),
            ("https://a.b", "a.b"),
            ("https://x@y@z/p", "z"),
            ("file:///etc/passwd", "…"),
            ("http://[broken", "…"),
        ] {
            assert_eq!(line("{url|host}", "en", json!({"url": url})).unwrap(), expected, "{url}");
        }
        for (path, expected) in [("a/b/", "b"), ("C:\\x\\y.txt", "y.txt"), ("/", ""), ("one", "one")] {
            assert_eq!(line("{path|basename}", "en", json!({"path": path})).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn e12_a_tool_without_a_template_has_a_line_made_of_its_title() {
        let schemas = crate::tool::Schemas::input(json!({"type": "object",
            "properties": {"path": {}, "pin": {"x-secret": true}, "x": {}, "y": {}}}));
        let silent = |title: Option<&str>| {
            let schemas = schemas.clone();
            let mut spec = ToolSpec::new("files.read_file", "");
            spec.about.title = title.map(str::to_owned);
            let nothing = Tool::new("x", "", |_: serde_json::Value| async { Ok(()) });
            Tool::lazy(spec, move |_| Ok(schemas.clone()), nothing.body().clone())
        };
        let args = json!({"path": "a\nb", "pin": 1234});
        let waiting = Phase::Waiting;
        for (phase, en, de) in [
            (Phase::Start, "Files read file: path=a b, pin=•••", "Files read file: path=a b, pin=•••"),
            (
                waiting(WaitReason::Approval),
                "Files read file: waiting for approval",
                "Files read file: wartet auf Freigabe",
            ),
            (
                waiting(WaitReason::Connection),
                "Files read file: waiting for a connection",
                "Files read file: wartet auf eine Verbindung",
            ),
            (
                waiting(WaitReason::Answer),
                "Files read file: waiting for an answer",
                "Files read file: wartet auf eine Antwort",
            ),
            (Phase::End, "Files read file: done", "Files read file: fertig"),
            (Phase::Failure, "Files read file: failed", "Files read file: fehlgeschlagen"),
        ] {
            let tool = silent(None);
            assert_eq!(tool.narrate("fr", phase, &args).unwrap(), en, "English is the fallback");
            assert_eq!(tool.narrate("de-CH", phase, &args).unwrap(), de);
        }
        assert_eq!(silent(Some("Lesen")).narrate("de", Phase::End, &args).unwrap(), "Lesen: fertig");
        assert_eq!(silent(None).narrate("en", Phase::Start, &json!({})).unwrap(), "Files read file");
        let many = json!({"path": 1, "pin": 2, "x": 3, "y": 4});
        assert_eq!(
            silent(None).narrate("en", Phase::Start, &many).unwrap(),
            "Files read file: path=1, pin=•••, x=3, …"
        );
    }

    #[test]
    fn e12_a_call_that_waits_has_a_line_of_its_own() {
        let tool = tool("Reading {path}").with(|spec| spec.about.narration.add_waiting("en", "About to read {path}"));
        let phase = Phase::Waiting(WaitReason::Approval);
        assert_eq!(tool.narrate("fr", phase, &json!({"path": "a"})).unwrap(), "About to read a");
    }
}
