//! What the end of a command says about the call.

use serde::{Deserialize, Serialize};
use windlass::{Effect, ToolError};

/// What an exit code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It worked; its output counts.
    Ok,
    /// The arguments are wrong.
    InvalidArguments,
    /// It cannot work now.
    Unavailable,
    /// It failed.
    Failed,
    /// It failed without having done anything, and may be tried again, also if it acts once.
    Retry,
    /// It may not do that.
    Denied,
    /// It may have been done, and the command cannot tell.
    InDoubt,
}

impl Exit {
    /// What a code means where nobody said otherwise.
    pub fn of(code: i32) -> Self {
        match code {
            0 => Self::Ok,
            64 | 65 => Self::InvalidArguments,
            69 | 126 | 127 => Self::Unavailable,
            75 => Self::Retry,
            77 => Self::Denied,
            _ => Self::Failed,
        }
    }

    /// What death by a signal means where nobody said otherwise. The command had begun, and a signal says nothing about what it
    /// did: what acts once is in doubt. What may be repeated is, unless it would only end the same way again.
    pub fn of_signal(signal: i32, effect: Effect) -> Self {
        match effect {
            Effect::Once => Self::InDoubt,
            _ if OWN.contains(&signal) => Self::Failed,
            Effect::Readonly => Self::Retry,
            Effect::Idempotent => Self::InDoubt,
        }
    }

    /// The same for a command that was ended because it took more than it may.
    pub(crate) fn of_limit(effect: Effect) -> Self {
        if effect == Effect::Once { Self::InDoubt } else { Self::Failed }
    }

    /// The error it stands for, if it does.
    pub(crate) fn error(self, message: String) -> Option<ToolError> {
        Some(match self {
            Self::Ok => return None,
            Self::InvalidArguments => ToolError::invalid("", message),
            Self::Unavailable => ToolError::unavailable(message),
            Self::Failed => ToolError::failed(message),
            Self::Retry => ToolError::retryable(message),
            Self::Denied => ToolError::denied(message),
            Self::InDoubt => ToolError::InDoubt { reason: message },
        })
    }
}

/// Signals that are a command's own doing, or tell of a limit it ran into: ILL, TRAP, ABRT, BUS, FPE, SEGV, PIPE, ALRM, STKFLT,
/// XCPU, XFSZ and SYS. All others come from outside.
const OWN: [i32; 12] = [4, 5, 6, 7, 8, 11, 13, 14, 16, 24, 25, 31];

/// The signal that a code stands for: shells, and programs that catch one, end with 128 and its number. 128 and 129 are also what
/// programs such as git end with by themselves.
pub(crate) fn signal_of(code: i32) -> Option<i32> {
    (130..=159).contains(&code).then(|| code - 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_table_says() {
        for (code, kind) in [
            (1, "failed"),
            (2, "failed"),
            (64, "invalid_arguments"),
            (65, "invalid_arguments"),
            (69, "unavailable"),
            (75, "failed"),
            (77, "denied"),
            (126, "unavailable"),
            (127, "unavailable"),
            (255, "failed"),
        ] {
            assert_eq!(Exit::of(code).error(String::new()).unwrap().kind(), kind, "{code}");
        }
        assert!(Exit::of(0).error(String::new()).is_none());
        assert_eq!(Exit::InDoubt.error(String::new()).unwrap().kind(), "in_doubt");
    }

    #[test]
    fn w01_a_signal_says_nothing_about_what_was_done() {
        let (kill, term, segv, xcpu) = (9, 15, 11, 24);
        for signal in [kill, term, segv, xcpu, 40] {
            assert_eq!(Exit::of_signal(signal, Effect::Once), Exit::InDoubt, "{signal}");
        }
        for signal in [kill, term, 1, 2] {
            assert_eq!(Exit::of_signal(signal, Effect::Readonly), Exit::Retry, "{signal}");
            assert_eq!(Exit::of_signal(signal, Effect::Idempotent), Exit::InDoubt, "{signal}");
        }
        for (signal, effect) in [(segv, Effect::Readonly), (xcpu, Effect::Readonly), (segv, Effect::Idempotent)] {
            assert_eq!(Exit::of_signal(signal, effect), Exit::Failed, "{signal}");
        }
        assert_eq!([137, 143, 128, 129, 1, 255].map(signal_of), [Some(kill), Some(term), None, None, None, None]);
    }
}
