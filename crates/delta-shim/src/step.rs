//! One step of a job as a shim is told of it: a script for a shell, or a program with its words.

use std::time::Duration;

use delta_wire::step::StepWhen;
use serde::{Deserialize, Serialize};

/// One shell script, or one program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// For a program: what people call it by.
    pub script: String,
    /// The program and its arguments, which no shell reads.
    #[serde(default)]
    pub argv: Option<Vec<String>>,
    /// Where it starts, inside the workspace; where the job does when absent.
    #[serde(default)]
    pub workdir: Option<String>,
    /// The steps behind it are carried out whatever becomes of it.
    #[serde(default)]
    pub goes_on: bool,
    /// For people, where the script's first line does not say it.
    #[serde(default)]
    pub name: Option<String>,
    /// Past this it is ended, and the attempt with it.
    pub timeout: Option<Duration>,
    /// After which outcome of the steps before it is it carried out.
    #[serde(default = "after_success")]
    pub when: StepWhen,
    /// Variables of its own, beside those of the job.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// What reads the script, which is its last argument; `sh -e` when absent.
    #[serde(default)]
    pub shell: Option<Vec<String>>,
    /// Its failure is shown and does not count.
    #[serde(default)]
    pub failure_allowed: bool,
    /// Where it leaves its report, as a pattern inside the workspace: set aside before the next one
    /// begins.
    #[serde(default)]
    pub report: Option<String>,
}

fn after_success() -> StepWhen {
    StepWhen::Success
}

impl Step {
    /// Whether it is its turn, when one before it has failed or none has.
    pub(crate) fn is_due(&self, failed: bool) -> bool {
        match self.when {
            _ if self.goes_on => true,
            StepWhen::Success => !failed,
            StepWhen::Failure => failed,
            StepWhen::Always => true,
        }
    }

    /// What people call it, in one short line.
    pub fn label(&self) -> String {
        delta_wire::step::label(self.name.as_deref(), &self.script)
    }

    /// Its script, or its program, where that is not what it is called.
    pub fn command(&self) -> Option<String> {
        let command = delta_wire::step::command(&self.script);
        (command != self.label()).then_some(command)
    }

    /// Its script for a shell that starts where the job does. Each word is quoted: the shell reads
    /// none of them.
    pub(crate) fn in_shell(&self) -> String {
        let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
        let work = match &self.argv {
            Some(words) => {
                let words: Vec<String> = words.iter().map(quoted).collect();
                format!("exec {}", words.join(" "))
            }
            None => self.script.clone(),
        };
        match &self.workdir {
            Some(workdir) => format!("cd -- \"$DELTA_WORKSPACE\"/{}\n{work}", quoted(workdir)),
            None => work,
        }
    }
}
