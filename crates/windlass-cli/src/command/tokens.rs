//! `windlass token`

use windlass_server::wire::{Scope, TokenCreated, TokenList, TokenRequest, TokenView};

use super::text;
use crate::api::{Api, ambiguous, escaped};
use crate::args::{ScopeName, TokenCommand};
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// Executes a subcommand of `token`.
pub(super) async fn run(command: TokenCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        TokenCommand::Create { name, scope, expires, layer, principal } => {
            let scopes = scope.into_iter().map(scope_of).collect();
            let expires = expires.map(|duration| {
                let micros = i64::try_from(duration.0.as_micros()).unwrap_or(i64::MAX);
                windlass::Timestamp::from_micros(text::now().as_micros().saturating_add(micros)).into()
            });
            create(TokenRequest { name, scopes, expires, layer, principal }, api, out).await
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
        ScopeName::Impersonate => Scope::Impersonate,
        ScopeName::Admin => Scope::Admin,
    }
}

async fn create(request: TokenRequest, api: &Api, out: &Out) -> Result<()> {
    let created: TokenCreated = api.post("/v1/tokens", &request, None).await?;
    if out.json {
        return out.document(&created);
    }
    out.line(&created.secret)?;
    out.note("the secret is shown only now; use it with --token or WINDLASS_TOKEN");
    Ok(())
}

async fn list(api: &Api, out: &Out) -> Result<()> {
    let list: TokenList = api.get("/v1/tokens").await?;
    if out.json {
        return out.document(&list);
    }
    if list.tokens.is_empty() {
        out.note("no tokens: every user of this machine has full access, and other machines have none");
        return Ok(());
    }
    let now = text::now();
    let heads = ["TOKEN", "NAME", "PRINCIPAL", "SCOPES", "LAYER", "CREATED", "EXPIRES"];
    let mut rows = vec![heads.map(|head| (Tint::Dim, head.to_owned())).into()];
    for token in &list.tokens {
        let scopes: Vec<String> = token.scopes.iter().map(|scope| format!("{scope:?}").to_lowercase()).collect();
        let (tint, expires) = match token.expires {
            None => (Tint::Dim, "never".to_owned()),
            Some(at) if at <= now => (Tint::Bad, format!("expired {}", text::ago(at, now))),
            Some(at) => (Tint::Plain, text::ago(at, now)),
        };
        rows.push(vec![
            (Tint::Bold, plain(&token.id)),
            (Tint::Plain, plain(&token.name)),
            (Tint::Plain, plain(&token.principal)),
            (Tint::Plain, scopes.join(",")),
            (Tint::Plain, token.layer.as_deref().map(plain).unwrap_or_default()),
            (Tint::Dim, text::ago(token.created, now)),
            (tint, expires),
        ]);
    }
    out.lines(&table(&rows, &out.style))
}

/// The token with this name or id, or the only one whose name or id begins with it. Revoking cannot be undone, so a name
/// that is also a prefix of another token's id is refused as ambiguous.
fn find<'t>(tokens: &'t [TokenView], typed: &str) -> Result<&'t TokenView> {
    let matching = |how: &dyn Fn(&TokenView) -> bool| tokens.iter().filter(|token| how(token)).collect::<Vec<_>>();
    let mut found = matching(&|token| token.name == typed || token.id.starts_with(typed));
    if found.is_empty() {
        found = matching(&|token| token.name.starts_with(typed));
    }
    match found.as_slice() {
        [token] => Ok(token),
        [] => {
            let message = format!("there is no token `{}`; `windlass token list` lists the tokens", plain(typed));
            Err(Failure::new(Exit::NotFound, message))
        }
        many => {
            let many: Vec<String> = many.iter().map(|token| format!("{}  {}", token.id, plain(&token.name))).collect();
            Err(ambiguous(typed, &many, "token"))
        }
    }
}

async fn revoke(typed: &str, api: &Api, out: &Out) -> Result<()> {
    let list: TokenList = api.get("/v1/tokens").await?;
    let TokenView { id, name, .. } = find(&list.tokens, typed)?;
    api.delete(&format!("/v1/tokens/{}", escaped(id))).await?;
    if out.json {
        out.document(&serde_json::json!({ "id": id, "ok": true }))
    } else {
        out.line(&format!("{id}  {}  revoked", plain(name)))
    }
}
