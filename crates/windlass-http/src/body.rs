//! Bodies of answers, read within a bound.

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It has more bytes than the caller takes.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The connection ended before it did.
    #[error("{0}")]
    Broken(String),
}

/// All of a body, if that has at most `most` bytes. One that announces more is not read at all.
pub async fn read<B>(body: B, most: usize) -> Result<Bytes, BodyError>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    if body.size_hint().lower() > most as u64 {
        return Err(BodyError::TooLarge(most));
    }
    match Limited::new(body, most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(most)),
        Err(error) => Err(BodyError::Broken(error.to_string())),
    }
}
