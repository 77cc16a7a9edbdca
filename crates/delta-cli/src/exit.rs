//! The exit codes, one table: what a script can rely on. Shown by `delta-ci help exit-codes` and at
//! the end of `delta-ci --help`.

use std::process::ExitCode;

use delta_wire::states::RunOutcome;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok,
    /// The run failed, or a check found something wrong.
    Failed,
    Usage,
    Canceled,
    TimedOut,
    NotFound,
    Unreachable,
    NotAllowed,
    Refused,
    Internal,
}

impl Exit {
    const ALL: [Exit; 10] = [
        Exit::Ok,
        Exit::Failed,
        Exit::Usage,
        Exit::Canceled,
        Exit::TimedOut,
        Exit::NotFound,
        Exit::Unreachable,
        Exit::NotAllowed,
        Exit::Refused,
        Exit::Internal,
    ];

    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Canceled => 3,
            Exit::TimedOut => 4,
            Exit::NotFound => 5,
            Exit::Unreachable => 6,
            Exit::NotAllowed => 7,
            Exit::Refused => 8,
            Exit::Internal => 70,
        }
    }

    /// The word for it in `--json` errors.
    pub fn word(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::Canceled => "canceled",
            Exit::TimedOut => "timed_out",
            Exit::NotFound => "not_found",
            Exit::Unreachable => "unreachable",
            Exit::NotAllowed => "not_allowed",
            Exit::Refused => "refused",
            Exit::Internal => "internal",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "it worked; for `run`: the run succeeded",
            Exit::Failed => "the run failed; for `doctor`, `sim`, `bench`: something is wrong",
            Exit::Usage => "the command line or the pipeline file cannot be understood",
            Exit::Canceled => "the run was canceled",
            Exit::TimedOut => "the run timed out",
            Exit::NotFound => "there is no such run, job, token, file or folder",
            Exit::Unreachable => "the server or the store cannot be reached",
            Exit::NotAllowed => {
                "the token is missing, unknown, or its role does not reach this far"
            }
            Exit::Refused => "the server understood and refused: the state does not allow it",
            Exit::Internal => "this machine or this program failed",
        }
    }

    /// What a run's outcome means to a script.
    pub fn of(outcome: RunOutcome) -> Exit {
        match outcome {
            RunOutcome::Success => Exit::Ok,
            RunOutcome::Failed => Exit::Failed,
            RunOutcome::Canceled => Exit::Canceled,
            RunOutcome::Timeout => Exit::TimedOut,
        }
    }

    /// The table, one line each.
    pub fn table() -> String {
        let line = |exit: &Exit| format!("  {:>2}  {}", exit.code(), exit.meaning());
        let lines: Vec<String> = Exit::ALL.iter().map(line).collect();
        format!("Exit codes:\n{}", lines.join("\n"))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_scripts_rely_on() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 70]);
        assert_eq!(Exit::table().lines().count(), 11);
    }

    #[test]
    fn an_outcome_has_its_own_code() {
        let codes: Vec<u8> = RunOutcome::ALL
            .iter()
            .map(|outcome| Exit::of(*outcome).code())
            .collect();
        assert_eq!(codes, [0, 1, 3, 4]);
    }
}
