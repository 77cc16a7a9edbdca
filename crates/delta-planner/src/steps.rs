//! The steps of a job: each a script, or a map with the script and what is said about it.

use delta_wire::job_spec::{MAX_STEP_BYTES, MAX_STEPS};
use delta_wire::shell::MAX_SHELL_WORDS;
use delta_wire::step::{MAX_STEP_ENV, MAX_STEP_NAME};
use delta_wire::{Shell, StepSpec};

use crate::condition::Scope;
use crate::diagnostic::{Collector, shown};
use crate::env;
use crate::fields::{self, Keys};
use crate::foreign;
use crate::interpreter;
use crate::job::TIMEOUTS;
use crate::pipeline::PlannedStep;
use crate::yaml::{self, Node, Place};

pub(crate) const STEP_KEYS: Keys = Keys {
    known: &[
        "run",
        "name",
        "if",
        "env",
        "timeout",
        "continue_on_error",
        "shell",
    ],
    not_yet: &[],
    foreign: foreign::STEP,
    look: foreign::of_step,
};

/// A job, or the part of one that a template is.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    /// In sentences.
    pub what: &'a str,
    pub place: Place,
    pub scope: Scope<'a>,
    /// A template need not have everything.
    pub partial: bool,
    /// It has a matrix, whether that could be read or not.
    pub matrix: bool,
}

pub(crate) fn read(
    steps: Option<&Node>,
    misspelt: bool,
    of: Of<'_>,
    out: &mut Collector<'_>,
) -> Vec<PlannedStep> {
    let what = of.what;
    let example = Some("a job needs at least one step: `steps: [make test]`".to_owned());
    let Some(node) = steps else {
        if !of.partial && !misspelt {
            out.push(of.place, format!("{what} has no `steps`"), example);
        }
        return Vec::new();
    };
    let items = fields::list(node, "`steps`", MAX_STEPS, out);
    if matches!(&node.value, yaml::Value::List(items) if items.is_empty()) {
        out.push(node.place, format!("`steps` of {what} is empty"), example);
    }
    let steps = items.iter().filter_map(|item| step(item, of, out));
    steps.collect()
}

fn step(node: &Node, of: Of<'_>, out: &mut Collector<'_>) -> Option<PlannedStep> {
    let what = of.what;
    // Any other map is a script with a colon in it that lacks its quotes.
    let is_key = |(key, _): &(Node, Node)| match &key.value {
        yaml::Value::Scalar { text, .. } => {
            let advised = STEP_KEYS.foreign.iter().any(|it| it.word == text);
            advised || STEP_KEYS.known.contains(&text.as_str())
        }
        _ => false,
    };
    if !matches!(&node.value, yaml::Value::Map(pairs) if pairs.iter().any(is_key)) {
        let run = script(node, "each item of `steps`", what, out)?;
        return Some(StepSpec::plain(run).into());
    }
    let of_step = format!("a step of {what}");
    let map = fields::fields(node, &STEP_KEYS, &of_step, out)?;
    let Some(run) = map.get("run") else {
        let example = "a step needs a script: `{run: make test, timeout: 5m}`".to_owned();
        if !map.is_misspelt("run") {
            out.push(node.place, format!("{of_step} has no `run`"), Some(example));
        }
        return None;
    };
    let timeout = map.get("timeout");
    let timeout =
        timeout.and_then(|node| fields::duration(node, "a step's timeout", TIMEOUTS, out));
    let scope = Scope {
        step: true,
        ..of.scope
    };
    let condition = map.get("if");
    let condition = condition.and_then(|node| fields::condition(node, scope, out));
    let env = map.get("env");
    let env = env.map(|node| env::read(node, &of_step, MAX_STEP_ENV, out));
    let go_on = map.get("continue_on_error");
    let go_on = go_on.and_then(|node| fields::boolean(node, "`continue_on_error`", out));
    let mut spec = StepSpec::plain(script(run, "`run`", what, out)?);
    spec.name = map.get("name").and_then(|node| name(node, &of_step, out));
    spec.timeout = timeout.map(Into::into);
    spec.env = env.unwrap_or_default();
    spec.continue_on_error = go_on.unwrap_or(false);
    let own = map.get("shell").filter(|node| !node.is_absent());
    spec.shell = own.and_then(|node| shell(node, &of_step, out));
    Some(PlannedStep { spec, condition })
}

fn script(node: &Node, field: &str, what: &str, out: &mut Collector<'_>) -> Option<String> {
    let script = fields::text(node, field, out)?;
    if script.trim().is_empty() {
        out.push(node.place, format!("a step of {what} is blank"), None);
    }
    if script.len() > MAX_STEP_BYTES {
        let reason = format!("a step of {what} has more than {MAX_STEP_BYTES} bytes");
        let rule = "move it into a script file and call that";
        out.push(node.place, reason, Some(rule.into()));
    }
    Some(script.to_owned())
}

/// What reads scripts: `bash`, or a program with its arguments.
pub(crate) fn shell(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<Shell> {
    let read = match &node.value {
        yaml::Value::List(items) => {
            let faults = out.pushed();
            let words = fields::texts(node, "`shell`", MAX_SHELL_WORDS, out);
            items.iter().for_each(|item| no_number(item, out));
            // Of what is left of a list nothing more can be said.
            if out.pushed() != faults {
                return None;
            }
            Shell::of(words.into_iter().map(|(word, _)| word).collect())
        }
        _ => Shell::parse(fields::text(node, "`shell`", out)?),
    };
    match read {
        Ok(shell) => {
            let words = shell.words();
            if let Some(write) = interpreter::instead(&words) {
                let reason = format!(
                    "`shell` of {what} would take the script for the name of a file: `{}`",
                    shown(&words.join(" "))
                );
                let rule = format!("a script is the last argument: write `{}`", shown(&write));
                out.push(node.place, reason, Some(rule));
            }
            Some(shell)
        }
        Err(why) => {
            let (why, rule) = match misspelt(node) {
                Some(name) => {
                    let why = format!("is none of {}", Shell::names().join(", "));
                    (why, format!("did you mean `{name}`?"))
                }
                None => {
                    let rule = "`shell: bash` is `bash -eo pipefail`; `shell: python` or \
                                `shell: [perl, -e]` take the script as their last argument";
                    (why, rule.to_owned())
                }
            };
            out.push(node.place, format!("`shell` of {what} {why}"), Some(rule));
            None
        }
    }
}

/// The known shell whose name is meant by one in other letters: `Bash`.
fn misspelt(node: &Node) -> Option<&'static str> {
    let word = match &node.value {
        yaml::Value::Scalar { text, .. } => text.trim(),
        _ => return None,
    };
    let mut names = Shell::names().into_iter();
    names.find(|it| it.eq_ignore_ascii_case(word))
}

/// Refuses a word of a list that YAML takes for a number or a truth: something else was meant.
fn no_number(node: &Node, out: &mut Collector<'_>) {
    let yaml::Value::Scalar {
        text,
        quoted: false,
    } = &node.value
    else {
        return;
    };
    let kind = match text.as_str() {
        "true" | "false" => "a truth",
        "null" | "~" => "nothing",
        number if number.parse::<f64>().is_ok() => "a number",
        _ => return,
    };
    let reason = format!("each item of `shell` must be text, this is {kind}");
    let rule = format!(
        "a word of a command that is meant so needs quotes: `\"{}\"`",
        shown(text)
    );
    out.push(node.place, reason, Some(rule));
}

/// The shell of a job is that of its steps which have none of their own.
pub(crate) fn give_shell(steps: &mut [PlannedStep], shell: Option<Shell>) {
    for step in steps.iter_mut().filter(|step| step.spec.shell.is_none()) {
        step.spec.shell.clone_from(&shell);
    }
}

/// `sh` is what reads a script of which nothing is said.
pub(crate) fn forget_usual(steps: &mut [PlannedStep]) {
    for step in steps {
        step.spec.shell = step.spec.shell.take().filter(|it| !it.is_usual());
    }
}

fn name(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<String> {
    let name = fields::text(node, "`name`", out)?;
    if name.trim().is_empty() || name.chars().count() > MAX_STEP_NAME {
        let reason = format!("`{}` is no name for {what}", shown(name));
        let rule = format!("a name has 1 to {MAX_STEP_NAME} characters");
        out.push(node.place, reason, Some(rule));
        return None;
    }
    Some(name.to_owned())
}
