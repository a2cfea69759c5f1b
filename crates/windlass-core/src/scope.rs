//! The scope of recorded calls: the layers through which their tools are found.

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
use crate::tool::{Layers, NoLayer, Tool};

impl Kernel {
    /// The scope that a run's first record names.
    pub(crate) fn scope_of(&self, run: &Run) -> Result<Scope, Hold> {
        let layers = run.recorded_op(&Path::root(), |op| op.asked.layers.clone()).unwrap_or_default();
        let missing = |missing: NoLayer| Hold::LayerMissing { path: Path::root(), layer: missing.0.to_string() };
        Ok(Scope::of(self.env.toolbox.scope(&layers).map_err(missing)?))
    }

    /// The tool of a recorded call, in the scope that is recorded with it.
    pub(crate) fn tool_of(&self, asked: &Asked) -> Option<Arc<Tool>> {
        self.env.toolbox.recorded(&asked.name, &asked.layers)
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
