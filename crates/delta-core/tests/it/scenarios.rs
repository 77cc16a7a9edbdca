//! Each scenario is a file and a test of the same name; `docs/spec-coverage.md` points here.

use crate::scenario::play;

macro_rules! scenarios {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            play(include_str!(concat!("../scenarios/", stringify!($name), ".txt")));
        })*

        /// No scenario file is forgotten.
        #[test]
        fn every_scenario_file_is_played() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
            let mut files: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .map(|name| name.trim_end_matches(".txt").to_string())
                .collect();
            files.sort();
            let mut names = vec![$(stringify!($name).to_string(),)*];
            names.sort();
            assert_eq!(files, names);
        }
    };
}

scenarios! {
    a_cancel_before_the_completion_wins,
    a_cancel_is_requested_heard_and_acknowledged,
    a_cancel_nobody_hears_is_forced,
    a_cancel_of_one_lease_never_stops_the_next,
    a_cancel_while_planning_waits_for_the_plan,
    a_cell_that_is_tried_again_stops_nothing,
    a_completion_before_the_cancel_wins,
    a_deaf_runner_is_canceled_at_the_deadline,
    a_declined_grant_goes_to_another,
    a_failed_cell_stops_its_matrix_only,
    a_failed_need_drops_what_waits_for_it,
    a_grant_expires_when_its_ttl_is_shorter_than_the_ack_window,
    a_grant_nobody_acknowledges_is_taken_back,
    a_job_lives_from_grant_to_success,
    a_job_waits_for_its_turn_in_a_group,
    a_lease_lives_by_heartbeats_alone,
    a_newer_run_of_the_group_ends_this_one,
    a_once_job_is_never_silently_repeated,
    a_plan_says_how_its_run_goes,
    a_repeated_completion_gets_the_same_answer,
    a_reporter_decides_when_a_run_is_reported,
    a_rerun_keeps_failures_too,
    a_rerun_keeps_what_it_does_not_run_again,
    a_rerun_that_contradicts_itself_is_refused,
    a_retry_chain_cannot_outlive_its_run,
    a_retry_is_a_new_attempt,
    a_revoked_or_superseded_agent_is_not_heard,
    a_run_is_running_from_its_first_grant_on,
    a_run_nobody_takes_fails,
    a_run_past_its_limit_is_not_granted,
    a_run_times_out_with_jobs_alive,
    a_run_waits_for_its_turn_in_a_group,
    a_run_without_jobs_fails,
    a_runner_cannot_choose_its_cause_freely,
    a_runner_that_asks_again_gets_its_attempt_anew,
    a_superseded_run_is_canceled,
    a_timer_fires_once_or_not_at_all,
    a_turn_that_never_comes_ends_the_run,
    a_user_failure_is_not_retried_by_default,
    a_waiting_job_is_superseded,
    an_empty_plan_fails_and_nothing_to_run_succeeds,
    an_expired_lease_ends_a_cancel,
    an_outage_longer_than_the_ttl_is_a_loss_not_a_timeout,
    authority_returns_by_time_alone,
    fail_fast_stops_the_rest,
    foreign_and_invented_tokens_are_unknown,
    heartbeats_with_a_sequence_renew_once,
    needs_release_what_waits_for_them,
    nothing_is_accepted_before_the_acknowledgement,
    only_the_newest_lease_finalises,
    optional_jobs_do_not_decide_the_run,
    ownership_rests_on_the_token_not_on_the_runner,
    planning_fails_or_takes_too_long,
    retries_run_out,
    skipped_edges_are_walked_one_by_one,
    success_with_a_failing_exit_code_is_a_failure,
    ten_unacknowledged_grants_end_an_attempt,
    the_holder_reports_its_own_timeout,
    the_job_times_out_although_heartbeats_come,
    the_last_job_of_a_waiting_run_is_canceled_by_hand,
    the_server_takes_a_lease_back,
    three_lost_leases_end_an_attempt,
    two_runners_never_hold_one_attempt,
    what_nobody_executes_is_canceled_at_once,
}
