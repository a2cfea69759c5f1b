//! [openapi.NAME]: tools from an OpenAPI document.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windlass::tool::nearest;
use windlass::{Effect, Policy, Tool};
use windlass_tools::net::{Client, HeaderMap, Method, Outgoing, Url};
use windlass_tools::openapi::{self, Deprecated, Imported, LeftOut, Options};
use windlass_tools::secret::{Secrets, Text};

use super::context::ReadContext;
use super::problem::Problem;
use super::read;
use super::text::listed;
use super::tool::effect;
use super::tree::Span;
use super::view::View;
use super::{BuiltTools, ConfigTool, Tools};
use crate::style::counted;

/// How many operations a warning names; it counts the others.
const MAX_NAMED: usize = 10;

/// A document, and how its operations become tools.
#[derive(Clone)]
pub(super) struct Api {
    /// `openapi.NAME`.
    path: String,
    location: DocumentLocation,
    /// The position of the document's name in the file.
    at: Span,
    base: Option<String>,
    variables: BTreeMap<String, String>,
    include: Vec<String>,
    exclude: Vec<String>,
    deprecated: Deprecated,
    prefix: String,
    security: BTreeMap<String, Text>,
    effects: Vec<(String, Effect, Span)>,
    tags: Vec<String>,
    policy: Policy,
}

#[derive(Clone)]
enum DocumentLocation {
    File(PathBuf),
    Url(Url),
}

pub(super) fn read(name: &str, view: &View<'_>, context: &mut ReadContext, problems: &mut Vec<Problem>) -> Option<Api> {
    let base = view.get("base_url").and_then(|entry| context.url(entry, &view.path_of("base_url"), problems));
    let mut security = BTreeMap::new();
    for entry in view.entries("security") {
        let path = format!("{}.{}", view.path_of("security"), entry.key);
        let Some(text) = context.text(&entry.node, &path, problems) else { continue };
        if text.secrets().next().is_none() {
            let problem = format!("`{path}`: a credential must not be written in this file");
            let problem = Problem::error("bad_value", &entry.node.span, problem).hidden();
            problems.push(problem.help("define it in [secrets], and write \"${secret:NAME}\" here"));
        }
        security.insert(entry.key.clone(), text);
    }
    let effects = view.entries("effect").iter();
    let owned = |texts: Vec<&str>| -> Vec<String> { texts.into_iter().map(str::to_owned).collect() };
    let variables = view.entries("variables").iter();
    let (location, at) = location(view, context, problems)?;
    Some(Api {
        path: view.path.clone(),
        location,
        at,
        base: base.map(|_| view.text("base_url").unwrap_or_default().to_owned()),
        variables: variables.filter_map(|entry| Some((entry.key.clone(), entry.node.text()?.to_owned()))).collect(),
        include: owned(view.texts("include")),
        exclude: owned(view.texts("exclude")),
        deprecated: if view.text("deprecated") == Some("mark") { Deprecated::Mark } else { Deprecated::Skip },
        prefix: view.text("prefix").map_or_else(|| format!("{name}_"), str::to_owned),
        security,
        effects: effects
            .filter_map(|entry| Some((entry.key.clone(), effect(entry.node.text()?)?, entry.at.clone())))
            .collect(),
        tags: owned(view.texts("tags")),
        policy: read::policy(view),
    })
}

fn location(view: &View<'_>, context: &ReadContext, problems: &mut Vec<Problem>) -> Option<(DocumentLocation, Span)> {
    match (view.get("file"), view.get("url")) {
        (Some(file), None) => Some((DocumentLocation::File(context.path(file.node.text()?)), file.node.span.clone())),
        (None, Some(entry)) => {
            let url = context.url(entry, &view.path_of("url"), problems)?;
            match context.net.allows(&url) {
                Ok(()) => Some((DocumentLocation::Url(url), entry.node.span.clone())),
                Err(problem) => {
                    let problem = format!("`{}`: {problem}", view.path_of("url"));
                    problems.push(Problem::error("bad_url", &entry.node.span, problem));
                    None
                }
            }
        }
        (file, url) => {
            let problem = format!("[{}] needs either `file` or `url`", view.path);
            let at = url.or(file).map_or(&view.at, |entry| &entry.at);
            problems.push(Problem::error("missing_key", at, problem).help("they name the OpenAPI document"));
            None
        }
    }
}

impl Api {
    /// The document, if it is a file.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.location {
            DocumentLocation::File(path) => Some(path),
            DocumentLocation::Url(_) => None,
        }
    }

    /// Reads the document and builds its tools. Operations that cannot become tools are reported as warnings.
    pub(super) async fn tools(
        &self,
        secrets: &Secrets,
        client: &Client,
        built: &mut BuiltTools,
    ) -> Result<(), Vec<Problem>> {
        let of_document = |bad: openapi::Problem| self.problem("bad_document", bad.to_string());
        let text = self.text(client).await.map_err(|problem| vec![self.problem("unreadable", problem)])?;
        let document = openapi::parse(&text).map_err(|bad| vec![of_document(bad)])?;
        drop(text);
        let options = Options {
            secrets: secrets.clone(),
            security: self.security.clone(),
            base: self.base.clone(),
            variables: self.variables.clone(),
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            deprecated: self.deprecated,
            prefix: self.prefix.clone(),
            ..Options::new(client.clone())
        };
        let found = openapi::tools(document, &options);
        let found = found.map_err(|bad| bad.into_iter().map(of_document).collect::<Vec<_>>())?;
        if found.tools.is_empty() {
            let problem = self.problem("no_tools", "no operation of the document becomes a tool".to_owned());
            return Err(vec![
                problem.help("check `include` and `exclude`; deprecated operations are left out by default"),
            ]);
        }
        built.warnings.extend(self.left_out(&found.left_out));
        self.add(self.apply_settings(found.tools)?, &mut built.tools)
    }

    /// The warnings about operations that were left out, one per reason.
    fn left_out(&self, left_out: &[LeftOut]) -> Vec<Problem> {
        let mut by_reason: Vec<(&str, Vec<&LeftOut>)> = Vec::new();
        for one in left_out {
            let reason = one.problem.message.as_str();
            match by_reason.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, same)) => same.push(one),
                None => by_reason.push((reason, vec![one])),
            }
        }
        let warning = |(reason, same): (&str, Vec<&LeftOut>)| {
            let named: Vec<&str> = same.iter().take(MAX_NAMED).map(|one| one.operation.as_str()).collect();
            let more = same.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let (what, operations) = (counted(same.len(), "operation"), named.join("`, `"));
            let pointer = same.first().map(|one| one.problem.pointer.as_str()).unwrap_or_default();
            let message = format!("[{}]: {what} left out, `{operations}`{more}: {reason} ({pointer})", self.path);
            let warning = Problem::warning("left_out", &self.at, message);
            warning.help("list unwanted operations in `exclude` to suppress this warning")
        };
        by_reason.into_iter().map(warning).collect()
    }

    async fn text(&self, client: &Client) -> Result<String, String> {
        match &self.location {
            DocumentLocation::File(path) => {
                std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
            }
            DocumentLocation::Url(url) => {
                let (headers, body) = (HeaderMap::new(), Default::default());
                let request = Outgoing { method: Method::GET, url: url.clone(), headers, body };
                let answer = client.send(request).await.map_err(|error| error.to_string())?;
                if !answer.status.is_success() {
                    return Err(format!("{url} responded with {}", answer.status));
                }
                String::from_utf8(answer.body.to_vec()).map_err(|_| format!("{url} is not valid UTF-8"))
            }
        }
    }

    /// Applies the policy, tags and effects of the section to the tools.
    fn apply_settings(&self, tools: Vec<Imported>) -> Result<Vec<Imported>, Vec<Problem>> {
        let names: Vec<String> = tools.iter().map(|imported| imported.tool.spec().name.to_string()).collect();
        let mut problems = Vec::new();
        let mut effects = BTreeMap::new();
        for (name, effect, at) in &self.effects {
            if names.contains(name) {
                effects.insert(name.as_str(), *effect);
                continue;
            }
            let problem = format!("`{}.effect`: the document has no tool `{name}`", self.path);
            let problem = Problem::error("unknown_tool", at, problem);
            problems.push(match nearest(name, names.iter().map(String::as_str)) {
                Some(near) => problem.label(format!("did you mean `{near}`?")),
                None => {
                    problem.help(format!("the tools are {}", listed(names.iter().map(String::as_str).take(20), "and")))
                }
            });
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let apply = |mut imported: Imported| {
            let effect = effects.get(&*imported.tool.spec().name).copied();
            imported.tool = imported.tool.policy(self.policy.clone()).with(|spec| {
                spec.effect = effect.unwrap_or(spec.effect);
                spec.about.tags.extend(self.tags.iter().cloned());
            });
            imported
        };
        Ok(tools.into_iter().map(apply).collect())
    }

    /// Adds tools, unless another tool has the same name.
    fn add(&self, found: Vec<Imported>, tools: &mut Tools) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        for Imported { tool, revision, .. } in found {
            let name = tool.spec().name.clone();
            let has_name = |other: &Tool| {
                other.spec().name == name || other.spec().aliases.iter().any(|alias| alias.as_str() == &*name)
            };
            match tools.iter().find(|other| has_name(&other.tool)) {
                Some(ConfigTool { from, .. }) => {
                    let problem = format!("the document has a tool `{name}`, but [{from}] already defines that name");
                    problems.push(self.problem("name_taken", problem).help("set another `prefix`"));
                }
                None => tools.push(ConfigTool { from: self.path.clone(), tool, revision: Some(revision) }),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn problem(&self, code: &'static str, problem: String) -> Problem {
        Problem::error(code, &self.at, format!("[{}]: {problem}", self.path))
    }
}
