//! Reading the outputs of a run's calls, in pieces or whole.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::call::Attempt;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::path::Path;
use crate::run::record::Event;
use crate::run::{Registration, Run};
use crate::runtime::Runtime;
use crate::tool::budget::{Page, page};
use crate::tool::{Artifact, Output, ToolError, ToolResult};

impl Runtime {
    /// A page of the [text](Output::full_text) that the operation at `path` returned: at most `limit` bytes from
    /// `offset` on. Models are pointed to this when their view of an output was cut.
    pub async fn read_output(&self, run: RunId, path: &Path, offset: usize, limit: usize) -> Result<Page> {
        Ok(page(&self.kernel().recorded(run, path).await?.full_text(), offset, limit))
    }

    /// The whole output of the operation at `path`: the original that the tool kept beside its value, or else the value
    /// itself.
    pub async fn artifact(&self, run: RunId, path: &Path) -> Result<Artifact> {
        let output = self.kernel().recorded(run, path).await?;
        if let Some(raw) = &output.raw {
            return Ok((**raw).clone());
        }
        let media_type = if output.value.is_string() { "text/plain" } else { "application/json" };
        Ok(Artifact::new(media_type, output.text().as_bytes()))
    }
}

impl Attempt {
    /// Like [`Runtime::read_output`], for a tool that a model calls: it reads outputs of its own run, and of the runs of
    /// its own session.
    ///
    /// # Errors
    ///
    /// `denied` for an output of another session, whether there is one or not; `failed` if there is no output at
    /// `path`.
    pub async fn read_output(&self, run: RunId, path: &Path, offset: usize, limit: usize) -> ToolResult<Page> {
        let over = || ToolError::unavailable("the run of this call is over");
        let (kernel, session) = {
            let home = self.home().ok_or_else(over)?;
            if home.id == run {
                stored(&home).await;
            }
            (home.kernel.clone(), home.session.clone())
        };
        if run != self.run() {
            let info = kernel.store.info(run).await.map_err(ToolError::internal)?;
            if session.is_none() || info.and_then(|info| info.session) != session {
                return Err(ToolError::denied(format!(
                    "run {run} does not belong to the session of this call, and only outputs of the same session can be \
                     read"
                )));
            }
        }
        match kernel.recorded(run, path).await {
            Ok(output) => Ok(page(&output.full_text(), offset, limit)),
            Err(error @ (Error::Conflict(_) | Error::NotFound(_))) => Err(ToolError::failed(error.to_string())),
            Err(error) => Err(ToolError::internal(error)),
        }
    }
}

/// Waits until everything recorded so far is in the store.
async fn stored(run: &Arc<Run>) {
    let mark = run.with(|machine| machine.outbox().written());
    let mut registration = Registration::default();
    poll_fn(|cx| {
        registration.register(run, cx);
        if run.is_durable(mark) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Kernel {
    /// The output that the caller was given, without its secrets. An output that a check or middleware withheld stays
    /// withheld.
    async fn recorded(&self, run: RunId, path: &Path) -> Result<Arc<Output>> {
        let journal = self.store.journal(run, 0).await?;
        let finished = journal.iter().rev().find_map(|record| match &record.event {
            Event::Finished(finished) if record.path == *path => Some(finished.answer()),
            _ => None,
        });
        let why = |problem: &str| format!("run {run} has no output at {path}: {problem}");
        match finished {
            Some(Ok(output)) => match output.without_secrets() {
                Cow::Owned(clean) => Ok(Arc::new(clean)),
                Cow::Borrowed(_) => Ok(output),
            },
            Some(Err(error)) => Err(Error::Conflict(why(&format!("it ended with an error ({})", error.kind())))),
            None if journal.iter().any(|record| record.path == *path) => {
                Err(Error::Conflict(why("it has not ended yet; attach to the run and read it then")))
            }
            None => Err(Error::NotFound(why("the run has no operation there; its journal lists the paths"))),
        }
    }
}
