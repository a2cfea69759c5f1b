//! Paths of session files: the only way to name one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// Where command tools see the root of the tree. As the first name of a path, it is an alias of the root.
const ALIAS: &str = "workspace";

/// Reserved for views of background work.
const RESERVED: &str = ".background";

/// The path of a file or directory in the tree of a session: absolute, with one spelling for each file.
///
/// It is parsed from what a caller wrote. `/workspace` is an alias of `/`, a name without a leading `/` is below `/`, and
/// one trailing `/` is ignored. Everything that could mean another file to another program is refused: `..`, `.` (except
/// at the start), empty names, backslashes, control characters and characters that change the direction of text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionPath(Arc<str>);

/// Why a text is not the path of a session file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is not a valid path of a session file: {why}")]
pub struct BadSessionPath {
    /// The text, shortened.
    path: String,
    why: String,
}

impl SessionPath {
    /// The root of the tree, which is a directory and always exists.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Parses a path; see [`SessionPath`].
    pub fn parse(text: &str) -> Result<Self, BadSessionPath> {
        Self::read(text).map_err(|why| BadSessionPath { path: text.chars().take(80).collect(), why })
    }

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty; `/` is the root".to_owned());
        }
        let most = limits::SESSION_PATH_BYTES + ALIAS.len() + 2;
        if text.len() > most {
            return Err(format!("it has more than {} bytes", limits::SESSION_PATH_BYTES));
        }
        let inner = text.strip_prefix('/').or_else(|| text.strip_prefix("./")).unwrap_or(text);
        let inner = if text == "." { "" } else { inner };
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        if text == "//" || text == ".//" {
            return Err(EMPTY_NAME.to_owned());
        }
        let mut names: Vec<&str> = if inner.is_empty() { Vec::new() } else { inner.split('/').collect() };
        names.iter().try_for_each(|name| check_name(name))?;
        if names.first() == Some(&ALIAS) {
            names.remove(0);
        }
        Self::of_names(&names)
    }

    fn of_names(names: &[&str]) -> Result<Self, String> {
        match names.first() {
            Some(&ALIAS) => return Err("the name `workspace` below the root means the root itself".to_owned()),
            Some(&RESERVED) => return Err("`/.background` is reserved for views of background work".to_owned()),
            _ => {}
        }
        if names.len() > limits::SESSION_PATH_DEPTH {
            return Err(format!("it is more than {} levels deep", limits::SESSION_PATH_DEPTH));
        }
        let path = format!("/{}", names.join("/"));
        if path.len() > limits::SESSION_PATH_BYTES {
            return Err(format!("it has more than {} bytes", limits::SESSION_PATH_BYTES));
        }
        Ok(Self(path.into()))
    }

    /// The path of the entry `name` in this directory. The name is taken literally: it has no separators and no alias.
    pub fn join(&self, name: &str) -> Result<Self, BadSessionPath> {
        let mut names: Vec<&str> = self.names().collect();
        names.push(name);
        let joined = check_name(name).and_then(|()| Self::of_names(&names));
        joined.map_err(|why| BadSessionPath { path: format!("{self}/{name}").chars().take(80).collect(), why })
    }

    /// The path as text. Parsing it gives this path again.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// Its last name; empty for the root.
    pub fn name(&self) -> &str {
        self.names().next_back().unwrap_or_default()
    }

    /// Its names, from the root on.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The directory it is in; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        let (above, name) = self.0.rsplit_once('/')?;
        match (above, name) {
            (_, "") => None,
            ("", _) => Some(Self::root()),
            (above, _) => Some(Self(above.into())),
        }
    }

    /// The directories it is in, from the one below the root on, without the root.
    pub fn ancestors(&self) -> Vec<Self> {
        let mut above: Vec<Self> = std::iter::successors(self.parent(), Self::parent).collect();
        above.pop();
        above.reverse();
        above
    }

    /// The text that every path below this one starts with.
    pub fn prefix(&self) -> String {
        if self.is_root() { "/".to_owned() } else { format!("{}/", self.0) }
    }

    /// Whether it is below `directory`, at any depth.
    pub fn is_below(&self, directory: &Self) -> bool {
        self != directory && self.0.starts_with(&directory.prefix())
    }
}

const EMPTY_NAME: &str = "it has an empty name (`//`)";

fn check_name(name: &str) -> Result<(), String> {
    let bidirectional =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let line_break = |c: char| matches!(c, '\u{2028}' | '\u{2029}');
    match name {
        "" => return Err(EMPTY_NAME.to_owned()),
        "." => return Err("`.` is allowed only at the start; leave it out".to_owned()),
        ".." => return Err("`..` is not allowed; write the path from the root on".to_owned()),
        _ => {}
    }
    if name.len() > limits::SESSION_FILE_NAME {
        return Err(format!("a name has more than {} bytes", limits::SESSION_FILE_NAME));
    }
    if name.contains('/') {
        return Err("a name has no `/`".to_owned());
    }
    if name.contains('\\') {
        return Err("it has a backslash; separate names with `/`".to_owned());
    }
    match name.chars().find(|c| c.is_control() || bidirectional(*c) || line_break(*c)) {
        Some(c) => Err(format!("it has the character U+{:04X}, which is not visible", u32::from(c))),
        None => Ok(()),
    }
}

impl fmt::Display for SessionPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SessionPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for SessionPath {
    type Err = BadSessionPath;

    fn from_str(text: &str) -> Result<Self, BadSessionPath> {
        Self::parse(text)
    }
}

impl Serialize for SessionPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SessionPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e15_every_accepted_path_has_one_spelling() {
        let accepted = [
            ("/", "/"),
            (".", "/"),
            ("./", "/"),
            ("/workspace", "/"),
            ("/workspace/", "/"),
            ("workspace", "/"),
            ("workspace/a", "/a"),
            ("/workspace/a/b.txt", "/a/b.txt"),
            ("./workspace/a", "/a"),
            ("a", "/a"),
            ("./a", "/a"),
            ("/a", "/a"),
            ("/a/", "/a"),
            ("a/b/c", "/a/b/c"),
            ("/a/workspace", "/a/workspace"),
            ("/workspaces", "/workspaces"),
            ("/Workspace", "/Workspace"),
            ("/a/.background", "/a/.background"),
            ("/.backgrounds", "/.backgrounds"),
            ("/.env", "/.env"),
            ("/...", "/..."),
            ("/..a", "/..a"),
            ("/a..", "/a.."),
            ("/.a/..b/c..d", "/.a/..b/c..d"),
            ("/a b", "/a b"),
            ("/-rf", "/-rf"),
            ("/~", "/~"),
            ("/%2e%2e", "/%2e%2e"),
            ("/C:", "/C:"),
            ("/é", "/é"),
            ("/日本語/ファイル", "/日本語/ファイル"),
            ("/'\"`$(x);|&*?", "/'\"`$(x);|&*?"),
        ];
        for (text, path) in accepted {
            let parsed = SessionPath::parse(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.as_str(), path, "{text}");
            assert_eq!(SessionPath::parse(parsed.as_str()).as_ref(), Ok(&parsed), "{text} is parsed back");
            let json = serde_json::to_string(&parsed).unwrap();
            assert_eq!(serde_json::from_str::<SessionPath>(&json).unwrap(), parsed);
        }
        let name = "x".repeat(limits::SESSION_FILE_NAME);
        assert!(SessionPath::parse(&name).is_ok(), "the longest name");
        let deep = "/d".repeat(limits::SESSION_PATH_DEPTH);
        assert!(SessionPath::parse(&deep).is_ok() && SessionPath::parse(&format!("/workspace{deep}")).is_ok());
        let long = format!("/{}", "x/".repeat(4)) + &"y".repeat(200);
        assert!(SessionPath::parse(&long).is_ok());
    }

    #[test]
    fn e15_hostile_paths_are_refused_with_the_reason() {
        let long_name = format!("/{}", "x".repeat(limits::SESSION_FILE_NAME + 1));
        let long_wide = format!("/{}", "é".repeat(limits::SESSION_FILE_NAME / 2 + 1));
        let deep = "/d".repeat(limits::SESSION_PATH_DEPTH + 1);
        let long_path = format!("/{}", format!("{}/", "x".repeat(200)).repeat(limits::SESSION_PATH_BYTES / 200 + 1));
        let huge = "x/".repeat(1 << 20);
        let hostile: &[(&str, &str)] = &[
            ("", "empty"),
            ("//", "empty name"),
            ("///", "empty name"),
            (".//", "empty name"),
            ("//etc/passwd", "empty name"),
            ("/a//b", "empty name"),
            ("a//", "empty name"),
            ("/workspace//a", "empty name"),
            ("/workspace//", "empty name"),
            ("file:///etc/passwd", "empty name"),
            ("https://example.org/a", "empty name"),
            ("..", "`..`"),
            ("../", "`..`"),
            ("/..", "`..`"),
            ("/../", "`..`"),
            ("../etc/passwd", "`..`"),
            ("/../etc/passwd", "`..`"),
            ("/../../../../etc/shadow", "`..`"),
            ("/a/..", "`..`"),
            ("/a/../b", "`..`"),
            ("a/b/../../..", "`..`"),
            ("./..", "`..`"),
            ("/workspace/..", "`..`"),
            ("/workspace/../etc/passwd", "`..`"),
            ("workspace/../..", "`..`"),
            ("/a/./b", "`.`"),
            ("/.", "`.`"),
            ("/./a", "`.`"),
            ("././a", "`.`"),
            ("/a/.", "`.`"),
            ("a/./", "`.`"),
            ("\\", "backslash"),
            ("\\\\server\\share", "backslash"),
            ("C:\\Windows\\system32", "backslash"),
            ("..\\..\\etc", "backslash"),
            ("/a\\..\\b", "backslash"),
            ("/a/..\\b", "backslash"),
            ("/a\\", "backslash"),
            ("\0", "U+0000"),
            ("/a\0", "U+0000"),
            ("/a\0.txt", "U+0000"),
            ("/\0/../etc", "U+0000"),
            ("/a/b\0/c", "U+0000"),
            ("/a\n", "U+000A"),
            ("/a\r\nb", "U+000D"),
            ("/a\tb", "U+0009"),
            ("/\u{1b}[2J", "U+001B"),
            ("/\u{7f}", "U+007F"),
            ("/\u{85}", "U+0085"),
            ("/\u{9b}31m", "U+009B"),
            ("/invoice\u{202e}fdp.exe", "U+202E"),
            ("/a\u{200f}b", "U+200F"),
            ("/a\u{2066}b", "U+2066"),
            ("/a\u{2069}", "U+2069"),
            ("/a\u{2028}b", "U+2028"),
            ("/a\u{2029}b", "U+2029"),
            ("/.background", "reserved"),
            ("/.background/", "reserved"),
            ("/.background/run/out", "reserved"),
            (".background", "reserved"),
            ("./.background/x", "reserved"),
            ("/workspace/.background", "reserved"),
            ("/workspace/workspace", "root itself"),
            ("/workspace/workspace/a", "root itself"),
            ("workspace/workspace", "root itself"),
            (&long_name, "255 bytes"),
            (&long_wide, "255 bytes"),
            (&deep, "levels deep"),
            (&long_path, "bytes"),
            (&huge, "bytes"),
        ];
        assert!(hostile.len() >= 60);
        for (text, why) in hostile {
            let error = SessionPath::parse(text).expect_err(text).to_string();
            assert!(error.contains(why) && error.len() < 700, "{text:?}: {error}");
            assert!(!error.chars().any(char::is_control), "{error:?} shows no control characters");
        }
    }

    #[test]
    fn e15_a_joined_name_is_literal_and_cannot_leave_its_directory() {
        let docs = SessionPath::parse("/docs").unwrap();
        assert_eq!(docs.join("workspace").unwrap().as_str(), "/docs/workspace");
        for name in ["", ".", "..", "a/b", "/a", "a\0", "a\\b", "workspace", ".background"] {
            assert!(SessionPath::root().join(name).is_err(), "{name:?}");
        }
        let path = docs.join("a").unwrap();
        assert_eq!((path.name(), path.parent()), ("a", Some(docs.clone())));
        assert_eq!((docs.parent(), SessionPath::root().parent()), (Some(SessionPath::root()), None));
        assert_eq!(SessionPath::parse("/a/b/c").unwrap().ancestors().len(), 2);
        assert!(docs.ancestors().is_empty() && SessionPath::root().ancestors().is_empty());
        assert!(path.is_below(&docs) && path.is_below(&SessionPath::root()) && !docs.is_below(&docs));
        assert!(!SessionPath::parse("/docs2").unwrap().is_below(&docs));
    }
}
