//! Everything that can be written can be read back the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::attempt::{AttemptCancel, AttemptEvent, Progress, Report};
use delta_core::fact::{Ending, Grant};
use delta_core::lease::{Closing, ClosingKind, LeaseEvent, Revocation};
use delta_core::policy::{Backoff, RetryOn};
use delta_core::run::{RunCancel, RunEvent, RunHeader, Unique};
use delta_core::{
    Cause, Concurrency, Digest, Fact, Job, Millis, Place, Policy, Record, Resolution, Run, RunId,
    RunState, Span, Text,
};
use delta_store::codec::row;
use delta_store::events::{decode, encode};
use proptest::collection::{btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::golden::GOLDEN;

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

fn groups() -> impl Strategy<Value = Option<Concurrency>> {
    let group = (text(), digests(), any::<bool>());
    of(group.prop_map(|(group, key, cancel_older)| Concurrency {
        group,
        key,
        cancel_older,
    }))
}

fn places() -> impl Strategy<Value = Option<Place>> {
    of((millis(), of(millis())).prop_map(|(since, taken_at)| Place { since, taken_at }))
}

prop_compose! {
    fn headers()(
        texts in (text(), of(text()), of(text()), of(text()), text()),
        flags in any::<(bool, bool, bool, bool)>(),
        concurrency in groups(),
        numbers in (any::<u32>(), any::<i32>(), of(any::<u128>())),
        spans in (span(), span(), span()),
        idempotency in of((digests(), digests())),
        function in (of(text()), of((digests(), millis())), of(span()), of(text())),
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
            concurrency,
            needs_report: flags.2,
            run_timeout: spans.0,
            wait_timeout: spans.1,
            planning_timeout: spans.2,
            created_by: texts.4,
            idempotency,
            queue: function.0,
            unjudged: flags.3,
            unique: function.1.map(|(key, until)| Unique { key, until }),
            keep: function.2,
            trigger: function.3,
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
        secrets in vec(text(), 0..4),
        names in (of(text()), of(text())),
        concurrency in groups(),
        delays in (of(millis()), of((span(), span()))),
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
            secrets,
            environment: names.0,
            not_before: delays.0,
            backoff: delays.1.map(|(base, cap)| Backoff { base, cap }),
            fail_fast_group: names.1,
            concurrency,
        }
    }
}

prop_compose! {
    fn reports()(
        exit_code in of(any::<i64>()),
        texts in (of(text()), of(text()), of(text())),
        log in of((any::<u64>(), digests())),
        moments in (of(millis()), of(millis())),
        answer in (of(text()), of(span())),
    ) -> Report {
        Report {
            exit_code,
            summary: texts.0,
            artifacts: texts.1,
            steps: texts.2,
            confirmed: exit_code.map(|code| code > 0),
            evidence: exit_code.map(|code| format!("{{\"signal\":{code}}}").into()),
            answer: answer.0,
            retry_after: answer.1,
            log,
            log_dropped: log.map(|(length, _)| length / 2),
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
        place in places(),
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
            place,
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
        place in places(),
        kept in of((any::<u128>(), 1..u32::MAX).prop_map(|(run, n)| RunId(run).job(n))),
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
            kept,
            place,
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
        headers().prop_map(|header| Fact::RunConfigured(header.settings())),
        any::<u32>().prop_map(|job| Fact::LineEntered { job }),
        any::<u32>().prop_map(|job| Fact::TurnTaken { job }),
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
