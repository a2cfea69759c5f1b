//! OpenAPI documents as tools: each operation is one, under the same rules as any other request.
//!
//! Parameters become arguments of the same name, and the body becomes the argument `body`. Where two would have the
//! same name, it gets the parameter's location as a prefix (`query_id`). Schemas of 3.0 are converted to JSON Schema
//! 2020-12. The effect class follows from the method, unless the operation has `x-windlass-effect`.

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
use document::{DocumentView, Node};
use operation::{METHODS, Operation};
use revision::Revisions;

/// The schemas of documents with more operations than this are created when they are first needed.
const LAZY_ABOVE: usize = 64;
/// Most problems that are reported for one document.
const MAX_PROBLEMS: usize = 50;

/// A problem of a document, and its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// A JSON pointer into the document: `#/paths/~1pets/get`.
    pub pointer: String,
    /// The problem.
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

/// What to do with deprecated operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deprecated {
    /// They are left out.
    #[default]
    Skip,
    /// They become tools whose description says that they are deprecated.
    Mark,
}

/// How a document is turned into tools.
pub struct Options {
    /// Sends the requests.
    pub client: Client,
    /// The secrets of its credentials.
    pub secrets: Secrets,
    /// The credential of each security scheme: a token, a key, or `user:password`.
    pub security: BTreeMap<String, Text>,
    /// The base URL, instead of the document's first server.
    pub base: Option<String>,
    /// Values of the server's variables, instead of their defaults.
    pub variables: BTreeMap<String, String>,
    /// Which operations become tools; all if empty. In a pattern `*` matches anything. It is compared with the
    /// operation's id, with `METHOD /path` or, as `tag:PATTERN`, with its tags.
    pub include: Vec<String>,
    /// Which of those are left out.
    pub exclude: Vec<String>,
    /// What to do with deprecated operations.
    pub deprecated: Deprecated,
    /// The prefix of every tool's name.
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

    fn wants(&self, id: &str, label: &str, tags: &[String]) -> bool {
        let fits = |pattern: &String| match pattern.strip_prefix("tag:") {
            Some(pattern) => tags.iter().any(|tag| name::fits(pattern, tag)),
            None => name::fits(pattern, id) || name::fits(pattern, label),
        };
        (self.include.is_empty() || self.include.iter().any(fits)) && !self.exclude.iter().any(fits)
    }
}

/// Parses a document in JSON or YAML.
pub fn parse(text: &str) -> Result<Document, Problem> {
    if text.trim_start().starts_with('{') {
        return Document::split(text);
    }
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| Problem::at("#", format!("the document is neither JSON nor YAML: {error}")))?;
    Document::split(&value.to_string())
}

/// The tools of a document.
#[derive(Debug)]
#[non_exhaustive]
pub struct Import {
    /// The tools, in the order of the document's paths.
    pub tools: Vec<Imported>,
    /// Operations that were selected and cannot become tools.
    pub left_out: Vec<LeftOut>,
}

/// An operation that became a tool.
#[derive(Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The tool.
    pub tool: Tool,
    /// Changes whenever the operation, or anything it refers to, changes. Valid within one process only; do not store
    /// it.
    pub revision: u64,
}

/// An operation that cannot become a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// `METHOD /path`.
    pub operation: String,
    /// The reason.
    pub problem: Problem,
}

/// The tools of a document. Fails with all problems if no selected operation can become a tool.
pub fn tools(document: Document, options: &Options) -> Result<Import, Vec<Problem>> {
    let document = Arc::new(document);
    let mut left_out = Vec::new();
    let wanted = wanted(&document, options, &mut left_out);
    let lazy = wanted.len() > LAZY_ABOVE;
    let mut revisions = Revisions::new(&document);
    let mut taken = BTreeSet::new();
    let mut tools = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        // An operation that cannot become a tool still occupies its name, so that its problem does not rename others.
        let name = name::unique(&format!("{}{}", options.prefix, wanted.id), &mut taken);
        let label = wanted.label.clone();
        match import(&document, wanted, name, options, lazy, &mut revisions) {
            Ok(imported) => tools.push(imported),
            Err(problem) => left_out.push(LeftOut { operation: label, problem }),
        }
    }
    if tools.is_empty() && !left_out.is_empty() {
        return Err(distinct(left_out));
    }
    Ok(Import { tools, left_out })
}

fn import(
    document: &Arc<Document>,
    wanted: WantedOperation,
    name: String,
    options: &Options,
    lazy: bool,
    revisions: &mut Revisions<'_>,
) -> Result<Imported, Problem> {
    // A view for each operation: one view would keep the whole parsed document in memory.
    let view = document.view();
    let item = item(&view, &wanted.pointer)?;
    let operation = Operation::read(&view, &wanted.path, &item, wanted.method, options)?;
    let spec = describe(name, item.get(wanted.method), &wanted.label, wanted.tags);
    let revision = revisions.of(&item, wanted.method);
    Ok(Imported { tool: tool::tool(document, operation, spec, options, lazy)?, revision })
}

/// The problems without repetitions: every operation of a document may lack the same credential.
fn distinct(left_out: Vec<LeftOut>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let problems = left_out.into_iter().map(|left_out| left_out.problem);
    problems.filter(|problem| seen.insert(problem.message.clone())).take(MAX_PROBLEMS).collect()
}

/// An operation that is selected to become a tool.
struct WantedOperation {
    path: String,
    /// The pointer of the path item.
    pointer: String,
    method: &'static str,
    id: String,
    tags: Vec<String>,
    /// `METHOD /path`.
    label: String,
}

/// A path item, which may be a reference.
fn item<'d>(view: &'d DocumentView, pointer: &str) -> Result<Node<'d>, Problem> {
    let item = view.find(pointer)?.ok_or_else(|| Problem::at(pointer, "the path item does not exist"))?;
    view.follow(item)
}

fn wanted(document: &Arc<Document>, options: &Options, left_out: &mut Vec<LeftOut>) -> Vec<WantedOperation> {
    let mut wanted = Vec::new();
    for (path, pointer) in document.paths().filter(|(path, _)| path.starts_with('/')) {
        let view = document.view();
        let item = match item(&view, &pointer) {
            Ok(item) => item,
            Err(problem) => {
                left_out.push(LeftOut { operation: path.to_owned(), problem });
                continue;
            }
        };
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let label = format!("{} {path}", method.to_ascii_uppercase());
            let id = operation.text("operationId").map_or_else(|| format!("{method}_{path}"), str::to_owned);
            let tags = operation.get("tags").map(|tags| tags.children()).unwrap_or_default();
            let tags: Vec<String> = tags.iter().filter_map(|(_, tag)| tag.value.as_str()).map(str::to_owned).collect();
            let skipped = operation.is("deprecated") && options.deprecated == Deprecated::Skip;
            if !skipped && options.wants(&id, &label, &tags) {
                wanted.push(WantedOperation {
                    path: path.to_owned(),
                    pointer: pointer.clone(),
                    method,
                    id,
                    tags,
                    label,
                });
            }
        }
    }
    wanted
}

/// The name, title, description and tags of a tool.
fn describe(name: String, node: Option<Node<'_>>, label: &str, tags: Vec<String>) -> ToolSpec {
    let text = |key: &str| node.as_ref().and_then(|node| node.text(key)).map(str::trim).filter(|text| !text.is_empty());
    let (summary, description) = (text("summary"), text("description"));
    let mut paragraphs: Vec<&str> = Vec::new();
    if node.as_ref().is_some_and(|node| node.is("deprecated")) {
        paragraphs.push("Deprecated.");
    }
    paragraphs.extend(summary);
    paragraphs.extend(description.filter(|description| Some(*description) != summary));
    let description = if paragraphs.is_empty() { label.to_owned() } else { paragraphs.join("\n\n") };
    let mut spec = ToolSpec::new(name, description);
    spec.about.title = summary.map(str::to_owned);
    spec.about.tags = tags;
    spec
}

#[cfg(test)]
mod tests;
