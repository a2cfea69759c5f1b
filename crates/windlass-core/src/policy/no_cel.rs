//! What stands for an expression in a build without CEL: its text is kept, and nothing is ever found out from it.

use super::expression::BadExpression;
use super::facts::Facts;

const ABSENT: &str = "this build has no CEL; enable the feature `cel`";

pub(crate) struct Compiled;

impl Compiled {
    pub(crate) fn new(source: &str) -> Result<Self, BadExpression> {
        match source.trim().is_empty() {
            true => Err(BadExpression::new(source, None, "it is empty")),
            false => Ok(Self),
        }
    }

    pub(crate) fn uses(&self, _: &str) -> bool {
        false
    }

    pub(crate) fn condition(&self, _: &Facts<'_>) -> Result<bool, String> {
        Err(ABSENT.to_owned())
    }

    pub(crate) fn text(&self, _: &Facts<'_>) -> Result<String, String> {
        Err(ABSENT.to_owned())
    }
}
