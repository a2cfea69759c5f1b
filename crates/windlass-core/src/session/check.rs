//! What may be written to a session: the rules for names, titles, messages and values.

use std::sync::Arc;

use serde_json::Value;

use crate::error::Error;
use crate::limits;
use crate::store::{NewMessage, SessionChange, SettingsChange};
use crate::tool::artifact::Data;
use crate::tool::{Content, ToolError, ToolsChange, check_name};
use crate::value::size::{self, TooBig};

/// Why something cannot be written to a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    Invalid(String),
    TooLarge(String),
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Invalid(why) => Self::Invalid(why),
            Unfit::TooLarge(why) => Self::TooLarge(why),
        }
    }
}

impl From<Unfit> for ToolError {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Invalid(why) | Unfit::TooLarge(why) => Self::failed(why),
        }
    }
}

/// Checks a text that is shown in one line: 1 to `most` characters, none of them a control character.
pub(crate) fn line(what: &str, text: &str, most: usize) -> Result<(), Unfit> {
    // The characters of a huge text are not counted.
    if text.is_empty() || text.len() > 4 * most || text.chars().count() > most || text.chars().any(char::is_control) {
        return Err(Unfit::Invalid(format!("{what} must have 1 to {most} visible characters")));
    }
    Ok(())
}

/// Checks the name of a session.
pub(crate) fn name(name: &str) -> Result<(), Unfit> {
    line("the name of a session", name, limits::SESSION_NAME)
}

/// Checks what is about to be written, before the store decides about it.
pub(crate) fn change(change: &SessionChange) -> Result<(), Unfit> {
    let title = |title: &Option<Arc<str>>| {
        title.iter().try_for_each(|title| line("the title of a session", title, limits::SESSION_TITLE))
    };
    let entry = |name: &str| line("the name of a value or secret", name, limits::SESSION_NAME);
    match change {
        SessionChange::Open { title: given, owner, settings: set } => {
            title(given)?;
            settings(set)?;
            owner.iter().try_for_each(|owner| line("the owner of a session", owner, limits::SESSION_NAME))
        }
        SessionChange::Settings(set) => settings(set),
        SessionChange::Start(start) => line("the id of a turn", &start.id, limits::SESSION_LABEL),
        SessionChange::Title(given) => title(given),
        SessionChange::Post(given) => message(given),
        SessionChange::Set { kind: crate::store::DataKind::Secret, name, value } => {
            entry(name)?;
            let text = value.as_str().unwrap_or_default();
            match text.len() {
                0 => Err(Unfit::Invalid("a secret must be a text that is not empty".to_owned())),
                1..=limits::SECRET_BYTES => Ok(()),
                _ => Err(Unfit::TooLarge(format!("a secret may have at most {} bytes", limits::SECRET_BYTES))),
            }
        }
        SessionChange::Set { name, value: given, .. } => entry(name).and_then(|()| value(given)),
        SessionChange::Delete { name, .. } => entry(name),
        SessionChange::Tools(change) => tools(change),
        SessionChange::Close { reason } => line("the reason", reason, limits::SESSION_NOTE),
        // A path is valid by its type, and the store decides about the rest.
        SessionChange::File(_) | SessionChange::Stage { .. } => Ok(()),
    }
}

/// Checks a change of the tools that a session shows. A tool of the name need not exist: it may be registered later.
pub(crate) fn tools(change: &ToolsChange) -> Result<(), Unfit> {
    if change.is_empty() {
        return Err(Unfit::Invalid("the change names no tool to show, hide or reveal, and resets nothing".to_owned()));
    }
    if change.names().count() > limits::SESSION_TOOLS {
        let most = limits::SESSION_TOOLS;
        return Err(Unfit::TooLarge(format!("a change of a session's tools may name at most {most} tools")));
    }
    let named = |name: &Arc<str>| check_name(name).map_err(|refused| Unfit::Invalid(refused.to_string()));
    change.names().try_for_each(named)
}

fn settings(change: &SettingsChange) -> Result<(), Unfit> {
    let SettingsChange { model, window, agent, wake: _, turns: _, unfinished_runs } = change;
    model.iter().flatten().try_for_each(|model| line("the model of a session", model, limits::SESSION_LABEL))?;
    agent.iter().flatten().try_for_each(|agent| line("the agent of a session", agent, limits::SESSION_LABEL))?;
    if window.iter().flatten().any(|tokens| !(1..=MAX_WINDOW).contains(tokens)) {
        return Err(Unfit::Invalid(format!("the window of a session must have 1 to {MAX_WINDOW} tokens")));
    }
    let most = limits::SESSION_RUNS_MAX;
    if unfinished_runs.iter().flatten().any(|runs| !(1..=most).contains(runs)) {
        return Err(Unfit::Invalid(format!("the limit of unfinished runs of a session must be 1 to {most}")));
    }
    Ok(())
}

/// Larger than any window, and small enough for every store and for every reader of JSON.
const MAX_WINDOW: u64 = 1 << 50;

fn value(value: &Value) -> Result<(), Unfit> {
    let most = limits::SESSION_VALUE_BYTES;
    match size::check(value, most) {
        Ok(()) => Ok(()),
        Err(TooBig::Bytes) => {
            Err(Unfit::TooLarge(format!("a value of a session may have at most {most} bytes of JSON")))
        }
        Err(TooBig::Depth) => Err(Unfit::Invalid(format!(
            "a value of a session may be nested at most {} levels deep",
            limits::VALUE_DEPTH
        ))),
    }
}

/// Checks a message.
pub(crate) fn message(message: &NewMessage) -> Result<(), Unfit> {
    let NewMessage { content, cause, dedupe, .. } = message;
    cause.iter().try_for_each(|cause| line("the cause of a message", cause, limits::SESSION_NOTE))?;
    dedupe.iter().try_for_each(|key| line("the dedupe key of a message", key, limits::SESSION_NOTE))?;
    if content.is_empty() {
        return Err(Unfit::Invalid("a message needs at least one content block".to_owned()));
    }
    for block in content {
        if let Content::Image(artifact) | Content::Audio(artifact) | Content::File(artifact) = block
            && matches!(artifact.data, Data::Stored(_))
        {
            let why = "a message cannot refer to a stored artifact, because only runs keep those; post a text that names \
                       it, or the bytes themselves";
            return Err(Unfit::Invalid(why.to_owned()));
        }
    }
    let (bytes, most) = (content.iter().map(Content::bytes).sum::<usize>(), limits::MESSAGE_BYTES);
    if bytes > most {
        return Err(Unfit::TooLarge(format!(
            "a message may have at most {most} bytes of content; this one has {bytes}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{ArtifactId, Author, DataKind, Stored};
    use crate::tool::Artifact;

    #[test]
    fn l20_names_titles_and_reasons_are_one_visible_line() {
        let named = |name: &str| SessionChange::Delete { kind: DataKind::Value, name: name.into() };
        let titled = |title: &str| SessionChange::Title(Some(title.into()));
        let long = "x".repeat(limits::SESSION_TITLE + 1);
        for bad in [named(""), named("a\0b"), named("a\nb"), named(&long), titled(""), titled("\u{7f}"), titled(&long)]
        {
            let refused = change(&bad);
            assert!(matches!(&refused, Err(Unfit::Invalid(why)) if why.contains("visible characters")), "{bad:?}");
        }
        assert_eq!(change(&titled(&"é".repeat(limits::SESSION_TITLE))), Ok(()), "characters, not bytes");
        assert_eq!((name("ada"), change(&SessionChange::Title(None))), (Ok(()), Ok(())));
        assert!(name("").is_err() && name("a\u{0}").is_err() && name(&"x".repeat(256)).is_err());
    }

    #[test]
    fn l20_messages_are_bounded_and_refer_to_nothing_that_may_vanish() {
        let post = |content| NewMessage::new(Author::User, content);
        assert_eq!(message(&post(vec![Content::text("hello \0")])), Ok(()));
        assert_eq!(message(&post(vec![Content::Image(Artifact::new("image/png", vec![1, 2]))])), Ok(()));
        assert!(matches!(message(&post(Vec::new())), Err(Unfit::Invalid(_))));
        let half = || Content::text("x".repeat(limits::MESSAGE_BYTES / 2 + 1));
        assert_eq!(message(&post(vec![half()])), Ok(()));
        assert!(matches!(message(&post(vec![half(), half()])), Err(Unfit::TooLarge(_))));
        let stored = Artifact::stored("image/png", Stored { id: ArtifactId::of(b"x"), size: 1 });
        assert!(matches!(message(&post(vec![Content::File(stored)])), Err(Unfit::Invalid(_))));
        let caused = NewMessage { cause: Some("a\nb".into()), ..post(vec![Content::text("x")]) };
        assert!(matches!(message(&caused), Err(Unfit::Invalid(_))));
    }

    #[test]
    fn l20_settings_are_bounded() {
        let set = |settings| change(&SessionChange::Settings(settings));
        let new = SettingsChange::default;
        assert_eq!(set(new().model("m").agent("a").window(200_000).unfinished_runs(1)), Ok(()));
        for (bad, why) in [
            (new().model(""), "the model"),
            (new().agent("a\nb"), "the agent"),
            (new().window(0), "the window"),
            (new().unfinished_runs(0), "unfinished runs"),
            (new().unfinished_runs(limits::SESSION_RUNS_MAX + 1), "unfinished runs"),
        ] {
            assert!(matches!(set(bad), Err(Unfit::Invalid(refused)) if refused.contains(why)), "{why}");
        }
    }

    #[test]
    fn e27_values_and_secrets_are_bounded() {
        let set = |kind, value| change(&SessionChange::Set { kind, name: "n".into(), value });
        assert_eq!(set(DataKind::Value, json!(null)), Ok(()));
        assert!(matches!(
            set(DataKind::Value, json!("x".repeat(limits::SESSION_VALUE_BYTES))),
            Err(Unfit::TooLarge(_))
        ));
        let deep = (0..limits::VALUE_DEPTH + 1).fold(json!(1), |inner, _| json!([inner]));
        assert!(matches!(set(DataKind::Value, deep), Err(Unfit::Invalid(_))));
        assert_eq!(set(DataKind::Secret, json!("s3cret")), Ok(()));
        assert!(matches!(set(DataKind::Secret, json!("")), Err(Unfit::Invalid(_))));
        assert!(matches!(set(DataKind::Secret, json!(7)), Err(Unfit::Invalid(_))));
        assert!(matches!(set(DataKind::Secret, json!("x".repeat(limits::SECRET_BYTES + 1))), Err(Unfit::TooLarge(_))));
    }
}
