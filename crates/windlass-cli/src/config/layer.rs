//! `[layer.NAME]`: a subset of the tools for some callers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass::Toolbox;
use windlass::tool::nearest;

use super::problem::Problem;
use super::view::View;

/// Which tools a layer contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    AllBut(BTreeSet<Arc<str>>),
    Only(BTreeSet<Arc<str>>),
}

/// The layers of a file by name.
pub(crate) type Layers = BTreeMap<String, Visibility>;

/// Reads one layer. `tools` are the tools of the file, and `prefixes` those of the tools of its documents.
pub(super) fn read(view: &View<'_>, tools: &[&str], prefixes: &[String], problems: &mut Vec<Problem>) -> Visibility {
    let names = |key| -> BTreeSet<Arc<str>> { view.texts(key).into_iter().map(Arc::from).collect() };
    let (hidden, only) = (names("hide"), names("only"));
    if view.get("hide").is_some() == view.get("only").is_some() {
        let what = format!("`{}` needs either `hide` or `only`", view.path);
        let problem = Problem::error("layer", &view.at, what);
        problems.push(problem.help("`hide` lists the tools that are not in the layer, `only` those that are"));
    }
    for key in ["hide", "only"] {
        for node in view.get(key).and_then(|entry| entry.node.list()).unwrap_or_default() {
            let Some(name) = node.text() else { continue };
            if tools.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())) {
                continue;
            }
            let what = format!("there is no tool `{name}` in this file");
            let problem = Problem::warning("unknown_tool", &node.span, what);
            let help = match nearest(name, tools.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "ignore this if a connected client provides a tool of this name".to_owned(),
            };
            problems.push(problem.help(help));
        }
    }
    if view.get("only").is_some() { Visibility::Only(only) } else { Visibility::AllBut(hidden) }
}

impl Visibility {
    /// The tools that are in both.
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

/// Replaces the layers of a toolbox together with its tools, which `change` replaces. Meanwhile, a layer contains only tools
/// that it has both before and after. Layers that are no longer in the file are removed.
pub(super) fn replace_with<T>(
    toolbox: &Toolbox,
    before: &Layers,
    after: &Layers,
    change: impl FnOnce() -> Result<T, windlass::tool::RegisterError>,
) -> Result<T, windlass::tool::RegisterError> {
    for (name, visibility) in after {
        let strict = before.get(name).map_or_else(|| visibility.clone(), |before| before.and(visibility));
        strict.apply(&toolbox.layer(name)?);
    }
    let changed = change();
    let in_effect = if changed.is_ok() { after } else { before };
    for name in before.keys().chain(after.keys()).filter(|name| !in_effect.contains_key(*name)) {
        toolbox.remove_layer(name);
    }
    for (name, visibility) in in_effect {
        visibility.apply(&toolbox.layer(name)?);
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
    fn b02_the_intersection_of_two_layers_hides_what_either_hides() {
        let (hide, only) = (|list| Visibility::AllBut(names(list)), |list| Visibility::Only(names(list)));
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
