//! Commands: work caused by an atomic call. They are committed together with its outcome, so they happen if and only if
//! the outcome is recorded.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::park::finished;
use super::plan::{asked, resolve, secret_places};
use super::request::{ToolCall, ToolRef};
use crate::ctx::runs::{child_id, refuse_start, started};
use crate::id::RunId;
use crate::path::Path;
use crate::policy::Policy;
use crate::run::Run;
use crate::run::machine::Machine;
use crate::run::outbox::Started;
use crate::run::record::{Asked, OpKind, OpOutcome, Record};
use crate::run::secrets::Places;
use crate::session::check;
use crate::store::{FileEdit, Message, NewMessage};
use crate::time::{Times, Timestamp};
use crate::tool::{Effect, Layers, Output, Tool, ToolError, Toolbox, ToolsChange};

/// Something that happens together with the outcome of a call, or not at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Command {
    /// Starts a run.
    Start {
        /// The tool's name, or its id.
        tool: Arc<str>,
        /// Whether that is its id.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_id: bool,
        /// Its arguments.
        args: Arc<Value>,
        /// Layers that it adds to those of the call that starts it.
        #[serde(default, skip_serializing_if = "Layers::is_empty")]
        layers: Layers,
        /// The call's own policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Box<Policy>>,
        /// Why the arguments could not be accepted. Such a run is not started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        broken: Option<Arc<String>>,
        /// Where the arguments contain secrets. Filled in when it is recorded.
        #[serde(default, skip_serializing_if = "Places::is_empty")]
        secrets: Places,
    },
    /// Signals a run.
    Signal {
        /// Which run.
        run: RunId,
        /// Which signal.
        name: Arc<str>,
        /// Its value.
        value: Arc<Value>,
    },
    /// Cancels a run.
    Cancel {
        /// Which run.
        run: RunId,
        /// Why.
        reason: String,
    },
    /// Emits an event that the tool declared.
    Emit {
        /// Which event.
        name: Arc<str>,
        /// Its value.
        value: Arc<Value>,
    },
    /// Posts a message to the session of the call.
    Post {
        /// The message.
        message: Box<NewMessage>,
    },
    /// Changes the tools that the session of the call shows.
    Tools {
        /// The change.
        change: Box<ToolsChange>,
    },
    /// Changes files of the session of the call.
    Edit {
        /// The changes.
        edits: Vec<FileEdit>,
    },
}

impl Output {
    /// Starts a run together with this outcome.
    #[must_use]
    pub fn start<T>(mut self, call: ToolCall<T>) -> Self {
        let ToolCall { tool, args, layers, limits: policy, broken, .. } = call.untyped().bounded();
        let (tool, by_id) = match tool {
            ToolRef::Name(name) => (name, false),
            ToolRef::Id(id) => (id.as_str().into(), true),
        };
        let secrets = Places::default();
        self.commands.push(Command::Start { tool, by_id, args, layers, policy, broken, secrets });
        self
    }

    /// Signals a run together with this outcome. A run that has finished by then ignores it.
    #[must_use]
    pub fn signal(mut self, run: RunId, name: impl Into<Arc<str>>, value: impl Into<Arc<Value>>) -> Self {
        self.commands.push(Command::Signal { run, name: name.into(), value: value.into() });
        self
    }

    /// Cancels a run together with this outcome.
    #[must_use]
    pub fn cancel(mut self, run: RunId, reason: impl Into<String>) -> Self {
        self.commands.push(Command::Cancel { run, reason: reason.into() });
        self
    }

    /// Emits an event together with this outcome.
    #[must_use]
    pub fn emit(mut self, name: impl Into<Arc<str>>, value: impl Into<Arc<Value>>) -> Self {
        self.commands.push(Command::Emit { name: name.into(), value: value.into() });
        self
    }

    /// Posts a message to the session of the call together with this outcome. A session that is closed by then does not
    /// get it: the outcome is recorded all the same, and the store logs that the message was left out. The outcome of a
    /// call without a session is an internal error. The turn that the message [starts](NewMessage::wake) is queued,
    /// whatever the limits of the session.
    #[must_use]
    pub fn post(mut self, message: NewMessage) -> Self {
        self.commands.push(Command::Post { message: Box::new(message) });
        self
    }
}

impl Output {
    /// Changes the tools that the session of the call shows, together with this outcome. A session that is closed by
    /// then, or would name too many tools, is not changed: the outcome is recorded all the same, and the store logs that
    /// the change was left out. The outcome of a call without a session is an internal error.
    #[must_use]
    pub fn change_tools(mut self, change: ToolsChange) -> Self {
        self.commands.push(Command::Tools { change: Box::new(change) });
        self
    }
}

/// A command that was checked and is ready to be committed.
pub(crate) enum ReadyCommand {
    Start(Started),
    Mail(RunId, Message),
    Event(Record),
    Post(SessionPost),
    Tools(Arc<str>, ToolsChange),
    Edit(Arc<str>, Timestamp, Vec<FileEdit>),
}

/// A message for a session, with the principal for whom the turn acts that it starts.
pub(crate) struct SessionPost {
    session: Arc<str>,
    at: Timestamp,
    message: NewMessage,
    principal: Option<Arc<str>>,
}

/// Lists the secrets in the commands of an output that is about to be recorded.
pub(crate) fn mark_secrets(toolbox: &Toolbox, output: &mut Output) {
    for command in &mut output.commands {
        if let Command::Start { tool, by_id, args, layers, secrets, .. } = command {
            let tool = if *by_id { ToolRef::Id((**tool).into()) } else { ToolRef::Name(tool.clone()) };
            let found = toolbox.with_layers(layers).ok();
            let found = found.and_then(|toolbox| resolve(&toolbox.snapshot(), &tool).cloned());
            *secrets = secret_places(found.as_ref(), args);
        }
    }
}

/// Checks the commands of an output. If one of them is invalid, none of them happens.
pub(crate) fn ready(
    run: &Run,
    toolbox: &Toolbox,
    tool: &Tool,
    path: &Path,
    output: &Output,
    at: Timestamp,
) -> Result<Vec<ReadyCommand>, ToolError> {
    let numbered = output.commands.iter().zip(0u32..);
    numbered.map(|(command, index)| one(run, toolbox, tool, &path.child(index), command, at)).collect()
}

fn one(
    run: &Run,
    toolbox: &Toolbox,
    tool: &Tool,
    path: &Path,
    command: &Command,
    at: Timestamp,
) -> Result<ReadyCommand, ToolError> {
    Ok(match command {
        Command::Start { tool: name, by_id, args, layers, policy, broken, .. } => {
            let tool = if *by_id { ToolRef::Id((**name).into()) } else { ToolRef::Name(name.clone()) };
            let mut call = ToolCall::<Value>::to(tool, args.clone());
            (call.limits, call.broken) = (policy.clone(), broken.clone());
            // An internal error, because the caller did not cause it.
            let refuse = |why: String| ToolError::internal(format!("the outcome starts `{name}`: {why}"));
            let toolbox = toolbox.with_layers(layers).map_err(|missing| refuse(missing.to_string()))?;
            let found = resolve(&toolbox.snapshot(), &call.tool).cloned();
            if let Some(error) = refuse_start(&toolbox, found.as_deref(), &call) {
                return Err(refuse(error.to_string()));
            }
            let id = child_id(run, path, at);
            run.kernel.drives.add(id);
            ReadyCommand::Start(started(run, path, asked(&call, found.as_ref(), &toolbox.layers()), id, at))
        }
        Command::Signal { run, name, value } => {
            ReadyCommand::Mail(*run, Message::Signal { name: name.clone(), value: value.clone() })
        }
        Command::Cancel { run: other, reason } => {
            ReadyCommand::Mail(*other, Message::Cancel { by: format!("run {}", run.id), reason: reason.clone() })
        }
        Command::Emit { name, value } => {
            tool.channels().check_event(&tool.spec().name, name, value)?;
            let asked = Asked::operation(OpKind::Emit, name.clone(), Some(value.clone()), Effect::Readonly);
            let outcome = OpOutcome { result: Ok(Arc::new(Output::value(json!(null)))), at, times: Times::default() };
            ReadyCommand::Event(Record { asked: Some(asked), ..finished(path, &outcome) })
        }
        Command::Post { message } => {
            let refuse = |why: String| ToolError::internal(format!("the outcome posts a message: {why}"));
            let Some(session) = &run.session else {
                return Err(refuse("the call belongs to no session; make it in one".to_owned()));
            };
            check::message(message).map_err(|unfit| refuse(ToolError::from(unfit).to_string()))?;
            let principal = run.attribution.as_ref().and_then(|attribution| attribution.principal.clone());
            let (session, message) = (session.clone(), (**message).clone());
            ReadyCommand::Post(SessionPost { session, at, message, principal })
        }
        Command::Tools { change } => {
            let refuse = |why: String| ToolError::internal(format!("the outcome changes the session's tools: {why}"));
            let Some(session) = &run.session else {
                return Err(refuse("the call belongs to no session; make it in one".to_owned()));
            };
            check::tools(change).map_err(|unfit| refuse(ToolError::from(unfit).to_string()))?;
            ReadyCommand::Tools(session.clone(), (**change).clone())
        }
        Command::Edit { edits } => {
            let none = || ToolError::internal("the outcome changes files: the call belongs to no session");
            ReadyCommand::Edit(run.session.clone().ok_or_else(none)?, at, edits.clone())
        }
    })
}

/// Commits them together with the record that was appended just before, under the same lock.
pub(crate) fn commit(machine: &mut Machine, path: &Path, commands: Vec<ReadyCommand>, key: &str) {
    for (index, command) in commands.into_iter().enumerate() {
        match command {
            ReadyCommand::Start(mut started) => {
                machine.mark_started(path, &mut started);
                let Started { run, creation, records } = started;
                machine.outbox().start(run, creation, records);
            }
            ReadyCommand::Mail(run, message) => {
                let dedupe = format!("{key} {index}").into();
                machine.outbox().mail(run, message, Some(dedupe));
            }
            ReadyCommand::Event(record) => {
                machine.append(record);
            }
            ReadyCommand::Post(mut post) => {
                post.message.dedupe.get_or_insert_with(|| format!("{key} {index}").into());
                let SessionPost { session, at, message, principal } = post;
                machine.outbox().post(session, at, message, principal);
            }
            ReadyCommand::Tools(session, change) => machine.outbox().change_tools(session, change),
            ReadyCommand::Edit(session, at, edits) => {
                machine.outbox().edit(session, at, edits, key.into());
            }
        }
    }
}
