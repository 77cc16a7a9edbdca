//! Why something ended: a closed list (D10). Retry policy is written in these words, never in exit
//! codes.

/// Families of causes that retry policy and people talk about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The work itself failed.
    User,
    /// Something around the work failed.
    Infra,
    /// A limit of time was reached.
    Timeout,
    /// Somebody or a rule stopped it.
    Stopped,
}

macro_rules! causes {
    ($($variant:ident $name:literal $class:ident $doc:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause {
            $(#[doc = $doc] $variant,)*
        }

        impl Cause {
            pub const ALL: &[Cause] = &[$(Cause::$variant,)*];

            /// The name on the wire, in the pipeline file and in events.
            pub fn name(self) -> &'static str {
                match self { $(Cause::$variant => $name,)* }
            }

            pub fn class(self) -> Class {
                match self { $(Cause::$variant => Class::$class,)* }
            }

            /// One sentence for people.
            pub fn sentence(self) -> &'static str {
                match self { $(Cause::$variant => $doc,)* }
            }
        }
    };
}

causes! {
    UserExit "user_exit" User "A command of the job ended with a failure.",
    UserSignal "user_signal" User "A command of the job was ended by a signal.",
    OutOfMemory "out_of_memory" User "The job used more memory than it may.",
    Inconsistent "inconsistent" User "Success was reported together with a failing exit code.",
    SpecError "spec_error" User "The job cannot be executed as it is written.",
    HandlerNotFound "handler_not_found" User "No handler of that name exists.",
    NoTests "no_tests" User "No test ran.",
    Flaky "flaky" User "A test failed that is known to pass on the same commit.",
    DiskFull "disk_full" Infra "The machine had no disk space left.",
    AgentShutdown "agent_shutdown" Infra "The agent was shut down while the job ran.",
    Declined "declined" Infra "The agent could not begin the work.",
    Clone "clone" Infra "The repository could not be fetched.",
    Image "image" Infra "The container image could not be had.",
    CacheFetch "cache" Infra "A cache could not be restored or saved.",
    Artifact "artifact" Infra "An artifact could not be stored or fetched.",
    Registry "registry" Infra "A package registry did not answer.",
    StartUp "start_up" Infra "The agent failed before the work began.",
    AgentError "agent_error" Infra "The agent could not carry out the work.",
    Network "network" Infra "A network the job depends on failed.",
    LeaseLost "lease_lost" Infra "The attempt lost its lease as often as it may.",
    LostOnce "lost_once" Infra "The agent was lost, and the job may not be repeated.",
    NotAccepted "not_accepted" Infra "No agent began it: each turned it down or stayed silent.",
    NoAgent "no_agent" Infra "No fit agent took the run within the waiting limit.",
    StepTimeout "step_timeout" Timeout "A step took longer than it may.",
    JobTimeout "job_timeout" Timeout "The job took longer than it may.",
    RunTimeout "run_timeout" Timeout "The run took longer than it may.",
    NoOutput "no_output" Timeout "The job printed nothing for longer than it may.",
    PlanTimeout "plan_timeout" Timeout "Planning took longer than it may.",
    PlanError "plan_error" User "The plan could not be made.",
    EmptyPlan "empty_plan" User "There was nothing to run: nothing is configured.",
    NothingToRun "nothing_to_run" Stopped "Conditions left every job out.",
    RequiredJobFailed "required_job_failed" User "A required job failed.",
    RequiredJobCanceled "required_job_canceled" Stopped "A required job was canceled.",
    CanceledByUser "canceled_by_user" Stopped "Somebody canceled it.",
    Superseded "superseded" Stopped "A newer run took its place.",
    GroupFull "group_full" Stopped "Too many others wait in its concurrency group.",
    NoTurn "no_turn" Stopped "Others of its concurrency group were at work for too long.",
    DependencyFailed "dependency_failed" Stopped "A job it needs did not succeed.",
    FailFast "fail_fast" Stopped "Another job failed, and the run stops at the first failure.",
    MatrixFailFast "matrix_fail_fast" Stopped "Another cell of its matrix failed first.",
}

impl Cause {
    pub fn from_name(name: &str) -> Option<Cause> {
        Cause::ALL
            .iter()
            .copied()
            .find(|cause| cause.name() == name)
    }

    /// What a holder may say of its own attempt; anything else it says reads as
    /// [`Cause::UserExit`], so that no runner can blame the scheduler.
    pub fn reportable(self) -> bool {
        use Cause as C;
        matches!(
            self,
            C::UserExit
                | C::UserSignal
                | C::OutOfMemory
                | C::SpecError
                | C::HandlerNotFound
                | C::NoTests
                | C::Flaky
                | C::DiskFull
                | C::AgentShutdown
                | C::Declined
                | C::Clone
                | C::Image
                | C::CacheFetch
                | C::Artifact
                | C::Registry
                | C::StartUp
                | C::AgentError
                | C::Network
                | C::StepTimeout
                | C::JobTimeout
                | C::NoOutput
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_back() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_name(cause.name()), Some(cause));
        }
        assert_eq!(Cause::from_name("exit 137"), None);
    }

    #[test]
    fn a_runner_cannot_blame_the_scheduler() {
        // RP-17, A57
        for cause in [
            Cause::NoAgent,
            Cause::LeaseLost,
            Cause::LostOnce,
            Cause::Superseded,
        ] {
            assert!(!cause.reportable(), "{cause:?}");
        }
    }
}
