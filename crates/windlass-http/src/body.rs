//! Reading response bodies up to a size limit.

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;

/// A body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than the caller's limit.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The connection failed before the end of the body.
    #[error("{0}")]
    Broken(String),
}

/// Reads a whole body of at most `limit` bytes. A body whose announced length exceeds the limit is not read at all.
pub async fn read<B>(body: B, limit: usize) -> Result<Bytes, BodyError>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyError::TooLarge(limit));
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(limit)),
        Err(error) => Err(BodyError::Broken(error.to_string())),
    }
}
