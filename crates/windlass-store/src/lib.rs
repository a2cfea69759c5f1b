//! Where Windlass keeps runs on disk.
//!
//! [`SqliteStore`] keeps them in one SQLite file that one process owns. It needs no server, survives `kill -9` and, with
//! [`Durability::Full`], the power going out. Every store keeps the contract of [`windlass_core::store::Store`], and
//! `windlass_core::testing::store_suite` checks that it does.
//!
//! This crate knows journals, mailboxes and run states. It knows no tools and decides nothing about replay.

mod sqlite;

pub use sqlite::{
    BackupError, Claim, Durability, Health, Holder, OpenError, Options, Report, SqliteStore, check_file, claim,
    forbidden, holder,
};
