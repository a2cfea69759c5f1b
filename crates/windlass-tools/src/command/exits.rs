//! What the end of a command says about the call.

use serde::{Deserialize, Serialize};
use windlass::ToolError;

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
}
