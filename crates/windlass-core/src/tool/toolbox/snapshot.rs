//! The tools of a toolbox at one moment.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::{ToolSlot, ToolTable, ids, is_reader};
use crate::call::ToolRef;
use crate::tool::Tool;
use crate::tool::layers::LayerTools;
use crate::tool::projection::READ_OUTPUT;
use crate::tool::source::SourceFailure;

/// The visible tools of a toolbox at one moment. A batch resolves all its calls in one snapshot.
#[derive(Clone)]
pub struct Snapshot {
    tables: Tables,
    /// The tools that sources found for this snapshot.
    found: OnceLock<Box<FoundTool>>,
}

pub(super) type Tables = SmallVec<[Arc<ToolTable>; 2]>;

/// A list of tools that only grows, so that a snapshot can return references into it.
#[derive(Clone)]
struct FoundTool {
    tool: Arc<Tool>,
    next: OnceLock<Box<FoundTool>>,
}

/// Adds the tables of one layer: its own tools, those of its sources and of the session's, and what it hides of the
/// layers below.
pub(super) fn collect(tools: &LayerTools, session: Option<&Arc<str>>, tables: &mut Tables) {
    tables.push(tools.own.clone());
    tables.extend(tools.sources.iter().map(|(_, table)| table.clone()));
    if let Some(session) = session.filter(|_| !tools.by_session.is_empty()) {
        tables.extend(tools.by_session.get(session).into_iter().flatten().map(|(_, table)| table.clone()));
    }
    tables.extend(tools.only.clone());
}

impl Snapshot {
    pub(super) fn new(tables: Tables) -> Self {
        Self { tables, found: OnceLock::new() }
    }

    /// The tool that a call by this name uses. Tools that are registered or listed take precedence over those that only
    /// a source finds.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Tool>> {
        match self.listed(name) {
            Visible::Tool(tool) => Some(tool),
            Visible::Hidden => None,
            Visible::Unlisted if self.has_sources() => self.found(&ToolRef::Name(name.into())),
            Visible::Unlisted => None,
        }
    }

    fn listed(&self, name: &str) -> Visible<'_> {
        for table in &self.tables {
            match table.by_name.get(name) {
                Some(ToolSlot::Present(tool)) => return Visible::Tool(tool),
                Some(ToolSlot::Hidden) => return Visible::Hidden,
                None if table.hides(name) => return Visible::Hidden,
                None => {}
            }
        }
        Visible::Unlisted
    }

    /// The tool with this id or alias. A tool that is shadowed or hidden by name cannot be found by id either.
    pub fn by_id(&self, id: &str) -> Option<&Arc<Tool>> {
        match self.tables.iter().find_map(|table| table.by_id.get(id)) {
            Some(tool) => match self.listed(&tool.spec().name) {
                Visible::Tool(visible) if Arc::ptr_eq(visible, tool) => Some(visible),
                _ => None,
            },
            None if self.has_sources() => self.found(&ToolRef::Id(id.into())),
            None => None,
        }
    }

    /// Whether the standard tool that reads on in a cut output is visible.
    pub(crate) fn has_reader(&self) -> bool {
        let is_visible = || matches!(self.listed(READ_OUTPUT), Visible::Tool(tool) if is_reader(tool));
        self.tables.iter().any(|table| table.has_reader) && is_visible()
    }

    fn has_sources(&self) -> bool {
        self.tables.iter().any(|table| table.source.is_some())
    }

    fn found(&self, wanted: &ToolRef) -> Option<&Arc<Tool>> {
        let tool = self.find(wanted).ok()??;
        let mut slot = &self.found;
        loop {
            let kept = slot.get_or_init(|| Box::new(FoundTool { tool: tool.clone(), next: OnceLock::new() }));
            if Arc::ptr_eq(&kept.tool, &tool) {
                return Some(&kept.tool);
            }
            slot = &kept.next;
        }
    }

    /// Asks the sources for a tool that is not listed. A source that fails does not keep the others from answering.
    ///
    /// # Errors
    ///
    /// The first failure, if no source has the tool.
    pub(crate) fn find(&self, wanted: &ToolRef) -> Result<Option<Arc<Tool>>, SourceFailure> {
        let mut failed = Ok(None);
        for (position, table) in self.tables.iter().enumerate() {
            let Some(source) = &table.source else { continue };
            match source.find(wanted) {
                Ok(Some(tool)) if self.shows(&tool, position) => return Ok(Some(tool)),
                Ok(_) => {}
                Err(failure) if failed.is_ok() => failed = Err(failure),
                Err(_) => {}
            }
        }
        failed
    }

    /// Whether a tool that is found by the source at this position is neither hidden nor shadowed. A tool with the id of
    /// another one is not shown: the journal would name the other.
    fn shows(&self, tool: &Tool, position: usize) -> bool {
        let name = &tool.spec().name;
        let above = &self.tables[..position];
        let is_listed = self.tables.iter().any(|table| matches!(table.by_name.get(name), Some(ToolSlot::Present(_))));
        let is_hidden = above.iter().any(|table| table.by_name.contains_key(name) || table.hides(name));
        let is_taken = ids(tool).any(|id| self.tables.iter().any(|table| table.by_id.contains_key(id)));
        !is_listed && !is_hidden && !is_taken
    }

    /// Every visible tool that is listed, sorted by name.
    pub fn tools(&self) -> Vec<Arc<Tool>> {
        let mut names: Vec<&Arc<str>> = self.tables.iter().flat_map(|table| table.by_name.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let listed = |name: &Arc<str>| match self.listed(name) {
            Visible::Tool(tool) => Some(tool.clone()),
            Visible::Hidden | Visible::Unlisted => None,
        };
        names.into_iter().filter_map(listed).collect()
    }
}

/// What the tables have under a name.
enum Visible<'s> {
    Tool(&'s Arc<Tool>),
    Hidden,
    Unlisted,
}
