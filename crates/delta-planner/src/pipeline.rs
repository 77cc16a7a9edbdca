//! What a pipeline file means: jobs in file order, and the request that creates a run of them.
//!
//! A value that the file leaves out stays absent here and in the request, so that defaults live in
//! one place, the server.

use std::time::Duration;

use delta_wire::StepSpec;
use serde_json::{Map, Value, json};

/// The jobs of one file, in file order.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    pub jobs: Vec<PlannedJob>,
}

/// One job as the file states it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedJob {
    pub name: String,
    pub steps: Vec<StepSpec>,
    /// In file order.
    pub env: Vec<(String, String)>,
    /// Names of jobs of this file that must succeed first.
    pub needs: Vec<String>,
    pub timeout: Option<Duration>,
    pub retry: Option<Retry>,
    /// The run can succeed although this job failed.
    pub allow_failure: bool,
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

/// How often a job is tried, and after which causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, the first one counted; absent when the file does not say.
    pub attempts: Option<u32>,
    /// Empty when the file does not say: the server's default list applies.
    pub on: Vec<String>,
}

impl Pipeline {
    /// The body of `POST /api/v1/runs` that runs this pipeline.
    pub fn to_request(&self) -> Value {
        json!({ "jobs": self.jobs.iter().map(PlannedJob::to_request).collect::<Vec<_>>() })
    }

    pub fn job(&self, name: &str) -> Option<&PlannedJob> {
        self.jobs.iter().find(|job| job.name == name)
    }
}

impl PlannedJob {
    fn to_request(&self) -> Value {
        let env: Map<String, Value> = self
            .env
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
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
                "steps": self.steps,
                "env": env,
            },
        });
        let fields = body.as_object_mut().expect("an object was just written");
        if let Some(spec) = fields.get_mut("job_spec").and_then(Value::as_object_mut) {
            spec.extend(self.around.clone());
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

/// Whole seconds as an integer, anything finer as a fraction.
fn seconds(duration: Duration) -> Value {
    if duration.subsec_nanos() == 0 {
        json!(duration.as_secs())
    } else {
        json!(duration.as_secs_f64())
    }
}
