//! `${{ … }}` in a file: elsewhere it is replaced before anything runs, here it would reach a shell
//! that cannot read it. It is pointed at, with what to write instead.
//!
//! A fault is only what begins like an expression of GitHub Actions (`matrix.`, `github.`,
//! `hashFiles(` and so on): a step may hold a template of its own that looks alike, and of that is
//! warned where a shell would read it, or where it stands in a text that no shell reads. One that a
//! step really means is written with a backslash, `\${{`, which a shell takes off again.

use delta_wire::nearest::nearest;

use crate::diagnostic::{Collector, shown};
use crate::foreign;
use crate::job::JOB_KEYS;
use crate::plan::variable;
use crate::read::FILE_KEYS;
use crate::steps::STEP_KEYS;
use crate::unreadable::{self, OPEN};
use crate::yaml::{Node, Value};

const CLOSE: &str = "}}";

/// What an expression begins with.
const CONTEXTS: [&str; 23] = [
    "matrix.",
    "github.",
    "inputs.",
    "secrets.",
    "env.",
    "vars.",
    "runner.",
    "steps.",
    "needs.",
    "job.",
    "jobs.",
    "strategy.",
    "hashFiles(",
    "format(",
    "join(",
    "toJSON(",
    "fromJSON(",
    "contains(",
    "startsWith(",
    "success()",
    "failure()",
    "always()",
    "cancelled()",
];

/// Where a text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spot {
    Script,
    Text,
}

/// What stands around a text and decides what is said of it.
struct Around<'n> {
    /// Names of values of the matrix that may be meant.
    axes: Vec<&'n str>,
    /// What reads its scripts is a shell, as far as can be seen.
    shell: bool,
}

impl<'n> Around<'n> {
    /// What these keys of the file have, of which any part may be inherited.
    fn of_file(file: &'n Node, keys: &[&str]) -> Around<'n> {
        let mut parts: Vec<&Node> = Vec::new();
        for (key, value) in pairs(file).filter(|(key, _)| keys.contains(key)) {
            match key {
                "defaults" => parts.push(value),
                _ => parts.extend(pairs(value).map(|(_, one)| one)),
            }
        }
        let mut shells = parts.iter().filter_map(|it| value_of(it, "shell"));
        Around {
            axes: parts.iter().flat_map(|it| axes(it)).collect(),
            shell: shells.all(is_shell),
        }
    }

    /// What a job says itself, and for the rest what it may inherit.
    fn of_job(&self, job: &'n Node) -> Around<'n> {
        let mut own = axes(job);
        if own.is_empty() {
            own.clone_from(&self.axes);
        }
        Around {
            axes: own,
            shell: value_of(job, "shell").map_or(self.shell, is_shell),
        }
    }
}

/// Points at every such text of a file, before its templates and matrices are looked at: each is
/// said once, where it is written. Conditions have a reader that says it itself, and what stands
/// behind a key that is not known is not looked at.
pub(crate) fn check(file: &Node, out: &mut Collector<'_>) {
    let inherited = Around::of_file(file, &["defaults", "templates"]);
    // A template is read with what its jobs say.
    let anywhere = Around::of_file(file, &["defaults", "templates", "jobs"]);
    for (key, value) in known(file, FILE_KEYS.known) {
        match key {
            "jobs" | "templates" => {
                let around = match key {
                    "jobs" => &inherited,
                    _ => &anywhere,
                };
                for (_, one) in pairs(value) {
                    job(one, &around.of_job(one), out);
                }
            }
            "defaults" => job(value, &anywhere.of_job(value), out),
            _ => texts(value, &anywhere, out),
        }
    }
}

fn job(node: &Node, around: &Around<'_>, out: &mut Collector<'_>) {
    for (key, value) in known(node, JOB_KEYS.known) {
        match (key, &value.value) {
            ("if", _) => {}
            ("steps", Value::List(items)) => {
                items.iter().for_each(|item| step(item, around, out));
            }
            _ => texts(value, around, out),
        }
    }
}

fn step(node: &Node, around: &Around<'_>, out: &mut Collector<'_>) {
    if let Value::Scalar { text, .. } = &node.value {
        return script(node, text, around.shell, around, out);
    }
    let shell = value_of(node, "shell").map_or(around.shell, is_shell);
    for (key, value) in known(node, STEP_KEYS.known) {
        match (key, &value.value) {
            ("if", _) => {}
            ("run", Value::Scalar { text, .. }) => script(value, text, shell, around, out),
            _ => texts(value, around, out),
        }
    }
}

fn texts(node: &Node, around: &Around<'_>, out: &mut Collector<'_>) {
    match &node.value {
        Value::Scalar { text, .. } => {
            if !look(node, text, Spot::Text, around, out) {
                doubtful(node, text, out);
            }
        }
        Value::List(items) => items.iter().for_each(|item| texts(item, around, out)),
        Value::Map(pairs) => pairs
            .iter()
            .for_each(|(_, value)| texts(value, around, out)),
    }
}

/// Warns of what could be an expression in a text that no shell reads.
fn doubtful(node: &Node, text: &str, out: &mut Collector<'_>) {
    let whole = text.find(OPEN).and_then(|at| {
        let end = text[at..].find(CLOSE)? + CLOSE.len();
        Some(&text[at..at + end])
    });
    if let Some(found) = whole {
        let place = out.part(node.place, text.lines().count(), found);
        let reason = format!("`{}` is not replaced here", shown(found));
        let hint = "there are no expressions: the text is taken as it is written";
        out.warn(place, reason, Some(hint.to_owned()));
    }
}

/// Points at an expression of a script, or else warns of what its shell cannot read.
fn script(node: &Node, text: &str, shell: bool, around: &Around<'_>, out: &mut Collector<'_>) {
    if look(node, text, Spot::Script, around, out) || !shell {
        return;
    }
    let Some(at) = unreadable::first(text) else {
        return;
    };
    let line = text[at..].lines().next().unwrap_or(OPEN);
    let end = line.find(CLOSE).map_or(OPEN.len(), |it| it + CLOSE.len());
    let place = out.part(node.place, text.lines().count(), &line[..end]);
    let reason = format!("a shell cannot read `{}`", shown(&line[..end]));
    let hint = "values reach scripts as variables, \"$NAME\"; a text that is meant as it stands is \
                written `\\${{`, or between single quotes";
    out.warn(place, reason, Some(hint.to_owned()));
}

/// Whether there was something to point at.
fn look(node: &Node, text: &str, spot: Spot, around: &Around<'_>, out: &mut Collector<'_>) -> bool {
    let Some(found) = expression(text, spot) else {
        return false;
    };
    let place = out.part(node.place, text.lines().count(), found);
    let inner = &found[OPEN.len()..found.len() - CLOSE.len()];
    let hint = instead(bare(inner).trim_end(), spot, &around.axes);
    let reason = format!("`{}` is not replaced here", shown(found));
    out.push(place, reason, Some(hint));
    out.settle(node.place);
    true
}

/// The first expression of a text, with what encloses it.
fn expression(text: &str, spot: Spot) -> Option<&str> {
    let mut from = 0;
    while let Some(at) = text[from..].find(OPEN) {
        let start = from + at;
        from = start + OPEN.len();
        let meant = spot == Spot::Script && text[..start].ends_with('\\');
        let inner = bare(&text[from..]);
        let known = CONTEXTS.iter().any(|it| inner.starts_with(it));
        let end = text[from..].find(CLOSE);
        if let (false, true, Some(end)) = (meant, known, end) {
            return Some(&text[start..from + end + CLOSE.len()]);
        }
    }
    None
}

/// An expression without what may stand before the name that it begins with.
fn bare(inner: &str) -> &str {
    inner.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '!' | '('))
}

/// What to write in the place of an expression.
fn instead(inner: &str, spot: Spot, axes: &[&str]) -> String {
    let script = spot == Spot::Script;
    let word = |rest: &str| -> String {
        let letters = rest.chars();
        let known = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        shown(&letters.take_while(known).collect::<String>())
    };
    let of = |prefix: &str| inner.strip_prefix(prefix).map(word);
    if let Some(axis) = of("matrix.") {
        let near = if axes.contains(&axis.as_str()) {
            None
        } else {
            nearest(&axis, axes.iter().copied())
        };
        let axis = near.unwrap_or(&axis);
        let named = variable("MATRIX", axis);
        return if script {
            format!("write \"${named}\": values of a matrix reach scripts as variables")
        } else {
            format!("Delta CI writes `{{matrix.{axis}}}`")
        };
    }
    if let Some(input) = of("inputs.").or_else(|| of("github.event.inputs.")) {
        let named = variable("INPUT", &input);
        return format!("steps have it as `${named}`");
    }
    if let Some(secret) = of("secrets.") {
        return format!("name it, `secrets: [{secret}]`, and steps have it as `${secret}`");
    }
    if let Some(name) = of("env.").or_else(|| of("vars.")) {
        return if script {
            format!("write \"${name}\"")
        } else {
            "write the value itself: variables are for the steps".to_owned()
        };
    }
    if inner.starts_with("hashFiles(") {
        return "in the key of a cache write `{hash:FILE}`, or `{lock_hash}`".to_owned();
    }
    match inner {
        "runner.os" => return "in the key of a cache write `{os}`".to_owned(),
        "runner.arch" => return "in the key of a cache write `{arch}`".to_owned(),
        _ => {}
    }
    if inner.starts_with("steps.") || inner.starts_with("needs.") {
        let files = "steps hand on files in the workspace, jobs hand on `artifacts` as `inputs`";
        return files.to_owned();
    }
    let name: String = inner
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
        .collect();
    match foreign::asked(&name) {
        Some(asked) if script && !asked.variable.is_empty() => {
            format!("write \"${}\"", asked.variable)
        }
        Some(asked) if !script && !asked.fact.is_empty() => {
            format!("in `concurrency` write `{{{}}}`", asked.fact)
        }
        _ => "there are no expressions: values reach scripts as variables".to_owned(),
    }
}

/// The names of values of a job's matrix.
fn axes(job: &Node) -> Vec<&str> {
    let mut names = Vec::new();
    for (name, value) in value_of(job, "matrix").into_iter().flat_map(pairs) {
        match (name, &value.value) {
            ("include", Value::List(items)) => {
                names.extend(items.iter().flat_map(pairs).map(|(name, _)| name));
            }
            ("include" | "exclude", _) => {}
            _ => names.push(name),
        }
    }
    names
}

/// Whether what is written behind `shell` reads scripts as `sh` does. Nothing behind it is `sh`.
pub(crate) fn is_shell(node: &Node) -> bool {
    let first = match &node.value {
        Value::List(items) => items.first().unwrap_or(node),
        _ => node,
    };
    match &first.value {
        Value::Scalar { text, .. } => {
            let program = text.split_whitespace().next();
            program.is_none_or(unreadable::is_shell)
        }
        _ => false,
    }
}

fn value_of<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let found = pairs(node).find(|(name, _)| *name == key);
    found.map(|(_, value)| value)
}

fn known<'n>(
    node: &'n Node,
    keys: &'static [&'static str],
) -> impl Iterator<Item = (&'n str, &'n Node)> {
    pairs(node).filter(|(key, _)| keys.contains(key))
}

fn pairs(node: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let pairs: &[(Node, Node)] = match &node.value {
        Value::Map(pairs) => pairs,
        _ => &[],
    };
    pairs.iter().filter_map(|(key, value)| match &key.value {
        Value::Scalar { text, .. } => Some((text.as_str(), value)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_really_means_is_left_alone() {
        let script = |text| expression(text, Spot::Script);
        assert_eq!(script("echo ${{ matrix.os }}"), Some("${{ matrix.os }}"));
        assert_eq!(script("echo ${{matrix.os}}"), Some("${{matrix.os}}"));
        assert_eq!(script("echo \"\\${{ matrix.os }}\""), None);
        assert_eq!(
            script("\\${{ github.ref }} ${{ env.A }}"),
            Some("${{ env.A }}")
        );
        assert_eq!(script("helm ${{ .Values.x }}"), None);
        assert_eq!(script("a ${{ !( github.x) }}"), Some("${{ !( github.x) }}"));
        assert_eq!(script("a ${{ matrix.os"), None);
        assert_eq!(
            expression("\\${{ env.A }}", Spot::Text),
            Some("${{ env.A }}")
        );
    }

    #[test]
    fn each_has_its_own_answer() {
        for (inner, script, text) in [
            (
                "matrix.python-version",
                "\"$MATRIX_PYTHON_VERSION\"",
                "`{matrix.python-version}`",
            ),
            ("secrets.TOKEN", "secrets: [TOKEN]", "secrets: [TOKEN]"),
            ("github.ref", "\"$DELTA_REF\"", "`{ref}`"),
            ("github.sha", "\"$DELTA_COMMIT\"", "no expressions"),
            ("hashFiles('x')", "{hash:FILE}", "{hash:FILE}"),
            ("steps.a.outputs.b", "hand on files", "hand on files"),
            ("github.event.inputs.level", "$INPUT_LEVEL", "$INPUT_LEVEL"),
        ] {
            let said = instead(inner, Spot::Script, &[]);
            assert!(said.contains(script), "{inner}: {said}");
            let said = instead(inner, Spot::Text, &[]);
            assert!(said.contains(text), "{inner}: {said}");
        }
    }
}
