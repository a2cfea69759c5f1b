//! Removes secrets from text that leaves the process.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::Value;

use super::Secret;
use crate::encode;

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
    pub fn add(&mut self, name: &str, secret: &Secret) {
        let value = secret.expose();
        if value.len() < SHORTEST {
            return;
        }
        let json = Value::from(value).to_string();
        let forms = [
            value.to_owned(),
            json.trim_matches('"').to_owned(),
            encode::strict(value),
            encode::strict_small(value),
            encode::form(value),
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

    /// Replaces the secrets in every string and every key of a value.
    pub fn redact_value(&self, value: &mut Value) {
        if self.needles.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Cow::Owned(clean) = self.redact(text) {
                    *text = clean;
                }
            }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn redactor(values: &[(&str, &str)]) -> Redactor {
        let mut redactor = Redactor::default();
        values.iter().for_each(|(name, value)| redactor.add(name, &Secret::new(value)));
        redactor
    }

    #[test]
    fn e26_a_value_is_redacted_in_every_encoding() {
        let value = "p@ss \"wörd\"/+";
        let redactor = redactor(&[("db", value)]);
        let basic = STANDARD.encode(format!("user:{value}"));
        for (form, text) in [
            ("plain", value.to_owned()),
            ("JSON", json!({"k": value}).to_string()),
            ("percent", encode::strict(value)),
            ("percent with lower-case digits", encode::strict_small(value)),
            ("form", encode::form(value)),
            ("Base64", STANDARD.encode(value)),
            ("Base64 for URLs", URL_SAFE_NO_PAD.encode(value)),
            ("basic authentication", basic),
        ] {
            let clean = redactor.redact(&text).into_owned();
            assert!(clean.contains("[secret db]"), "{form}: {text} became {clean}");
            assert!(!clean.contains("wörd") && !clean.contains("ss%20"), "{form}: {clean}");
        }
        assert_eq!(redactor.redact("nothing here"), "nothing here");
    }

    #[test]
    fn e26_longer_values_are_replaced_first_and_very_short_ones_never() {
        let redactor = redactor(&[("short", "abc"), ("inner", "token"), ("outer", "token-token")]);
        assert_eq!(redactor.redact("abc token-token token"), "abc [secret outer] [secret inner]");
    }

    #[test]
    fn e26_values_are_redacted_inside_of_json() {
        let mut value = json!({"echo": {"Bearer hunter2": ["hunter2", 5]}});
        redactor(&[("k", "hunter2")]).redact_value(&mut value);
        assert_eq!(value, json!({"echo": {"Bearer [secret k]": ["[secret k]", 5]}}));
    }

    proptest! {
        #[test]
        fn e26_no_text_keeps_a_value(value in "[!-~]{6,24}", before in "[a-z ]{0,9}", after in "[a-z ]{0,9}") {
            // A value that occurs in its own replacement would be found there.
            prop_assume!(!"[secret XYZ]".contains(&value));
            let redactor = redactor(&[("XYZ", &value)]);
            let clean = redactor.redact(&format!("{before}{value}{after}")).into_owned();
            prop_assert!(clean.contains("[secret XYZ]"));
            prop_assert!(!clean.contains(&value));
        }
    }
}
