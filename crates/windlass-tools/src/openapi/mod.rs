//! OpenAPI documents as tools: each operation one, under the rules of any other request.
//!
//! Parameters are arguments by their names, and a body is the argument `body`; where two would have one name, the place they
//! go stands before it (`query_id`). Schemas of 3.0 are put into the words of JSON Schema 2020-12. The effect class follows
//! from the method, unless the operation says `x-windlass-effect`.

mod body;
mod document;
mod name;
mod operation;
mod parameter;
mod schema;
mod security;
mod tool;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use windlass::{Tool, ToolSpec};

use crate::net::Client;
use crate::secret::{Secrets, Text};
use document::{Document, Spot};
use operation::{METHODS, Operation};

/// Documents with more operations than this have their schemas made when they are needed.
const LARGE: usize = 64;
/// Most problems that are reported of one document.
const MOST_PROBLEMS: usize = 50;

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// A JSON pointer into the document: `#/paths/~1pets/get`.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

impl Problem {
    fn at(pointer: &str, message: impl Into<String>) -> Self {
        Self { pointer: pointer.to_owned(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.message)
    }
}

/// What becomes of operations that are deprecated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deprecated {
    /// They are left out.
    #[default]
    Skip,
    /// They are tools, and say so.
    Mark,
}

/// How a document becomes tools.
pub struct Options {
    /// Sends the requests.
    pub client: Client,
    /// Where credentials come from.
    pub secrets: Secrets,
    /// The credential of each security scheme: a token, a key, or `user:password`.
    pub security: BTreeMap<String, Text>,
    /// The base address, instead of the document's first server.
    pub base: Option<String>,
    /// Values of the server's variables, instead of their defaults.
    pub variables: BTreeMap<String, String>,
    /// Which operations become tools; all if nothing is said. `*` stands for anything; a pattern is about the operation's id,
    /// about `METHOD /path`, or, as `tag:PATTERN`, about its tags.
    pub include: Vec<String>,
    /// Which of those do not.
    pub exclude: Vec<String>,
    /// What becomes of deprecated ones.
    pub deprecated: Deprecated,
    /// What every name begins with.
    pub prefix: String,
}

impl Options {
    /// All operations, without credentials.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            secrets: Secrets::default(),
            security: BTreeMap::new(),
            base: None,
            variables: BTreeMap::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            deprecated: Deprecated::default(),
            prefix: String::new(),
        }
    }

    fn wants(&self, id: &str, place: &str, tags: &[String]) -> bool {
        let fits = |pattern: &String| match pattern.strip_prefix("tag:") {
            Some(pattern) => tags.iter().any(|tag| name::fits(pattern, tag)),
            None => name::fits(pattern, id) || name::fits(pattern, place),
        };
        (self.include.is_empty() || self.include.iter().any(fits)) && !self.exclude.iter().any(fits)
    }
}

/// Reads a document, in JSON or YAML.
pub fn parse(text: &str) -> Result<Value, Problem> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| Problem::at("#", format!("it is no JSON: {error}")));
    }
    serde_saphyr::from_str(text).map_err(|error| Problem::at("#", format!("it is neither JSON nor YAML: {error}")))
}

/// The tools of a document, or everything that is wrong with it.
pub fn tools(document: &Value, options: &Options) -> Result<Vec<Tool>, Vec<Problem>> {
    let document = Arc::new(Document::new(document.clone()).map_err(|problem| vec![problem])?);
    let mut problems = Problems::default();
    let wanted = problems.note(wanted(&document, options)).unwrap_or_default();
    let lazy = wanted.len() > LARGE;
    let mut taken = BTreeSet::new();
    let mut tools = Vec::with_capacity(wanted.len());
    for Wanted { path, item, method, id, tags, place } in wanted {
        let Some(operation) = problems.note(Operation::read(&document, &path, &item, method, options)) else {
            continue;
        };
        let name = name::unique(&format!("{}{id}", options.prefix), &mut taken);
        let spec = describe(name, document.at(&operation.pointer), &place, tags);
        tools.extend(problems.note(tool::tool(&document, operation, spec, options, lazy)));
    }
    if problems.found.is_empty() { Ok(tools) } else { Err(problems.found) }
}

/// Problems, each once: a whole document may want for the same credential.
#[derive(Default)]
struct Problems {
    found: Vec<Problem>,
    known: BTreeSet<String>,
}

impl Problems {
    fn note<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(problem) => {
                if self.found.len() < MOST_PROBLEMS && self.known.insert(problem.message.clone()) {
                    self.found.push(problem);
                }
                None
            }
        }
    }
}

/// An operation that is to become a tool.
struct Wanted<'d> {
    path: String,
    item: Spot<'d>,
    method: &'static str,
    id: String,
    tags: Vec<String>,
    /// `METHOD /path`.
    place: String,
}

fn wanted<'d>(document: &'d Document, options: &Options) -> Result<Vec<Wanted<'d>>, Problem> {
    let paths = document.root().get("paths").map(|paths| paths.children()).unwrap_or_default();
    let mut wanted = Vec::new();
    for (path, item) in paths.into_iter().filter(|(path, _)| path.starts_with('/')) {
        let item = document.follow(item)?;
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let place = format!("{} {path}", method.to_ascii_uppercase());
            let id = operation.text("operationId").map_or_else(|| format!("{method}_{path}"), str::to_owned);
            let tags = operation.get("tags").map(|tags| tags.children()).unwrap_or_default();
            let tags: Vec<String> = tags.iter().filter_map(|(_, tag)| tag.value.as_str()).map(str::to_owned).collect();
            let skipped = operation.is("deprecated") && options.deprecated == Deprecated::Skip;
            if !skipped && options.wants(&id, &place, &tags) {
                wanted.push(Wanted { path: path.clone(), item: item.clone(), method, id, tags, place });
            }
        }
    }
    Ok(wanted)
}

/// What a tool says about itself.
fn describe(name: String, spot: Option<Spot<'_>>, place: &str, tags: Vec<String>) -> ToolSpec {
    let text = |key: &str| spot.as_ref().and_then(|spot| spot.text(key)).map(str::trim).filter(|text| !text.is_empty());
    let (summary, description) = (text("summary"), text("description"));
    let mut said: Vec<&str> = Vec::new();
    if spot.as_ref().is_some_and(|spot| spot.is("deprecated")) {
        said.push("Deprecated.");
    }
    said.extend(summary);
    said.extend(description.filter(|description| Some(*description) != summary));
    let said = if said.is_empty() { place.to_owned() } else { said.join("\n\n") };
    let mut spec = ToolSpec::new(name, said);
    spec.about.title = summary.map(str::to_owned);
    spec.about.tags = tags;
    spec
}

#[cfg(test)]
mod tests;
