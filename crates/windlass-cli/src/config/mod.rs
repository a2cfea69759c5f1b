//! The config file `windlass.toml`: tools without Rust, and the settings of a server.
//!
//! [`load`] reads a file and checks it as a whole: it returns all problems at once, each with its position. [`check`] makes a
//! report of a file. [`schema`](fn@schema) is for editors, and [`Reload`] applies a changed file while runs continue. All of them
//! use one table of keys, `table.rs`, which also documents every key.

mod api;
mod body;
mod command;
mod context;
mod forms;
mod http;
mod input;
mod keys;
mod layer;
mod problem;
mod protected;
mod read;
mod reload;
mod report;
mod schema;
mod shape;
mod table;
mod table_bodies;
#[cfg(test)]
mod tests;
mod text;
mod tool;
mod tree;
mod units;
mod view;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::store::Retention;
use windlass::{Builder, Policy, Tool, Toolbox, Windlass};
use windlass_tools::sandbox::{Launcher, Sandbox};
use windlass_tools::secret::Secrets;

use api::Api;
use body::ToolPlan;
pub use context::Webhook;
use context::{Net, ReadContext};
use problem::Source;
pub use problem::{Problem, Problems, Severity};
pub use protected::database_files;
pub use read::{FILE, LISTEN, Limits, People, Server, Store};
pub use reload::{Change, Reload, wake};
pub use report::{Report, ToolSummary, check};
pub use schema::schema;
use tree::Table;
use view::View;

/// The source under which the tools of a file are mounted in a toolbox.
pub const SOURCE: &str = "windlass.toml";

/// The size limit of a config file: ten times that of a file with a thousand tools.
const MAX_BYTES: u64 = 4 << 20;

/// The sections about runs, as opposed to tools.
const SETTINGS: [&str; 3] = ["store", "retention", "limits"];

pub(crate) type Tools = Vec<ConfigTool>;

/// A tool of a file.
pub(crate) struct ConfigTool {
    /// The section of the file it comes from.
    pub(crate) from: String,
    pub(crate) tool: Tool,
    /// A fingerprint of its OpenAPI operation, if it has one.
    pub(crate) revision: Option<u64>,
}

/// The tools of a file and of the documents it names.
#[derive(Default)]
pub(crate) struct BuiltTools {
    pub(crate) tools: Tools,
    /// Warnings about operations that could not become tools.
    pub(crate) warnings: Vec<Problem>,
}

/// A valid config.
#[derive(Clone)]
pub struct Config {
    /// The server's address and allowed clients.
    pub server: Server,
    /// The database file.
    pub store: Store,
    /// How long finished runs are kept.
    pub retention: Retention,
    /// The default policy of every call.
    pub policy: Policy,
    /// Settings about people: attendance, connections, language.
    pub people: People,
    /// Limits of the process as a whole.
    pub limits: Limits,
    /// The webhook that is notified when a person is needed.
    pub webhook: Option<Webhook>,
    /// References to the secrets.
    pub secrets: Secrets,
    net: Net,
    /// The names of the standard tools that are switched on.
    standard: Vec<String>,
    plans: Vec<ToolPlan>,
    apis: Vec<Api>,
    layers: layer::Layers,
    tree: Arc<Table>,
    source: Arc<Source>,
    warnings: Vec<Problem>,
}

/// Reads a config file. Relative paths in it are relative to its folder. Nothing is started or fetched yet: see
/// [`Config::toolbox`].
pub fn load(path: &Path) -> Result<Config, Problems> {
    parse(path, content(path)?)
}

fn content(path: &Path) -> Result<String, Problems> {
    bounded(path).map_err(|why| {
        let problem = Problem::of_file("unreadable", format!("could not read {}: {why}", path.display()));
        let problem = problem.help("name the config file with --config, or create it");
        Problems::new(Arc::new(Source::new(path, String::new())), vec![problem])
    })
}

fn bounded(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it is larger than {MAX_BYTES} bytes, the size limit of a config file"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not valid UTF-8".to_owned())
}

/// Reads only the sections about the store, retention and limits, so that runs can be inspected with a config whose other
/// sections are invalid. The result has no tools.
pub fn load_settings(path: &Path) -> Result<Config, Problems> {
    let source = Arc::new(Source::new(path, content(path)?));
    let (mut tree, syntax) = tree::parse(&source.text);
    tree.0.retain(|entry| SETTINGS.contains(&&*entry.key));
    let mut problems = shape::check(&source.text, &tree);
    // A line with a syntax error may belong to one of these sections.
    problems.extend(with_syntax(&source, &syntax, Vec::new()));
    let config = build(source.clone(), tree, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(Problems::new(source, problems)) }
}

/// Parses the text of a config file. `path` is used in messages and to resolve relative paths.
pub fn parse(path: &Path, text: String) -> Result<Config, Problems> {
    let source = Arc::new(Source::new(path, text));
    let (tree, syntax) = tree::parse(&source.text);
    let mut problems = shape::check(&source.text, &tree);
    if !syntax.is_empty() {
        return Err(Problems::new(source.clone(), with_syntax(&source, &syntax, problems)));
    }
    let config = build(source.clone(), tree, &mut problems);
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(Problems::new(source, problems));
    }
    Ok(Config { warnings: problems, ..config })
}

/// Combines syntax errors with the other problems. Drops problems on lines with a syntax error, and missing keys, which may
/// be on such a line.
fn with_syntax(source: &Source, syntax: &[tree::SyntaxError], others: Vec<Problem>) -> Vec<Problem> {
    let line = |at: usize| source.position(at).0;
    let broken: Vec<usize> = syntax.iter().map(|syntax| line(syntax.span.start)).collect();
    let relevant = |problem: &Problem| problem.code != "missing_key" && !broken.contains(&line(problem.start()));
    let others: Vec<Problem> = others.into_iter().filter(relevant).collect();
    // Further errors on the same line usually follow from the first one.
    let first = |(index, _): &(usize, &tree::SyntaxError)| !broken[..*index].contains(&broken[*index]);
    let broken = syntax.iter().enumerate().filter(first).map(|(_, syntax)| {
        let problem = format!("not valid TOML: {}", syntax.message);
        let help = "strings are written in quotes, lists in [ ], tables in { }";
        Problem::error("syntax", &syntax.span, problem).help(help)
    });
    broken.chain(others).collect()
}

fn build(source: Arc<Source>, tree: Table, problems: &mut Vec<Problem>) -> Config {
    let tree = Arc::new(tree);
    let root = View::root(&tree, &table::ROOT);
    let folder = folder(&source.path);
    let policy = root.below("policy", &table::POLICY);
    let mut context = ReadContext::read(&root, source.clone(), &folder, problems);
    let mut names = BTreeMap::new();
    let tools = root.each("tool", &table::TOOL);
    for (name, view) in &tools {
        names.insert((*name).to_owned(), ((*name).to_owned(), view.at.clone()));
    }
    for (name, view) in &tools {
        tool::check_aliases(view, name, &mut names, problems);
    }
    let plans = tools.iter().filter_map(|(name, view)| body::plan(name, view, &mut context, problems)).collect();
    let apis = root.each("openapi", &table_bodies::OPENAPI);
    let section = root.below("standard", &table::STANDARD);
    let standard = section.texts("tools");
    check_standard(&section, &names, problems);
    let named: Vec<&str> = tools.iter().map(|(name, _)| *name).chain(standard.iter().copied()).collect();
    let prefix = |(name, view): &(&str, View<'_>)| view.text("prefix").map_or(format!("{name}_"), str::to_owned);
    let prefixes: Vec<String> = apis.iter().map(prefix).collect();
    let apis = apis.iter().filter_map(|(name, view)| api::read(name, view, &mut context, problems)).collect();
    let layers = root.each("layer", &table::LAYER);
    let layers = layers.iter().map(|(name, view)| ((*name).to_owned(), layer::read(view, &named, &prefixes, problems)));
    let layers = layers.collect();
    let webhook = context.webhook(&root, problems);
    context.warn_unused(&root, problems);
    Config {
        server: read::server(&root),
        store: read::store(&root, &folder),
        retention: read::retention(&root),
        policy: read::policy(&policy),
        people: read::people(&root),
        limits: read::limits(&root),
        webhook,
        secrets: context.secrets,
        net: context.net,
        standard: standard.into_iter().map(str::to_owned).collect(),
        plans,
        apis,
        layers,
        tree: tree.clone(),
        source,
        warnings: Vec::new(),
    }
}

/// Reports standard tools whose name another tool of the file has.
fn check_standard(
    view: &View<'_>,
    names: &BTreeMap<String, (String, std::ops::Range<usize>)>,
    problems: &mut Vec<Problem>,
) {
    for item in view.get("tools").and_then(|entry| entry.node.list()).unwrap_or_default() {
        let Some((owner, _)) = item.text().and_then(|name| names.get(name)) else { continue };
        let problem = format!("`standard.tools`: `{owner}` is also a name of [tool.{owner}]");
        let problem = Problem::error("name_taken", &item.span, problem);
        problems.push(problem.help("rename that tool, or leave the standard tool out"));
    }
}

/// The absolute folder of a file. Commands run in other folders.
fn folder(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new(""));
    std::path::absolute(folder.join(".")).map(|path| path.components().collect()).unwrap_or(folder.to_path_buf())
}

impl Config {
    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// The warnings about the file.
    pub fn warnings(&self) -> Problems {
        Problems::new(self.source.clone(), self.warnings.clone())
    }

    /// The warnings about the file and about its documents.
    pub(crate) fn warnings_with(&self, documents: Vec<Problem>) -> Problems {
        self.warnings().and(Problems::new(self.source.clone(), documents))
    }

    /// A toolbox with the tools of the file, mounted as [`SOURCE`]. Documents with a URL are fetched. Problems of a document
    /// are reported at the position where the file names it.
    pub async fn toolbox(&self, launcher: &Launcher) -> Result<Toolbox, Problems> {
        let toolbox = Toolbox::new();
        self.mount(&toolbox, self.tools(launcher).await?.tools, None)?;
        Ok(toolbox)
    }

    /// The webhook that is notified when a person is needed, with the current value of its secret.
    pub fn hook(&self) -> Result<Option<windlass_server::Webhook>, Problems> {
        let ready = self.webhook.as_ref().map(|hook| hook.resolve(&self.secrets)).transpose();
        ready.map_err(|problem| self.refused(vec![problem]))
    }

    /// The runtime that the file describes, with these tools. Await it to open it.
    pub fn open(&self, toolbox: Toolbox) -> Builder {
        let builder = Windlass::open(&self.store.file)
            .durability(self.store.durability)
            .retention(self.retention)
            .policy(self.policy.clone())
            .in_flight(self.limits.in_flight)
            .session_runs(self.limits.session_runs)
            .unfinished_runs(self.limits.unfinished_runs)
            .breaker(self.limits.breaker)
            .artifact_bytes(self.limits.artifact)
            .session_files(self.limits.files)
            .locale(&self.people.locale)
            .toolbox(toolbox);
        let builder = if self.store.shared { builder.shared() } else { builder };
        let builder = if self.people.attended { builder.attended() } else { builder };
        self.people.connected.iter().fold(builder, |builder, provider| builder.connection(provider))
    }

    /// The files whose change changes the tools: this one, and the documents it names.
    pub fn files(&self) -> Vec<PathBuf> {
        let documents = self.apis.iter().filter_map(Api::file).map(Path::to_path_buf);
        std::iter::once(self.source.path.clone()).chain(documents).collect()
    }

    /// Builds the tools.
    pub(crate) async fn tools(&self, launcher: &Launcher) -> Result<BuiltTools, Problems> {
        let (plans, found) = self.protected_plans(launcher);
        let (mut problems, warnings) = found.into_iter().partition(|problem| problem.severity == Severity::Error);
        let mut built = BuiltTools { tools: Tools::new(), warnings };
        let standard = self.standard.iter().filter_map(|name| Some((name, windlass_tools::standard::tool(name)?)));
        built.tools.extend(standard.map(|(name, tool)| ConfigTool {
            from: format!("standard.{name}"),
            tool,
            revision: None,
        }));
        match self.net.client() {
            Ok(client) => {
                for plan in &plans {
                    let (from, tool) =
                        (format!("tool.{}", plan.spec.name), plan.tool(&self.secrets, &client, launcher));
                    built.tools.push(ConfigTool { from, tool, revision: None });
                }
                for api in &self.apis {
                    problems.extend(api.tools(&self.secrets, &client, &mut built).await.err().into_iter().flatten());
                }
            }
            Err(problem) => problems.push(problem),
        }
        if problems.is_empty() {
            return Ok(built);
        }
        problems.extend(built.warnings);
        Err(self.refused(problems))
    }

    /// The plans of the file's tools, without access to the files that this process depends on.
    fn protected_plans(&self, launcher: &Launcher) -> (Vec<ToolPlan>, Vec<Problem>) {
        let programs = self.plans.iter().flat_map(ToolPlan::unsandboxed_programs).collect();
        let files = [self.protected(), launcher.kept().to_vec(), programs].concat();
        let mut plans = self.plans.clone();
        let mut problems: Vec<Problem> = plans.iter_mut().flat_map(|plan| plan.protect(&files)).collect();
        if plans.iter().any(ToolPlan::is_sandboxed) {
            problems.extend(protected::readable_by_all(&Sandbox { kept: files, ..Sandbox::default() }));
        }
        (plans, problems)
    }

    /// Replaces the tools and layers of the file in a toolbox, all at once. `before` is the previous config.
    pub(crate) fn mount(&self, toolbox: &Toolbox, tools: Tools, before: Option<&Self>) -> Result<(), Problems> {
        let none = layer::Layers::new();
        let before = before.map_or(&none, |before| &before.layers);
        let mounted = layer::replace_with(toolbox, before, &self.layers, || {
            toolbox.mount(SOURCE, tools.into_iter().map(|built| built.tool))
        });
        mounted.map_err(|refused| self.refused(vec![Problem::of_file("refused", refused.to_string())]))
    }

    fn refused(&self, mut problems: Vec<Problem>) -> Problems {
        problems.extend(self.warnings.iter().cloned());
        Problems::new(self.source.clone(), problems)
    }

    /// A section such as `tool.weather`, as JSON.
    pub(crate) fn section(&self, path: &str) -> serde_json::Value {
        let (kind, name) = path.split_once('.').unwrap_or((path, ""));
        let section = self.tree.get(kind).and_then(|entry| entry.node.table()).and_then(|table| table.get(name));
        section.map_or(serde_json::Value::Null, |entry| entry.node.json())
    }

    /// The keys of a section that differ in another file, such as `server.listen`.
    pub(crate) fn changed_keys(&self, other: &Self, section: &str) -> Vec<String> {
        let table = |config: &Self| config.tree.get(section).map(|entry| entry.node.json()).unwrap_or_default();
        let (old, new) = (table(self), table(other));
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
        };
        let mut changed: Vec<String> = keys(&old).into_iter().chain(keys(&new)).collect();
        changed.sort();
        changed.dedup();
        changed.retain(|key| old.get(key) != new.get(key));
        changed.into_iter().map(|key| format!("{section}.{key}")).collect()
    }
}
