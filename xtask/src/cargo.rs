//! Running cargo, and saying which command was run in words that can be pasted into a shell.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository's root.
///
/// Cargo names the manifest's directory when it runs us; the directory we were compiled in is only the fallback, since
/// a checkout may have been moved since.
pub(crate) fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| OsString::from(env!("CARGO_MANIFEST_DIR")));
    let xtask = PathBuf::from(xtask);
    xtask.parent().map(Path::to_path_buf).unwrap_or(xtask)
}

/// Where cargo builds, and where what xtask installs for itself is kept.
pub(crate) fn target() -> PathBuf {
    let place = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    // Joining an absolute path gives that path.
    root().join(place)
}

/// One cargo invocation in the repository's root.
pub(crate) struct Cargo {
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Cargo {
    /// `line` is what follows `cargo`, split at white space.
    pub(crate) fn new(line: &str) -> Self {
        Self { args: line.split_whitespace().map(str::to_owned).collect(), env: Vec::new() }
    }

    /// Adds arguments that may contain white space.
    pub(crate) fn args(mut self, more: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(more.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable for this invocation.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Runs it with our own output streams; anything but success is an error.
    pub(crate) fn run(&self) -> Result<()> {
        let status = self.command().status().with_context(|| format!("cannot start `{self}`"))?;
        if !status.success() {
            bail!("`{self}` ended with {status}");
        }
        Ok(())
    }

    /// Runs it and returns what it wrote to standard output; its error stream stays visible.
    pub(crate) fn output(&self) -> Result<String> {
        let output =
            self.command().stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{self}`"))?;
        if !output.status.success() {
            bail!("`{self}` ended with {}", output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{self}` wrote something that is not UTF-8"))
    }

    /// Whether it succeeds; nothing is shown. For asking if a subcommand is installed.
    pub(crate) fn succeeds(&self) -> bool {
        self.command().stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(program);
        command.current_dir(root()).args(&self.args);
        // What `cargo run` tells us about our own package must not reach the build below: build scripts that watch
        // these variables would run again each time xtask and plain cargo take turns.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
                command.env_remove(name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str("cargo")?;
        for arg in &self.args {
            write!(f, " {}", quoted(arg))?;
        }
        Ok(())
    }
}

/// The word as a POSIX shell would have to be given it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_prints_as_it_would_be_typed() {
        let doc = Cargo::new("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(doc.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps");
        let odd = Cargo::new("run --").args(["it's", "", "a::b"]);
        assert_eq!(odd.to_string(), r"cargo run -- 'it'\''s' '' a::b");
    }

    #[test]
    fn the_root_holds_this_package() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }
}
