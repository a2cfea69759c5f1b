//! What a model is shown of a toolbox.

use std::sync::Arc;

use serde_json::Value;

use super::source::SourceFailure;
use super::spec::{Deferral, ToolSpec};
use super::{Tool, ToolError, Toolbox};
use crate::limits::STUB_ABOVE;

/// Every visible tool, and the sources that could not list theirs.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The tools, sorted by name.
    pub tools: Vec<Arc<Tool>>,
    /// The sources whose tools are missing.
    pub failed: Vec<SourceFailure>,
}

/// What a model is shown of a toolbox.
#[derive(Clone, Debug)]
pub struct Listings {
    /// The tools, sorted by name.
    pub tools: Vec<Listing>,
    /// The sources whose tools are missing.
    pub failed: Vec<SourceFailure>,
}

/// A tool as it is shown to a model.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The name to call.
    pub name: Arc<str>,
    /// The title for people.
    pub title: Option<String>,
    /// The description for the model.
    pub description: String,
    /// The schema of its arguments; `None` for a stub.
    pub input: Option<Value>,
    /// The schema of its output; `None` for a stub or if any value is allowed.
    pub output: Option<Value>,
    /// Why its schemas could not be loaded although they were asked for.
    pub problem: Option<ToolError>,
}

impl Toolbox {
    /// What a model is shown: every visible tool, sorted by name. Nothing is loaded for it: a tool whose schemas are
    /// lazy and not loaded yet is a stub, and so are tools that allow it in a large toolbox.
    pub fn listing(&self) -> Listings {
        self.listing_with(|_| false)
    }

    /// Like [`listing`](Toolbox::listing), with the schemas of the tools for which `asked` returns true. Lazy schemas of
    /// those are loaded and kept. A tool whose schemas cannot be loaded says why.
    pub fn listing_with(&self, asked: impl Fn(&ToolSpec) -> bool) -> Listings {
        let Catalog { tools, failed } = self.catalog();
        let large = tools.len() > STUB_ABOVE;
        let session = self.session_tools();
        let is_revealed =
            |tool: &Tool| session.as_ref().is_some_and(|(_, session)| session.revealed.contains(&tool.spec().name));
        let listing = |tool: &Arc<Tool>| Listing::of(tool, large, asked(tool.spec()) || is_revealed(tool));
        Listings { tools: tools.iter().map(listing).collect(), failed }
    }
}

impl Listing {
    fn of(tool: &Tool, large: bool, asked: bool) -> Self {
        let spec = tool.spec();
        let stub = match spec.about.deferral {
            Deferral::Never => false,
            Deferral::Always => true,
            Deferral::Auto => large,
        };
        let contract = match (asked, stub) {
            (true, _) => tool.contract().map(Some),
            (false, true) => Ok(None),
            (false, false) => Ok(tool.contract_if_loaded()),
        };
        let (contract, problem) = contract.map_or_else(|error| (None, Some(error)), |contract| (contract, None));
        Self {
            name: spec.name.clone(),
            title: spec.about.title.clone(),
            description: spec.about.description.clone(),
            input: contract.map(|contract| contract.input().clone()),
            output: contract.and_then(|contract| contract.output().cloned()),
            problem,
        }
    }
}
