//! What every store must do, stated once. A store joins by a function that makes a [`Fixture`] and
//! one line: `conformance!(crate::its_module::fixture);`.

pub mod bench;
pub mod credentials;
pub mod durability;
pub mod faulty;
pub mod forges;
pub mod functions;
pub mod groups;
pub mod history;
pub mod queue;
pub mod races;
pub mod random;
pub mod reading;
pub mod reruns;
pub mod results;
pub mod secrets;
pub mod time;

use std::sync::Arc;

use delta_store::Store;
use delta_store::read::Reader;
use delta_store::side_tables::SideTables;

/// Opens a store; again for a reopen.
pub type Open = Box<dyn Fn() -> (Box<dyn Store>, Arc<dyn Reader>, Arc<dyn SideTables>)>;

/// A place for one store's state.
pub struct Fixture {
    /// Opens the state. Where writers are not `shared`, the former store is dropped first.
    pub open: Open,
    /// Several stores may be open and write at once.
    pub shared: bool,
}

/// One `#[test]` per case.
macro_rules! suite {
    ($make:path; $($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                crate::conformance::$module::$case(&$make);
            })*
        })*
    };
}
pub(crate) use suite;

/// The whole suite for one store.
macro_rules! conformance {
    ($make:path) => {
        crate::conformance::suite! {
            $make;
            durability {
                committed_work_is_there_after_a_reopen
                an_uncommitted_batch_is_not_there
                a_lost_answer_is_resolved_by_reading
                a_conflict_writes_nothing_and_runs_again
                renewals_are_stored_without_an_event
                the_incarnation_only_rises
                a_store_knows_itself_again_and_whether_it_was_used
                the_newest_moment_is_remembered
                flushes_are_counted
                specs_are_kept_byte_by_byte
            }
            history {
                versions_have_no_gap_and_hashes_chain
                one_batch_may_hold_many_records_of_a_run
                past_leases_are_found_by_their_epoch
                the_doctor_finds_nothing
                pruning_removes_whole_runs
                runs_that_still_have_work_are_not_pruned
            }
            groups {
                runs_of_a_group_go_one_after_the_other
                jobs_of_a_group_go_one_after_the_other
                a_newer_run_ends_the_older_ones_of_its_group
                one_batch_gives_a_turn_once
                what_a_plan_says_about_its_run_is_stored
            }
            reruns {
                reruns_are_found_from_the_run_they_repeat
                kept_jobs_have_ended_and_say_whose_result_they_have
            }
            queue {
                attempts_come_in_queue_order
                only_fit_attempts_are_claimed
                what_was_granted_in_this_batch_is_skipped
                a_row_not_granted_stays_queued
                a_lost_attempt_is_queued_again
                match_keys_name_what_is_queued
                depths_and_places_are_counted
                needs_keep_jobs_out_of_the_queue
            }
            time {
                only_what_is_due_is_found
                a_retry_is_due_when_its_delay_is_over
                a_renewal_moves_what_is_due
                runs_are_due_at_their_limits
                leased_attempts_are_listed
            }
            reading {
                absent_rows_are_entered_as_absent
                what_the_batch_knows_is_not_loaded_again
                live_jobs_come_with_their_attempts
                holders_are_found_while_they_hold
                an_idempotency_key_finds_its_run
                filters_and_pages_of_runs
                agents_are_kept_seen_drained_and_revoked
                a_batch_sees_how_an_agent_stands_now
                stats_count_what_is_there
            }
            results {
                a_repeated_result_is_one_result
                a_result_that_is_taken_back_is_gone
                only_the_latest_lease_is_shown
                pages_come_by_job_and_status_and_have_no_gap
                a_test_is_followed_over_time
                results_go_with_their_run
            }
            credentials {
                credentials_are_kept_and_revoked
                what_was_revoked_or_used_stays_so
                an_enrolment_is_exchanged_once
                an_enrolment_that_is_over_is_not_exchanged
                of_many_exchanges_at_once_one_succeeds
            }
            secrets {
                secrets_are_kept_replaced_and_removed
                secrets_are_found_by_what_they_are_good_for
            }
            functions {
                a_delayed_function_is_queued_when_its_moment_comes
                a_unique_key_belongs_to_one_run_at_a_time
                what_fails_for_good_is_a_dead_letter_until_it_is_put_aside
                a_function_that_nobody_has_fails_at_once
                a_run_that_says_how_long_it_is_kept_goes_then
                a_function_has_its_own_delays
                a_time_to_keep_ends_no_dead_letter_and_frees_no_key
                what_is_set_about_queues_is_kept
                a_pause_and_a_route_at_once_are_both_kept
            }
            forges {
                repositories_are_kept_replaced_and_removed
                what_is_owed_is_written_with_its_run_and_follows_it
                a_report_is_taken_by_one_of_many
                a_delivery_makes_one_run_however_often_it_comes
                an_approval_is_kept_and_goes_with_its_run
            }
            races {
                many_runners_each_get_their_own
                sixty_four_clients_on_one_run
                two_claims_never_grant_one_attempt_twice
            }
            random {
                random_commands_match_the_model
            }
        }
    };
}
pub(crate) use conformance;
