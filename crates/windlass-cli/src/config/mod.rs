//! The config file `windlass.toml`: tools without Rust, and everything a server has to know.
//!
//! [`load`] reads a file and checks it as a whole: all problems come at once, each with its place. [`check`] does the same for
//! people who only want to know. [`schema`](fn@schema) is for editors, and [`Reload`] takes up a changed file while runs go on. All
//! of them read one table of keys, `table.rs`, which is also where every key is documented.

mod api;
mod body;
mod command;
mod forms;
mod http;
mod input;
mod kept;
mod keys;
mod layer;
mod outside;
mod problem;
mod read;
mod reload;
mod report;
mod schema;
mod shape;
mod table;
mod table_bodies;
#[cfg(test)]
mod tests;
mod tool;
mod tree;
mod units;
mod view;
mod words;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::{Builder, Policy, Retention, Tool, Toolbox, Windlass};
use windlass_tools::sandbox::{Launcher, Sandbox};
use windlass_tools::secret::Secrets;

use api::Api;
use body::Plan;
pub use kept::of_database;
pub use outside::Webhook;
use outside::{Net, Outside};
use problem::Source;
pub use problem::{Problem, Problems, Severity};
pub use read::{FILE, LISTEN, Limits, People, Server, Store};
pub use reload::{Change, Reload, wake};
pub use report::{Found, Report, check};
pub use schema::schema;
use tree::Table;
use view::View;

/// The source under which the tools of a file are mounted in a toolbox.
pub const SOURCE: &str = "windlass.toml";

/// Largest file that is read: a thousand tools are a tenth of it.
const LARGEST: u64 = 4 << 20;

/// What a file says of its runs, and not of its tools.
const SETTINGS: [&str; 3] = ["store", "retention", "limits"];

pub(crate) type Tools = Vec<MadeTool>;

/// A tool of a file.
pub(crate) struct MadeTool {
    /// The section of the file it comes from.
    pub(crate) from: String,
    pub(crate) tool: Tool,
    /// What tells its operation from how it was, if it has one.
    pub(crate) revision: Option<u64>,
}

/// What a file and the documents it names make.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) tools: Tools,
    /// What they could not make.
    pub(crate) warnings: Vec<Problem>,
}

/// A file that was read and checked.
#[derive(Clone)]
pub struct Config {
    /// Where and for whom the server answers.
    pub server: Server,
    /// Where runs are kept.
    pub store: Store,
    /// How long finished runs are kept.
    pub retention: Retention,
    /// What governs every call.
    pub policy: Policy,
    /// Whom the process serves.
    pub people: People,
    /// Bounds on the process as a whole.
    pub limits: Limits,
    /// Who is told when a person is needed.
    pub webhook: Option<Webhook>,
    /// Where secrets are kept.
    pub secrets: Secrets,
    net: Net,
    plans: Vec<Plan>,
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
        let problem = Problem::of_file("unreadable", format!("{} cannot be read: {why}", path.display()));
        let problem = problem.help("name the config file with --config, or create it");
        Problems::new(Arc::new(Source::new(path, String::new())), vec![problem])
    })
}

fn bounded(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes, which no config has"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// The same of the sections alone that say where runs are kept and for how long: whatever else is wrong with a file, whoever looks
/// after its runs can go on. Without tools.
pub fn load_settings(path: &Path) -> Result<Config, Problems> {
    let source = Arc::new(Source::new(path, content(path)?));
    let (mut tree, syntax) = tree::parse(&source.text);
    tree.0.retain(|entry| SETTINGS.contains(&&*entry.key));
    let mut problems = shape::check(&source.text, &tree);
    // On a line that was not understood there may have been anything.
    problems.extend(with_syntax(&source, &syntax, Vec::new()));
    let config = build(source.clone(), tree, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(Problems::new(source, problems)) }
}

/// Reads the text of a config file that stands, or would stand, at `path`.
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

/// What was not understood, and what else is wrong on lines that were. What is missing may be on a line that was not.
fn with_syntax(source: &Source, syntax: &[tree::Syntax], others: Vec<Problem>) -> Vec<Problem> {
    let line = |at: usize| source.position(at).0;
    let broken: Vec<usize> = syntax.iter().map(|syntax| line(syntax.span.start)).collect();
    let told = |problem: &Problem| problem.code != "missing_key" && !broken.contains(&line(problem.start()));
    let understood: Vec<Problem> = others.into_iter().filter(told).collect();
    // What follows on the same line is seldom more than an echo.
    let first = |(index, _): &(usize, &tree::Syntax)| !broken[..*index].contains(&broken[*index]);
    let broken = syntax.iter().enumerate().filter(first).map(|(_, syntax)| {
        let problem = format!("this is not TOML: {}", syntax.message);
        Problem::error("syntax", &syntax.span, problem).help("texts stand in quotes, lists in [ ], tables in { }")
    });
    broken.chain(understood).collect()
}

fn build(source: Arc<Source>, tree: Table, problems: &mut Vec<Problem>) -> Config {
    let tree = Arc::new(tree);
    let root = View::root(&tree, &table::ROOT);
    let folder = folder(&source.path);
    let policy = root.below("policy", &table::POLICY);
    let mut outside = Outside::read(&root, source.clone(), &folder, problems);
    let mut names = BTreeMap::new();
    let tools = root.each("tool", &table::TOOL);
    for (name, view) in &tools {
        names.insert((*name).to_owned(), ((*name).to_owned(), view.at.clone()));
    }
    for (name, view) in &tools {
        tool::unique(view, name, &mut names, problems);
    }
    let plans = tools.iter().filter_map(|(name, view)| body::plan(name, view, &mut outside, problems)).collect();
    let apis = root.each("openapi", &table_bodies::OPENAPI);
    let named: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
    let prefix = |(name, view): &(&str, View<'_>)| view.text("prefix").map_or(format!("{name}_"), str::to_owned);
    let prefixes: Vec<String> = apis.iter().map(prefix).collect();
    let apis = apis.iter().filter_map(|(name, view)| api::read(name, view, &mut outside, problems)).collect();
    let layers = root.each("layer", &table::LAYER);
    let layers = layers.iter().map(|(name, view)| ((*name).to_owned(), layer::read(view, &named, &prefixes, problems)));
    let layers = layers.collect();
    let webhook = outside.webhook(&root, problems);
    outside.unused(&root, problems);
    Config {
        server: read::server(&root),
        store: read::store(&root, &folder),
        retention: read::retention(&root),
        policy: read::policy(&policy),
        people: read::people(&root),
        limits: read::limits(&root),
        webhook,
        secrets: outside.secrets,
        net: outside.net,
        plans,
        apis,
        layers,
        tree: tree.clone(),
        source,
        warnings: Vec::new(),
    }
}

/// The folder a file stands in, from the root on: commands run elsewhere.
fn folder(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new(""));
    std::path::absolute(folder.join(".")).map(|path| path.components().collect()).unwrap_or(folder.to_path_buf())
}

impl Config {
    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// What is probably not meant.
    pub fn warnings(&self) -> Problems {
        Problems::new(self.source.clone(), self.warnings.clone())
    }

    /// The same, and what its documents could not make.
    pub(crate) fn warnings_with(&self, made: Vec<Problem>) -> Problems {
        self.warnings().and(Problems::new(self.source.clone(), made))
    }

    /// A toolbox with the tools of the file, mounted as [`SOURCE`]. Documents named by address are fetched. Problems of a
    /// document are told where the file names it.
    pub async fn toolbox(&self, launcher: &Launcher) -> Result<Toolbox, Problems> {
        let toolbox = Toolbox::new();
        self.mount(&toolbox, self.tools(launcher).await?.tools, None)?;
        Ok(toolbox)
    }

    /// Who is told when a person is needed, with the secret as it is now.
    pub fn hook(&self) -> Result<Option<windlass_server::Webhook>, Problems> {
        let ready = self.webhook.as_ref().map(|hook| hook.ready(&self.secrets)).transpose();
        ready.map_err(|problem| self.refused(vec![problem]))
    }

    /// A runtime as the file describes it, with these tools: await it.
    pub fn open(&self, toolbox: Toolbox) -> Builder {
        let builder = Windlass::open(&self.store.file)
            .durability(self.store.durability)
            .retention(self.retention)
            .policy(self.policy.clone())
            .in_flight(self.limits.in_flight)
            .artifact_bytes(self.limits.artifact)
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

    /// Makes the tools anew.
    pub(crate) async fn tools(&self, launcher: &Launcher) -> Result<Made, Problems> {
        let (plans, found) = self.kept_apart(launcher);
        let (mut problems, warnings) = found.into_iter().partition(|problem| problem.severity == Severity::Error);
        let mut made = Made { tools: Tools::new(), warnings };
        match self.net.client() {
            Ok(client) => {
                for plan in &plans {
                    let (from, tool) =
                        (format!("tool.{}", plan.spec.name), plan.tool(&self.secrets, &client, launcher));
                    made.tools.push(MadeTool { from, tool, revision: None });
                }
                for api in &self.apis {
                    problems.extend(api.tools(&self.secrets, &client, &mut made).await.err().into_iter().flatten());
                }
            }
            Err(problem) => problems.push(problem),
        }
        if problems.is_empty() {
            return Ok(made);
        }
        problems.extend(made.warnings);
        Err(self.refused(problems))
    }

    /// What the file plans, with what this process lives by kept from it.
    fn kept_apart(&self, launcher: &Launcher) -> (Vec<Plan>, Vec<Problem>) {
        let programs = self.plans.iter().flat_map(Plan::unconfined).collect();
        let files = [self.kept(), launcher.kept().to_vec(), programs].concat();
        let mut plans = self.plans.clone();
        let mut problems: Vec<Problem> = plans.iter_mut().flat_map(|plan| plan.keep(&files)).collect();
        if plans.iter().any(Plan::is_confined) {
            problems.extend(kept::reached_by_all(&Sandbox { kept: files, ..Sandbox::default() }));
        }
        (plans, problems)
    }

    /// Replaces the tools of the file in a toolbox, all at once, and its layers; `before` is the file as it counted.
    pub(crate) fn mount(&self, toolbox: &Toolbox, tools: Tools, before: Option<&Self>) -> Result<(), Problems> {
        let none = layer::Layers::new();
        let before = before.map_or(&none, |before| &before.layers);
        let mounted = layer::around(toolbox, before, &self.layers, || {
            toolbox.mount(SOURCE, tools.into_iter().map(|made| made.tool))
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

    /// The keys of a section that another file has differently: `server.listen`.
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
