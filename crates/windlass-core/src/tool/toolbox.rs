//! Sets of tools that overlay one another.

use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde_json::Value;
use smallvec::SmallVec;

use super::contract::BadSchema;
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

/// A set of tools. Cloning shares it. [`layer`](Toolbox::layer) makes one that overlays it: what the layer adds or hides
/// is seen through the layer only, and ends with it.
#[derive(Clone, Default)]
pub struct Toolbox {
    own: Arc<RwLock<Layer>>,
    parent: Option<Arc<Toolbox>>,
}

#[derive(Default)]
struct Layer {
    own: Arc<Table>,
    sources: Vec<(Arc<str>, Arc<Table>)>,
}

#[derive(Clone, Default)]
struct Table {
    by_name: FxHashMap<Arc<str>, Entry>,
    by_id: FxHashMap<ToolId, Arc<Tool>>,
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

    /// A toolbox that overlays this one and sees its later changes.
    #[must_use]
    pub fn layer(&self) -> Self {
        Self { own: Arc::default(), parent: Some(Arc::new(self.clone())) }
    }

    /// Adds a tool. One of the same name is replaced and returned.
    pub fn insert(&self, tool: impl Into<Tool>) -> Result<Option<Arc<Tool>>, RegisterError> {
        let tool = tool.into();
        tool.check()?;
        let mut layer = self.own.write();
        Arc::make_mut(&mut layer.own).insert(Arc::new(tool))
    }

    /// Takes a tool of this layer out and returns it; one of a layer below shows again.
    pub fn remove(&self, name: &str) -> Option<Arc<Tool>> {
        Arc::make_mut(&mut self.own.write().own).remove(name)
    }

    /// Hides whatever tool has this name below, until [`remove`](Toolbox::remove) or the layer's end.
    pub fn hide(&self, name: &str) {
        let mut layer = self.own.write();
        let table = Arc::make_mut(&mut layer.own);
        table.remove(name);
        table.by_name.insert(name.into(), Entry::Hidden);
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
        let sources = &mut self.own.write().sources;
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
        let sources = &mut self.own.write().sources;
        let before = sources.len();
        sources.retain(|(name, _)| &**name != source);
        sources.len() != before
    }

    /// The tools as they are now; later changes do not show in it.
    pub fn snapshot(&self) -> Snapshot {
        let mut tables = SmallVec::new();
        let mut toolbox = Some(self);
        while let Some(current) = toolbox {
            let layer = current.own.read();
            tables.push(layer.own.clone());
            tables.extend(layer.sources.iter().map(|(_, table)| table.clone()));
            toolbox = current.parent.as_deref();
        }
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
pub struct Snapshot(SmallVec<[Arc<Table>; 2]>);

impl Snapshot {
    /// The tool a call by this name uses.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Tool>> {
        match self.0.iter().find_map(|table| table.by_name.get(name))? {
            Entry::Here(tool) => Some(tool),
            Entry::Hidden => None,
        }
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
