//! The runs that a run spawned, and which of them end with it.

use serde_json::Value;

use super::machine::Machine;
use crate::id::RunId;
use crate::store::Message;
use crate::tool::Output;

/// What becomes of a spawned run when its parent ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChildFate {
    /// It is cancelled when the parent is cancelled, and otherwise outlives it.
    #[default]
    CancelledWithParent,
    /// It is cancelled as soon as the parent ends in any way.
    CancelledAtEnd,
    /// It is never cancelled because of the parent.
    Abandoned,
}

/// A spawned run that may have to be cancelled and is not known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildRun {
    pub(crate) run: RunId,
    /// Whether it is cancelled when its parent ends in any way, not only when that is cancelled.
    pub(crate) at_end: bool,
}

impl ChildRun {
    /// `None` if the parent never cancels it.
    pub(crate) fn new(run: RunId, fate: ChildFate) -> Option<Self> {
        (fate != ChildFate::Abandoned).then_some(Self { run, at_end: fate == ChildFate::CancelledAtEnd })
    }

    /// The run that the record of a spawn names.
    pub(super) fn recorded(output: &Output) -> Option<Self> {
        let run = output.value.get("run")?.as_str()?.parse().ok()?;
        Self::new(run, ChildFate::recorded(&output.value))
    }

    /// The runs that are carried over to the next generation: all of them, and those that are cancelled at the end.
    pub(super) fn carried_over(all: Vec<RunId>, at_end: &[RunId]) -> Vec<Self> {
        all.into_iter().map(|run| Self { run, at_end: at_end.contains(&run) }).collect()
    }
}

impl ChildFate {
    /// Adds itself to the record of a spawn.
    pub(crate) fn record(self, value: &mut Value) {
        match self {
            Self::CancelledWithParent => {}
            Self::CancelledAtEnd => value["cancel_at_end"] = true.into(),
            Self::Abandoned => value["abandoned"] = true.into(),
        }
    }

    fn recorded(value: &Value) -> Self {
        let is_set = |field: &str| value.get(field) == Some(&Value::Bool(true));
        match (is_set("abandoned"), is_set("cancel_at_end")) {
            (true, _) => Self::Abandoned,
            (false, true) => Self::CancelledAtEnd,
            (false, false) => Self::CancelledWithParent,
        }
    }
}

/// A child that has ended need not be cancelled, nor carried over to the next generation.
pub(super) fn forget_ended(children: &mut Vec<ChildRun>, message: &Message) {
    if let Message::Ended { run, .. } = message {
        children.retain(|child| child.run != *run);
    }
}

impl Machine {
    /// Spawned runs that may have to be cancelled, and among them those that are cancelled when this run ends in any way.
    pub(crate) fn children(&self) -> (Vec<RunId>, Vec<RunId>) {
        let runs = |at_end: bool| self.children.iter().filter(move |child| child.at_end || !at_end);
        (runs(false).map(|child| child.run).collect(), runs(true).map(|child| child.run).collect())
    }

    /// Cancels the children together with this run.
    pub(super) fn cancel_children(&mut self, by: &str, reason: &str) {
        let reason = format!("its parent was cancelled: {reason}");
        for child in &self.children {
            self.outbox.mail(child.run, Message::Cancel { by: by.to_owned(), reason: reason.clone() }, None);
        }
    }

    /// Cancels the children that end when this run ends. One that was cancelled before ignores it.
    pub(super) fn end_children(&mut self) {
        let by = format!("run {}", self.outbox.run());
        for child in self.children.iter().filter(|child| child.at_end) {
            let reason = "its parent has ended".to_owned();
            self.outbox.mail(child.run, Message::Cancel { by: by.clone(), reason }, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_fate_of_a_child_is_read_back_as_it_was_recorded() {
        let run = RunId::from_bytes([7; 16]);
        for (fate, at_end) in [
            (ChildFate::CancelledWithParent, Some(false)),
            (ChildFate::CancelledAtEnd, Some(true)),
            (ChildFate::Abandoned, None),
        ] {
            let mut value = json!({"run": run});
            fate.record(&mut value);
            let child = ChildRun::recorded(&Output::value(value));
            assert_eq!(child, at_end.map(|at_end| ChildRun { run, at_end }), "{fate:?}");
        }
    }
}
