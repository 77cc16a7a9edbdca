//! From a request to a run: lifts out of each job what decisions need and keeps the work as text
//! (D1). Used for new runs and for reruns.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use delta_core::command::{NewJob, NewRun};
use delta_core::policy::RetryOn;
use delta_core::requirement::{Requirement, normalise};
use delta_core::run::RunHeader;
use delta_core::{Cause, Concurrency, Digest, Policy, RunId, Settings, Span, Text};
use delta_wire::Invalid;
use delta_wire::api::{CreateJob, CreateRun, Group, Trust};
use delta_wire::job_spec::WorkKind;

use crate::writer::sha256;

/// Who asks, and under which idempotency key.
pub struct Asked {
    pub by: Text,
    pub idempotency: Option<(Digest, Digest)>,
}

/// The run to create and the specs of its jobs, in order.
pub fn new_run(
    id: RunId,
    request: &CreateRun,
    asked: Asked,
    settings: &Settings,
) -> Result<(NewRun, Vec<Arc<str>>), Invalid> {
    let text = |text: &Option<String>| text.as_deref().map(Text::from);
    let mut header = RunHeader {
        repository: text(&request.repository),
        git_ref: text(&request.git_ref),
        commit: text(&request.commit),
        trusted: request.trust == Trust::Trusted,
        priority: request.priority,
        fail_fast: request.fail_fast,
        run_timeout: request
            .timeout_seconds
            .map_or(settings.run_timeout, Span::from),
        wait_timeout: request
            .wait_timeout_seconds
            .map_or(settings.wait_timeout, Span::from),
        idempotency: asked.idempotency,
        ..RunHeader::plain(asked.by, settings)
    };
    header.concurrency = (request.concurrency.as_ref()).map(|it| group(it, Of::Runs, &header));
    let numbers: HashMap<&str, u32> = request
        .jobs
        .iter()
        .map(|job| job.name.as_str())
        .zip(1..)
        .collect();
    let mut jobs = Vec::with_capacity(request.jobs.len());
    let mut specs = Vec::with_capacity(request.jobs.len());
    for job in &request.jobs {
        let mut policy = policy(job, request.priority, &numbers, settings)?;
        policy.concurrency = (job.concurrency.as_ref()).map(|it| group(it, Of::Jobs, &header));
        let spec: Arc<str> = job.job_spec.as_text().into();
        jobs.push(NewJob {
            name: job.name.as_str().into(),
            policy,
            spec: sha256(spec.as_bytes()),
            kept: None,
        });
        specs.push(spec);
    }
    let new = NewRun {
        id,
        header,
        jobs: Some(jobs),
    };
    Ok((new, specs))
}

/// Of what a group is.
#[derive(Clone, Copy)]
enum Of {
    Runs,
    Jobs,
}

/// A group with its key. Who is not meant to meet does not share one: runs and jobs, repositories,
/// and whoever is not trusted, who meets nobody but runs of the same ref (T5).
fn group(group: &Group, of: Of, header: &RunHeader) -> Concurrency {
    let of = match of {
        Of::Runs => "runs",
        Of::Jobs => "jobs",
    };
    let stranger = if header.trusted {
        None
    } else {
        Some(header.git_ref.as_deref().unwrap_or_default())
    };
    let parts = [
        of,
        &header.project,
        header.repository.as_deref().unwrap_or_default(),
        if header.trusted {
            "trusted"
        } else {
            "untrusted"
        },
        stranger.unwrap_or_default(),
        &group.group,
    ];
    Concurrency {
        group: group.group.as_str().into(),
        key: digest(&parts),
        cancel_older: group.cancel_older,
    }
}

/// Each part with its length before it, so that no two lists have the same.
pub(crate) fn digest(parts: &[&str]) -> Digest {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    sha256(&bytes)
}

fn policy(
    job: &CreateJob,
    priority: i32,
    numbers: &HashMap<&str, u32>,
    settings: &Settings,
) -> Result<Policy, Invalid> {
    let needs = job.needs.iter().map(|need| {
        let number = numbers.get(need.as_str()).copied();
        number.ok_or_else(|| Invalid::field("needs", format!("`{need}` is no job of this run")))
    });
    // The kind of work is a requirement like any other.
    let kind = job.work.requirement();
    let lifted = job.work_requires.iter().chain([&kind]);
    let words = job.requires.iter().chain(lifted).map(String::as_str);
    let requirements = words.map(|word| {
        Requirement::parse(word).map_err(|bad| Invalid::field("requires", bad.to_string()))
    });
    let retry_on = match &job.retry_on {
        Some(words) => words
            .iter()
            .filter_map(|word| RetryOn::from_name(word))
            .collect(),
        None => default_retry_on(job.work),
    };
    Ok(Policy {
        required: job.required,
        needs: needs.collect::<Result<_, _>>()?,
        max_attempts: job.max_attempts,
        timeout: job.timeout_seconds.map_or(settings.job_timeout, Span::from),
        requires: normalise(&requirements.collect::<Result<Vec<_>, _>>()?),
        priority: priority.saturating_add(job.priority),
        once: job.once,
        retry_on,
        secrets: job.secrets.iter().map(|it| it.as_str().into()).collect(),
        environment: job.environment.as_deref().map(Text::from),
        fail_fast_group: job.fail_fast_group.as_deref().map(Text::from),
        ..Policy::plain(settings)
    })
}

/// Functions are also tried again after an error or a timeout.
pub(crate) fn default_retry_on(work: WorkKind) -> BTreeSet<RetryOn> {
    let mut on = Policy::default_retry_on();
    if work == WorkKind::Function {
        on.extend([RetryOn::Cause(Cause::UserExit), RetryOn::Timeout]);
    }
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(body: &str) -> NewRun {
        let request = CreateRun::parse(body.as_bytes()).unwrap();
        let asked = Asked {
            by: "u".into(),
            idempotency: None,
        };
        new_run(RunId(1), &request, asked, &Settings::recommended())
            .unwrap()
            .0
    }

    #[test]
    fn policy_is_lifted_out_and_work_is_a_requirement() {
        // A57, A64, A65, A68
        let run = made(
            r#"{"priority":2,"jobs":[
                {"name":"a","job_spec":{"steps":["true"]},"requires":["linux"],"priority":1},
                {"name":"b","needs":["a"],"job_spec":{"function":{"name":"f"}},
                 "timeout_seconds":1.5},
                {"name":"c","job_spec":{"steps":["true"],"image":"box:1"}}]}"#,
        );
        let jobs = run.jobs.unwrap();
        assert_eq!(&*jobs[0].policy.requires, "linux work:steps");
        assert_eq!(&*jobs[2].policy.requires, "docker work:steps");
        assert_eq!(jobs[0].policy.priority, 3);
        assert_eq!(jobs[0].policy.timeout, Settings::recommended().job_timeout);
        assert_eq!(jobs[1].policy.needs, [1]);
        assert_eq!(jobs[1].policy.timeout, Span(1500));
        assert!(jobs[1].policy.retry_on.contains(&RetryOn::Timeout));
        assert!(!jobs[0].policy.retry_on.contains(&RetryOn::Timeout));
    }

    #[test]
    fn groups_of_those_who_are_not_meant_to_meet_are_different() {
        // T5: a stranger's file cannot end what is trusted, nor what is another stranger's.
        let keys = |repository: &str, git_ref: &str, trust: &str| {
            let run = made(&format!(
                r#"{{"repository":"{repository}","ref":"{git_ref}","trust":"{trust}",
                "concurrency":{{"group":"g","cancel_older":true}},
                "jobs":[{{"name":"a","job_spec":{{"steps":["x"]}},"concurrency":{{"group":"g"}}}}]}}"#
            ));
            let own = run.header.concurrency.unwrap();
            let job = run.jobs.unwrap()[0].policy.concurrency.clone().unwrap();
            assert!(own.cancel_older && !job.cancel_older && &*own.group == "g");
            assert_ne!(own.key, job.key);
            own.key
        };
        let own = keys("r", "main", "trusted");
        assert_eq!(own, keys("r", "other", "trusted"));
        assert_ne!(own, keys("s", "main", "trusted"));
        let stranger = keys("r", "main", "untrusted");
        assert_ne!(own, stranger);
        assert_ne!(stranger, keys("r", "other", "untrusted"));
    }

    #[test]
    fn the_names_of_secrets_are_lifted_out() {
        // A51, D1: what may be fetched is decided here, and the spec is not read again.
        let run = made(
            r#"{"jobs":[{"name":"a","job_spec":{"steps":["x"],"environment":"production",
                "secrets":["TOKEN",{"name":"DEPLOY","env":"KEY"}],
                "checkout":{"credential":"CLONE"}}},
                {"name":"b","job_spec":{"steps":["x"]}}]}"#,
        );
        let jobs = run.jobs.unwrap();
        let names: Vec<&str> = jobs[0].policy.secrets.iter().map(|it| &**it).collect();
        assert_eq!(names, ["CLONE", "DEPLOY", "TOKEN"]);
        assert_eq!(jobs[0].policy.environment.as_deref(), Some("production"));
        assert!(jobs[1].policy.secrets.is_empty());
    }

    #[test]
    fn what_only_the_core_can_judge_is_refused_with_its_place() {
        let body = r#"{"jobs":[{"name":"a","job_spec":{"steps":["x"]},"requires":["=1"],
            "retry_on":["luck"]}]}"#;
        let problems = CreateRun::parse(body.as_bytes()).unwrap_err().to_string();
        assert!(problems.contains("jobs[0].requires[0]"), "{problems}");
        assert!(problems.contains("jobs[0].retry_on[0]"), "{problems}");
    }
}
