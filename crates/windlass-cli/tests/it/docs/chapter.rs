//! A chapter as the test sees it: its code blocks, and what is to be done with each.

use std::path::PathBuf;

/// Where the chapters are.
pub(super) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))
}

/// A code block.
#[derive(Debug)]
pub(super) struct Block {
    /// The line of its first fence, for whoever has to look there.
    pub(super) line: usize,
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// What is done with a block. The first word after the fence is its language, for whoever paints it; the rest is for the test.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `console`: commands after `$ `, and everything they print. With `eventually`, looked at until it is so.
    Console { eventually: bool },
    /// `sh`: commands that work; what they print is not shown.
    Script,
    /// `toml save NAME`, in any language: the reader saves it under this name.
    File(String),
    /// `toml append NAME`: the reader puts it at the end of that file.
    Added(String),
    /// `toml`: a config of its own, which is checked.
    Config,
    /// `rust`: compiled and run with the documentation's tests.
    Rust,
    /// `rust,no_run`: compiled with them.
    Compiled,
    /// `text`: nothing that could be run.
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
        let kind = kind(info).unwrap_or_else(|| panic!("line {line}: what is to be done with ```{info}?"));
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

/// A command of a console, and what it is said to print.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// The commands of a console. One goes on in the next line after a `\`, and where the shell would ask for more with `> `.
pub(super) fn commands(text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            all.push(Shown { command: command.to_owned(), output: Vec::new() });
            goes_on = command.ends_with('\\');
            continue;
        }
        let last = all.last_mut().expect("a console begins with a command");
        let asked = line.strip_prefix("> ").filter(|_| last.output.is_empty());
        if goes_on || asked.is_some() {
            let more = asked.unwrap_or(line);
            last.command.push('\n');
            last.command.push_str(more);
            goes_on = more.ends_with('\\');
        } else {
            last.output.push(line.to_owned());
        }
    }
    all
}

#[test]
fn a_chapter_is_taken_apart() {
    let page = "# One\n\n```console\n$ a \\\n  b\nprinted\n$ c '\n> d'\n```\ntext\n```toml save x.toml\nk = 1\n```\n\
                ```sh not-run: it builds\nmake\n```\n";
    let blocks = blocks(page);
    let kinds: Vec<&Kind> = blocks.iter().map(|block| &block.kind).collect();
    let wanted =
        [Kind::Console { eventually: false }, Kind::File("x.toml".to_owned()), Kind::NotRun("it builds".to_owned())];
    assert_eq!(kinds, wanted.iter().collect::<Vec<_>>());
    assert_eq!((blocks[1].line, blocks[1].text.as_str()), (11, "k = 1\n"));
    let shown = commands(&blocks[0].text);
    assert_eq!(shown[0], Shown { command: "a \\\n  b".to_owned(), output: vec!["printed".to_owned()] });
    assert_eq!(shown[1], Shown { command: "c '\nd'".to_owned(), output: vec![] });
    assert_eq!(kind("python"), None);
}
