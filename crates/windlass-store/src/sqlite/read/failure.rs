//! Why something could not be read, and whether that is damage.

use windlass_core::store::StoreError;
use windlass_core::{BadPath, RunId};

use crate::sqlite::damage::Damage;
use crate::sqlite::fault::Fault;

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::sqlite) enum ReadError {
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    #[error("{}", .0.cause())]
    Fault(Fault),
    #[error("what it holds cannot be read: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("what it holds cannot be read: {0}")]
    Place(#[from] BadPath),
    #[error("a packed part of a journal cannot be read: {0}")]
    Segment(String),
    #[error("the large value {0} of a record or message is missing")]
    Payload(String),
    #[error("the part of a journal that ends at position {0} is missing")]
    Broken(i64),
    #[error("{}", .0.place)]
    Damaged(Damage),
    #[error(transparent)]
    Refused(StoreError),
}

/// The place that is damaged when a run's own row is.
pub(in crate::sqlite) const ROW: &str = "its row in the table of runs";

impl ReadError {
    /// The damage that kept it from being read, if it was that.
    pub(super) fn damage(&self, about: Option<RunId>) -> Option<Damage> {
        let place = match self {
            Self::Damaged(damage) => return Some(Damage { run: damage.run.or(about), place: damage.place.clone() }),
            Self::Sql(error) if is_damage(error) => error.to_string(),
            Self::Fault(Fault::Damaged(said)) => said.clone(),
            Self::Decode(_) | Self::Place(_) | Self::Segment(_) | Self::Payload(_) | Self::Broken(_) => {
                self.to_string()
            }
            Self::Sql(_) | Self::Fault(_) | Self::Refused(_) => return None,
        };
        Some(Damage { run: about, place })
    }

    /// The same about a run, where it is known which.
    pub(in crate::sqlite) fn of(self, run: Option<RunId>) -> Self {
        match self.damage(run) {
            Some(damage) => Self::Damaged(damage),
            None => self,
        }
    }

    /// What the writer says of it.
    pub(in crate::sqlite) fn told(self, run: Option<RunId>) -> StoreError {
        match (self.damage(run), self) {
            (Some(Damage { run, place }), _) => StoreError::Damaged { run, place },
            (None, Self::Refused(error)) => error,
            (None, error) => StoreError::Unavailable(error.to_string()),
        }
    }
}

/// Whether SQLite or the column says that the file does not hold what was written.
pub(in crate::sqlite) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    match error {
        FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..) => true,
        error => matches!(Fault::of(error), Fault::Damaged(_)),
    }
}
