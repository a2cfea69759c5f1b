//! A document, and the targets of its references.
//!
//! A document is kept as text, split into parts: one for each item of `paths` and of each kind of `components`. As
//! parsed values it would take twenty times the memory, and most of it is never used. A [`DocumentView`] parses the
//! parts that one operation needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use serde_json::value::RawValue;

use super::Problem;

/// Longest chain of references.
const CHAIN: usize = 32;

/// A parsed OpenAPI document; [`parse`](super::parse) creates one from a text.
pub struct Document {
    parts: Vec<Part>,
    /// Indices of parts by their pointers: `/components/schemas/Pet`.
    by_pointer: BTreeMap<String, usize>,
    paths: BTreeSet<String>,
    /// Whether schemas are those of 3.0, which differ from JSON Schema.
    pub(crate) old: bool,
}

/// Compact JSON.
type Part = Box<str>;

/// A view of a document. The parts it has parsed stay in memory until it is dropped.
pub(crate) struct DocumentView {
    document: Arc<Document>,
    parsed: Vec<OnceLock<Result<Value, String>>>,
}

/// A value in a document, and its pointer.
#[derive(Clone, Debug)]
pub(crate) struct Node<'d> {
    pub(crate) value: &'d Value,
    pub(crate) pointer: String,
}

impl Document {
    /// Splits a document in JSON into its parts.
    pub(crate) fn split(json: &str) -> Result<Self, Problem> {
        let mut document = Self { parts: Vec::new(), by_pointer: BTreeMap::new(), paths: BTreeSet::new(), old: false };
        let not_json = |error: serde_json::Error| Problem::at("#", format!("the document is not JSON: {error}"));
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
            Some(version) => {
                Err(Problem::at("#/openapi", format!("version {version} is not supported; use OpenAPI 3.0 or 3.1")))
            }
            None if part("/swagger").is_some() => {
                Err(Problem::at("#/swagger", "Swagger 2 is not supported; convert the document to OpenAPI 3"))
            }
            None => Err(Problem::at("#/openapi", "this is not an OpenAPI document: it has no version")),
        }
    }

    /// Creates a view, with nothing parsed yet.
    pub(crate) fn view(self: &Arc<Self>) -> DocumentView {
        let parsed = self.parts.iter().map(|_| OnceLock::new()).collect();
        DocumentView { document: self.clone(), parsed }
    }

    /// Its paths, with the pointers of their items.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&str, String)> {
        self.paths.iter().map(|path| (path.as_str(), format!("#/paths/{}", escaped(path))))
    }

    /// The part that contains a pointer such as `#/components/schemas/Pet/properties`, and the rest of the pointer
    /// within it.
    pub(crate) fn part<'p>(&self, pointer: &'p str) -> Option<(usize, &'p str)> {
        let pointer = pointer.strip_prefix('#')?;
        let ends = pointer.match_indices('/').map(|(at, _)| at).chain([pointer.len()]);
        // The first match is the leading slash.
        let cut = |end: usize| Some((*self.by_pointer.get(&pointer[..end])?, &pointer[end..]));
        ends.skip(1).take(3).find_map(cut)
    }

    /// The text of a part.
    pub(crate) fn text(&self, part: usize) -> &str {
        self.parts.get(part).map_or("null", |text| text)
    }
}

/// The entries of an object, with their values not parsed.
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

impl DocumentView {
    pub(crate) fn is_old(&self) -> bool {
        self.document.old
    }

    /// The value at a pointer such as `#/components/schemas/Pet`.
    pub(crate) fn at(&self, pointer: &str) -> Option<Node<'_>> {
        self.find(pointer).ok().flatten()
    }

    /// The same, but fails if the part cannot be parsed.
    pub(crate) fn find(&self, pointer: &str) -> Result<Option<Node<'_>>, Problem> {
        let Some((part, rest)) = self.document.part(pointer) else { return Ok(None) };
        let Some(parsed) = self.parsed.get(part) else { return Ok(None) };
        let read = || serde_json::from_str(self.document.text(part)).map_err(|error| error.to_string());
        let whole = parsed.get_or_init(read).as_ref();
        let whole = whole.map_err(|error| Problem::at(pointer, format!("this part cannot be parsed: {error}")))?;
        Ok(whole.pointer(rest).map(|value| Node { value, pointer: pointer.to_owned() }))
    }

    /// Follows references until there is none.
    pub(crate) fn follow<'d>(&'d self, node: Node<'d>) -> Result<Node<'d>, Problem> {
        let mut node = node;
        for _ in 0..CHAIN {
            let Some(reference) = node.value.get("$ref") else { return Ok(node) };
            node = self.target(reference, &node.pointer)?;
        }
        Err(Problem::at(&node.pointer, "the references form a cycle"))
    }

    /// The target of a reference at this pointer.
    pub(crate) fn target(&self, reference: &Value, here: &str) -> Result<Node<'_>, Problem> {
        let text = reference.as_str().ok_or_else(|| Problem::at(here, "`$ref` must be a string"))?;
        if !text.starts_with('#') {
            return Err(Problem::at(here, format!("`{text}` is in another document; bundle the documents into one")));
        }
        let found = self.find(&decoded(text))?;
        found.ok_or_else(|| Problem::at(here, format!("`{text}` does not exist in the document")))
    }
}

impl<'d> Node<'d> {
    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<Node<'d>> {
        let value = self.value.get(key)?;
        Some(Node { value, pointer: format!("{}/{}", self.pointer, escaped(key)) })
    }

    /// An element of an array.
    pub(crate) fn get_nth(&self, n: usize) -> Option<Node<'d>> {
        let value = self.value.get(n)?;
        Some(Node { value, pointer: format!("{}/{n}", self.pointer) })
    }

    /// The elements of an array or the entries of an object, in order.
    pub(crate) fn children(&self) -> Vec<(String, Node<'d>)> {
        let node =
            |key: String, value| (key.clone(), Node { value, pointer: format!("{}/{}", self.pointer, escaped(&key)) });
        match self.value {
            Value::Array(items) => items.iter().enumerate().map(|(n, value)| node(n.to_string(), value)).collect(),
            Value::Object(map) => map.iter().map(|(key, value)| node(key.clone(), value)).collect(),
            _ => Vec::new(),
        }
    }

    /// The string value of a key.
    pub(crate) fn text(&self, key: &str) -> Option<&'d str> {
        self.value.get(key)?.as_str()
    }

    /// Whether the value of a key is `true`.
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

/// Decodes a pointer in a fragment, which may be percent-encoded.
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
    fn a_document_is_split_into_parts_with_the_same_content() {
        let json = json!({
            "openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "x-more": {"deep": [1, {"a b": " \\\" "}]},
            "paths": {"/a/{b}": {"get": {"summary": "a \"quoted\\\" text"}}, "/~": {}},
            "components": {"schemas": {"A/B": {"type": "object", "x": [[], {}, "\\"]}}, "odd": 5}
        });
        let document = Arc::new(Document::split(&serde_json::to_string_pretty(&json).unwrap()).unwrap());
        let view = document.view();
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
            let found = view.at(&format!("#{pointer}")).unwrap_or_else(|| panic!("nothing at {pointer}"));
            assert_eq!(Some(found.value), json.pointer(pointer), "{pointer}");
        }
        for pointer in ["#", "#/", "#/paths/~1b", "#/components/schemas/A", "#/servers/1", "openapi"] {
            assert!(view.at(pointer).is_none(), "{pointer}");
        }
        let paths: Vec<&str> = document.paths().map(|(path, _)| path).collect();
        assert_eq!(paths, ["/a/{b}", "/~"]);
        let kept: usize = document.parts.iter().map(|part| part.len()).sum();
        assert!(kept < json.to_string().len(), "white space is not kept");
    }

    #[test]
    fn a_part_that_cannot_be_parsed_is_reported_and_hides_no_other() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let json = format!(r#"{{"openapi": "3.0.0", "paths": {{"/a": {deep}, "/b": {{}}}}}}"#);
        let view = Arc::new(Document::split(&json).unwrap()).view();
        let problem = view.find("#/paths/~1a").unwrap_err().to_string();
        assert!(problem.starts_with("#/paths/~1a: this part cannot be parsed: recursion limit"), "{problem}");
        assert!(view.at("#/paths/~1b").is_some());
    }
}
