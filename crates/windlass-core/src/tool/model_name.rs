//! Names as model APIs take them: they know no `.`, which a toolbox does.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Tool, Toolbox};

/// Longest name that model APIs take.
const LONGEST: usize = 64;
/// Digits that tell names apart which are the same without their dots.
const DIGITS: usize = 8;

/// The name under which a model is offered a tool: its own, unless there is a `.` in it. Then the dots are `_`, and the end is
/// made of the name alone, whatever other tools there are: what a model was offered means the same tool later.
pub fn model_name(name: &str) -> Cow<'_, str> {
    if !name.contains('.') {
        return Cow::Borrowed(name);
    }
    let stem: String = name.replace('.', "_").chars().take(LONGEST - DIGITS - 1).collect();
    Cow::Owned(format!("{stem}-{:08x}", digest(name)))
}

/// The tool that a caller means: the one of this name, or the one a model is offered under it.
pub fn called(toolbox: &Toolbox, name: &str) -> Option<Arc<Tool>> {
    toolbox.get(name).or_else(|| {
        let digits = name.rsplit_once('-')?.1;
        let is_made = digits.len() == DIGITS && digits.chars().all(|c| c.is_ascii_hexdigit());
        let tools = if is_made { toolbox.tools() } else { Vec::new() };
        tools.into_iter().find(|tool| model_name(&tool.spec().name) == name)
    })
}

/// FNV-1a: short, and the same for ever.
fn digest(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l23_a_name_with_a_dot_has_one_form_for_models() {
        assert_eq!(model_name("add"), "add");
        assert_eq!(model_name("math.add"), "math_add-1ac9d896");
        assert_ne!(model_name("a.b_c"), model_name("a_b.c"));
        assert_eq!(model_name(&format!("{}.b", "a".repeat(62))).len(), LONGEST);
    }
}
