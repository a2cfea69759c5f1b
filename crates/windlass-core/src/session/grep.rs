//! Searches in the text files of a session, bounded in results, bytes and the size of the pattern.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::files::{FileError, FileView};
use crate::limits;
use crate::store::{FileEncoding, FileInfo, FileQuery, SessionPath};

/// A search for lines that match a regular expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grep {
    pattern: String,
    paths: Option<String>,
    directory: String,
    ignore_case: bool,
    limit: usize,
}

impl Grep {
    /// Lines that match this regular expression, in all files.
    pub fn new(pattern: impl Into<String>) -> Self {
        let limit = limits::GREP_MATCHES;
        Self { pattern: pattern.into(), paths: None, directory: "/".to_owned(), ignore_case: false, limit }
    }

    /// Only files whose path matches this pattern. `*` and `?` match within a name, `**` across names, `[a-z]` one
    /// character, `{a,b}` either text. A pattern without `/` is compared with the last name, any other one with the
    /// path from the root on.
    #[must_use]
    pub fn paths(mut self, pattern: impl Into<String>) -> Self {
        self.paths = Some(pattern.into());
        self
    }

    /// Only files below this directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Without regard to upper and lower case.
    #[must_use]
    pub fn ignore_case(mut self) -> Self {
        self.ignore_case = true;
        self
    }

    /// At most this many matches, and at most [`limits::GREP_MATCHES_MAX`].
    #[must_use]
    pub fn limit(mut self, matches: usize) -> Self {
        self.limit = matches;
        self
    }
}

/// A line that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepMatch {
    /// The file.
    pub path: SessionPath,
    /// The number of the line, counted from one.
    pub line: u64,
    /// The line, or its first [`limits::GREP_LINE_SHOWN`] characters.
    pub text: String,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepResult {
    /// The matches, by path and line.
    pub matches: Vec<GrepMatch>,
    /// Whether everything was searched. If not, the limit of matches or [`limits::GREP_BYTES`] was reached.
    pub is_complete: bool,
    /// Files that were searched.
    pub files: u64,
    /// Files that were not searched because they are not text.
    pub binary: u64,
}

pub(super) async fn search(view: &FileView, search: &Grep) -> Result<GrepResult, FileError> {
    let pattern = compile("the pattern", &search.pattern, search.ignore_case)?;
    let paths = search.paths.as_deref().map(PathPattern::new).transpose()?;
    let directory = SessionPath::parse(&search.directory)?;
    let limit = search.limit.clamp(1, limits::GREP_MATCHES_MAX);
    let mut found = GrepResult::default();
    let (mut left, mut after) = (limits::GREP_BYTES, None);
    loop {
        let query = FileQuery { directory: directory.clone(), recursive: true, after, limit: limits::FILE_PAGE };
        let page = view.query(query).await?;
        after = page.last().map(|file| file.path.clone());
        for file in page.iter().filter(|file| !file.is_directory()) {
            if paths.as_ref().is_some_and(|paths| !paths.matches(&file.path)) {
                continue;
            }
            if file.encoding != FileEncoding::Text {
                found.binary += 1;
                continue;
            }
            if found.matches.len() >= limit || left == 0 {
                return Ok(found);
            }
            found.files += 1;
            if !search_file(view, file, &pattern, limit, &mut left, &mut found).await? {
                return Ok(found);
            }
        }
        if page.len() < limits::FILE_PAGE {
            found.is_complete = true;
            return Ok(found);
        }
    }
}

/// Returns whether the whole file was searched.
async fn search_file(
    view: &FileView,
    file: &FileInfo,
    pattern: &Regex,
    limit: usize,
    left: &mut u64,
    found: &mut GrepResult,
) -> Result<bool, FileError> {
    let mut reader = view.reader(file.clone())?;
    let mut lines = Lines::default();
    while let Some(piece) = reader.next().await? {
        let piece = &piece[..piece.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
        *left -= piece.len() as u64;
        let more = lines.add(piece, |line, text| add_match(pattern, file, (line, text), limit, found));
        if !more || *left == 0 {
            return Ok(false);
        }
        Yield::default().await;
    }
    Ok(lines.end(|line, text| add_match(pattern, file, (line, text), limit, found)))
}

/// Returns whether the search goes on: a match that does not fit ends it.
fn add_match(
    pattern: &Regex,
    file: &FileInfo,
    (line, text): (u64, &[u8]),
    limit: usize,
    found: &mut GrepResult,
) -> bool {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if !pattern.is_match(text) {
        return true;
    }
    if found.matches.len() >= limit {
        return false;
    }
    let text = String::from_utf8_lossy(text).chars().take(limits::GREP_LINE_SHOWN).collect();
    found.matches.push(GrepMatch { path: file.path.clone(), line, text });
    true
}

/// Splits pieces of a file into lines. Holds one line, without what it has beyond [`limits::GREP_LINE_BYTES`].
#[derive(Default)]
struct Lines {
    line: u64,
    text: Vec<u8>,
    is_open: bool,
}

impl Lines {
    /// Passes on complete lines for as long as `each` returns true.
    fn add(&mut self, mut piece: &[u8], mut each: impl FnMut(u64, &[u8]) -> bool) -> bool {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            self.append(&piece[..end]);
            if !self.end(&mut each) {
                return false;
            }
            piece = &piece[end + 1..];
        }
        if !piece.is_empty() {
            self.append(piece);
        }
        true
    }

    fn append(&mut self, part: &[u8]) {
        self.is_open = true;
        let room = limits::GREP_LINE_BYTES - self.text.len();
        self.text.extend_from_slice(&part[..part.len().min(room)]);
    }

    /// Passes on the last line, if there is one.
    fn end(&mut self, mut each: impl FnMut(u64, &[u8]) -> bool) -> bool {
        if !self.is_open {
            return true;
        }
        self.line += 1;
        self.is_open = false;
        let goes_on = each(self.line, &self.text);
        self.text.clear();
        goes_on
    }
}

/// Lets other tasks run.
#[derive(Default)]
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn compile(what: &str, pattern: &str, ignore_case: bool) -> Result<Regex, FileError> {
    if pattern.len() > limits::GREP_PATTERN_BYTES {
        let most = limits::GREP_PATTERN_BYTES;
        return Err(FileError::Pattern(format!("{what} of a search may have at most {most} bytes")));
    }
    let compiled = RegexBuilder::new(pattern)
        .case_insensitive(ignore_case)
        .size_limit(limits::GREP_PATTERN_SIZE)
        .dfa_size_limit(limits::GREP_PATTERN_SIZE)
        .build();
    compiled.map_err(|error| FileError::Pattern(format!("{what} of a search is not valid: {error}")))
}

/// A pattern for paths.
struct PathPattern {
    pattern: Regex,
    is_for_names: bool,
}

impl PathPattern {
    fn new(pattern: &str) -> Result<Self, FileError> {
        let is_for_names = !pattern.contains('/');
        let inner = pattern.strip_prefix('/').or_else(|| pattern.strip_prefix("./")).unwrap_or(pattern);
        let inner = inner.strip_prefix("workspace/").unwrap_or(inner);
        let invalid = |why: &str| FileError::Pattern(format!("the path pattern {pattern:?} is not valid: {why}"));
        if pattern.len() > limits::GREP_PATTERN_BYTES {
            return Err(invalid("it is too long"));
        }
        let mut regex = String::from("^");
        let mut rest = inner;
        let mut braces = 0;
        while let Some(next) = rest.chars().next() {
            let (part, used) = match next {
                '*' if rest.starts_with("**/") => ("(?:.*/)?".to_owned(), 3),
                '*' if rest.starts_with("**") => (".*".to_owned(), 2),
                '*' => ("[^/]*".to_owned(), 1),
                '?' => ("[^/]".to_owned(), 1),
                '[' => {
                    let end = rest[1..].find(']').ok_or_else(|| invalid("`[` without `]`"))? + 1;
                    let class = &rest[1..end];
                    let (not, class) = class.strip_prefix('!').map_or(("", class), |class| ("^/", class));
                    if class.is_empty() || class.contains(['[', '\\', '&', '~', '^']) {
                        return Err(invalid("a class is `[…]` or `[!…]` with plain characters and ranges"));
                    }
                    (format!("[{not}{class}]"), end + 1)
                }
                '{' => {
                    braces += 1;
                    ("(?:".to_owned(), 1)
                }
                '}' if braces > 0 => {
                    braces -= 1;
                    (")".to_owned(), 1)
                }
                ',' if braces > 0 => ("|".to_owned(), 1),
                other => (regex::escape(other.encode_utf8(&mut [0; 4])), other.len_utf8()),
            };
            regex.push_str(&part);
            rest = &rest[used..];
        }
        if braces > 0 {
            return Err(invalid("`{` without `}`"));
        }
        regex.push('$');
        let pattern =
            RegexBuilder::new(&regex).dot_matches_new_line(true).size_limit(limits::GREP_PATTERN_SIZE).build();
        let pattern = pattern.map_err(|error| invalid(&error.to_string()))?;
        Ok(Self { pattern, is_for_names })
    }

    fn matches(&self, path: &SessionPath) -> bool {
        let text = if self.is_for_names { path.name() } else { &path.as_str()[1..] };
        self.pattern.is_match(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e15_path_patterns_match_names_or_paths() {
        let cases = [
            ("*.rs", "/src/a/b.rs", true),
            ("*.rs", "/src/a.rsx", false),
            ("src/*.rs", "/src/a.rs", true),
            ("src/*.rs", "/src/a/b.rs", false),
            ("/src/**", "/src/a/b.rs", true),
            ("src/**/b.rs", "/src/b.rs", true),
            ("src/**/b.rs", "/src/x/y/b.rs", true),
            ("/workspace/src/*", "/src/a", true),
            ("./src/?", "/src/a", true),
            ("**/*.{md,txt}", "/a/b.txt", true),
            ("**/*.{md,txt}", "/b.rs", false),
            ("[a-c].txt", "/b.txt", true),
            ("[!a-c].txt", "/b.txt", false),
            ("a.b", "/axb", false),
            ("a+b(c)", "/a+b(c)", true),
            ("é*", "/x/été", true),
        ];
        for (pattern, path, expected) in cases {
            let path = SessionPath::parse(path).unwrap();
            let compiled = PathPattern::new(pattern).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.matches(&path), expected, "{pattern} {path}");
        }
        for bad in ["[", "[]", "{a", "[z-a]", "[a&&b]", &"x".repeat(limits::GREP_PATTERN_BYTES + 1)] {
            assert!(matches!(PathPattern::new(bad), Err(FileError::Pattern(_))), "{bad}");
        }
    }

    #[test]
    fn e15_patterns_of_searches_are_bounded() {
        for bad in ["(", "a{10000}{10000}", &"x".repeat(limits::GREP_PATTERN_BYTES + 1), "(?:\\pL{100}){100}"] {
            let error = compile("the pattern", bad, false).unwrap_err();
            assert!(error.to_string().contains("of a search"), "{error}");
        }
        assert!(compile("the pattern", "(a*)*b", false).is_ok(), "cannot take more than linear time");
    }

    #[test]
    fn e15_lines_are_split_across_pieces_and_cut_if_they_are_long() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        let mut each = |line, text: &[u8]| {
            seen.push((line, text.len(), text.last().copied()));
            true
        };
        for piece in [&b"one\ntw"[..], b"o\n\nlast"] {
            assert!(lines.add(piece, &mut each));
        }
        let long = vec![b'x'; limits::GREP_LINE_BYTES + 7];
        assert!(lines.end(&mut each) && lines.end(&mut each) && lines.add(&long, &mut each) && lines.end(&mut each));
        let long = (5, limits::GREP_LINE_BYTES, Some(b'x'));
        assert_eq!(seen, [(1, 3, Some(b'e')), (2, 3, Some(b'o')), (3, 0, None), (4, 4, Some(b't')), long]);
    }
}
