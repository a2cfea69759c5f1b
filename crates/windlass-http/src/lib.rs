//! HTTP/1.1 over connections that the caller controls: one lookup, a filter over every address it found, and a connection to
//! an address that passed. Redirections are not followed, and proxies named in the environment are ignored: both would lead
//! to addresses that were not checked.

mod body;
mod connect;
mod origin;
mod resolve;
mod tls;

pub use body::{BodyError, read};
pub use connect::{ConnectError, Connector, Payload, Pinned, Sender, causes};
pub use origin::{Host, Origin};
pub use resolve::{Resolve, System};
