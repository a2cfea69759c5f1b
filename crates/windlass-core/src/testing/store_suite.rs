//! What every [`Store`] must do, as checks that run against any of them.
//!
//! The author of a store writes one test, with stores that keep finished runs as long as [`Retention`] says by default:
//!
//! ```
//! # use std::sync::Arc;
//! # use windlass_core::store::MemoryStore;
//! windlass_core::testing::store_suite::run_all(|| Arc::new(MemoryStore::new()));
//! ```

mod artifacts;
mod commits;
mod generations;
mod keys;
mod leases;
mod lists;
mod mailbox;
mod owners;
mod retention;
mod scene;
mod sessions;
mod starts;
mod suspend;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[cfg(doc)]
use crate::store::Retention;
use crate::store::Store;

/// One thing a store must do.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// Says what.
    pub name: &'static str,
    /// Panics if an empty store does not do it.
    pub check: fn(&dyn Store),
}

macro_rules! behaviours {
    ($($topic:ident { $($name:ident,)* })*) => {
        /// Every behaviour, each to be checked on an empty store of its own.
        pub const BEHAVIOURS: &[Behaviour] = &[$($(Behaviour { name: stringify!($name), check: $topic::$name },)*)*];
    };
}

behaviours! {
    commits {
        w08_a_refused_commit_leaves_nothing,
        w08_a_commit_without_records_is_written,
        w08_the_identical_commit_again_is_answered_as_the_first_time,
        w08_a_run_is_created_once,
        w08_answers_come_in_the_order_of_submission,
        w08_dropping_the_ticket_does_not_undo_the_write,
        w08_every_value_survives_byte_for_byte,
        w08_big_and_deep_records_survive,
        e26_secrets_come_back_as_they_were,
        w08_many_runs_interleave,
    }
    owners {
        l22_a_stale_owner_cannot_write,
        l22_a_write_out_of_sequence_is_refused,
        l22_an_outsider_cannot_write_a_journal,
        a_run_that_is_not_there_is_said_not_to_be_there,
        a_claim_returns_everything,
        a_claim_lets_a_held_run_go_on,
        a_claim_of_a_finished_run_is_refused,
        a_claim_tells_whether_the_last_owner_ended_well,
        a_claim_calls_no_owner_dead_that_may_be_alive,
        a_claim_calls_owners_dead_that_all_ended_well,
        an_owner_may_start_and_write_to_others_whatever_becomes_of_it,
    }
    leases {
        l22_a_leased_run_is_not_taken_away,
        a_worker_may_take_its_own_run_again,
        a_worker_that_never_renewed_has_no_lease,
        what_was_let_go_of_is_not_leased,
        runs_whose_lease_is_over_are_due,
    }
    suspend {
        w03_a_suspended_run_is_due_when_its_time_has_come,
        w03_mail_that_was_there_first_makes_it_due,
        w03_mail_that_comes_later_makes_it_due,
        w03_mail_at_the_moment_of_suspension_is_not_lost,
        w03_mail_that_is_not_there_cannot_be_examined,
        w03_only_sleep_is_interrupted_by_mail,
        w03_a_page_of_due_runs_has_a_limit,
    }
    starts {
        a_started_run_is_queued_for_anybody,
        a_run_is_started_once,
        a_key_belongs_to_one_run_for_ever,
    }
    keys {
        e09_w03_places_in_queues_of_keys_are_kept_while_the_run_is_not_driven,
    }
    generations {
        a_new_generation_has_a_fresh_journal,
        a_generation_may_begin_and_sleep_in_one_commit,
        b12_a_journal_is_read_in_pages,
    }
    sessions {
        turns_wait_for_the_turns_before_them,
        a_turn_may_be_refused_instead,
        a_turn_that_is_over_at_once_is_over,
        a_feed_has_the_records_of_a_session_in_order,
        a_feed_can_be_followed_without_gaps,
    }
    mailbox {
        mail_has_positions_that_are_never_used_again,
        mail_to_a_finished_run_is_refused_unless_it_settles_an_open_doubt,
        a_settlement_closes_the_doubt_of_a_finished_run,
        mail_is_kept_until_it_is_consumed,
        a_message_is_taken_once,
        e18_mail_of_many_runs_is_read_at_once,
        a_mailbox_says_whether_it_has_had_a_message,
        a_refused_message_takes_its_commit_with_it,
        an_owners_commit_again_sends_nothing_again,
    }
    retention {
        w09_a_finished_run_becomes_a_summary_and_goes,
        w09_what_is_not_finished_is_kept_however_old_it_is,
        w09_a_run_is_kept_as_long_as_the_run_that_spawned_it,
        w09_a_run_with_open_doubts_is_kept_until_they_are_settled,
        w09_a_key_stays_taken_for_a_while_after_its_run_is_gone,
        w09_a_purged_run_is_gone_at_once,
        w09_what_may_be_needed_is_not_purged,
        w09_a_session_is_read_on_after_its_runs_are_gone,
    }
    lists {
        lists_filter_and_turn_pages,
        lists_filter_by_state,
        the_inbox_has_what_waits_for_a_person,
        lists_show_sessions_and_children,
        lists_begin_with_the_newest_if_asked_to,
        lists_show_the_runs_of_a_tool,
        runs_are_counted,
    }
    artifacts {
        l16_content_comes_back_by_its_name_from_any_place,
        l16_an_upload_is_not_there_before_it_is_finished,
        l16_pieces_have_one_size,
        l16_what_nobody_refers_to_is_collected_when_its_time_is_over,
        l16_what_a_run_refers_to_is_kept,
        l16_a_name_alone_opens_nothing,
        l16_a_family_without_a_session_shares,
        l16_a_reference_to_what_is_not_there_refuses_its_commit,
        l16_a_run_may_be_started_with_what_another_refers_to,
    }
}

/// Checks every behaviour, each on an empty store that `make` returns.
///
/// # Panics
///
/// If the store fails any of them; the message names each that failed, and how.
pub fn run_all(mut make: impl FnMut() -> Arc<dyn Store>) {
    let mut secrets = Vec::new();
    let mut failures: Vec<String> = BEHAVIOURS
        .iter()
        .filter_map(|behaviour| {
            let store = make();
            secrets.push(store.secret());
            let problem = catch_unwind(AssertUnwindSafe(|| (behaviour.check)(&*store))).err()?;
            let text = problem.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| problem.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            Some(format!("\n- {}: {text}", behaviour.name))
        })
        .collect();
    secrets.sort_unstable();
    if secrets.windows(2).any(|pair| pair[0] == pair[1]) {
        failures.push("\n- two stores have the same secret".to_owned());
    }
    let (failed, all) = (failures.len(), BEHAVIOURS.len());
    assert!(failures.is_empty(), "the store fails {failed} of {all} behaviours:{}", failures.concat());
}
