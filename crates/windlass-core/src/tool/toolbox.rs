//! Sets of tools that overlay one another.

use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use smallvec::SmallVec;

use super::contract::BadSchema;
use super::layers::{Layer, Layers, NoLayer, Root, Stack, Tools};
use super::spec::{Approval, BadKeyExpression, Concurrency, Deferral, Effect, ToolSpec};
use super::{Tool, ToolError};
use crate::id::ToolId;
use crate::limits::STUB_ABOVE;
use crate::policy::BadPolicy;

/// Longest tool name; what model APIs accept.
const NAME_CHARS: usize = 64;

/// Why a tool cannot be registered.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// Its schema does not compile.
    #[error(transparent)]
    Schema(#[from] BadSchema),
    /// Models could not call it by this name.
    #[error("`{0}` is not a tool name: use 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`")]
    Name(String),
    /// Layers cannot have this name.
    #[error("`{0}` is not a layer name: use 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`")]
    LayerName(String),
    /// Another tool of the same toolbox has this id.
    #[error("tool `{name}` claims the id `{id}`, which belongs to tool `{owner}`: give one of them another id")]
    IdTaken {
        /// The tool that was refused.
        name: String,
        /// The contested id.
        id: ToolId,
        /// Who has it.
        owner: String,
    },
    /// Its concurrency key does not parse.
    #[error("tool `{name}`: {problem}")]
    Key {
        /// Whose.
        name: String,
        /// What is wrong.
        problem: BadKeyExpression,
    },
    /// Its limits or its approval condition cannot work.
    #[error("tool `{name}`: {problem}")]
    Policy {
        /// Whose.
        name: String,
        /// What is wrong.
        problem: BadPolicy,
    },
    /// The spec contradicts itself.
    #[error("the spec of tool `{name}` contradicts itself: {problem}")]
    Contradiction {
        /// Whose spec.
        name: String,
        /// What contradicts what.
        problem: &'static str,
    },
}

/// A set of tools. Cloning shares it. [`layer`](Toolbox::layer) makes one that overlays it: what a layer adds or hides is
/// seen through the layer only.
///
/// Which layers a call is made through is recorded with it. A run that is taken up again finds its tools through the same
/// layers, by their names, or is held until they are registered.
#[derive(Clone, Default)]
pub struct Toolbox {
    root: Arc<Root>,
    top: Option<Arc<Stack>>,
}

#[derive(Clone, Default)]
pub(super) struct Table {
    by_name: FxHashMap<Arc<str>, Entry>,
    by_id: FxHashMap<ToolId, Arc<Tool>>,
    /// The only names that show from below; all of them, if there is no such list.
    only: Option<FxHashSet<Arc<str>>>,
}

#[derive(Clone)]
enum Entry {
    Here(Arc<Tool>),
    Hidden,
}

impl Table {
    fn insert(&mut self, tool: Arc<Tool>) -> Result<Option<Arc<Tool>>, RegisterError> {
        let name = tool.spec().name.clone();
        for id in ids(&tool) {
            if let Some(owner) = self.by_id.get(id)
                && owner.spec().name != name
            {
                let owner = owner.spec().name.to_string();
                return Err(RegisterError::IdTaken { name: name.to_string(), id: id.clone(), owner });
            }
        }
        let old = self.remove(&name);
        for id in ids(&tool) {
            self.by_id.insert(id.clone(), tool.clone());
        }
        self.by_name.insert(name, Entry::Here(tool));
        Ok(old)
    }

    fn succeed(&self, old: &Self) {
        for (name, entry) in &self.by_name {
            if let (Entry::Here(tool), Some(Entry::Here(old))) = (entry, old.by_name.get(name)) {
                tool.succeed(old);
            }
        }
    }

    fn remove(&mut self, name: &str) -> Option<Arc<Tool>> {
        let Some(Entry::Here(tool)) = self.by_name.remove(name) else { return None };
        for id in ids(&tool) {
            self.by_id.remove(id);
        }
        Some(tool)
    }
}

fn ids(tool: &Tool) -> impl Iterator<Item = &ToolId> {
    std::iter::once(&tool.spec().id).chain(&tool.spec().aliases)
}

impl Toolbox {
    /// An empty toolbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// A toolbox that overlays this one with the layer of this name, and sees later changes below it. The layer is made if
    /// there is none yet; every use of the name is the same layer, whatever it is stacked on, until
    /// [`remove_layer`](Toolbox::remove_layer).
    ///
    /// # Errors
    ///
    /// When the name is not 1 to 64 of the characters `a-z`, `A-Z`, `0-9`, `_`, `-`, `.`.
    pub fn layer(&self, name: &str) -> Result<Self, RegisterError> {
        Ok(self.on_top(self.root.named(name)?))
    }

    /// The same with a layer of its own that has a generated name and ends with its last toolbox. Runs that were called
    /// through it cannot find it after a restart and are held then: name a layer that runs shall outlive.
    #[must_use]
    pub fn unnamed_layer(&self) -> Self {
        self.on_top(self.root.unnamed())
    }

    /// Takes the layer with this name out of the registry; says whether there was one. Toolboxes that have it go on with
    /// it. Runs that are taken up from now on are held until there is a layer of that name again.
    pub fn remove_layer(&self, name: &str) -> bool {
        self.root.remove(name)
    }

    /// The layers of this toolbox.
    pub fn layers(&self) -> Layers {
        self.top.as_ref().map(|top| top.names.clone()).unwrap_or_default()
    }

    pub(crate) fn is_layered(&self) -> bool {
        self.top.is_some()
    }

    /// The names of all layers that are registered, sorted; those without a name of their own are left out.
    pub fn layer_names(&self) -> Vec<Arc<str>> {
        let all = self.root.all();
        all.iter().map(|layer| layer.name().clone()).filter(|name| !name.starts_with('~')).collect()
    }

    /// The toolbox of a scope: this one's root under these layers, or this one where there are none.
    ///
    /// # Errors
    ///
    /// When one of them is not registered.
    pub fn scope(&self, layers: &Layers) -> Result<Self, NoLayer> {
        if layers.is_empty() || self.top.as_ref().is_some_and(|top| top.names == *layers) {
            return Ok(self.clone());
        }
        let root = Self { root: self.root.clone(), top: None };
        root.with_layers(layers)
    }

    /// This toolbox with these layers on top.
    ///
    /// # Errors
    ///
    /// When one of them is not registered.
    pub fn with_layers(&self, layers: &Layers) -> Result<Self, NoLayer> {
        layers.names().iter().try_fold(self.clone(), |toolbox, name| Ok(toolbox.on_top(toolbox.root.get(name)?)))
    }

    fn on_top(&self, layer: Arc<Layer>) -> Self {
        Self { root: self.root.clone(), top: Some(Stack::on(self.top.as_ref(), layer)) }
    }

    /// What the top layer has, or the toolbox itself where there is none.
    fn tools_here(&self) -> &RwLock<Tools> {
        self.top.as_ref().map_or(&self.root.tools, |top| &top.layer.tools)
    }

    /// Adds a tool. One of the same name is replaced and returned.
    pub fn insert(&self, tool: impl Into<Tool>) -> Result<Option<Arc<Tool>>, RegisterError> {
        let tool = tool.into();
        tool.check()?;
        let mut here = self.tools_here().write();
        Arc::make_mut(&mut here.own).insert(Arc::new(tool))
    }

    /// Takes a tool of this layer out and returns it; one of a layer below shows again.
    pub fn remove(&self, name: &str) -> Option<Arc<Tool>> {
        Arc::make_mut(&mut self.tools_here().write().own).remove(name)
    }

    /// Hides whatever tool has this name below, until [`remove`](Toolbox::remove) or the layer's end.
    pub fn hide(&self, name: &str) {
        let mut here = self.tools_here().write();
        let table = Arc::make_mut(&mut here.own);
        table.remove(name);
        table.by_name.insert(name.into(), Entry::Hidden);
    }

    /// Hides every tool below whose name is not one of these, also those that are registered later, and none of these.
    /// What the layer has by itself shows.
    pub fn show_only<N: Into<Arc<str>>>(&self, names: impl IntoIterator<Item = N>) {
        let only = Some(names.into_iter().map(Into::into).collect());
        self.show(Some(Arc::new(Table { only, ..Table::default() })), []);
    }

    /// Hides the tools below with these names, and no others.
    pub fn show_all_but<N: Into<Arc<str>>>(&self, names: impl IntoIterator<Item = N>) {
        self.show(None, names.into_iter().map(Into::into));
    }

    /// Replaces at once what was hidden from below.
    fn show(&self, only: Option<Arc<Table>>, hidden: impl IntoIterator<Item = Arc<str>>) {
        let mut here = self.tools_here().write();
        here.only = only;
        let own = Arc::make_mut(&mut here.own);
        own.by_name.retain(|_, entry| matches!(entry, Entry::Here(_)));
        for name in hidden {
            own.by_name.entry(name).or_insert(Entry::Hidden);
        }
    }

    /// Brings the tools of a source, all at once; mounting a source again replaces all of its tools. The layer's own
    /// tools shadow them. A tool that was there before goes on counting what its limits count, unless they changed. Nothing
    /// changes if one of them is refused.
    pub fn mount(&self, source: &str, tools: impl IntoIterator<Item = Tool>) -> Result<(), RegisterError> {
        let mut table = Table::default();
        for tool in tools {
            tool.check()?;
            table.insert(Arc::new(tool))?;
        }
        let table = Arc::new(table);
        let sources = &mut self.tools_here().write().sources;
        match sources.iter_mut().find(|(name, _)| &**name == source) {
            Some((_, old)) => {
                table.succeed(old);
                *old = table;
            }
            None => sources.push((source.into(), table)),
        }
        Ok(())
    }

    /// Takes all tools of a source away. Calls that already resolved one of them finish with it.
    pub fn unmount(&self, source: &str) -> bool {
        let sources = &mut self.tools_here().write().sources;
        let before = sources.len();
        sources.retain(|(name, _)| &**name != source);
        sources.len() != before
    }

    /// The tools as they are now; later changes do not show in it.
    pub fn snapshot(&self) -> Snapshot {
        let mut tables = SmallVec::new();
        let mut stack = self.top.as_deref();
        while let Some(here) = stack {
            collect(&here.layer.tools.read(), &mut tables);
            stack = here.below.as_deref();
        }
        collect(&self.root.tools.read(), &mut tables);
        Snapshot(tables)
    }

    /// The tool a call by this name would use.
    pub fn get(&self, name: &str) -> Option<Arc<Tool>> {
        self.snapshot().by_name(name).cloned()
    }

    /// The tool with this id, or with it as an alias.
    pub fn by_id(&self, id: &str) -> Option<Arc<Tool>> {
        self.snapshot().by_id(id).cloned()
    }

    /// The tool that a call recorded under this id uses, in the scope that is recorded with it.
    pub fn recorded(&self, id: &str, layers: &Layers) -> Option<Arc<Tool>> {
        if layers.is_empty() { self.by_id(id) } else { self.scope(layers).ok()?.by_id(id) }
    }

    /// Every visible tool, sorted by name.
    pub fn tools(&self) -> Vec<Arc<Tool>> {
        self.snapshot().tools()
    }

    /// Every visible tool with this tag, sorted by name.
    pub fn tagged(&self, tag: &str) -> Vec<Arc<Tool>> {
        let mut tools = self.tools();
        tools.retain(|tool| tool.spec().about.tags.iter().any(|own| own == tag));
        tools
    }

    /// What a model is shown: every visible tool sorted by name, deferrable ones as stubs where the toolbox is large.
    pub fn listing(&self) -> Result<Vec<Listing>, ToolError> {
        let tools = self.tools();
        let large = tools.len() > STUB_ABOVE;
        tools.iter().map(|tool| Listing::of(tool, large)).collect()
    }
}

/// One tool as a model is shown it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The name to call.
    pub name: Arc<str>,
    /// For people.
    pub title: Option<String>,
    /// What it does.
    pub description: String,
    /// The schema of its arguments; `None` for a stub.
    pub input: Option<Value>,
    /// The schema of its output, if it has one and this is no stub.
    pub output: Option<Value>,
}

impl Listing {
    fn of(tool: &Tool, large: bool) -> Result<Self, ToolError> {
        let spec = tool.spec();
        let stub = match spec.about.deferral {
            Deferral::Never => false,
            Deferral::Always => true,
            Deferral::Auto => large,
        };
        let contract = if stub { None } else { Some(tool.contract()?) };
        Ok(Self {
            name: spec.name.clone(),
            title: spec.about.title.clone(),
            description: spec.about.description.clone(),
            input: contract.map(|contract| contract.input().clone()),
            output: contract.and_then(|contract| contract.output().cloned()),
        })
    }
}

/// The tools of a toolbox at one moment: what one batch resolves its calls in.
#[derive(Clone)]
pub struct Snapshot(Tables);

type Tables = SmallVec<[Arc<Table>; 2]>;

/// Adds what one layer has: its own tools, those of its sources, and what it hides of everything below.
fn collect(tools: &Tools, tables: &mut Tables) {
    tables.push(tools.own.clone());
    tables.extend(tools.sources.iter().map(|(_, table)| table.clone()));
    tables.extend(tools.only.clone());
}

impl Snapshot {
    /// The tool a call by this name uses.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Tool>> {
        for table in &self.0 {
            match table.by_name.get(name) {
                Some(Entry::Here(tool)) => return Some(tool),
                Some(Entry::Hidden) => return None,
                None if table.only.as_ref().is_some_and(|only| !only.contains(name)) => return None,
                None => {}
            }
        }
        None
    }

    /// The tool with this id or alias. A tool that is shadowed or hidden by name cannot be reached by id either.
    pub fn by_id(&self, id: &str) -> Option<&Arc<Tool>> {
        let tool = self.0.iter().find_map(|table| table.by_id.get(id))?;
        self.by_name(&tool.spec().name).filter(|visible| Arc::ptr_eq(visible, tool))
    }

    /// Every visible tool, sorted by name.
    pub fn tools(&self) -> Vec<Arc<Tool>> {
        let mut names: Vec<&Arc<str>> = self.0.iter().flat_map(|table| table.by_name.keys()).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().filter_map(|name| self.by_name(name).cloned()).collect()
    }
}

/// What a spec may not say.
pub(crate) fn check_spec(spec: &ToolSpec, durable: bool) -> Result<(), RegisterError> {
    let name = &spec.name;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > NAME_CHARS || !name.chars().all(legal) {
        return Err(RegisterError::Name(name.to_string()));
    }
    let no = |problem| Err(RegisterError::Contradiction { name: name.to_string(), problem });
    let limits = &spec.limits;
    if durable && (limits.timeout.is_some() || limits.retry.is_some() || limits.heartbeat.is_some()) {
        return no(
            "a durable body has no timeout, retry or heartbeat of its own; set a deadline, or limits on its steps",
        );
    }
    if spec.effect == Effect::Readonly && spec.hints.destructive {
        return no("a readonly tool destroys nothing; drop `destructive` or change the effect");
    }
    if limits.timeout.is_some_and(|timeout| timeout.is_zero()) {
        return no("a timeout of zero would fail every attempt");
    }
    if limits.deadline.is_some_and(|deadline| deadline.is_zero()) {
        return no("a deadline of zero would fail every call");
    }
    if limits.heartbeat.is_some_and(|heartbeat| heartbeat.is_zero()) {
        return no("a heartbeat interval of zero would fail every attempt");
    }
    if limits.retry.is_some_and(|retry| retry.attempts == 0) {
        return no("zero attempts would never run it; one attempt means no retry");
    }
    if limits.retry.is_some_and(|retry| retry.attempts > 1) && spec.hints.destructive {
        return no("a destructive tool is never retried automatically");
    }
    if limits.in_flight == Some(0) || limits.per_second == Some(0) {
        return no("a limit of zero would never let a call start");
    }
    if matches!(&spec.guards.approval, Approval::When(condition) if condition.source().trim().is_empty()) {
        return no("the approval condition is empty");
    }
    if let Concurrency::Keyed(key) = &spec.guards.concurrency {
        let refuse =
            |problem: &BadKeyExpression| RegisterError::Key { name: name.to_string(), problem: problem.clone() };
        key.check().map_err(refuse)?;
    }
    spec.policy().check().map_err(|problem| RegisterError::Policy { name: name.to_string(), problem })
}

#[cfg(test)]
mod tests;
