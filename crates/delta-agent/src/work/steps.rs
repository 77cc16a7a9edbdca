//! Steps for a shim, made of what a job spec says.

use delta_shim::step::Step;
use delta_wire::StepSpec;
use delta_wire::job_spec::TestSpec;
use delta_wire::step::StepWhen;

use super::environment::without_own;

/// A step that the spec names.
pub(crate) fn of_step(spec: StepSpec) -> Step {
    let timeout = spec.timeout.map(|it| it.as_duration());
    Step {
        script: spec.run,
        argv: None,
        workdir: None,
        goes_on: false,
        name: spec.name,
        timeout,
        when: spec.when,
        env: without_own(spec.env),
        shell: spec.shell.map(|shell| shell.words()),
        failure_allowed: spec.continue_on_error,
        report: None,
    }
}

/// A test that is work of its own.
pub(crate) fn of_test(test: &TestSpec) -> Step {
    let execution = &test.execution;
    let mut argv = vec![execution.command.clone()];
    argv.extend_from_slice(&execution.args);
    Step {
        script: execution.command.clone(),
        argv: Some(argv),
        workdir: execution.working_dir.clone(),
        goes_on: true,
        name: Some(test.label().to_owned()),
        timeout: None,
        when: StepWhen::Success,
        env: Vec::new(),
        shell: None,
        failure_allowed: false,
        report: test
            .result_config
            .as_ref()
            .and_then(|it| it.result_file.clone()),
    }
}
