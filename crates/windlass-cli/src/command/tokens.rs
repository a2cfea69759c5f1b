//! `windlass token`

use windlass_server::wire::{Scope, TokenCreated, TokenList, TokenRequest, TokenView};

use super::say;
use crate::api::{Api, ambiguous, escaped};
use crate::args::{ScopeName, TokenCommand};
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// Makes, lists and voids tokens.
pub(super) async fn run(command: TokenCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        TokenCommand::Create { name, scope, expires, layer } => {
            let scopes = scope.into_iter().map(scope_of).collect();
            let expires = expires.map(|span| {
                let micros = i64::try_from(span.0.as_micros()).unwrap_or(i64::MAX);
                windlass::Timestamp::from_micros(say::now().as_micros().saturating_add(micros)).into()
            });
            create(TokenRequest { name, scopes, expires, layer }, api, out).await
        }
        TokenCommand::List => list(api, out).await,
        TokenCommand::Revoke { which } => revoke(&which, api, out).await,
    }
}

fn scope_of(name: ScopeName) -> Scope {
    match name {
        ScopeName::Read => Scope::Read,
        ScopeName::Call => Scope::Call,
        ScopeName::Approve => Scope::Approve,
        ScopeName::Admin => Scope::Admin,
    }
}

async fn create(request: TokenRequest, api: &Api, out: &Out) -> Result<()> {
    let created: TokenCreated = api.post("/v1/tokens", &request, None).await?;
    if out.json {
        return out.document(&created);
    }
    out.line(&created.secret)?;
    out.aside("this is the only time it is shown; use it with --token or WINDLASS_TOKEN");
    Ok(())
}

async fn list(api: &Api, out: &Out) -> Result<()> {
    let list: TokenList = api.get("/v1/tokens").await?;
    if out.json {
        return out.document(&list);
    }
    if list.tokens.is_empty() {
        out.aside("no tokens: everybody on this machine may do everything, and nobody else anything");
        return Ok(());
    }
    let now = say::now();
    let heads = ["TOKEN", "NAME", "SCOPES", "LAYER", "CREATED", "EXPIRES"];
    let mut rows = vec![heads.map(|head| (Tint::Dim, head.to_owned())).into()];
    for token in &list.tokens {
        let scopes: Vec<String> = token.scopes.iter().map(|scope| format!("{scope:?}").to_lowercase()).collect();
        let (tint, expires) = match token.expires {
            None => (Tint::Dim, "never".to_owned()),
            Some(at) if at <= now => (Tint::Bad, format!("expired {}", say::ago(at, now))),
            Some(at) => (Tint::Plain, say::ago(at, now)),
        };
        rows.push(vec![
            (Tint::Bold, plain(&token.id)),
            (Tint::Plain, plain(&token.name)),
            (Tint::Plain, scopes.join(",")),
            (Tint::Plain, token.layer.as_deref().map(plain).unwrap_or_default()),
            (Tint::Dim, say::ago(token.created, now)),
            (tint, expires),
        ]);
    }
    out.lines(&table(&rows, &out.style))
}

/// The token of this name or id, or the only one whose name or id begins so. What is voided by mistake cannot be brought back, so a
/// name that is also the beginning of another token's id is not taken for either.
fn meant<'t>(tokens: &'t [TokenView], typed: &str) -> Result<&'t TokenView> {
    let fits = |how: &dyn Fn(&TokenView) -> bool| tokens.iter().filter(|token| how(token)).collect::<Vec<_>>();
    let mut found = fits(&|token| token.name == typed || token.id.starts_with(typed));
    if found.is_empty() {
        found = fits(&|token| token.name.starts_with(typed));
    }
    match found.as_slice() {
        [token] => Ok(token),
        [] => {
            let why = format!("there is no token `{}`; `windlass token list` shows them", plain(typed));
            Err(Failure::new(Exit::NotFound, why))
        }
        many => {
            let many: Vec<String> = many.iter().map(|token| format!("{}  {}", token.id, plain(&token.name))).collect();
            Err(ambiguous(typed, &many, "token"))
        }
    }
}

async fn revoke(typed: &str, api: &Api, out: &Out) -> Result<()> {
    let list: TokenList = api.get("/v1/tokens").await?;
    let TokenView { id, name, .. } = meant(&list.tokens, typed)?;
    api.delete(&format!("/v1/tokens/{}", escaped(id))).await?;
    if out.json {
        out.document(&serde_json::json!({ "id": id, "ok": true }))
    } else {
        out.line(&format!("{id}  {}  revoked", plain(name)))
    }
}
