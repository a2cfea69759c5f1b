//! A document, and what its references lead to.
//!
//! A document is kept as text, cut into parts: an item of `paths` or of a kind of `components` each. As values it would take
//! twenty times the memory, and most of it is never asked for. A [`Reading`] holds the parts that one look at it needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use serde_json::value::RawValue;

use super::Problem;

/// Longest chain of references.
const CHAIN: usize = 32;

/// An OpenAPI document that was read: [`parse`](super::parse) makes one of a text.
pub struct Document {
    parts: Vec<Part>,
    /// Numbers of parts, by their pointers: `/components/schemas/Pet`.
    by_pointer: BTreeMap<String, usize>,
    paths: BTreeSet<String>,
    /// Schemas are those of 3.0, which are not quite JSON Schema.
    pub(crate) old: bool,
}

/// JSON without spaces.
type Part = Box<str>;

/// A look at a document. What it needed stays in memory until it is dropped.
pub(crate) struct Reading {
    document: Arc<Document>,
    parsed: Vec<OnceLock<Result<Value, String>>>,
}

/// Something in a document, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Spot<'d> {
    pub(crate) value: &'d Value,
    pub(crate) pointer: String,
}

impl Document {
    /// Cuts a document in JSON into its parts.
    pub(crate) fn cut(json: &str) -> Result<Self, Problem> {
        let mut document = Self { parts: Vec::new(), by_pointer: BTreeMap::new(), paths: BTreeSet::new(), old: false };
        let not_json = |error: serde_json::Error| Problem::at("#", format!("it is no JSON: {error}"));
        let root: &RawValue = serde_json::from_str(json).map_err(not_json)?;
        if let Some(entries) = entries(root) {
            for (key, value) in entries {
                let levels = match key.as_str() {
                    "paths" => 1,
                    "components" => 2,
                    _ => 0,
                };
                document.add(format!("/{}", escaped(&key)), value, levels);
            }
        }
        document.old = document.version()?;
        Ok(document)
    }

    fn add(&mut self, pointer: String, value: &RawValue, levels: usize) {
        let Some(entries) = (levels > 0).then(|| entries(value)).flatten() else {
            self.by_pointer.insert(pointer, self.parts.len());
            self.parts.push(without_spaces(value.get()));
            return;
        };
        for (key, value) in entries {
            let below = format!("{pointer}/{}", escaped(&key));
            if pointer == "/paths" {
                self.paths.insert(key);
            }
            self.add(below, value, levels - 1);
        }
    }

    /// Whether the document's schemas are those of 3.0.
    fn version(&self) -> Result<bool, Problem> {
        let part = |pointer: &str| self.by_pointer.get(pointer).and_then(|n| self.parts.get(*n));
        let version = part("/openapi").and_then(|text| serde_json::from_str::<String>(text).ok());
        match version.as_deref() {
            Some(version) if version.starts_with("3.0.") => Ok(true),
            Some(version) if version.starts_with("3.1.") => Ok(false),
            Some(version) => Err(Problem::at("#/openapi", format!("version {version} is not read: 3.0 and 3.1 are"))),
            None if part("/swagger").is_some() => {
                Err(Problem::at("#/swagger", "Swagger 2 is not read; convert the document to OpenAPI 3"))
            }
            None => Err(Problem::at("#/openapi", "this is no OpenAPI document: it does not name its version")),
        }
    }

    /// Looks at it.
    pub(crate) fn open(self: &Arc<Self>) -> Reading {
        let parsed = self.parts.iter().map(|_| OnceLock::new()).collect();
        Reading { document: self.clone(), parsed }
    }

    /// Its paths, with the pointers of their items.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&str, String)> {
        self.paths.iter().map(|path| (path.as_str(), format!("#/paths/{}", escaped(path))))
    }

    /// The part in which a pointer such as `#/components/schemas/Pet/properties` leads, and the rest of the way.
    pub(crate) fn part<'p>(&self, pointer: &'p str) -> Option<(usize, &'p str)> {
        let pointer = pointer.strip_prefix('#')?;
        let ends = pointer.match_indices('/').map(|(at, _)| at).chain([pointer.len()]);
        // The first is before everything.
        let cut = |end: usize| Some((*self.by_pointer.get(&pointer[..end])?, &pointer[end..]));
        ends.skip(1).take(3).find_map(cut)
    }

    /// The text of a part.
    pub(crate) fn text(&self, part: usize) -> &str {
        self.parts.get(part).map_or("null", |text| text)
    }
}

/// What an object has, without reading further than where each begins and ends.
fn entries(value: &RawValue) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(value.get()).ok()
}

fn without_spaces(json: &str) -> Box<str> {
    let (mut quoted, mut escaped) = (false, false);
    let keep = |c: &char| {
        let kept = quoted || !matches!(c, ' ' | '\t' | '\n' | '\r');
        (quoted, escaped) = match c {
            '"' => (escaped == quoted, false),
            '\\' => (quoted, quoted && !escaped),
            _ => (quoted, false),
        };
        kept
    };
    json.chars().filter(keep).collect::<String>().into_boxed_str()
}

impl Reading {
    pub(crate) fn is_old(&self) -> bool {
        self.document.old
    }

    /// What a pointer such as `#/components/schemas/Pet` names.
    pub(crate) fn at(&self, pointer: &str) -> Option<Spot<'_>> {
        self.find(pointer).ok().flatten()
    }

    /// The same; a part that cannot be read is a problem.
    pub(crate) fn find(&self, pointer: &str) -> Result<Option<Spot<'_>>, Problem> {
        let Some((part, rest)) = self.document.part(pointer) else { return Ok(None) };
        let Some(parsed) = self.parsed.get(part) else { return Ok(None) };
        let read = || serde_json::from_str(self.document.text(part)).map_err(|error| error.to_string());
        let whole = parsed.get_or_init(read).as_ref();
        let whole = whole.map_err(|error| Problem::at(pointer, format!("it cannot be read: {error}")))?;
        Ok(whole.pointer(rest).map(|value| Spot { value, pointer: pointer.to_owned() }))
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
        let found = self.find(&decoded(text))?;
        found.ok_or_else(|| Problem::at(here, format!("there is nothing at `{text}`")))
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
pub(crate) fn decoded(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_cut_into_parts_that_read_as_it_does() {
        let json = json!({
            "openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "x-more": {"deep": [1, {"a b": " \\\" "}]},
            "paths": {"/a/{b}": {"get": {"summary": "a \"quoted\\\" text"}}, "/~": {}},
            "components": {"schemas": {"A/B": {"type": "object", "x": [[], {}, "\\"]}}, "odd": 5}
        });
        let document = Arc::new(Document::cut(&serde_json::to_string_pretty(&json).unwrap()).unwrap());
        let reading = document.open();
        for pointer in [
            "/openapi",
            "/servers/0/url",
            "/x-more",
            "/x-more/deep/1/a b",
            "/paths/~1a~1{b}",
            "/paths/~1a~1{b}/get/summary",
            "/paths/~1~0",
            "/components/schemas/A~1B",
            "/components/schemas/A~1B/x/2",
            "/components/odd",
        ] {
            let found = reading.at(&format!("#{pointer}")).unwrap_or_else(|| panic!("nothing at {pointer}"));
            assert_eq!(Some(found.value), json.pointer(pointer), "{pointer}");
        }
        for pointer in ["#", "#/", "#/paths/~1b", "#/components/schemas/A", "#/servers/1", "openapi"] {
            assert!(reading.at(pointer).is_none(), "{pointer}");
        }
        let paths: Vec<&str> = document.paths().map(|(path, _)| path).collect();
        assert_eq!(paths, ["/a/{b}", "/~"]);
        let kept: usize = document.parts.iter().map(|part| part.len()).sum();
        assert!(kept < json.to_string().len(), "spaces are not kept");
    }

    #[test]
    fn a_part_that_cannot_be_read_is_named_and_hides_no_other() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let json = format!(r#"{{"openapi": "3.0.0", "paths": {{"/a": {deep}, "/b": {{}}}}}}"#);
        let reading = Arc::new(Document::cut(&json).unwrap()).open();
        let problem = reading.find("#/paths/~1a").unwrap_err().to_string();
        assert!(problem.starts_with("#/paths/~1a: it cannot be read: recursion limit"), "{problem}");
        assert!(reading.at("#/paths/~1b").is_some());
    }
}
