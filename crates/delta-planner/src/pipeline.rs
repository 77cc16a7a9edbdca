//! What a pipeline file means, or what discovery found in place of one: jobs in order, each cell of
//! a matrix a job of its own, and when they run. Which of them belong to one run, the plan says.
//!
//! A value that the file leaves out stays absent here and in the request, so that defaults live in
//! one place, the server.

use std::time::Duration;

use delta_wire::StepSpec;
use serde_json::{Map, Value, json};

use crate::concurrency::Concurrency;
use crate::condition::Condition;
use crate::diagnostic::Diagnostic;
use crate::trigger::Triggers;

/// The jobs of one repository, and what is said about all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pipeline {
    pub triggers: Triggers,
    /// The first required failure cancels the rest of the run.
    pub fail_fast: bool,
    /// The group of which one run at a time is at work.
    pub concurrency: Option<Concurrency>,
    /// How long a run may take.
    pub timeout: Option<Duration>,
    /// In file order, cells of a matrix side by side.
    pub jobs: Vec<PlannedJob>,
    /// What is to be said of the file, and fails nothing.
    pub warnings: Vec<Diagnostic>,
}

/// One job. Made by [`PlannedJob::new`], everything else being absent.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedJob {
    /// Unique in its pipeline. A cell's is `unit (rust=stable, os=linux)`.
    pub name: String,
    /// Of which job and cell it is, where the file has a matrix.
    pub cell: Option<Cell>,
    /// Absent: always.
    pub condition: Option<Condition>,
    pub steps: Vec<PlannedStep>,
    /// In file order.
    pub env: Vec<(String, String)>,
    /// Names of jobs of this pipeline that must succeed first.
    pub needs: Vec<String>,
    pub timeout: Option<Duration>,
    pub retry: Option<Retry>,
    /// The run can succeed although this job failed.
    pub allow_failure: bool,
    /// Of a cell: the first failure among the cells of its matrix cancels the others.
    pub fail_fast: bool,
    /// The group of which one job at a time is at work.
    pub concurrency: Option<Concurrency>,
    /// What an agent must offer, such as `linux` or `cpu>=4`.
    pub requires: Vec<String>,
    /// Never silently repeated.
    pub once: bool,
    pub priority: i32,
    /// Relative to the workspace.
    pub workdir: String,
    /// Fields of the job spec around the work, written out in full.
    pub around: Map<String, Value>,
}

/// One step, and when it belongs to the job.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStep {
    pub spec: StepSpec,
    /// Absent: whenever those before it went well.
    pub condition: Option<Condition>,
}

impl From<StepSpec> for PlannedStep {
    fn from(spec: StepSpec) -> PlannedStep {
        PlannedStep {
            spec,
            condition: None,
        }
    }
}

impl From<&str> for PlannedStep {
    fn from(script: &str) -> PlannedStep {
        StepSpec::plain(script).into()
    }
}

/// One cell of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The job as the file names it.
    pub job: String,
    /// In file order.
    pub values: Vec<(String, String)>,
}

/// How often a job is tried, and after which causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, the first one counted; absent when the file does not say.
    pub attempts: Option<u32>,
    /// Empty when the file does not say: the server's default list applies.
    pub on: Vec<String>,
}

impl Pipeline {
    /// Gives every job these variables, whatever the file says of them.
    pub fn tell(&mut self, words: &[(String, String)]) {
        for job in &mut self.jobs {
            job.env
                .retain(|(name, _)| !words.iter().any(|(it, _)| it == name));
            job.env.extend(words.iter().cloned());
        }
    }

    /// A pipeline that says nothing but its jobs.
    pub fn of(jobs: Vec<PlannedJob>) -> Pipeline {
        Pipeline {
            jobs,
            ..Pipeline::default()
        }
    }

    pub fn job(&self, name: &str) -> Option<&PlannedJob> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// The body of `POST /api/v1/runs` that runs all of its jobs, whatever their conditions.
    pub fn to_request(&self) -> Value {
        let mut body = json!({
            "jobs": self.jobs.iter().map(PlannedJob::to_request).collect::<Vec<_>>(),
        });
        let fields = body.as_object_mut().expect("an object was just written");
        if self.fail_fast {
            fields.insert("fail_fast".into(), json!(true));
        }
        if let Some(group) = &self.concurrency {
            fields.insert("concurrency".into(), group_request(group));
        }
        if let Some(timeout) = self.timeout {
            fields.insert("timeout_seconds".into(), seconds(timeout));
        }
        body
    }
}

impl PlannedJob {
    /// A job of these steps that says nothing else.
    pub fn new(name: &str, steps: Vec<PlannedStep>) -> PlannedJob {
        PlannedJob {
            name: name.to_owned(),
            cell: None,
            condition: None,
            steps,
            env: Vec::new(),
            needs: Vec::new(),
            timeout: None,
            retry: None,
            allow_failure: false,
            fail_fast: false,
            concurrency: None,
            requires: Vec::new(),
            once: false,
            priority: 0,
            workdir: ".".to_owned(),
            around: Map::new(),
        }
    }

    /// Names of jobs whose artifacts it takes.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        let inputs = self.around.get("inputs").and_then(Value::as_array);
        let inputs = inputs.map(Vec::as_slice).unwrap_or_default();
        inputs.iter().filter_map(|it| it["job"].as_str())
    }

    pub(crate) fn to_request(&self) -> Value {
        let env: Map<String, Value> = self
            .env
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let steps: Vec<&StepSpec> = self.steps.iter().map(|step| &step.spec).collect();
        let mut body = json!({
            "name": self.name,
            "needs": self.needs,
            "required": !self.allow_failure,
            "requires": self.requires,
            "once": self.once,
            "priority": self.priority,
            "job_spec": {
                "name": self.name,
                "workdir": self.workdir,
                "steps": steps,
                "env": env,
            },
        });
        let fields = body.as_object_mut().expect("an object was just written");
        if let Some(spec) = fields.get_mut("job_spec").and_then(Value::as_object_mut) {
            spec.extend(self.around.clone());
        }
        if let Some(cell) = self.cell.as_ref().filter(|_| self.fail_fast) {
            fields.insert("fail_fast_group".into(), json!(cell.job));
        }
        if let Some(group) = &self.concurrency {
            fields.insert("concurrency".into(), group_request(group));
        }
        if let Some(timeout) = self.timeout {
            fields.insert("timeout_seconds".into(), seconds(timeout));
        }
        if let Some(retry) = &self.retry {
            if let Some(attempts) = retry.attempts {
                fields.insert("max_attempts".into(), json!(attempts));
            }
            if !retry.on.is_empty() {
                fields.insert("retry_on".into(), json!(retry.on));
            }
        }
        body
    }
}

fn group_request(concurrency: &Concurrency) -> Value {
    json!({ "group": concurrency.group, "cancel_older": concurrency.cancel_older })
}

/// Whole seconds as an integer, anything finer as a fraction.
fn seconds(duration: Duration) -> Value {
    if duration.subsec_nanos() == 0 {
        json!(duration.as_secs())
    } else {
        json!(duration.as_secs_f64())
    }
}
