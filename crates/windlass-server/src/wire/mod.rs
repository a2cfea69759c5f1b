//! Every request and every answer of the API, as the server writes it and a client reads it, and the other way round.
//!
//! Names are in snake case, instants are RFC 3339 in UTC, durations are in milliseconds. A request with a field nobody
//! knows is refused; an answer may grow fields, and its readers must not mind.

mod admin;
mod artifact;
mod call;
mod client;
mod event;
mod inbox;
mod meta;
mod present;
mod problem;
mod run;
mod time;
mod token;
mod tool;

pub use admin::{BackupAnswer, BackupRequest, FileCheck, ReloadAnswer, TidyAnswer};
pub use artifact::ArtifactAnswer;
pub use call::{
    Accepted, BatchAnswer, BatchCall, BatchRequest, CallAnswer, CallRequest, ErrorRequest, Failure, Outcome,
    OutcomeAnswer, Times, Violation,
};
pub use client::{ClientAnswer, ClientCall, ClientRequest, ClientTool};
pub use event::{Activity, End, EndReason, EventPage};
pub use inbox::{
    AnswerRequest, ConnectionAnswer, ConnectionRequest, DecideRequest, Decided, InboxAction, InboxFilter, InboxItem,
    InboxKind, InboxPage, ManyAnswer, ManyRequest, ManyResult, ReplyAnswer, ReplyRequest, SettleRequest,
    SettlementKind,
};
pub use meta::{Health, HealthStatus, Index, Ready};
pub use problem::Problem;
pub use run::{
    CancelRequest, Comparison, Departure, Doubt, Ending, Explanation, FinishRequest, ForkChange, ForkRequest, Forked,
    Hold, Imported, JournalPage, Move, Parent, Park, Record, ReplayCheck, Run, RunPage, Side, SignalRequest, State,
    Trace, Waiting,
};
pub use time::Time;
pub use token::{Scope, TokenCreated, TokenList, TokenRequest, TokenView};
pub use tool::{
    AnthropicTool, AnthropicTools, CheckAnswer, CheckRequest, OpenAiFunction, OpenAiTool, OpenAiTools, ToolList,
    ToolView, Verdict,
};
