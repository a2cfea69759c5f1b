//! The JSON types of all requests and responses. Server and clients share them.
//!
//! Names are in snake case, times are RFC 3339 in UTC, durations are in milliseconds. A request with an unknown field
//! is refused. Later versions may add fields to responses, so clients have to ignore unknown ones.

mod admin;
mod artifact;
mod blocked;
mod call;
mod client;
mod event;
mod inbox;
mod meta;
mod nullable;
mod problem;
mod raw;
mod run;
mod session;
mod session_file;
mod session_turn;
mod time;
mod token;
mod tool;

pub use admin::{BackupRequest, BackupResponse, FileCheck, ReloadResponse, TidyResponse};
pub use artifact::ArtifactResponse;
pub use blocked::{Doubt, Explanation, Hold, HoldReason, Move, MoveReason, Park, WaitingFor};
pub use call::{
    Accepted, BatchCall, BatchRequest, BatchResponse, CallRequest, CallResponse, ErrorRequest, Failure, Outcome,
    OutcomeCall, OutcomeResponse, OutputPage, Times, Violation,
};
pub use client::{ClientCall, ClientRequest, ClientResponse, ClientTool};
pub use event::{Activity, End, EndReason, EventPage};
pub use inbox::{
    AnswerRequest, BulkRequest, BulkResponse, BulkResult, ConnectionList, ConnectionRequest, ConnectionResponse,
    ConnectionView, DecideRequest, Decided, InboxAction, InboxFilter, InboxItem, InboxKind, InboxPage, ReplyRequest,
    ReplyResponse, SettleRequest, SettlementKind,
};
pub use meta::{Health, HealthStatus, Index, Ready};
pub use problem::Problem;
pub use raw::RawJson;
pub use run::{
    CancelRequest, Comparison, Departure, Ending, FinishRequest, ForkChange, ForkRequest, Forked, Imported,
    JournalPage, OperationRef, Record, ReplayCheck, Run, RunPage, RunState, Side, SignalRequest, Trace,
};
pub use session::{
    CloseRequest, CloseResponse, DataName, DataNames, DataRequest, DataView, MessageAuthor, MessagePage,
    MessageRequest, MessageView, PostedMessage, SecretRequest, SessionPage, SessionRequest, SessionToolsRequest,
    SessionToolsView, SessionView,
};
pub use session_file::{FileEntry, FileKind, FileLine, FilePage, FileSearch};
pub use session_turn::{
    ContextSectionView, ContextView, IdleResponse, MessageEvent, SessionEvent, SessionEventPage, SettingsRequest,
    SettingsView, TurnMode, UnfinishedRun, WakeMode,
};
pub use time::Time;
pub use token::{Scope, TokenCreated, TokenList, TokenRequest, TokenView};
pub use tool::{
    AnthropicTool, AnthropicTools, CheckRequest, CheckResponse, FailedSource, OpenAiFunction, OpenAiTool, OpenAiTools,
    ToolList, ToolView, Verdict,
};
