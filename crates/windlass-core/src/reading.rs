//! Reading the outputs of a run's calls, in pieces or whole.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::id::RunId;
use crate::path::Path;
use crate::run::record::Event;
use crate::runtime::Runtime;
use crate::tool::budget::{Page, page};
use crate::tool::{Artifact, Output};

impl Runtime {
    /// A page of the text that the operation at `path` returned: at most `limit` bytes from `offset` on. Models are
    /// pointed to this when their view of an output was cut.
    pub async fn read_output(&self, run: RunId, path: &Path, offset: usize, limit: usize) -> Result<Page> {
        Ok(page(&self.recorded(run, path).await?.text(), offset, limit))
    }

    /// The whole output of the operation at `path`: the original that the tool kept beside its value, or else the value
    /// itself.
    pub async fn artifact(&self, run: RunId, path: &Path) -> Result<Artifact> {
        let output = self.recorded(run, path).await?;
        if let Some(raw) = &output.raw {
            return Ok((**raw).clone());
        }
        let media_type = if output.value.is_string() { "text/plain" } else { "application/json" };
        Ok(Artifact::new(media_type, output.text().as_bytes()))
    }

    /// The output that the caller was given. An output that a check or middleware withheld stays withheld.
    async fn recorded(&self, run: RunId, path: &Path) -> Result<Arc<Output>> {
        let journal = self.journal(run).await?;
        let finished = journal.iter().rev().find_map(|record| match &record.event {
            Event::Finished(finished) if record.path == *path => Some(finished.answer()),
            _ => None,
        });
        let why = |problem: &str| format!("run {run} has no output at {path}: {problem}");
        match finished {
            Some(Ok(output)) => Ok(output),
            Some(Err(error)) => Err(Error::Conflict(why(&format!("it ended with an error ({})", error.kind())))),
            None if journal.iter().any(|record| record.path == *path) => {
                Err(Error::Conflict(why("it has not ended yet; attach to the run and read it then")))
            }
            None => Err(Error::NotFound(why("the run has no operation there; its journal lists the paths"))),
        }
    }
}
