//! Tool names for model APIs. They do not allow `.`, which a toolbox does.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Tool, Toolbox};

/// Longest name that model APIs accept.
const MAX_NAME_CHARS: usize = 64;
/// Hex digits that distinguish names that differ only in `.` and `_`.
const DIGITS: usize = 8;

/// The name under which a model is offered a tool: its own name, unless that contains a `.`. Then each `.` becomes `_`,
/// and a hash of the name is appended. The result depends on the name alone, so it means the same tool whatever tools
/// are added or removed later.
pub fn model_name(name: &str) -> Cow<'_, str> {
    if !name.contains('.') {
        return Cow::Borrowed(name);
    }
    let stem: String = name.replace('.', "_").chars().take(MAX_NAME_CHARS - DIGITS - 1).collect();
    Cow::Owned(format!("{stem}-{:08x}", digest(name)))
}

/// The tool with this name, or the one that a model is offered under it ([`model_name`]).
pub fn called(toolbox: &Toolbox, name: &str) -> Option<Arc<Tool>> {
    toolbox.get(name).or_else(|| {
        let digits = name.rsplit_once('-')?.1;
        let is_made = digits.len() == DIGITS && digits.chars().all(|c| c.is_ascii_hexdigit());
        let tools = if is_made { toolbox.tools() } else { Vec::new() };
        tools.into_iter().find(|tool| model_name(&tool.spec().name) == name)
    })
}

/// FNV-1a: short and stable.
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
        assert_eq!(model_name(&format!("{}.b", "a".repeat(62))).len(), MAX_NAME_CHARS);
    }
}
