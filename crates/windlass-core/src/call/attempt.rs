//! What a body can see of the attempt it makes.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::secrets_used::UsedSecrets;
use super::session_view::SessionView;
use crate::activity::Happening;
use crate::activity::watchers::Watchers;
use crate::attribution::Attribution;
use crate::id::{RunId, ToolId};
use crate::path::Path;
use crate::run::Run;
use crate::run::reply::Signer;
use crate::store::{ArtifactId, Store};
use crate::tool::{Effect, Toolbox};

/// One attempt of a call or step. Clones share it.
#[derive(Clone)]
pub struct Attempt(Arc<AttemptInner>);

/// The run that an attempt is made in.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) attribution: Option<Arc<Attribution>>,
    pub(crate) reach: Arc<Reach>,
    /// The run itself. Weak, so that an attempt that outlives its run does not keep it alive.
    pub(crate) home: Weak<Run>,
    /// How long the attempt may take.
    pub(crate) lasts: Duration,
    /// The effect class of the attempt.
    pub(crate) effect: Effect,
}

/// How an attempt reaches the outside, apart from what its body does.
pub(crate) struct Reach {
    /// Signs reply keys.
    pub(crate) signer: Arc<Signer>,
    /// The watchers that are notified of changes.
    pub(crate) watchers: Arc<Watchers>,
    /// What it reads of its session.
    pub(crate) store: Arc<dyn Store>,
}

struct AttemptInner {
    origin: Origin,
    path: Path,
    name: Arc<str>,
    number: u32,
    of: u32,
    token: Token,
    /// Fires when no future waits for the attempt any more.
    dropped: Token,
    beats: AtomicU64,
    /// Whether a CPU thread, which cannot be interrupted, still executes it.
    on_thread: AtomicBool,
    /// Artifacts that it stored or opened. Most attempts use none.
    artifacts: OnceLock<Mutex<Vec<ArtifactId>>>,
    /// Secrets that it has read. Most attempts read none.
    secrets: OnceLock<Mutex<UsedSecrets>>,
}

impl Attempt {
    pub(crate) fn new(origin: Origin, path: Path, name: Arc<str>, number: u32, of: u32) -> Self {
        Self(Arc::new(AttemptInner {
            origin,
            path,
            name,
            number,
            of: of.max(number),
            token: Token::default(),
            dropped: Token::default(),
            beats: AtomicU64::new(0),
            on_thread: AtomicBool::new(false),
            artifacts: OnceLock::new(),
            secrets: OnceLock::new(),
        }))
    }

    /// The run it belongs to.
    pub fn run(&self) -> RunId {
        self.0.origin.run
    }

    /// The path of the operation in the run.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The tool's id or the step's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Which attempt this is, counting from one.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// How many attempts there may be.
    pub fn of(&self) -> u32 {
        self.0.of
    }

    /// The effect class: the stricter of the tool's current class and the one recorded when the call was asked for.
    /// Whether a failure may be declared retryable depends on it.
    pub fn effect(&self) -> Effect {
        self.0.origin.effect
    }

    /// Who the run acts for, if it says so.
    pub fn principal(&self) -> Option<&str> {
        self.0.origin.attribution.as_deref()?.principal.as_deref()
    }

    /// What caused the run, as given, if it says so.
    pub fn cause(&self) -> Option<&str> {
        self.0.origin.attribution.as_deref()?.cause.as_deref()
    }

    /// The idempotency key. It is the same for every attempt of this call, in this process and after a crash, and
    /// differs from that of every other call. Pass it to the outside system that must not do the work twice.
    pub fn key(&self) -> String {
        idempotency_key(self.0.origin.run, self.0.origin.generation, &self.0.path)
    }

    /// The key by which the outside answers this call, if the attempt ends with [`Reply::Later`](crate::tool::Reply).
    /// It is the same for every attempt. Hand it out before the attempt ends; an early answer is kept.
    pub fn reply_key(&self) -> String {
        self.0.origin.reach.signer.sign(self.0.origin.run, self.0.origin.generation, &self.0.path)
    }

    /// The session of its run, as it is when it is read: nothing of it is recorded. `None` if the run belongs to none.
    pub fn session(&self) -> Option<SessionView> {
        let session = self.0.origin.session.clone()?;
        Some(SessionView::new(self.0.origin.reach.store.clone(), session, self.clone(), None))
    }

    /// Whether the attempt was asked to stop. It is dropped after a short grace period.
    pub fn is_cancelled(&self) -> bool {
        self.0.token.fired.load(Ordering::Acquire)
    }

    /// Resolves when the attempt is asked to stop.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled { attempt: self.clone(), token: |inner| &inner.token }
    }

    /// Resolves when no future waits for the attempt any more.
    pub(crate) fn dropped(&self) -> Cancelled {
        Cancelled { attempt: self.clone(), token: |inner| &inner.dropped }
    }

    /// Reports that the attempt is alive. Needed where the tool has a heartbeat limit.
    pub fn heartbeat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports progress to the clients that [watch](crate::Runtime::watch) the run now, and to the log. Not stored.
    /// Counts as a heartbeat.
    pub fn progress(&self, message: &str) {
        self.heartbeat();
        let Origin { run, session, reach, .. } = &self.0.origin;
        let message = self.redact_text(message);
        let what = || Happening::Progress { message: message.clone() };
        reach.watchers.send_live(*run, session.as_ref(), &self.0.path, what);
        tracing::info!(run = %self.0.origin.run, path = %self.0.path, name = %self.0.name, "{message}");
    }

    pub(crate) fn beats(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }

    pub(crate) fn home(&self) -> Option<Arc<Run>> {
        self.0.origin.home.upgrade()
    }

    pub(crate) fn lasts(&self) -> Duration {
        self.0.origin.lasts
    }

    /// Allows its outcome to refer to this artifact.
    pub(crate) fn vouch(&self, artifact: ArtifactId) {
        self.0.artifacts.get_or_init(Mutex::default).lock().push(artifact);
    }

    /// The artifacts that its outcome may refer to.
    pub(crate) fn vouched(&self) -> Vec<ArtifactId> {
        self.0.artifacts.get().map_or_else(Vec::new, |artifacts| artifacts.lock().clone())
    }

    pub(super) fn secrets(&self) -> &Mutex<UsedSecrets> {
        self.0.secrets.get_or_init(Mutex::default)
    }

    pub(super) fn used_secrets(&self) -> Option<&Mutex<UsedSecrets>> {
        self.0.secrets.get()
    }

    pub(crate) fn set_on_thread(&self, on_thread: bool) {
        self.0.on_thread.store(on_thread, Ordering::Release);
    }

    pub(crate) fn is_on_thread(&self) -> bool {
        self.0.on_thread.load(Ordering::Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.0.token.fire();
    }

    /// Reports that no future waits for the attempt any more.
    pub(crate) fn abandon(&self) {
        self.0.dropped.fire();
    }
}

/// A signal that fires once.
#[derive(Default)]
struct Token {
    fired: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Token {
    fn fire(&self) {
        self.fired.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut waiting = self.waiting.lock();
        if self.fired.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if waiting.iter().all(|waker| !waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// The idempotency key of the operation at `path`, which all of its attempts share. It is readable, so that a person who
/// finds it at a payment provider can find the call.
pub fn idempotency_key(run: RunId, generation: u32, path: &Path) -> String {
    let mut key = format!("{run}.{generation}");
    for position in path.positions() {
        key.push('.');
        key.push_str(&position.to_string());
    }
    key
}

/// Resolves when an attempt is asked to stop. See [`Attempt::cancelled`].
pub struct Cancelled {
    attempt: Attempt,
    token: fn(&AttemptInner) -> &Token,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        (self.token)(&self.attempt.0).poll(cx)
    }
}

/// One use of a tool, as its body sees it.
#[derive(Clone)]
pub struct Call {
    attempt: Attempt,
    tool: ToolId,
    args: Arc<Value>,
    id: Option<Arc<str>>,
    prepared: Option<Arc<Value>>,
    /// The tools of its scope, if that is not the runtime's own.
    scope: Option<Toolbox>,
}

impl Call {
    pub(crate) fn new(attempt: Attempt, tool: ToolId, args: Arc<Value>, id: Option<Arc<str>>) -> Self {
        Self { attempt, tool, args, id, prepared: None, scope: None }
    }

    pub(crate) fn in_scope(mut self, scope: Option<Toolbox>) -> Self {
        self.scope = scope;
        self
    }

    /// The session of its run; see [`Attempt::session`]. It also lists the tools that the session shows.
    pub fn session(&self) -> Option<SessionView> {
        let session = self.attempt.0.origin.session.clone()?;
        let store = self.attempt.0.origin.reach.store.clone();
        Some(SessionView::new(store, session, self.attempt.clone(), self.scope.clone()))
    }

    pub(crate) fn with_prepared(mut self, payload: Option<Arc<Value>>) -> Self {
        self.prepared = payload;
        self
    }

    /// The tool's id.
    pub fn tool(&self) -> &ToolId {
        &self.tool
    }

    /// The validated arguments.
    pub fn args(&self) -> &Arc<Value> {
        &self.args
    }

    /// What the tool's `prepare` froze for this call. It is the same for every attempt, in this process and after a
    /// crash.
    pub fn prepared(&self) -> Option<&Value> {
        self.prepared.as_deref()
    }

    /// The id that the model gave this call, if any. Models make up new ones, so use [`Call::idempotency_key`] for
    /// effects.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The same for every attempt of this call, in this process and after a crash; see [`Attempt::key`].
    pub fn idempotency_key(&self) -> String {
        self.attempt.key()
    }
}

impl std::ops::Deref for Call {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.attempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l17_one_key_for_all_attempts_of_a_call_and_another_for_every_other() {
        let run = RunId::from_bytes([7; 16]);
        let path: Path = "2/0".parse().unwrap();
        let origin = |generation| Origin::for_test(run, generation, Arc::new(Signer::new([0; 32])));
        let attempt = |n| Attempt::new(origin(0), path.clone(), "t".into(), n, 3);
        let next = Attempt::new(origin(1), path.clone(), "t".into(), 1, 3);
        assert_ne!(next.key(), attempt(1).key(), "another generation has other keys");
        assert_eq!(attempt(1).key(), attempt(3).key());
        assert_eq!(attempt(1).key(), "07070707-0707-0707-0707-070707070707.0.2.0");
        assert_eq!((attempt(2).number(), attempt(2).of()), (2, 3));
        assert_ne!(attempt(1).key(), idempotency_key(run, 0, &"20".parse().unwrap()));
        assert!(
            idempotency_key(run, 0, &Path::root().child(u32::MAX)).len() < 255,
            "payment providers take 255 characters"
        );
    }
}
