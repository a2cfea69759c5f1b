//! Calls before they are made.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::id::ToolId;
use crate::limits;
use crate::policy::Policy;
use crate::runtime::Start;
use crate::store::Turn;
use crate::tool::Layers;
use crate::value::Metadata;
use crate::value::size::{self, TooBig};

/// A call to be made: a tool and its arguments. `T` is the type its output decodes to, or `Value` if that is not known.
///
/// `#[tool]` generates a typed constructor (`charge::call("c1", 500)`); [`ToolCall::new`] is what a model's call becomes.
#[must_use = "a call is made by `ctx.call(…).await?`, or `windlass.call(…).await?` outside of a body"]
pub struct ToolCall<T = Value> {
    pub(crate) tool: ToolRef,
    pub(crate) id: Option<Arc<str>>,
    pub(crate) args: Arc<Value>,
    /// Layers that it adds to those of its caller. Most add none.
    pub(crate) layers: Layers,
    /// The call's own policy. Most have none.
    pub(crate) limits: Option<Box<Policy>>,
    /// How its run is started, for a call that is made from outside of a body. Most do not say.
    pub(crate) start: Option<Box<Start>>,
    /// What its provider wants back with the outcome. Most want nothing.
    pub(crate) metadata: Option<Metadata>,
    /// Why the arguments could not be serialized. Such a call is refused.
    pub(crate) broken: Option<Arc<String>>,
    output: PhantomData<fn() -> T>,
}

/// How a call names its tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolRef {
    /// By the name that models use.
    Name(Arc<str>),
    /// By its stable id.
    Id(ToolId),
}

impl ToolRef {
    /// The name or the id.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Id(id) => id.as_str(),
        }
    }
}

impl ToolCall {
    /// A call by name, as a model makes it.
    pub fn new(name: impl Into<Arc<str>>, args: impl Into<Arc<Value>>) -> Self {
        Self::to(ToolRef::Name(name.into()), args)
    }

    /// A call by stable id.
    pub fn by_id(id: impl Into<ToolId>, args: impl Into<Arc<Value>>) -> Self {
        Self::to(ToolRef::Id(id.into()), args)
    }
}

impl<T> ToolCall<T> {
    /// A call whose output decodes to `T`; what `#[tool]` generates.
    pub fn to(tool: ToolRef, args: impl Into<Arc<Value>>) -> Self {
        let (args, layers) = (args.into(), Layers::default());
        Self {
            tool,
            id: None,
            args,
            layers,
            limits: None,
            start: None,
            metadata: None,
            broken: None,
            output: PhantomData,
        }
    }

    /// A call whose arguments cannot be serialized as JSON. It ends with `invalid_arguments` and this message.
    pub fn broken(tool: ToolRef, message: impl Into<String>) -> Self {
        Self { broken: Some(Arc::new(message.into())), ..Self::to(tool, Value::Null) }
    }

    /// Sets the id that the model gave the call, to match the answer with. It is never used to derive keys, because
    /// models make up new ones.
    pub fn with_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Keeps opaque data of the model's provider with the call. It comes back with the outcome byte for byte, also after a
    /// restart. At most [`limits::METADATA_BYTES`]; a call with more is refused.
    pub fn metadata(mut self, metadata: impl Into<Metadata>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    /// Makes the call, and everything below it, through this layer, in addition to its caller's; see
    /// [`Toolbox::layer`](crate::tool::Toolbox::layer). The call is refused if there is no such layer.
    pub fn in_layer(mut self, name: impl Into<Arc<str>>) -> Self {
        self.layers = self.layers.with(&name.into());
        self
    }

    /// Makes the call idempotent: the same key always names the same run, also after a restart. Other work under a key that
    /// is taken is refused ([`Error::KeyReused`](crate::Error::KeyReused)). For calls from outside of a body.
    pub fn key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.start.get_or_insert_default().key = Some(key.into());
        self
    }

    /// The session its run belongs to. For calls from outside of a body: calls inside of one are in its session.
    pub fn session(mut self, session: impl Into<Arc<str>>) -> Self {
        self.start.get_or_insert_default().session = Some(session.into());
        self
    }

    /// Who its run acts for: a user, a token, the owner of a schedule. The runs that it starts inherit it. For calls
    /// from outside of a body.
    pub fn principal(mut self, principal: impl Into<Arc<str>>) -> Self {
        self.start.get_or_insert_default().principal = Some(principal.into());
        self
    }

    /// What caused its run: the id of a message, a turn or a frame, as given. The runs that it starts inherit it. For
    /// calls from outside of a body.
    pub fn cause(mut self, cause: impl Into<Arc<str>>) -> Self {
        self.start.get_or_insert_default().cause = Some(cause.into());
        self
    }

    /// Makes its run a turn of its session: it waits for the turns before it.
    pub fn as_turn(mut self) -> Self {
        self.start.get_or_insert_default().turn = Turn::Queue;
        self
    }

    /// The same, but the call is refused while the session has a turn that is not over.
    pub fn as_turn_or_refuse(mut self) -> Self {
        self.start.get_or_insert_default().turn = Turn::Refuse;
        self
    }

    /// How its run is to be started; the call itself says nothing about it any more.
    pub(crate) fn take_start(&mut self) -> Start {
        self.start.take().map_or_else(Start::default, |start| *start)
    }

    /// Sets a policy for this call, in addition to those of its tool and its runtime; see [`Policy`]. It is recorded
    /// with the call, so it survives a crash.
    pub fn policy(mut self, policy: Policy) -> Self {
        let policy = policy.over(self.limits.as_deref().unwrap_or(&Policy::default()));
        self.limits = (policy != Policy::default()).then(|| Box::new(policy));
        self
    }

    /// Sets how long one attempt of this call may take, instead of the tool's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.limits.get_or_insert_default().timeout = Some(timeout);
        self
    }

    /// Sets how long this call may take in all, instead of the tool's deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.limits.get_or_insert_default().deadline = Some(deadline);
        self
    }

    /// The same call without its type.
    pub fn untyped(self) -> ToolCall {
        let Self { tool, id, args, layers, limits, start, metadata, broken, .. } = self;
        ToolCall { tool, id, args, layers, limits, start, metadata, broken, output: PhantomData }
    }

    /// Drops arguments and metadata beyond the size limits; such a call is refused.
    pub(crate) fn bounded(mut self) -> Self {
        if self.metadata.as_ref().is_some_and(|metadata| metadata.as_str().len() > limits::METADATA_BYTES) {
            self.metadata = None;
            let problem = format!("the metadata of the call is larger than {} bytes", limits::METADATA_BYTES);
            self.broken.get_or_insert_with(|| problem.into());
        }
        let problem = match size::check(&self.args, limits::ARGUMENT_BYTES) {
            Ok(()) => return self,
            Err(TooBig::Bytes) => {
                format!("larger than {} bytes; pass large content as an artifact", limits::ARGUMENT_BYTES)
            }
            Err(TooBig::Depth) => format!("nested deeper than {}", limits::VALUE_DEPTH),
        };
        self.broken.get_or_insert_with(|| problem.into());
        self.args = Arc::new(Value::Null);
        self
    }

    /// The tool it names.
    pub fn tool(&self) -> &str {
        self.tool.as_str()
    }

    /// Its arguments.
    pub fn args(&self) -> &Arc<Value> {
        &self.args
    }
}

impl<T> Clone for ToolCall<T> {
    fn clone(&self) -> Self {
        Self {
            tool: self.tool.clone(),
            id: self.id.clone(),
            args: self.args.clone(),
            layers: self.layers.clone(),
            limits: self.limits.clone(),
            start: self.start.clone(),
            metadata: self.metadata.clone(),
            broken: self.broken.clone(),
            output: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for ToolCall<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.broken {
            Some(message) => write!(f, "{}(broken: {message})", self.tool.as_str()),
            None => write!(f, "{}({})", self.tool.as_str(), self.args),
        }
    }
}
