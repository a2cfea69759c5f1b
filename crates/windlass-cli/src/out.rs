//! What a command prints: lines for people, JSON for programs.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::args::{Colour, Global};
use crate::exit::{Exit, Failure, Result};
use crate::style::{Style, Tint};

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// JSON for programs instead of lines for people.
    pub json: bool,
    /// Colours and line width.
    pub style: Style,
    /// Print only the result.
    pub quiet: bool,
    /// Whether standard output is a terminal.
    pub terminal: bool,
}

impl Out {
    /// Derives the settings from the options and the terminal.
    pub fn new(global: &Global) -> Self {
        let terminal = io::stdout().is_terminal();
        let style = Style { colour: colours(global.color, terminal), width: columns(terminal) };
        Self { json: global.json, style, quiet: global.quiet, terminal }
    }

    /// Prints one line for people.
    pub fn line(&self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(write_failed)
    }

    /// Prints lines for people.
    pub fn lines(&self, lines: &[String]) -> Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
    }

    /// Prints one JSON document for programs, indented.
    pub fn document(&self, value: &impl Serialize) -> Result<()> {
        let text =
            serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        self.line(&text)
    }

    /// Prints one JSON event for programs, on one line.
    pub fn event(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        self.line(&text)
    }

    /// Prints a note to standard error, unless `--quiet` is given.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// Formats a heading.
    pub fn bold(&self, text: &str) -> String {
        self.style.paint(Tint::Bold, text)
    }

    /// Formats text of minor importance.
    pub fn dim(&self, text: &str) -> String {
        self.style.paint(Tint::Dim, text)
    }
}

/// A closed pipe is not a failure of the command: the reader has seen enough.
fn write_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(Exit::Ok),
        _ => Failure::new(Exit::Failed, format!("could not write to standard output: {error}")),
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

/// The width of the terminal, or a default that fits most terminals.
fn columns(terminal: bool) -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let measured = || terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    let columns = asked.or_else(|| measured().map(|size| usize::from(size.ws_col))).filter(|columns| *columns > 0);
    columns.unwrap_or(Style::PLAIN.width).max(40)
}
