//! [openapi.NAME]: tools from a document.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windlass::{Effect, Policy, Tool};
use windlass_tools::net::{Client, HeaderMap, Method, Outgoing, Url};
use windlass_tools::openapi::{self, Deprecated, Options};
use windlass_tools::secret::{Secrets, Text};

use super::Tools;
use super::near::{listed, nearest};
use super::outside::Outside;
use super::problem::Problem;
use super::read;
use super::tool::effect;
use super::tree::Span;
use super::view::View;

/// A document to be read, and what is to become of it.
#[derive(Clone)]
pub(super) struct Api {
    /// `openapi.NAME`.
    path: String,
    place: Place,
    /// Where the file names the document.
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
enum Place {
    File(PathBuf),
    Url(Url),
}

pub(super) fn read(name: &str, view: &View<'_>, outside: &mut Outside, problems: &mut Vec<Problem>) -> Option<Api> {
    let base = view.get("base_url").and_then(|entry| outside.url(entry, &view.path_of("base_url"), problems));
    let mut security = BTreeMap::new();
    for entry in view.entries("security") {
        let path = format!("{}.{}", view.path_of("security"), entry.key);
        let Some(text) = outside.text(&entry.node, &path, problems) else { continue };
        if text.secrets().next().is_none() {
            let problem = format!("`{path}`: a credential is never written into this file");
            let problem = Problem::error("bad_value", &entry.node.span, problem).hidden();
            problems.push(problem.help("put it into [secrets] and write \"${secret:NAME}\""));
        }
        security.insert(entry.key.clone(), text);
    }
    let effects = view.entries("effect").iter();
    let owned = |texts: Vec<&str>| -> Vec<String> { texts.into_iter().map(str::to_owned).collect() };
    let variables = view.entries("variables").iter();
    let (place, at) = place(view, outside, problems)?;
    Some(Api {
        path: view.path.clone(),
        place,
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

fn place(view: &View<'_>, outside: &Outside, problems: &mut Vec<Problem>) -> Option<(Place, Span)> {
    match (view.get("file"), view.get("url")) {
        (Some(file), None) => Some((Place::File(outside.path(file.node.text()?)), file.node.span.clone())),
        (None, Some(entry)) => {
            let url = outside.url(entry, &view.path_of("url"), problems)?;
            match outside.net.allows(&url) {
                Ok(()) => Some((Place::Url(url), entry.node.span.clone())),
                Err(problem) => {
                    let problem = format!("`{}`: {problem}", view.path_of("url"));
                    problems.push(Problem::error("bad_url", &entry.node.span, problem));
                    None
                }
            }
        }
        (file, url) => {
            let problem = format!("[{}] needs one of `file` and `url`", view.path);
            let at = url.or(file).map_or(&view.at, |entry| &entry.at);
            problems.push(Problem::error("missing_key", at, problem).help("say where the OpenAPI document is"));
            None
        }
    }
}

impl Api {
    /// The document, if it is a file.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Url(_) => None,
        }
    }

    /// Reads the document and makes its tools.
    pub(super) async fn tools(&self, secrets: &Secrets, client: &Client) -> Result<Vec<Tool>, Vec<Problem>> {
        let text = self.text(client).await.map_err(|problem| vec![self.problem("unreadable", problem)])?;
        let of_document = |bad: openapi::Problem| self.problem("bad_document", bad.to_string());
        let document = openapi::parse(&text).map_err(|bad| vec![of_document(bad)])?;
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
        let found = openapi::tools(&document, &options);
        let found = found.map_err(|bad| bad.into_iter().map(of_document).collect::<Vec<_>>())?;
        if found.is_empty() {
            let problem = self.problem("no_tools", "no operation is left to be a tool".to_owned());
            return Err(vec![
                problem.help("look at `include` and `exclude`; deprecated operations are left out unless set"),
            ]);
        }
        self.governed(found)
    }

    async fn text(&self, client: &Client) -> Result<String, String> {
        match &self.place {
            Place::File(path) => std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display())),
            Place::Url(url) => {
                let (headers, body) = (HeaderMap::new(), Default::default());
                let request = Outgoing { method: Method::GET, url: url.clone(), headers, body };
                let answer = client.send(request).await.map_err(|error| error.to_string())?;
                if !answer.status.is_success() {
                    return Err(format!("{url} answers {}", answer.status));
                }
                String::from_utf8(answer.body.to_vec()).map_err(|_| format!("{url} is not UTF-8"))
            }
        }
    }

    /// Tools with what the section says about all of them, and about single ones.
    fn governed(&self, tools: Vec<Tool>) -> Result<Vec<Tool>, Vec<Problem>> {
        let names: Vec<String> = tools.iter().map(|tool| tool.spec().name.to_string()).collect();
        let mut problems = Vec::new();
        let mut effects = BTreeMap::new();
        for (name, effect, at) in &self.effects {
            if names.contains(name) {
                effects.insert(name.as_str(), *effect);
                continue;
            }
            let problem = format!("`{}.effect`: the document makes no tool `{name}`", self.path);
            let problem = Problem::error("unknown_tool", at, problem);
            problems.push(match nearest(name, names.iter().map(String::as_str)) {
                Some(near) => problem.label(format!("did you mean `{near}`?")),
                None => problem.help(format!("there are {}", listed(names.iter().map(String::as_str).take(20), "and"))),
            });
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let govern = |tool: Tool| {
            let effect = effects.get(&*tool.spec().name).copied();
            tool.policy(self.policy.clone()).with(|spec| {
                spec.effect = effect.unwrap_or(spec.effect);
                spec.about.tags.extend(self.tags.iter().cloned());
            })
        };
        Ok(tools.into_iter().map(govern).collect())
    }

    /// Adds tools to those there are, unless another has the name.
    pub(super) fn add(&self, found: Vec<Tool>, tools: &mut Tools, problems: &mut Vec<Problem>) {
        for tool in found {
            let name = tool.spec().name.clone();
            let names = |known: &Tool| {
                known.spec().name == name || known.spec().aliases.iter().any(|alias| alias.as_str() == &*name)
            };
            match tools.iter().find(|(_, known)| names(known)) {
                Some((from, _)) => {
                    let problem = format!("the document makes a tool `{name}`, which [{from}] has already");
                    problems.push(self.problem("name_taken", problem).help("set another `prefix`"));
                }
                None => tools.push((self.path.clone(), tool)),
            }
        }
    }

    fn problem(&self, code: &'static str, problem: String) -> Problem {
        Problem::error(code, &self.at, format!("[{}]: {problem}", self.path))
    }
}
