//! The job spec of an assignment, and whether this agent can carry it out.

use delta_core::Cause;
use delta_wire::JobSpec;
use delta_wire::job_spec::{
    ArtifactPattern, ContainerSpec, ExecutionKind, ExecutionSpec, WorkKind,
};
use delta_wire::runner::{GrantedSpec, LeaseGranted};

/// Why there is nothing to execute.
pub(crate) struct Unusable {
    pub cause: Cause,
    pub summary: String,
}

/// What an agent takes.
#[derive(Clone, Copy)]
pub(crate) struct Kinds {
    pub functions: bool,
    /// Steps and tests: what may do anything to whoever listens on this machine (A46).
    pub steps: bool,
}

impl Kinds {
    pub const STEPS: Kinds = Kinds {
        functions: false,
        steps: true,
    };
}

/// Reads the spec and refuses what this agent does not execute.
pub(crate) fn read(granted: &LeaseGranted, kinds: Kinds) -> Result<JobSpec, Unusable> {
    let GrantedSpec::Embedded(spec) = &granted.spec else {
        return Err(spec_error("the assignment has no job spec".to_owned()));
    };
    let mut spec = JobSpec::parse(spec.as_text().as_bytes())
        .map_err(|problem| spec_error(format!("the job spec cannot be read: {problem}")))?;
    match spec.work() {
        WorkKind::Function if !kinds.functions => {
            let summary = "this agent executes steps and tests, the job has a function";
            return Err(spec_error(summary.to_owned()));
        }
        WorkKind::Steps | WorkKind::Tests if !kinds.steps => {
            return Err(Unusable {
                cause: Cause::StartUp,
                summary: "this agent calls functions and was not started with --mixed".to_owned(),
            });
        }
        WorkKind::Function | WorkKind::Steps | WorkKind::Tests => {}
    }
    if spec
        .tests
        .iter()
        .any(|test| test.execution.kind == ExecutionKind::Container)
    {
        in_one_container(&mut spec)?;
    }
    let kept = spec.tests.iter().filter_map(|it| it.result_config.as_ref());
    let kept = kept.flat_map(|config| &config.artifact_paths);
    let kept = kept.map(|path| ArtifactPattern {
        kind: "file".to_owned(),
        path_glob: path.clone(),
    });
    let kept: Vec<ArtifactPattern> = kept.collect();
    spec.artifacts.extend(kept);
    Ok(spec)
}

/// Tests that name an image run in one container, as steps do: it is that of all of them.
fn in_one_container(spec: &mut JobSpec) -> Result<(), Unusable> {
    let mut boxes = spec.tests.iter().map(|test| &test.execution);
    let Some(first) = boxes.next().cloned() else {
        return Ok(());
    };
    let same = |other: &ExecutionSpec| {
        other.kind == first.kind
            && (&other.image, &other.entrypoint) == (&first.image, &first.entrypoint)
            && (&other.mounts, &other.network_mode) == (&first.mounts, &first.network_mode)
            && other.resource_limits == first.resource_limits
    };
    if !boxes.all(same) {
        let summary = "tests of one job run in one place: those of another image are another job's";
        return Err(spec_error(summary.to_owned()));
    }
    let limits = first.resource_limits.unwrap_or_default();
    spec.container = Some(ContainerSpec {
        entrypoint: first.entrypoint,
        network: first.network_mode,
        memory_mb: limits.memory_mb,
        cpus: limits.cpu_millis.map(|millis| f64::from(millis) / 1000.0),
        pids: limits.pids,
        mounts: first.mounts,
        ..spec.container.take().unwrap_or_default()
    });
    spec.image = first.image;
    Ok(())
}

fn spec_error(summary: String) -> Unusable {
    Unusable {
        cause: Cause::SpecError,
        summary,
    }
}
