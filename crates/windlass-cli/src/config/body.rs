//! [tool.NAME]: what a tool does, and how it finds out whether it did.

use serde_json::Value;
use windlass::{Effect, Schemas, Tool, ToolSpec};
use windlass_tools::http::{HappenedWhen, Request};
use windlass_tools::net::Client;
use windlass_tools::sandbox::{Kept, Launcher};
use windlass_tools::secret::Secrets;

use super::command::Program;
use super::http;
use super::outside::Outside;
use super::problem::Problem;
use super::table_bodies::{COMMAND_KEYS, HTTP, RECONCILE};
use super::tool;
use super::view::View;

/// A tool to be made.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) spec: ToolSpec,
    schemas: Schemas,
    doing: Doing,
    asking: Option<Asking>,
}

#[derive(Clone)]
enum Doing {
    Command(Program),
    Http(Request),
}

/// How a doubt is settled.
#[derive(Clone)]
enum Asking {
    Command(Program),
    Http(Request, HappenedWhen),
}

impl Plan {
    /// Keeps these files from its commands. Says so where one is given to them.
    pub(super) fn keep(&mut self, files: &[Kept]) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Doing::Command(program) = &mut self.doing {
            problems.extend(program.keep(files));
        }
        if let Some(Asking::Command(program)) = &mut self.asking {
            problems.extend(program.keep(files));
        }
        problems
    }

    /// The programs that it runs without a sandbox. A command that is in one may read them, and not replace them.
    pub(super) fn unconfined(&self) -> Vec<Kept> {
        let doing = if let Doing::Command(program) = &self.doing { program.unconfined() } else { None };
        let asking = if let Some(Asking::Command(program)) = &self.asking { program.unconfined() } else { None };
        let what = format!("the unsandboxed program of `tool.{}`", self.spec.name);
        doing.into_iter().chain(asking).map(|path| Kept::new(what.clone(), path).readable()).collect()
    }

    /// Whether it runs a command in a sandbox.
    pub(super) fn is_confined(&self) -> bool {
        let doing = matches!(&self.doing, Doing::Command(program) if program.is_confined());
        doing || matches!(&self.asking, Some(Asking::Command(program)) if program.is_confined())
    }

    pub(super) fn tool(&self, secrets: &Secrets, client: &Client, launcher: &Launcher) -> Tool {
        let (spec, schemas) = (self.spec.clone(), self.schemas.clone());
        let tool = match &self.doing {
            Doing::Command(program) => program.command(secrets, launcher).tool(spec, schemas),
            Doing::Http(request) => request.clone().tool(client.clone(), spec, schemas),
        };
        match &self.asking {
            Some(Asking::Command(program)) => program.command(secrets, launcher).reconcile(tool),
            Some(Asking::Http(request, when)) => request.clone().reconcile(client.clone(), tool, when.clone()),
            None => tool,
        }
    }
}

/// Reads a whole tool. Nothing if it cannot be made; the problems say why.
pub(super) fn plan(name: &str, view: &View<'_>, outside: &mut Outside, problems: &mut Vec<Problem>) -> Option<Plan> {
    let contract = tool::contract(view, problems);
    let schema = contract.input();
    let doing = doing(view, &schema, outside, problems);
    let usual = match &doing {
        Some(Doing::Http(request)) => request.effect(),
        _ => Effect::Once,
    };
    let spec = tool::spec(name, view, usual, problems);
    tool::arguments(view, &schema, problems);
    let asking = asking(view, doing.as_ref(), &schema, outside, problems);
    settled(view, spec.effect, problems);
    Some(Plan { spec, schemas: contract.schemas(), doing: doing?, asking })
}

fn doing(view: &View<'_>, schema: &Value, outside: &mut Outside, problems: &mut Vec<Problem>) -> Option<Doing> {
    match (view.get("command"), view.within("http", &HTTP)) {
        (Some(_), None) => Program::read(view, schema, outside, problems).map(Doing::Command),
        (None, Some(http)) => {
            for key in COMMAND_KEYS.iter().map(|key| key.name).chain(["sandbox"]) {
                if let Some(entry) = view.table.get(key) {
                    let problem = format!("`{}` is about commands, and this tool is a request", view.path_of(key));
                    problems.push(Problem::error("contradiction", &entry.at, problem).help("take it out"));
                }
            }
            http::read(&http, schema, outside, problems).map(Doing::Http)
        }
        (Some(_), Some(http)) => {
            let problem = format!("[{}] has both a command and a request", view.path);
            problems.push(Problem::error("contradiction", &http.at, problem).help("make two tools of it"));
            None
        }
        (None, None) => {
            // Whatever stands there instead was reported.
            if view.table.get("http").is_none() {
                let problem = format!("[{}] does nothing", view.path);
                let help = "give it a command = [\"…\"] or http = { url = \"…\" }";
                problems.push(Problem::error("missing_key", &view.at, problem).help(help));
            }
            None
        }
    }
}

fn asking(
    view: &View<'_>,
    doing: Option<&Doing>,
    schema: &Value,
    outside: &mut Outside,
    problems: &mut Vec<Problem>,
) -> Option<Asking> {
    let view = view.within("reconcile", &RECONCILE)?;
    let (command, http) = (view.get("command"), view.within("http", &HTTP));
    let conditions = ["happened_when", "did_not_happen_when"];
    match (command, http) {
        (Some(command), None) => {
            for entry in conditions.iter().filter_map(|key| view.table.get(key)) {
                let problem =
                    format!("`{}` is about requests; a command says what happened itself", view.path_of(&entry.key));
                problems.push(Problem::error("contradiction", &entry.at, problem).help("take it out"));
            }
            let as_the_tool = match doing {
                Some(Doing::Command(program)) => program.clone(),
                _ => Program::plain(),
            };
            as_the_tool.asking(command, &view.path_of("command"), schema, outside, problems).map(Asking::Command)
        }
        (None, Some(http)) => {
            let request = http::read(&http, schema, outside, problems)?;
            if request.effect() != Effect::Readonly {
                let problem = format!("`{}` would change something: asking must not", http.path);
                problems.push(
                    Problem::warning("reconcile", &http.place("method"), problem).help("ask with GET if you can"),
                );
            }
            Some(Asking::Http(request, happened_when(&view)))
        }
        _ => {
            let problem = format!("[{}] needs one of `command` and `http`", view.path);
            problems.push(Problem::error("missing_key", &view.at, problem));
            None
        }
    }
}

fn happened_when(view: &View<'_>) -> HappenedWhen {
    if view.text("happened_when") == Some("told") {
        return HappenedWhen::Told;
    }
    let or = |found: Vec<u16>, usual: u16| if found.is_empty() { vec![usual] } else { found };
    HappenedWhen::Status {
        happened: or(view.counts("happened_when"), 200),
        did_not_happen: or(view.counts("did_not_happen_when"), 404),
    }
}

/// Only a call that acts once can be in doubt.
fn settled(view: &View<'_>, effect: Effect, problems: &mut Vec<Problem>) {
    if effect == Effect::Once {
        return;
    }
    for entry in ["reconcile", "on_doubt"].iter().filter_map(|key| view.table.get(key)) {
        let problem =
            format!("`{}` has no use: only a tool with the effect \"once\" is ever in doubt", view.path_of(&entry.key));
        problems.push(Problem::warning("no_use", &entry.at, problem).help("take it out, or set effect = \"once\""));
    }
}
