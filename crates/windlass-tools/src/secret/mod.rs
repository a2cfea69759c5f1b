//! Secrets: named where they are used, stored elsewhere, read when they are needed.
//!
//! A configuration says where a secret is stored (`env:STRIPE_KEY`, `file:/run/secrets/stripe`, `session:stripe`,
//! `connection:stripe`), never its value. It is read again for every call, so replacing it needs no restart. Its value is
//! in no error, log or record. Only the configuration says what is stored in a session, so that a session can replace no
//! secret of the configuration.

mod redact;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use windlass::{Call, ToolResult};

pub use redact::Redactor;
pub(crate) use text::Piece;
pub use text::{BadText, Text};

/// Longest secret that is read: keys and certificates are far smaller, and a wrong path should not be read as a whole.
const LONGEST: u64 = 64 * 1024;

/// The value of a secret. It is neither printed nor compared by accident: only [`expose`](Secret::expose) returns it.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(value: &str) -> Self {
        Self(value.into())
    }

    /// The value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Where a secret is stored: `env:NAME`, `file:PATH`, `session:NAME` or `connection:PROVIDER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A variable of this process's environment.
    Env(String),
    /// A file. A line break at its end is not part of the secret.
    File(PathBuf),
    /// A secret of the session that the call belongs to.
    Session(String),
    /// The credential of the principal that the call acts for.
    Connection(String),
}

/// A secret that cannot be read, or a reference that is invalid. Never contains the value.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct SecretError(String);

impl std::str::FromStr for Reference {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let usable = |rest: &&str| !rest.is_empty() && !rest.contains(['=', '\0']);
        // An invalid reference may be the secret itself, so the message does not repeat it.
        let bad = || {
            let ways = "`env:NAME`, `file:PATH`, `session:NAME` or `connection:PROVIDER`";
            SecretError(format!("a secret is given as {ways}, not by its value"))
        };
        match text.split_once(':').ok_or_else(bad)? {
            ("env", name) if usable(&name) => Ok(Self::Env(name.to_owned())),
            ("file", path) if !path.is_empty() => Ok(Self::File(path.into())),
            ("session", name) if !name.is_empty() => Ok(Self::Session(name.to_owned())),
            ("connection", provider) if !provider.is_empty() => Ok(Self::Connection(provider.to_owned())),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Session(name) => write!(f, "session:{name}"),
            Self::Connection(provider) => write!(f, "connection:{provider}"),
        }
    }
}

impl Reference {
    /// Whether only a call can read it.
    pub fn is_of_call(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Connection(_))
    }

    /// Reads the value for a call. The inner error is for the caller of the tool.
    async fn read_for(&self, call: &Call) -> ToolResult<Result<Secret, SecretError>> {
        match self {
            Self::Session(name) => {
                let Some(session) = call.session() else {
                    return Ok(Err(SecretError(format!("{self}: the call belongs to no session; make it in one"))));
                };
                let missing = || {
                    let session = session.name();
                    let way = format!("set it with `windlass sessions secrets set {session} {name}`");
                    SecretError(format!("{self}: session {session:?} has no such secret; {way}"))
                };
                Ok(session.secret(name).await?.map(|value| Secret::new(&value)).ok_or_else(missing))
            }
            Self::Connection(provider) => Ok(Ok(Secret::new(call.connection(provider).await?.expose()))),
            _ => Ok(self.read()),
        }
    }

    /// Reads the current value.
    pub fn read(&self) -> Result<Secret, SecretError> {
        let value = match self {
            Self::Env(name) => match std::env::var(name) {
                Ok(value) => value,
                Err(std::env::VarError::NotPresent) => {
                    return Err(SecretError(format!("{self}: the variable is not set; set it for this process")));
                }
                Err(_) => return Err(SecretError(format!("{self}: the variable is not UTF-8"))),
            },
            Self::File(path) => {
                let text = read_file(path).map_err(|problem| SecretError(format!("{self}: {problem}")))?;
                text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text)).unwrap_or(&text).to_owned()
            }
            Self::Session(_) | Self::Connection(_) => {
                return Err(SecretError(format!("{self}: only a call can read it")));
            }
        };
        if value.is_empty() {
            return Err(SecretError(format!("{self}: the secret is empty")));
        }
        Ok(Secret::new(&value))
    }

    /// A warning if other users may read the file.
    pub fn warning(&self) -> Option<String> {
        let Self::File(path) = self else { return None };
        let mode = mode_of(&std::fs::metadata(path).ok()?)?;
        (mode & 0o077 != 0).then(|| {
            format!("{self} can be read by other users (mode {:03o}); run `chmod 600 {}`", mode & 0o777, path.display())
        })
    }
}

fn read_file(path: &std::path::Path) -> Result<String, String> {
    use std::io::Read;

    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LONGEST {
        return Err(format!("the file has more than {LONGEST} bytes, too many for a secret"));
    }
    String::from_utf8(bytes).map_err(|_| "the file is not UTF-8; store the secret as Base64".to_owned())
}

#[cfg(unix)]
fn mode_of(metadata: &std::fs::Metadata) -> Option<u32> {
    Some(std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()))
}

#[cfg(not(unix))]
fn mode_of(_: &std::fs::Metadata) -> Option<u32> {
    None
}

/// The secrets of a configuration: their names, and where they are stored. Clones share the table.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<BTreeMap<String, Reference>>, OfCall);

/// The secrets of a session or a connection that were read for one call.
type OfCall = Option<Arc<BTreeMap<String, Result<Secret, SecretError>>>>;

impl Secrets {
    /// A table of names and references.
    pub fn new(table: impl IntoIterator<Item = (String, Reference)>) -> Self {
        Self(Arc::new(table.into_iter().collect()), None)
    }

    /// The table with those of the named secrets that are stored in the session of a call or in a connection. A missing
    /// connection is the error with which the call waits for it.
    pub(crate) async fn for_call<'n>(&self, names: impl Iterator<Item = &'n str>, call: &Call) -> ToolResult<Self> {
        let mut read = BTreeMap::new();
        for name in names {
            if let Some(reference) = self.0.get(name).filter(|reference| reference.is_of_call()) {
                read.insert(name.to_owned(), reference.read_for(call).await?);
            }
        }
        Ok(Self(self.0.clone(), (!read.is_empty()).then(|| Arc::new(read))))
    }

    /// Names and references, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Reference)> {
        self.0.iter().map(|(name, reference)| (name.as_str(), reference))
    }

    /// Whether there is a secret with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Reads the current value of a secret.
    pub fn resolve(&self, name: &str) -> Result<Secret, SecretError> {
        let names = || self.0.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let reference = self.0.get(name).ok_or_else(|| match self.0.is_empty() {
            true => SecretError(format!("there is no secret `{name}`: none are configured")),
            false => SecretError(format!("there is no secret `{name}`; configured are {}", names())),
        })?;
        let read = self.1.as_ref().and_then(|read| read.get(name)).cloned().unwrap_or_else(|| reference.read());
        read.map_err(|SecretError(problem)| SecretError(format!("secret `{name}`: {problem}")))
    }

    /// A redactor for every secret that can be read now.
    pub fn redactor(&self) -> Redactor {
        let mut redactor = Redactor::default();
        for (name, reference) in self.iter() {
            if let Ok(secret) = reference.read() {
                redactor.add(name, secret.expose());
            }
        }
        redactor
    }

    /// The text with every value, also in its encoded forms, replaced by `[secret NAME]`. Reads the secrets: for many
    /// texts create one [`redactor`](Secrets::redactor).
    pub fn redact(&self, text: &str) -> String {
        self.redactor().redact(text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir, name: &str, text: &[u8]) -> Reference {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Reference::File(path)
    }

    #[test]
    fn e26_a_secret_is_read_for_every_use() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::new([("stripe".to_owned(), file(&dir, "key", b"first\r\n"))]);
        assert_eq!(secrets.resolve("stripe").unwrap().expose(), "first");
        file(&dir, "key", b"second");
        assert_eq!(secrets.resolve("stripe").unwrap().expose(), "second", "replacing it needs no restart");
    }

    #[test]
    fn e26_an_error_names_the_reference_and_never_the_value() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Reference::File(dir.path().to_path_buf());
        let large = file(&dir, "large", &[b'x'; 70_000]);
        let cases = [
            ("env:WINDLASS_NOT_SET_ANYWHERE".parse().unwrap(), "the variable is not set"),
            (Reference::File(dir.path().join("none")), "No such file"),
            (directory, "not a regular file"),
            (large, "too many for a secret"),
            (file(&dir, "empty", b"\n"), "the secret is empty"),
            (file(&dir, "bytes", b"\xff\xfe"), "not UTF-8"),
        ];
        for (reference, expected) in cases {
            let named = reference.to_string();
            let error = Secrets::new([("key".to_owned(), reference)]).resolve("key").unwrap_err().to_string();
            assert!(error.starts_with(&format!("secret `key`: {named}: ")) && error.contains(expected), "{error}");
        }
        let secrets = Secrets::new([("a".to_owned(), Reference::Env("A".to_owned()))]);
        assert_eq!(secrets.resolve("b").unwrap_err().to_string(), "there is no secret `b`; configured are `a`");
        for wrong in ["sk_live_123", "session:", "connection:", "env:", "env:A=B", "file:", "vault:x", ""] {
            let error = wrong.parse::<Reference>().unwrap_err().to_string();
            let ways = "`env:NAME`, `file:PATH`, `session:NAME` or `connection:PROVIDER`";
            assert_eq!(error, format!("a secret is given as {ways}, not by its value"), "{wrong}");
        }
    }

    #[test]
    fn e26_a_secret_does_not_print_itself() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "[secret] [secret] Some([secret])");
    }

    #[cfg(unix)]
    #[test]
    fn e26_a_file_that_other_users_may_read_causes_a_warning() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let reference = file(&dir, "key", b"x");
        let path = dir.path().join("key");
        for (mode, warned) in [(0o600, false), (0o400, false), (0o640, true), (0o644, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(reference.warning().is_some(), warned, "{mode:o}");
        }
        let warning = reference.warning().unwrap();
        assert!(warning.contains("mode 644") && warning.contains("chmod 600"), "{warning}");
    }
}
