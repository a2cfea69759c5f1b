//! Operations on JSON values: digests, differences, size limits and reading.

pub(crate) mod diff;
pub(crate) mod digest;
mod metadata;
pub(crate) mod read;
pub(crate) mod size;

pub use diff::Difference;
pub use digest::Digest;
pub use metadata::Metadata;
pub use read::read_json;
