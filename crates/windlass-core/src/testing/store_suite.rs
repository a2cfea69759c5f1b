//! Checks of everything that a [`Store`] must do, for any implementation.
//!
//! The author of a store writes one test. The stores in it must have the default [`Retention`]:
//!
//! ```
//! # use std::sync::Arc;
//! # use windlass_core::store::MemoryStore;
//! windlass_core::testing::store_suite::run_all(|| Arc::new(MemoryStore::new()));
//! ```

mod artifacts;
mod commits;
mod connections;
mod generations;
mod keys;
mod leases;
mod lists;
mod mailbox;
mod owners;
mod retention;
mod scene;
mod session_files;
mod session_rows;
mod session_tools;
mod session_turns;
mod sessions;
mod starts;
mod suspend;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[cfg(doc)]
use crate::store::Retention;
use crate::store::Store;

/// One required behaviour of a store.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// The name of the behaviour.
    pub name: &'static str,
    /// Panics if an empty store does not have it.
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
        w08_an_identical_commit_gets_the_same_answer_again,
        w08_a_run_is_created_once,
        w08_answers_come_in_the_order_of_submission,
        w08_dropping_the_ticket_does_not_undo_the_write,
        w08_every_value_survives_byte_for_byte,
        w08_big_and_deep_records_survive,
        e26_secrets_are_read_back_unchanged,
        w08_many_runs_interleave,
    }
    owners {
        l22_a_stale_owner_cannot_write,
        l22_a_write_out_of_sequence_is_refused,
        l22_an_outsider_cannot_write_a_journal,
        an_unknown_run_is_reported_as_missing,
        a_claim_returns_everything,
        a_claim_resumes_a_held_run,
        a_claim_of_a_finished_run_is_refused,
        a_claim_tells_whether_the_last_owner_shut_down_cleanly,
        a_claim_reports_no_owner_dead_that_may_be_alive,
        a_claim_reports_owners_dead_that_all_shut_down_cleanly,
        an_owners_messages_that_cannot_be_delivered_are_left_out,
    }
    leases {
        l22_a_leased_run_is_not_taken_away,
        a_worker_may_claim_its_own_run_again,
        a_worker_that_never_renewed_has_no_lease,
        a_released_run_is_not_leased,
        runs_whose_lease_is_over_are_due,
        e18_every_write_of_a_superseded_worker_is_refused,
        e18_due_runs_are_claimed_as_they_are_found,
        e18_a_claim_of_due_runs_tells_their_earlier_state,
    }
    suspend {
        w03_a_suspended_run_is_due_when_its_time_has_come,
        w03_unexamined_mail_makes_a_suspended_run_due,
        w03_later_mail_makes_a_suspended_run_due,
        w03_mail_at_the_moment_of_suspension_is_not_lost,
        w03_a_position_beyond_the_mail_cannot_be_examined,
        w03_mail_makes_only_suspended_runs_due,
        w03_a_page_of_due_runs_has_a_limit,
    }
    starts {
        a_started_run_is_queued_for_any_worker,
        a_run_is_started_once,
        a_key_belongs_to_one_run_for_ever,
    }
    keys {
        e09_w03_key_queue_positions_are_kept_while_the_run_is_not_driven,
    }
    connections {
        e06_a_connection_is_kept_for_its_provider_and_principal,
        e06_only_the_credential_that_was_meant_expires_or_is_refreshed,
        e06_connecting_tells_the_runs_of_the_principal_in_the_same_step,
    }
    generations {
        a_new_generation_has_a_new_journal,
        a_generation_may_begin_and_suspend_in_one_commit,
        b12_a_journal_is_read_in_pages,
    }
    sessions {
        turns_wait_for_earlier_turns,
        a_turn_may_be_refused_instead,
        a_turn_that_ends_in_its_first_commit_is_over,
        a_feed_has_the_records_of_a_session_in_order,
        a_feed_can_be_followed_without_gaps,
    }
    session_tools {
        l20_b02_a_change_of_shown_tools_is_stored_and_seen_at_once,
        l20_w09_a_purged_session_hides_nothing_of_its_next_one,
        l20_a_change_of_tools_by_an_operation_gets_its_verdict_again,
        l20_l25_a_change_of_tools_is_committed_with_an_outcome,
        l20_l28_a_write_reaches_the_sessions_of_its_principal_only,
        l20_l28_a_run_is_created_in_a_session_of_its_principal_only,
        l20_l28_of_two_principals_that_create_a_session_at_once_one_gets_it,
    }
    session_rows {
        l20_a_session_is_opened_once_and_shown,
        l20_sessions_are_listed_newest_first_in_pages,
        l20_a_run_brings_its_session_into_being,
        l20_messages_have_positions_and_are_read_in_pages,
        l20_a_message_with_a_dedupe_key_is_posted_once,
        l20_a_closed_session_refuses_new_work,
        l20_a_write_of_an_operation_gets_its_verdict_again,
        l20_a_next_generation_has_verdicts_of_its_own,
        l20_l25_a_message_of_an_outcome_is_posted_with_it,
        e27_values_and_secrets_are_kept_apart,
        e13_the_outcomes_of_a_session_are_kept_and_added_once,
        e13_the_outcomes_of_a_session_go_with_it,
        l20_w09_a_closed_session_is_purged_when_its_runs_have_ended,
        l20_w09_a_session_without_runs_is_purged_at_once,
        l20_w09_closed_sessions_expire,
    }
    session_files {
        e15_files_are_written_read_listed_and_deleted,
        e15_files_and_directories_do_not_replace_each_other,
        e15_a_write_can_require_what_is_there,
        e15_files_have_limits,
        e15_contents_are_shared_and_kept_while_a_file_has_them,
        e15_a_run_keeps_a_content_that_it_read,
        e15_only_content_that_the_writer_may_read_becomes_a_file,
        e15_a_write_of_an_operation_gets_its_verdict_again,
        e15_l25_an_outcome_changes_the_files_that_were_staged_for_it,
        e15_w09_files_are_readonly_once_closed_and_purged_with_the_session,
    }
    session_turns {
        l20_settings_are_kept_with_the_session,
        l20_a_waking_message_starts_one_turn_of_the_agent,
        l20_a_wake_without_an_agent_is_only_marked,
        b11_a_wake_is_queued_or_refused_while_the_session_has_a_turn,
        l20_l25_a_message_of_an_outcome_wakes_and_is_never_refused,
        l20_a_turn_id_names_one_run,
        l20_a_session_has_a_limit_of_unfinished_runs,
        l20_the_content_of_a_session_is_measured,
    }
    mailbox {
        mail_has_positions_that_are_never_used_again,
        mail_to_a_finished_run_is_refused_unless_it_settles_an_open_doubt,
        a_settlement_closes_the_doubt_of_a_finished_run,
        mail_is_kept_until_it_is_consumed,
        a_message_is_accepted_once_per_dedupe_key,
        e18_mail_of_many_runs_is_read_at_once,
        a_mailbox_tells_whether_it_had_a_message,
        runs_that_await_a_run_are_told_in_the_commit_that_finishes_it,
        a_refused_message_refuses_its_whole_commit,
        resubmitting_an_owners_commit_sends_no_message_twice,
    }
    retention {
        w09_a_finished_run_becomes_a_summary_and_is_removed_later,
        w09_unfinished_runs_are_kept_however_old_they_are,
        w09_a_run_is_kept_as_long_as_the_run_that_spawned_it,
        w09_a_run_with_open_doubts_is_kept_until_they_are_settled,
        w09_a_key_stays_taken_for_a_while_after_its_run_is_removed,
        w09_a_purged_run_is_gone_at_once,
        w09_unfinished_and_doubted_runs_are_not_purged,
        w09_a_session_feed_continues_after_its_runs_are_removed,
    }
    lists {
        lists_filter_and_page,
        lists_filter_by_state,
        the_inbox_has_what_waits_for_a_person,
        lists_show_sessions_and_children,
        lists_can_start_with_the_newest_run,
        lists_show_the_runs_of_a_tool,
        b13_lists_match_every_field_of_a_filter,
        b13_l28_runs_are_found_by_principal_cause_and_key,
        runs_are_counted,
        e25_unfinished_runs_are_counted_up_to_a_limit,
    }
    artifacts {
        l16_content_is_read_by_its_id_from_any_offset,
        l16_an_upload_is_not_visible_before_it_is_finished,
        l16_pieces_have_one_size,
        l16_content_without_references_is_deleted_when_its_time_is_over,
        l16_content_that_a_run_refers_to_is_kept,
        l16_an_id_alone_gives_no_access,
        l28_a_principal_reads_only_artifacts_of_its_own,
        l16_a_family_without_a_session_shares_artifacts,
        l16_a_reference_to_a_missing_artifact_refuses_its_commit,
        l16_a_run_may_be_started_with_artifacts_of_another_run,
    }
}

/// Checks every behaviour, each on an empty store that `make` returns.
///
/// # Panics
///
/// If the store lacks any of them; the message lists each failure.
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
