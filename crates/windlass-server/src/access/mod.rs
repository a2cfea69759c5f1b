//! Authentication and authorization: the sender of a request, and the scopes it has.

mod tokens;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use windlass::run::{Explanation, RunInfo, check_attribution};
use windlass::store::StoreError;
use windlass::tool::Layers;
use windlass::{Error, RunId, Windlass};

pub use tokens::TokensError;
pub(crate) use tokens::{CreateOutcome, Tokens};

use crate::app::Shared;
use crate::extract::shortened;
use crate::refusal::{ApiResult, Refusal};
use crate::wire::Scope;

/// The name of senders that need no token.
static LOCAL: LazyLock<Arc<str>> = LazyLock::new(|| "local".into());

/// How a request is authenticated; a request extension that the guard adds.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// From this machine, as long as no tokens exist: full access.
    Local,
    /// With a valid token.
    Token(Arc<Bearer>),
    /// Without a token.
    Anonymous,
    /// With an invalid token, for this reason.
    Invalid(&'static str),
}

/// The holder of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) id: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) scopes: Vec<Scope>,
    /// The layer through which the bearer sees and calls tools, if its token is bound to one.
    pub(crate) layer: Option<Arc<str>>,
    /// For whom the bearer acts.
    pub(crate) principal: Arc<str>,
}

impl Access {
    /// Checks the `Authorization` header.
    pub(crate) fn of(app: &Shared, headers: &HeaderMap) -> Self {
        if app.options.trusted || app.is_open() {
            return Self::Local;
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Self::Anonymous };
        let bearer = value.to_str().ok().and_then(|value| {
            let (scheme, secret) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
        });
        match bearer {
            Some(secret) => app.tokens.bearer(secret).map_or_else(Self::Invalid, Self::Token),
            None => Self::Invalid("`Authorization` is not of the form `Bearer TOKEN`"),
        }
    }

    fn may(&self, scope: Scope) -> bool {
        match self {
            Self::Local => true,
            Self::Token(bearer) => bearer.scopes.contains(&scope),
            Self::Anonymous | Self::Invalid(_) => false,
        }
    }

    fn identity(&self, headers: &HeaderMap) -> ApiResult<Identity> {
        let principal = self.principal(headers)?;
        Ok(match self {
            Self::Token(bearer) => Identity {
                name: bearer.name.clone(),
                principal,
                sees_all: self.may(Scope::Admin),
                may_approve: bearer.scopes.contains(&Scope::Approve),
                may_call: bearer.scopes.contains(&Scope::Call),
                layer: bearer.layer.clone(),
                without_read: (!bearer.scopes.contains(&Scope::Read)).then(|| bearer.id.clone()),
            },
            _ => Identity {
                name: LOCAL.clone(),
                principal,
                sees_all: true,
                may_approve: true,
                may_call: true,
                layer: None,
                without_read: None,
            },
        })
    }

    /// The principal that a request acts for: the one of its token, or the one that it names.
    fn principal(&self, headers: &HeaderMap) -> ApiResult<Option<Arc<str>>> {
        let own = if let Self::Token(bearer) = self { Some(bearer.principal.clone()) } else { None };
        let Some(named) = headers.get(PRINCIPAL_HEADER) else { return Ok(own) };
        let named = std::str::from_utf8(named.as_bytes()).map_err(|_| {
            Refusal::invalid("the header `Windlass-Principal` is not UTF-8; send the principal's name as UTF-8")
        })?;
        check_attribution("principal", named)?;
        match own {
            Some(own) if *own == *named => Ok(Some(own)),
            _ if self.may(Scope::Impersonate) => Ok(Some(named.into())),
            _ => Err(missing_scope(self, Scope::Impersonate)),
        }
    }
}

impl crate::app::App {
    /// Whether no token is needed: the server listens on a loopback address and has no tokens.
    fn is_open(&self) -> bool {
        self.hosts.bound.is_none_or(|bound| bound.ip().is_loopback()) && self.tokens.is_empty()
    }
}

/// The sender of a request, by the name that the journal records.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    /// For whom the request acts. Only a request without a token may name none.
    pub(crate) principal: Option<Arc<str>>,
    /// Whether the sender sees the runs of all principals.
    sees_all: bool,
    /// Whether the sender may approve calls and answer inputs.
    pub(crate) may_approve: bool,
    /// Whether the sender may call tools.
    pub(crate) may_call: bool,
    /// The layer that the token is bound to.
    layer: Option<Arc<str>>,
    /// The id of a token without the scope `read`.
    without_read: Option<Arc<str>>,
}

impl Identity {
    /// The only principal whose runs the sender sees; `None` if it sees all runs.
    pub(crate) fn restriction(&self) -> Option<&Arc<str>> {
        self.principal.as_ref().filter(|_| !self.sees_all)
    }

    /// Whether the sender sees this run.
    pub(crate) fn sees(&self, info: &RunInfo) -> bool {
        self.restriction().is_none_or(|principal| info.principal.as_ref() == Some(principal))
    }

    /// The summary of a run that the sender sees. Any other run looks missing.
    pub(crate) async fn run(&self, app: &Shared, run: RunId) -> ApiResult<RunInfo> {
        let info = app.windlass.runtime().info(run).await?.filter(|info| self.sees(info));
        Ok(info.ok_or(StoreError::NoSuchRun(run))?)
    }

    /// Explains a run that the sender sees, without naming runs that it does not see.
    pub(crate) async fn explain(&self, app: &Shared, run: RunId) -> ApiResult<Explanation> {
        let runtime = app.windlass.runtime();
        Ok(match self.restriction() {
            Some(_) => runtime.explain_to_principal(run).await?,
            None => runtime.explain(run).await?,
        })
    }

    /// A refused request, without the run of another principal that it may name.
    pub(crate) async fn refusal(&self, app: &Shared, error: Error) -> Refusal {
        match error {
            Error::KeyReused { run, .. } if self.run(app, run).await.is_err() => {
                let detail = "the Idempotency-Key belongs to another request; use another key";
                Refusal::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "key_reused",
                    "Idempotency key of another request",
                    detail,
                )
            }
            error => error.into(),
        }
    }

    /// The permission to read a run of an own call, for a token that needs one.
    pub(crate) fn run_access(&self, app: &Shared, run: RunId) -> Option<String> {
        self.without_read.as_ref().map(|token| app.tokens.run_access(token, run))
    }

    /// The runtime for a call, and the layer that the call has to name itself. A layer may have been removed since the
    /// call was first made: then a repeated request still finds its run by the key, through the runtime without layers.
    pub(crate) async fn call_runtime<'a>(
        &self,
        app: &'a Shared,
        requested: Option<&str>,
        key: Option<&str>,
    ) -> ApiResult<(Cow<'a, Windlass>, Option<Arc<str>>)> {
        let refusal = match self.windlass(app, requested) {
            Ok(windlass) => return Ok((windlass, None)),
            Err(refusal) => refusal,
        };
        match (self.layer(requested)?, key) {
            (Some(layer), Some(key)) if app.windlass.runtime().keyed(key).await?.is_some() => {
                Ok((Cow::Borrowed(&app.windlass), Some(layer)))
            }
            _ => Err(refusal),
        }
    }

    /// The layer of the token, or else the one that the request names.
    fn layer(&self, requested: Option<&str>) -> ApiResult<Option<Arc<str>>> {
        match (&self.layer, requested) {
            (Some(own), Some(other)) if **own != *other => {
                let detail = format!(
                    "the token `{}` is bound to the layer `{own}` and cannot use another; leave out `layer`",
                    self.name
                );
                Err(forbidden(detail).with("layer", &**own))
            }
            (Some(own), _) => Ok(Some(own.clone())),
            (None, requested) => Ok(requested.map(Into::into)),
        }
    }

    /// The runtime through the layer of the token, or else through the one that the request names.
    pub(crate) fn windlass<'a>(&self, app: &'a Shared, requested: Option<&str>) -> ApiResult<Cow<'a, Windlass>> {
        let Some(layer) = self.layer(requested)? else { return Ok(Cow::Borrowed(&app.windlass)) };
        app.windlass.in_layers(&Layers::from_iter([layer])).map(Cow::Owned).map_err(|missing| {
            let name = shortened(&missing.0);
            let detail = format!(
                "the layer `{name}` does not exist; add `[layer.{name}]` to the configuration, or use another layer"
            );
            Refusal::conflict("layer_not_found", detail)
        })
    }

    /// Refuses a run that the sender does not see, or that was not called through exactly the layer that the token is bound to. A layer above or below
    /// it could give access to other tools.
    pub(crate) async fn may_act_on(&self, app: &Shared, run: RunId) -> ApiResult<()> {
        if self.restriction().is_some() {
            self.run(app, run).await?;
        }
        let Some(own) = &self.layer else { return Ok(()) };
        if app.windlass.runtime().layers_of(run).await?.names() == [own.clone()] {
            return Ok(());
        }
        Err(self.bound_to(own, &format!("run {run} was not called through this layer alone")))
    }

    /// Refuses a request that affects the runs of all layers, if the token is bound to one.
    pub(crate) fn may_act_on_all(&self) -> ApiResult<()> {
        self.layer.as_ref().map_or(Ok(()), |own| Err(self.bound_to(own, "the request affects the runs of all layers")))
    }

    fn bound_to(&self, own: &str, why: &str) -> Refusal {
        let detail = format!("the token `{}` is bound to the layer `{own}`, but {why}; use another token", self.name);
        forbidden(detail).with("layer", own)
    }
}

fn forbidden(detail: String) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "forbidden", "Access denied", detail)
}

/// A sender with the scope `S`. A handler requires the scope by taking this as an argument.
pub(crate) struct Authorized<S> {
    pub(crate) identity: Identity,
    scope: PhantomData<fn() -> S>,
}

/// A scope as a type.
pub(crate) trait RequiredScope {
    const SCOPE: Scope;
}

macro_rules! scopes {
    ($($name:ident),*) => {$(
        pub(crate) struct $name;
        impl RequiredScope for $name {
            const SCOPE: Scope = Scope::$name;
        }
    )*};
}

scopes!(Read, Call, Approve, Admin);

/// The header that names another principal than the token's own.
pub(crate) const PRINCIPAL_HEADER: &str = "windlass-principal";

impl<S: RequiredScope> FromRequestParts<Shared> for Authorized<S> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Refusal> {
        let access = parts.extensions.get::<Access>().unwrap_or(&Access::Anonymous);
        if access.may(S::SCOPE) {
            return Ok(Self { identity: access.identity(&parts.headers)?, scope: PhantomData });
        }
        Err(missing_scope(access, S::SCOPE))
    }
}

/// A sender that may read runs: those of its principal with the scope `read`, those of its own calls with the scope
/// `call`.
pub(crate) struct RunReader {
    access: Access,
    identity: Identity,
}

impl FromRequestParts<Shared> for RunReader {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Refusal> {
        let access = parts.extensions.get::<Access>().cloned().unwrap_or(Access::Anonymous);
        if access.may(Scope::Read) || access.may(Scope::Call) {
            let identity = access.identity(&parts.headers)?;
            return Ok(Self { access, identity });
        }
        Err(missing_scope(&access, Scope::Read))
    }
}

impl RunReader {
    /// Refuses a run that the sender may not read. `run_access`: the permission that a 202 response gave it. Whether the
    /// run exists is not revealed.
    pub(crate) async fn may_read(&self, app: &Shared, run: RunId, run_access: Option<&str>) -> ApiResult<()> {
        match &self.access {
            access if access.may(Scope::Read) => self.identity.run(app, run).await.map(drop),
            Access::Token(bearer) => {
                if run_access.is_some_and(|given| app.tokens.allows_run(&bearer.id, run, given)) {
                    return Ok(());
                }
                let detail = format!(
                    "the token `{}` lacks the scope `read` and can read only the runs of its own calls; use the \
                     `Location` of the 202 response to the call, or a token with the scope `read`",
                    bearer.name
                );
                Err(forbidden(detail).with("scope", "read"))
            }
            access => Err(missing_scope(access, Scope::Read)),
        }
    }

    /// The sender.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether the sender needs a permission for each run.
    pub(crate) fn needs_access(&self) -> bool {
        !self.access.may(Scope::Read)
    }
}

/// How an operator gets a token. The second way needs none: the owner of the file may do everything with it.
const TO_CREATE: &str = "create one with `windlass token create` and a token that has the scope `admin`; without such a \
                         token, stop the server and create one on its file, then start the server again";

fn missing_scope(access: &Access, scope: Scope) -> Refusal {
    let scope = scope_name(scope);
    let unauthorized = |detail: String| {
        Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "Authentication required", detail)
            .header(header::WWW_AUTHENTICATE, "Bearer realm=\"windlass\"")
    };
    match access {
        Access::Token(bearer) => {
            let detail =
                format!("the token `{}` lacks the scope `{scope}`; use a token that has it ({TO_CREATE})", bearer.name);
            forbidden(detail).with("scope", scope)
        }
        Access::Invalid(why) => unauthorized(format!("{why}; use a token of this server ({TO_CREATE})")),
        Access::Anonymous | Access::Local => unauthorized(format!(
            "the request has no token, and needs one with the scope `{scope}`: send `Authorization: Bearer TOKEN` \
             ({TO_CREATE})"
        )),
    }
}

fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read",
        Scope::Call => "call",
        Scope::Approve => "approve",
        Scope::Impersonate => "impersonate",
        Scope::Admin => "admin",
    }
}
