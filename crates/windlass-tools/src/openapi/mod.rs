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
mod revision;
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
pub use document::Document;
use document::{Reading, Spot};
use operation::{METHODS, Operation};
use revision::Revisions;

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
pub fn parse(text: &str) -> Result<Document, Problem> {
    if text.trim_start().starts_with('{') {
        return Document::cut(text);
    }
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| Problem::at("#", format!("it is neither JSON nor YAML: {error}")))?;
    Document::cut(&value.to_string())
}

/// What a document made.
#[derive(Debug)]
#[non_exhaustive]
pub struct Import {
    /// Its tools, in the order of its paths.
    pub tools: Vec<Imported>,
    /// Operations that were wanted and cannot be tools.
    pub left_out: Vec<LeftOut>,
}

/// An operation that became a tool.
#[derive(Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The tool.
    pub tool: Tool,
    /// Changes whenever the operation, or anything it refers to, does. Of one process: it is not for keeping.
    pub revision: u64,
}

/// An operation that cannot be a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// `METHOD /path`.
    pub operation: String,
    /// Why.
    pub problem: Problem,
}

/// The tools of a document. One that none of its wanted operations can make a tool of is refused with everything that is wrong.
pub fn tools(document: Document, options: &Options) -> Result<Import, Vec<Problem>> {
    let document = Arc::new(document);
    let mut left_out = Vec::new();
    let wanted = wanted(&document, options, &mut left_out);
    let lazy = wanted.len() > LARGE;
    let mut revisions = Revisions::new(&document);
    let mut taken = BTreeSet::new();
    let mut tools = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        // A name is taken whether or not its operation can be a tool: what is wrong with one does not rename others.
        let name = name::unique(&format!("{}{}", options.prefix, wanted.id), &mut taken);
        let place = wanted.place.clone();
        match import(&document, wanted, name, options, lazy, &mut revisions) {
            Ok(imported) => tools.push(imported),
            Err(problem) => left_out.push(LeftOut { operation: place, problem }),
        }
    }
    if tools.is_empty() && !left_out.is_empty() {
        return Err(each_once(left_out));
    }
    Ok(Import { tools, left_out })
}

fn import(
    document: &Arc<Document>,
    wanted: Wanted,
    name: String,
    options: &Options,
    lazy: bool,
    revisions: &mut Revisions<'_>,
) -> Result<Imported, Problem> {
    // A reading for each: of a whole document at once they take more memory than all that is kept.
    let reading = document.open();
    let item = item(&reading, &wanted.pointer)?;
    let operation = Operation::read(&reading, &wanted.path, &item, wanted.method, options)?;
    let spec = describe(name, item.get(wanted.method), &wanted.place, wanted.tags);
    let revision = revisions.of(&item, wanted.method);
    Ok(Imported { tool: tool::tool(document, operation, spec, options, lazy)?, revision })
}

/// Problems, each once: a whole document may want for the same credential.
fn each_once(left_out: Vec<LeftOut>) -> Vec<Problem> {
    let mut known = BTreeSet::new();
    let problems = left_out.into_iter().map(|left_out| left_out.problem);
    problems.filter(|problem| known.insert(problem.message.clone())).take(MOST_PROBLEMS).collect()
}

/// An operation that is to become a tool.
struct Wanted {
    path: String,
    /// Of the path item.
    pointer: String,
    method: &'static str,
    id: String,
    tags: Vec<String>,
    /// `METHOD /path`.
    place: String,
}

/// A path item, which may be kept elsewhere.
fn item<'d>(reading: &'d Reading, pointer: &str) -> Result<Spot<'d>, Problem> {
    let item = reading.find(pointer)?.ok_or_else(|| Problem::at(pointer, "there is nothing here"))?;
    reading.follow(item)
}

fn wanted(document: &Arc<Document>, options: &Options, left_out: &mut Vec<LeftOut>) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for (path, pointer) in document.paths().filter(|(path, _)| path.starts_with('/')) {
        let reading = document.open();
        let item = match item(&reading, &pointer) {
            Ok(item) => item,
            Err(problem) => {
                left_out.push(LeftOut { operation: path.to_owned(), problem });
                continue;
            }
        };
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let place = format!("{} {path}", method.to_ascii_uppercase());
            let id = operation.text("operationId").map_or_else(|| format!("{method}_{path}"), str::to_owned);
            let tags = operation.get("tags").map(|tags| tags.children()).unwrap_or_default();
            let tags: Vec<String> = tags.iter().filter_map(|(_, tag)| tag.value.as_str()).map(str::to_owned).collect();
            let skipped = operation.is("deprecated") && options.deprecated == Deprecated::Skip;
            if !skipped && options.wants(&id, &place, &tags) {
                wanted.push(Wanted { path: path.to_owned(), pointer: pointer.clone(), method, id, tags, place });
            }
        }
    }
    wanted
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
