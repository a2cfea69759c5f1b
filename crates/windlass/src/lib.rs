#![doc = include_str!("docs/crate.md")]

#[cfg(feature = "testing")]
mod disk;
mod executor;
mod file;
mod handle;
mod kept;
mod open;
mod people;
mod watchdog;
mod windlass;

pub use self::handle::{Act, RunHandle};
pub use self::open::{Builder, OpenError};
pub use self::windlass::{BatchCall, Windlass};
pub use windlass_core::call::{Attempt, Call, Outcome, ToolCall};
pub use windlass_core::ctx::{Ctx, park, step};
pub use windlass_core::policy::Policy;
pub use windlass_core::time::Timestamp;
pub use windlass_core::tool::{Artifact, Content, Effect, Output, Tool, ToolError, ToolResult, ToolSpec, Toolbox};
pub use windlass_core::{Error, Path, Result, RunId, limits};
pub use windlass_macros::tool;

/// Derives the JSON Schema of a type that is a parameter or the result of a tool:
///
/// ```
/// use windlass::prelude::*;
///
/// #[derive(serde::Deserialize, windlass::schemars::JsonSchema)]
/// #[schemars(crate = "windlass::schemars")]
/// struct Address {
///     street: String,
/// }
///
/// /// Ship a parcel.
/// #[tool]
/// async fn ship(to: Address) -> ToolResult<String> {
///     Ok(to.street)
/// }
/// ```
pub use schemars;

/// What most programs need.
pub mod prelude {
    pub use crate::ctx::{First2, First3, Handle};
    pub use crate::inbox::Resolution;
    pub use crate::tool::{Preparation, Reconciled, Reply};
    pub use crate::{
        Artifact, Attempt, Call, Content, Ctx, Effect, Outcome, Output, RunHandle, Tool, ToolCall, ToolError,
        ToolResult, ToolSpec, Toolbox, Windlass, park, step, tool,
    };
    pub use serde_json::{Value, json};
}

pub mod tool {
    #![doc = include_str!("docs/tool.md")]

    pub use windlass_core::ToolId;
    pub use windlass_core::call::{
        Command, Incoming, Metadata, Middleware, OutcomeCall, Outgoing, Preparation, ToolCall, ToolRef, batch_identity,
    };
    pub use windlass_core::tool::budget::Page;
    pub use windlass_core::tool::view::Projection;
    pub use windlass_core::tool::*;
}

pub mod ctx {
    #![doc = include_str!("docs/ctx.md")]

    pub use windlass_core::ctx::*;
}

pub mod run {
    #![doc = include_str!("docs/run.md")]

    pub use crate::handle::{Act, RunHandle};
    pub use windlass_core::activity::{self, Activity, Cursor, Happening, Position, Trace, Watch};
    pub use windlass_core::call::idempotency_key;
    pub use windlass_core::check_attribution;
    pub use windlass_core::explain::{self, Explanation};
    pub use windlass_core::run::record;
    pub use windlass_core::run::state::{Divergence, Ending, Hold, RunInfo, RunState};
    pub use windlass_core::store::{Counts, Filter, StateFilter, Turn};
    pub use windlass_core::time::Times;
    pub use windlass_core::{BreakerPhase, BreakerPolicy, TargetState};
    pub use windlass_core::{
        Check, Checks, Comparison, Cut, Departure, Difference, Differs, Digest, ForkChange, RecordedBatch, Start,
        Stuck, Submitted, Work,
    };
}

pub mod session {
    #![doc = include_str!("docs/session.md")]

    pub use windlass_core::activity::{SessionEvent, SessionPosition, SessionWatch};
    pub use windlass_core::call::{EditWriter, FileEdits, SessionView, StagedEdits, UnmadeEdit};
    pub use windlass_core::ctx::{CtxFiles, CtxSession, ShownTool};
    pub use windlass_core::store::{
        ArtifactId, Author, BadSessionPath, Closing, DataEntry, EditedContent, FileEdit, FileEncoding, FileExpectation,
        FileInfo, FileLimits, FileRefusal, FileUsage, NewMessage, SessionCursor, SessionFilter, SessionInfo,
        SessionMessage, SessionPath, SessionRefusal, SessionSettings, SettingsChange, TurnPolicy, Wake, WakePolicy,
    };
    pub use windlass_core::tool::{SessionTools, ToolsChange};
    pub use windlass_core::{
        ContentReader, ContextReport, ContextSection, FileError, FileReader, FileView, FileWriter, Grep, GrepMatch,
        GrepResult, Posted, Session, SessionFiles, Unfinished, UnfinishedRuns,
    };
}

pub mod connections {
    //! Connections to providers: a credential for each provider and principal, sealed at rest.

    pub use crate::kept::{Connecting, Connections};
    pub use windlass_core::store::{ConnectionInfo, ConnectionKey, Credential};
    pub use windlass_core::{ExpiredConnection, Refresh, Refreshed};
}

pub mod policy {
    #![doc = include_str!("docs/policy.md")]

    pub use windlass_core::policy::*;
}

pub mod inbox {
    #![doc = include_str!("docs/inbox.md")]

    pub use crate::people::Inbox;
    pub use windlass_core::run::state::{Blocked, Doubt, Park};
    pub use windlass_core::store::{Resolution, Settlement};
    pub use windlass_core::{About, AskedCall, Awaited, Counted, Question, ReplyResult};
}

pub mod store {
    #![doc = include_str!("docs/store.md")]

    pub use crate::file::File;
    pub use windlass_core::store::{
        Access, ArtifactHasher, ArtifactId, Artifacts, Driving, MemoryStore, Queries, Retention, Store, StoreError,
        Stored, Swept, Tidied, Upkeep,
    };
    pub use windlass_core::troubles;
    pub use windlass_core::{ArtifactError, ArtifactReader, ArtifactWriter, Digest, read_json};
    pub use windlass_store::{
        CheckReport, Durability, FileLock, FileOwner, Health, SqliteStore, access_problem, check_file, file_owner,
        lock_file,
    };
}

/// Testing your tools: the crash matrix and its parts. Needs the feature `testing`.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::disk::SqliteDisk;
    pub use windlass_core::testing::*;
}

/// What generated code refers to. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use {schemars, serde, serde_json, windlass_core as core};
}
