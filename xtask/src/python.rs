//! Programs written in Python, each in an environment of its own below `target/`.
//!
//! What is missing is installed where that is possible. Where it is not, the error says what could not be installed and
//! how to do it by hand; it is a [`Missing`], so that the exit code tells it from a gate that failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::Missing;
use crate::cargo::target;

/// What `python3 -m venv` needs; Debian packs it apart from Python.
const PARTS: &str = "import venv, ensurepip";
/// Debian's packages that have both.
const PACKAGES: [&str; 2] = ["python3", "python3-venv"];

/// A program of this version, installed if it is not there yet. Returns the folder of its executables.
pub(crate) fn program(package: &str, version: &str) -> Result<PathBuf> {
    let place = target().join("python").join(format!("{package}-{version}"));
    let (bin, whole) = (place.join("bin"), place.join("whole"));
    // Written last: an installation that was interrupted is made anew.
    if whole.exists() {
        return Ok(bin);
    }
    interpreter()?;
    println!("== set-up: {package} {version} into {}", place.display());
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let made = runs(Command::new("python3").args(["-m", "venv"]).arg(&place));
    if !made {
        return Err(Missing(format!("`python3 -m venv {}` failed, see above", place.display())).into());
    }
    let wanted = format!("{package}=={version}");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &wanted];
    if !runs(Command::new(bin.join("python")).args(pip)) {
        let why = format!("{wanted} could not be installed, see above; is a Python package index reachable?");
        return Err(Missing(why).into());
    }
    fs::write(&whole, "").with_context(|| format!("cannot write {}", whole.display()))?;
    Ok(bin)
}

/// Makes sure of a Python that can make environments.
fn interpreter() -> Result<()> {
    if has_parts() {
        return Ok(());
    }
    let by_hand = format!("install Python 3 with venv (on Debian: apt-get install {})", PACKAGES.join(" "));
    let Some(root) = as_root() else {
        return Err(
            Missing(format!("python3 with venv is missing and cannot be installed from here; {by_hand}")).into()
        );
    };
    println!("== set-up: {}", PACKAGES.join(", "));
    let apt = |args: &[&str]| {
        let line: Vec<&str> =
            root.iter().copied().chain(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]).collect();
        runs(Command::new(line[0]).args(&line[1..]).args(args))
    };
    let install = [&["install", "-y", "--no-install-recommends"][..], &PACKAGES].concat();
    if !(apt(&["update"]) && apt(&install) && has_parts()) {
        return Err(Missing(format!("apt-get could not install {}, see above; {by_hand}", PACKAGES.join(" "))).into());
    }
    Ok(())
}

fn has_parts() -> bool {
    succeeds(Command::new("python3").args(["-c", PARTS]))
}

/// How to become root for apt-get: not at all, or by a sudo that asks for nothing. Nothing where there is no apt-get.
fn as_root() -> Option<&'static [&'static str]> {
    if !Path::new("/usr/bin/apt-get").exists() {
        return None;
    }
    let id = Command::new("id").arg("-u").output().ok()?;
    if String::from_utf8_lossy(&id.stdout).trim() == "0" {
        return Some(&[]);
    }
    succeeds(Command::new("sudo").args(["-n", "true"])).then_some(&["sudo", "-n"])
}

/// Runs it with our own output streams.
fn runs(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The same, and nothing is shown.
fn succeeds(command: &mut Command) -> bool {
    runs(command.stdout(Stdio::null()).stderr(Stdio::null()))
}
