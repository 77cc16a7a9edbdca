//! Functions: calls that wait in queues. A call is a run with one job, so that leases, retries,
//! cancels and records are those of everything else.
//!
//! Owns what a call becomes and who is asked for it. What fails for good stays a dead letter until
//! somebody puts it aside.

mod known_runners;
mod queues;
mod rates;

use std::sync::Arc;

use delta_core::command::{NewJob, NewRun};
use delta_core::policy::Backoff;
use delta_core::requirement::{Requirement, normalise};
use delta_core::run::{RunHeader, Unique};
use delta_core::{Cause, Command, Digest, Millis, Policy, RunId, Settings, Span, Text};
use delta_trace::Carrier;
use delta_wire::api::CreateFunction;
use delta_wire::api::functions::{DEFAULT_TIMEOUT, DEFAULT_UNIQUE, DEFAULT_WAIT};
use delta_wire::job_spec::{FunctionSpec, WorkKind};

pub use known_runners::Known;
pub use queues::Queues;
pub use rates::Rates;

use crate::app::App;
use crate::new_run::default_retry_on;
use crate::not_done::NotDone;
use crate::writer::sha256;

/// The longest that all attempts of a call may take together, with the delays between them: a run
/// must have an end.
const LONGEST: Span = Span::hours(60 * 24);
/// The shortest that a result is kept, for a waiter that asks again after a restart.
pub const SHORTEST_KEEP: Span = Span::secs(60);

/// Who asks, when, and under which key.
#[derive(Clone)]
pub struct Asked {
    pub at: Millis,
    pub by: Text,
    pub idempotency: Option<(Digest, Digest)>,
    /// The trace that the call belongs to, as its handler is to continue it.
    pub trace: Carrier,
}

/// The run that carries a call out, and its job's spec. `runner` is the one that the queue's route
/// names, for a function that names none itself.
pub fn new_run(
    id: RunId,
    call: &CreateFunction,
    runner: Option<&str>,
    asked: Asked,
    settings: &Settings,
) -> (NewRun, Arc<str>) {
    let not_before = match (call.delay_seconds, call.not_before) {
        (Some(delay), _) => Some(asked.at + Span::from(delay)),
        (None, Some(moment)) => Some(moment.into()),
        (None, None) => None,
    };
    let name = match runner.filter(|_| !call.function.contains('#')) {
        Some(runner) => format!("{runner}#{}", call.function),
        None => call.function.clone(),
    };
    let function = FunctionSpec {
        name,
        params: call.params.clone(),
        queue: call.queue.clone(),
        enqueued_at: Some(delta_wire::Millis::from(asked.at).to_rfc3339()),
        trace_context: asked.trace.clone(),
    };
    let spec: Arc<str> = spec_text(&function).into();
    let policy = policy(call, &function, not_before, settings);
    let delay = not_before.map_or(Span::ZERO, |at| at.since(asked.at).max(Span::ZERO));
    let header = header(call, delay, asked, settings);
    let job = NewJob {
        name: function.name.as_str().into(),
        policy,
        spec: sha256(spec.as_bytes()),
        kept: None,
    };
    let new = NewRun {
        id,
        header,
        jobs: Some(vec![job]),
    };
    (new, spec)
}

fn spec_text(function: &FunctionSpec) -> String {
    #[derive(serde::Serialize)]
    struct Spec<'a> {
        function: &'a FunctionSpec,
    }
    serde_json::to_string(&Spec { function }).unwrap_or_default()
}

fn header(call: &CreateFunction, delay: Span, asked: Asked, settings: &Settings) -> RunHeader {
    let unique = call.unique_key.as_ref().map(|key| {
        let lasts = call.unique_seconds.unwrap_or(DEFAULT_UNIQUE);
        Unique {
            // One queue's keys never meet another's.
            key: sha256(format!("{}\n{key}", call.queue).as_bytes()),
            until: asked.at + Span::from(lasts),
        }
    });
    RunHeader {
        trusted: true,
        priority: call.priority,
        run_timeout: LONGEST,
        wait_timeout: Span::from(DEFAULT_WAIT).plus(delay),
        planning_timeout: Span::secs(60),
        idempotency: asked.idempotency,
        queue: Some(call.queue.as_str().into()),
        unique,
        keep: call.result_ttl_seconds.map(Span::from),
        ..RunHeader::plain(asked.by, settings)
    }
}

/// A57: functions are tried again after an error, a timeout and whatever is nobody's fault.
fn policy(
    call: &CreateFunction,
    function: &FunctionSpec,
    not_before: Option<Millis>,
    settings: &Settings,
) -> Policy {
    // Where nobody says, an agent decides by its own routes.
    let (runner, _) = function.parts();
    let runner = runner.map(|it| Requirement::Has(format!("runner:{}", it.to_lowercase())));
    let mut requires = vec![
        Requirement::Is(delta_core::requirement::QUEUE.into(), call.queue.clone()),
        Requirement::Has("work:function".into()),
    ];
    requires.extend(runner);
    let custom = call.backoff_seconds.is_some() || call.backoff_cap_seconds.is_some();
    let standard = settings.backoff();
    let backoff = custom.then(|| {
        let base = call.backoff_seconds.map_or(standard.base, Span::from);
        let given = call.backoff_cap_seconds.map(Span::from);
        // Longer waits go on doubling, too.
        let cap = given.unwrap_or(standard.cap.max(Span(base.0.saturating_mul(16))));
        Backoff {
            base,
            cap: cap.max(base),
        }
    });
    Policy {
        max_attempts: call.max_attempts,
        timeout: Span::from(call.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT)),
        requires: normalise(&requires),
        priority: call.priority,
        retry_on: default_retry_on(WorkKind::Function),
        not_before,
        backoff,
        ..Policy::plain(settings)
    }
}

/// Nobody has the runner of these: they are dead letters, all of them in one commit.
pub async fn give_up(app: &App, runs: impl ExactSizeIterator<Item = RunId>) -> Result<(), NotDone> {
    if runs.len() == 0 {
        return Ok(());
    }
    let cause = Cause::HandlerNotFound;
    let commands = runs.map(|run| (Command::GiveUp { run, cause }, Vec::new()));
    for answer in app.writer.together(app.writer.now(), commands).await? {
        answer?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use delta_wire::api::CreateFunctions;

    use super::*;

    fn made(body: &str, runner: Option<&str>) -> (NewRun, Arc<str>) {
        let call = match CreateFunctions::parse(body.as_bytes()).unwrap() {
            CreateFunctions::One(call) => call,
            CreateFunctions::Several(_) => unreachable!(),
        };
        let asked = Asked {
            at: Millis(1_000_000),
            by: "ann".into(),
            idempotency: None,
            trace: Vec::new(),
        };
        new_run(RunId(1), &call, runner, asked, &Settings::recommended())
    }

    fn policy_of(new: &NewRun) -> &Policy {
        &new.jobs.as_ref().unwrap()[0].policy
    }

    #[test]
    fn the_runner_and_the_queue_are_requirements() {
        // RQ-45, A68
        let (new, spec) = made(r#"{"function":"python#send","queue":"mail"}"#, Some("rust"));
        let key = &policy_of(&new).requires;
        assert_eq!(&**key, "queue=mail runner:python work:function");
        assert!(spec.contains(r#""name":"python#send""#), "{spec}");
        let (new, spec) = made(r#"{"function":"send"}"#, Some("rust"));
        assert!(policy_of(&new).requires.contains("runner:rust"));
        assert!(spec.contains(r#""name":"rust#send""#), "{spec}");
        let (new, _) = made(r#"{"function":"send"}"#, None);
        assert_eq!(&*policy_of(&new).requires, "queue=default work:function");
    }

    #[test]
    fn a_function_is_tried_again_after_an_error_and_a_timeout() {
        // A57
        let (new, _) = made(r#"{"function":"f","max_attempts":5}"#, None);
        let policy = policy_of(&new);
        for cause in [Cause::UserExit, Cause::JobTimeout, Cause::AgentError] {
            assert!(policy.retries(cause, 4), "{cause:?}");
            assert!(!policy.retries(cause, 5), "{cause:?}");
        }
        assert!(!policy.retries(Cause::HandlerNotFound, 1), "RQ-37");
    }

    #[test]
    fn a_delay_does_not_count_as_waiting() {
        let (new, _) = made(r#"{"function":"f","delay_seconds":7200}"#, None);
        assert_eq!(
            policy_of(&new).not_before,
            Some(Millis(1_000_000 + 7_200_000))
        );
        let waits = Span::from(DEFAULT_WAIT).plus(Span::secs(7200));
        assert_eq!(new.header.wait_timeout, waits);
    }

    #[test]
    fn the_longest_name_is_kept_whole_behind_the_longest_route() {
        let (name, runner) = ("f".repeat(200), "r".repeat(100));
        let body = format!(r#"{{"function":"{name}"}}"#);
        let (new, spec) = made(&body, Some(&runner));
        let whole = format!("{runner}#{name}");
        assert_eq!(&*new.jobs.as_ref().unwrap()[0].name, whole);
        let spec = delta_wire::JobSpec::parse(spec.as_bytes()).unwrap();
        assert_eq!(spec.function.unwrap().name, whole);
        let longer = body.replace(&name, &format!("{name}f"));
        assert!(CreateFunctions::parse(longer.as_bytes()).is_err());
    }

    #[test]
    fn the_spec_reads_back() {
        let (_, spec) = made(r#"{"function":"f","params":{"b":1.0,"a":[ ]}}"#, None);
        let spec = delta_wire::JobSpec::parse(spec.as_bytes()).unwrap();
        let function = spec.function.unwrap();
        assert_eq!(function.params.as_str(), r#"{"b":1.0,"a":[ ]}"#);
        assert!(function.enqueued_at.is_some());
    }
}
