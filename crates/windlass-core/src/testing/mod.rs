//! For testing tools and stores: a seeded executor with a virtual clock, and the crash matrix.

mod crash;
mod sim;
pub mod store_suite;
#[cfg(test)]
mod tests;

pub use crash::{CrashMatrix, Disk, Ledger, MemoryDisk, Report};
pub use sim::{Sim, block_on};
