//! Tests with whole files, valid and invalid.

mod bad;
mod bad_tools;
mod good;
mod reloading;

use std::path::Path;

use super::{Config, Problems, parse};

/// Parses a text as the content of windlass.toml.
fn read(text: &str) -> Result<Config, Problems> {
    parse(Path::new("windlass.toml"), text.to_owned())
}

/// Asserts the exact problems of an invalid file.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let problems = read(text).err().unwrap_or_else(|| panic!("this was accepted:\n{text}"));
    let rendered = problems.render(false);
    assert!(rendered == expected.trim_start_matches('\n'), "for\n{text}\ngot:\n{rendered}\nexpected:\n{expected}");
}
