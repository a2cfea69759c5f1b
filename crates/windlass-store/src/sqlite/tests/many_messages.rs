//! How fast the latest messages of one session are read among a million.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::store::{Author, NewMessage, SessionChange, SessionWrite, Sessions, SettingsChange};
use windlass_core::testing::block_on;
use windlass_core::time::Timestamp;

use super::{SqliteStore, temp_db};
use crate::Durability;

const SESSIONS: usize = 10_000;
const MESSAGES: usize = 100;
const LAST: u64 = 50;

fn write(store: &SqliteStore, session: usize, change: SessionChange) -> impl FnOnce() {
    let write = SessionWrite::outside(format!("session {session}").into(), Timestamp::from_micros(1), change);
    let answer = store.write_session(write);
    move || drop(block_on(answer).unwrap().unwrap())
}

#[test]
#[ignore = "writes a million messages; run it in release"]
fn l20_the_last_50_messages_of_one_session_among_a_million_are_read_within_2_ms() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, Durability::Relaxed).unwrap();
    for round in 0..=MESSAGES {
        // A few hundred writes are in flight at once, and share a transaction.
        for first in (0..SESSIONS).step_by(500) {
            let change = || match round {
                0 => SessionChange::Open { title: None, owner: None, settings: SettingsChange::default() },
                _ => {
                    SessionChange::Post(NewMessage::text(Author::User, format!("message {round}: {}", "x".repeat(200))))
                }
            };
            let answers: Vec<_> = (first..first + 500).map(|session| write(&store, session, change())).collect();
            answers.into_iter().for_each(|answered| answered());
        }
    }
    let mut times: Vec<Duration> = (0..200)
        .map(|n| {
            let name: Arc<str> = format!("session {}", n * 37 % SESSIONS).into();
            let began = Instant::now();
            let latest = block_on(store.session(name.clone())).unwrap().unwrap().messages;
            let messages = block_on(store.session_messages(name, latest - LAST, 50)).unwrap();
            assert_eq!(messages.len(), 50);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    let (median, late) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("the last {LAST} of {MESSAGES} messages in each of {SESSIONS} sessions: {median:?}, 99 %: {late:?}");
    assert!(late <= Duration::from_millis(2), "{late:?}");
}
