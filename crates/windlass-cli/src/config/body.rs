//! [tool.NAME]: the body of a tool, and how it settles doubts.

use serde_json::Value;
use windlass::tool::Schemas;
use windlass::{Effect, Tool, ToolSpec};
use windlass_tools::http::{HappenedWhen, Request};
use windlass_tools::net::Client;
use windlass_tools::sandbox::{Kept, Launcher};
use windlass_tools::secret::Secrets;

use super::command::Program;
use super::context::ReadContext;
use super::http;
use super::problem::Problem;
use super::table_bodies::{COMMAND_KEYS, HTTP, RECONCILE};
use super::tool;
use super::view::View;

/// A tool to be built.
#[derive(Clone)]
pub(super) struct ToolPlan {
    pub(super) spec: ToolSpec,
    schemas: Schemas,
    body: ToolBody,
    reconcile: Option<ReconcileBody>,
}

#[derive(Clone)]
enum ToolBody {
    Command(Program),
    Http(Request),
}

/// How the tool settles a doubt.
#[derive(Clone)]
enum ReconcileBody {
    Command(Program),
    Http(Request, HappenedWhen),
}

impl ToolPlan {
    /// Denies its commands access to these files. Reports grants that would include one.
    pub(super) fn protect(&mut self, files: &[Kept]) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let ToolBody::Command(program) = &mut self.body {
            problems.extend(program.protect(files));
        }
        if let Some(ReconcileBody::Command(program)) = &mut self.reconcile {
            problems.extend(program.protect(files));
        }
        problems
    }

    /// The programs that it runs without a sandbox. Sandboxed commands may read them, but not replace them.
    pub(super) fn unsandboxed_programs(&self) -> Vec<Kept> {
        let body = if let ToolBody::Command(program) = &self.body { program.unsandboxed_path() } else { None };
        let reconcile = match &self.reconcile {
            Some(ReconcileBody::Command(program)) => program.unsandboxed_path(),
            _ => None,
        };
        let what = format!("the unsandboxed program of `tool.{}`", self.spec.name);
        body.into_iter().chain(reconcile).map(|path| Kept::new(what.clone(), path).readable()).collect()
    }

    /// Whether it runs a command in a sandbox.
    pub(super) fn is_sandboxed(&self) -> bool {
        let body = matches!(&self.body, ToolBody::Command(program) if program.is_sandboxed());
        body || matches!(&self.reconcile, Some(ReconcileBody::Command(program)) if program.is_sandboxed())
    }

    pub(super) fn tool(&self, secrets: &Secrets, client: &Client, launcher: &Launcher) -> Tool {
        let (spec, schemas) = (self.spec.clone(), self.schemas.clone());
        let tool = match &self.body {
            ToolBody::Command(program) => program.command(secrets, launcher).tool(spec, schemas),
            ToolBody::Http(request) => request.clone().tool(client.clone(), spec, schemas),
        };
        match &self.reconcile {
            Some(ReconcileBody::Command(program)) => program.command(secrets, launcher).reconcile(tool),
            Some(ReconcileBody::Http(request, when)) => request.clone().reconcile(client.clone(), tool, when.clone()),
            None => tool,
        }
    }
}

/// Reads a tool; `None` if it has errors, which are added to `problems`.
pub(super) fn plan(
    name: &str,
    view: &View<'_>,
    context: &mut ReadContext,
    problems: &mut Vec<Problem>,
) -> Option<ToolPlan> {
    let contract = tool::contract(view, problems);
    let schema = contract.input();
    let body = body(view, &schema, context, problems);
    let default_effect = match &body {
        Some(ToolBody::Http(request)) => request.effect(),
        _ => Effect::Once,
    };
    let spec = tool::spec(name, view, default_effect, problems);
    tool::check_arguments(view, &schema, problems);
    let reconcile = reconcile(view, body.as_ref(), &schema, context, problems);
    check_doubt_keys(view, spec.effect, problems);
    Some(ToolPlan { spec, schemas: contract.schemas(), body: body?, reconcile })
}

fn body(view: &View<'_>, schema: &Value, context: &mut ReadContext, problems: &mut Vec<Problem>) -> Option<ToolBody> {
    match (view.get("command"), view.within("http", &HTTP)) {
        (Some(_), None) => Program::read(view, schema, context, problems).map(ToolBody::Command),
        (None, Some(http)) => {
            for key in COMMAND_KEYS.iter().map(|key| key.name).chain(["sandbox"]) {
                if let Some(entry) = view.table.get(key) {
                    let problem = format!("`{}` is for commands, but this tool is an HTTP request", view.path_of(key));
                    problems.push(Problem::error("contradiction", &entry.at, problem).help("remove it"));
                }
            }
            http::read(&http, schema, context, problems).map(ToolBody::Http)
        }
        (Some(_), Some(http)) => {
            let problem = format!("[{}] has both `command` and `http`", view.path);
            problems.push(Problem::error("contradiction", &http.at, problem).help("define two tools"));
            None
        }
        (None, None) => {
            // An `http` of the wrong type was already reported.
            if view.table.get("http").is_none() {
                let problem = format!("[{}] has neither `command` nor `http`", view.path);
                let help = "add command = [\"…\"] or http = { url = \"…\" }";
                problems.push(Problem::error("missing_key", &view.at, problem).help(help));
            }
            None
        }
    }
}

fn reconcile(
    view: &View<'_>,
    body: Option<&ToolBody>,
    schema: &Value,
    context: &mut ReadContext,
    problems: &mut Vec<Problem>,
) -> Option<ReconcileBody> {
    let view = view.within("reconcile", &RECONCILE)?;
    let (command, http) = (view.get("command"), view.within("http", &HTTP));
    let conditions = ["happened_when", "did_not_happen_when"];
    match (command, http) {
        (Some(command), None) => {
            for entry in conditions.iter().filter_map(|key| view.table.get(key)) {
                let problem =
                    format!("`{}` is for HTTP requests; a command reports the result itself", view.path_of(&entry.key));
                problems.push(Problem::error("contradiction", &entry.at, problem).help("remove it"));
            }
            let base = match body {
                Some(ToolBody::Command(program)) => program.clone(),
                _ => Program::plain(),
            };
            base.reconcile(command, &view.path_of("command"), schema, context, problems).map(ReconcileBody::Command)
        }
        (None, Some(http)) => {
            let request = http::read(&http, schema, context, problems)?;
            if request.effect() != Effect::Readonly {
                let problem = format!("`{}` is not readonly: a reconcile request must not change anything", http.path);
                problems
                    .push(Problem::warning("reconcile", &http.span_of("method"), problem).help("use GET if possible"));
            }
            Some(ReconcileBody::Http(request, happened_when(&view)))
        }
        _ => {
            let problem = format!("[{}] needs either `command` or `http`", view.path);
            problems.push(Problem::error("missing_key", &view.at, problem));
            None
        }
    }
}

fn happened_when(view: &View<'_>) -> HappenedWhen {
    if view.text("happened_when") == Some("reported") {
        return HappenedWhen::Reported;
    }
    let or = |statuses: Vec<u16>, default: u16| if statuses.is_empty() { vec![default] } else { statuses };
    HappenedWhen::Status {
        happened: or(view.counts("happened_when"), 200),
        did_not_happen: or(view.counts("did_not_happen_when"), 404),
    }
}

/// Warns about keys without effect: only a call with the effect "once" can be in doubt.
fn check_doubt_keys(view: &View<'_>, effect: Effect, problems: &mut Vec<Problem>) {
    if effect == Effect::Once {
        return;
    }
    for entry in ["reconcile", "on_doubt"].iter().filter_map(|key| view.table.get(key)) {
        let problem =
            format!("`{}` is unused: only a tool with the effect \"once\" can be in doubt", view.path_of(&entry.key));
        problems.push(Problem::warning("no_use", &entry.at, problem).help("remove it, or set effect = \"once\""));
    }
}
