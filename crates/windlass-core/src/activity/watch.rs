//! A stream of activities: first those in the store, then new ones, in order and without gaps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::Stream;

use super::watchers::{LiveActivity, Subscription, WatchTarget};
use super::{Activity, ActivityContext, Cursor, Happening, OpenOperations, Position};
use crate::attribution::Attribution;
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits::{
    WATCH_BYTES, WATCH_BYTES_MAX, WATCH_FIRST_PAGE, WATCH_HISTORIES, WATCH_HISTORY_BYTES, WATCH_PAGE,
    WATCH_READ_RECORDS, WATCH_READS,
};
use crate::path::Path;
use crate::run::record::{Event, Record};
use crate::run::state::RunState;
use crate::store::StoreError;
use crate::value::size;

/// The activities of a run or of a session, as they happen.
///
/// Only durable activities are shown, except for [live](Position::Live) ones. A watch reads from the store in pages of
/// a few bytes ([`limits::WATCH_BYTES`](crate::limits::WATCH_BYTES)), so a slow watch costs little and a dropped one
/// nothing. It is woken by commits of this process. If another process may drive the run, set how often to poll:
/// [`look_every`](Watch::look_every). A watch keeps the store open until it is dropped or the runtime is shut down.
// Many fields: the whole state of one reader, private and moved as a unit.
pub struct Watch {
    pub(super) kernel: Arc<Kernel>,
    subscription: Subscription,
    target: WatchTarget,
    /// Runs whose open operations are known.
    histories: BTreeMap<RunId, RunHistory>,
    page: VecDeque<ReadRecord>,
    /// The most records of the next page, adapted to the size of the last ones.
    reads: usize,
    /// The most bytes of records to keep in memory.
    holds: usize,
    ready: VecDeque<(Option<Cursor>, Activity)>,
    /// The first record that has not been read.
    unread: u64,
    /// The first activity that has not been returned.
    cursor: Cursor,
    look: Option<Duration>,
    /// Only runs that act for this principal are shown.
    principal: Option<Arc<str>>,
    /// The run that was last checked for it, and whether it is shown.
    last_checked: Option<(RunId, bool)>,
    /// The epoch at which the run was last reported as held.
    held: Option<u64>,
    /// How often a page was read.
    pages: u64,
    over: bool,
}

/// What a watch found without waiting.
pub(super) enum Progress {
    Activity(Box<Activity>),
    /// Everything has been returned so far.
    Nothing,
    /// There will be nothing more.
    Over,
}

/// The open operations of a run up to a record.
struct RunHistory {
    operations: OpenOperations,
    parent: Option<Box<(RunId, Path)>>,
    attribution: Option<Arc<Attribution>>,
    session: Option<Arc<str>>,
    /// The first record that has not been applied.
    next: u64,
    /// An upper bound of the bytes of the arguments in `operations`.
    bytes: usize,
}

impl RunHistory {
    fn measured(&self) -> usize {
        self.operations.open().values().filter_map(|open| open.asked.input.as_deref()).map(size::of).sum()
    }
}

/// A record with its position in the stream.
struct ReadRecord {
    position: u64,
    run: RunId,
    seq: u64,
    record: Record,
}

impl Watch {
    pub(crate) fn new(kernel: Arc<Kernel>, target: WatchTarget, from: Cursor) -> Self {
        // Subscribe before the first read, so that no later change is missed.
        let subscription = kernel.reach.watchers.subscribe(target.clone());
        Self {
            kernel,
            subscription,
            target,
            histories: BTreeMap::new(),
            page: VecDeque::new(),
            reads: WATCH_FIRST_PAGE,
            holds: WATCH_BYTES,
            ready: VecDeque::new(),
            unread: from.record,
            cursor: from,
            look: None,
            principal: None,
            last_checked: None,
            held: None,
            pages: 0,
            over: false,
        }
    }

    /// Also polls the store at this interval.
    #[must_use]
    pub fn look_every(mut self, interval: Duration) -> Self {
        self.look = Some(interval);
        self
    }

    /// Leaves out the runs of a session that do not act for this principal.
    #[must_use]
    pub fn only_of(mut self, principal: impl Into<Arc<str>>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// The cursor for a later watch: everything recorded before it has been returned.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The next activity; `None` after the run has ended and all its activities were returned. A session never ends.
    ///
    /// Cancel safe: dropping the future loses nothing. After an error the watch keeps its position, and the next call
    /// tries again. After [`Error::Closed`] it returns `None`.
    pub async fn next(&mut self) -> Option<Result<Activity>> {
        loop {
            match self.advance().await {
                Ok(Progress::Activity(activity)) => return Some(Ok(*activity)),
                Ok(Progress::Nothing) => self.wait().await,
                Ok(Progress::Over) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The next activity, if there is one by now. After [`Error::Closed`] there is nothing more.
    pub(super) async fn advance(&mut self) -> Result<Progress> {
        loop {
            if let Some((next, activity)) = self.ready.pop_front() {
                self.cursor = next.unwrap_or(self.cursor);
                return Ok(Progress::Activity(Box::new(activity)));
            }
            if self.over {
                return Ok(Progress::Over);
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
                Ok(false) if !self.kernel.closed.load(Ordering::Acquire) => return Ok(Progress::Nothing),
                Err(error) if !self.kernel.closed.load(Ordering::Acquire) => return Err(error),
                Ok(false) | Err(_) => {
                    self.over = true;
                    return Err(Error::Closed);
                }
            }
        }
    }

    /// How often a page was read.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// The watch as a [`Stream`].
    pub fn stream(self) -> impl Stream<Item = Result<Activity>> + Send {
        futures_util::stream::unfold(self, |mut watch| async move {
            let next = watch.next().await?;
            Some((next, watch))
        })
    }

    /// Derives the activities of the next record of the page.
    async fn derive(&mut self, run: RunId, seq: u64) -> Result<()> {
        if !self.shows(run).await? {
            let read = self.page.pop_front();
            self.unread = read.map_or(self.unread, |read| read.position + 1);
            self.cursor = self.cursor.max(Cursor { record: self.unread, index: 0 });
            return Ok(());
        }
        self.load_history(run, seq).await?;
        let (Some(read), Some(history)) = (self.page.pop_front(), self.histories.get_mut(&run)) else { return Ok(()) };
        // Live activities of the operation come before its end.
        if let Event::Finished(_) = read.record.event {
            let live = self.subscription.take(Some((run, &read.record.path)));
            self.ready.extend(live.into_iter().map(|live| (None, shown(live, history.parent.clone()))));
        }
        let locale = &self.kernel.env.locale;
        let context = ActivityContext {
            run,
            parent: history.parent.as_deref(),
            attribution: history.attribution.as_deref(),
            toolbox: &self.kernel.env.toolbox,
            session: history.session.as_ref(),
            locale,
            policy: &self.kernel.env.policy,
        };
        let activities = history.operations.activities(read.seq, &read.record, &context);
        history.next = read.seq + 1;
        let asked = read.record.asked.as_ref().and_then(|asked| asked.input.as_deref());
        history.bytes = match history.operations.open().is_empty() {
            true => 0,
            false => history.bytes.saturating_add(asked.map_or(0, size::of)),
        };
        self.drop_histories_except(run);
        for (activity, index) in activities.into_iter().zip(0u32..) {
            let at = Cursor { record: read.position, index };
            if at >= self.cursor {
                self.ready.push_back((Some(at.next()), activity));
            }
        }
        self.unread = read.position + 1;
        if self.ready.is_empty() {
            self.cursor = self.cursor.max(Cursor { record: self.unread, index: 0 });
        }
        Ok(())
    }

    /// Reads the next page; false if there is nothing new.
    async fn refill(&mut self) -> Result<bool> {
        self.subscription.clear();
        self.fill().await?;
        if !self.page.is_empty() {
            return Ok(true);
        }
        let live = self.subscription.take(None);
        if !live.is_empty() {
            for live in live {
                if !self.shows(live.run).await? {
                    continue;
                }
                let parent = self.histories.get(&live.run).and_then(|history| history.parent.clone());
                self.ready.push_back((None, shown(live, parent)));
            }
            return Ok(true);
        }
        match self.target {
            WatchTarget::Run(run) => self.check_end(run).await,
            WatchTarget::Session(_) => Ok(false),
        }
    }

    /// Called when the whole journal has been read: the run may have ended, or be held.
    async fn check_end(&mut self, run: RunId) -> Result<bool> {
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        match info.state {
            // Read again: records written until its end are in the store now.
            RunState::Finished { .. } => {
                self.fill().await?;
                self.over = self.page.is_empty();
                Ok(true)
            }
            RunState::Held { hold } if self.held != Some(info.epoch) => {
                self.held = Some(info.epoch);
                let what = Happening::RunHeld { sentence: hold.to_string(), hold };
                let live = LiveActivity { run, path: Path::root(), at: self.kernel.env.clock.now(), what };
                self.ready.push_back((None, shown(live, info.parent)));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Reads a page, a few records at a time, up to the bytes that may be kept. The rest is read again for the next
    /// page.
    async fn fill(&mut self) -> Result<()> {
        let (mut page, mut bytes, mut from) = (VecDeque::new(), 0usize, self.unread);
        let (most, reads) = (self.holds, self.reads);
        let mut cut = false;
        while page.len() < reads && !cut {
            // Double the page with each read, so that few records are read twice.
            let few = page.len().clamp(1.max(reads / WATCH_READS), WATCH_READ_RECORDS).min(reads - page.len());
            let read = self.read(from, few).await?;
            let last = read.len() < few;
            for read in read {
                bytes = bytes.saturating_add(bytes_of(&read.record));
                // Take at least one record, whatever its size.
                cut = bytes > most && !page.is_empty();
                if cut {
                    break;
                }
                from = read.position + 1;
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
            // Read twice as many next time, until the limit of bytes is reached.
            self.reads = if most < WATCH_BYTES_MAX { held * 2 } else { held + 1 }.min(WATCH_PAGE);
        } else if held == reads {
            self.reads = (reads * 2).min(WATCH_PAGE);
        }
        self.holds = (most * 2).min(WATCH_BYTES_MAX);
        self.page = page;
        self.pages += 1;
        Ok(())
    }

    /// Reads at most `most` records from a position on.
    async fn read(&self, from: u64, most: usize) -> Result<Vec<ReadRecord>> {
        let store = &self.kernel.store;
        Ok(match &self.target {
            WatchTarget::Run(run) => {
                let page = store.page(*run, from, most).await?;
                let read = |(record, seq)| ReadRecord { position: seq, run: *run, seq, record };
                page.into_iter().zip(from..).map(read).collect()
            }
            WatchTarget::Session(session) => {
                let page = store.feed(session.clone(), from.saturating_sub(1), most).await?;
                let read = |entry: crate::store::Entry| ReadRecord {
                    position: entry.position,
                    run: entry.run,
                    seq: entry.seq,
                    record: entry.record,
                };
                page.into_iter().map(read).collect()
            }
        })
    }

    /// Whether the watch shows this run.
    async fn shows(&mut self, run: RunId) -> Result<bool> {
        let Some(wanted) = &self.principal else { return Ok(true) };
        if let Some((_, shows)) = self.last_checked.filter(|(last, _)| *last == run) {
            return Ok(shows);
        }
        let info = self.kernel.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let shows = info.principal.as_ref() == Some(wanted);
        self.last_checked = Some((run, shows));
        Ok(shows)
    }

    /// Makes sure that the open operations of a run are known up to a record.
    async fn load_history(&mut self, run: RunId, seq: u64) -> Result<()> {
        if self.histories.get(&run).is_some_and(|history| history.next == seq) {
            return Ok(());
        }
        // A run that is dropped here is read again when it is needed.
        if self.histories.len() >= WATCH_HISTORIES {
            self.histories.pop_first();
        }
        let store = &self.kernel.store;
        let info = store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        let (operations, attribution) = (OpenOperations::default(), Attribution::of(&info));
        let (parent, session) = (info.parent, info.session);
        let mut history = RunHistory { operations, parent, attribution, session, next: 0, bytes: 0 };
        while history.next < seq {
            let page = store.page(run, history.next, WATCH_READ_RECORDS).await?;
            let left = usize::try_from(seq - history.next).unwrap_or(usize::MAX);
            let past = page.len().min(left);
            if past == 0 {
                break;
            }
            page[..past].iter().for_each(|record| drop(history.operations.note(record)));
            history.next += past as u64;
        }
        history.bytes = history.measured();
        self.histories.insert(run, history);
        Ok(())
    }

    /// Drops the largest histories until the rest fits the limit. That of `run`, which is in use, stays.
    fn drop_histories_except(&mut self, run: RunId) {
        while self.histories.values().map(|history| history.bytes).sum::<usize>() > WATCH_HISTORY_BYTES {
            let others = self.histories.iter_mut().filter(|(other, _)| **other != run);
            let largest = others.max_by_key(|(_, history)| history.bytes).filter(|(_, history)| history.bytes > 0);
            let Some((largest, history)) = largest else { return };
            let (largest, exact) = (*largest, history.measured());
            if exact < history.bytes {
                history.bytes = exact;
            } else {
                self.histories.remove(&largest);
            }
        }
    }

    /// Waits for a change, or for the next poll.
    pub(super) async fn wait(&self) {
        let mut timer = self.look.map(|interval| self.kernel.env.clock.sleep(interval));
        std::future::poll_fn(|cx| {
            let heard = self.subscription.poll(cx).is_ready() || self.kernel.closed.load(Ordering::Acquire);
            let due = timer.as_mut().is_some_and(|timer| timer.poll_unpin(cx).is_ready());
            if heard || due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// The size of a record as text.
fn bytes_of(record: &Record) -> usize {
    serde_json::to_vec(record).map_or(usize::MAX, |text| text.len())
}

fn shown(live: LiveActivity, parent: Option<Box<(RunId, Path)>>) -> Activity {
    let LiveActivity { run, path, at, what } = live;
    Activity { run, position: Position::Live, path, at, parent, what }
}
