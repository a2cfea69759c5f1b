//! A tool that is a request.

use serde_json::Value;
use windlass_tools::http::{Address, Request, Template};

use super::input;
use super::outside::Outside;
use super::problem::Problem;
use super::tool::missing;
use super::tree::{Item, Node};
use super::view::View;

/// Headers that carry credentials.
const CREDENTIALS: [&str; 5] = ["authorization", "api-key", "apikey", "token", "cookie"];

/// Reads a request. `schema` is what its calls take.
pub(super) fn read(
    view: &View<'_>,
    schema: &Value,
    outside: &mut Outside,
    problems: &mut Vec<Problem>,
) -> Option<Request> {
    let before = problems.len();
    let method = view.text("method").unwrap_or("GET");
    let url = view.get("url")?;
    let mut checker = Checker { view, schema, outside, problems, request: nowhere() };
    match Request::new(method, url.node.text().unwrap_or_default()) {
        Ok(request) => {
            checker.request = request;
            checker.templates(&url.node, &view.path_of("url"));
            checker.reachable(&url.node);
        }
        // What is no text was reported.
        Err(problem) if url.node.text().is_some() => checker.wrong(&url.node, "url", &problem.message),
        Err(_) => {}
    }
    checker.headers();
    checker.body();
    checker.options();
    let request = checker.request;
    let errors = problems[before..].iter().any(|problem| problem.severity == super::Severity::Error);
    (!errors).then(|| request.secrets(outside.secrets.clone()))
}

/// Stands for a request whose address cannot be read, so that the rest of it can be.
fn nowhere() -> Request {
    Request::new("POST", "https://nowhere.invalid/").unwrap_or_else(|problem| unreachable!("{problem}"))
}

struct Checker<'c, 't> {
    view: &'c View<'t>,
    schema: &'c Value,
    outside: &'c mut Outside,
    problems: &'c mut Vec<Problem>,
    request: Request,
}

impl Checker<'_, '_> {
    fn wrong(&mut self, node: &Node, key: &str, message: &str) {
        let problem = format!("`{}`: {message}", self.view.path_of(key));
        self.problems.push(Problem::error("bad_request", &node.span, problem));
    }

    /// An address that the rules of `[net]` forbid would fail every call.
    fn reachable(&mut self, node: &Node) {
        let Some(Ok(address)) = node.text().map(str::parse::<Address>) else { return };
        if let Err(problem) = self.outside.net.allows(address.base()) {
            self.wrong(node, "url", &problem);
        }
    }

    fn headers(&mut self) {
        for entry in self.view.entries("headers") {
            let Some(text) = entry.node.text() else { continue };
            let path = format!("headers.{}", entry.key);
            match self.request.clone().header(&entry.key, text) {
                Ok(request) => {
                    self.request = request;
                    self.templates(&entry.node, &self.view.path_of(&path));
                    self.written_out(&entry.key, &entry.node);
                }
                Err(problem) => self.wrong(&entry.node, &path, &problem.message),
            }
        }
    }

    /// Warns of what is probably a secret.
    fn written_out(&mut self, name: &str, node: &Node) {
        let name = name.to_lowercase();
        let template = node.text().and_then(|text| text.parse::<Template>().ok()).unwrap_or_default();
        let places = template.secrets().next().is_some() || template.arguments().next().is_some();
        if !places && CREDENTIALS.iter().any(|credential| name.contains(credential)) {
            let problem = format!("`{}.{name}` looks like a secret that is written out", self.view.path_of("headers"));
            let problem = Problem::warning("written_secret", &node.span, problem).hidden();
            self.problems.push(problem.help("put it into [secrets] and write ${secret:NAME} here"));
        }
    }

    fn body(&mut self) {
        if let (Some(_), Some(form)) = (self.view.get("body"), self.view.get("form")) {
            self.wrong(&form.node, "form", "a request has a body or a form, not both");
        }
        if let Some(body) = self.view.get("body") {
            match self.request.clone().json(&body.node.json()) {
                Ok(request) => {
                    self.request = request;
                    self.below(&body.node, &self.view.path_of("body"));
                }
                Err(problem) => {
                    let pointer = problem.place.strip_prefix("body").unwrap_or_default();
                    self.wrong(body.node.nearest(pointer), "body", &problem.message);
                }
            }
        }
        if let Some(form) = self.view.get("form") {
            let entries = self.view.entries("form");
            let fields = entries.iter().filter_map(|entry| Some((entry.key.as_str(), entry.node.text()?)));
            match self.request.clone().form(fields) {
                Ok(request) => {
                    self.request = request;
                    self.below(&form.node, &self.view.path_of("form"));
                }
                Err(problem) => {
                    let name = problem.place.strip_prefix("form.").unwrap_or_default();
                    let field = entries.iter().find(|entry| entry.key == name);
                    self.wrong(field.map_or(&form.node, |entry| &entry.node), "form", &problem.message);
                }
            }
        }
    }

    fn options(&mut self) {
        if let Some(shown) = self.view.get("show_headers") {
            match self.request.clone().show_headers(self.view.texts("show_headers")) {
                Ok(request) => self.request = request,
                Err(problem) => self.wrong(&shown.node, "show_headers", &problem.message),
            }
        }
        if let Some(header) = self.view.get("key_header") {
            match self.request.clone().key_header(header.node.text().unwrap_or_default()) {
                Ok(request) => self.request = request,
                Err(problem) => self.wrong(&header.node, "key_header", &problem.message),
            }
        }
    }

    /// Every text in a value.
    fn below(&mut self, node: &Node, path: &str) {
        match &node.item {
            Item::Text(_) => self.templates(node, path),
            Item::List(items) => items.iter().for_each(|item| self.below(item, path)),
            Item::Table(table) => {
                table.0.iter().for_each(|entry| self.below(&entry.node, &format!("{path}.{}", entry.key)));
            }
            _ => {}
        }
    }

    /// What a template names must be there.
    fn templates(&mut self, node: &Node, path: &str) {
        let Some(Ok(template)) = node.text().map(str::parse::<Template>) else { return };
        self.outside.mentions(template.secrets(), node, path, self.problems);
        for name in template.arguments().filter(|name| !input::has_argument(self.schema, &[name])) {
            let span = self.outside.within(&node.span, &format!("args.{name}"));
            let problem = format!("`{path}`: the input has no argument `{name}`");
            self.problems.push(missing(Problem::error("unknown_argument", &span, problem), self.schema, name));
        }
    }
}
