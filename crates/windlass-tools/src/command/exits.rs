//! How the end of a command decides the result of the call.

use serde::{Deserialize, Serialize};
use windlass::{Effect, ToolError};

/// What an exit code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It succeeded; its output is the result.
    Ok,
    /// The arguments are wrong.
    InvalidArguments,
    /// It cannot run now.
    Unavailable,
    /// It failed.
    Failed,
    /// It failed without having done anything. It may be retried, also if its effect is `once`.
    Retry,
    /// The action is not permitted.
    Denied,
    /// The action may have happened; the command does not know.
    InDoubt,
}

impl Exit {
    /// The default meaning of an exit code.
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

    /// The default meaning of death by a signal. The command had begun, and a signal does not show how far it came: an
    /// effect of `once` is in doubt. Other effects are retried, unless the command would only end the same way again.
    pub fn of_signal(signal: i32, effect: Effect) -> Self {
        match effect {
            Effect::Once => Self::InDoubt,
            _ if SELF_INFLICTED.contains(&signal) => Self::Failed,
            Effect::Readonly => Self::Retry,
            Effect::Idempotent => Self::InDoubt,
        }
    }

    /// The meaning of a command that was killed because it exceeded a limit.
    pub(crate) fn of_limit(effect: Effect) -> Self {
        if effect == Effect::Once { Self::InDoubt } else { Self::Failed }
    }

    /// Whether the command itself reports that it failed.
    pub(crate) fn is_known_failure(self) -> bool {
        !matches!(self, Self::Ok | Self::InDoubt)
    }

    /// The error of the call, unless it succeeded.
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

/// Signals that a command causes itself, or that report a limit it exceeded: ILL, TRAP, ABRT, BUS, FPE, SEGV, PIPE,
/// ALRM, STKFLT, XCPU, XFSZ and SYS. All others come from outside.
const SELF_INFLICTED: [i32; 12] = [4, 5, 6, 7, 8, 11, 13, 14, 16, 24, 25, 31];

/// The signal that an exit code represents: shells, and programs that catch a signal, exit with 128 plus its number.
/// Programs such as git also exit with 128 and 129 for other reasons.
pub(crate) fn signal_of(code: i32) -> Option<i32> {
    (130..=159).contains(&code).then(|| code - 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_have_their_documented_meaning() {
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
    fn w01_death_by_signal_leaves_a_once_effect_in_doubt() {
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
