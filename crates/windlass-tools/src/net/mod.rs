//! The rules of the network, written once: where a request may go, and that it goes there and nowhere else.
//!
//! A name is looked up once, every address it has is checked, and the connection is made to a checked address: a name that
//! has another address a moment later gains nothing. Redirections are followed by hand, each hop under the same rules.
//! Answers are bounded in size, also once unpacked, and in time.

mod address;
mod client;
mod pool;
mod redirect;
mod rules;
mod unpack;
mod url;

pub use client::{Answer, Client, Limits, NetError, Options, Outgoing, Trouble};
pub use rules::{Allow, Rules};
pub use url::{BadUrl, Url};

pub use hyper::header::{HeaderName, HeaderValue};
pub use hyper::{HeaderMap, Method, StatusCode};
pub use windlass_http::{Host, Origin, Resolve, System};
