//! A lease when things go wrong: answers lost, the lease gone, the server busy or hostile.

use std::time::{Duration, Instant};

use bytes::Bytes;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{CompleteAck, ProtocolError, RunStatus, StaleLease, WorkAck};

use crate::agent::{Agent, job_number, steps};
use crate::bench::is_running;
use crate::fake_server::{FakeServer, State};

fn refused(reason: &str) -> Say {
    Say::CompleteAck(CompleteAck {
        run_id: "exe_1".to_owned(),
        accepted: false,
        reason: reason.to_owned(),
        ..Default::default()
    })
}

fn error(message_type: &str, retryable: bool) -> Say {
    Say::ProtocolError(ProtocolError {
        message_type: message_type.to_owned(),
        run_id: "exe_1".to_owned(),
        code: "BUSY".to_owned(),
        message: "not now".to_owned(),
        retryable,
        ..Default::default()
    })
}

fn instead(state: &mut State, name: &'static str, say: Say) {
    state.instead.entry(name).or_default().push_back(say);
}

// A18: on a line that stays up, too.
#[tokio::test]
async fn a_message_that_nobody_answers_is_sent_again_on_the_same_line() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.interval = Duration::from_millis(300);
        state.hold = ["WorkAccepted", "RunComplete"].into();
        state.jobs.push_back(steps(&["true"]));
    });
    let agent = Agent::start(&server);
    server.wait_for("WorkAccepted", 2).await;
    server.change(State::let_go);
    server.change(|state| state.hold = ["RunComplete"].into());
    let results = server.wait_results(2).await;
    assert_eq!(results[0], results[1]);
    server.change(State::let_go);
    server.wait_idle().await;
    assert_eq!(server.count("Register"), 1);
    agent.shut_down().await;
}

// A file that cannot be removed is left where it is; it keeps no agent from starting, and no
// attempt gets its place.
#[tokio::test]
async fn what_cannot_be_removed_does_not_stand_in_the_way() {
    let server = FakeServer::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let attempts = folder.path().join("work/attempts");
    std::fs::create_dir_all(&attempts).expect("a folder");
    // No folder, and so nothing that an agent knows how to remove.
    let left = attempts.join("1");
    std::fs::write(&left, "left behind").expect("a file");
    let agent = Agent::start_again(folder, &server);
    server.change(|state| state.jobs.push_back(steps(&["true"])));
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success, "{result:?}");
    assert!(left.exists());
    agent.shut_down().await;
}

// A18, A67, F5: every message is sent again until it is answered, the result unchanged, though its
// lease is final by then; what is answered is forgotten.
#[tokio::test]
async fn lost_answers_are_asked_for_again_with_the_same_message() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.ttl = Duration::from_secs(60);
        state.lose = [("WorkAccepted", 1), ("RunComplete", 2)].into();
        state.jobs.push_back(steps(&["echo one; exit 3"]));
    });
    let agent = Agent::start(&server);
    let results = server.wait_results(3).await;
    assert_eq!(results[0], results[1]);
    assert_eq!(results[1], results[2]);
    server.wait_idle().await;
    assert_eq!(
        server.results().len(),
        3,
        "what is answered is not repeated"
    );
    assert_eq!(server.count("WorkAccepted"), 2);
    assert_eq!(server.count("Register"), 4);
    assert!(agent.has_forgotten());
    agent.shut_down().await;
}

#[tokio::test]
async fn lost_answers_to_logs_and_renewals_cost_no_byte() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.ttl = Duration::from_secs(60);
        state.interval = Duration::from_millis(300);
        state.lose = [("LogChunk", 1), ("Renewal", 1)].into();
        state
            .jobs
            .push_back(steps(&["echo one; sleep 1; echo two; exit 3"]));
    });
    let agent = Agent::start(&server);
    server.wait_for("RunComplete", 1).await;
    let wanted = "--- step 1: echo one; sleep 1; echo two; exit 3\none\ntwo\n\
                  --- step 1 ended with exit code 3\n";
    assert_eq!(server.log(), wanted);
    assert_eq!(server.count("Register"), 3);
    agent.shut_down().await;
}

// RP-45: stop work, stop renewing, free resources, never report.
#[tokio::test]
async fn a_stale_lease_ends_the_work_without_a_word() {
    for pushed in [true, false] {
        let stubborn = "echo $$; trap '' TERM; sleep 600 & wait; wait";
        let server = FakeServer::start(&[]).await;
        server.change(|state| {
            state.interval = Duration::from_millis(300);
            state.jobs.push_back(steps(&[stubborn]));
        });
        let agent = Agent::start(&server);
        let pid = job_number(&server).await;
        match pushed {
            true => server.say(Say::StaleLease(StaleLease {
                run_id: "exe_1".to_owned(),
                reason: "LEASE_REVOKED".to_owned(),
            })),
            false => server.change(|state| state.stale = true),
        }
        server.wait_idle().await;
        assert!(!is_running(&pid));
        let renewals = server.count("Renewal");
        agent.has_no_workspace().await;
        agent.shut_down().await;
        assert!(server.results().is_empty());
        assert_eq!(server.count("Renewal"), renewals);
    }
}

// RP-3: renewals carry a lease far beyond its time to live.
#[tokio::test]
async fn a_short_lease_is_kept_alive_by_renewals() {
    const TTL: Duration = Duration::from_secs(6);
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let step = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (TTL, Duration::from_millis(400));
        state.jobs.push_back(steps(&[&step]));
    });
    let agent = Agent::start(&server);
    server.wait_for("Renewal", 1).await;
    let renewed = Instant::now();
    let beyond = |state: &State| state.count("Renewal") >= 5 && renewed.elapsed() > TTL;
    server.wait_until(beyond).await;
    std::fs::write(&go, "").expect("told");
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    let beats = server.heartbeats();
    let renewals: Vec<_> = beats.iter().flat_map(|it| &it.leases).collect();
    let seqs: Vec<u64> = renewals.iter().filter_map(|it| it.seq).collect();
    assert!(seqs.len() >= 5 && seqs.is_sorted(), "{seqs:?}");
    let progress = renewals.last().and_then(|it| it.progress.as_ref());
    assert_eq!(progress.and_then(|it| it.step_index), Some(0));
    agent.shut_down().await;
}

// A3: NOT_ACKED means accept, then the very same result.
#[tokio::test]
async fn a_result_before_its_acceptance_is_repaired() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    server.change(|state| instead(state, "RunComplete", refused("NOT_ACKED")));
    let agent = Agent::start(&server);
    let results = server.wait_results(2).await;
    assert_eq!(results[0], results[1]);
    assert_eq!(server.count("WorkAccepted"), 2);
    agent.shut_down().await;
}

// A10: the cancel won; the lease is over in good order.
#[tokio::test]
async fn a_result_overtaken_by_a_cancel_ends_the_lease() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    server.change(|state| instead(state, "RunComplete", refused("CANCEL_REQUESTED")));
    let agent = Agent::start(&server);
    server.wait_idle().await;
    assert_eq!(server.results().len(), 1);
    agent.shut_down().await;
}

#[tokio::test]
async fn a_stale_answer_to_the_acceptance_lets_nothing_start() {
    let stale = Say::StaleLease(StaleLease {
        run_id: "exe_1".to_owned(),
        reason: "LEASE_REVOKED".to_owned(),
    });
    let not_yours = Say::WorkAck(WorkAck {
        run_id: "exe_1".to_owned(),
        accepted: false,
        reason: "LEASE_REVOKED".to_owned(),
        ..Default::default()
    });
    for answer in [stale, not_yours] {
        let place = tempfile::tempdir().expect("a folder");
        let touch = format!("touch {}/started", place.path().display());
        let server = FakeServer::start(&[steps(&[&touch])]).await;
        server.change(|state| instead(state, "WorkAccepted", answer));
        let agent = Agent::start(&server);
        server.wait_idle().await;
        agent.shut_down().await;
        assert!(!place.path().join("started").exists());
        assert!(server.results().is_empty() && server.count("Renewal") == 0);
    }
}

// RP-2: nothing is executed before the acceptance is answered.
#[tokio::test]
async fn nothing_starts_while_the_acceptance_is_not_answered() {
    let place = tempfile::tempdir().expect("a folder");
    let started = place.path().join("started");
    let touch = format!("touch {}", started.display());
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.hold.insert("WorkAccepted");
        state.jobs.push_back(steps(&[&touch]));
    });
    let agent = Agent::start(&server);
    server.wait_for("WorkAccepted", 1).await;
    // Two heartbeats long, the agent had the time to do it.
    let beats = server.count("Heartbeat");
    server.wait_for("Heartbeat", beats + 2).await;
    assert!(!started.exists());
    server.change(State::let_go);
    server.wait_for("RunComplete", 1).await;
    assert!(started.exists());
    agent.shut_down().await;
}

// A27: as after a restart that kept less than it had answered for.
#[tokio::test]
async fn the_servers_offset_is_obeyed() {
    let server = FakeServer::start(&[steps(&["echo one; sleep 0.5; echo two"])]).await;
    let agent = Agent::start(&server);
    server.wait_for("LogChunk", 1).await;
    server.change(|state| state.executions[0].log.truncate(5));
    let result = server.wait_results(1).await.remove(0);
    let log = server.log();
    assert!(log.ends_with("one\ntwo\n"), "{log}");
    assert_eq!(result.log_length, Some(log.len() as u64));
    agent.shut_down().await;
}

#[tokio::test]
async fn a_server_that_takes_no_log_still_gets_the_result() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.log_limit = 3;
        state
            .jobs
            .push_back(steps(&["echo one; sleep 0.3; echo two"]));
    });
    let agent = Agent::start(&server);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    assert_eq!(server.log().len(), 3);
    agent.shut_down().await;
}

#[tokio::test]
async fn a_busy_server_is_asked_again() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    server.change(|state| {
        for _ in 0..2 {
            instead(state, "WorkAccepted", error("WorkAccepted", true));
            instead(state, "RunComplete", error("ResultStream", true));
        }
    });
    let agent = Agent::start(&server);
    let results = server.wait_results(3).await;
    assert_eq!(results[2].status(), RunStatus::Success);
    assert_eq!(results[0], results[2]);
    assert_eq!(server.count("WorkAccepted"), 3);
    agent.shut_down().await;
}

#[tokio::test]
async fn a_result_that_is_refused_for_good_is_not_repeated() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    server.change(|state| instead(state, "RunComplete", error("ResultStream", false)));
    let agent = Agent::start(&server);
    server.wait_idle().await;
    agent.shut_down().await;
    assert_eq!(server.results().len(), 1);
}

// RP-44, T32: a result of a lease that the server never knew ends the attempt like any stale one.
#[tokio::test]
async fn a_result_of_an_unknown_lease_ends_the_attempt() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    let unknown = StaleLease {
        run_id: "exe_1".to_owned(),
        reason: "UNKNOWN_LEASE".to_owned(),
    };
    server.change(|state| instead(state, "RunComplete", Say::StaleLease(unknown)));
    let agent = Agent::start(&server);
    server.wait_idle().await;
    assert!(agent.has_forgotten());
    agent.has_no_workspace().await;
    agent.shut_down().await;
    assert_eq!(server.results().len(), 1);
}

// EP-37, EP-38: what is unknown or cannot be read is ignored, and costs its neighbours nothing.
#[tokio::test]
async fn unknown_and_garbled_messages_are_ignored() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.noise = vec![
            Bytes::from_static(b"\xff\xff\xff"),
            // Field 100, which no version knows.
            Bytes::from_static(b"\xa2\x06\x01x"),
            Bytes::new(),
            crate::fake_server::bytes_of(error("Nonsense", false)),
        ];
        state
            .jobs
            .push_back(steps(&["echo one; sleep 0.3; echo two"]));
    });
    let agent = Agent::start(&server);
    server.wait_for("Heartbeat", 1).await;
    // A frame that is none: more messages than a frame may have.
    let too_many = vec![Bytes::new(); delta_wire::agent::MAX_FRAME_MESSAGES + 1];
    server.change(|state| state.say(too_many));
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    assert!(server.log().ends_with("one\ntwo\n"));
    server.wait_idle().await;
    assert_eq!(server.count("Register"), 1, "the stream survived");
    agent.shut_down().await;
}
