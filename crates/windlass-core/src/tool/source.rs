//! Sources of tools that also answer for names they do not list.

use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::{RegisterError, Tool, ToolError, ToolResult};
use crate::call::ToolRef;
use crate::limits::UNLISTED_KEPT;

/// A source of tools, mounted with [`Toolbox::mount_source`](super::Toolbox::mount_source).
///
/// Both methods are called synchronously: a source of a remote system answers from what it has loaded. Schemas that are
/// expensive are left to [`Tool::lazy`].
pub trait Source: Send + Sync + 'static {
    /// The tools that it lists. They are kept until the source is mounted again.
    ///
    /// # Errors
    ///
    /// If it cannot list them now. The listing reports the source by name, and asks it again.
    fn list(&self) -> ToolResult<Vec<Tool>>;

    /// The tool of this name or id, for a name or id that neither the source nor anything else in the toolbox lists.
    /// What is found is kept; `None` and errors are not. A tool whose journals are to be continued after a restart must
    /// be found by its id too.
    ///
    /// # Errors
    ///
    /// If it cannot tell now. A new call then fails as `unavailable` with this error.
    fn find(&self, tool: &ToolRef) -> ToolResult<Option<Tool>> {
        let _ = tool;
        Ok(None)
    }
}

/// A source that could not be asked. The tools of other sources are not affected.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the source `{source_name}` failed: {problem}")]
pub struct SourceFailure {
    /// The name under which the source is mounted.
    pub source_name: Arc<str>,
    /// Why it failed.
    pub problem: ToolError,
}

/// A mounted source, and what it found for names that it does not list.
pub(super) struct MountedSource {
    pub(super) name: Arc<str>,
    pub(super) source: Arc<dyn Source>,
    /// Why its tools could not be listed; `None` if they are.
    pub(super) unlisted: Option<ToolError>,
    found: RwLock<FoundTools>,
}

#[derive(Default)]
struct FoundTools {
    by_name: FxHashMap<Arc<str>, Arc<Tool>>,
    /// What the source found when it was mounted before, for the counts of limits.
    before: FxHashMap<Arc<str>, Arc<Tool>>,
}

impl MountedSource {
    pub(super) fn new(name: &str, source: Arc<dyn Source>, unlisted: Option<ToolError>, old: Option<&Self>) -> Self {
        let before = old.map(|old| old.found.read().by_name.clone()).unwrap_or_default();
        let found = RwLock::new(FoundTools { by_name: FxHashMap::default(), before });
        Self { name: name.into(), source, unlisted, found }
    }

    /// The tool of this name or id, which no table has.
    pub(super) fn find(&self, wanted: &ToolRef) -> Result<Option<Arc<Tool>>, SourceFailure> {
        if let Some(tool) = self.found(wanted) {
            return Ok(Some(tool));
        }
        let failed = |problem| SourceFailure { source_name: self.name.clone(), problem };
        let Some(tool) = self.source.find(wanted).map_err(failed)? else { return Ok(None) };
        let refused = |why: String| failed(ToolError::unavailable(why));
        tool.check().map_err(|error: RegisterError| refused(error.to_string()))?;
        if !answers(&tool, wanted) {
            let (wanted, name) = (wanted.as_str(), &tool.spec().name);
            return Err(refused(format!("asked for the tool `{wanted}`, it answered with `{name}`")));
        }
        Ok(Some(self.keep(tool)))
    }

    fn found(&self, wanted: &ToolRef) -> Option<Arc<Tool>> {
        let found = self.found.read();
        match wanted {
            ToolRef::Name(name) => found.by_name.get(name).cloned(),
            ToolRef::Id(_) => found.by_name.values().find(|tool| answers(tool, wanted)).cloned(),
        }
    }

    fn keep(&self, tool: Tool) -> Arc<Tool> {
        let mut found = self.found.write();
        let name = tool.spec().name.clone();
        // Another call may have found it at the same time; both use the tool that was kept first.
        if let Some(kept) = found.by_name.get(&name) {
            return kept.clone();
        }
        if let Some(old) = found.before.get(&name) {
            tool.inherit_gate(old);
        }
        let tool = Arc::new(tool);
        if found.by_name.len() < UNLISTED_KEPT {
            found.by_name.insert(name, tool.clone());
        }
        tool
    }
}

/// Whether the tool has this name or id.
fn answers(tool: &Tool, wanted: &ToolRef) -> bool {
    match wanted {
        ToolRef::Name(name) => tool.spec().name == *name,
        ToolRef::Id(id) => super::toolbox::ids(tool).any(|own| own == id),
    }
}
