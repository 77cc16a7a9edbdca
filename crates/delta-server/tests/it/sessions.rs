//! The Execution Protocol over a real connection: flows, leases, fencing, identity.

use std::time::Duration;

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{Capabilities, HeldLease, RegisterRequest, RunStatus, WorkRejected};
use tonic::Code;

use crate::agent::{Agent, request};
use crate::bench::Bench;

/// Long enough to be granted something if it were to be.
const A_WHILE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_job_runs_from_registration_to_completion_and_the_next_follows() {
    // EP-1, EP-3, EP-8, EP-11, EP-14, EP-22, EP-26, EP-44
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    assert!(agent.id.starts_with("agt_"));
    let config = agent.registered.config.unwrap();
    // EP-17, EP-48, EP-50
    assert_eq!(
        (
            config.heartbeat_interval_seconds,
            config.default_timeout_seconds
        ),
        (30, 1800)
    );
    agent.say([agent.heartbeat(&[], None)]).await;
    let (_, jobs) = bench.run_with(2).await;
    let work = agent.work().await;
    assert_eq!(work.job_id, jobs[0]);
    assert_eq!((work.attempt, work.job_spec.contains("steps")), (1, true));
    assert_eq!(work.timeout_seconds, 1800, "EP-50");
    assert!(agent.hears_no_work(A_WHILE).await, "one slot, one lease");
    agent.accepts(&work).await;
    agent.say([agent.heartbeat(&[&work], Some(1))]).await;
    let renewed = agent.hears(|say| match say {
        Say::HeartbeatAck(ack) => Some(ack.leases.clone()),
        _ => None,
    });
    let renewed = renewed.await;
    assert!(renewed[0].extended && renewed[0].lease_ttl_ms > 0 && renewed[0].seq == Some(1));
    assert_eq!(bench.job_state(&jobs[0]).await, "RUNNING");
    agent
        .say([agent.log(&work, Some(0), b"hello \xff\n")])
        .await;
    agent
        .say([agent.completed(&work, RunStatus::Success)])
        .await;
    let done = agent.hears(|say| match say {
        Say::CompleteAck(ack) => Some(ack.accepted),
        _ => None,
    });
    assert!(done.await);
    assert_eq!(bench.job_state(&jobs[0]).await, "SUCCEEDED");
    // EP-11: bytes that are no text stay what they are.
    assert_eq!(bench.log(&jobs[0]).await, b"hello \xff\n");
    let next = agent.work().await;
    assert_eq!(next.job_id, jobs[1]);
    // Accepting and completing in one frame.
    let said = [
        agent.accepted(&next),
        agent.completed(&next, RunStatus::Failure),
    ];
    agent.say(said).await;
    let done = agent.hears(|say| match say {
        Say::CompleteAck(ack) => Some(ack.accepted),
        _ => None,
    });
    assert!(done.await);
    assert_eq!(bench.job_state(&jobs[1]).await, "FAILED");
}

#[tokio::test]
async fn the_first_message_must_be_a_registration() {
    // EP-5
    let bench = Bench::patient().await;
    let heartbeat = Said::Heartbeat(Default::default());
    let refused = Agent::dial(&bench, &bench.runner, heartbeat).await;
    assert_eq!(refused.err().unwrap().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_registration_that_lacks_something_is_refused_by_name() {
    // EP-39, EP-52, EP-53, A29
    let bench = Bench::patient().await;
    type Spoil = fn(&mut RegisterRequest);
    let cases: [(Spoil, Code, &str); 6] = [
        (
            |it| it.protocol_version.clear(),
            Code::InvalidArgument,
            "protocol_version",
        ),
        (
            |it| it.protocol_version = "x".into(),
            Code::InvalidArgument,
            "protocol_version",
        ),
        (
            |it| it.protocol_version = "2.0".into(),
            Code::FailedPrecondition,
            "1.0",
        ),
        (
            |it| it.agent_name.clear(),
            Code::InvalidArgument,
            "agent_name",
        ),
        (
            |it| it.capabilities = None,
            Code::InvalidArgument,
            "capabilities",
        ),
        (
            |it| it.agent_id = "../x".into(),
            Code::InvalidArgument,
            "agent_id",
        ),
    ];
    for (spoil, code, word) in cases {
        let mut request = request();
        spoil(&mut request);
        let refused = Agent::register(&bench, request).await.err().unwrap();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(word), "{refused}");
    }
    let newer = RegisterRequest {
        protocol_version: "1.7".into(),
        ..request()
    };
    assert!(Agent::register(&bench, newer).await.is_ok(), "EP-54");
}

#[tokio::test]
async fn only_a_runner_s_token_opens_a_session() {
    // EP-30, RP-55
    let bench = Bench::patient().await;
    for (token, code) in [
        ("nonsense", Code::Unauthenticated),
        (
            "delta_runner_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            Code::Unauthenticated,
        ),
        (bench.user.as_str(), Code::PermissionDenied),
    ] {
        let refused = Agent::dial(&bench, token, Said::Register(request())).await;
        assert_eq!(refused.err().unwrap().code(), code, "{code:?}");
    }
}

#[tokio::test]
async fn an_id_belongs_to_whoever_registered_it() {
    // A26, T3
    let mut bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let back = |secret: &str| RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: secret.into(),
        ..request()
    };
    let impostor = Agent::register(&bench, back("")).await.err().unwrap();
    assert_eq!(impostor.code(), Code::PermissionDenied);
    let impostor = Agent::register(&bench, back("resume_x"))
        .await
        .err()
        .unwrap();
    assert_eq!(impostor.code(), Code::PermissionDenied);
    let secret = agent.registered.resume_secret.clone();
    // Another credential with the right secret is still somebody else.
    let another = bench.token("runner").await;
    let own = std::mem::replace(&mut bench.runner, another);
    let impostor = Agent::register(&bench, back(&secret)).await.err().unwrap();
    assert_eq!(impostor.code(), Code::PermissionDenied);
    bench.runner = own;
    let unknown = RegisterRequest {
        agent_id: "agt_0000000000000000".into(),
        ..request()
    };
    let unknown = Agent::register(&bench, unknown).await.err().unwrap();
    assert_eq!(unknown.code(), Code::NotFound);
    // The victim is undisturbed until it comes back itself.
    agent.say([agent.heartbeat(&[], None)]).await;
    let again = Agent::register(&bench, back(&secret)).await.unwrap();
    assert_eq!(again.id, agent.id);
    assert!(again.registered.session_epoch > agent.registered.session_epoch);
    let ended = agent.ends().await.unwrap();
    assert!(ended.message().contains("SUPERSEDED"), "{ended}");
}

#[tokio::test]
async fn two_programs_with_one_identity_are_told_to_stay_away() {
    // A26, F50
    let bench = Bench::patient().await;
    let mut newest = Agent::new(&bench).await;
    let (id, secret) = (newest.id.clone(), newest.registered.resume_secret.clone());
    let back = |instance: &str| RegisterRequest {
        agent_id: id.clone(),
        resume_secret: secret.clone(),
        instance: instance.into(),
        ..request()
    };
    for instance in ["i2", "i1", "i2"] {
        newest = Agent::register(&bench, back(instance)).await.unwrap();
    }
    let refused = Agent::register(&bench, back("i1")).await.err().unwrap();
    // They come back later, as from any server that is away.
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("QUARANTINED"), "{refused}");
    // Who has the session keeps it.
    newest.say([newest.heartbeat(&[], None)]).await;
    bench.run_with(1).await;
    newest.work().await;
    let newest = Agent::register(&bench, back("i2")).await.unwrap();
    bench
        .agent_until(&newest.id, "it is shown", |view| {
            view["status"] == "QUARANTINED"
        })
        .await;
}

#[tokio::test]
async fn an_agent_whose_token_was_replaced_is_still_the_same() {
    // A26, T3: by its secret, and only once nobody can come with the old token any more.
    let mut bench = Bench::patient().await;
    let (old, old_id) = bench.token_with_id("runner").await;
    bench.runner = old;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let held = HeldLease {
        run_id: work.run_id.clone(),
        lease: work.lease.clone(),
    };
    let back = |secret: &str| RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: secret.into(),
        leases: vec![held.clone()],
        ..request()
    };
    let secret = agent.registered.resume_secret.clone();
    bench.runner = bench.token("runner").await;
    let early = Agent::register(&bench, back(&secret)).await.err().unwrap();
    assert_eq!(early.code(), Code::PermissionDenied);
    assert!(early.message().contains("agent.json"), "{early}");
    bench.revoke_token(&old_id).await;
    for wrong in ["", "resume_x"] {
        let impostor = Agent::register(&bench, back(wrong)).await.err().unwrap();
        assert_eq!(impostor.code(), Code::PermissionDenied);
    }
    let again = Agent::register(&bench, back(&secret)).await.unwrap();
    assert_eq!(again.id, agent.id);
    // D4: a lease stays with the credential that got it.
    assert_eq!(again.registered.resume[0].run_id, work.run_id);
    assert!(!again.registered.resume[0].live);
    assert_eq!(bench.job_state(&jobs[0]).await, "STARTING");
    // From here on it is the new token's.
    Agent::register(&bench, back(&secret)).await.unwrap();
}

#[tokio::test]
async fn work_goes_on_in_the_next_session() {
    // EP-29, A31, F29
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent.say([agent.log(&work, Some(0), b"first ")]).await;
    agent
        .hears(|say| matches!(say, Say::LogAck(ack) if ack.received == 6).then_some(()))
        .await;
    let back = RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        leases: vec![
            delta_wire::agent::proto::HeldLease {
                run_id: work.run_id.clone(),
                lease: work.lease.clone(),
            },
            delta_wire::agent::proto::HeldLease {
                run_id: "exec_00000000000000000000000000000001_0_1_1".into(),
                lease: "x".into(),
            },
        ],
        ..request()
    };
    drop(agent);
    let mut agent = Agent::register(&bench, back).await.unwrap();
    let resume = &agent.registered.resume;
    assert_eq!((resume[0].live, resume[0].log_received), (true, 6));
    assert_eq!(
        (resume[1].live, resume[1].reason.as_str()),
        (false, "UNKNOWN_LEASE")
    );
    agent.say([agent.log(&work, Some(3), b"st second")]).await;
    agent
        .hears(|say| matches!(say, Say::LogAck(ack) if ack.received == 12).then_some(()))
        .await;
    agent
        .say([agent.completed(&work, RunStatus::Success)])
        .await;
    agent
        .hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
        .await;
    assert_eq!(bench.job_state(&jobs[0]).await, "SUCCEEDED");
    assert_eq!(bench.log(&jobs[0]).await, b"first second");
}

#[tokio::test]
async fn a_rejected_job_goes_to_another_agent_and_this_one_rests() {
    // EP-9, A32
    let bench = Bench::patient().await;
    let mut first = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = first.work().await;
    let rejected = WorkRejected {
        run_id: work.run_id.clone(),
        agent_id: first.id.clone(),
        reason: "resource_exhausted: its disk is full".into(),
        lease: work.lease.clone(),
    };
    first.say([Said::WorkRejected(rejected)]).await;
    first
        .hears(|say| matches!(say, Say::WorkAck(ack) if !ack.accepted).then_some(()))
        .await;
    assert!(first.hears_no_work(A_WHILE).await);
    let job = bench.get(&format!("/api/v1/jobs/{}", jobs[0])).await;
    let why = job.expect(200)["why"].clone();
    assert_eq!(why["code"], "turned_away", "{why}");
    let said = why["message"].as_str().unwrap_or_default();
    assert!(said.ends_with("turns work away: its disk is full"), "{why}");
    let mut second = Agent::new(&bench).await;
    let again = second.work().await;
    assert_eq!(again.job_id, jobs[0]);
    assert!(again.lease_epoch > work.lease_epoch);
    // The first one's lease is over.
    first
        .say([first.completed(&work, RunStatus::Success)])
        .await;
    let stale = first.hears(|say| match say {
        Say::StaleLease(stale) => Some(stale.run_id.clone()),
        _ => None,
    });
    assert_eq!(stale.await, work.run_id);
    assert_eq!(bench.job_state(&jobs[0]).await, "LEASED");
}

#[tokio::test]
async fn a_cancel_is_pushed_and_answered() {
    // EP-23, EP-27, RP-36, A30
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (run, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    bench.cancel_run(&run).await;
    let cancel = agent.hears(|say| match say {
        Say::CancelWork(cancel) => Some(cancel.clone()),
        _ => None,
    });
    let cancel = cancel.await;
    assert_eq!(cancel.run_id, work.run_id);
    assert!(cancel.deadline_ms > 0);
    agent
        .say([agent.completed(&work, RunStatus::Cancelled)])
        .await;
    agent
        .hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
        .await;
    assert_eq!(bench.job_state(&jobs[0]).await, "CANCELED");
}

#[tokio::test]
async fn a_stop_that_nobody_asked_for_is_the_agent_s_own() {
    // A34
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent
        .say([agent.completed(&work, RunStatus::Cancelled)])
        .await;
    agent
        .hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
        .await;
    // Retried as the agent's failure, not the user's.
    let again = agent.work().await;
    assert_eq!((again.job_id, again.attempt), (jobs[0].clone(), 2));
}

#[tokio::test]
async fn messages_that_cannot_be_read_cost_nothing_until_they_are_many() {
    // EP-37, EP-38, A36, A71: of a kind that is not known, garbled, and in a garbled frame.
    for bytes in [&b""[..], b"\xff\xff\xff"] {
        let bench = Bench::patient().await;
        let mut agent = Agent::new(&bench).await;
        let unreadable = |times| delta_wire::agent::frame::RawFrame {
            messages: vec![bytes::Bytes::from_static(bytes); times],
        };
        agent.send(unreadable(50)).await;
        bench.run_with(1).await;
        let work = agent.work().await;
        // What shares a frame with it is heard.
        let mut mixed = unreadable(1);
        mixed
            .messages
            .extend(crate::agent::frame([agent.accepted(&work)]).messages);
        agent.send(mixed).await;
        agent
            .hears(|say| matches!(say, Say::WorkAck(ack) if ack.accepted).then_some(()))
            .await;
        let counted = bench.get("/metrics").await.text;
        assert!(
            counted.contains("delta_unknown_fields_total 51"),
            "{counted}"
        );
        agent.send(unreadable(50)).await;
        assert_eq!(agent.ends().await.unwrap().code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn a_field_of_a_newer_version_is_passed_over() {
    // EP-54, A71
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    bench.run_with(1).await;
    let work = agent.work().await;
    let mut newer = crate::agent::frame([agent.accepted(&work)]);
    let mut message = newer.messages.remove(0).to_vec();
    // Field 1023, a text of one letter.
    message.extend(b"\xfa\x3f\x01x");
    newer.messages.push(message.into());
    agent.send(newer).await;
    agent
        .hears(|say| matches!(say, Say::WorkAck(ack) if ack.accepted).then_some(()))
        .await;
}

#[tokio::test]
async fn a_field_that_is_missing_is_named_and_nothing_changes() {
    // EP-6, EP-10, EP-39, RP-4
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    let mut without_lease = work.clone();
    without_lease.lease.clear();
    let mut other_run = work.clone();
    other_run.run_id = "exec_00000000000000000000000000000001_0_1_1".into();
    let mut no_payload = agent.completed(&work, RunStatus::Success);
    if let Said::Result(result) = &mut no_payload {
        result.payload = None;
    }
    let mut foreign = agent.heartbeat(&[], None);
    if let Said::Heartbeat(heartbeat) = &mut foreign {
        heartbeat.agent_id = "agt_other".into();
    }
    for (said, field) in [
        (agent.accepted(&without_lease), "lease"),
        (agent.accepted(&other_run), "run_id"),
        (no_payload, "payload"),
        (
            agent.completed(&work, RunStatus::Unspecified),
            "run_complete.status",
        ),
        (foreign, "agent_id"),
        (Said::Register(request()), "register"),
    ] {
        agent.say([said]).await;
        let named = agent.hears(|say| match say {
            Say::ProtocolError(error) => Some((error.field.clone(), error.retryable)),
            _ => None,
        });
        assert_eq!(named.await, (field.to_owned(), false));
    }
    assert_eq!(bench.job_state(&jobs[0]).await, "LEASED");
}

#[tokio::test]
async fn a_lease_ends_by_time_whatever_the_session_says() {
    // A31, EP-49, LM-26: presence alone renews nothing.
    let bench = Bench::quick().await;
    let mut agent = Agent::new(&bench).await;
    bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let told = async {
        loop {
            agent.say([agent.heartbeat(&[], None)]).await;
            let stale = agent.hears(|say| match say {
                Say::StaleLease(stale) => Some(stale.reason.clone()),
                _ => None,
            });
            if let Ok(reason) = tokio::time::timeout(Duration::from_millis(100), stale).await {
                break reason;
            }
        }
    };
    let told = tokio::time::timeout(crate::bench::PATIENCE, told)
        .await
        .unwrap();
    assert!(
        ["LEASE_EXPIRED", "LEASE_REVOKED"].contains(&told.as_str()),
        "{told}"
    );
    let again = agent.work().await;
    assert!(again.lease_epoch > work.lease_epoch);
    // Log bytes of the lease that is over go nowhere (LM-13, D4).
    agent.say([agent.log(&work, Some(0), b"late")]).await;
    agent
        .hears(|say| {
            matches!(say, Say::StaleLease(stale) if stale.run_id == work.run_id).then_some(())
        })
        .await;
}

#[tokio::test]
async fn slots_are_filled_and_never_overfilled() {
    // EP-44, I21, A28
    let bench = Bench::patient().await;
    let four = RegisterRequest {
        capabilities: Some(Capabilities {
            max_parallel: 4,
            ..request().capabilities.unwrap()
        }),
        ..request()
    };
    let mut agent = Agent::register(&bench, four).await.unwrap();
    bench.run_with(9).await;
    let mut works = Vec::new();
    for _ in 0..4 {
        works.push(agent.work().await);
    }
    assert!(agent.hears_no_work(A_WHILE).await);
    for work in &works {
        let said = [
            agent.accepted(work),
            agent.completed(work, RunStatus::Success),
        ];
        agent.say(said).await;
    }
    for _ in 0..4 {
        agent.work().await;
    }
    assert!(agent.hears_no_work(A_WHILE).await);
}

#[tokio::test]
async fn nothing_follows_a_result() {
    // EP-16, A18: the same again is answered the same, anything else changes nothing.
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    for _ in 0..2 {
        let said = agent.completed(&work, RunStatus::Success);
        agent.say([said]).await;
        agent
            .hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
            .await;
    }
    agent.say([agent.log(&work, Some(0), b"late")]).await;
    agent
        .say([agent.completed(&work, RunStatus::Failure)])
        .await;
    for _ in 0..2 {
        let stale = agent.hears(|say| match say {
            Say::StaleLease(stale) => Some(stale.run_id.clone()),
            _ => None,
        });
        assert_eq!(stale.await, work.run_id);
    }
    assert_eq!(bench.job_state(&jobs[0]).await, "SUCCEEDED");
    let log = format!("/api/v1/jobs/{}/log", jobs[0]);
    bench.get(&log).await.expect(404);
}
