//! Sets of tools, and layers on top of them.

mod snapshot;

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use snapshot::collect;

pub use snapshot::Snapshot;

use super::contract::BadSchema;
use super::layers::{Layer, LayerRegistry, LayerStack, LayerTools, Layers, NoLayer};
use super::listing::Catalog;
use super::membership::{LiveTools, SessionTools};
use super::projection::{READ_OUTPUT, READ_OUTPUT_ID};
use super::source::{MountedSource, Source, SourceFailure};
use super::spec::{Approval, BadKeyExpression, Concurrency, Effect, ToolSpec};
use super::{Tool, ToolError};
use crate::call::ToolRef;
use crate::id::ToolId;
use crate::policy::BadPolicy;

/// Longest tool name; the limit of model APIs.
const NAME_CHARS: usize = 64;

/// Why a tool or a layer was not registered. Nothing has changed then.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// A schema does not compile.
    #[error(transparent)]
    Schema(#[from] BadSchema),
    /// The name is not one that models can call.
    #[error("`{0}` is not a tool name: use 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`")]
    Name(String),
    /// The name is not one that a layer can have.
    #[error("`{0}` is not a layer name: use 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`")]
    LayerName(String),
    /// Another tool of the same toolbox already has this id.
    #[error("tool `{name}` claims the id `{id}`, which belongs to tool `{owner}`: give one of them another id")]
    IdTaken {
        /// The tool that was refused.
        name: String,
        /// The id.
        id: ToolId,
        /// The tool that has the id.
        owner: String,
    },
    /// The concurrency key does not parse.
    #[error("tool `{name}`: {problem}")]
    Key {
        /// The tool.
        name: String,
        /// What is wrong.
        problem: BadKeyExpression,
    },
    /// A limit or the approval condition cannot work.
    #[error("tool `{name}`: {problem}")]
    Policy {
        /// The tool.
        name: String,
        /// What is wrong.
        problem: BadPolicy,
    },
    /// Two parts of the spec contradict each other.
    #[error("the spec of tool `{name}` contradicts itself: {problem}")]
    Contradiction {
        /// The tool.
        name: String,
        /// The contradiction, and how to resolve it.
        problem: &'static str,
    },
}

/// A set of tools. Clones share it. [`layer`](Toolbox::layer) returns a toolbox that overlays it: what a layer adds or
/// hides is visible only through that layer.
///
/// The layers that a call was made through are recorded with it. A run that is resumed finds its tools through layers
/// of the same names; if one of them is not registered, the run is held until it is.
#[derive(Clone, Default)]
pub struct Toolbox {
    root: Arc<LayerRegistry>,
    top: Option<Arc<LayerStack>>,
    /// The session in which its tools are used: what that hides is hidden on top of all layers.
    session: Option<Arc<LiveTools>>,
}

/// The tools of one layer or one source, and what it hides of the layers below.
#[derive(Clone, Default)]
pub(super) struct ToolTable {
    by_name: FxHashMap<Arc<str>, ToolSlot>,
    by_id: FxHashMap<ToolId, Arc<Tool>>,
    /// If set, only these names of the layers below are visible.
    only: Option<FxHashSet<Arc<str>>>,
    /// Finds tools that no table lists.
    source: Option<Arc<MountedSource>>,
    /// Whether it has the standard tool that reads on in a cut output.
    has_reader: bool,
}

/// What a layer has under a name.
#[derive(Clone)]
enum ToolSlot {
    Present(Arc<Tool>),
    Hidden,
}

impl ToolTable {
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
        self.has_reader |= is_reader(&tool);
        self.by_name.insert(name, ToolSlot::Present(tool));
        Ok(old)
    }

    /// The tools that a source lists. If it cannot list them, it is mounted without.
    fn of_source(name: &str, source: Arc<dyn Source>, old: Option<&Self>) -> Result<Self, RegisterError> {
        let (tools, unlisted) = match source.list() {
            Ok(tools) => (tools, None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        let mut table = Self::of(tools)?;
        let before = old.and_then(|old| old.source.as_deref());
        table.source = Some(Arc::new(MountedSource::new(name, source, unlisted, before)));
        Ok(table)
    }

    /// A table that only hides: these names, and those that are not in `only`.
    pub(super) fn hiding(hidden: &BTreeSet<Arc<str>>, only: Option<FxHashSet<Arc<str>>>) -> Self {
        let by_name = hidden.iter().map(|name| (name.clone(), ToolSlot::Hidden)).collect();
        Self { by_name, only, ..Self::default() }
    }

    fn of(tools: impl IntoIterator<Item = Tool>) -> Result<Self, RegisterError> {
        let mut table = Self::default();
        for tool in tools {
            tool.check()?;
            table.insert(Arc::new(tool))?;
        }
        Ok(table)
    }

    /// The source of this table, if it could not list its tools.
    fn failed_source(&self) -> Option<&Arc<MountedSource>> {
        self.source.as_ref().filter(|mounted| mounted.unlisted.is_some())
    }

    fn inherit_gates(&self, old: &Self) {
        for (name, entry) in &self.by_name {
            if let (ToolSlot::Present(tool), Some(ToolSlot::Present(old))) = (entry, old.by_name.get(name)) {
                tool.inherit_gate(old);
            }
        }
    }

    /// Whether it hides this name of the layers below.
    fn hides(&self, name: &str) -> bool {
        self.only.as_ref().is_some_and(|only| !only.contains(name))
    }

    fn remove(&mut self, name: &str) -> Option<Arc<Tool>> {
        let Some(ToolSlot::Present(tool)) = self.by_name.remove(name) else { return None };
        self.has_reader &= !is_reader(&tool);
        for id in ids(&tool) {
            self.by_id.remove(id);
        }
        Some(tool)
    }
}

fn is_reader(tool: &Tool) -> bool {
    *tool.spec().name == *READ_OUTPUT && tool.spec().id.as_str() == READ_OUTPUT_ID
}

pub(super) fn ids(tool: &Tool) -> impl Iterator<Item = &ToolId> {
    std::iter::once(&tool.spec().id).chain(&tool.spec().aliases)
}

impl Toolbox {
    /// An empty toolbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// A toolbox that overlays this one with the layer of this name. Later changes below the layer are visible through
    /// it. The layer is created if it does not exist. The same name always means the same layer, whatever it is stacked
    /// on, until [`remove_layer`](Toolbox::remove_layer).
    ///
    /// # Errors
    ///
    /// [`RegisterError::LayerName`] if the name is not 1 to 64 of the characters `a-z`, `A-Z`, `0-9`, `_`, `-`, `.`.
    pub fn layer(&self, name: &str) -> Result<Self, RegisterError> {
        Ok(self.on_top(self.root.named(name)?))
    }

    /// A toolbox that overlays this one with a new layer. The layer has a generated name and is removed with its last
    /// toolbox. After a restart, runs that were started through it cannot find it and are held; use a named layer for
    /// runs that should survive.
    #[must_use]
    pub fn unnamed_layer(&self) -> Self {
        self.on_top(self.root.unnamed())
    }

    /// Removes the layer of this name from the registry and returns whether it existed. Toolboxes that contain the
    /// layer keep using it. Runs that are resumed from now on are held until a layer of that name is registered again.
    pub fn remove_layer(&self, name: &str) -> bool {
        self.root.remove(name)
    }

    /// The layers of this toolbox.
    pub fn layers(&self) -> Layers {
        self.top.as_ref().map(|top| top.names.clone()).unwrap_or_default()
    }

    /// Whether it is not the plain toolbox below all layers.
    pub(crate) fn is_scoped(&self) -> bool {
        self.top.is_some() || self.session.is_some()
    }

    /// This toolbox as a session sees it: with the tools that belong to the session, and without those that it does not
    /// show. It follows later changes of both.
    #[must_use]
    pub fn in_session(&self, session: Arc<LiveTools>) -> Self {
        Self { session: Some(session), ..self.clone() }
    }

    /// This toolbox with the tools that belong to a session, whether the session shows them or not. For reading what was
    /// recorded.
    #[must_use]
    pub fn of_session(&self, session: impl Into<Arc<str>>) -> Self {
        self.in_session(Arc::new(LiveTools::all(session.into())))
    }

    /// What the session of this toolbox shows; `None` for a toolbox of no session.
    pub fn session_tools(&self) -> Option<(Arc<str>, Arc<SessionTools>)> {
        self.session.as_ref().map(|session| (session.session().clone(), session.now()))
    }

    /// The name of the session that hides this tool, if it is visible without the session.
    pub(crate) fn hiding_session(&self, tool: &ToolRef) -> Option<Arc<str>> {
        let session = self.session.as_ref()?.session();
        let all = self.of_session(session.clone());
        let snapshot = all.snapshot();
        let found = match tool {
            ToolRef::Name(name) => snapshot.by_name(name),
            ToolRef::Id(id) => snapshot.by_id(id.as_str()),
        };
        found.map(|_| session.clone())
    }

    /// The names of all registered layers, sorted. Unnamed layers are left out.
    pub fn layer_names(&self) -> Vec<Arc<str>> {
        let all = self.root.all();
        all.iter().map(|layer| layer.name().clone()).filter(|name| !name.starts_with('~')).collect()
    }

    /// The toolbox of a scope: the tools below all layers, with these layers on top. Without layers, this toolbox.
    ///
    /// # Errors
    ///
    /// [`NoLayer`] if one of them is not registered.
    pub fn scope(&self, layers: &Layers) -> Result<Self, NoLayer> {
        if layers.is_empty() || self.top.as_ref().is_some_and(|top| top.names == *layers) {
            return Ok(self.clone());
        }
        let root = Self { root: self.root.clone(), top: None, session: self.session.clone() };
        root.with_layers(layers)
    }

    /// This toolbox with these layers on top.
    ///
    /// # Errors
    ///
    /// [`NoLayer`] if one of them is not registered.
    pub fn with_layers(&self, layers: &Layers) -> Result<Self, NoLayer> {
        layers.names().iter().try_fold(self.clone(), |toolbox, name| Ok(toolbox.on_top(toolbox.root.get(name)?)))
    }

    fn on_top(&self, layer: Arc<Layer>) -> Self {
        let top = Some(LayerStack::on(self.top.as_ref(), layer));
        Self { root: self.root.clone(), top, session: self.session.clone() }
    }

    /// The tools of the top layer, or those below all layers if there is none.
    fn tools_here(&self) -> &RwLock<LayerTools> {
        self.top.as_ref().map_or(&self.root.tools, |top| &top.layer.tools)
    }

    /// Adds a tool to the top layer. A tool of the same name in that layer is replaced and returned.
    ///
    /// # Errors
    ///
    /// If the tool is refused; the toolbox is then unchanged.
    pub fn insert(&self, tool: impl Into<Tool>) -> Result<Option<Arc<Tool>>, RegisterError> {
        let tool = tool.into();
        tool.check()?;
        let mut here = self.tools_here().write();
        Arc::make_mut(&mut here.own).insert(Arc::new(tool))
    }

    /// Removes a tool from the top layer and returns it. A tool of the same name in a layer below is visible again.
    pub fn remove(&self, name: &str) -> Option<Arc<Tool>> {
        Arc::make_mut(&mut self.tools_here().write().own).remove(name)
    }

    /// Hides the tool with this name in the layers below, until [`remove`](Toolbox::remove) or until the layer is
    /// removed.
    pub fn hide(&self, name: &str) {
        let mut here = self.tools_here().write();
        let table = Arc::make_mut(&mut here.own);
        table.remove(name);
        table.by_name.insert(name.into(), ToolSlot::Hidden);
    }

    /// Hides all tools of the layers below except those with these names, including tools that are registered later.
    /// The layer's own tools stay visible. Replaces what the layer hid before.
    pub fn show_only<N: Into<Arc<str>>>(&self, names: impl IntoIterator<Item = N>) {
        let only = Some(names.into_iter().map(Into::into).collect());
        self.show(Some(Arc::new(ToolTable { only, ..ToolTable::default() })), []);
    }

    /// Hides the tools of the layers below with these names, and shows all others. Replaces what the layer hid before.
    pub fn show_all_but<N: Into<Arc<str>>>(&self, names: impl IntoIterator<Item = N>) {
        self.show(None, names.into_iter().map(Into::into));
    }

    /// Replaces what the layer hides, in one step.
    fn show(&self, only: Option<Arc<ToolTable>>, hidden: impl IntoIterator<Item = Arc<str>>) {
        let mut here = self.tools_here().write();
        here.only = only;
        let own = Arc::make_mut(&mut here.own);
        own.by_name.retain(|_, entry| matches!(entry, ToolSlot::Present(_)));
        for name in hidden {
            own.by_name.entry(name).or_insert(ToolSlot::Hidden);
        }
    }

    /// Adds all tools of a source in one step. Mounting a source again replaces all of its tools. The layer's own tools
    /// take precedence over them. A tool that was mounted before keeps the counts of its limits, unless those limits
    /// changed.
    ///
    /// # Errors
    ///
    /// If one of the tools is refused; the toolbox is then unchanged.
    pub fn mount(&self, source: &str, tools: impl IntoIterator<Item = Tool>) -> Result<(), RegisterError> {
        self.mount_table(None, source, ToolTable::of(tools)?);
        Ok(())
    }

    /// Like [`mount`](Toolbox::mount), but the tools belong to one session: outside of it they do not exist.
    ///
    /// # Errors
    ///
    /// If one of the tools is refused; the toolbox is then unchanged.
    pub fn mount_in_session(
        &self,
        session: &str,
        source: &str,
        tools: impl IntoIterator<Item = Tool>,
    ) -> Result<(), RegisterError> {
        self.mount_table(Some(session), source, ToolTable::of(tools)?);
        Ok(())
    }

    /// Mounts a source that can fail, and that can find tools which it does not list. If it cannot list its tools now, it
    /// is mounted without them, and [`catalog`](Toolbox::catalog) asks it again. Mounting a source again replaces all of
    /// its tools, as [`mount`](Toolbox::mount) does.
    ///
    /// # Errors
    ///
    /// If one of the tools that it lists is refused; the toolbox is then unchanged.
    pub fn mount_source(&self, name: &str, source: impl Source) -> Result<(), RegisterError> {
        let old = self.tools_here().read().sources.iter().find(|(own, _)| &**own == name).map(|(_, old)| old.clone());
        self.mount_table(None, name, ToolTable::of_source(name, Arc::new(source), old.as_deref())?);
        Ok(())
    }

    fn mount_table(&self, session: Option<&str>, source: &str, table: ToolTable) {
        let table = Arc::new(table);
        let mut here = self.tools_here().write();
        let sources = match session {
            Some(session) => here.by_session.entry(session.into()).or_default(),
            None => &mut here.sources,
        };
        match sources.iter_mut().find(|(name, _)| &**name == source) {
            Some((_, old)) => {
                table.inherit_gates(old);
                *old = table;
            }
            None => sources.push((source.into(), table)),
        }
    }

    /// Removes all tools of a source and returns whether it was mounted. Calls that already resolved one of them finish
    /// with it.
    pub fn unmount(&self, source: &str) -> bool {
        let sources = &mut self.tools_here().write().sources;
        let before = sources.len();
        sources.retain(|(name, _)| &**name != source);
        sources.len() != before
    }

    /// The same for a source that was [mounted in a session](Toolbox::mount_in_session).
    pub fn unmount_in_session(&self, session: &str, source: &str) -> bool {
        let by_session = &mut self.tools_here().write().by_session;
        let Some(sources) = by_session.get_mut(session) else { return false };
        let before = sources.len();
        sources.retain(|(name, _)| &**name != source);
        let removed = sources.len() != before;
        if sources.is_empty() {
            by_session.remove(session);
        }
        removed
    }

    /// The tools as they are now; later changes are not visible in it.
    pub fn snapshot(&self) -> Snapshot {
        let mut tables = SmallVec::new();
        let session = self.session.as_ref().map(|session| session.session());
        tables.extend(self.session.as_ref().and_then(|session| session.table()));
        self.for_each_layer(|tools| collect(&tools.read(), session, &mut tables));
        Snapshot::new(tables)
    }

    /// Visits the tools of each layer, the top one first.
    fn for_each_layer(&self, mut visit: impl FnMut(&RwLock<LayerTools>)) {
        let mut stack = self.top.as_deref();
        while let Some(here) = stack {
            visit(&here.layer.tools);
            stack = here.below.as_deref();
        }
        visit(&self.root.tools);
    }

    /// Every visible tool, and the sources that could not list theirs. Sources that failed are asked again; no schemas
    /// are loaded.
    pub fn catalog(&self) -> Catalog {
        let mut failed = Vec::new();
        self.for_each_layer(|tools| {
            // Sources are asked without a lock: they may be slow, or use this toolbox.
            let before = tools.read().sources.clone();
            for (name, old) in &before {
                let Some(mounted) = old.failed_source() else { continue };
                let new = match ToolTable::of_source(name, mounted.source.clone(), Some(old)) {
                    Ok(new) => new,
                    Err(refused) => {
                        let problem = ToolError::unavailable(refused.to_string());
                        failed.push(SourceFailure { source_name: name.clone(), problem });
                        continue;
                    }
                };
                if let Some(problem) = new.source.as_ref().and_then(|mounted| mounted.unlisted.clone()) {
                    failed.push(SourceFailure { source_name: name.clone(), problem });
                    continue;
                }
                let mut tools = tools.write();
                if let Some((_, current)) = tools.sources.iter_mut().find(|(_, current)| Arc::ptr_eq(current, old)) {
                    *current = Arc::new(new);
                }
            }
        });
        Catalog { tools: self.tools(), failed }
    }

    /// The tool that a call by this name would use.
    pub fn get(&self, name: &str) -> Option<Arc<Tool>> {
        self.snapshot().by_name(name).cloned()
    }

    /// The tool with this id or alias.
    pub fn by_id(&self, id: &str) -> Option<Arc<Tool>> {
        self.snapshot().by_id(id).cloned()
    }

    /// The tool that a recorded call uses: by its recorded id, in its recorded layers, with the tools of its session.
    pub fn recorded(&self, id: &str, layers: &Layers, session: Option<&Arc<str>>) -> Option<Arc<Tool>> {
        match session {
            Some(session) => self.of_session(session.clone()).recorded(id, layers, None),
            None if layers.is_empty() => self.by_id(id),
            None => self.scope(layers).ok()?.by_id(id),
        }
    }

    /// Whether a call that was recorded with these layers could have been followed by one of the standard tool that
    /// reads on in a cut output.
    pub(crate) fn has_reader(&self, layers: &Layers) -> bool {
        let scope = if layers.is_empty() { Ok(self.clone()) } else { self.scope(layers) };
        scope.is_ok_and(|scope| scope.snapshot().has_reader())
    }

    /// Every visible tool that is listed, sorted by name. [`catalog`](Toolbox::catalog) also says which sources failed.
    pub fn tools(&self) -> Vec<Arc<Tool>> {
        self.snapshot().tools()
    }

    /// Every visible tool with this tag, sorted by name.
    pub fn tagged(&self, tag: &str) -> Vec<Arc<Tool>> {
        let mut tools = self.tools();
        tools.retain(|tool| tool.spec().about.tags.iter().any(|own| own == tag));
        tools
    }
}

/// Refuses a name that no tool can have.
pub(crate) fn check_name(name: &str) -> Result<(), RegisterError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > NAME_CHARS || !name.chars().all(legal) {
        // A huge name is not repeated in full.
        return Err(RegisterError::Name(name.chars().take(2 * NAME_CHARS).collect()));
    }
    Ok(())
}

/// Refuses a spec that cannot work.
pub(crate) fn check_spec(spec: &ToolSpec, durable: bool) -> Result<(), RegisterError> {
    let name = &spec.name;
    check_name(name)?;
    let no = |problem| Err(RegisterError::Contradiction { name: name.to_string(), problem });
    let limits = &spec.limits;
    if durable && (limits.timeout.is_some() || limits.retry.is_some() || limits.heartbeat.is_some()) {
        return no("a durable body cannot have a timeout, retry or heartbeat; set a deadline, or limits on its steps");
    }
    if durable && spec.guards.breaker.target().is_some() {
        return no("a durable body makes no attempts, so it has no breaker; set it on the tools that it calls");
    }
    if spec.guards.breaker.target().is_some_and(|target| target.is_empty()) {
        return no("the target of a breaker needs a name");
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
        return no("zero attempts would never run it; use one attempt for no retry");
    }
    if limits.retry.is_some_and(|retry| retry.attempts > 1) && spec.hints.destructive {
        return no("a destructive tool is never retried automatically");
    }
    if limits.in_flight == Some(0) || limits.per_second == Some(0) {
        return no("a limit of zero would never let a call start");
    }
    if matches!(&spec.guards.approval, Approval::When(condition) if condition.source().trim().is_empty()) {
        return no("the approval condition is empty; use `Approval::Always` or `Approval::Never`");
    }
    if let Concurrency::Keyed(key) = &spec.guards.concurrency {
        let refuse =
            |problem: &BadKeyExpression| RegisterError::Key { name: name.to_string(), problem: problem.clone() };
        key.check().map_err(refuse)?;
    }
    spec.policy().check().map_err(|problem| RegisterError::Policy { name: name.to_string(), problem })
}

#[cfg(test)]
mod source_tests;
#[cfg(test)]
mod tests;
