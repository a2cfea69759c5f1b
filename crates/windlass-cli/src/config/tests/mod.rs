//! Whole files: what is read from good ones, and what is said of bad ones.

mod bad;
mod bad_tools;
mod good;
mod reloading;

use std::path::Path;

use super::{Config, Problems, parse};

/// Reads a text as if it stood in a file of this name.
fn read(text: &str) -> Result<Config, Problems> {
    parse(Path::new("windlass.toml"), text.to_owned())
}

/// What is said of a bad file must be this, word for word.
#[track_caller]
fn refused(text: &str, said: &str) {
    let problems = read(text).err().unwrap_or_else(|| panic!("this was accepted:\n{text}"));
    let found = problems.render(false);
    assert!(found == said.trim_start_matches('\n'), "of\n{text}\nthis was said:\n{found}\ninstead of:\n{said}");
}
