//! An HTTP/1.1 client with control over connections: it looks a host up once, checks every address with a filter, and
//! connects to an address that passed. Redirects are not followed and proxy settings of the environment are ignored,
//! because both would lead to addresses that were not checked.

mod body;
mod connect;
mod origin;
mod resolve;
mod tls;

pub use body::{BodyError, read};
pub use connect::{ConnectError, Connector, Payload, Pinned, Sender, causes};
pub use origin::{Host, Origin};
pub use resolve::{Resolve, System};
