//! The job spec of an assignment, and whether this agent can carry it out.

use delta_core::Cause;
use delta_wire::JobSpec;
use delta_wire::job_spec::{ArtifactPattern, ExecutionKind, TestSpec, WorkKind};
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
    let mut spec = JobSpec::parse(spec.as_text().as_bytes())
        .map_err(|problem| spec_error(format!("the job spec cannot be read: {problem}")))?;
    if spec.work() == WorkKind::Function {
        let summary = "this agent executes steps and tests, the job has a function";
        return Err(spec_error(summary.to_owned()));
    }
    let boxed = |test: &TestSpec| test.execution.kind == ExecutionKind::Container;
    if spec.tests.iter().any(boxed) {
        let summary = "this agent executes processes, a test needs a container";
        return Err(spec_error(summary.to_owned()));
    }
    let kept = spec.tests.iter().filter_map(|it| it.result_config.as_ref());
    let kept = kept.flat_map(|config| &config.artifact_paths);
    let kept = kept.map(|path| ArtifactPattern {
        kind: "file".to_owned(),
        path_glob: path.clone(),
    });
    let kept: Vec<ArtifactPattern> = kept.collect();
    spec.artifacts.extend(kept);
    if spec.image.is_some() {
        let summary = "this agent executes processes, the job needs an image";
        return Err(spec_error(summary.to_owned()));
    }
    Ok(spec)
}

fn spec_error(summary: String) -> Unusable {
    Unusable {
        cause: Cause::SpecError,
        summary,
    }
}
