//! A stream of activities: first what the store has, then what comes, in order and without gaps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::Stream;

use super::watchers::{Ear, Live, Whom};
use super::{Activity, Cursor, Happening, Position, Story, Telling};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits::{STORIES_KEPT, WATCH_PAGE};
use crate::path::Path;
use crate::run::record::{Event, Record};
use crate::run::state::RunState;
use crate::store::StoreError;
use crate::tool::Toolbox;

/// Activities of a run or of a session, as they happen.
///
/// Only what is durable is shown, except for what is [live](Position::Live). A watch pulls from the store, a page at a time:
/// one that is slow costs nobody anything, and one that is dropped is gone. It is woken by what this process does. Where
/// another one may drive the run, say how often to look: [`look_every`](Watch::look_every). It keeps the store open until it
/// is dropped or the runtime is shut down.
pub struct Watch {
    kernel: Arc<Kernel>,
    toolbox: Toolbox,
    ear: Ear,
    whom: Whom,
    /// Runs whose past is known.
    stories: BTreeMap<RunId, Known>,
    page: VecDeque<Read>,
    ready: VecDeque<(Option<Cursor>, Activity)>,
    /// The first record that was not read.
    unread: u64,
    /// The first activity that was not returned.
    cursor: Cursor,
    look: Option<Duration>,
    /// The owner under which the run was last seen held.
    held: Option<u64>,
    over: bool,
}

/// A run with as much of its past as its next record needs.
struct Known {
    story: Story,
    parent: Option<Box<(RunId, Path)>>,
    /// The first record that is not in the story.
    next: u64,
}

/// A record with its place in the stream.
struct Read {
    place: u64,
    run: RunId,
    seq: u64,
    record: Record,
}

impl Watch {
    pub(crate) fn new(kernel: Arc<Kernel>, toolbox: Toolbox, whom: Whom, from: Cursor) -> Self {
        // Before anything is read: what comes later is heard.
        let ear = kernel.reach.watchers.listen(whom.clone());
        Self {
            kernel,
            toolbox,
            ear,
            whom,
            stories: BTreeMap::new(),
            page: VecDeque::new(),
            ready: VecDeque::new(),
            unread: from.record,
            cursor: from,
            look: None,
            held: None,
            over: false,
        }
    }

    /// Looks into the store this often, whether or not anything was heard.
    #[must_use]
    pub fn look_every(mut self, interval: Duration) -> Self {
        self.look = Some(interval);
        self
    }

    /// Where a later watch goes on: everything recorded before it has been returned.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The next activity; `None` once the run has ended and everything about it was returned. A session has no end.
    ///
    /// Dropping the future loses nothing. After an error the watch stands where it stood.
    pub async fn next(&mut self) -> Option<Result<Activity>> {
        loop {
            if let Some((next, activity)) = self.ready.pop_front() {
                self.cursor = next.unwrap_or(self.cursor);
                return Some(Ok(activity));
            }
            if self.over {
                return None;
            }
            let step = match self.page.front() {
                Some(read) => {
                    let (run, seq) = (read.run, read.seq);
                    self.derive(run, seq).await.map(|()| true)
                }
                None => self.refill().await,
            };
            match step {
                Ok(true) => {}
                Ok(false) if !self.kernel.closed.load(Ordering::Acquire) => self.wait().await,
                Err(error) if !self.kernel.closed.load(Ordering::Acquire) => return Some(Err(error)),
                Ok(false) | Err(_) => {
                    self.over = true;
                    return Some(Err(Error::Refused(format!(
                        "this runtime is shut down; watch on from record {}, index {} where the store is open next",
                        self.cursor.record, self.cursor.index
                    ))));
                }
            }
        }
    }

    /// The same as a [`Stream`].
    pub fn stream(self) -> impl Stream<Item = Result<Activity>> + Send {
        futures_util::stream::unfold(self, |mut watch| async move {
            let next = watch.next().await?;
            Some((next, watch))
        })
    }

    /// Tells what the next record of the page says.
    async fn derive(&mut self, run: RunId, seq: u64) -> Result<()> {
        self.know(run, seq).await?;
        let (Some(read), Some(known)) = (self.page.pop_front(), self.stories.get_mut(&run)) else { return Ok(()) };
        // What was said while it lasted belongs before its end.
        if let Event::Finished(_) = read.record.event {
            let said = self.ear.take(Some((run, &read.record.path)));
            self.ready.extend(said.into_iter().map(|live| (None, shown(live, known.parent.clone()))));
        }
        let locale = &self.kernel.locale;
        let telling = Telling { run, parent: known.parent.as_deref(), toolbox: &self.toolbox, locale };
        let activities = known.story.activities(read.seq, &read.record, &telling);
        known.next = read.seq + 1;
        for (activity, index) in activities.into_iter().zip(0u32..) {
            let place = Cursor { record: read.place, index };
            if place >= self.cursor {
                self.ready.push_back((Some(place.next()), activity));
            }
        }
        self.unread = read.place + 1;
        if self.ready.is_empty() {
            self.cursor = self.cursor.max(Cursor { record: self.unread, index: 0 });
        }
        Ok(())
    }

    /// Reads the next page; false if there is nothing new.
    async fn refill(&mut self) -> Result<bool> {
        self.ear.clear();
        self.page = self.read().await?;
        if !self.page.is_empty() {
            return Ok(true);
        }
        let said = self.ear.take(None);
        if !said.is_empty() {
            for live in said {
                let parent = self.stories.get(&live.run).and_then(|known| known.parent.clone());
                self.ready.push_back((None, shown(live, parent)));
            }
            return Ok(true);
        }
        match self.whom {
            Whom::Run(run) => self.rest(run).await,
            Whom::Session(_) => Ok(false),
        }
    }

    /// The run is where the journal ends: it may be over, or held.
    async fn rest(&mut self, run: RunId) -> Result<bool> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        match info.state {
            // Read again: whatever it was when it ended is in the store now.
            RunState::Finished { .. } => {
                self.page = self.read().await?;
                self.over = self.page.is_empty();
                Ok(true)
            }
            RunState::Held { hold } if self.held != Some(info.epoch) => {
                self.held = Some(info.epoch);
                let what = Happening::RunHeld { sentence: hold.to_string(), hold };
                let live = Live { run, path: Path::root(), at: self.kernel.clock.now(), what };
                self.ready.push_back((None, shown(live, info.parent)));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn read(&self) -> Result<VecDeque<Read>> {
        let store = &self.kernel.store;
        Ok(match &self.whom {
            Whom::Run(run) => {
                let page = store.page(*run, self.unread, WATCH_PAGE).await?;
                let read = |(record, seq)| Read { place: seq, run: *run, seq, record };
                page.into_iter().zip(self.unread..).map(read).collect()
            }
            Whom::Session(session) => {
                let page = store.feed(session.clone(), self.unread.saturating_sub(1), WATCH_PAGE).await?;
                let read = |entry: crate::store::Entry| Read {
                    place: entry.position,
                    run: entry.run,
                    seq: entry.seq,
                    record: entry.record,
                };
                page.into_iter().map(read).collect()
            }
        })
    }

    /// Sees to it that the past of a run is known up to a record.
    async fn know(&mut self, run: RunId, seq: u64) -> Result<()> {
        if self.stories.get(&run).is_some_and(|known| known.next == seq) {
            return Ok(());
        }
        // Whatever is forgotten is read again when it is needed.
        if self.stories.len() >= STORIES_KEPT {
            self.stories.pop_first();
        }
        let store = &self.kernel.store;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let mut known = Known { story: Story::default(), parent: info.parent, next: 0 };
        while known.next < seq {
            let page = store.page(run, known.next, WATCH_PAGE).await?;
            let left = usize::try_from(seq - known.next).unwrap_or(usize::MAX);
            let past = page.len().min(left);
            if past == 0 {
                break;
            }
            page[..past].iter().for_each(|record| drop(known.story.note(record)));
            known.next += past as u64;
        }
        self.stories.insert(run, known);
        Ok(())
    }

    /// Until something happened, or it is time to look.
    async fn wait(&self) {
        let mut timer = self.look.map(|interval| self.kernel.clock.sleep(interval));
        std::future::poll_fn(|cx| {
            let heard = self.ear.poll(cx).is_ready() || self.kernel.closed.load(Ordering::Acquire);
            let due = timer.as_mut().is_some_and(|timer| timer.poll_unpin(cx).is_ready());
            if heard || due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn shown(live: Live, parent: Option<Box<(RunId, Path)>>) -> Activity {
    let Live { run, path, at, what } = live;
    Activity { run, position: Position::Live, path, at, parent, what }
}
