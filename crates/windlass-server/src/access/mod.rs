//! Who asks, and what they may do.

mod tokens;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use windlass::{Layers, RunId, Windlass};

pub use tokens::TokensError;
pub(crate) use tokens::{Made, Tokens};

use crate::app::Shared;
use crate::extract::shortened;
use crate::refusal::{Answer, Refusal};
use crate::wire::Scope;

/// Who asks where nobody says so.
static LOCAL: LazyLock<Arc<str>> = LazyLock::new(|| "local".into());

/// Who asks, as the guard found out.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Somebody at this machine, where no tokens are needed: may do everything.
    Local,
    /// The bearer of a token.
    Token(Arc<Bearer>),
    /// Somebody without a token.
    Nobody,
    /// Somebody with a token that is none, or none any more.
    Void(&'static str),
}

/// The bearer of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) id: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) scopes: Vec<Scope>,
    /// What it sees and calls tools through, if not all of them.
    pub(crate) layer: Option<Arc<str>>,
}

impl Access {
    /// Looks at a request's `Authorization`.
    pub(crate) fn of(app: &Shared, headers: &HeaderMap) -> Self {
        if app.options.trusted || app.is_open() {
            return Self::Local;
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Self::Nobody };
        let bearer = value.to_str().ok().and_then(|value| {
            let (scheme, secret) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
        });
        match bearer {
            Some(secret) => app.tokens.bearer(secret).map_or_else(Self::Void, Self::Token),
            None => Self::Void("`Authorization` is not of the form `Bearer TOKEN`"),
        }
    }

    fn may(&self, scope: Scope) -> bool {
        match self {
            Self::Local => true,
            Self::Token(bearer) => bearer.scopes.contains(&scope),
            Self::Nobody | Self::Void(_) => false,
        }
    }

    fn who(&self) -> Who {
        match self {
            Self::Token(bearer) => Who {
                name: bearer.name.clone(),
                approves: bearer.scopes.contains(&Scope::Approve),
                layer: bearer.layer.clone(),
            },
            _ => Who { name: LOCAL.clone(), approves: true, layer: None },
        }
    }
}

impl crate::app::App {
    /// Whether everybody who reaches this server is its owner: it listens to its own machine only, and has no tokens.
    fn is_open(&self) -> bool {
        self.hosts.bound.is_none_or(|bound| bound.ip().is_loopback()) && self.tokens.is_empty()
    }
}

/// Who does something, as the journal names them.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) name: Arc<str>,
    /// Whether they may approve and answer.
    pub(crate) approves: bool,
    /// The layer that a token is bound to.
    layer: Option<Arc<str>>,
}

impl Who {
    /// The same for calls under a key, and the layers that they name themselves. What was called before through a layer that
    /// is not there any more is found by its key all the same.
    pub(crate) async fn caller<'a>(
        &self,
        app: &'a Shared,
        asked: Option<&str>,
        key: Option<&str>,
    ) -> Answer<(Cow<'a, Windlass>, Option<Arc<str>>)> {
        let refusal = match self.windlass(app, asked) {
            Ok(windlass) => return Ok((windlass, None)),
            Err(refusal) => refusal,
        };
        match (self.layer(asked)?, key) {
            (Some(layer), Some(key)) if app.windlass.keyed(key).await?.is_some() => {
                Ok((Cow::Borrowed(&app.windlass), Some(layer)))
            }
            _ => Err(refusal),
        }
    }

    /// The layer of its token, or the one that its request names.
    fn layer(&self, asked: Option<&str>) -> Answer<Option<Arc<str>>> {
        match (&self.layer, asked) {
            (Some(own), Some(other)) if **own != *other => {
                let detail = format!(
                    "the token `{}` is bound to the layer `{own}` and can use no other; leave out `layer`",
                    self.name
                );
                Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail).with("layer", &**own))
            }
            (Some(own), _) => Ok(Some(own.clone())),
            (None, asked) => Ok(asked.map(Into::into)),
        }
    }

    /// The runtime as this client may use it: through the layer of its token, or through the one that its request names.
    pub(crate) fn windlass<'a>(&self, app: &'a Shared, asked: Option<&str>) -> Answer<Cow<'a, Windlass>> {
        let Some(layer) = self.layer(asked)? else { return Ok(Cow::Borrowed(&app.windlass)) };
        app.windlass.in_layers(&Layers::from_iter([layer])).map(Cow::Owned).map_err(|missing| {
            let why = format!("{missing} here; add `[layer.{}]` to the config, or use another", shortened(&missing.0));
            Refusal::conflict("no_layer", why)
        })
    }

    /// Refuses to act on a run outside of the layer that a token is bound to. A layer above or below the token's own may show
    /// more than the token does, so the run has exactly that layer.
    pub(crate) async fn may_act_on(&self, app: &Shared, run: RunId) -> Answer<()> {
        let Some(own) = &self.layer else { return Ok(()) };
        if app.windlass.layers_of(run).await?.names() == [own.clone()] {
            return Ok(());
        }
        Err(self.bound(own, &format!("run {run} was not called through it alone")))
    }

    /// Refuses what concerns the runs of all layers to a token that is bound to one.
    pub(crate) fn may_act_on_all(&self) -> Answer<()> {
        self.layer.as_ref().map_or(Ok(()), |own| Err(self.bound(own, "this concerns the runs of all layers")))
    }

    fn bound(&self, own: &str, why: &str) -> Refusal {
        let detail = format!("the token `{}` is bound to the layer `{own}`, and {why}; use another token", self.name);
        Refusal::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail).with("layer", own)
    }
}

/// Somebody who may do what a handler does; taking it as an argument is asking for it.
pub(crate) struct May<S> {
    pub(crate) who: Who,
    scope: PhantomData<fn() -> S>,
}

/// A scope as a type.
pub(crate) trait Needs {
    const SCOPE: Scope;
}

macro_rules! scopes {
    ($($name:ident),*) => {$(
        pub(crate) struct $name;
        impl Needs for $name {
            const SCOPE: Scope = Scope::$name;
        }
    )*};
}

scopes!(Read, Call, Approve, Admin);

impl<S: Needs> FromRequestParts<Shared> for May<S> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Refusal> {
        let access = parts.extensions.get::<Access>().unwrap_or(&Access::Nobody);
        if access.may(S::SCOPE) {
            return Ok(Self { who: access.who(), scope: PhantomData });
        }
        Err(refused(access, S::SCOPE))
    }
}

fn refused(access: &Access, scope: Scope) -> Refusal {
    let word = scope_word(scope);
    let unauthorized = |detail: String| {
        Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "Who are you?", detail)
            .header(header::WWW_AUTHENTICATE, "Bearer realm=\"windlass\"")
    };
    match access {
        Access::Token(bearer) => {
            let detail = format!(
                "the token `{}` lacks the scope `{word}`; use one that has it, or have one made (`windlass token create`)",
                bearer.name
            );
            Refusal::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail).with("scope", word)
        }
        Access::Void(why) => unauthorized(format!("{why}; use a token of this server")),
        Access::Nobody | Access::Local => unauthorized(format!(
            "this needs a token with the scope `{word}`: send `Authorization: Bearer TOKEN`; `windlass token create` makes \
             one"
        )),
    }
}

pub(crate) fn scope_word(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read",
        Scope::Call => "call",
        Scope::Approve => "approve",
        Scope::Admin => "admin",
    }
}
