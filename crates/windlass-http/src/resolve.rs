//! Name resolution.

use std::io;
use std::net::IpAddr;

use futures_util::future::BoxFuture;

/// Resolves host names. Called once for each request: the same addresses are checked and then connected to, so a second
/// answer of the name server cannot bypass the check.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of the name.
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Resolve for System {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }
}
