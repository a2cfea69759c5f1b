//! `cargo xtask deny`: may we ship what we depend on?
//!
//! `deny.toml` says what is allowed. cargo-deny checks it where it is installed. Everywhere else our own reading of the
//! same file acts on cargo's metadata, so that the gate is never skipped; it knows the `allow` list, wildcard
//! requirements and sources, but no per-crate exceptions.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::{Cargo, root};
use crate::{no_arguments, spdx};

const CARGO_DENY: &str = "deny check licenses bans sources";
const METADATA: &str = "metadata --format-version 1 --all-features --locked";

pub(crate) fn main(args: &[String]) -> Result<()> {
    no_arguments("deny", args)?;
    match cargo_deny() {
        Some(cargo_deny) => cargo_deny.run(),
        None => own_gate(),
    }
}

/// The cargo-deny invocation, where it is installed. Advisories are left out: their database needs the internet.
pub(crate) fn cargo_deny() -> Option<Cargo> {
    Cargo::new("deny --version").succeeds().then(|| Cargo::new(CARGO_DENY))
}

/// The same question answered without cargo-deny.
pub(crate) fn own_gate() -> Result<()> {
    let path = root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let allowed = allow_list(&text).context("in deny.toml")?;
    let metadata: Value =
        serde_json::from_str(&Cargo::new(METADATA).output()?).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;

    let complaints: Vec<String> = packages.iter().flat_map(|package| complaints(package, &allowed)).collect();
    for complaint in &complaints {
        eprintln!("  {complaint}");
    }
    ensure!(complaints.is_empty(), "{} violations of deny.toml, see above", complaints.len());
    println!("{} packages, all within deny.toml", packages.len());
    Ok(())
}

/// Everything wrong with one package of `cargo metadata`.
fn complaints(package: &Value, allowed: &BTreeSet<String>) -> Vec<String> {
    let text = |key: &str| package[key].as_str().unwrap_or("?");
    let name = format!("{} {}", text("name"), text("version"));
    let mut found = Vec::new();

    match package["license"].as_str() {
        None => found.push(format!("{name}: states no SPDX licence")),
        Some(expression) => match spdx::satisfiable(expression, allowed) {
            Ok(true) => {}
            Ok(false) => found.push(format!("{name}: licence `{expression}` is not allowed by deny.toml")),
            Err(error) => found.push(format!("{name}: licence `{expression}`: {error}")),
        },
    }
    // Packages of the default registry are named `registry+…` whatever protocol or mirror brought them here.
    if let Some(source) = package["source"].as_str()
        && !source.starts_with("registry+")
    {
        found.push(format!("{name}: comes from `{source}`, not from the default registry"));
    }
    // A package without a source is one of ours: what it asks for is in our hands.
    if package["source"].is_null() {
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        found.extend(dependencies.iter().filter_map(asks_wrongly).map(|complaint| format!("{name}: {complaint}")));
    }
    found
}

/// What is wrong with a dependency one of our own packages asks for.
fn asks_wrongly(dependency: &Value) -> Option<String> {
    let name = dependency["name"].as_str().unwrap_or("?");
    if let Some(registry) = dependency["registry"].as_str() {
        return Some(format!("takes `{name}` from another registry, `{registry}`"));
    }
    let wildcard = dependency["req"].as_str() == Some("*") && dependency["path"].is_null();
    wildcard.then(|| format!("takes any version of `{name}`; ask for one"))
}

/// The strings of `allow = [ … ]` in section `[licenses]`.
fn allow_list(text: &str) -> Result<BTreeSet<String>> {
    let mut section = "";
    let mut list: Option<String> = None;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(list) = &mut list {
            list.push_str(line);
        } else if line.starts_with('[') {
            section = line;
        } else if section == "[licenses]"
            && let Some((key, value)) = line.split_once('=')
            && key.trim() == "allow"
        {
            list = Some(value.trim().to_owned());
        }
        if list.as_ref().is_some_and(|list| list.ends_with(']')) {
            break;
        }
    }
    let Some(list) = list else { bail!("section [licenses] has no `allow` list") };
    let inner = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).context("`allow` is not a list")?;
    inner.split(',').map(str::trim).filter(|item| !item.is_empty()).map(unquoted).collect()
}

fn unquoted(item: &str) -> Result<String> {
    let inner = item.strip_prefix('"').and_then(|item| item.strip_suffix('"'));
    Ok(inner.with_context(|| format!("`{item}` in `allow` is not a string"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(text: &str) -> Result<Vec<String>, String> {
        allow_list(text).map(|list| list.into_iter().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn our_own_list_is_read_and_holds_no_strong_copyleft() {
        let allowed = allow_list(include_str!("../../deny.toml")).unwrap();
        assert!(allowed.contains("MIT") && allowed.contains("Apache-2.0 WITH LLVM-exception"), "{allowed:?}");
        assert!(!allowed.iter().any(|licence| licence.contains("GPL")), "{allowed:?}");
    }

    #[test]
    fn the_list_is_found_in_its_section_only() {
        let text = "[bans]\nallow = [\"x\"]\n[licenses]\n# allow = [\"no\"]\nallow = [\n  \"MIT\", # why\n  \"ISC\",\n]\n[z]\nallow = []";
        assert_eq!(list(text), Ok(vec!["ISC".to_owned(), "MIT".to_owned()]));
        assert_eq!(list("[licenses]\nallow = [\"A\", \"B\"]"), Ok(vec!["A".to_owned(), "B".to_owned()]));
        assert_eq!(list("[bans]\nallow = []"), Err("section [licenses] has no `allow` list".to_owned()));
        assert_eq!(list("[licenses]\nallow = [\nMIT]"), Err("`MIT` in `allow` is not a string".to_owned()));
        assert_eq!(list("[licenses]\nallow = [\n\"MIT\""), Err("`allow` is not a list".to_owned()));
    }

    #[track_caller]
    fn check(package: Value, expected: &[&str]) {
        assert_eq!(complaints(&package, &BTreeSet::from(["MIT".to_owned()])), expected);
    }

    #[test]
    fn a_package_is_judged_by_licence_and_source() {
        let registry = "registry+https://registry.invalid/index";
        check(json!({ "name": "a", "version": "1.0.0", "license": "MIT OR X", "source": registry }), &[]);
        check(
            json!({ "name": "a", "version": "1.0.0", "license": "AGPL-3.0-only", "source": registry }),
            &["a 1.0.0: licence `AGPL-3.0-only` is not allowed by deny.toml"],
        );
        check(
            json!({ "name": "a", "version": "1.0.0", "license": null, "source": "git+https://x.invalid/a" }),
            &[
                "a 1.0.0: states no SPDX licence",
                "a 1.0.0: comes from `git+https://x.invalid/a`, not from the default registry",
            ],
        );
    }

    #[test]
    fn our_own_packages_ask_for_versions() {
        let ours = |dependency: Value| json!({ "name": "a", "version": "1.0.0", "license": "MIT", "source": null, "dependencies": [dependency] });
        check(ours(json!({ "name": "b", "req": "^1", "registry": null })), &[]);
        check(ours(json!({ "name": "b", "req": "*", "path": "/b" })), &[]);
        check(ours(json!({ "name": "b", "req": "*" })), &["a 1.0.0: takes any version of `b`; ask for one"]);
        check(
            ours(json!({ "name": "b", "req": "^1", "registry": "https://x.invalid" })),
            &["a 1.0.0: takes `b` from another registry, `https://x.invalid`"],
        );
    }
}
