//! How a tool does what it says: atomic bodies, durable bodies, and the question after a doubt.

use std::future::Future;
use std::marker::PhantomData;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

use serde_json::Value;

use super::error::{ToolError, ToolResult};
use super::output::{IntoOutput, Output, Reply};
use crate::call::{Call, Preparation};
use crate::ctx::Ctx;

/// A leaf: one attempt is one effect.
pub trait Atomic: Send + Sync + 'static {
    /// Makes one attempt. The arguments (`call.args()`) have been validated. The future is dropped when the attempt is
    /// cancelled or timed out and its grace is over.
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>>;
}

/// A body made of durable operations. It is entered again after a crash; recorded operations answer from the journal.
pub trait Durable: Send + Sync + 'static {
    /// Enters the body.
    fn enter(&self, ctx: Ctx, args: Arc<Value>) -> BoxFuture<'static, ToolResult<Output>>;
}

/// Does nothing itself: the answer comes by reply key.
pub(crate) struct External;

impl Atomic for External {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::ready(encode_output(Ok(Reply::<Value>::later()))))
    }
}

/// Which of the two a tool has.
#[derive(Clone)]
pub enum Body {
    /// A leaf.
    Atomic(Arc<dyn Atomic>),
    /// Made of operations.
    Durable(Arc<dyn Durable>),
}

/// What a tool finds out about an attempt whose result was not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It happened, and this is its result.
    Happened(T),
    /// It did not happen and will not.
    DidNotHappen,
    /// The tool cannot tell.
    Unknown,
}

/// Settles doubts about a tool's own attempts.
pub trait Reconcile: Send + Sync + 'static {
    /// Finds out whether the attempts made under `call.idempotency_key()` happened. Must change nothing. An error counts
    /// as [`Reconciled::Unknown`].
    fn reconcile(&self, call: Call) -> BoxFuture<'static, ToolResult<Reconciled<Output>>>;
}

/// Settles what a call is to do before it is approved, queued or attempted.
pub trait Prepare: Send + Sync + 'static {
    /// Looks at a call whose arguments have been checked. Must change nothing outside: after a crash a call that got no
    /// further is prepared again. What it says is recorded, and counts from then on.
    fn prepare(&self, call: Call) -> BoxFuture<'static, ToolResult<Preparation>>;
}

/// Decodes validated arguments into a body's own type.
pub fn decode_args<A: DeserializeOwned>(args: &Value) -> ToolResult<A> {
    A::deserialize(args).map_err(|error| ToolError::invalid("", error.to_string()))
}

/// Encodes what a body returned.
pub fn encode_output<R: IntoOutput>(result: ToolResult<R>) -> ToolResult<Output> {
    result?.into_output().map_err(ToolError::from)
}

/// Encodes what a `reconcile` function found out.
pub fn encode_reconciled<R: IntoOutput>(found: ToolResult<Reconciled<R>>) -> ToolResult<Reconciled<Output>> {
    Ok(match found? {
        Reconciled::Happened(value) => Reconciled::Happened(value.into_output()?),
        Reconciled::DidNotHappen => Reconciled::DidNotHappen,
        Reconciled::Unknown => Reconciled::Unknown,
    })
}

/// A closure as an atomic body.
pub(crate) struct AtomicFn<F, A> {
    pub(crate) f: F,
    pub(crate) args: PhantomData<fn(A)>,
}

impl<F, A, R, Fut> Atomic for AtomicFn<F, A>
where
    F: Fn(Call, A) -> Fut + Send + Sync + 'static,
    A: DeserializeOwned + JsonSchema + 'static,
    R: IntoOutput,
    Fut: Future<Output = ToolResult<R>> + Send + 'static,
{
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        match decode_args::<A>(call.args()) {
            Ok(args) => {
                let attempt = (self.f)(call, args);
                Box::pin(async move { encode_output(attempt.await) })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// A closure as a durable body.
pub(crate) struct DurableFn<F, A> {
    pub(crate) f: F,
    pub(crate) args: PhantomData<fn(A)>,
}

impl<F, A, R, Fut> Durable for DurableFn<F, A>
where
    F: Fn(Ctx, A) -> Fut + Send + Sync + 'static,
    A: DeserializeOwned + JsonSchema + 'static,
    R: IntoOutput,
    Fut: Future<Output = ToolResult<R>> + Send + 'static,
{
    fn enter(&self, ctx: Ctx, args: Arc<Value>) -> BoxFuture<'static, ToolResult<Output>> {
        match decode_args::<A>(&args) {
            Ok(args) => {
                let body = (self.f)(ctx, args);
                Box::pin(async move { encode_output(body.await) })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// A closure that reconciles.
pub(crate) struct ReconcileFn<F>(pub(crate) F);

impl<F, R, Fut> Reconcile for ReconcileFn<F>
where
    F: Fn(Call) -> Fut + Send + Sync + 'static,
    R: IntoOutput,
    Fut: Future<Output = ToolResult<Reconciled<R>>> + Send + 'static,
{
    fn reconcile(&self, call: Call) -> BoxFuture<'static, ToolResult<Reconciled<Output>>> {
        let found = (self.0)(call);
        Box::pin(async move { encode_reconciled(found.await) })
    }
}

/// A closure that prepares.
pub(crate) struct PrepareFn<F>(pub(crate) F);

impl<F, Fut> Prepare for PrepareFn<F>
where
    F: Fn(Call) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ToolResult<Preparation>> + Send + 'static,
{
    fn prepare(&self, call: Call) -> BoxFuture<'static, ToolResult<Preparation>> {
        Box::pin((self.0)(call))
    }
}

/// What may be passed for a parameter of type `T` when a typed call is built: the value, a reference to it, or the
/// borrowed form of a `String` or `Vec`.
pub trait Arg<T>: Serialize {}

impl<T: Serialize> Arg<T> for T {}
impl<T: Serialize> Arg<T> for &T {}
impl Arg<String> for &str {}
impl<T: Serialize> Arg<Vec<T>> for &[T] {}
