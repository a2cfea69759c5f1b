//! The tools of a session, as operations of a durable body.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::session::{CtxSession, unexpected};
use crate::store::{SessionAnswer, SessionChange};
use crate::tool::{Listing, SessionTools, ToolResult, Toolbox, ToolsChange};
use crate::value::Digest;

/// A tool that a session shows, as a body sees it. The record has the digest of its schema, not the schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownTool {
    /// The name to call.
    pub name: Arc<str>,
    /// The description for the model.
    pub description: String,
    /// The digest of the schema of its arguments; `None` for a tool whose schema is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

impl ShownTool {
    fn of(listing: Listing) -> Self {
        let schema = listing.input.as_ref().map(|schema| Digest::of(schema).to_string());
        Self { name: listing.name, description: listing.description, schema }
    }

    fn all(toolbox: &Toolbox) -> Vec<Self> {
        toolbox.listing().tools.into_iter().map(Self::of).collect()
    }
}

impl<'c> CtxSession<'c> {
    /// The tools that the session shows, as a model sees them in the scope of this body. The body sees the same ones when
    /// it is entered again, whatever was shown or hidden meanwhile.
    pub fn tools(self) -> BoxFuture<'c, ToolResult<Vec<ShownTool>>> {
        let toolbox = self.ctx.scope.toolbox.clone();
        let read = self.read("tools", serde_json::Value::Null, move |target| {
            let toolbox = toolbox.clone();
            Box::pin(async move {
                // A change that the outcome of an earlier call makes is in the store once that outcome is.
                target.run.flush().await;
                let tools = target.run.kernel.store.sessions().live_tools(target.session.clone()).await?;
                Ok(serde_json::json!(ShownTool::all(&toolbox.in_session(tools))))
            })
        });
        Box::pin(async move { Ok(serde_json::from_value(read.await?)?) })
    }

    /// Changes the tools that the session shows. Returns what it shows now: the next call of this body finds its tool
    /// among them.
    pub fn change_tools(self, change: ToolsChange) -> BoxFuture<'c, ToolResult<SessionTools>> {
        let input = serde_json::to_value(&change);
        let write = self.write("change_tools", input, SessionChange::Tools(change));
        Box::pin(async move {
            match write.await? {
                SessionAnswer::Tools { tools } => Ok(tools),
                answer => Err(unexpected(&answer)),
            }
        })
    }

    /// Shows these tools, and no longer hides them.
    pub fn show_tools<N: Into<Arc<str>>>(
        self,
        names: impl IntoIterator<Item = N>,
    ) -> BoxFuture<'c, ToolResult<SessionTools>> {
        self.change_tools(ToolsChange::show(names))
    }

    /// Hides these tools.
    pub fn hide_tools<N: Into<Arc<str>>>(
        self,
        names: impl IntoIterator<Item = N>,
    ) -> BoxFuture<'c, ToolResult<SessionTools>> {
        self.change_tools(ToolsChange::hide(names))
    }

    /// Reveals these tools: they are shown with their schemas, besides those that the session shows.
    pub fn reveal_tools<N: Into<Arc<str>>>(
        self,
        names: impl IntoIterator<Item = N>,
    ) -> BoxFuture<'c, ToolResult<SessionTools>> {
        self.change_tools(ToolsChange::reveal(names))
    }
}
