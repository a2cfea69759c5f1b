//! What a tool executes: atomic bodies, durable bodies, and the hooks that prepare a call and settle a doubt.

use std::future::Future;
use std::marker::PhantomData;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

use serde_json::Value;

use super::contract::schema_of;
use super::error::{ToolError, ToolResult};
use super::output::{IntoOutput, Output, Reply};
use crate::call::{Call, Preparation};
use crate::ctx::Ctx;

/// The body of an atomic tool: one attempt is one effect.
pub trait Atomic: Send + Sync + 'static {
    /// Makes one attempt. The arguments (`call.args()`) have been validated.
    ///
    /// The future is dropped if the attempt is cancelled or times out and has not returned within its grace period.
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>>;
}

/// The body of a durable tool, made of durable operations. It is entered again after a crash; operations that were
/// recorded then return their recorded outcome from the journal.
pub trait Durable: Send + Sync + 'static {
    /// Enters the body with validated arguments.
    ///
    /// The future is dropped when the run is suspended or cancelled, or when this process loses it. Operations that
    /// were recorded by then are not repeated.
    fn enter(&self, ctx: Ctx, args: Arc<Value>) -> BoxFuture<'static, ToolResult<Output>>;
}

/// The body of a tool that another system completes: every attempt answers later, by reply key.
pub(crate) struct External;

impl Atomic for External {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::ready(encode_output(Ok(Reply::<Value>::later()))))
    }
}

/// The body of a tool.
#[derive(Clone)]
pub enum Body {
    /// One attempt is one effect.
    Atomic(Arc<dyn Atomic>),
    /// Made of durable operations.
    Durable(Arc<dyn Durable>),
}

/// What a tool found out about an attempt whose result was not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// The effect happened, and this is its result.
    Happened(T),
    /// The effect did not happen and will not happen later.
    DidNotHappen,
    /// The tool cannot find out.
    Unknown,
}

/// Settles doubts about attempts of its tool.
pub trait Reconcile: Send + Sync + 'static {
    /// Finds out whether the attempts made under `call.idempotency_key()` took effect. It must not change anything: it
    /// may be called again. An error counts as [`Reconciled::Unknown`].
    fn reconcile(&self, call: Call) -> BoxFuture<'static, ToolResult<Reconciled<Output>>>;
}

/// Decides what a call will do, before it is approved, queued or attempted.
pub trait Prepare: Send + Sync + 'static {
    /// Inspects a call whose arguments have been validated. It must not change anything outside: if the process dies
    /// before the result is recorded, the call is prepared again. Once recorded, the result is used for every later
    /// attempt.
    fn prepare(&self, call: Call) -> BoxFuture<'static, ToolResult<Preparation>>;
}

/// A type that arguments are decoded into: it derives `serde::Deserialize` and `schemars::JsonSchema`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a tool: it must implement `Deserialize` and `JsonSchema`",
    label = "this argument cannot be decoded, or it has no JSON Schema",
    note = "add `#[derive(serde::Deserialize, windlass::schemars::JsonSchema)]` and \
            `#[schemars(crate = \"windlass::schemars\")]` to your type",
    note = "for a type of another crate, take a struct of your own and convert it in the body"
)]
pub trait Parameter: DeserializeOwned + JsonSchema {}

// Without this attribute the compiler reports the missing trait alone, without the notes above.
#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + JsonSchema> Parameter for T {}

/// The arguments of a tool that `#[tool]` generates.
#[doc(hidden)]
pub trait Arguments: Sized {
    #[doc(hidden)]
    fn decode(args: &Value) -> ToolResult<Self>;

    #[doc(hidden)]
    fn schema() -> Value;
}

impl<T: DeserializeOwned + JsonSchema> Arguments for T {
    fn decode(args: &Value) -> ToolResult<Self> {
        decode_args(args)
    }

    fn schema() -> Value {
        schema_of::<T>()
    }
}

/// Decodes validated arguments into the body's own type.
///
/// # Errors
///
/// [`ToolError::InvalidArguments`] if the type cannot represent them.
pub fn decode_args<A: DeserializeOwned>(args: &Value) -> ToolResult<A> {
    A::deserialize(args).map_err(|error| ToolError::invalid("", error.to_string()))
}

/// Encodes what a body returned. A value that does not serialise is an internal error.
pub fn encode_output<R: IntoOutput>(result: ToolResult<R>) -> ToolResult<Output> {
    result?.into_output().map_err(ToolError::from)
}

/// Encodes what a `reconcile` function returned. A value that does not serialise is an internal error.
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
    A: Parameter + 'static,
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
    A: Parameter + 'static,
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

/// A closure as the `reconcile` hook.
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

/// A closure as the `prepare` hook.
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

/// The types accepted for a parameter of type `T` when a typed call is built: the value, a reference to it, or the
/// borrowed form of a `String` or `Vec`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed where the tool takes `{T}`",
    label = "expected `{T}`, or a reference to it",
    note = "a typed call encodes its arguments as JSON: if `{T}` is your own type, derive `serde::Serialize` for it"
)]
pub trait Arg<T>: Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Serialize> Arg<T> for T {}
#[diagnostic::do_not_recommend]
impl<T: Serialize> Arg<T> for &T {}
impl Arg<String> for &str {}
impl<T: Serialize> Arg<Vec<T>> for &[T] {}
