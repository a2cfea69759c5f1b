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
use crate::limits::{
    STORIES_BYTES, STORIES_KEPT, WATCH_BYTES, WATCH_BYTES_MOST, WATCH_FIRST_PAGE, WATCH_PAGE, WATCH_READ_MOST,
    WATCH_READS,
};
use crate::path::Path;
use crate::run::record::{Event, Record};
use crate::run::state::RunState;
use crate::store::StoreError;
use crate::value::size;

/// Activities of a run or of a session, as they happen.
///
/// Only what is durable is shown, except for what is [live](Position::Live). A watch pulls from the store, a page of few bytes
/// ([`limits::WATCH_BYTES`](crate::limits::WATCH_BYTES)) at a time: one that is slow costs little, and one that is
/// dropped is gone. It is woken by what this process does. Where
/// another one may drive the run, say how often to look: [`look_every`](Watch::look_every). It keeps the store open until it
/// is dropped or the runtime is shut down.
// Many fields: one reader's whole state, private, and moved as one.
pub struct Watch {
    kernel: Arc<Kernel>,
    ear: Ear,
    whom: Whom,
    /// Runs whose past is known.
    stories: BTreeMap<RunId, Known>,
    page: VecDeque<Read>,
    /// Records the next page has at most: as many as the last ones were of a size to be held.
    reads: usize,
    /// Bytes of them that are held.
    holds: usize,
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
    /// The arguments in the story have no more bytes.
    bytes: usize,
}

impl Known {
    fn measured(&self) -> usize {
        self.story.open().values().filter_map(|open| open.asked.input.as_deref()).map(size::of).sum()
    }
}

/// A record with its place in the stream.
struct Read {
    place: u64,
    run: RunId,
    seq: u64,
    record: Record,
}

impl Watch {
    pub(crate) fn new(kernel: Arc<Kernel>, whom: Whom, from: Cursor) -> Self {
        // Before anything is read: what comes later is heard.
        let ear = kernel.reach.watchers.listen(whom.clone());
        Self {
            kernel,
            ear,
            whom,
            stories: BTreeMap::new(),
            page: VecDeque::new(),
            reads: WATCH_FIRST_PAGE,
            holds: WATCH_BYTES,
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
                    return Some(Err(Error::Closed));
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
        let locale = &self.kernel.env.locale;
        let telling = Telling { run, parent: known.parent.as_deref(), toolbox: &self.kernel.env.toolbox, locale };
        let activities = known.story.activities(read.seq, &read.record, &telling);
        known.next = read.seq + 1;
        let asked = read.record.asked.as_ref().and_then(|asked| asked.input.as_deref());
        known.bytes = match known.story.open().is_empty() {
            true => 0,
            false => known.bytes.saturating_add(asked.map_or(0, size::of)),
        };
        self.forget_all_but(run);
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
        self.fill().await?;
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
                self.fill().await?;
                self.over = self.page.is_empty();
                Ok(true)
            }
            RunState::Held { hold } if self.held != Some(info.epoch) => {
                self.held = Some(info.epoch);
                let what = Happening::RunHeld { sentence: hold.to_string(), hold };
                let live = Live { run, path: Path::root(), at: self.kernel.env.clock.now(), what };
                self.ready.push_back((None, shown(live, info.parent)));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Reads a page, a few records at a time, and keeps of it what may be held; the rest is read again when this is taken.
    async fn fill(&mut self) -> Result<()> {
        let (mut page, mut bytes, mut from) = (VecDeque::new(), 0usize, self.unread);
        let (most, reads) = (self.holds, self.reads);
        let mut cut = false;
        while page.len() < reads && !cut {
            // As many as there are already, so that what is read and not held is little.
            let few = page.len().clamp(1.max(reads / WATCH_READS), WATCH_READ_MOST).min(reads - page.len());
            let read = self.read(from, few).await?;
            let last = read.len() < few;
            for read in read {
                bytes = bytes.saturating_add(bytes_of(&read.record));
                // One is read whatever its size: what it says is told before anything is waited for.
                cut = bytes > most && !page.is_empty();
                if cut {
                    break;
                }
                from = read.place + 1;
                page.push_back(read);
            }
            cut |= bytes > most;
            if last {
                break;
            }
        }
        let held = page.len();
        if cut {
            page.shrink_to_fit();
            // As many again, for as long as more of them may be held.
            self.reads = if most < WATCH_BYTES_MOST { held * 2 } else { held + 1 }.min(WATCH_PAGE);
        } else if held == reads {
            self.reads = (reads * 2).min(WATCH_PAGE);
        }
        self.holds = (most * 2).min(WATCH_BYTES_MOST);
        self.page = page;
        Ok(())
    }

    /// Reads so many records from a place on.
    async fn read(&self, from: u64, most: usize) -> Result<Vec<Read>> {
        let store = &self.kernel.store;
        Ok(match &self.whom {
            Whom::Run(run) => {
                let page = store.page(*run, from, most).await?;
                let read = |(record, seq)| Read { place: seq, run: *run, seq, record };
                page.into_iter().zip(from..).map(read).collect()
            }
            Whom::Session(session) => {
                let page = store.feed(session.clone(), from.saturating_sub(1), most).await?;
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
        let mut known = Known { story: Story::default(), parent: info.parent, next: 0, bytes: 0 };
        while known.next < seq {
            let page = store.page(run, known.next, WATCH_READ_MOST).await?;
            let left = usize::try_from(seq - known.next).unwrap_or(usize::MAX);
            let past = page.len().min(left);
            if past == 0 {
                break;
            }
            page[..past].iter().for_each(|record| drop(known.story.note(record)));
            known.next += past as u64;
        }
        known.bytes = known.measured();
        self.stories.insert(run, known);
        Ok(())
    }

    /// Forgets the largest stories until the rest may be kept. That of `run`, which is being told, stays.
    fn forget_all_but(&mut self, run: RunId) {
        while self.stories.values().map(|known| known.bytes).sum::<usize>() > STORIES_BYTES {
            let others = self.stories.iter_mut().filter(|(other, _)| **other != run);
            let largest = others.max_by_key(|(_, known)| known.bytes).filter(|(_, known)| known.bytes > 0);
            let Some((largest, known)) = largest else { return };
            let (largest, exact) = (*largest, known.measured());
            if exact < known.bytes {
                known.bytes = exact;
            } else {
                self.stories.remove(&largest);
            }
        }
    }

    /// Until something happened, or it is time to look.
    async fn wait(&self) {
        let mut timer = self.look.map(|interval| self.kernel.env.clock.sleep(interval));
        std::future::poll_fn(|cx| {
            let heard = self.ear.poll(cx).is_ready() || self.kernel.closed.load(Ordering::Acquire);
            let due = timer.as_mut().is_some_and(|timer| timer.poll_unpin(cx).is_ready());
            if heard || due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// How large a record is, as text.
fn bytes_of(record: &Record) -> usize {
    serde_json::to_vec(record).map_or(usize::MAX, |text| text.len())
}

fn shown(live: Live, parent: Option<Box<(RunId, Path)>>) -> Activity {
    let Live { run, path, at, what } = live;
    Activity { run, position: Position::Live, path, at, parent, what }
}
