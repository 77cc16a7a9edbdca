//! Literal bytes that must stay readable for good.

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::attempt::{AttemptCancel, AttemptEvent, Report};
use delta_core::fact::{Ending, Grant};
use delta_core::lease::{Closing, ClosingKind, LeaseEvent, Revocation};
use delta_core::policy::RetryOn;
use delta_core::run::{RunCancel, RunEvent, RunHeader, RunSettings};
use delta_core::{
    Cause, Concurrency, Fact, Job, Millis, Policy, Record, Resolution, Run, RunId, RunState, Span,
};
use delta_store::codec::row;
use delta_store::events::{GENESIS, chain, decode, encode};

/// Version 1 as it was first written. Never change these bytes.
pub const GOLDEN: &str = concat!(
    r#"{"v":1,"run":"run_00000000000000000000000000000007","command":"create_run","actor":"ann","#,
    r#""at":1800000000000,"facts":["#,
    r#"{"run_created":{"header":{"project":"default","repository":"r","#,
    r#""git_ref":"refs/heads/main","#,
    r#""commit":"c","trusted":true,"run_attempt":2,"#,
    r#""rerun_of":"run_00000000000000000000000000000006","#,
    r#""priority":-1,"fail_fast":true,"needs_report":true,"run_timeout":21600000,"#,
    r#""wait_timeout":86400000,"planning_timeout":60000,"created_by":"ann","idempotency":["#,
    r#""0101010101010101010101010101010101010101010101010101010101010101","#,
    r#""0202020202020202020202020202020202020202020202020202020202020202"]},"#,
    r#""state":"CREATED","created_at":1800000000000}},"#,
    r#"{"job_created":{"id":1,"name":"unit","policy":{"required":true,"needs":[2],"#,
    r#""max_attempts":3,"#,
    r#""timeout":1800000,"requires":"linux","once":true,"retry_on":["infra","flaky"]},"#,
    r#""spec":"0303030303030303030303030303030303030303030303030303030303030303","#,
    r#""dependents":[4],"waiting_on":1,"attempts":1}},"#,
    r#"{"run_moved":{"event":"failed","cause":"plan_error"}},"#,
    r#"{"run_cancel_asked":{"at":5,"cause":"canceled_by_user","by":"bob"}},"#,
    r#"{"need_met":{"job":1}},"#,
    r#"{"attempt_created":{"job":1,"index":2,"not_before":9}},"#,
    r#"{"attempt_moved":{"job":1,"index":2,"event":"published"}},"#,
    r#"{"cancel_asked":{"job":1,"index":2,"cancel":{"cause":"superseded","by":"bob","#,
    r#""requested_at":5,"grace":30000,"force_at":50005}}},"#,
    r#"{"reported":{"job":1,"index":2,"report":{"exit_code":-1,"summary":"s","#,
    r#""artifacts":"[]","log":[12,"#,
    r#""0404040404040404040404040404040404040404040404040404040404040404"],"#,
    r#""started_at":1,"finished_at":2}}},"#,
    r#"{"lease_granted":{"job":1,"index":2,"grant":{"epoch":4294967297,"number":1,"#,
    r#""token":"0505050505050505050505050505050505050505050505050505050505050505","#,
    r#""principal":"agent","runner":"agent/1","ack_by":30000,"ttl":120000,"expires_at":120000}}},"#,
    r#"{"lease_moved":{"job":1,"index":2,"event":"completed","#,
    r#""ending":{"closing":{"kind":"complete","#,
    r#""digest":"0606060606060606060606060606060606060606060606060606060606060606"}}}},"#,
    r#"{"lease_moved":{"job":1,"index":2,"event":"revoked","ending":{"revocation":"OPERATOR"}}},"#,
    r#"{"lease_moved":{"job":1,"index":2,"event":"acknowledged"}},"#,
    r#"{"spent":{"job":1,"index":2,"losses":1,"dispatches":0}},"#,
    r#"{"job_resolved":{"job":1,"resolution":"FAILED","cause":"lease_lost"}},"#,
    r#"{"lease_clamped":{"job":1,"index":2,"expires_at":7}}"#,
    r#"]}"#
);

fn golden_facts(run: RunId) -> Vec<Fact> {
    let mut facts = facts_of_runs(run);
    facts.extend(facts_of_attempts());
    facts.extend(facts_of_leases());
    facts
}

fn facts_of_runs(run: RunId) -> Vec<Fact> {
    vec![
        Fact::RunCreated(Box::new(golden_run(run))),
        Fact::JobCreated(Box::new(golden_job(run))),
        Fact::RunMoved {
            event: RunEvent::Failed,
            cause: Some(Cause::PlanError),
        },
        Fact::RunCancelAsked(RunCancel {
            at: Millis(5),
            cause: Cause::CanceledByUser,
            by: "bob".into(),
        }),
        Fact::NeedMet { job: 1 },
    ]
}

fn facts_of_attempts() -> Vec<Fact> {
    let (job, index) = (1, 2);
    vec![
        Fact::AttemptCreated {
            job,
            index,
            not_before: Millis(9),
        },
        Fact::AttemptMoved {
            job,
            index,
            event: AttemptEvent::Published,
            cause: None,
        },
        Fact::CancelAsked {
            job,
            index,
            cancel: AttemptCancel {
                cause: Cause::Superseded,
                by: "bob".into(),
                requested_at: Millis(5),
                grace: Span(30_000),
                force_at: Millis(50_005),
            },
        },
        Fact::Reported {
            job,
            index,
            report: Box::new(Report {
                exit_code: Some(-1),
                summary: Some("s".into()),
                artifacts: Some("[]".into()),
                steps: None,
                confirmed: None,
                evidence: None,
                answer: None,
                retry_after: None,
                log: Some((12, [4; 32])),
                log_dropped: None,
                started_at: Some(Millis(1)),
                finished_at: Some(Millis(2)),
            }),
        },
    ]
}

fn facts_of_leases() -> Vec<Fact> {
    let (job, index) = (1, 2);
    let ended = |event, revocation, closing| Fact::LeaseMoved {
        job,
        index,
        event,
        ending: Ending {
            revocation,
            closing,
        },
    };
    let closing = Closing {
        kind: ClosingKind::Complete,
        digest: [6; 32],
    };
    vec![
        Fact::LeaseGranted {
            job,
            index,
            grant: Box::new(Grant {
                epoch: 4_294_967_297,
                number: 1,
                token: [5; 32],
                principal: "agent".into(),
                runner: "agent/1".into(),
                ack_by: Millis(30_000),
                ttl: Span(120_000),
                expires_at: Millis(120_000),
            }),
        },
        ended(LeaseEvent::Completed, None, Some(closing)),
        ended(LeaseEvent::Revoked, Some(Revocation::Operator), None),
        ended(LeaseEvent::Acknowledged, None, None),
        Fact::Spent {
            job,
            index,
            losses: 1,
            dispatches: 0,
        },
        Fact::JobResolved {
            job,
            resolution: Resolution::Failed,
            cause: Some(Cause::LeaseLost),
        },
        Fact::LeaseClamped {
            job,
            index,
            expires_at: Millis(7),
        },
    ]
}

fn golden_run(id: RunId) -> Run {
    Run {
        id,
        header: RunHeader {
            project: "default".into(),
            repository: Some("r".into()),
            git_ref: Some("refs/heads/main".into()),
            commit: Some("c".into()),
            trusted: true,
            run_attempt: 2,
            rerun_of: Some(RunId(6)),
            priority: -1,
            fail_fast: true,
            concurrency: None,
            needs_report: true,
            run_timeout: Span::hours(6),
            wait_timeout: Span::hours(24),
            planning_timeout: Span::secs(60),
            created_by: "ann".into(),
            idempotency: Some(([1; 32], [2; 32])),
            queue: None,
            unjudged: false,
            unique: None,
            keep: None,
            trigger: None,
        },
        state: RunState::Created,
        outcome: None,
        cause: None,
        cancel: None,
        created_at: Millis(1_800_000_000_000),
        queued_at: None,
        started_at: None,
        ended_at: None,
        jobs: 0,
        live_jobs: 0,
        required_failed: 0,
        required_canceled: 0,
        place: None,
    }
}

fn golden_job(run: RunId) -> Job {
    Job {
        id: run.job(1),
        name: "unit".into(),
        policy: Arc::new(Policy {
            required: true,
            needs: vec![2],
            max_attempts: 3,
            timeout: Span::minutes(30),
            requires: "linux".into(),
            priority: 0,
            once: true,
            retry_on: BTreeSet::from([RetryOn::Infra, RetryOn::Cause(Cause::Flaky)]),
            secrets: Vec::new(),
            environment: None,
            not_before: None,
            backoff: None,
            fail_fast_group: None,
            concurrency: None,
        }),
        spec: [3; 32],
        dependents: [4].into(),
        waiting_on: 1,
        attempts: 1,
        resolution: None,
        cause: None,
        ended_at: None,
        kept: None,
        place: None,
    }
}

fn golden_record() -> Record {
    Record {
        run: RunId(7),
        at: Millis(1_800_000_000_000),
        command: "create_run",
        actor: "ann".into(),
        facts: golden_facts(RunId(7)),
    }
}

#[test]
fn version_1_is_written_as_it_always_was() {
    let bytes = encode(&golden_record());
    assert_eq!(std::str::from_utf8(&bytes).unwrap(), GOLDEN);
}

#[test]
fn version_1_stays_readable() {
    assert_eq!(decode(GOLDEN.as_bytes()).unwrap(), golden_record());
}

/// A policy with what was added later. Never change these bytes.
const LATER_POLICY: &str = concat!(
    r#"{"required":true,"needs":[2],"max_attempts":3,"timeout":1800000,"requires":"linux","#,
    r#""once":true,"retry_on":["infra","flaky"],"secrets":["DEPLOY","TOKEN"],"#,
    r#""environment":"production"}"#
);

#[test]
fn what_was_added_to_a_policy_is_written_and_read() {
    // A51
    let mut policy = (*golden_job(RunId(7)).policy).clone();
    policy.secrets = vec!["DEPLOY".into(), "TOKEN".into()];
    policy.environment = Some("production".into());
    assert_eq!(row::encode_policy(&policy), LATER_POLICY);
    assert_eq!(row::decode_policy(LATER_POLICY).unwrap(), policy);
}

/// Facts that were added later. Never change these bytes.
const LATER_FACTS: &[&str] = &[
    r#"{"run_configured":{"priority":2,"fail_fast":true,"run_timeout":90000}}"#,
    concat!(
        r#"{"run_configured":{"run_timeout":90000,"concurrency":["production","#,
        r#""0909090909090909090909090909090909090909090909090909090909090909",true]}}"#
    ),
    r#"{"line_entered":{"job":0}}"#,
    r#"{"turn_taken":{"job":0}}"#,
];

fn later_facts() -> Vec<Fact> {
    let plain = RunSettings {
        priority: 2,
        fail_fast: true,
        run_timeout: Span::secs(90),
        concurrency: None,
    };
    let group = RunSettings {
        priority: 0,
        fail_fast: false,
        concurrency: Some(Concurrency {
            group: "production".into(),
            key: [9; 32],
            cancel_older: true,
        }),
        ..plain.clone()
    };
    vec![
        Fact::RunConfigured(plain),
        Fact::RunConfigured(group),
        Fact::LineEntered { job: 0 },
        Fact::TurnTaken { job: 0 },
    ]
}

#[test]
fn later_facts_are_written_and_read() {
    let record = Record {
        facts: later_facts(),
        ..golden_record()
    };
    let text = String::from_utf8(encode(&record)).unwrap();
    let facts = text.split_once(r#""facts":["#).unwrap().1;
    assert_eq!(facts, format!("{}]}}", LATER_FACTS.join(",")));
    assert_eq!(decode(text.as_bytes()).unwrap(), record);
}

#[test]
fn every_kind_of_fact_is_among_the_golden_ones() {
    let mut facts = golden_facts(RunId(7));
    facts.extend(later_facts());
    let kinds: BTreeSet<_> = facts
        .iter()
        .map(|fact| format!("{:?}", std::mem::discriminant(fact)))
        .collect();
    assert_eq!(kinds.len(), 17);
}

#[test]
fn what_cannot_be_read_is_damage() {
    let record = |v: u32, run: &str, command: &str, facts: &str| {
        let start = format!(r#"{{"v":{v},"run":"{run}","command":"{command}""#);
        format!(r#"{start},"actor":"a","at":1,"facts":[{facts}]}}"#)
    };
    let run = "run_00000000000000000000000000000007";
    assert!(decode(record(1, run, "plan", "").as_bytes()).is_ok());
    for text in [
        String::new(),
        "{}".into(),
        "null".into(),
        record(2, run, "plan", ""),
        record(1, "run_7", "plan", ""),
        record(1, run, "dance", ""),
        record(1, run, "plan", r#"{"sung":{}}"#),
        record(1, run, "plan", r#"{"run_moved":{"event":"up"}}"#),
    ] {
        let read = decode(text.as_bytes());
        assert!(
            matches!(read, Err(delta_store::StoreError::Corrupt(_))),
            "{text}: {read:?}"
        );
    }
}

#[test]
fn every_command_can_be_read_back() {
    use delta_core::Command;
    let run = RunId(7);
    let commands = [
        Command::Plan {
            run,
            jobs: vec![],
            settings: None,
        },
        Command::RunDue { run },
        Command::Report { run },
        Command::Clamp {
            attempt: run.job(1).attempt(1),
        },
    ];
    for command in commands {
        let record = Record {
            command: command.name(),
            ..golden_record()
        };
        assert_eq!(decode(&encode(&record)).unwrap().command, command.name());
    }
}

#[test]
fn the_chain_is_sha_256_of_previous_version_and_bytes() {
    let first = chain(&GENESIS, 1, b"abc");
    let plain = [&[0; 32][..], &1u64.to_be_bytes(), b"abc"].concat();
    assert_eq!(first, delta_store::events::sha256(&plain));
    assert_ne!(chain(&first, 2, b"abc"), first);
    assert_ne!(chain(&GENESIS, 2, b"abc"), first);
}
