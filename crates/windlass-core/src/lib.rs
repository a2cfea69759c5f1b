//! The kernel of Windlass: tools, calls, runs, the journal, and every decision about them.
//!
//! It depends on no database, no network and no executor: [`store::Store`], [`time::Clock`] and [`spawn::Spawn`] are traits.
//! Most programs use it through the `windlass` crate.
//!
//! Where things are decided:
//! - what happens when a body asks for an operation that the journal may have recorded: `run/replay.rs`, one pure function;
//! - what a failure looks like from outside: [`tool::view`];
//! - who may write to a run: [`store`].

pub mod activity;
mod admit;
mod artifacts;
mod attribution;
mod begin;
pub mod call;
mod connections;
pub mod ctx;
mod driver;
mod drives;
mod env;
mod error;
pub mod explain;
mod id;
mod kernel;
pub mod limits;
mod path;
pub mod policy;
mod reading;
mod replay_check;
mod roster;
pub mod run;
mod runtime;
mod scope;
mod session;
pub mod spawn;
pub mod store;
mod take_up;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod tool;
mod transfer;
pub mod troubles;
mod undriven;
mod value;
mod watchdog;
mod worker;

pub use admit::{BreakerPhase, BreakerPolicy, TargetState};
pub use artifacts::{ArtifactError, ArtifactReader, ArtifactWriter};
pub use attribution::check_attribution;
pub use connections::{ExpiredConnection, Refresh, Refreshed};
pub use drives::Drives;
pub use error::{Error, Result};
pub use id::{RunId, ToolId, WorkerId};
pub use path::{BadPath, Path};
pub use replay_check::Checks;
pub use run::check::Check;
pub use run::compare::{Comparison, Departure, Differs};
pub use run::fork::{Cut, ForkChange};
pub use runtime::{
    About, AskedCall, Awaited, Config, Connect, ContextReport, ContextSection, Counted, FileWriter, Observer, Posted,
    Question, RecordedBatch, ReplyResult, Runtime, Session, SessionFiles, Start, Submitted, Unfinished, UnfinishedRuns,
    Work, decode,
};
pub use session::files::{ContentReader, FileError, FileReader, FileView};
pub use session::grep::{Grep, GrepMatch, GrepResult};
pub use value::{Difference, Digest, read_json};
pub use watchdog::Stuck;
