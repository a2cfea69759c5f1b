//! Tokens, stored as hashes in a file beside the database that only its owner can read.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use windlass::RunId;

use super::Bearer;
use crate::refusal::{ApiResult, Refusal};
use crate::wire::{Scope, Time, TokenCreated, TokenRequest, TokenView};

/// Identifies a token of Windlass, for example to secret scanners.
const PREFIX: &str = "wlt1_";
/// Random bytes of a secret: too many to guess.
const SECRET_BYTES: usize = 32;
/// Bytes of an id. It is not secret: it only finds the hash.
const ID_BYTES: usize = 6;
/// Context in which the key of run permissions is derived from the secret.
const RUN_ACCESS_CONTEXT: &str = "windlass 2026-11 permission of a token to read a run";
/// Longest name, in characters.
const NAME_CHARS: usize = 64;
/// Most tokens. A client that creates more is probably in a loop.
const MAX_TOKENS: usize = 1_000;

/// The token file could not be loaded.
#[derive(Debug)]
pub struct TokensError {
    path: PathBuf,
    problem: String,
}

impl std::fmt::Display for TokensError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "could not load the token file {}: {}", self.path.display(), self.problem)
    }
}

impl std::error::Error for TokensError {}

pub(crate) struct Tokens {
    file: Option<PathBuf>,
    loaded: RwLock<FxHashMap<Arc<str>, LoadedToken>>,
    /// Whether `loaded` is empty, readable without the lock.
    empty: AtomicBool,
    /// Held while the file is changed.
    writing: Mutex<()>,
    /// Signs the permissions of tokens to read runs.
    run_secret: [u8; SECRET_BYTES],
}

#[derive(Clone)]
struct LoadedToken {
    bearer: Arc<Bearer>,
    stored: StoredToken,
    hash: blake3::Hash,
}

/// A token in the file.
#[derive(Clone, Serialize, Deserialize)]
struct StoredToken {
    id: String,
    name: String,
    scopes: Vec<Scope>,
    created: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<Time>,
    hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<String>,
    /// The name, if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    /// The `Idempotency-Key` of the request that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct TokenFile {
    windlass_tokens: u32,
    tokens: Vec<StoredToken>,
    /// See [`Tokens::run_access`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_secret: Option<String>,
}

/// The outcome of a request for a token.
pub(crate) enum CreateOutcome {
    New(TokenCreated),
    /// A request with the same key created it before, and got its secret then.
    Existing(TokenView),
}

impl Tokens {
    /// Reads the file, if it exists. Without a path, tokens are only kept in memory.
    pub(crate) fn load(file: Option<PathBuf>) -> Result<Self, TokensError> {
        let bad =
            |file: &Option<PathBuf>, problem: String| TokensError { path: file.clone().unwrap_or_default(), problem };
        let mut run_secret = [0; SECRET_BYTES];
        getrandom::fill(&mut run_secret).map_err(|error| bad(&file, error.to_string()))?;
        let mut loaded = Vec::new();
        match file.as_ref().map(fs::read_to_string) {
            None => {}
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Some(Err(error)) => return Err(bad(&file, error.to_string())),
            Some(Ok(text)) => {
                let advice = "restore the file, or move it away and create new tokens";
                let read: TokenFile =
                    serde_json::from_str(&text).map_err(|error| bad(&file, format!("{error}; {advice}")))?;
                let tokens = read.tokens.into_iter().map(|stored| load(stored).map_err(|problem| bad(&file, problem)));
                loaded = tokens.collect::<Result<Vec<_>, _>>()?;
                if let Some(text) = read.run_secret {
                    let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
                    run_secret = bytes.ok_or_else(|| bad(&file, format!("`run_secret` is not valid; {advice}")))?;
                }
            }
        }
        let tokens =
            Self { file, loaded: RwLock::default(), empty: true.into(), writing: Mutex::default(), run_secret };
        tokens.set(loaded);
        Ok(tokens)
    }

    /// The permission of a token to read a run. It is worthless to other tokens, and as long as the token is valid it
    /// survives a restart of the server.
    pub(crate) fn run_access(&self, token: &str, run: RunId) -> String {
        URL_SAFE_NO_PAD.encode(self.run_mac(token, run).as_bytes())
    }

    /// Whether a text is the permission of this token to read this run.
    pub(crate) fn allows_run(&self, token: &str, run: RunId, access: &str) -> bool {
        let given = URL_SAFE_NO_PAD.decode(access).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        // Compared in constant time.
        given.is_some_and(|given| blake3::Hash::from_bytes(given) == self.run_mac(token, run))
    }

    fn run_mac(&self, token: &str, run: RunId) -> blake3::Hash {
        let key = blake3::derive_key(RUN_ACCESS_CONTEXT, &self.run_secret);
        blake3::keyed_hash(&key, &[run.as_bytes(), token.as_bytes()].concat())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Acquire)
    }

    /// The bearer of a secret, or why the secret is not valid.
    pub(crate) fn bearer(&self, secret: &str) -> Result<Arc<Bearer>, &'static str> {
        let unknown = "the token is unknown";
        let rest = secret.strip_prefix(PREFIX).ok_or(unknown)?;
        let (id, _) = rest.split_once('_').ok_or(unknown)?;
        let loaded = self.loaded.read();
        let token = loaded.get(id).ok_or(unknown)?;
        // Compared in constant time; besides, a hash reveals nothing about its secret.
        if blake3::hash(secret.as_bytes()) != token.hash {
            return Err(unknown);
        }
        match token.stored.expires {
            Some(expires) if expires.as_micros() <= now().as_micros() => Err("the token has expired"),
            _ => Ok(token.bearer.clone()),
        }
    }

    pub(crate) fn list(&self) -> Vec<TokenView> {
        let mut views: Vec<TokenView> = self.loaded.read().values().map(|token| view(&token.stored)).collect();
        views.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        views
    }

    pub(crate) fn create(&self, request: TokenRequest, key: Option<&str>) -> ApiResult<CreateOutcome> {
        let name = request.name.trim().to_owned();
        if name.is_empty() || name.chars().count() > NAME_CHARS || name.chars().any(char::is_control) || name == "local"
        {
            let detail = format!("`name` must have 1 to {NAME_CHARS} visible characters and must not be `local`");
            return Err(Refusal::invalid(detail));
        }
        let mut scopes = request.scopes;
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(Refusal::invalid(
                "`scopes` is empty; use one or more of `read`, `call`, `approve`, `impersonate`, \
                                          `admin`",
            ));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if let Some(layer) = &request.layer
            && (layer.is_empty() || layer.len() > NAME_CHARS || !layer.chars().all(legal))
        {
            let detail = format!("`layer` must have 1 to {NAME_CHARS} of the characters a-z, A-Z, 0-9, `_`, `-`, `.`");
            return Err(Refusal::invalid(detail));
        }
        if request.layer.is_some() && scopes.contains(&Scope::Admin) {
            let detail =
                "a token with the scope `admin` has full access and cannot be bound to a layer; leave out one of them";
            return Err(Refusal::invalid(detail));
        }
        if let Some(principal) = &request.principal {
            windlass::run::check_attribution("principal", principal)?;
        }
        if request.expires.is_some_and(|expires| expires.as_micros() <= now().as_micros()) {
            return Err(Refusal::invalid("`expires` is in the past; use a time in the future, or leave it out"));
        }
        let _writing = self.writing.lock();
        let mut all = self.all();
        if let Some(before) = all.iter().find(|token| key.is_some() && token.stored.key.as_deref() == key) {
            return Ok(CreateOutcome::Existing(view(&before.stored)));
        }
        if all.iter().any(|token| token.stored.name == name) {
            let detail = format!("the token `{name}` already exists; revoke it first, or choose another name");
            return Err(Refusal::conflict("name_taken", detail));
        }
        if all.len() >= MAX_TOKENS {
            let detail = format!("{MAX_TOKENS} tokens exist, which is the limit; revoke some of them first");
            return Err(Refusal::conflict("limit_reached", detail));
        }
        if !scopes.contains(&Scope::Admin) && !all.iter().any(|token| token.stored.scopes.contains(&Scope::Admin)) {
            let detail = "the first token needs the scope `admin`, because from then on every request needs a token \
                          and no other token could be created";
            return Err(Refusal::conflict("admin_required", detail));
        }
        let (id, secret) = generate().map_err(failed)?;
        let stored = StoredToken {
            id,
            name,
            scopes,
            created: now(),
            expires: request.expires,
            layer: request.layer,
            principal: request.principal,
            hash: blake3::hash(secret.as_bytes()).to_hex().to_string(),
            key: key.map(str::to_owned),
        };
        let token = view(&stored);
        all.push(load(stored).map_err(|problem| failed(io::Error::other(problem)))?);
        self.save(&all).map_err(failed)?;
        self.set(all);
        Ok(CreateOutcome::New(TokenCreated { token, secret }))
    }

    pub(crate) fn revoke(&self, id: &str) -> ApiResult<()> {
        let _writing = self.writing.lock();
        let mut all = self.all();
        let before = all.len();
        all.retain(|token| token.stored.id != id);
        if all.len() == before {
            return Err(Refusal::not_found(format!("token `{id}` does not exist; /v1/tokens lists all tokens")));
        }
        if !all.is_empty() && !all.iter().any(|token| token.stored.scopes.contains(&Scope::Admin)) {
            let detail = format!(
                "token `{id}` is the last one with the scope `admin`, without which the other tokens could not be \
                 managed; create another first, or revoke the others first"
            );
            return Err(Refusal::conflict("admin_required", detail));
        }
        self.save(&all).map_err(failed)?;
        self.set(all);
        Ok(())
    }

    fn all(&self) -> Vec<LoadedToken> {
        self.loaded.read().values().cloned().collect()
    }

    fn set(&self, all: Vec<LoadedToken>) {
        let mut loaded = self.loaded.write();
        *loaded = all.into_iter().map(|token| (token.bearer.id.clone(), token)).collect();
        self.empty.store(loaded.is_empty(), Ordering::Release);
    }

    fn save(&self, all: &[LoadedToken]) -> io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let mut tokens: Vec<StoredToken> = all.iter().map(|token| token.stored.clone()).collect();
        tokens.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        let run_secret = Some(URL_SAFE_NO_PAD.encode(self.run_secret));
        let text = serde_json::to_vec_pretty(&TokenFile { windlass_tokens: 1, tokens, run_secret })?;
        replace(path, &text)
    }
}

fn load(stored: StoredToken) -> Result<LoadedToken, String> {
    let hash = blake3::Hash::from_hex(&stored.hash).map_err(|error| format!("token `{}`: {error}", stored.name))?;
    let bearer = Bearer {
        id: stored.id.as_str().into(),
        name: stored.name.as_str().into(),
        scopes: stored.scopes.clone(),
        layer: stored.layer.as_deref().map(Into::into),
        principal: stored.principal.as_deref().unwrap_or(&stored.name).into(),
    };
    Ok(LoadedToken { bearer: Arc::new(bearer), hash, stored })
}

fn view(stored: &StoredToken) -> TokenView {
    let StoredToken { id, name, scopes, created, expires, layer, principal, .. } = stored.clone();
    let principal = principal.unwrap_or_else(|| name.clone());
    TokenView { id, name, scopes, created, expires, layer, principal }
}

fn now() -> Time {
    Time::now()
}

fn failed(error: io::Error) -> Refusal {
    tracing::error!("could not write the token file: {error}");
    let detail = "the token file beside the database could not be written; the log of the server has the cause";
    Refusal::unavailable("tokens_unavailable", "Token file not writable", detail)
}

/// A new id, and a secret that contains it.
fn generate() -> io::Result<(String, String)> {
    let mut bytes = [0u8; ID_BYTES + SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let (id, secret) = bytes.split_at(ID_BYTES);
    // Hexadecimal, so the id does not contain the separator `_`.
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let secret = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
    Ok((id, secret))
}

/// Replaces a file atomically: concurrent readers, and readers after a crash, find the old or the new content. Only the
/// owner can read it.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&beside).and_then(|mut file| {
        // The mode above does not apply to a temporary file that an earlier process left.
        #[cfg(unix)]
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        file.write_all(text)?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| fs::rename(&beside, path));
    if replaced.is_err() {
        drop(fs::remove_file(&beside));
    }
    replaced?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, scopes: &[Scope]) -> TokenRequest {
        TokenRequest { name: name.to_owned(), scopes: scopes.to_vec(), expires: None, layer: None, principal: None }
    }

    fn create(tokens: &Tokens, name: &str, scopes: &[Scope]) -> TokenCreated {
        match tokens.create(request(name, scopes), None) {
            Ok(CreateOutcome::New(created)) => created,
            Ok(CreateOutcome::Existing(_)) => panic!("it exists"),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }

    #[test]
    fn l23_tokens_are_stored_as_hashes_in_a_file_only_the_owner_reads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db-tokens");
        let tokens = Tokens::load(Some(path.clone())).unwrap();
        assert!(tokens.is_empty());
        let refused = tokens.create(request("ci", &[Scope::Read]), None).err().unwrap();
        assert_eq!(refused.name(), "admin_required");
        let ada = create(&tokens, "ada", &[Scope::Admin, Scope::Read, Scope::Read]);
        let bot = create(&tokens, "bot", &[Scope::Call]);
        assert_eq!(tokens.create(request("bot", &[Scope::Call]), None).err().unwrap().name(), "name_taken");
        assert_eq!(tokens.create(request("local", &[Scope::Call]), None).err().unwrap().name(), "invalid_request");

        let text = fs::read_to_string(&path).unwrap();
        // The secret part may contain underscores.
        let secret = ada.secret.strip_prefix(&format!("wlt1_{}_", ada.token.id)).unwrap();
        assert!(!text.contains(secret), "{text}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");

        let again = Tokens::load(Some(path.clone())).unwrap();
        assert_eq!(&*again.bearer(&ada.secret).unwrap().name, "ada");
        assert_eq!(again.bearer(&bot.secret).unwrap().scopes, [Scope::Call]);
        let other = if secret.starts_with('A') { 'B' } else { 'A' };
        let forged = format!("wlt1_{}_{other}{}", ada.token.id, &secret[1..]);
        let mixed = ada.secret.replace(&ada.token.id, &bot.token.id);
        for invalid in [forged.as_str(), &mixed, "", "wlt1_", "wlt1__", &ada.token.id, "Bearer"] {
            assert!(again.bearer(invalid).is_err(), "{invalid}");
        }
        assert_eq!(again.revoke(&ada.token.id).unwrap_err().name(), "admin_required");
        again.revoke(&bot.token.id).unwrap();
        assert!(again.bearer(&bot.secret).is_err());
        assert_eq!(again.revoke(&bot.token.id).unwrap_err().name(), "not_found");
        again.revoke(&ada.token.id).unwrap();
        assert!(Tokens::load(Some(path.clone())).unwrap().is_empty());

        fs::write(&path, "{").unwrap();
        let error = Tokens::load(Some(path)).err().unwrap().to_string();
        assert!(error.contains("app.db-tokens") && error.contains("create new tokens"), "{error}");
    }

    #[test]
    fn l23_a_token_expires_and_is_created_once_under_a_key() {
        let tokens = Tokens::load(None).unwrap();
        let soon = Time::from(now().timestamp() + std::time::Duration::from_millis(40));
        let expiring = TokenRequest { expires: Some(soon), ..request("short", &[Scope::Admin]) };
        let Ok(CreateOutcome::New(short)) = tokens.create(expiring.clone(), Some("k")) else { panic!("it is new") };
        assert!(matches!(tokens.create(expiring, Some("k")), Ok(CreateOutcome::Existing(view)) if view == short.token));
        assert!(tokens.bearer(&short.secret).is_ok());
        while now() < soon {
            std::thread::yield_now();
        }
        assert_eq!(tokens.bearer(&short.secret), Err("the token has expired"));
        assert!(!tokens.is_empty(), "with only an expired token, requests still need one");
        let past = TokenRequest { expires: Some(soon), ..request("late", &[Scope::Admin]) };
        assert!(tokens.create(past, None).is_err());
    }
}
