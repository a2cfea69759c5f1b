//! A document, and what its references lead to.

use serde_json::Value;

use super::Problem;

/// Longest chain of references.
const CHAIN: usize = 32;

/// A document that was read.
pub(crate) struct Document {
    root: Value,
    /// Schemas are those of 3.0, which are not quite JSON Schema.
    pub(crate) old: bool,
}

/// Something in a document, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Spot<'d> {
    pub(crate) value: &'d Value,
    pub(crate) pointer: String,
}

impl Document {
    pub(crate) fn new(root: Value) -> Result<Self, Problem> {
        let old = match root["openapi"].as_str() {
            Some(version) if version.starts_with("3.0.") => true,
            Some(version) if version.starts_with("3.1.") => false,
            Some(version) => {
                return Err(Problem::at("#/openapi", format!("version {version} is not read: 3.0 and 3.1 are")));
            }
            None if root.get("swagger").is_some() => {
                return Err(Problem::at("#/swagger", "Swagger 2 is not read; convert the document to OpenAPI 3"));
            }
            None => return Err(Problem::at("#/openapi", "this is no OpenAPI document: it does not name its version")),
        };
        Ok(Self { root, old })
    }

    /// The document itself.
    pub(crate) fn root(&self) -> Spot<'_> {
        Spot { value: &self.root, pointer: "#".to_owned() }
    }

    /// What a pointer such as `#/components/schemas/Pet` names.
    pub(crate) fn at(&self, pointer: &str) -> Option<Spot<'_>> {
        let value = self.root.pointer(pointer.strip_prefix('#')?)?;
        Some(Spot { value, pointer: pointer.to_owned() })
    }

    /// What this is once its references are followed.
    pub(crate) fn follow<'d>(&'d self, spot: Spot<'d>) -> Result<Spot<'d>, Problem> {
        let mut spot = spot;
        for _ in 0..CHAIN {
            let Some(reference) = spot.value.get("$ref") else { return Ok(spot) };
            spot = self.target(reference, &spot.pointer)?;
        }
        Err(Problem::at(&spot.pointer, "the references go round in a circle"))
    }

    /// What a reference that stands here leads to.
    pub(crate) fn target(&self, reference: &Value, here: &str) -> Result<Spot<'_>, Problem> {
        let text = reference.as_str().ok_or_else(|| Problem::at(here, "a `$ref` is a text"))?;
        if !text.starts_with('#') {
            return Err(Problem::at(here, format!("`{text}` is in another document; bundle them into one")));
        }
        let pointer = decoded(text);
        self.at(&pointer).ok_or_else(|| Problem::at(here, format!("there is nothing at `{text}`")))
    }
}

impl<'d> Spot<'d> {
    /// What stands under a key.
    pub(crate) fn get(&self, key: &str) -> Option<Spot<'d>> {
        let value = self.value.get(key)?;
        Some(Spot { value, pointer: format!("{}/{}", self.pointer, escaped(key)) })
    }

    /// What stands at a place in a list.
    pub(crate) fn get_nth(&self, n: usize) -> Option<Spot<'d>> {
        let value = self.value.get(n)?;
        Some(Spot { value, pointer: format!("{}/{n}", self.pointer) })
    }

    /// What stands in a list or an object, in order.
    pub(crate) fn children(&self) -> Vec<(String, Spot<'d>)> {
        let spot =
            |key: String, value| (key.clone(), Spot { value, pointer: format!("{}/{}", self.pointer, escaped(&key)) });
        match self.value {
            Value::Array(items) => items.iter().enumerate().map(|(n, value)| spot(n.to_string(), value)).collect(),
            Value::Object(map) => map.iter().map(|(key, value)| spot(key.clone(), value)).collect(),
            _ => Vec::new(),
        }
    }

    /// The text under a key, if there is one.
    pub(crate) fn text(&self, key: &str) -> Option<&'d str> {
        self.value.get(key)?.as_str()
    }

    /// Whether a key says yes.
    pub(crate) fn is(&self, key: &str) -> bool {
        self.value.get(key) == Some(&Value::Bool(true))
    }

    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(&self.pointer, message)
    }
}

pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A pointer in a fragment may be percent-encoded.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}
