//! Looking up names.

use std::io;
use std::net::IpAddr;

use futures_util::future::BoxFuture;

/// Looks up the addresses of a name. Asked once for every request: what it answers is checked and then connected to, and
/// nobody asks again in between.
pub trait Resolve: Send + Sync + 'static {
    /// Every address of the name.
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Resolve for System {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
