//! Who a run acts for, and what caused it. Both are data of the run: they are fixed when it is created, and the runs
//! that it starts inherit them.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits;
use crate::run::state::RunInfo;

/// The principal and the cause of a run. Most runs have neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attribution {
    pub(crate) principal: Option<Arc<str>>,
    pub(crate) cause: Option<Arc<str>>,
}

impl Attribution {
    /// That of a run in the store; `None` if it names neither.
    pub(crate) fn of(info: &RunInfo) -> Option<Arc<Self>> {
        Self::shared(info.principal.as_ref(), info.cause.as_ref())
    }

    /// `None` if it names neither.
    pub(crate) fn shared(principal: Option<&Arc<str>>, cause: Option<&Arc<str>>) -> Option<Arc<Self>> {
        let is_named = principal.is_some() || cause.is_some();
        is_named.then(|| Arc::new(Self { principal: principal.cloned(), cause: cause.cloned() }))
    }
}

/// Checks the name of a principal, or the text of a cause: `what` names it in the error.
///
/// # Errors
///
/// [`Error::Invalid`] if the text is empty, longer than [`limits::ATTRIBUTION_CHARS`], has control characters, or begins
/// or ends with white space, which a header would lose.
pub fn check_attribution(what: &str, text: &str) -> Result<()> {
    let most = limits::ATTRIBUTION_CHARS;
    let is_bad = text.is_empty()
        || text.chars().nth(most).is_some()
        || text.chars().any(char::is_control)
        || text.trim() != text;
    match is_bad {
        true => Err(Error::Invalid(format!(
            "`{what}` must have 1 to {most} visible characters, without white space at its ends"
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l28_principals_and_causes_are_visible_texts_of_limited_length() {
        for good in ["ada", "Ada Lovelace", "turn/7 🙂", &"é".repeat(limits::ATTRIBUTION_CHARS)] {
            assert!(check_attribution("cause", good).is_ok(), "{good}");
        }
        for bad in ["", " ada", "ada ", "a\nb", "a\u{7f}", &"é".repeat(limits::ATTRIBUTION_CHARS + 1)] {
            let error = check_attribution("principal", bad).unwrap_err().to_string();
            assert!(error.contains("`principal` must have 1 to 255 visible characters"), "{error}");
        }
    }
}
