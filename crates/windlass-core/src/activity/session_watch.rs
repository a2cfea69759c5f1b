//! The events of a session: the activities of its runs and the messages that are posted to it, as they happen.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::watch::{Progress, Watch};
use super::{Activity, Cursor};
use crate::error::{Error, Result};
use crate::limits::{WATCH_BYTES, WATCH_FIRST_PAGE};
use crate::store::{SessionInfo, SessionMessage};
use crate::time::Timestamp;

/// An event of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SessionEvent {
    /// Something that one of its runs did.
    Activity(Activity),
    /// A message that was posted to it. One that [woke](SessionMessage::woke) the session names the turn it started.
    Message(SessionMessage),
}

/// A position in the events of a session. A reader that continues here misses nothing and sees nothing twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionPosition {
    /// The position among the activities of its runs.
    pub activities: Cursor,
    /// The position of the last message that was seen; zero for none.
    pub messages: u64,
    /// When the session was created, which tells it from a later one of the same name. `None` as long as no message was
    /// seen.
    pub created: Option<Timestamp>,
}

impl SessionPosition {
    /// The beginning.
    pub const START: Self = Self { activities: Cursor::START, messages: 0, created: None };
}

/// The events of a session, as they happen; see [`Session::watch`](crate::Session::watch).
///
/// Activities are in the order of the store, and messages in their order. Between the two, the time decides. Like a
/// [`Watch`], it reads from the store in small pages and is woken by commits of this process.
pub struct SessionWatch {
    watch: Watch,
    session: Arc<str>,
    /// The next activity, if it was read before a message that comes first.
    ahead: Option<Activity>,
    messages: VecDeque<SessionMessage>,
    /// The page of activities for which messages were last looked for.
    looked: Option<u64>,
    position: SessionPosition,
    /// Only the messages of a session of this principal are shown.
    principal: Option<Arc<str>>,
    /// Whether the session was opened when it was last looked at.
    was_opened: bool,
    over: bool,
}

impl SessionWatch {
    pub(crate) fn new(watch: Watch, session: Arc<str>, from: SessionPosition) -> Self {
        Self {
            watch,
            session,
            ahead: None,
            messages: VecDeque::new(),
            looked: None,
            position: from,
            principal: None,
            was_opened: from.messages > 0,
            over: false,
        }
    }

    /// Leaves out the runs that do not act for this principal, and the messages of a session that belongs to another
    /// one.
    #[must_use]
    pub fn only_of(mut self, principal: impl Into<Arc<str>>) -> Self {
        let principal = principal.into();
        self.watch = self.watch.only_of(principal.clone());
        self.principal = Some(principal);
        self
    }

    /// The position for a later watch: every recorded event before it has been returned.
    pub fn position(&self) -> SessionPosition {
        self.position
    }

    /// The next event; `None` after the session was purged.
    ///
    /// Cancel safe: dropping the future loses nothing. After an error the watch keeps its position, and the next call
    /// tries again. After [`Error::Closed`] it returns `None`.
    pub async fn next(&mut self) -> Option<Result<SessionEvent>> {
        while !self.over {
            match self.step().await {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => {
                    self.over = matches!(error, Error::Closed);
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Reads, returns or waits once.
    async fn step(&mut self) -> Result<Option<SessionEvent>> {
        let mut is_idle = false;
        if self.ahead.is_none() {
            match self.watch.advance().await? {
                Progress::Activity(activity) => self.ahead = Some(*activity),
                Progress::Nothing => {
                    self.position.activities = self.watch.cursor();
                    is_idle = true;
                }
                Progress::Over => return Err(Error::Closed),
            }
        }
        // Read after the activities, so that a message that was posted before a change was reported is found.
        if self.messages.is_empty() && (is_idle || self.looked != Some(self.watch.pages())) {
            self.looked = Some(self.watch.pages());
            self.look().await?;
        }
        let first = match (&self.ahead, self.messages.front()) {
            (Some(activity), Some(message)) => message.at <= activity.at,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if first && let Some(message) = self.messages.pop_front() {
            self.position.messages = message.position;
            return Ok(Some(SessionEvent::Message(message)));
        }
        if let Some(activity) = self.ahead.take() {
            self.position.activities = self.watch.cursor();
            return Ok(Some(SessionEvent::Activity(activity)));
        }
        if !self.over && !self.watch.kernel.closed.load(Ordering::Acquire) {
            self.watch.wait().await;
        }
        Ok(None)
    }

    /// Reads the next messages, and finds out whether the session was purged.
    async fn look(&mut self) -> Result<()> {
        let sessions = self.watch.kernel.store.sessions();
        let info = sessions.session(self.session.clone()).await?;
        if self.is_purged(info.as_ref()) {
            // What it did is not shown any more, and what follows belongs to another session.
            (self.over, self.ahead) = (true, None);
            return Ok(());
        }
        let Some(info) = info else { return Ok(()) };
        self.was_opened = info.opened;
        let hidden = self.principal.is_some() && info.owner != self.principal;
        if hidden || info.messages <= self.position.messages {
            return Ok(());
        }
        let after = self.position.messages;
        let page = sessions.session_messages(self.session.clone(), after, WATCH_FIRST_PAGE).await?;
        self.position.created = Some(info.created);
        // What exceeds the bytes that a watch may keep is read again.
        let mut bytes = 0;
        self.messages.extend(page.into_iter().take_while(|message| {
            let fits = bytes <= WATCH_BYTES;
            bytes += message.content.iter().map(crate::tool::Content::bytes).sum::<usize>();
            fits
        }));
        Ok(())
    }

    fn is_purged(&self, info: Option<&SessionInfo>) -> bool {
        match info {
            None => self.was_opened,
            Some(info) => {
                let is_another = self.position.created.is_some_and(|created| created != info.created);
                is_another || info.messages < self.position.messages || (info.closed.is_some() && !info.opened)
            }
        }
    }
}
