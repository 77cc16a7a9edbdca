//! A step: what a job spec says of one, and what its runner says of it afterwards.
//!
//! A plain step is a string. One of which more is said is an object, which a runner that does not
//! know it refuses: a limit must not be dropped in silence.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::agent::proto;
use crate::api::create_run::timeout;
use crate::fields::{Fields, Node};
use crate::invalid::{Invalid, Problems};
use crate::job_spec::{MAX_STEP_BYTES, MAX_STEPS, Strangers, environment};
use crate::seconds::Seconds;
use crate::shell::Shell;
use crate::states::spelled;
use crate::time::Millis;

/// Characters of a step's name: one line.
pub const MAX_STEP_NAME: usize = 120;
/// Characters of the script that a result has of a step: that of a person is shorter, and two
/// hundred of them are no burden.
pub const MAX_COMMAND: usize = 1000;
/// Stands for what is missing at the end of a text.
pub const CUT: char = '…';
/// Variables of one step, beside those of its job.
pub const MAX_STEP_ENV: usize = 100;

spelled! {
    /// After which outcome of the steps before it a step is carried out.
    StepWhen {
        Success = "success",
        Failure = "failure",
        Always = "always",
    }
}

/// One step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSpec {
    /// A script.
    pub run: String,
    /// For people; the script's first line says it where this does not.
    pub name: Option<String>,
    /// Past this it is ended, and the attempt with it.
    pub timeout: Option<Seconds>,
    /// After which outcome of those before it.
    pub when: StepWhen,
    /// Variables of its own, in the order written.
    pub env: Vec<(String, String)>,
    /// Its failure is shown and does not count.
    pub continue_on_error: bool,
    /// What reads the script; `sh -e` where nothing is said.
    pub shell: Option<Shell>,
}

impl StepSpec {
    /// A script, and nothing else said about it.
    pub fn plain(run: impl Into<String>) -> StepSpec {
        StepSpec {
            run: run.into(),
            name: None,
            timeout: None,
            when: StepWhen::Success,
            env: Vec::new(),
            continue_on_error: false,
            shell: None,
        }
    }

    pub(crate) fn read(node: Node<'_>, strangers: Strangers) -> Result<StepSpec, Invalid> {
        if !node.raw().get().starts_with('{') {
            return Ok(StepSpec::plain(script(node)?));
        }
        let mut f = node.object()?;
        let step = StepSpec {
            run: f.must("run", script)?,
            name: f.may("name", |it| it.text(MAX_STEP_NAME))?,
            timeout: f.may("timeout_seconds", timeout)?,
            when: f.may("if", when)?.unwrap_or(StepWhen::Success),
            env: f.may("env", variables)?.unwrap_or_default(),
            continue_on_error: f.may("continue_on_error", Node::boolean)?.unwrap_or(false),
            shell: f.may("shell", Shell::read)?.filter(|it| !it.is_usual()),
        };
        let mut problems = Problems::new();
        match strangers {
            Strangers::Ignored => f.close(),
            Strangers::Refused => f.refuse_unknown(&mut problems),
        }
        match problems.iter().next() {
            Some(first) => Err(first.clone()),
            None => Ok(step),
        }
    }

    /// What people call it: see [`label`].
    pub fn label(&self) -> String {
        label(self.name.as_deref(), &self.run)
    }
}

/// What people call a step of this name and script: its name, or the script's first line that does
/// something. An ellipsis stands for what is missing of a long one, behind a word where there is
/// one; behind a blank it stands for further lines.
pub fn label(name: Option<&str>, script: &str) -> String {
    let lines = script.lines().map(str::trim).filter(|it| !it.is_empty());
    let idle = |line: &&str| line.starts_with('#') || line.starts_with("set -");
    let mut busy = lines.clone().filter(|it| !idle(it));
    let first = busy.next().or(lines.clone().next()).unwrap_or_default();
    match name {
        Some(name) => cut(name, MAX_STEP_NAME),
        None if busy.next().is_some() => {
            format!("{} {CUT}", cut_behind_a_word(first, MAX_STEP_NAME - 2))
        }
        None => cut_behind_a_word(first, MAX_STEP_NAME),
    }
}

/// The script of a step, as far as a result has room for it.
pub fn command(script: &str) -> String {
    cut(script.trim(), MAX_COMMAND)
}

/// At most so many characters, the last of them an ellipsis where something is missing.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most - 1) {
        Some((at, last)) if at + last.len_utf8() < text.len() => format!("{}{CUT}", &text[..at]),
        _ => text.to_owned(),
    }
}

/// As [`cut`], without the beginning of a word that is shorter than half of it.
fn cut_behind_a_word(text: &str, most: usize) -> String {
    let short = cut(text, most);
    let word = short.rfind(' ').filter(|at| *at > most / 2);
    match word.filter(|_| short != text) {
        Some(at) => format!("{}{CUT}", short[..at].trim_end()),
        None => short,
    }
}

impl Serialize for StepSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if *self == StepSpec::plain(self.run.as_str()) {
            return to.serialize_str(&self.run);
        }
        let mut fields = to.serialize_struct("StepSpec", 7)?;
        fields.serialize_field("run", &self.run)?;
        if let Some(name) = &self.name {
            fields.serialize_field("name", name)?;
        }
        if let Some(timeout) = &self.timeout {
            fields.serialize_field("timeout_seconds", timeout)?;
        }
        if self.when != StepWhen::Success {
            fields.serialize_field("if", self.when.as_str())?;
        }
        if !self.env.is_empty() {
            fields.serialize_field("env", &Variables(&self.env))?;
        }
        if self.continue_on_error {
            fields.serialize_field("continue_on_error", &true)?;
        }
        if let Some(shell) = &self.shell {
            fields.serialize_field("shell", shell)?;
        }
        fields.end()
    }
}

/// A map in the order written.
struct Variables<'a>(&'a [(String, String)]);

impl Serialize for Variables<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn when(node: Node<'_>) -> Result<StepWhen, Invalid> {
    StepWhen::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `success`, `failure` or `always`"))
}

fn variables(node: Node<'_>) -> Result<Vec<(String, String)>, Invalid> {
    let variables = environment(node).map_err(Problems::into_first)?;
    if variables.len() > MAX_STEP_ENV {
        Err(Invalid::here(format!(
            "has more than {MAX_STEP_ENV} entries"
        )))
    } else {
        Ok(variables)
    }
}

fn script(node: Node<'_>) -> Result<String, Invalid> {
    let script = node.string()?;
    if script.trim().is_empty() {
        return Err(Invalid::here("is empty"));
    }
    if script.len() > MAX_STEP_BYTES {
        return Err(Invalid::here(format!(
            "has more than {MAX_STEP_BYTES} bytes"
        )));
    }
    if script.contains('\0') {
        return Err(Invalid::here("holds a NUL character"));
    }
    Ok(script)
}

/// A step that ended, as the runner saw it: information only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepResult {
    /// Which step of the job it is, from 1: those that were not begun are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Text from the runner: untrusted.
    #[schema(example = "make test")]
    pub name: String,
    /// Its script, where its name is not all of it: untrusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// By the runner's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    pub duration_ms: u64,
    /// Absent when it did not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// The signal that ended it, sent by somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// It took longer than it may, and was ended for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// The work failed by the end of this step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

impl StepResult {
    fn read(node: Node<'_>) -> Result<StepResult, Invalid> {
        let mut f = node.object()?;
        let (least, most) = (i64::from(i32::MIN), i64::from(u32::MAX));
        let signal = f.may("signal", |it| it.whole(1, i64::from(i32::MAX)))?;
        let number = f.may("number", |it| it.whole(1, MAX_STEPS as i64))?;
        let step = StepResult {
            number: number.and_then(|it| u32::try_from(it).ok()),
            name: f.must("name", |it| Ok(cut(&it.string()?, MAX_STEP_NAME)))?,
            command: f.may("command", |it| Ok(cut(&it.string()?, MAX_COMMAND)))?,
            started_at: f
                .may("started_at", Node::string)?
                .and_then(|text| Millis::from_rfc3339(&text)),
            duration_ms: f.must("duration_ms", Node::count)?,
            exit_code: f.may("exit_code", |it| it.whole(least, most))?,
            signal: signal.and_then(|it| i32::try_from(it).ok()),
            timed_out: f.may("timed_out", Node::boolean)?.unwrap_or_default(),
            failed: f.may("failed", Node::boolean)?.unwrap_or_default(),
        };
        f.close();
        Ok(step)
    }

    /// What an agent said of its steps; those past the bound of a job are left out.
    pub fn of_agent(steps: &[proto::StepResult]) -> Vec<StepResult> {
        let of_one = |said: &proto::StepResult| StepResult {
            number: said
                .number
                .filter(|it| *it > 0 && *it as usize <= MAX_STEPS),
            name: cut(&said.name, MAX_STEP_NAME),
            command: (!said.command.is_empty()).then(|| cut(&said.command, MAX_COMMAND)),
            started_at: said.started_at.and_then(Millis::from_proto),
            duration_ms: said.duration_ms,
            exit_code: said.exit_code.map(i64::from),
            signal: said.signal,
            timed_out: said.timed_out,
            failed: said.failed,
        };
        steps.iter().take(MAX_STEPS).map(of_one).collect()
    }
}

/// The steps of a result.
pub(crate) fn results(f: &mut Fields<'_>) -> Result<Vec<StepResult>, Invalid> {
    let steps = f.may("steps", |it| it.each(MAX_STEPS, StepResult::read))?;
    Ok(steps.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::read_text;

    fn read(text: &str, strangers: Strangers) -> Result<StepSpec, String> {
        let read = read_text(text.as_bytes(), |node| StepSpec::read(node, strangers));
        read.map(|(step, _)| step).map_err(|it| it.to_string())
    }

    #[test]
    fn a_step_is_a_script_or_an_object_and_is_written_as_it_was() {
        for text in [
            r#""make""#,
            r#"{"run":"make","timeout_seconds":1.5}"#,
            r#"{"run":"make","name":"build","timeout_seconds":60}"#,
            r#"{"run":"make","if":"failure","env":{"B":"1","A":""},"continue_on_error":true}"#,
            r#"{"run":"make","if":"always"}"#,
            r#"{"run":"make | tee log","shell":"bash"}"#,
            r#"{"run":"print(1)","shell":["python3","-I","-c"]}"#,
        ] {
            let step = read(text, Strangers::Refused).unwrap();
            assert_eq!(serde_json::to_string(&step).unwrap(), text);
        }
    }

    #[test]
    fn a_refusal_of_a_step_says_what_is_wrong() {
        let refused = |text| read(text, Strangers::Refused).unwrap_err();
        assert!(refused("7").contains("must be a string"));
        assert!(refused("{}").starts_with("run: is missing"));
        let zero = r#"{"run":"a","timeout_seconds":0}"#;
        assert!(refused(zero).starts_with("timeout_seconds: must be from 0.1 to 604800"));
        let text = r#"{"run":"a","timeout_seconds":"5m"}"#;
        assert!(refused(text).starts_with("timeout_seconds: must be a number"));
        let unknown = r#"{"run":"a","timeout":5}"#;
        assert!(
            refused(unknown).contains("known here: run, name, timeout_seconds, if"),
            "{}",
            refused(unknown)
        );
        assert!(refused(r#"{"run":"a","if":"sometimes"}"#).starts_with("if: must be `success`"));
        let shell = refused(r#"{"run":"a","shell":"zsh"}"#);
        assert!(shell.starts_with("shell: is none of sh, bash"), "{shell}");
        let usual = read(r#"{"run":"a","shell":"sh"}"#, Strangers::Refused);
        assert_eq!(usual, Ok(StepSpec::plain("a")));
        assert!(refused(r#"{"run":"a","env":{"A":1}}"#).starts_with("env.A: must be a string"));
        assert!(read(unknown, Strangers::Ignored).is_ok());
    }

    #[test]
    fn a_step_is_called_by_its_name_or_its_first_line() {
        assert_eq!(label(None, "\n  make all\nmake test"), "make all …");
        assert_eq!(label(None, "\n  make all\n\n"), "make all");
        assert_eq!(label(Some("build"), "make"), "build");
        let script = "#!/bin/sh\n# what for\nset -euo pipefail\nmake all\n";
        assert_eq!(label(None, script), "make all");
        assert_eq!(label(None, "set -e\n"), "set -e");
        let words = label(None, &"word ".repeat(100));
        assert!(
            words.ends_with("word…") && words.chars().count() > MAX_STEP_NAME / 2,
            "{words}"
        );
        let long = "é".repeat(500);
        let wanted = format!("{}…", "é".repeat(MAX_STEP_NAME - 1));
        assert_eq!(label(None, &long), wanted);
        let more = label(None, &format!("{long}\nmake"));
        assert!(more.ends_with("é… …"), "{more}");
        assert_eq!(more.chars().count(), MAX_STEP_NAME);
        let fits = "é".repeat(MAX_STEP_NAME);
        assert_eq!(label(None, &fits), fits);
        let said = proto::StepResult {
            name: wanted.clone(),
            ..proto::StepResult::default()
        };
        assert_eq!(StepResult::of_agent(&[said])[0].name, wanted);
    }
}
