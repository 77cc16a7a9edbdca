//! `POST /api/v1/runs`: a run with its jobs inline.
//!
//! Everything wrong with a request is listed at once. What passes here can be turned into core
//! commands without another look: names are unique, needs exist and form no cycle, every number is
//! in its range, and every job has work to do.

use delta_core::Cause;
use delta_core::policy::RetryOn;
use delta_core::requirement::Requirement;
use serde::Serialize;
use utoipa::ToSchema;

use super::graph;
use crate::fields::{Fields, Node, read_text};
use crate::invalid::{Invalid, Problems};
use crate::job_spec::{JobSpec, RawJobSpec, Strangers, WorkKind};
use crate::nearest::nearest;
use crate::seconds::Seconds;
use crate::states::spelled;

/// Jobs of one run: beyond it a run's header row and its page stop being pleasant.
pub const MAX_JOBS: usize = 1000;
/// Characters of a job's name: one line of a terminal.
pub const MAX_NAME: usize = 100;
/// Marks allowed in a name beside letters and digits: enough for paths and matrix values, nothing
/// that a shell, a URL or a terminal gives a meaning of its own.
pub(crate) const NAME_MARKS: &str = "._ -/()=,:+@";
/// Needs of one job.
pub const MAX_NEEDS: usize = 200;
/// Requirements of one job; they are hashed into its match key.
pub const MAX_REQUIRES: usize = 32;
/// Attempts of one job: a job that failed twenty times needs a person.
pub const MAX_ATTEMPTS: u32 = 20;
/// Attempts when the job does not say (A57).
pub const DEFAULT_ATTEMPTS: u32 = delta_core::Policy::DEFAULT_ATTEMPTS;
/// A tenth of a second: below it no sweep can tell a timeout from a start.
pub const MIN_TIMEOUT: Seconds = Seconds::from_millis(100);
/// Seven days: the longest any job or run may take.
pub const MAX_TIMEOUT: Seconds = Seconds::from_secs(7 * 24 * 60 * 60);
/// One step of priority is worth a minute of waiting (A64): the ends are 16 hours apart from 0.
pub const MAX_PRIORITY: i32 = 1000;
/// Characters of one requirement or one cause.
pub(crate) const MAX_WORD: usize = 128;
/// Characters of a repository, a ref or a commit.
pub const MAX_SOURCE: usize = 512;
/// Characters of a concurrency group's name: room for the longest ref and some words.
pub const MAX_GROUP: usize = 512;
/// Words in `retry_on`: the closed list of causes is shorter.
pub const MAX_RETRY_ON: usize = 64;

/// A run to create.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CreateRun {
    /// 1 to 1000 jobs with unique names.
    pub jobs: Vec<CreateJob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[schema(required = false)]
    pub trust: Trust,
    /// The first required failure cancels the rest.
    #[schema(required = false, default = false)]
    pub fail_fast: bool,
    /// At most one run of this group is at work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Group>,
    /// How long the run may take from its first grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Seconds>,
    /// How long the run may wait without any grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_timeout_seconds: Option<Seconds>,
    /// Added to each job's own priority.
    #[schema(required = false, default = 0)]
    pub priority: i32,
}

/// A concurrency group: of its members at most one is at work. Groups of runs and groups of jobs
/// have nothing to do with each other, and neither have those of different repositories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Group {
    #[schema(example = "production")]
    pub group: String,
    /// Whoever comes ends the older ones, instead of waiting until they are done.
    #[schema(required = false, default = false)]
    pub cancel_older: bool,
}

spelled! {
    /// Whether secrets may reach the run's jobs.
    Trust {
        Trusted = "trusted",
        Untrusted = "untrusted",
    }
}

/// A job of a run to create: the policy the server decides by, and the work.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CreateJob {
    #[schema(example = "unit")]
    pub name: String,
    /// Names of jobs that must succeed first.
    #[schema(required = false)]
    pub needs: Vec<String>,
    /// Whether its failure fails the run.
    #[schema(required = false, default = true)]
    pub required: bool,
    #[schema(required = false, default = 3)]
    pub max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Seconds>,
    /// What the agent must be or have: `linux`, `zone=eu`, `python>=3.11`.
    #[schema(required = false)]
    pub requires: Vec<String>,
    #[schema(required = false, default = 0)]
    pub priority: i32,
    /// Never silently repeated.
    #[schema(required = false, default = false)]
    pub once: bool,
    /// A word that the cells of one matrix share: the first required one that fails cancels the
    /// others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail_fast_group: Option<String>,
    /// At most one job of this group is at work, whichever run it is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Group>,
    /// Causes to retry on; when absent, what the kind of work suggests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<Vec<String>>,
    /// The work, as in LeaseGranted. Kept byte for byte; without a `name` it gets the job's.
    #[schema(value_type = Object)]
    pub job_spec: RawJobSpec,
    /// Which kind of work it is; read off the spec.
    #[serde(skip)]
    #[schema(ignore)]
    pub work: WorkKind,
    /// What the agent must have for the work, beside being able to do it; read off the spec.
    #[serde(skip)]
    #[schema(ignore)]
    pub work_requires: Vec<String>,
    /// Which secrets it refers to, and the environment it works on; read off the spec.
    #[serde(skip)]
    #[schema(ignore)]
    pub secrets: Vec<String>,
    #[serde(skip)]
    #[schema(ignore)]
    pub environment: Option<String>,
}

impl CreateRun {
    /// Reads and checks a request.
    pub fn parse(body: &[u8]) -> Result<CreateRun, Problems> {
        let mut problems = Problems::new();
        let read = read_text(body, |node| {
            let fields = node.object()?;
            Ok(read_run(fields, &mut problems))
        });
        let run = problems.note(read).and_then(|(run, _)| run);
        run.filter(|_| problems.is_empty()).ok_or(problems)
    }
}

fn read_run(mut f: Fields<'_>, p: &mut Problems) -> Option<CreateRun> {
    let nodes = p.note(f.must("jobs", |it| it.list(MAX_JOBS)));
    let jobs = nodes.map(|nodes| read_jobs(&nodes, p));
    let repository = p.note(f.may("repository", source));
    let git_ref = p.note(f.may("ref", source));
    let commit = p.note(f.may("commit", source));
    let trust = p.note(f.may("trust", trust));
    let fail_fast = p.note(f.may("fail_fast", Node::boolean));
    let concurrency = p.note(f.may("concurrency", group));
    let timeout_seconds = p.note(f.may("timeout_seconds", timeout));
    let wait_timeout_seconds = p.note(f.may("wait_timeout_seconds", timeout));
    let priority = p.note(f.may("priority", priority));
    f.refuse_unknown(p);
    Some(CreateRun {
        jobs: jobs??,
        repository: repository?,
        git_ref: git_ref?,
        commit: commit?,
        trust: trust?.unwrap_or(Trust::Trusted),
        fail_fast: fail_fast?.unwrap_or(false),
        concurrency: concurrency?,
        timeout_seconds: timeout_seconds?,
        wait_timeout_seconds: wait_timeout_seconds?,
        priority: priority?.unwrap_or(0),
    })
}

/// Nothing when a job could not be read; the graph is judged only when all of them could.
fn read_jobs(nodes: &[Node<'_>], p: &mut Problems) -> Option<Vec<CreateJob>> {
    if nodes.is_empty() {
        p.push(Invalid::field(
            "jobs",
            "is empty; a run has at least one job",
        ));
    }
    let mut jobs = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let mut found = Problems::new();
        let fields = found.note(node.object());
        let job = fields.and_then(|fields| read_job(fields, &mut found));
        p.extend_within(&format!("jobs[{index}]"), found);
        jobs.extend(job);
    }
    if jobs.len() < nodes.len() {
        return None;
    }
    graph::check(&jobs, p);
    Some(jobs)
}

fn read_job(mut f: Fields<'_>, p: &mut Problems) -> Option<CreateJob> {
    let attempts = i64::from(MAX_ATTEMPTS);
    let name = p.note(f.must("name", job_name));
    let needs = p.note(f.may("needs", |it| it.each(MAX_NEEDS, |need| need.text(MAX_NAME))));
    let required = p.note(f.may("required", Node::boolean));
    let max_attempts = p.note(f.may("max_attempts", |it| it.whole(1, attempts)));
    let timeout_seconds = p.note(f.may("timeout_seconds", timeout));
    let requires = p.note(f.may("requires", |it| words(it, MAX_REQUIRES, requirement)));
    let priority = p.note(f.may("priority", priority));
    let once = p.note(f.may("once", Node::boolean));
    let fail_fast_group = p.note(f.may("fail_fast_group", |it| it.text(MAX_NAME)));
    let concurrency = p.note(f.may("concurrency", group));
    let retry_on = p.note(f.may("retry_on", |it| words(it, MAX_RETRY_ON, retry_on)));
    let spec = p
        .note(f.must("job_spec", Ok))
        .and_then(|node| read_spec(node, p));
    f.refuse_unknown(p);
    let (name, (raw, spec)) = (name?, spec?);
    for (index, input) in spec.inputs.iter().enumerate() {
        if !needs
            .iter()
            .flatten()
            .flatten()
            .any(|need| *need == input.job)
        {
            let job = &input.job;
            let words = format!("`{job}` is not in `needs`: a job has inputs of those it needs");
            p.push(Invalid::field(
                format!("job_spec.inputs[{index}].job"),
                words,
            ));
        }
    }
    let (work, work_requires) = (spec.work(), spec.requires());
    let secrets = spec.secret_names().into_iter().map(str::to_owned).collect();
    // Steps find it as DELTA_JOB_NAME.
    let job_spec = match spec.name {
        Some(_) => raw,
        None => p.note(raw.named(&name).map_err(|it| it.within("job_spec")))?,
    };
    let max_attempts = max_attempts?.and_then(|it| u32::try_from(it).ok());
    Some(CreateJob {
        name,
        needs: needs?.unwrap_or_default(),
        required: required?.unwrap_or(true),
        max_attempts: max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
        timeout_seconds: timeout_seconds?,
        requires: requires?.unwrap_or_default(),
        priority: priority?.unwrap_or(0),
        once: once?.unwrap_or(false),
        fail_fast_group: fail_fast_group?,
        concurrency: concurrency?,
        retry_on: retry_on?,
        job_spec,
        work,
        work_requires,
        secrets,
        environment: spec.environment,
    })
}

fn read_spec(node: Node<'_>, p: &mut Problems) -> Option<(RawJobSpec, JobSpec)> {
    let raw = p.note(RawJobSpec::from_node(node).map_err(|it| it.within("job_spec")))?;
    match JobSpec::read(node, Strangers::Refused) {
        Ok(spec) => Some((raw, spec)),
        Err(problems) => {
            for problem in problems.iter() {
                p.push(beside(problem.clone()).within("job_spec"));
            }
            None
        }
    }
}

/// What the server decides by, and which is easily written where the work is.
const BESIDE_SPEC: [&str; 9] = [
    "needs",
    "required",
    "max_attempts",
    "requires",
    "priority",
    "once",
    "fail_fast_group",
    "concurrency",
    "retry_on",
];

/// A field that is known, but not in there.
fn beside(problem: Invalid) -> Invalid {
    let known = BESIDE_SPEC.contains(&problem.field.as_str());
    match known && problem.message.starts_with("is not known") {
        true => Invalid::field(problem.field, "stands beside `job_spec`, not in it"),
        false => problem,
    }
}

fn job_name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_NAME)?;
    if let Some(strange) = name.chars().find(|c| !name_letter(*c)) {
        let message = format!("must be letters, digits and {NAME_MARKS}, not {strange:?}");
        return Err(Invalid::here(message));
    }
    if name.trim() != name {
        return Err(Invalid::here("must not begin or end with a space"));
    }
    Ok(name)
}

fn name_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || NAME_MARKS.contains(c)
}

/// `{"group": "production", "cancel_older": true}`.
fn group(node: Node<'_>) -> Result<Group, Invalid> {
    let mut fields = node.object()?;
    let group = fields.must("group", |it| {
        let text = it.text(MAX_GROUP)?;
        if text.trim().is_empty() || text.chars().any(char::is_control) {
            Err(Invalid::here("must be one line, and not empty"))
        } else {
            Ok(text)
        }
    })?;
    let cancel_older = fields.may("cancel_older", Node::boolean)?;
    let mut strange = Problems::new();
    fields.refuse_unknown(&mut strange);
    match strange.iter().next() {
        Some(problem) => Err(problem.clone()),
        None => Ok(Group {
            group,
            cancel_older: cancel_older.unwrap_or(false),
        }),
    }
}

/// How long a step, a job or a run may take.
pub(crate) fn timeout(node: Node<'_>) -> Result<Seconds, Invalid> {
    let seconds = node.seconds()?;
    if !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&seconds) {
        let message = format!("must be from {MIN_TIMEOUT} to {MAX_TIMEOUT} seconds");
        return Err(Invalid::here(message));
    }
    Ok(seconds)
}

pub(crate) fn priority(node: Node<'_>) -> Result<i32, Invalid> {
    let number = node.whole((-MAX_PRIORITY).into(), MAX_PRIORITY.into())?;
    i32::try_from(number).map_err(|_| Invalid::here("is out of range"))
}

fn words(
    node: Node<'_>,
    most: usize,
    check: fn(&str) -> Result<(), String>,
) -> Result<Vec<String>, Invalid> {
    node.each(most, |item| {
        let word = item.text(MAX_WORD)?;
        check(&word).map_err(Invalid::here)?;
        Ok(word)
    })
}

fn requirement(word: &str) -> Result<(), String> {
    Requirement::parse(word)
        .map(drop)
        .map_err(|bad| bad.to_string())
}

fn retry_on(word: &str) -> Result<(), String> {
    if RetryOn::from_name(word).is_some() {
        return Ok(());
    }
    let causes = Cause::ALL.iter().map(|cause| cause.name());
    let known = nearest(word, causes.chain(["infra", "timeout"]));
    Err(match known {
        Some(known) => format!("is not a cause; did you mean `{known}`?"),
        None => "is not a cause; use infra, timeout or one cause such as user_exit".to_owned(),
    })
}

/// One line about where the work comes from. It is shown and compared, never executed.
fn source(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_SOURCE)?;
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(Invalid::here("must be printable, without spaces"));
    }
    Ok(text)
}

fn trust(node: Node<'_>) -> Result<Trust, Invalid> {
    Trust::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `trusted` or `untrusted`"))
}
