//! Removes secrets from text that leaves the process.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::Value;

use super::artifact::{Artifact, Data};
use super::error::ToolResult;
use super::output::{Content, Output};
use crate::call::Command;

/// Shortest value that is redacted: a shorter one would match ordinary words.
const SHORTEST: usize = 4;

/// Replaces secrets in text, in every encoding they commonly have.
#[derive(Clone, Default)]
pub struct Redactor {
    /// What to search for and its replacement, longest first.
    needles: Vec<(String, String)>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} forms)", self.needles.len())
    }
}

impl Redactor {
    /// Adds a secret: as it is, in Base64, percent-encoded, and escaped as in JSON.
    pub fn add(&mut self, name: &str, value: &str) {
        if value.len() < SHORTEST {
            return;
        }
        let json = Value::from(value).to_string();
        let forms = [
            value.to_owned(),
            json.trim_matches('"').to_owned(),
            percent(value, |to, byte| write!(to, "%{byte:02X}")),
            percent(value, |to, byte| write!(to, "%{byte:02x}")),
            percent(value, |to, byte| write!(to, "%{byte:02X}")).replace("%20", "+"),
            STANDARD.encode(value),
            STANDARD_NO_PAD.encode(value),
            URL_SAFE.encode(value),
            URL_SAFE_NO_PAD.encode(value),
        ];
        let replacement = format!("[secret {name}]");
        for form in forms.into_iter().chain(value.lines().map(str::to_owned)).chain(inner_base64(value)) {
            if form.len() >= SHORTEST && !self.needles.iter().any(|(needle, _)| *needle == form) {
                self.needles.push((form, replacement.clone()));
            }
        }
        // A form that contains another one must be replaced before the inner one breaks it up.
        self.needles.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    }

    /// The text without the secrets.
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        for (needle, replacement) in &self.needles {
            if text.contains(needle.as_str()) {
                text = Cow::Owned(text.replace(needle.as_str(), replacement));
            }
        }
        text
    }

    /// Whether it has nothing to search for.
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// Replaces the secrets in a text.
    pub fn redact_text(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.redact(text) {
            *text = clean;
        }
    }

    /// Replaces the secrets in what a body returned.
    pub(crate) fn redact_result(&self, result: &mut ToolResult<Output>) {
        match result {
            _ if self.is_empty() => {}
            Ok(output) => self.redact_output(output),
            Err(error) => error.redact(self),
        }
    }

    pub(crate) fn redact_output(&self, output: &mut Output) {
        self.redact_value(&mut output.value);
        output.content.iter_mut().for_each(|block| self.redact_content(block));
        if let Some(raw) = &mut output.raw {
            self.redact_artifact(raw);
        }
        for command in &mut output.commands {
            match command {
                Command::Start { args, .. } => self.redact_shared(args),
                Command::Signal { value, .. } | Command::Emit { value, .. } => self.redact_shared(value),
                Command::Cancel { reason, .. } => self.redact_text(reason),
                // Names of tools, and contents of files, which are stored before.
                Command::Tools { .. } | Command::Edit { .. } => {}
                Command::Post { message } => {
                    message.content.iter_mut().for_each(|block| self.redact_content(block));
                }
            }
        }
    }

    fn redact_shared(&self, value: &mut Arc<Value>) {
        let mut clean = Value::clone(value);
        self.redact_value(&mut clean);
        if clean != **value {
            *value = Arc::new(clean);
        }
    }

    fn redact_content(&self, block: &mut Content) {
        match block {
            Content::Text { text } => self.redact_text(text),
            Content::Image(artifact) | Content::Audio(artifact) | Content::File(artifact) => {
                self.redact_artifact(artifact);
            }
        }
    }

    /// Only inline text is searched: bytes in the store are written by the body itself.
    fn redact_artifact(&self, artifact: &mut Artifact) {
        if let Data::Inline(bytes) = &artifact.data
            && let Ok(text) = std::str::from_utf8(bytes)
            && let Cow::Owned(clean) = self.redact(text)
        {
            artifact.data = Data::Inline(clean.into_bytes().into());
        }
    }

    /// Replaces the secrets in every string and every key of a value.
    pub fn redact_value(&self, value: &mut Value) {
        if self.needles.is_empty() {
            return;
        }
        match value {
            Value::String(text) => self.redact_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(map) => {
                let dirty = |key: &&String| matches!(self.redact(key), Cow::Owned(_));
                for key in map.keys().filter(dirty).cloned().collect::<Vec<_>>() {
                    if let Some(item) = map.remove(&key) {
                        map.insert(self.redact(&key).into_owned(), item);
                    }
                }
                map.values_mut().for_each(|item| self.redact_value(item));
            }
            _ => {}
        }
    }
}

/// Every character that has a meaning anywhere in a URL is encoded.
fn percent(text: &str, write: fn(&mut String, u8) -> std::fmt::Result) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            _ => _ = write(&mut encoded, byte),
        }
    }
    encoded
}

/// The Base64 of a value that follows other text, such as a password after its user name: the part that does not depend
/// on the bytes around it, for each of the three offsets at which it can begin.
fn inner_base64(value: &str) -> Vec<String> {
    let bytes = value.as_bytes();
    (1..3)
        .filter_map(|skip: usize| {
            let inner = bytes.get(skip..)?;
            let whole = inner.len() - inner.len() % 3;
            // Shorter parts of a secret would match ordinary text.
            (whole >= 6).then(|| STANDARD_NO_PAD.encode(&inner[..whole]))
        })
        .chain((bytes.len() >= 6).then(|| STANDARD_NO_PAD.encode(&bytes[..bytes.len() - bytes.len() % 3])))
        .collect()
}
