//! What an expression may look at.

use std::sync::Arc;

use serde_json::Value;

use crate::tool::ToolSpec;

/// What an expression sees of one call. It borrows: building one costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// `args`: the call's arguments.
    pub args: &'a Value,
    /// `tool`: a map with `name`, `id`, `effect`, `destructive`, `open_world` and `tags`.
    pub tool: Option<&'a ToolSpec>,
    /// `caller`: who the run acts for, a text or null.
    pub caller: Option<&'a str>,
    /// `cause`: what caused the run, a text or null.
    pub cause: Option<&'a str>,
    /// `session`: a map with `id`, which may be null, and `attended`.
    pub session: Session<'a>,
    /// `history`: a list of maps with `tool`, `args` and `ok`. `None` where it was not collected: an expression that uses
    /// it fails, and so asks for approval.
    pub history: Option<&'a [PastCall]>,
}

/// The session a call is made in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session<'a> {
    /// Its id, if the call has one.
    pub id: Option<&'a str>,
    /// Whether a person is available for approvals.
    pub attended: bool,
}

/// A call of the same run, or of another run of its session, that has finished.
#[derive(Clone, Debug, PartialEq)]
pub struct PastCall {
    /// The tool's id.
    pub tool: Arc<str>,
    /// Its arguments as asked.
    pub args: Arc<Value>,
    /// Whether it ended without an error.
    pub ok: bool,
}

impl<'a> Facts<'a> {
    /// Only arguments: no tool, no caller, unattended, no history.
    pub fn of_args(args: &'a Value) -> Self {
        Self { args, tool: None, caller: None, cause: None, session: Session::default(), history: None }
    }
}
