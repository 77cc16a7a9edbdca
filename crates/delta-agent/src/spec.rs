//! The job spec of an assignment, and whether this agent can carry it out.

use delta_core::Cause;
use delta_wire::JobSpec;
use delta_wire::job_spec::WorkKind;
use delta_wire::runner::{GrantedSpec, LeaseGranted};

/// Why there is nothing to execute.
pub(crate) struct Unusable {
    pub cause: Cause,
    pub summary: String,
}

/// Reads the spec and refuses what this agent does not execute.
pub(crate) fn read(granted: &LeaseGranted) -> Result<JobSpec, Unusable> {
    let GrantedSpec::Embedded(spec) = &granted.spec else {
        return Err(spec_error("the assignment has no job spec".to_owned()));
    };
    let spec = JobSpec::parse(spec.as_text().as_bytes())
        .map_err(|problem| spec_error(format!("the job spec cannot be read: {problem}")))?;
    if spec.work() != WorkKind::Steps {
        let kind = spec.work().as_str();
        return Err(spec_error(format!(
            "this agent executes steps, the job has {kind}"
        )));
    }
    Ok(spec)
}

fn spec_error(summary: String) -> Unusable {
    Unusable {
        cause: Cause::SpecError,
        summary,
    }
}
