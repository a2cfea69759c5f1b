//! Errors of reads, and which of them mean damage.

use windlass_core::store::StoreError;
use windlass_core::{BadPath, RunId};

use crate::sqlite::damage::Damage;
use crate::sqlite::fault::Fault;

/// An error of a read.
#[derive(Debug, thiserror::Error)]
pub(in crate::sqlite) enum ReadError {
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    #[error("{}", .0.cause())]
    Fault(Fault),
    #[error("its content cannot be decoded: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("its content cannot be decoded: {0}")]
    Path(#[from] BadPath),
    #[error("a packed part of a journal cannot be read: {0}")]
    Segment(String),
    #[error("the large value {0} of a record or message is missing")]
    Payload(String),
    #[error("the part of a journal that ends at position {0} is missing")]
    Broken(i64),
    #[error("{}", .0.location)]
    Damaged(Damage),
    #[error(transparent)]
    Refused(StoreError),
}

/// The location of damage in a run's own row.
pub(in crate::sqlite) const RUN_ROW: &str = "its row in the table of runs";

impl ReadError {
    /// The damage behind this error, if it means damage. `about` is the run that was read.
    pub(super) fn damage(&self, about: Option<RunId>) -> Option<Damage> {
        let location = match self {
            Self::Damaged(damage) => {
                return Some(Damage { run: damage.run.or(about), location: damage.location.clone() });
            }
            Self::Sql(error) if is_damage(error) => error.to_string(),
            Self::Fault(Fault::Damaged(message)) => message.clone(),
            Self::Decode(_) | Self::Path(_) | Self::Segment(_) | Self::Payload(_) | Self::Broken(_) => self.to_string(),
            Self::Sql(_) | Self::Fault(_) | Self::Refused(_) => return None,
        };
        Some(Damage { run: about, location })
    }

    /// Attributes damage to a run.
    pub(in crate::sqlite) fn about_run(self, run: Option<RunId>) -> Self {
        match self.damage(run) {
            Some(damage) => Self::Damaged(damage),
            None => self,
        }
    }

    /// The error that the writer answers with.
    pub(in crate::sqlite) fn into_store_error(self, run: Option<RunId>) -> StoreError {
        match (self.damage(run), self) {
            (Some(Damage { run, location }), _) => StoreError::Damaged { run, place: location },
            (None, Self::Refused(error)) => error,
            (None, error) => StoreError::Unavailable(error.to_string()),
        }
    }
}

/// Whether the error means that the file does not contain what was written.
pub(in crate::sqlite) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    match error {
        FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..) => true,
        error => matches!(Fault::of(error), Fault::Damaged(_)),
    }
}
