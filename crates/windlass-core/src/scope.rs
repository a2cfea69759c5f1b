//! The scope of recorded calls: the layers through which their tools are found.

use std::borrow::Cow;
use std::sync::Arc;

use crate::call::plan::Scope;
use crate::call::{ToolCall, ToolRef};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::Asked;
use crate::run::state::Hold;
use crate::store::StoreError;
use crate::tool::spec::Recovery;
use crate::tool::{Layers, LiveTools, NoLayer, Tool, Toolbox};

impl Kernel {
    /// The scope of a run: the layers that its first record names, and on top of them what its session shows.
    pub(crate) fn scope_of(&self, run: &Run, tools: Option<Arc<LiveTools>>) -> Result<Scope, Hold> {
        let layers = run.recorded_op(&Path::root(), |op| op.asked.layers.clone()).unwrap_or_default();
        let missing = |missing: NoLayer| Hold::LayerMissing { path: Path::root(), layer: missing.0.to_string() };
        let toolbox = self.env.toolbox.scope(&layers).map_err(missing)?;
        Ok(Scope::of(match tools {
            Some(tools) => toolbox.in_session(tools),
            None => toolbox,
        }))
    }

    /// A toolbox in the session of the calls that are made with it.
    pub(crate) async fn toolbox_in<'t>(
        &self,
        toolbox: &'t Toolbox,
        session: Option<&Arc<str>>,
    ) -> Result<Cow<'t, Toolbox>, StoreError> {
        Ok(match self.session_tools(session).await? {
            Some(tools) => Cow::Owned(toolbox.in_session(tools)),
            None => Cow::Borrowed(toolbox),
        })
    }

    /// The tools that a session shows.
    pub(crate) async fn session_tools(&self, session: Option<&Arc<str>>) -> Result<Option<Arc<LiveTools>>, StoreError> {
        match session {
            Some(session) => self.store.sessions().live_tools(session.clone()).await.map(Some),
            None => Ok(None),
        }
    }

    /// The tool of a recorded call, in the scope that is recorded with it. The session of its run may hide it by now.
    pub(crate) fn tool_of(&self, asked: &Asked, session: Option<&Arc<str>>) -> Option<Arc<Tool>> {
        self.env.toolbox.recorded(&asked.name, &asked.layers, session)
    }

    /// The session of a run.
    pub(crate) async fn session_of(&self, run: RunId) -> Result<Option<Arc<str>>, StoreError> {
        Ok(self.store.info(run).await?.and_then(|info| info.session))
    }

    /// The layers that a run's first record names. Empty if its journal is gone or cannot be read.
    pub(crate) async fn layers_of(&self, run: RunId) -> Result<Layers, StoreError> {
        match self.store.page(run, 0, 1).await {
            Ok(records) => {
                Ok(records.into_iter().find_map(|record| record.asked).map(|asked| asked.layers).unwrap_or_default())
            }
            Err(StoreError::JournalGone(_) | StoreError::Sealed { .. } | StoreError::Damaged { .. }) => {
                Ok(Layers::default())
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether the run ends when its owner dies. If one of its layers is missing, the tool below the layers decides.
pub(crate) fn is_owner_bound(run: &Run, scope: Option<&Scope>) -> bool {
    let root = run.recorded_op(&Path::root(), |op| op.asked.name.clone());
    let toolbox = scope.map_or(&run.kernel.env.toolbox, |scope| &scope.toolbox);
    let tool = root.and_then(|name| toolbox.by_id(&name));
    tool.is_some_and(|tool| tool.spec().guards.recovery == Recovery::OwnerBound)
}

/// The call that a record asks for, with the layers that it adds to those of its caller.
pub(crate) fn recorded_call(asked: &Asked, caller: &Layers) -> ToolCall {
    let args = asked.input.clone().unwrap_or_default();
    let mut call = ToolCall::to(ToolRef::Id(asked.name.clone().into()), args);
    call.id = asked.call_id.clone();
    call.broken = asked.broken.clone();
    call.limits = asked.limits.clone();
    call.metadata = asked.metadata.clone();
    call.layers = asked.layers.names().iter().skip(caller.names().len()).cloned().collect();
    call
}
