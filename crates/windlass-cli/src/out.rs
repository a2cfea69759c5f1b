//! What a command prints: lines for people, JSON for programs.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::args::{Colour, Global};
use crate::exit::{Exit, Failure, Result};
use crate::style::{Style, Tint};

/// Where a command prints, and how.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// JSON for programs instead of lines for people.
    pub json: bool,
    /// How lines look.
    pub style: Style,
    /// Nothing that was not asked for.
    pub quiet: bool,
    /// Whether standard output is a terminal.
    pub terminal: bool,
}

impl Out {
    /// As the options and the terminal have it.
    pub fn new(global: &Global) -> Self {
        let terminal = io::stdout().is_terminal();
        let style = Style { colour: colours(global.color, terminal), width: columns(terminal) };
        Self { json: global.json, style, quiet: global.quiet, terminal }
    }

    /// One line for people.
    pub fn line(&self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(unwritten)
    }

    /// Lines for people.
    pub fn lines(&self, lines: &[String]) -> Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
    }

    /// One document for programs, on lines of its own.
    pub fn document(&self, value: &impl Serialize) -> Result<()> {
        let text =
            serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        self.line(&text)
    }

    /// One event for programs, on one line.
    pub fn event(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        self.line(&text)
    }

    /// Something beside the answer: to standard error, and not at all where only the answer is wanted.
    pub fn aside(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// A heading.
    pub fn bold(&self, text: &str) -> String {
        self.style.paint(Tint::Bold, text)
    }

    /// Something that can be passed over.
    pub fn dim(&self, text: &str) -> String {
        self.style.paint(Tint::Dim, text)
    }
}

/// Whoever read this has gone: that is no failure of the command.
fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(Exit::Ok),
        _ => Failure::new(Exit::Failed, format!("standard output cannot be written: {error}")),
    }
}

fn colours(wanted: Colour, terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match wanted {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => terminal && !set("NO_COLOR") && std::env::var("TERM").as_deref() != Ok("dumb"),
    }
}

/// As wide as the terminal; where there is none, what fits into most of them.
fn columns(terminal: bool) -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let measured = || terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    let columns = asked.or_else(|| measured().map(|size| usize::from(size.ws_col))).filter(|columns| *columns > 0);
    columns.unwrap_or(Style::PLAIN.width).max(40)
}
