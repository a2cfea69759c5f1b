//! Text that mentions secrets: `Bearer ${secret:stripe}`.

use std::fmt;

use super::{Redactor, Secret, SecretError, Secrets};

/// A text of plain pieces and `${secret:NAME}`. `$${` is a plain `${`. The text with the names may be shown; the text
/// with the values may not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Plain(String),
    Secret(String),
}

/// A text with invalid syntax.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct BadText(String);

impl std::str::FromStr for Text {
    type Err = BadText;

    fn from_str(source: &str) -> Result<Self, BadText> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = source;
        while let Some(at) = rest.find("${") {
            if rest[..at].ends_with('$') {
                plain.push_str(&rest[..at - 1]);
                plain.push_str("${");
                rest = &rest[at + 2..];
                continue;
            }
            plain.push_str(&rest[..at]);
            let Some((inside, after)) = rest[at + 2..].split_once('}') else {
                return Err(BadText(
                    "`${` is not closed; write `${secret:NAME}`, or `$${` for a plain `${`".to_owned(),
                ));
            };
            let name = inside.strip_prefix("secret:").filter(|name| is_name(name)).ok_or_else(|| {
                let help = "write `${secret:NAME}`, or `$${` for a plain `${`";
                BadText(format!("`${{{inside}}}` is not a secret; {help}"))
            })?;
            if !plain.is_empty() {
                pieces.push(Piece::Plain(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Secret(name.to_owned()));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Plain(plain));
        }
        Ok(Self { pieces })
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

impl Text {
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The names of the secrets it mentions.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Secret(name) => Some(name.as_str()),
            Piece::Plain(_) => None,
        })
    }

    /// The text with the current values of its secrets. The result is secret too.
    pub fn resolve(&self, secrets: &Secrets) -> Result<Secret, SecretError> {
        self.resolve_noting(secrets, &mut Redactor::default())
    }

    /// The same, and adds every value to `seen`, so that it is redacted later.
    pub fn resolve_noting(&self, secrets: &Secrets, seen: &mut Redactor) -> Result<Secret, SecretError> {
        let mut whole = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Plain(text) => whole.push_str(text),
                Piece::Secret(name) => {
                    let secret = secrets.resolve(name)?;
                    seen.add(name, secret.expose());
                    whole.push_str(secret.expose());
                }
            }
        }
        Ok(Secret::new(&whole))
    }
}

/// The text as written: names, not values.
impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces.iter().try_for_each(|piece| match piece {
            Piece::Plain(text) => f.write_str(&text.replace("${", "$${")),
            Piece::Secret(name) => write!(f, "${{secret:{name}}}"),
        })
    }
}

impl<'de> serde::Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Reference;

    #[test]
    fn e26_a_text_names_its_secrets_and_is_shown_without_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        std::fs::write(&path, "hunter2${secret:other}").unwrap();
        let secrets = Secrets::new([("k.1".to_owned(), Reference::File(path))]);
        let text: Text = "a$${b} Bearer ${secret:k.1}!".parse().unwrap();
        assert_eq!(text.secrets().collect::<Vec<_>>(), ["k.1"]);
        assert_eq!(text.to_string(), "a$${b} Bearer ${secret:k.1}!");
        assert_eq!(text.to_string().parse::<Text>().unwrap(), text);
        let resolved = text.resolve(&secrets).unwrap();
        assert_eq!(resolved.expose(), "a${b} Bearer hunter2${secret:other}!", "a value is not expanded again");
    }

    #[test]
    fn an_invalid_text_reports_the_expected_syntax() {
        for (source, expected) in [
            ("${secret:a", "not closed"),
            ("${HOME}", "`${HOME}` is not a secret"),
            ("${secret:}", "is not a secret"),
            ("${secret:a b}", "is not a secret"),
        ] {
            let error = source.parse::<Text>().unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("write `${secret:NAME}`"), "{source}: {error}");
        }
        assert_eq!("".parse::<Text>().unwrap(), Text::default());
    }
}
