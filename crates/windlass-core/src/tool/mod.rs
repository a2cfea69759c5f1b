//! Tools: their metadata ([`ToolSpec`]), their schemas ([`Contract`]), and what they execute ([`Body`]).

pub(crate) mod artifact;
mod body;
pub mod budget;
mod channels;
pub mod contract;
mod effort;
mod error;
pub(crate) mod layers;
mod listing;
pub(crate) mod membership;
mod model_name;
pub mod narrate;
mod near;
mod output;
mod patterns;
pub(crate) mod projection;
mod redact;
mod secrets;
mod source;
pub mod spec;
mod toolbox;
pub mod view;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;

pub use artifact::{Artifact, Data};
pub use body::{
    Arg, Arguments, Atomic, Body, Durable, Parameter, Prepare, Reconcile, Reconciled, decode_args, encode_output,
    encode_reconciled,
};
pub use channels::Channels;
pub use contract::{BadSchema, Contract, Schemas};
pub use error::{Internal, Retryable, ToolError, ToolResult, Violation};
pub use layers::{Layers, NoLayer};
pub use listing::{Catalog, Listing, Listings};
pub use membership::{LiveSessions, LiveTools, SessionTools, ToolsChange};
pub use model_name::{called, model_name};
pub use near::nearest;
pub use output::{Content, IntoOutput, Output, Reply};
pub(crate) use output::{LaterReply, from_output, to_output};
use projection::Projector;
pub use projection::{IntoContent, READ_OUTPUT, READ_OUTPUT_ID, parse_output_uri};
pub use redact::Redactor;
pub(crate) use secrets::HIDDEN;
pub use source::{Source, SourceFailure};
pub use spec::{Concurrency, Effect, ToolSpec};
pub(crate) use toolbox::check_name;
pub use toolbox::{RegisterError, Snapshot, Toolbox};

use crate::admit::Gate;
use crate::call::{Call, Preparation};
use crate::ctx::Ctx;
use crate::id::ToolId;
use crate::policy::{EffectivePolicy, Policy};
use contract::LazyContract;
use spec::{Approval, KeyExpression, OnDoubt, Retry};

/// A tool: its spec, its schemas, its body, and optional hooks.
pub struct Tool {
    spec: ToolSpec,
    contract: LazyContract,
    body: Body,
    prepare: Option<Arc<dyn Prepare>>,
    reconcile: Option<Arc<dyn Reconcile>>,
    channels: Channels,
    project: Option<Arc<Projector>>,
    gate: OnceLock<Option<Arc<Gate>>>,
    resolved: OnceLock<EffectivePolicy>,
}

impl Tool {
    /// An atomic tool from a closure: `Tool::new("add", "Add two numbers", |a: Add| async move { Ok(a.x + a.y) })`.
    /// The schemas are derived from its argument and result types.
    pub fn new<F, A, R, Fut>(name: impl Into<Arc<str>>, description: impl Into<String>, f: F) -> Self
    where
        F: Fn(A) -> Fut + Send + Sync + 'static,
        A: Parameter + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        Self::with_call(name, description, move |_: Call, args: A| f(args))
    }

    /// Like [`Tool::new`], for a closure that also takes the [`Call`]: its idempotency key, cancellation token and
    /// heartbeat.
    pub fn with_call<F, A, R, Fut>(name: impl Into<Arc<str>>, description: impl Into<String>, f: F) -> Self
    where
        F: Fn(Call, A) -> Fut + Send + Sync + 'static,
        A: Parameter + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        let schemas = Schemas { input: contract::schema_of::<A>(), output: R::schema() };
        Self::atomic(ToolSpec::new(name, description), schemas, body::AtomicFn { f, args: PhantomData })
    }

    /// A durable tool from a closure. It takes the context by value: `|mut ctx: Ctx, a: Trip| async move { … }`.
    pub fn durable_fn<F, A, R, Fut>(name: impl Into<Arc<str>>, description: impl Into<String>, f: F) -> Self
    where
        F: Fn(Ctx, A) -> Fut + Send + Sync + 'static,
        A: Parameter + 'static,
        R: IntoOutput + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        let schemas = Schemas { input: contract::schema_of::<A>(), output: R::schema() };
        Self::durable(ToolSpec::new(name, description), schemas, body::DurableFn { f, args: PhantomData })
    }

    /// A tool that another system completes. Every call waits for a reply by its reply key, which the inbox shows,
    /// until its deadline.
    pub fn external(name: impl Into<Arc<str>>, description: impl Into<String>, schemas: Schemas) -> Self {
        let spec = ToolSpec::new(name, description);
        Self::atomic(spec, schemas, body::External).effect(Effect::Idempotent)
    }

    /// An atomic tool with a body that implements [`Atomic`].
    pub fn atomic(spec: ToolSpec, schemas: Schemas, body: impl Atomic) -> Self {
        Self::made(spec, LazyContract::eager(schemas), Body::Atomic(Arc::new(body)))
    }

    /// A durable tool with a body that implements [`Durable`].
    pub fn durable(spec: ToolSpec, schemas: Schemas, body: impl Durable) -> Self {
        Self::made(spec, LazyContract::eager(schemas), Body::Durable(Arc::new(body)))
    }

    /// A tool of a large source: `resolve` loads its schemas when it is first called or inspected, and they are
    /// compiled then. A failure is not kept: the next use calls `resolve` again.
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

    /// Sets the effect class of its attempts. The default is [`Effect::Once`].
    #[must_use]
    pub fn effect(self, effect: Effect) -> Self {
        self.with(|spec| spec.effect = effect)
    }

    /// Sets the stable id, by which journals refer to the tool. The default is the name.
    #[must_use]
    pub fn id(self, id: impl Into<ToolId>) -> Self {
        self.with(|spec| spec.id = id.into())
    }

    /// Sets how long one attempt may take. Refused at registration for a durable tool.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|spec| spec.limits.timeout = Some(timeout))
    }

    /// Sets how failed attempts are repeated. Those of a `once` tool are repeated only after
    /// [`ToolError::retryable`], up to this number. Refused at registration for a durable tool.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        self.with(|spec| spec.limits.retry = Some(retry))
    }

    /// Makes calls with the same key run one at a time. A key expression that does not parse is refused at
    /// registration.
    #[must_use]
    pub fn key(self, key: KeyExpression) -> Self {
        self.with(|spec| spec.guards.concurrency = Concurrency::Keyed(key))
    }

    /// Makes its attempts go through the circuit breaker of this target: after several failures in a row, no attempt is
    /// made for a while. Tools with the same target share a breaker. Refused at registration for a durable tool, which
    /// makes no attempts.
    #[must_use]
    pub fn breaker(self, target: impl Into<Arc<str>>) -> Self {
        self.with(|spec| spec.guards.breaker = spec::Breaker::Target(target.into()))
    }

    /// Sets what happens to a doubt that neither a message nor `reconcile` settles.
    #[must_use]
    pub fn on_doubt(self, policy: OnDoubt) -> Self {
        self.with(|spec| spec.guards.on_doubt = Some(policy))
    }

    /// Sets which calls need approval: `tool.approval_when("args.cents > 10000")`. An expression that does not compile
    /// is refused at registration.
    #[must_use]
    pub fn approval_when(self, condition: &str) -> Self {
        self.with(|spec| spec.guards.approval = Approval::When(condition.into()))
    }

    /// Applies a policy to the spec. Fields that the policy leaves open keep their values.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|spec| spec.apply(policy))
    }

    /// Sets the function that settles doubts about the tool's own attempts; see [`Reconcile`].
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

    /// Sets the function that decides what a call will do before it is approved, queued or attempted: it can freeze a
    /// payload for the attempts, rewrite the arguments, or answer at once. Its result is recorded and not asked for
    /// again; see [`Prepare`].
    #[must_use]
    pub fn prepare<F, Fut>(mut self, f: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult<Preparation>> + Send + 'static,
    {
        self.prepare = Some(Arc::new(body::PrepareFn(f)));
        self
    }

    /// Sets what the model sees of an output: text or content blocks. The record and the caller keep the whole output.
    /// If the projector fails or panics, the model sees the output as text and a warning is logged.
    #[must_use]
    pub fn project<F, C>(mut self, f: F) -> Self
    where
        F: Fn(&Output, &Value) -> ToolResult<C> + Send + Sync + 'static,
        C: IntoContent,
    {
        self.project = Some(Arc::new(move |output: &Output, args: &Value| f(output, args).map(C::into_content)));
        self
    }

    /// Sets how many bytes of an output the model sees at once. The rest can be read with `read_output`.
    #[must_use]
    pub fn output_budget(self, bytes: usize) -> Self {
        self.with(|spec| spec.limits.output_budget = Some(bytes))
    }

    /// The metadata of the tool, without its schemas and its body.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// The compiled schemas. They are loaded and compiled on first use, then kept.
    ///
    /// # Errors
    ///
    /// [`ToolError::Unavailable`] if a lazily loaded schema does not compile, or the error of the source that loads it.
    /// The next call tries again.
    pub fn contract(&self) -> Result<&Contract, ToolError> {
        self.contract.get(&self.spec)
    }

    /// The compiled schemas, if they were given with the tool or are loaded already.
    pub fn contract_if_loaded(&self) -> Option<&Contract> {
        self.contract.if_compiled()
    }

    /// The schemas as JSON, if they were given with the tool or are loaded already.
    pub fn schemas_if_loaded(&self) -> Option<Schemas> {
        self.contract.schemas_if_loaded()
    }

    /// The schemas as JSON, for displaying the tool. Nothing is compiled, and lazily loaded schemas are not kept.
    ///
    /// # Errors
    ///
    /// The error of the source that loads the schemas.
    pub fn schemas(&self) -> Result<Schemas, ToolError> {
        self.contract.schemas(&self.spec)
    }

    /// A line for people about a call of this tool, in the language closest to the locale: by the tool's template, or
    /// made of its title. `None` if the template needs a schema that could not be loaded.
    pub fn narrate(&self, locale: &str, phase: narrate::Phase, args: &Value) -> Option<String> {
        let about = &self.spec.about;
        let contract = self.contract().ok();
        if !about.narration.is_empty()
            && let Some(line) = about.narration.line(locale, phase, args, contract?)
        {
            return Some(line);
        }
        let title = about.title.clone().unwrap_or_else(|| narrate::title_of(&self.spec.name));
        Some(narrate::default_line(&title, locale, phase, (args, contract)))
    }

    /// Whether the body is made of durable operations.
    pub fn is_durable(&self) -> bool {
        matches!(self.body, Body::Durable(_))
    }

    /// The gate that limits its attempts in this process, if the tool has such limits.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.get_or_init(|| Gate::new(&self.spec.id, &self.spec.limits).map(Arc::new)).clone()
    }

    /// Continues the counts of the version that this one replaces, whose calls may still be running.
    pub(crate) fn inherit_gate(&self, old: &Self) {
        if let Some(gate) = old.gate() {
            self.gate
                .get_or_init(|| Gate::after(&self.spec.id, &self.spec.limits, &old.spec.limits, &gate).map(Arc::new));
        }
    }

    /// The settings that apply to its calls if neither the call nor the runtime overrides them.
    pub(crate) fn resolved(&self) -> &EffectivePolicy {
        self.resolved.get_or_init(|| EffectivePolicy::of(&Policy::default(), &self.spec, None))
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

    /// Refuses a spec, channel or schema that cannot work.
    pub(crate) fn check(&self) -> Result<(), RegisterError> {
        toolbox::check_spec(&self.spec, self.is_durable())?;
        self.channels.check()?;
        Ok(self.contract.compile_eager(&self.spec)?)
    }
}

/// `#[tool]` generates a function that returns the tool, so the name of the function is enough to register it.
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
