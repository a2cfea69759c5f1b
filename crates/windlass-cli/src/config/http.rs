//! A tool that makes an HTTP request.

use serde_json::Value;
use windlass_tools::http::{Address, Request, Template};

use super::context::ReadContext;
use super::input;
use super::problem::Problem;
use super::tool::suggest_argument;
use super::tree::{Item, Node};
use super::view::View;

/// Headers that carry credentials.
const CREDENTIALS: [&str; 5] = ["authorization", "api-key", "apikey", "token", "cookie"];

/// Reads a request. `schema` is the schema of the arguments.
pub(super) fn read(
    view: &View<'_>,
    schema: &Value,
    context: &mut ReadContext,
    problems: &mut Vec<Problem>,
) -> Option<Request> {
    let before = problems.len();
    let method = view.text("method").unwrap_or("GET");
    let url = view.get("url")?;
    let mut checker = Checker { view, schema, context, problems, request: placeholder() };
    match Request::new(method, url.node.text().unwrap_or_default()) {
        Ok(request) => {
            checker.request = request;
            checker.templates(&url.node, &view.path_of("url"));
            checker.check_reachable(&url.node);
        }
        // A value that is not a string was already reported.
        Err(problem) if url.node.text().is_some() => checker.wrong(&url.node, "url", &problem.message),
        Err(_) => {}
    }
    checker.headers();
    checker.body();
    checker.options();
    let request = checker.request;
    let errors = problems[before..].iter().any(|problem| problem.severity == super::Severity::Error);
    (!errors).then(|| request.secrets(context.secrets.clone()))
}

/// Replaces a request with an invalid URL, so that the rest of it can be checked.
fn placeholder() -> Request {
    Request::new("POST", "https://placeholder.invalid/").unwrap_or_else(|problem| unreachable!("{problem}"))
}

struct Checker<'c, 't> {
    view: &'c View<'t>,
    schema: &'c Value,
    context: &'c mut ReadContext,
    problems: &'c mut Vec<Problem>,
    request: Request,
}

impl Checker<'_, '_> {
    fn wrong(&mut self, node: &Node, key: &str, message: &str) {
        let problem = format!("`{}`: {message}", self.view.path_of(key));
        self.problems.push(Problem::error("bad_request", &node.span, problem));
    }

    /// Refuses a URL that the rules of `[net]` forbid: every call would fail.
    fn check_reachable(&mut self, node: &Node) {
        let Some(Ok(address)) = node.text().map(str::parse::<Address>) else { return };
        if let Err(problem) = self.context.net.allows(address.base()) {
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
                    self.check_plain_secret(&entry.key, &entry.node);
                }
                Err(problem) => self.wrong(&entry.node, &path, &problem.message),
            }
        }
    }

    /// Warns about a value that is probably a secret.
    fn check_plain_secret(&mut self, name: &str, node: &Node) {
        let name = name.to_lowercase();
        let template = node.text().and_then(|text| text.parse::<Template>().ok()).unwrap_or_default();
        let has_placeholders = template.secrets().next().is_some() || template.arguments().next().is_some();
        if !has_placeholders && CREDENTIALS.iter().any(|credential| name.contains(credential)) {
            let problem = format!("`{}.{name}` looks like a secret in plain text", self.view.path_of("headers"));
            let problem = Problem::warning("written_secret", &node.span, problem).hidden();
            self.problems.push(problem.help("define it in [secrets], and write ${secret:NAME} here"));
        }
    }

    fn body(&mut self) {
        if let (Some(_), Some(form)) = (self.view.get("body"), self.view.get("form")) {
            self.wrong(&form.node, "form", "a request has either a body or a form");
        }
        if let Some(body) = self.view.get("body") {
            match self.request.clone().json(&body.node.json()) {
                Ok(request) => {
                    self.request = request;
                    self.check_strings(&body.node, &self.view.path_of("body"));
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
                    self.check_strings(&form.node, &self.view.path_of("form"));
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
        if let Some(provider) = self.view.text("connection_on_401") {
            self.request = self.request.clone().connection_on_401(provider);
        }
        if let Some(header) = self.view.get("key_header") {
            match self.request.clone().key_header(header.node.text().unwrap_or_default()) {
                Ok(request) => self.request = request,
                Err(problem) => self.wrong(&header.node, "key_header", &problem.message),
            }
        }
    }

    /// Checks every string in a value.
    fn check_strings(&mut self, node: &Node, path: &str) {
        match &node.item {
            Item::String(_) => self.templates(node, path),
            Item::List(items) => items.iter().for_each(|item| self.check_strings(item, path)),
            Item::Table(table) => {
                table.0.iter().for_each(|entry| self.check_strings(&entry.node, &format!("{path}.{}", entry.key)));
            }
            _ => {}
        }
    }

    /// Checks that the secrets and arguments of a template exist.
    fn templates(&mut self, node: &Node, path: &str) {
        let Some(Ok(template)) = node.text().map(str::parse::<Template>) else { return };
        self.context.use_secrets(template.secrets(), node, path, self.problems);
        for name in template.arguments().filter(|name| !input::has_argument(self.schema, &[name])) {
            let span = self.context.within(&node.span, &format!("args.{name}"));
            let problem = format!("`{path}`: the input has no argument `{name}`");
            self.problems.push(suggest_argument(Problem::error("unknown_argument", &span, problem), self.schema, name));
        }
    }
}
