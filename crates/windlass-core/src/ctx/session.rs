//! The session of a durable body: reads and writes, each an operation in the journal.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Ctx;
use crate::id::RunId;
use crate::limits;
use crate::run::Run;
use crate::run::record::OpKind;
use crate::run::state::Hold;
use crate::runtime::UnfinishedRuns;
use crate::session::check;
use crate::store::{
    DataKind, NewMessage, SessionAccess, SessionAnswer, SessionChange, SessionInfo, SessionMessage, SessionOperation,
    SessionRefusal, SessionWrite, StoreError,
};
use crate::time::Timestamp;
use crate::tool::{ToolError, ToolResult};
use crate::value::Digest;

/// The session that a durable body belongs to; see [`Ctx::session`].
///
/// Each method is an operation. What it writes is in the store before its outcome is recorded, under the idempotency
/// key of the operation; the store keeps its answer until the run ends. So a write that is repeated after a crash is
/// made once and has the same answer, also if that was a refusal. Refused writes are errors with a
/// [code](ToolError::code): `session_closed`, `session_full`, `session_busy` or `no_session`.
pub struct CtxSession<'c> {
    pub(super) ctx: &'c mut Ctx,
    /// The session, if it is not the one of the run.
    other: Option<Arc<str>>,
}

/// What a read of messages is recorded as: the range and a digest, not the text.
#[derive(Serialize, Deserialize)]
struct ReadRange {
    after: u64,
    count: usize,
    digest: String,
}

impl ReadRange {
    fn of(after: u64, messages: &[SessionMessage]) -> ToolResult<Self> {
        let digest = Digest::of(&serde_json::to_value(messages)?).to_string();
        Ok(Self { after, count: messages.len(), digest })
    }
}

/// Which messages a body asks for.
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
enum Wanted {
    After { after: u64, limit: usize },
    Last { last: usize },
}

impl Ctx {
    /// The session of this run. Its operations fail for a run that belongs to none.
    pub fn session(&mut self) -> CtxSession<'_> {
        CtxSession { ctx: self, other: None }
    }

    /// Another session, by its name: to open it, to write to it, to close it. A run reaches the sessions of its own
    /// principal; a run without a principal, those without an owner. Others look missing. The store decides that
    /// together with each write.
    pub fn in_session(&mut self, name: impl Into<Arc<str>>) -> CtxSession<'_> {
        CtxSession { ctx: self, other: Some(name.into()) }
    }
}

impl<'c> CtxSession<'c> {
    /// Its name; `None` if the run belongs to no session. Not an operation: it never changes.
    pub fn name(&self) -> Option<&str> {
        self.other.as_deref().or(self.ctx.run.session.as_deref())
    }

    /// Opens the session for the principal of the run, or sets the title of one that is open. Returns whether it is new.
    pub fn open(self, title: Option<&str>) -> BoxFuture<'c, ToolResult<bool>> {
        let owner = self.ctx.run.attribution.as_deref().and_then(|attribution| attribution.principal.clone());
        let change = SessionChange::Open { title: title.map(Into::into), owner, settings: Default::default() };
        let write = self.write("open", Ok(json!(title)), change);
        Box::pin(async move { Ok(matches!(write.await?, SessionAnswer::Opened { created: true })) })
    }

    /// Posts a message. Returns its position in the session. One that [wakes](NewMessage::wake) the session starts a
    /// turn of its agent in the same commit, which acts for the principal of this run.
    pub fn post(self, message: NewMessage) -> BoxFuture<'c, ToolResult<u64>> {
        let input = serde_json::to_value(&message);
        let write = self.write("post", input, SessionChange::Post(message));
        Box::pin(async move {
            match write.await? {
                SessionAnswer::Posted { position, .. } => Ok(position),
                answer => Err(unexpected(&answer)),
            }
        })
    }

    /// The messages after position `after`, in order, at most `limit` and at most [`limits::MESSAGE_PAGE`]. The body
    /// sees the same ones when it is entered again, whatever was posted meanwhile.
    pub fn messages(self, after: u64, limit: usize) -> BoxFuture<'c, ToolResult<Vec<SessionMessage>>> {
        self.read_messages(Wanted::After { after, limit: limit.min(limits::MESSAGE_PAGE) })
    }

    /// The latest messages, in order, at most `count` and at most [`limits::MESSAGE_PAGE`].
    pub fn last_messages(self, count: usize) -> BoxFuture<'c, ToolResult<Vec<SessionMessage>>> {
        self.read_messages(Wanted::Last { last: count.min(limits::MESSAGE_PAGE) })
    }

    /// Its title.
    pub fn title(self) -> BoxFuture<'c, ToolResult<Option<String>>> {
        let read = self.read("title", Value::Null, |target| {
            Box::pin(async move {
                let found = target.info().await?;
                Ok(json!(found.and_then(|session| session.title)))
            })
        });
        Box::pin(async move { Ok(read.await?.as_str().map(str::to_owned)) })
    }

    /// Sets its title.
    pub fn set_title(self, title: &str) -> BoxFuture<'c, ToolResult<()>> {
        let write = self.write("set_title", Ok(json!(title)), SessionChange::Title(Some(title.into())));
        Box::pin(async move { write.await.map(drop) })
    }

    /// A value of its data; `None` if it is not set. A value that does not decode to `T` is an error: others may have
    /// set it.
    pub fn get<T: DeserializeOwned + 'static>(self, name: &str) -> BoxFuture<'c, ToolResult<Option<T>>> {
        let (entry, name): (Arc<str>, _) = (name.into(), name.to_owned());
        let read = self.read("get", json!(&name), move |target| {
            let entry = entry.clone();
            Box::pin(async move {
                let sessions = target.run.kernel.store.sessions();
                let found = sessions.session_value(target.session.clone(), DataKind::Value, entry).await?;
                // In a list, because a value may be null.
                Ok(found.map_or_else(|| json!([]), |value| json!([value])))
            })
        });
        Box::pin(async move {
            let Some(found) = read.await?.get_mut(0).map(Value::take) else { return Ok(None) };
            let unfit = |error| ToolError::failed(format!("the value {name:?} of the session: {error}"));
            serde_json::from_value(found).map(Some).map_err(unfit)
        })
    }

    /// Sets a value of its data.
    pub fn set(self, name: &str, value: &impl Serialize) -> BoxFuture<'c, ToolResult<()>> {
        let value = serde_json::to_value(value);
        let input = value.as_ref().map(|value| json!({"name": name, "value": value}));
        let input = input.map_err(|error| serde::ser::Error::custom(error.to_string()));
        let value = value.unwrap_or_default();
        let write = self.write("set", input, SessionChange::Set { kind: DataKind::Value, name: name.into(), value });
        Box::pin(async move { write.await.map(drop) })
    }

    /// Deletes a value of its data. Returns whether it was set.
    pub fn delete(self, name: &str) -> BoxFuture<'c, ToolResult<bool>> {
        let change = SessionChange::Delete { kind: DataKind::Value, name: name.into() };
        let write = self.write("delete", Ok(json!(name)), change);
        Box::pin(async move { Ok(matches!(write.await?, SessionAnswer::Deleted { existed: true })) })
    }

    /// Closes the session: from now on it refuses runs, messages and other writes, and the reply keys of its unfinished
    /// runs are void, those of this run too. The runs themselves go on.
    pub fn close(self, reason: &str) -> BoxFuture<'c, ToolResult<()>> {
        let write = self.write("close", Ok(json!(reason)), SessionChange::Close { reason: reason.into() });
        Box::pin(async move { write.await.map(drop) })
    }

    /// Writes under the idempotency key of the operation.
    pub(super) fn write(
        self,
        name: &'static str,
        input: serde_json::Result<Value>,
        change: SessionChange,
    ) -> BoxFuture<'c, ToolResult<SessionAnswer>> {
        let input = match input {
            Ok(input) => input,
            Err(error) => return Box::pin(std::future::ready(Err(error.into()))),
        };
        if let Err(unfit) = check::change(&change) {
            return Box::pin(std::future::ready(Err(unfit.into())));
        }
        let (target, input) = (self.target(), self.input(input));
        let step = self.ctx.step(name, move |attempt| {
            let (target, change) = (target.clone(), change.clone());
            async move {
                let target = target?;
                match write(&target, change, attempt.key()).await {
                    Ok(result) => result,
                    Err(error) => stopped(&target.run, error).await,
                }
            }
        });
        Box::pin(step.idempotent().input(&input).of_kind(OpKind::Session).into_future())
    }

    pub(super) fn read<F>(self, name: &'static str, input: Value, read: F) -> BoxFuture<'c, ToolResult<Value>>
    where
        F: Fn(Target) -> BoxFuture<'static, Result<Value, StoreError>> + Send + 'c,
    {
        let (target, input) = (self.target(), self.input(input));
        let step = self.ctx.step(name, move |_| {
            let found = target.clone().map(|target| (target.clone(), read(target)));
            async move {
                let (target, reading) = found?;
                target.reached(reading).await
            }
        });
        Box::pin(step.readonly().input(&input).of_kind(OpKind::Session).into_future())
    }

    pub(super) fn target(&self) -> ToolResult<Target> {
        let run = self.ctx.run.clone();
        let none = || ToolError::failed("this run belongs to no session; start it in one, or name a session");
        let session = self.other.clone().or_else(|| run.session.clone()).ok_or_else(none)?;
        check::name(&session)?;
        Ok(Target { is_other: self.other.is_some(), run, session })
    }

    /// The input of an operation, which names the session if it is not the one of the run.
    pub(super) fn input(&self, input: Value) -> Value {
        match &self.other {
            Some(session) => json!({"session": session, "input": input}),
            None => input,
        }
    }

    pub(super) fn next_path(&self) -> crate::path::Path {
        self.ctx.path.child(self.ctx.frame.next.load(Ordering::Acquire))
    }

    fn read_messages(self, wanted: Wanted) -> BoxFuture<'c, ToolResult<Vec<SessionMessage>>> {
        let (target, path) = (self.target(), self.next_path());
        let input = match serde_json::to_value(wanted) {
            Ok(input) => self.input(input),
            Err(error) => return Box::pin(std::future::ready(Err(error.into()))),
        };
        // What the attempt of this process read. A recorded operation reads its range again.
        let found: Arc<Mutex<Option<Vec<SessionMessage>>>> = Arc::default();
        let keep = found.clone();
        let step = self.ctx.step("messages", {
            let target = target.clone();
            move |_| {
                let (target, keep) = (target.clone(), keep.clone());
                async move {
                    let target = target?;
                    let (after, messages) = target.reached(fetch(&target, wanted)).await?;
                    let range = ReadRange::of(after, &messages);
                    *keep.lock() = Some(messages);
                    range
                }
            }
        });
        let step = step.readonly().input(&input).of_kind(OpKind::Session).into_future();
        Box::pin(async move {
            let range = step.await?;
            let Target { run, session, .. } = target?;
            let messages = match found.lock().take() {
                Some(messages) => Ok(messages),
                None => Err(run.kernel.store.sessions().session_messages(session.clone(), range.after, range.count)),
            };
            let messages = match messages {
                Ok(messages) => return Ok(messages),
                Err(read) => match read.await {
                    Ok(messages) => messages,
                    Err(error) => return stopped(&run, error).await,
                },
            };
            if ReadRange::of(range.after, &messages)?.digest != range.digest {
                run.hold(Hold::MessagesGone { path, session });
                return std::future::pending().await;
            }
            Ok(messages)
        })
    }
}

/// The session that an operation reads or writes.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) run: Arc<Run>,
    pub(super) session: Arc<str>,
    /// Whether it is not the session of the run.
    is_other: bool,
}

impl Target {
    /// A run reaches its own session, and others of its principal.
    fn access(&self) -> SessionAccess {
        let principal = || self.run.attribution.as_deref().and_then(|attribution| attribution.principal.clone());
        if self.is_other { SessionAccess::Of(principal()) } else { SessionAccess::All }
    }

    pub(super) async fn info(&self) -> Result<Option<SessionInfo>, StoreError> {
        self.run.kernel.store.sessions().session(self.session.clone()).await
    }

    /// What was read, if the session may be read. Another one is looked up before and after: its name may have been
    /// given to a session of another principal meanwhile.
    pub(super) async fn reached<T>(&self, reading: impl Future<Output = Result<T, StoreError>>) -> ToolResult<T> {
        let before = match self.is_other {
            true => self.visible().await?,
            false => None,
        };
        let found = match reading.await {
            Ok(found) => found,
            Err(error) => return stopped(&self.run, error).await,
        };
        if self.is_other && self.visible().await? != before {
            return Err(self.missing());
        }
        Ok(found)
    }

    /// When the session was created, if the run reaches it.
    async fn visible(&self) -> ToolResult<Option<Timestamp>> {
        match self.info().await {
            Ok(Some(info)) if self.access().reaches(info.owner.as_ref()) => Ok(Some(info.created)),
            Ok(_) => Err(self.missing()),
            Err(error) => stopped(&self.run, error).await,
        }
    }

    fn missing(&self) -> ToolError {
        let refusal = SessionRefusal::Missing;
        ToolError::rejected(refusal.code(), refusal.sentence(&self.session))
    }
}

/// The messages, and the position that they follow.
async fn fetch(target: &Target, wanted: Wanted) -> Result<(u64, Vec<SessionMessage>), StoreError> {
    let Target { run, session, .. } = target.clone();
    // A message that the outcome of an earlier call posts is in the store once that outcome is.
    run.flush().await;
    let sessions = run.kernel.store.sessions();
    let (after, limit) = match wanted {
        Wanted::After { after, limit } => (after, limit),
        Wanted::Last { last } => {
            let latest = sessions.session(session.clone()).await?.map_or(0, |session| session.messages);
            (latest.saturating_sub(last as u64), last)
        }
    };
    Ok((after, sessions.session_messages(session, after, limit).await?))
}

/// Writes to the session. The inner result is for the body.
pub(super) async fn write(
    target: &Target,
    mut change: SessionChange,
    key: String,
) -> Result<ToolResult<SessionAnswer>, StoreError> {
    let Target { run, session, .. } = target;
    let closing = match &change {
        SessionChange::Close { reason } => Some(reason.clone()),
        _ => None,
    };
    let at = run.now();
    if let SessionChange::Start(start) = &mut change {
        start.run = RunId::derived(&key, at);
        // The turn belongs to the work of this run; a runtime that drives only its own runs drives it too.
        run.kernel.drives.add(start.run);
    }
    let epoch = run.with(|machine| machine.outbox().epoch());
    let by = Some(SessionOperation { run: run.id, epoch, key: key.into() });
    let access = target.access();
    let starter = run.kernel.starter(run.attribution.as_ref().and_then(|attribution| attribution.principal.clone()));
    let write = SessionWrite { session: session.clone(), at, change, by, access, starter };
    let verdict = run.kernel.store.sessions().write_session(write).await?;
    run.kernel.after_session_write(session, verdict.as_ref().ok().and_then(SessionAnswer::started));
    if let (Some(reason), Ok(_)) = (closing, &verdict) {
        run.kernel.end_session_runs(session, &reason, UnfinishedRuns::Leave).await?;
    }
    Ok(verdict.map_err(|refusal| ToolError::rejected(refusal.code(), refusal.sentence(session))))
}

/// A body never sees a store failure: the journal is reloaded, and replay decides.
pub(super) async fn stopped<T>(run: &Run, error: StoreError) -> T {
    run.failed(error);
    std::future::pending().await
}

pub(super) fn unexpected(answer: &SessionAnswer) -> ToolError {
    ToolError::internal(crate::runtime::unexpected_answer(answer))
}
