//! The code blocks of a chapter, and what the test does with each.

use std::path::PathBuf;

/// The folder of the chapters.
pub(super) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))
}

/// A code block.
#[derive(Debug)]
pub(super) struct Block {
    /// The line of its first fence, for error messages.
    pub(super) line: usize,
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// What is done with a block. The first word after the fence is its language; the rest is for the test.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `console`: commands after `$ `, and their whole output. With `eventually`, repeated until the output matches.
    Console { eventually: bool },
    /// `sh`: commands that succeed; their output is not shown.
    Script,
    /// `toml save NAME`, in any language: saved under this name.
    File(String),
    /// `toml append NAME`: appended to that file.
    Added(String),
    /// `toml`: a complete config, which is checked.
    Config,
    /// `rust`: compiled and run with the documentation's tests.
    Rust,
    /// `rust,no_run`: compiled with them.
    Compiled,
    /// `rust,ignore example NAME`: the whole file of this name in `examples/`, whose own tests run it.
    Example(String),
    /// `text`: not executable.
    Text,
    /// `… not-run: REASON`
    NotRun(String),
}

/// The blocks of a chapter, in their order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text: String = inside.flat_map(|line| [line, "\n"]).collect();
        let line = number + 1;
        let kind = kind(info).unwrap_or_else(|| panic!("line {line}: unknown kind of block: ```{info}"));
        found.push(Block { line, kind, text });
    }
    found
}

fn kind(info: &str) -> Option<Kind> {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    if let Some(reason) = rest.strip_prefix("not-run: ") {
        return Some(Kind::NotRun(reason.to_owned()));
    }
    if let Some(name) = rest.strip_prefix("save ") {
        return Some(Kind::File(name.to_owned()));
    }
    if let Some(name) = rest.strip_prefix("append ") {
        return Some(Kind::Added(name.to_owned()));
    }
    if let Some(name) = rest.strip_prefix("example ").filter(|_| language == "rust,ignore") {
        return Some(Kind::Example(name.to_owned()));
    }
    match (language, rest) {
        ("console", "") => Some(Kind::Console { eventually: false }),
        ("console", "eventually") => Some(Kind::Console { eventually: true }),
        ("sh", "") => Some(Kind::Script),
        ("toml", "") => Some(Kind::Config),
        ("rust", "") => Some(Kind::Rust),
        ("rust,no_run", "") => Some(Kind::Compiled),
        ("text", "") => Some(Kind::Text),
        _ => None,
    }
}

/// A command of a console block, and its expected output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// The commands of a console block. A command continues on the next line after a `\`, or if that begins with `> `.
pub(super) fn commands(text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut continues = false;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            all.push(Shown { command: command.to_owned(), output: Vec::new() });
            continues = command.ends_with('\\');
            continue;
        }
        let last = all.last_mut().expect("a console begins with a command");
        let prompted = line.strip_prefix("> ").filter(|_| last.output.is_empty());
        if continues || prompted.is_some() {
            let more = prompted.unwrap_or(line);
            last.command.push('\n');
            last.command.push_str(more);
            continues = more.ends_with('\\');
        } else {
            last.output.push(line.to_owned());
        }
    }
    all
}

#[test]
fn a_chapter_is_parsed() {
    let page = "# One\n\n```console\n$ a \\\n  b\nprinted\n$ c '\n> d'\n```\ntext\n```toml save x.toml\nk = 1\n```\n\
                ```sh not-run: it builds\nmake\n```\n";
    let blocks = blocks(page);
    let kinds: Vec<&Kind> = blocks.iter().map(|block| &block.kind).collect();
    let expected =
        [Kind::Console { eventually: false }, Kind::File("x.toml".to_owned()), Kind::NotRun("it builds".to_owned())];
    assert_eq!(kinds, expected.iter().collect::<Vec<_>>());
    assert_eq!((blocks[1].line, blocks[1].text.as_str()), (11, "k = 1\n"));
    let shown = commands(&blocks[0].text);
    assert_eq!(shown[0], Shown { command: "a \\\n  b".to_owned(), output: vec!["printed".to_owned()] });
    assert_eq!(shown[1], Shown { command: "c '\nd'".to_owned(), output: vec![] });
    assert_eq!(kind("python"), None);
}
