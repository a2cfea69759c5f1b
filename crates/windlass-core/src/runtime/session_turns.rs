//! What sessions do besides keeping content: settings, turns, waiting until they are idle, and the report of what
//! fills the context of their model.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use super::Session;
use crate::activity::watchers::WatchTarget;
use crate::activity::{SessionPosition, SessionWatch};
use crate::call::ToolRef;
use crate::call::plan::resolve;
use crate::error::{Error, Result};
use crate::explain::Explainer;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::store::{SessionChange, SessionSettings, SettingsChange, Starter};
use crate::time::words;
use crate::tool::Toolbox;
use crate::tool::spec::Background;

/// How many unfinished runs an answer names.
const NAMED_RUNS: usize = 10;

/// An unfinished run that keeps a session from being idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The run.
    pub run: RunId,
    /// What it does or waits for.
    pub sentence: String,
}

/// What fills the context of a session's model. The tokens are an estimate: bytes of JSON divided by
/// [`limits::TOKEN_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextReport {
    /// The model.
    pub model: Option<Arc<str>>,
    /// Its context window, in tokens.
    pub window: Option<u64>,
    /// The estimated tokens of all sections.
    pub input_tokens: u64,
    /// What they are.
    pub sections: Vec<ContextSection>,
}

impl ContextReport {
    /// How much of the window is used, in per cent; `None` if the window is not known.
    pub fn used_percent(&self) -> Option<u64> {
        self.window.map(|window| self.input_tokens.saturating_mul(100) / window.max(1))
    }
}

/// One part of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSection {
    /// `messages`, `tools` or `data`.
    pub name: &'static str,
    /// How many there are.
    pub items: u64,
    /// Their bytes of JSON.
    pub bytes: u64,
    /// Their estimated tokens.
    pub tokens: u64,
}

impl ContextSection {
    fn new(name: &'static str, items: u64, bytes: u64) -> Self {
        Self { name, items, bytes, tokens: bytes.div_ceil(limits::TOKEN_BYTES) }
    }
}

impl Kernel {
    /// On whose behalf a write to a session starts a run, with the limit of this runtime.
    pub(crate) fn starter(&self, principal: Option<Arc<str>>) -> Starter {
        Starter { principal, most: Some(self.env.limits.session_runs) }
    }

    /// The change with the id of the tool that it makes the agent, which may be given by name.
    pub(crate) fn with_agent_id(&self, toolbox: &Toolbox, mut change: SettingsChange) -> Result<SettingsChange> {
        if let Some(Some(agent)) = &mut change.agent {
            let snapshot = toolbox.snapshot();
            let found = resolve(&snapshot, &ToolRef::Name(agent.clone())).cloned();
            let Some(tool) = found.or_else(|| toolbox.by_id(agent)) else {
                return Err(Error::Invalid(format!(
                    "there is no tool `{agent}`, so it cannot be the agent of a session"
                )));
            };
            if tool.spec().guards.background == Background::Never {
                return Err(Error::Invalid(format!(
                    "`{agent}` does not run in the background, so it cannot be the agent of a session"
                )));
            }
            *agent = tool.spec().id.shared();
        }
        Ok(change)
    }

    /// A write to a session started this run, if any. Its watchers look, and the driver takes the run up.
    pub(crate) fn after_session_write(self: &Arc<Self>, session: &Arc<str>, started: Option<RunId>) {
        self.reach.watchers.session_changed(session);
        if let Some(run) = started {
            self.nudge(run);
        }
    }
}

impl Session {
    /// The same session, for turns that act for this principal.
    #[must_use]
    pub fn acting_for(mut self, principal: impl Into<Arc<str>>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// Opens the session, or changes one that exists: what is `None` stays as it is. Returns whether it is new.
    ///
    /// # Errors
    ///
    /// Like [`open`](Session::open), and [`Error::Invalid`] if there is no tool with the name of the agent.
    pub async fn open_with(&self, title: Option<&str>, owner: Option<&str>, settings: SettingsChange) -> Result<bool> {
        let settings = self.runtime.kernel.with_agent_id(&self.runtime.toolbox, settings)?;
        let (title, owner) = (title.map(Into::into), owner.map(Into::into));
        let answer = self.write(SessionChange::Open { title, owner, settings }).await?;
        Ok(matches!(answer, crate::store::SessionAnswer::Opened { created: true }))
    }

    /// Changes its settings.
    pub async fn configure(&self, change: SettingsChange) -> Result<()> {
        let change = self.runtime.kernel.with_agent_id(&self.runtime.toolbox, change)?;
        self.write(SessionChange::Settings(change)).await.map(drop)
    }

    /// Its settings; the defaults if it does not exist.
    pub async fn settings(&self) -> Result<SessionSettings> {
        Ok(self.info().await?.map(|session| session.settings).unwrap_or_default())
    }

    /// Watches the session from a position on: what its runs do, and the messages that are posted to it. The session
    /// need not exist yet. The watch ends when the session is purged.
    pub fn watch(&self, from: SessionPosition) -> SessionWatch {
        let watch = self.runtime.watching(WatchTarget::Session(self.name.clone()), from.activities);
        SessionWatch::new(watch, self.name.clone(), from)
    }

    /// Waits until no run of the session is unfinished. A run that waits for a person, is held or is in doubt is
    /// unfinished.
    ///
    /// # Errors
    ///
    /// [`Error::NotIdle`] after `timeout`. It names runs that are unfinished, and what they wait for.
    pub async fn wait_idle(&self, timeout: Duration) -> Result<()> {
        let unfinished = self.unfinished_after(timeout).await?;
        let Some(first) = unfinished.first() else { return Ok(()) };
        let more = match unfinished.len() {
            1 => String::new(),
            count if count > NAMED_RUNS => format!(", and there are more than {} others", NAMED_RUNS - 1),
            count => format!(", and there are {} others", count - 1),
        };
        let (name, sentence) = (&self.name, first.sentence.trim_end_matches('.'));
        let why = format!("session {name:?} is not idle after {}: run {}: {sentence}{more}", words(timeout), first.run);
        Err(Error::NotIdle(why))
    }

    /// Waits until no run of the session is unfinished, and at most this long. Returns the unfinished runs, oldest
    /// first, at most eleven; none if the session is idle.
    pub async fn unfinished_after(&self, timeout: Duration) -> Result<Vec<Unfinished>> {
        let kernel = &self.runtime.kernel;
        // Subscribed before the first look, so that no later end is missed.
        let subscription = kernel.reach.watchers.subscribe(WatchTarget::Session(self.name.clone()));
        let mut deadline = kernel.env.clock.sleep(timeout);
        // What other workers write is polled for; the rest is reported by this process.
        let look = kernel.lease.poll_interval().unwrap_or(limits::CLOCK_CHECK);
        let mut is_late = timeout.is_zero();
        loop {
            if kernel.closed.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            subscription.clear();
            if kernel.store.sessions().unfinished_runs(self.name.clone(), 1).await?.is_empty() {
                return Ok(Vec::new());
            }
            if is_late {
                return self.unfinished().await;
            }
            let mut poll = kernel.env.clock.sleep(look);
            is_late = std::future::poll_fn(|cx| {
                let late = deadline.poll_unpin(cx).is_ready();
                let heard = subscription.poll(cx).is_ready() || kernel.closed.load(Ordering::Acquire);
                let due = poll.poll_unpin(cx).is_ready();
                if late || heard || due { Poll::Ready(late) } else { Poll::Pending }
            })
            .await;
        }
    }

    async fn unfinished(&self) -> Result<Vec<Unfinished>> {
        let kernel = &self.runtime.kernel;
        let runs = kernel.store.sessions().unfinished_runs(self.name.clone(), NAMED_RUNS + 1).await?;
        let explainer = Explainer { kernel, now: kernel.env.clock.now(), only_own: false };
        let mut unfinished = Vec::new();
        for run in runs {
            // A run that has ended meanwhile and was removed is not unfinished any more.
            let Ok(explanation) = explainer.explain(run, 0).await else { continue };
            unfinished.push(Unfinished { run, sentence: explanation.sentence });
        }
        Ok(unfinished)
    }

    /// What fills the context of its model: its messages, the tools as a model sees them, and its data.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is no such session.
    pub async fn context(&self) -> Result<ContextReport> {
        let missing = || Error::NotFound(format!("there is no session {:?}", self.name));
        let settings = self.info().await?.ok_or_else(missing)?.settings;
        let sizes = self.runtime.kernel.store.sessions().session_sizes(self.name.clone()).await?;
        let listing = self.runtime.toolbox.listing().tools;
        let text = |value: &serde_json::Value| serde_json::to_string(value).map_or(0, |text| text.len());
        let shown =
            listing.iter().map(|tool| tool.name.len() + tool.description.len() + tool.input.as_ref().map_or(0, text));
        let sections = vec![
            ContextSection::new("messages", sizes.messages, sizes.message_bytes),
            ContextSection::new("tools", listing.len() as u64, shown.sum::<usize>() as u64),
            ContextSection::new("data", sizes.values, sizes.value_bytes),
        ];
        let input_tokens = sections.iter().map(|section| section.tokens).sum();
        Ok(ContextReport { model: settings.model, window: settings.window, input_tokens, sections })
    }
}
