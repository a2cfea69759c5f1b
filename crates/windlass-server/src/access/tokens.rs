//! Tokens: kept as hashes, in a file beside the database that only its owner can read.

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

use super::Bearer;
use crate::refusal::{Answer, Refusal};
use crate::wire::{Scope, Time, TokenCreated, TokenRequest, TokenView};

/// Says what it is.
const PREFIX: &str = "wlt1_";
/// Bytes of a secret: beyond guessing.
const SECRET: usize = 32;
/// Bytes of an id: it is no secret, and only finds the hash.
const ID: usize = 6;
/// Longest name.
const NAME: usize = 64;
/// Most tokens; more than this is a loop gone wrong.
const MOST: usize = 1_000;

/// Why tokens cannot be had.
#[derive(Debug)]
pub struct TokensError {
    path: PathBuf,
    problem: String,
}

impl std::fmt::Display for TokensError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the tokens in {} cannot be used: {}", self.path.display(), self.problem)
    }
}

impl std::error::Error for TokensError {}

/// Every token.
pub(crate) struct Tokens {
    file: Option<PathBuf>,
    known: RwLock<FxHashMap<Arc<str>, Known>>,
    /// The same as whether nothing is known, for requests that need not look further.
    empty: AtomicBool,
    /// Held by whoever changes the file.
    writing: Mutex<()>,
}

#[derive(Clone)]
struct Known {
    bearer: Arc<Bearer>,
    kept: Kept,
    hash: blake3::Hash,
}

/// A token as the file has it.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    id: String,
    name: String,
    scopes: Vec<Scope>,
    created: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<Time>,
    hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<String>,
    /// The key it was asked for with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct File {
    windlass_tokens: u32,
    tokens: Vec<Kept>,
}

/// What became of a request for a token.
pub(crate) enum Made {
    New(TokenCreated),
    /// It was made under the same key, and its secret was shown then.
    Before(TokenView),
}

impl Tokens {
    /// Reads the file, if there is one; without a path tokens are kept in memory.
    pub(crate) fn load(file: Option<PathBuf>) -> Result<Self, TokensError> {
        let tokens = Self { file, known: RwLock::default(), empty: true.into(), writing: Mutex::default() };
        if let Some(path) = &tokens.file {
            let bad = |problem: String| TokensError { path: path.clone(), problem };
            match fs::read_to_string(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(bad(error.to_string())),
                Ok(text) => {
                    let read: File = serde_json::from_str(&text)
                        .map_err(|error| bad(format!("{error}; restore it, or move it away and make new tokens")))?;
                    let known = read.tokens.into_iter().map(|kept| known(kept).map_err(&bad));
                    let known = known.collect::<Result<Vec<_>, _>>()?;
                    tokens.set(known);
                }
            }
        }
        Ok(tokens)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Acquire)
    }

    /// Who bears this secret.
    pub(crate) fn bearer(&self, secret: &str) -> Result<Arc<Bearer>, &'static str> {
        let unknown = "the token is not known here";
        let rest = secret.strip_prefix(PREFIX).ok_or(unknown)?;
        let (id, _) = rest.split_once('_').ok_or(unknown)?;
        let known = self.known.read();
        let known = known.get(id).ok_or(unknown)?;
        // Compared in constant time, and hashes tell nothing about secrets anyway.
        if blake3::hash(secret.as_bytes()) != known.hash {
            return Err(unknown);
        }
        match known.kept.expires {
            Some(expires) if expires.as_micros() <= now().as_micros() => Err("the token has expired"),
            _ => Ok(known.bearer.clone()),
        }
    }

    pub(crate) fn list(&self) -> Vec<TokenView> {
        let mut views: Vec<TokenView> = self.known.read().values().map(|known| view(&known.kept)).collect();
        views.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        views
    }

    pub(crate) fn create(&self, request: TokenRequest, key: Option<&str>) -> Answer<Made> {
        let name = request.name.trim().to_owned();
        if name.is_empty() || name.chars().count() > NAME || name.chars().any(char::is_control) || name == "local" {
            let why = format!("the name of a token has 1 to {NAME} visible characters, and `local` is taken");
            return Err(Refusal::invalid(why));
        }
        let mut scopes = request.scopes;
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(Refusal::invalid("a token without scopes would allow nothing: read, call, approve, admin"));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if let Some(layer) = &request.layer
            && (layer.is_empty() || layer.len() > NAME || !layer.chars().all(legal))
        {
            let why = format!("`layer` has 1 to {NAME} of the characters a-z, A-Z, 0-9, `_`, `-`, `.`");
            return Err(Refusal::invalid(why));
        }
        if request.layer.is_some() && scopes.contains(&Scope::Admin) {
            let why =
                "a token with the scope `admin` may do everything and is bound to no layer; leave one of them out";
            return Err(Refusal::invalid(why));
        }
        if request.expires.is_some_and(|expires| expires.as_micros() <= now().as_micros()) {
            return Err(Refusal::invalid("`expires` is in the past; such a token would allow nothing"));
        }
        let _writing = self.writing.lock();
        let mut all = self.all();
        if let Some(before) = all.iter().find(|known| key.is_some() && known.kept.key.as_deref() == key) {
            return Ok(Made::Before(view(&before.kept)));
        }
        if all.iter().any(|known| known.kept.name == name) {
            let why = format!("there is a token `{name}` already; revoke it first, or choose another name");
            return Err(Refusal::conflict("name_taken", why));
        }
        if all.len() >= MOST {
            return Err(Refusal::conflict("too_many", format!("there are {MOST} tokens already; revoke some")));
        }
        if !scopes.contains(&Scope::Admin) && !all.iter().any(|known| known.kept.scopes.contains(&Scope::Admin)) {
            let why = "the first token needs the scope `admin`: from then on every request needs a token, and nobody could \
                       make another";
            return Err(Refusal::conflict("no_admin", why));
        }
        let (id, secret) = mint().map_err(failed)?;
        let kept = Kept {
            id,
            name,
            scopes,
            created: now(),
            expires: request.expires,
            layer: request.layer,
            hash: blake3::hash(secret.as_bytes()).to_hex().to_string(),
            key: key.map(str::to_owned),
        };
        let token = view(&kept);
        all.push(known(kept).map_err(|problem| failed(io::Error::other(problem)))?);
        self.save(&all).map_err(failed)?;
        self.set(all);
        Ok(Made::New(TokenCreated { token, secret }))
    }

    pub(crate) fn revoke(&self, id: &str) -> Answer<()> {
        let _writing = self.writing.lock();
        let mut all = self.all();
        let before = all.len();
        all.retain(|known| known.kept.id != id);
        if all.len() == before {
            return Err(Refusal::not_found(format!("there is no token `{id}`; /v1/tokens lists them")));
        }
        if !all.is_empty() && !all.iter().any(|known| known.kept.scopes.contains(&Scope::Admin)) {
            let why = "it is the last one with the scope `admin`, and without it nobody could look after the others; make \
                       another first, or revoke the others first";
            return Err(Refusal::conflict("no_admin", why));
        }
        self.save(&all).map_err(failed)?;
        self.set(all);
        Ok(())
    }

    fn all(&self) -> Vec<Known> {
        self.known.read().values().cloned().collect()
    }

    fn set(&self, all: Vec<Known>) {
        let mut known = self.known.write();
        *known = all.into_iter().map(|known| (known.bearer.id.clone(), known)).collect();
        self.empty.store(known.is_empty(), Ordering::Release);
    }

    fn save(&self, all: &[Known]) -> io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let mut tokens: Vec<Kept> = all.iter().map(|known| known.kept.clone()).collect();
        tokens.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        let text = serde_json::to_vec_pretty(&File { windlass_tokens: 1, tokens })?;
        replace(path, &text)
    }
}

fn known(kept: Kept) -> Result<Known, String> {
    let hash = blake3::Hash::from_hex(&kept.hash).map_err(|error| format!("token `{}`: {error}", kept.name))?;
    let bearer = Bearer {
        id: kept.id.as_str().into(),
        name: kept.name.as_str().into(),
        scopes: kept.scopes.clone(),
        layer: kept.layer.as_deref().map(Into::into),
    };
    Ok(Known { bearer: Arc::new(bearer), hash, kept })
}

fn view(kept: &Kept) -> TokenView {
    let Kept { id, name, scopes, created, expires, layer, .. } = kept.clone();
    TokenView { id, name, scopes, created, expires, layer }
}

fn now() -> Time {
    Time::now()
}

fn failed(error: io::Error) -> Refusal {
    tracing::error!("tokens cannot be kept: {error}");
    Refusal::unavailable("tokens_unavailable", "the file of tokens beside the database cannot be written; see the log")
}

/// An id and a secret that begins with it.
fn mint() -> io::Result<(String, String)> {
    let mut bytes = [0u8; ID + SECRET];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let (id, secret) = bytes.split_at(ID);
    // Without the separator of the two.
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let secret = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
    Ok((id, secret))
}

/// Replaces a file as a whole, readable by its owner alone: whoever reads it meanwhile, or after a crash, finds the old or
/// the new one.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&beside).and_then(|mut file| {
        // A file that was left from before keeps the mode it had.
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
        TokenRequest { name: name.to_owned(), scopes: scopes.to_vec(), expires: None, layer: None }
    }

    fn made(tokens: &Tokens, name: &str, scopes: &[Scope]) -> TokenCreated {
        match tokens.create(request(name, scopes), None) {
            Ok(Made::New(made)) => made,
            Ok(Made::Before(_)) => panic!("it was made before"),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }

    #[test]
    fn l23_tokens_are_kept_as_hashes_in_a_file_of_their_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db-tokens");
        let tokens = Tokens::load(Some(path.clone())).unwrap();
        assert!(tokens.is_empty());
        let refused = tokens.create(request("ci", &[Scope::Read]), None).err().unwrap();
        assert_eq!(refused.name(), "no_admin");
        let ada = made(&tokens, "ada", &[Scope::Admin, Scope::Read, Scope::Read]);
        let bot = made(&tokens, "bot", &[Scope::Call]);
        assert_eq!(tokens.create(request("bot", &[Scope::Call]), None).err().unwrap().name(), "name_taken");
        assert_eq!(tokens.create(request("local", &[Scope::Call]), None).err().unwrap().name(), "invalid_request");

        let text = fs::read_to_string(&path).unwrap();
        // What is secret may have underscores of its own.
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
        for void in [forged.as_str(), &mixed, "", "wlt1_", "wlt1__", &ada.token.id, "Bearer"] {
            assert!(again.bearer(void).is_err(), "{void}");
        }
        assert_eq!(again.revoke(&ada.token.id).unwrap_err().name(), "no_admin");
        again.revoke(&bot.token.id).unwrap();
        assert!(again.bearer(&bot.secret).is_err());
        assert_eq!(again.revoke(&bot.token.id).unwrap_err().name(), "not_found");
        again.revoke(&ada.token.id).unwrap();
        assert!(Tokens::load(Some(path.clone())).unwrap().is_empty());

        fs::write(&path, "{").unwrap();
        let error = Tokens::load(Some(path)).err().unwrap().to_string();
        assert!(error.contains("app.db-tokens") && error.contains("make new tokens"), "{error}");
    }

    #[test]
    fn l23_a_token_ends_when_it_expires_and_is_made_once_under_a_key() {
        let tokens = Tokens::load(None).unwrap();
        let soon = Time::from(now().timestamp() + std::time::Duration::from_millis(40));
        let expiring = TokenRequest { expires: Some(soon), ..request("short", &[Scope::Admin]) };
        let Ok(Made::New(short)) = tokens.create(expiring.clone(), Some("k")) else { panic!("it is new") };
        assert!(matches!(tokens.create(expiring, Some("k")), Ok(Made::Before(view)) if view == short.token));
        assert!(tokens.bearer(&short.secret).is_ok());
        while now() < soon {
            std::thread::yield_now();
        }
        assert_eq!(tokens.bearer(&short.secret), Err("the token has expired"));
        assert!(!tokens.is_empty(), "an expired token opens nothing");
        let past = TokenRequest { expires: Some(soon), ..request("late", &[Scope::Admin]) };
        assert!(tokens.create(past, None).is_err());
    }
}
