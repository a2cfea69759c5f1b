//! The network rules: which hosts and addresses a request may reach, and that it reaches no other.
//!
//! A name is resolved once, all of its addresses are checked, and the connection goes to a checked address, so a name
//! that resolves differently a moment later gains nothing. Redirects are followed here, each under the same rules.
//! Responses are limited in time and in size, also after decompression.

mod client;
mod decompress;
mod pool;
mod redirect;
mod rules;
mod special;
mod url;

pub use client::{Client, Limits, NetError, NetErrorKind, Options, Outgoing, Response};
pub use rules::{Allow, Rules};
pub use url::{BadUrl, Url};

pub use hyper::header::{HeaderName, HeaderValue};
pub use hyper::{HeaderMap, Method, StatusCode};
pub use windlass_http::{Host, Origin, Resolve, System};
