//! [tool.NAME]: the specification of a tool.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use windlass::tool::narrate::FILTERS;
use windlass::tool::nearest;
use windlass::tool::spec::{Background, Breaker, Concurrency, Deferral, Effect, KeyExpression, ToolSpec};
use windlass::tool::{RegisterError, Schemas, ToolId};
use windlass::{Tool, Toolbox};

use super::input::{self, WrittenSchema};
use super::problem::Problem;
use super::read;
use super::table;
use super::text::listed;
use super::tree::{Span, TableEntry};
use super::units;
use super::view::View;

/// The input and output of a tool.
pub(super) struct Contract<'t> {
    input: Option<WrittenSchema<'t>>,
    output: Option<WrittenSchema<'t>>,
}

impl Contract<'_> {
    /// The schema of the arguments; without one, there are no arguments.
    pub(super) fn input(&self) -> Value {
        let no_arguments = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        self.input.as_ref().map_or_else(no_arguments, |written| written.json.clone())
    }

    pub(super) fn schemas(&self) -> Schemas {
        Schemas { input: self.input(), output: self.output.as_ref().map(|written| written.json.clone()) }
    }
}

/// Reads and compiles the schemas.
pub(super) fn contract<'t>(view: &View<'t>, problems: &mut Vec<Problem>) -> Contract<'t> {
    let mut written = |key| {
        let entry = view.get(key)?;
        let written = input::read(entry, &view.path_of(key), problems)?;
        compiles(&written, &view.path_of(key), problems).then_some(written)
    };
    Contract { input: written("input"), output: written("output") }
}

fn compiles(written: &WrittenSchema<'_>, path: &str, problems: &mut Vec<Problem>) -> bool {
    let probe = Tool::external("probe", "", Schemas::input(written.json.clone()));
    let Err(RegisterError::Schema(bad)) = Toolbox::new().insert(probe) else { return true };
    let span = &written.nearest(&bad.pointer).span;
    let problem = format!("`{path}` is not a valid schema: {}", bad.problem);
    problems.push(Problem::error("bad_schema", span, problem).help("expected a JSON Schema (draft 2020-12)"));
    false
}

/// Reads everything but the schemas and the body.
pub(super) fn spec(name: &str, view: &View<'_>, default_effect: Effect, problems: &mut Vec<Problem>) -> ToolSpec {
    let mut spec = ToolSpec::new(name, view.text("description").unwrap_or_default());
    spec.apply(read::policy(view));
    spec.effect = view.text("effect").and_then(effect).unwrap_or(default_effect);
    spec.aliases = view.texts("aliases").into_iter().map(ToolId::from).collect();
    spec.about.title = view.text("title").map(str::to_owned);
    spec.about.version = view.text("version").map(Into::into);
    spec.about.tags = view.texts("tags").into_iter().map(str::to_owned).collect();
    spec.about.deferral = match view.text("deferral") {
        Some("never") => Deferral::Never,
        Some("always") => Deferral::Always,
        _ => Deferral::Auto,
    };
    for (locale, lines) in view.each("narration", &table::NARRATION) {
        if let (Some(start), Some(end)) = (lines.text("start"), lines.text("end")) {
            spec.about.narration.add(locale, start, end);
        }
        if let Some(waiting) = lines.text("waiting") {
            spec.about.narration.add_waiting(locale, waiting);
        }
        if let Some(failure) = lines.text("failure") {
            spec.about.narration.add_failure(locale, failure);
        }
    }
    for hint in view.texts("hints") {
        match hint {
            "destructive" => spec.hints.destructive = true,
            "open_world" => spec.hints.open_world = true,
            "long_running" => spec.hints.long_running = true,
            _ => {}
        }
    }
    spec.guards.concurrency = view.text("concurrency").map_or(Concurrency::Auto, concurrency);
    spec.guards.connection = view.text("connection").map(Into::into);
    spec.guards.breaker = match view.text("breaker") {
        None => Breaker::Auto,
        Some("off") => Breaker::Off,
        Some(target) => Breaker::Target(target.into()),
    };
    if view.flag("background") == Some(false) {
        spec.guards.background = Background::Never;
    }
    spec.limits.in_flight = view.count("in_flight");
    spec.limits.per_second = view.text("rate").and_then(|text| units::rate(text).ok());
    check_contradictions(&spec, view, problems);
    spec
}

pub(super) fn effect(word: &str) -> Option<Effect> {
    match word {
        "readonly" => Some(Effect::Readonly),
        "idempotent" => Some(Effect::Idempotent),
        "once" => Some(Effect::Once),
        _ => None,
    }
}

/// Parses the concurrency. An invalid key was already reported, and counts as missing.
fn concurrency(text: &str) -> Concurrency {
    match text {
        "auto" => Concurrency::Auto,
        "parallel" => Concurrency::Parallel,
        "exclusive" => Concurrency::Exclusive,
        key => KeyExpression::parse(key).map_or(Concurrency::Auto, Concurrency::Keyed),
    }
}

/// Reports what a toolbox would refuse, at the key that causes it. The name was already checked.
fn check_contradictions(spec: &ToolSpec, view: &View<'_>, problems: &mut Vec<Problem>) {
    let mut probe = spec.clone();
    probe.name = "probe".into();
    let probe = Tool::external("probe", "", Schemas::any()).with(|own| *own = probe);
    let Err(refused) = Toolbox::new().insert(probe) else { return };
    let problem = match &refused {
        RegisterError::Contradiction { problem, .. } => (*problem).to_owned(),
        RegisterError::Policy { problem, .. } => problem.to_string(),
        other => other.to_string(),
    };
    // Words of the message, and the keys they refer to.
    let about = [("retried", "retries"), ("destructive", "hints"), ("timeout", "timeout"), ("attempts", "retries")];
    let named = about.iter().find(|(word, key)| problem.contains(word) && view.table.get(key).is_some());
    let span = view.span_of(named.map_or("", |(_, key)| key));
    problems.push(Problem::error("contradiction", &span, format!("[{}] contradicts itself: {problem}", view.path)));
}

/// Reports arguments that conditions, keys and narration use but the input does not have.
pub(super) fn check_arguments(view: &View<'_>, schema: &Value, problems: &mut Vec<Problem>) {
    for key in ["approval", "concurrency"] {
        let Some(entry) = view.get(key) else { continue };
        for path in mentioned(entry.node.text().unwrap_or_default()) {
            if !input::has_argument(schema, &path) {
                let found = format!(
                    "`{}` uses `args.{}`, but the input has no such argument",
                    view.path_of(key),
                    path.join(".")
                );
                problems.push(suggest_argument(
                    Problem::warning("unknown_argument", &entry.node.span, found),
                    schema,
                    path[0],
                ));
            }
        }
    }
    for (_, lines) in view.each("narration", &table::NARRATION) {
        for key in ["start", "waiting", "end", "failure"] {
            let Some(entry) = lines.get(key) else { continue };
            check_narration(entry, &lines.path_of(key), schema, problems);
        }
    }
}

fn check_narration(entry: &TableEntry, path: &str, schema: &Value, problems: &mut Vec<Problem>) {
    let text = entry.node.text().unwrap_or_default();
    let names = text.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name));
    for placeholder in names {
        let (name, filter) = placeholder.split_once('|').map_or((placeholder, None), |(name, by)| (name, Some(by)));
        if let Some(filter) = filter.filter(|filter| !FILTERS.contains(filter)) {
            let found = format!("`{path}` uses the filter `{filter}`, which does not exist");
            let problem = Problem::error("unknown_filter", &entry.node.span, found);
            problems.push(problem.help(format!("the filters are {}", listed(FILTERS, "and"))));
        }
        if input::has_argument(schema, &[name]) {
            continue;
        }
        let found = format!("`{path}` uses `{{{name}}}`, but the input has no argument `{name}`");
        problems.push(suggest_argument(Problem::error("unknown_argument", &entry.node.span, found), schema, name));
    }
}

/// Adds the argument that was probably intended, or a list of the arguments.
pub(super) fn suggest_argument(problem: Problem, schema: &Value, name: &str) -> Problem {
    let arguments = input::arguments(schema);
    match nearest(name, arguments.iter().copied()) {
        Some(near) => problem.label(format!("did you mean `{near}`?")),
        None if arguments.is_empty() => problem.help("the tool has no arguments; define them in `input`"),
        None => problem.help(format!("the input has {}", listed(arguments, "and"))),
    }
}

/// The arguments that an expression uses in the form `args.a.b`.
fn mentioned(expression: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices("args.") {
        let before = &expression[..at];
        let part_of_a_word = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        let quoted = before.matches('\'').count() % 2 == 1 || before.matches('"').count() % 2 == 1;
        if part_of_a_word || quoted {
            continue;
        }
        let rest = &expression[at + "args.".len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
        // A word before a bracket is a function, not an argument.
        let call = rest[end..].starts_with('(');
        let mut path: Vec<&str> = rest[..end].split('.').filter(|step| !step.is_empty()).collect();
        if call {
            path.pop();
        }
        if !path.is_empty() {
            found.push(path);
        }
    }
    found
}

/// Reports aliases that another tool already has. `names` maps every name to its tool and position.
pub(super) fn check_aliases(
    view: &View<'_>,
    name: &str,
    names: &mut BTreeMap<String, (String, Span)>,
    problems: &mut Vec<Problem>,
) {
    let aliases = view.get("aliases").and_then(|entry| entry.node.list()).unwrap_or_default();
    for alias in aliases {
        let Some(text) = alias.text() else { continue };
        let claim = (name.to_owned(), alias.span.clone());
        if let Some((owner, _)) = names.insert(text.to_owned(), claim).filter(|(owner, _)| owner != name) {
            let problem = format!("`{text}` is already a name of the tool `{owner}`");
            let problem = Problem::error("name_taken", &alias.span, problem);
            problems.push(
                problem.help("a name must belong to one tool, so that a run always finds the tool it was started with"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_expressions_are_found() {
        for (expression, paths) in [
            ("args.cents > 1 && args.a.b == 2", vec![vec!["cents"], vec!["a", "b"]]),
            ("'args.no' + args.yes", vec![vec!["yes"]]),
            ("args.name.startsWith('x')", vec![vec!["name"]]),
            ("my_args.x || session.args.y", vec![]),
            ("size(args.list) > 2", vec![vec!["list"]]),
            ("args['x'] == 1", vec![]),
        ] {
            assert_eq!(mentioned(expression), paths, "{expression}");
        }
    }
}
