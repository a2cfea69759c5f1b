//! The session of a call, as an attempt sees it: reads that are not recorded.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::attempt::Attempt;
use crate::limits;
use crate::session::files::FileView;
use crate::store::{DataKind, SessionInfo, SessionMessage, Store, StoreError};
use crate::tool::{Listings, SessionTools, ToolError, ToolResult, Toolbox};

/// The session that a call belongs to; see [`Attempt::session`](super::Attempt::session). Each method reads what the
/// session has at that moment. To write to the session, return [`Output::post`](crate::tool::Output::post), or use the
/// operations of a durable body.
pub struct SessionView {
    store: Arc<dyn Store>,
    name: Arc<str>,
    attempt: Attempt,
    /// The tools of the call; `None` in a step.
    toolbox: Option<Toolbox>,
}

impl SessionView {
    pub(super) fn new(store: Arc<dyn Store>, name: Arc<str>, attempt: Attempt, toolbox: Option<Toolbox>) -> Self {
        Self { store, name, attempt, toolbox }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its title, owner, and whether it is closed. `None` only for a call whose run is not in the store yet.
    pub async fn info(&self) -> ToolResult<Option<SessionInfo>> {
        self.store.sessions().session(self.name.clone()).await.map_err(unreadable)
    }

    /// The tools that the session shows, as a model sees them in the scope of the call. In a step, use the
    /// [session](crate::ctx::Ctx::session) of the body instead.
    pub fn tools(&self) -> ToolResult<Listings> {
        let toolbox = self.toolbox.as_ref();
        let toolbox = toolbox.ok_or_else(|| ToolError::failed("a step lists no tools; use `ctx.session().tools()`"))?;
        Ok(toolbox.listing())
    }

    /// Which tools the session shows, hides and has revealed.
    pub async fn chosen_tools(&self) -> ToolResult<SessionTools> {
        let info = self.info().await?;
        Ok(info.and_then(|session| session.tools).map(|tools| (*tools).clone()).unwrap_or_default())
    }

    /// Its model, by the name it was set to.
    pub async fn model(&self) -> ToolResult<Option<Arc<str>>> {
        Ok(self.info().await?.and_then(|session| session.settings.model))
    }

    /// The messages after position `after`, in order, at most `limit` and at most [`limits::MESSAGE_PAGE`].
    pub async fn messages(&self, after: u64, limit: usize) -> ToolResult<Vec<SessionMessage>> {
        let limit = limit.min(limits::MESSAGE_PAGE);
        self.store.sessions().session_messages(self.name.clone(), after, limit).await.map_err(unreadable)
    }

    /// The latest messages, in order, at most `count` and at most [`limits::MESSAGE_PAGE`].
    pub async fn last_messages(&self, count: usize) -> ToolResult<Vec<SessionMessage>> {
        let count = count.min(limits::MESSAGE_PAGE);
        let latest = self.info().await?.map_or(0, |session| session.messages);
        self.messages(latest.saturating_sub(count as u64), count).await
    }

    /// A value of its data; `None` if it is not set.
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> ToolResult<Option<T>> {
        let value = self.value(DataKind::Value, name).await?;
        Ok(value.map(serde_json::from_value).transpose()?)
    }

    /// A secret; `None` if it is not set. From then on, it is replaced in everything that the attempt returns, reports or
    /// fails with.
    pub async fn secret(&self, name: &str) -> ToolResult<Option<String>> {
        let value = self.value(DataKind::Secret, name).await?;
        let secret = value.and_then(|value| value.as_str().map(str::to_owned));
        if let Some(secret) = &secret {
            self.attempt.note_secret(name, secret);
        }
        Ok(secret)
    }

    /// Its files. Reads see what the files are at that moment.
    pub fn files(&self) -> FileView {
        FileView::new(self.store.clone(), self.name.clone())
    }

    async fn value(&self, kind: DataKind, name: &str) -> ToolResult<Option<Value>> {
        self.store.sessions().session_value(self.name.clone(), kind, name.into()).await.map_err(unreadable)
    }
}

/// The attempt may be repeated where its tool allows that.
fn unreadable(error: StoreError) -> ToolError {
    ToolError::internal(error)
}
