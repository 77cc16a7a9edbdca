//! The encoding: literal bytes that must stay readable for good, and round trips of everything.

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::attempt::{AttemptCancel, AttemptEvent, Progress, Report};
use delta_core::fact::{Ending, Grant};
use delta_core::lease::{Closing, ClosingKind, LeaseEvent, Revocation};
use delta_core::policy::RetryOn;
use delta_core::run::{RunCancel, RunEvent, RunHeader};
use delta_core::{
    Cause, Digest, Fact, Job, Millis, Policy, Record, Resolution, Run, RunId, RunState, Span, Text,
};
use delta_store::codec::row;
use delta_store::events::{GENESIS, chain, decode, encode};
use proptest::collection::{btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

/// Version 1 as it was first written. Never change these bytes.
const GOLDEN: &str = concat!(
    r#"{"v":1,"run":"run_00000000000000000000000000000007","command":"create_run","actor":"ann","#,
    r#""at":1800000000000,"facts":["#,
    r#"{"run_created":{"header":{"project":"default","repository":"r","git_ref":"refs/heads/main","#,
    r#""commit":"c","trusted":true,"run_attempt":2,"rerun_of":"run_00000000000000000000000000000006","#,
    r#""priority":-1,"fail_fast":true,"needs_report":true,"run_timeout":21600000,"#,
    r#""wait_timeout":86400000,"planning_timeout":60000,"created_by":"ann","idempotency":["#,
    r#""0101010101010101010101010101010101010101010101010101010101010101","#,
    r#""0202020202020202020202020202020202020202020202020202020202020202"]},"#,
    r#""state":"CREATED","created_at":1800000000000}},"#,
    r#"{"job_created":{"id":1,"name":"unit","policy":{"required":true,"needs":[2],"max_attempts":3,"#,
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
    r#"{"reported":{"job":1,"index":2,"report":{"exit_code":-1,"summary":"s","artifacts":"[]","log":[12,"#,
    r#""0404040404040404040404040404040404040404040404040404040404040404"],"#,
    r#""started_at":1,"finished_at":2}}},"#,
    r#"{"lease_granted":{"job":1,"index":2,"grant":{"epoch":4294967297,"number":1,"#,
    r#""token":"0505050505050505050505050505050505050505050505050505050505050505","#,
    r#""principal":"agent","runner":"agent/1","ack_by":30000,"ttl":120000,"expires_at":120000}}},"#,
    r#"{"lease_moved":{"job":1,"index":2,"event":"completed","ending":{"closing":{"kind":"complete","#,
    r#""digest":"0606060606060606060606060606060606060606060606060606060606060606"}}}},"#,
    r#"{"lease_moved":{"job":1,"index":2,"event":"revoked","ending":{"revocation":"OPERATOR"}}},"#,
    r#"{"lease_moved":{"job":1,"index":2,"event":"acknowledged"}},"#,
    r#"{"spent":{"job":1,"index":2,"losses":1,"dispatches":0}},"#,
    r#"{"job_resolved":{"job":1,"resolution":"FAILED","cause":"lease_lost"}},"#,
    r#"{"lease_clamped":{"job":1,"index":2,"expires_at":7}}"#,
    r#"]}"#
);

fn golden_facts(run: RunId) -> Vec<Fact> {
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
        Fact::NeedMet { job },
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
                log: Some((12, [4; 32])),
                started_at: Some(Millis(1)),
                finished_at: Some(Millis(2)),
            }),
        },
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
            needs_report: true,
            run_timeout: Span::hours(6),
            wait_timeout: Span::hours(24),
            planning_timeout: Span::secs(60),
            created_by: "ann".into(),
            idempotency: Some(([1; 32], [2; 32])),
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
        }),
        spec: [3; 32],
        dependents: [4].into(),
        waiting_on: 1,
        attempts: 1,
        resolution: None,
        cause: None,
        ended_at: None,
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

#[test]
fn every_kind_of_fact_is_among_the_golden_ones() {
    let facts = golden_facts(RunId(7));
    let kinds: BTreeSet<_> = facts
        .iter()
        .map(|fact| format!("{:?}", std::mem::discriminant(fact)))
        .collect();
    assert_eq!(kinds.len(), 14);
}

#[test]
fn what_cannot_be_read_is_damage() {
    for text in [
        "",
        "{}",
        "null",
        r#"{"v":2,"run":"run_00000000000000000000000000000007","command":"plan","actor":"a","at":1,"facts":[]}"#,
        r#"{"v":1,"run":"run_00000000000000000000000000000007","command":"dance","actor":"a","at":1,"facts":[]}"#,
        r#"{"v":1,"run":"run_7","command":"plan","actor":"a","at":1,"facts":[]}"#,
        r#"{"v":1,"run":"run_00000000000000000000000000000007","command":"plan","actor":"a","at":1,"facts":[{"sung":{}}]}"#,
        r#"{"v":1,"run":"run_00000000000000000000000000000007","command":"plan","actor":"a","at":1,"facts":[{"run_moved":{"event":"up"}}]}"#,
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
        Command::Plan { run, jobs: vec![] },
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

fn text() -> impl Strategy<Value = Text> {
    "\\PC{0,12}|[\"\\\\\n\u{0}é]{0,3}".prop_map(Text::from)
}

fn digests() -> impl Strategy<Value = Digest> {
    any::<Digest>()
}

fn millis() -> impl Strategy<Value = Millis> {
    any::<i64>().prop_map(Millis)
}

fn span() -> impl Strategy<Value = Span> {
    any::<i64>().prop_map(Span)
}

fn cause() -> impl Strategy<Value = Cause> {
    select(Cause::ALL)
}

prop_compose! {
    fn headers()(
        texts in (text(), of(text()), of(text()), of(text()), text()),
        flags in any::<(bool, bool, bool)>(),
        numbers in (any::<u32>(), any::<i32>(), of(any::<u128>())),
        spans in (span(), span(), span()),
        idempotency in of((digests(), digests())),
    ) -> RunHeader {
        RunHeader {
            project: texts.0,
            repository: texts.1,
            git_ref: texts.2,
            commit: texts.3,
            trusted: flags.0,
            run_attempt: numbers.0,
            rerun_of: numbers.2.map(RunId),
            priority: numbers.1,
            fail_fast: flags.1,
            needs_report: flags.2,
            run_timeout: spans.0,
            wait_timeout: spans.1,
            planning_timeout: spans.2,
            created_by: texts.4,
            idempotency,
        }
    }
}

prop_compose! {
    fn policies()(
        flags in any::<(bool, bool)>(),
        needs in vec(any::<u32>(), 0..4),
        numbers in (any::<u32>(), any::<i32>()),
        timeout in span(),
        requires in text(),
        causes in btree_set(cause(), 0..4),
        classes in any::<(bool, bool)>(),
    ) -> Policy {
        let mut retry_on: BTreeSet<RetryOn> = causes.into_iter().map(RetryOn::Cause).collect();
        retry_on.extend(classes.0.then_some(RetryOn::Infra));
        retry_on.extend(classes.1.then_some(RetryOn::Timeout));
        Policy {
            required: flags.0,
            needs,
            max_attempts: numbers.0,
            timeout,
            requires,
            priority: numbers.1,
            once: flags.1,
            retry_on,
        }
    }
}

prop_compose! {
    fn reports()(
        exit_code in of(any::<i64>()),
        texts in (of(text()), of(text())),
        log in of((any::<u64>(), digests())),
        moments in (of(millis()), of(millis())),
    ) -> Report {
        Report {
            exit_code,
            summary: texts.0,
            artifacts: texts.1,
            log,
            started_at: moments.0,
            finished_at: moments.1,
        }
    }
}

prop_compose! {
    fn progress()(
        percent in of(any::<u8>()),
        step_index in of(any::<u32>()),
        texts in (of(text()), of(text())),
        log_bytes in of(any::<u64>()),
    ) -> Progress {
        Progress {
            percent,
            step_index,
            current_step: texts.0,
            message: texts.1,
            log_bytes,
        }
    }
}

prop_compose! {
    fn run_cancels()(at in millis(), cause in cause(), by in text()) -> RunCancel {
        RunCancel { at, cause, by }
    }
}

prop_compose! {
    fn attempt_cancels()(
        cause in cause(),
        by in text(),
        moments in (millis(), millis()),
        grace in span(),
    ) -> AttemptCancel {
        AttemptCancel {
            cause,
            by,
            requested_at: moments.0,
            grace,
            force_at: moments.1,
        }
    }
}

prop_compose! {
    fn runs(id: RunId)(
        header in headers(),
        state in select(RunState::ALL.to_vec()),
        outcome in of(select(RunState::ALL.to_vec())),
        cause in of(cause()),
        cancel in of(run_cancels()),
        moments in (millis(), of(millis()), of(millis()), of(millis())),
        counts in any::<(u32, u32, u32, u32)>(),
    ) -> Run {
        Run {
            id,
            header,
            state,
            outcome,
            cause,
            cancel,
            created_at: moments.0,
            queued_at: moments.1,
            started_at: moments.2,
            ended_at: moments.3,
            jobs: counts.0,
            live_jobs: counts.1,
            required_failed: counts.2,
            required_canceled: counts.3,
        }
    }
}

prop_compose! {
    fn jobs(run: RunId)(
        n in any::<u32>(),
        name in text(),
        policy in policies(),
        spec in digests(),
        dependents in vec(any::<u32>(), 0..3),
        counts in any::<(u32, u32)>(),
        resolution in of(select(vec![
            Resolution::Succeeded,
            Resolution::Failed,
            Resolution::Canceled,
        ])),
        cause in of(cause()),
        ended_at in of(millis()),
    ) -> Job {
        Job {
            id: run.job(n),
            name,
            policy: Arc::new(policy),
            spec,
            dependents: dependents.into(),
            waiting_on: counts.0,
            attempts: counts.1,
            resolution,
            cause,
            ended_at,
        }
    }
}

prop_compose! {
    fn grants()(
        numbers in any::<(u64, u32)>(),
        token in digests(),
        texts in (text(), text()),
        moments in (millis(), millis()),
        ttl in span(),
    ) -> Grant {
        Grant {
            epoch: numbers.0,
            number: numbers.1,
            token,
            principal: texts.0,
            runner: texts.1,
            ack_by: moments.0,
            ttl,
            expires_at: moments.1,
        }
    }
}

fn endings() -> impl Strategy<Value = Ending> {
    let kinds = select(vec![ClosingKind::Complete, ClosingKind::CancelAck]);
    let closing = of((kinds, digests()).prop_map(|(kind, digest)| Closing { kind, digest }));
    let revocation = of(select(Revocation::ALL.to_vec()));
    (revocation, closing).prop_map(|(revocation, closing)| Ending {
        revocation,
        closing,
    })
}

fn facts(run: RunId) -> impl Strategy<Value = Fact> {
    let place = || any::<(u32, u32)>();
    prop_oneof![
        runs(run).prop_map(|run| Fact::RunCreated(Box::new(run))),
        jobs(run).prop_map(|job| Fact::JobCreated(Box::new(job))),
        (select(RunEvent::ALL.to_vec()), of(cause()))
            .prop_map(|(event, cause)| Fact::RunMoved { event, cause }),
        run_cancels().prop_map(Fact::RunCancelAsked),
        any::<u32>().prop_map(|job| Fact::NeedMet { job }),
        (place(), millis()).prop_map(|((job, index), not_before)| Fact::AttemptCreated {
            job,
            index,
            not_before
        }),
        (place(), select(AttemptEvent::ALL.to_vec()), of(cause())).prop_map(
            |((job, index), event, cause)| Fact::AttemptMoved {
                job,
                index,
                event,
                cause
            }
        ),
        (place(), attempt_cancels()).prop_map(|((job, index), cancel)| Fact::CancelAsked {
            job,
            index,
            cancel
        }),
        (place(), reports()).prop_map(|((job, index), report)| Fact::Reported {
            job,
            index,
            report: Box::new(report)
        }),
        (place(), grants()).prop_map(|((job, index), grant)| Fact::LeaseGranted {
            job,
            index,
            grant: Box::new(grant)
        }),
        (place(), select(LeaseEvent::ALL.to_vec()), endings()).prop_map(
            |((job, index), event, ending)| Fact::LeaseMoved {
                job,
                index,
                event,
                ending
            }
        ),
        any::<(u32, u32, u32, u32)>().prop_map(|(job, index, losses, dispatches)| Fact::Spent {
            job,
            index,
            losses,
            dispatches
        }),
        (any::<u32>(), of(cause())).prop_map(|(job, cause)| Fact::JobResolved {
            job,
            resolution: Resolution::Canceled,
            cause
        }),
        (place(), millis()).prop_map(|((job, index), expires_at)| Fact::LeaseClamped {
            job,
            index,
            expires_at
        }),
    ]
}

proptest! {
    #[test]
    fn records_read_back_what_was_written(
        facts in vec(facts(RunId(0xfeed)), 0..6),
        actor in text(),
        at in millis(),
    ) {
        let record = Record { run: RunId(0xfeed), at, command: "plan", actor, facts };
        prop_assert_eq!(decode(&encode(&record)).unwrap(), record);
    }

    #[test]
    fn cold_columns_read_back_what_was_written(
        policy in policies(),
        header in headers(),
        report in reports(),
        progress in progress(),
        run_cancel in run_cancels(),
        attempt_cancel in attempt_cancels(),
        numbers in vec(any::<u32>(), 0..5),
    ) {
        prop_assert_eq!(row::decode_policy(&row::encode_policy(&policy)).unwrap(), policy);
        prop_assert_eq!(row::decode_header(&row::encode_header(&header)).unwrap(), header);
        prop_assert_eq!(row::decode_report(&row::encode_report(&report)).unwrap(), report);
        prop_assert_eq!(row::decode_progress(&row::encode_progress(&progress)).unwrap(), progress);
        let text = row::encode_run_cancel(&run_cancel);
        prop_assert_eq!(row::decode_run_cancel(&text).unwrap(), run_cancel);
        let text = row::encode_attempt_cancel(&attempt_cancel);
        prop_assert_eq!(row::decode_attempt_cancel(&text).unwrap(), attempt_cancel);
        prop_assert_eq!(row::decode_numbers(&row::encode_numbers(&numbers)).unwrap(), numbers);
    }

    #[test]
    fn damaged_events_never_panic(at in 0..GOLDEN.len(), byte in any::<u8>()) {
        let mut bytes = GOLDEN.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = decode(&bytes);
    }
}
