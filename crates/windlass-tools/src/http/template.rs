//! Text with placeholders: `{args.city}`, `{key}`, `${secret:NAME}`.

use std::fmt;

use serde_json::Value;
use windlass::ToolError;

use crate::secret::{self, Redactor, Secrets, Text};

/// A text with placeholders: `{args.x.y}` for an argument, `{args}` for all of them, `{key}` for the idempotency key,
/// `${secret:NAME}` for a secret. `{{` and `}}` are plain braces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Plain(String),
    Arg(Vec<String>),
    Key,
    Secret(String),
}

/// A template with invalid syntax.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct BadTemplate(pub(crate) String);

impl std::str::FromStr for Template {
    type Err = BadTemplate;

    fn from_str(source: &str) -> Result<Self, BadTemplate> {
        let text: Text = source.parse().map_err(|bad: secret::BadText| BadTemplate(bad.to_string()))?;
        let mut pieces = Vec::new();
        for piece in text.pieces() {
            match piece {
                secret::Piece::Plain(plain) => split(plain, &mut pieces)?,
                secret::Piece::Secret(name) => pieces.push(Piece::Secret(name.clone())),
            }
        }
        Ok(Self { pieces })
    }
}

/// Splits plain text at its placeholders.
fn split(text: &str, pieces: &mut Vec<Piece>) -> Result<(), BadTemplate> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
            continue;
        }
        let Some((inside, after)) = after.split_once('}').filter(|_| brace == "{") else {
            return Err(BadTemplate(format!("a `{brace}` has no partner; write `{brace}{brace}` for a plain brace")));
        };
        let placeholder = placeholder(inside)?;
        if !plain.is_empty() {
            pieces.push(Piece::Plain(std::mem::take(&mut plain)));
        }
        pieces.push(placeholder);
        rest = after;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Plain(plain));
    }
    Ok(())
}

fn placeholder(inside: &str) -> Result<Piece, BadTemplate> {
    if inside == "key" {
        return Ok(Piece::Key);
    }
    let is_name =
        |step: &str| !step.is_empty() && step.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let mut steps = inside.split('.');
    if steps.next() != Some("args") || !steps.clone().all(is_name) {
        return Err(BadTemplate(format!(
            "`{{{inside}}}` is not a placeholder: write `{{args.NAME}}`, `{{args.NAME.NAME}}`, `{{args}}` or \
             `{{key}}`; write `{{{{` for a plain brace"
        )));
    }
    Ok(Piece::Arg(steps.map(str::to_owned).collect()))
}

/// The values for templates. Records every secret that is used.
pub(crate) struct Scope<'a> {
    pub(crate) args: &'a Value,
    pub(crate) key: &'a str,
    pub(crate) secrets: &'a Secrets,
    pub(crate) seen: Redactor,
}

/// A piece as it is filled in.
pub(crate) enum Filled<'a> {
    /// Written in the template.
    Plain(&'a str),
    /// From an argument, the key or a secret: any text.
    Foreign(String),
}

impl Template {
    /// The names of the secrets it mentions.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| if let Piece::Secret(name) = piece { Some(name.as_str()) } else { None })
    }

    /// The first names of the arguments it mentions.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Arg(steps) => steps.first().map(String::as_str),
            _ => None,
        })
    }

    /// Whether it has no placeholders.
    pub(crate) fn is_plain(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Plain(_)))
    }

    /// The text with a harmless letter in each placeholder.
    pub(crate) fn sample(&self) -> String {
        self.pieces.iter().map(|piece| if let Piece::Plain(text) = piece { text.as_str() } else { "x" }).collect()
    }

    /// The argument, if the template is a single argument and nothing else.
    pub(crate) fn exact<'a>(&self, scope: &Scope<'a>) -> Option<Option<&'a Value>> {
        match self.pieces.as_slice() {
            [Piece::Arg(steps)] => Some(find(scope.args, steps)),
            _ => None,
        }
    }

    /// Fills in the placeholders.
    pub(crate) fn fill<'t>(&'t self, scope: &mut Scope<'_>) -> Result<Vec<Filled<'t>>, ToolError> {
        let mut filled = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            filled.push(match piece {
                Piece::Plain(text) => Filled::Plain(text),
                Piece::Key => Filled::Foreign(scope.key.to_owned()),
                Piece::Arg(steps) => Filled::Foreign(scalar(scope.args, steps)?),
                Piece::Secret(name) => {
                    let secret =
                        scope.secrets.resolve(name).map_err(|error| ToolError::unavailable(error.to_string()))?;
                    scope.seen.add(name, secret.expose());
                    Filled::Foreign(secret.expose().to_owned())
                }
            });
        }
        Ok(filled)
    }

    /// The text with its placeholders filled in, not encoded.
    pub(crate) fn text(&self, scope: &mut Scope<'_>) -> Result<String, ToolError> {
        let filled = self.fill(scope)?;
        Ok(filled.iter().map(Filled::as_str).collect())
    }

    /// The same; none if the template is a single argument that is not given.
    pub(crate) fn optional(&self, scope: &mut Scope<'_>) -> Result<Option<String>, ToolError> {
        match self.exact(scope) {
            Some(None | Some(Value::Null)) => Ok(None),
            _ => self.text(scope).map(Some),
        }
    }
}

impl Filled<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Foreign(text) => text,
        }
    }
}

fn find<'a>(args: &'a Value, steps: &[String]) -> Option<&'a Value> {
    steps.iter().try_fold(args, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => value.get(step),
    })
}

/// An argument as text.
fn scalar(args: &Value, steps: &[String]) -> Result<String, ToolError> {
    let unfit = |what: &str| {
        let pointer: String = steps.iter().map(|step| format!("/{step}")).collect();
        ToolError::invalid(pointer, format!("{what} here; use a string, a number or a boolean"))
    };
    match find(args, steps) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
        Some(Value::Null) | None => Err(unfit("a missing argument cannot be used")),
        Some(Value::Array(_)) => Err(unfit("a list cannot be used")),
        Some(Value::Object(_)) => Err(unfit("an object cannot be used")),
    }
}

/// The template as written.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces.iter().try_for_each(|piece| match piece {
            Piece::Plain(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}").replace("${{", "$${{")),
            Piece::Arg(steps) if steps.is_empty() => f.write_str("{args}"),
            Piece::Arg(steps) => write!(f, "{{args.{}}}", steps.join(".")),
            Piece::Key => f.write_str("{key}"),
            Piece::Secret(name) => write!(f, "${{secret:{name}}}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_filled_in() {
        let args = json!({"city": "Bern", "deep": {"n": 7, "list": [true]}});
        let secrets = Secrets::default();
        let mut scope = Scope { args: &args, key: "k1", secrets: &secrets, seen: Redactor::default() };
        for (source, expected) in [
            ("plain", "plain"),
            ("{args.city}!", "Bern!"),
            ("{args.deep.n}-{args.deep.list.0}", "7-true"),
            ("{{{args.city}}}", "{Bern}"),
            ("{key}", "k1"),
            ("a}}b", "a}b"),
        ] {
            let template: Template = source.parse().unwrap();
            assert_eq!(template.text(&mut scope).unwrap(), expected, "{source}");
            assert_eq!(template.to_string().parse::<Template>().unwrap(), template, "{template}");
        }
        for (source, pointer) in
            [("{args.none}", "/none"), ("{args.deep}", "/deep"), ("{args.deep.list}", "/deep/list")]
        {
            let error = source.parse::<Template>().unwrap().text(&mut scope).unwrap_err();
            let ToolError::InvalidArguments { violations } = error else { panic!("{error}") };
            assert_eq!(violations[0].pointer, pointer);
        }
        let error = "${secret:x}".parse::<Template>().unwrap().text(&mut scope).unwrap_err();
        assert_eq!(error.to_string(), "unavailable: there is no secret `x`: none are configured");
    }

    #[test]
    fn an_invalid_template_reports_the_expected_syntax() {
        for (source, expected) in [
            ("{city}", "`{city}` is not a placeholder"),
            ("{args.}", "is not a placeholder"),
            ("{args.a b}", "is not a placeholder"),
            ("{env.HOME}", "is not a placeholder"),
            ("{args.x", "a `{` has no partner"),
            ("x}", "a `}` has no partner"),
            ("${HOME}", "is not a secret"),
        ] {
            let error = source.parse::<Template>().unwrap_err().to_string();
            assert!(error.contains(expected), "{source}: {error}");
        }
    }
}
