//! `[layer.NAME]`: what some callers see of the tools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass::Toolbox;
use windlass::tools::nearest;

use super::problem::Problem;
use super::view::View;

/// What a layer shows of the tools below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    AllBut(BTreeSet<Arc<str>>),
    Only(BTreeSet<Arc<str>>),
}

/// The layers of a file by name.
pub(crate) type Layers = BTreeMap<String, Shows>;

/// Reads one layer. `known` are the tools of the file, and `prefixes` what the names of tools of documents begin with.
pub(super) fn read(view: &View<'_>, known: &[&str], prefixes: &[String], problems: &mut Vec<Problem>) -> Shows {
    let names = |key| -> BTreeSet<Arc<str>> { view.texts(key).into_iter().map(Arc::from).collect() };
    let (hidden, only) = (names("hide"), names("only"));
    if view.get("hide").is_some() == view.get("only").is_some() {
        let what = format!("`{}` needs either `hide` or `only`", view.path);
        let problem = Problem::error("layer", &view.at, what);
        problems.push(problem.help("`hide` names the tools that it does not show, `only` those that it does"));
    }
    for key in ["hide", "only"] {
        for node in view.get(key).and_then(|entry| entry.node.list()).unwrap_or_default() {
            let Some(name) = node.text() else { continue };
            if known.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())) {
                continue;
            }
            let what = format!("there is no tool `{name}` in this file");
            let problem = Problem::warning("unknown_tool", &node.span, what);
            let help = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "a tool that a client brings may have this name; any other is a mistake".to_owned(),
            };
            problems.push(problem.help(help));
        }
    }
    if view.get("only").is_some() { Shows::Only(only) } else { Shows::AllBut(hidden) }
}

impl Shows {
    /// What both show.
    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::AllBut(a), Self::AllBut(b)) => Self::AllBut(a | b),
            (Self::Only(a), Self::Only(b)) => Self::Only(a & b),
            (Self::Only(only), Self::AllBut(hidden)) | (Self::AllBut(hidden), Self::Only(only)) => {
                Self::Only(only - hidden)
            }
        }
    }

    fn apply(&self, layer: &Toolbox) {
        match self {
            Self::AllBut(hidden) => layer.show_all_but(hidden.iter().cloned()),
            Self::Only(only) => layer.show_only(only.iter().cloned()),
        }
    }
}

/// Lets a toolbox have the layers of a file around a change of its tools: while the tools change, a layer shows no more than
/// it did before and will afterwards. Layers that the file no longer has are gone.
pub(super) fn around<T>(
    toolbox: &Toolbox,
    before: &Layers,
    after: &Layers,
    change: impl FnOnce() -> Result<T, windlass::RegisterError>,
) -> Result<T, windlass::RegisterError> {
    for (name, shows) in after {
        let strict = before.get(name).map_or_else(|| shows.clone(), |before| before.and(shows));
        strict.apply(&toolbox.layer(name)?);
    }
    let changed = change();
    let counts = if changed.is_ok() { after } else { before };
    for name in before.keys().chain(after.keys()).filter(|name| !counts.contains_key(*name)) {
        toolbox.remove_layer(name);
    }
    for (name, shows) in counts {
        shows.apply(&toolbox.layer(name)?);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> BTreeSet<Arc<str>> {
        list.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn b02_what_two_views_both_show_is_in_neither_hidden() {
        let (hide, only) = (|list| Shows::AllBut(names(list)), |list| Shows::Only(names(list)));
        for (a, b, both) in [
            (hide(&["x"]), hide(&["y"]), hide(&["x", "y"])),
            (only(&["x", "y"]), only(&["y", "z"]), only(&["y"])),
            (only(&["x", "y"]), hide(&["y"]), only(&["x"])),
        ] {
            assert_eq!(a.and(&b), both);
            assert_eq!(b.and(&a), both);
        }
    }
}
