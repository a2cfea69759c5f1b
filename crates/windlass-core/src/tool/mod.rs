//! Tools: what they say about themselves ([`ToolSpec`]), what they take and return ([`Contract`]), and how they do it
//! ([`Body`]).

pub(crate) mod artifact;
mod body;
pub mod budget;
mod channels;
pub mod contract;
mod effort;
mod error;
pub(crate) mod layers;
mod model_name;
pub mod narrate;
mod near;
mod output;
mod patterns;
pub(crate) mod projection;
mod secrets;
pub mod spec;
mod toolbox;
pub mod view;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use artifact::{Artifact, Data};
pub use body::{
    Arg, Atomic, Body, Durable, Prepare, Reconcile, Reconciled, decode_args, encode_output, encode_reconciled,
};
pub use channels::Channels;
pub use contract::{BadSchema, Contract, Schemas};
pub use error::{Internal, Retryable, ToolError, ToolResult, Violation};
pub use layers::{Layers, NoLayer};
pub use model_name::{called, model_name};
pub use near::nearest;
pub use output::{Content, IntoOutput, Output, Reply};
pub(crate) use output::{Later, from_output, to_output};
pub use projection::IntoContent;
use projection::Projector;
pub(crate) use secrets::HIDDEN;
pub use spec::{Concurrency, Effect, ToolSpec};
pub use toolbox::{Listing, RegisterError, Snapshot, Toolbox};

use crate::admit::Gate;
use crate::call::{Call, Preparation};
use crate::ctx::Ctx;
use crate::id::ToolId;
use crate::policy::{Policy, Resolved};
use contract::LazyContract;
use spec::{Approval, KeyExpression, OnDoubt, Retry};

/// A tool: spec, contract and body.
pub struct Tool {
    spec: ToolSpec,
    contract: LazyContract,
    body: Body,
    prepare: Option<Arc<dyn Prepare>>,
    reconcile: Option<Arc<dyn Reconcile>>,
    channels: Channels,
    project: Option<Arc<Projector>>,
    gate: OnceLock<Option<Arc<Gate>>>,
    resolved: OnceLock<Resolved>,
}

impl Tool {
    /// A closure as an atomic tool: `Tool::new("add", "Add two numbers", |a: Add| async move { Ok(a.x + a.y) })`.
    /// Schemas come from its types.
    pub fn new<F, A, R, Fut>(name: impl Into<Arc<str>>, description: impl Into<String>, f: F) -> Self
    where
        F: Fn(A) -> Fut + Send + Sync + 'static,
        A: DeserializeOwned + JsonSchema + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        Self::with_call(name, description, move |_: Call, args: A| f(args))
    }

    /// Like [`Tool::new`], for a closure that wants the [`Call`] too: its idempotency key, token and heartbeat.
    pub fn with_call<F, A, R, Fut>(name: impl Into<Arc<str>>, description: impl Into<String>, f: F) -> Self
    where
        F: Fn(Call, A) -> Fut + Send + Sync + 'static,
        A: DeserializeOwned + JsonSchema + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        let schemas = Schemas { input: contract::schema_of::<A>(), output: R::schema() };
        Self::atomic(ToolSpec::new(name, description), schemas, body::AtomicFn { f, args: PhantomData })
    }

    /// A closure as a durable tool. It takes the context by value: `|mut ctx: Ctx, a: Trip| async move { … }`.
    pub fn durable_fn<F, A, R, Fut>(name: impl Into<Arc<str>>, description: impl Into<String>, f: F) -> Self
    where
        F: Fn(Ctx, A) -> Fut + Send + Sync + 'static,
        A: DeserializeOwned + JsonSchema + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        let schemas = Schemas { input: contract::schema_of::<A>(), output: R::schema() };
        Self::durable(ToolSpec::new(name, description), schemas, body::DurableFn { f, args: PhantomData })
    }

    /// A tool that something outside does: every call waits for an answer by its reply key, which the inbox shows, for as
    /// long as its deadline allows.
    pub fn external(name: impl Into<Arc<str>>, description: impl Into<String>, schemas: Schemas) -> Self {
        let spec = ToolSpec::new(name, description);
        Self::atomic(spec, schemas, body::External).effect(Effect::Idempotent)
    }

    /// A tool with a hand-written atomic body.
    pub fn atomic(spec: ToolSpec, schemas: Schemas, body: impl Atomic) -> Self {
        Self::made(spec, LazyContract::given(schemas), Body::Atomic(Arc::new(body)))
    }

    /// A tool with a hand-written durable body.
    pub fn durable(spec: ToolSpec, schemas: Schemas, body: impl Durable) -> Self {
        Self::made(spec, LazyContract::given(schemas), Body::Durable(Arc::new(body)))
    }

    /// A tool of a big source: its schemas are asked for, and compiled, when it is first called or looked at.
    pub fn lazy(
        spec: ToolSpec,
        resolve: impl Fn(&ToolSpec) -> Result<Schemas, ToolError> + Send + Sync + 'static,
        body: Body,
    ) -> Self {
        Self::made(spec, LazyContract::lazy(Box::new(resolve)), body)
    }

    fn made(spec: ToolSpec, contract: LazyContract, body: Body) -> Self {
        Self {
            spec,
            contract,
            body,
            prepare: None,
            reconcile: None,
            project: None,
            channels: Channels::default(),
            gate: OnceLock::new(),
            resolved: OnceLock::new(),
        }
    }

    /// Changes the spec: `tool.with(|spec| spec.hints.cpu_bound = true)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut ToolSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// Sets the effect class of its attempts.
    #[must_use]
    pub fn effect(self, effect: Effect) -> Self {
        self.with(|spec| spec.effect = effect)
    }

    /// Sets the stable id, where it differs from the name.
    #[must_use]
    pub fn id(self, id: impl Into<ToolId>) -> Self {
        self.with(|spec| spec.id = id.into())
    }

    /// Sets how long one attempt may take.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|spec| spec.limits.timeout = Some(timeout))
    }

    /// Lets failed attempts be repeated.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        self.with(|spec| spec.limits.retry = Some(retry))
    }

    /// Makes calls with the same key run one at a time.
    #[must_use]
    pub fn key(self, key: KeyExpression) -> Self {
        self.with(|spec| spec.guards.concurrency = Concurrency::Keyed(key))
    }

    /// Says what happens to doubts nobody else settles.
    #[must_use]
    pub fn on_doubt(self, policy: OnDoubt) -> Self {
        self.with(|spec| spec.guards.on_doubt = Some(policy))
    }

    /// Says which calls need approval: `tool.approval_when("args.cents > 10000")`. An expression that does not compile is
    /// refused when the tool is registered.
    #[must_use]
    pub fn approval_when(self, condition: &str) -> Self {
        self.with(|spec| spec.guards.approval = Approval::When(condition.into()))
    }

    /// Sets everything a policy says; what it leaves open stays as it is.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|spec| spec.apply(policy))
    }

    /// Lets the tool settle doubts about its own attempts.
    #[must_use]
    pub fn reconcile<F, R, Fut>(mut self, f: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<Reconciled<R>>> + Send + 'static,
    {
        self.reconcile = Some(Arc::new(body::ReconcileFn(f)));
        self
    }

    /// Lets the tool settle what a call is to do before it is approved, queued or attempted: freeze a payload for the
    /// attempts, rewrite the arguments, or answer at once. What it says is recorded, and not asked for again.
    #[must_use]
    pub fn prepare<F, Fut>(mut self, f: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult<Preparation>> + Send + 'static,
    {
        self.prepare = Some(Arc::new(body::PrepareFn(f)));
        self
    }

    /// Says what the model sees of an output: text, or content blocks. The record and the caller keep the whole output; if
    /// the projector fails or panics, the model sees the output as text.
    #[must_use]
    pub fn project<F, C>(mut self, f: F) -> Self
    where
        F: Fn(&Output, &Value) -> ToolResult<C> + Send + Sync + 'static,
        C: IntoContent,
    {
        self.project = Some(Arc::new(move |output: &Output, args: &Value| f(output, args).map(C::into_content)));
        self
    }

    /// Sets how many bytes of an output the model sees at once.
    #[must_use]
    pub fn output_budget(self, bytes: usize) -> Self {
        self.with(|spec| spec.limits.output_budget = Some(bytes))
    }

    /// The cheap half.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// The schemas, resolved and compiled on first use and kept.
    pub fn contract(&self) -> Result<&Contract, ToolError> {
        self.contract.get(&self.spec)
    }

    /// The schemas as they are written, for showing the tool: nothing is compiled, and what had to be resolved is not kept.
    pub fn schemas(&self) -> Result<Schemas, ToolError> {
        self.contract.schemas(&self.spec)
    }

    /// A human line about a call of this tool, if it has one in a language near this locale.
    pub fn narrate(&self, locale: &str, phase: narrate::Phase, args: &Value) -> Option<String> {
        self.spec.about.narration.line(locale, phase, args, self.contract().ok()?)
    }

    /// Whether its body is made of durable operations.
    pub fn is_durable(&self) -> bool {
        matches!(self.body, Body::Durable(_))
    }

    /// What limits its attempts in this process, if anything does.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.get_or_init(|| Gate::new(&self.spec.limits).map(Arc::new)).clone()
    }

    /// Takes the place of another version of itself, which may have calls under way.
    pub(crate) fn succeed(&self, old: &Self) {
        if let Some(gate) = old.gate() {
            self.gate.get_or_init(|| Gate::after(&self.spec.limits, &old.spec.limits, &gate).map(Arc::new));
        }
    }

    /// What governs its calls where neither the call nor the runtime says anything.
    pub(crate) fn resolved(&self) -> &Resolved {
        self.resolved.get_or_init(|| Resolved::of(&Policy::default(), &self.spec, None))
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    pub(crate) fn preparer(&self) -> Option<&Arc<dyn Prepare>> {
        self.prepare.as_ref()
    }

    pub(crate) fn projector(&self) -> Option<&Arc<Projector>> {
        self.project.as_ref()
    }

    pub(crate) fn reconciler(&self) -> Option<&Arc<dyn Reconcile>> {
        self.reconcile.as_ref()
    }

    /// Refuses what cannot work, before anyone calls it.
    pub(crate) fn check(&self) -> Result<(), RegisterError> {
        toolbox::check_spec(&self.spec, self.is_durable())?;
        self.channels.check()?;
        Ok(self.contract.check_given(&self.spec)?)
    }
}

/// `#[tool]` generates a function that makes the tool, so its name is all that is needed to register it.
impl<F: Fn() -> Tool> From<F> for Tool {
    fn from(make: F) -> Self {
        make()
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_durable() { "durable" } else { "atomic" };
        write!(f, "Tool({}, {kind}, {:?})", self.spec.name, self.spec.effect)
    }
}
