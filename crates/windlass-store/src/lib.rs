//! Durable storage for Windlass runs.
//!
//! [`SqliteStore`] keeps runs in one SQLite file that one process owns. It needs no server and survives `kill -9`; with
//! [`Durability::Full`] it also survives a power failure. Every store implements the contract of
//! [`windlass_core::store::Store`], which `windlass_core::testing::store_suite` checks.
//!
//! This crate stores journals, mailboxes and run states. It knows nothing about tools and makes no replay decisions.

mod sqlite;

pub use sqlite::{
    BackupError, CheckReport, Durability, FileLock, FileOwner, Health, OpenError, Options, SqliteStore, access_problem,
    check_file, file_owner, lock_file,
};
