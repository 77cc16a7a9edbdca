//! `${{ … }}` in a file: elsewhere it is replaced before anything runs, here it would reach a shell
//! that cannot read it. It is pointed at, with what to write instead.
//!
//! Only what begins like an expression of GitHub Actions counts (`matrix.`, `github.`, `hashFiles(`
//! and so on): a step may hold a template of its own that looks alike. One that a step really means
//! is written with a backslash, `\${{`, which a shell takes off again.

use crate::diagnostic::{Collector, shown};
use crate::foreign;
use crate::job::JOB_KEYS;
use crate::plan::variable;
use crate::read::FILE_KEYS;
use crate::steps::STEP_KEYS;
use crate::yaml::{Node, Value};

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

/// What an expression begins with.
const CONTEXTS: [&str; 22] = [
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
];

/// Where a text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spot {
    Script,
    Text,
}

/// Points at every such text of a file, before its templates and matrices are looked at: each is
/// said once, where it is written. Conditions have a reader that says it itself, and what stands
/// behind a key that is not known is not looked at.
pub(crate) fn check(file: &Node, out: &mut Collector<'_>) {
    for (key, value) in known(file, FILE_KEYS.known) {
        match key {
            "jobs" | "templates" => {
                for (_, one) in pairs(value) {
                    job(one, out);
                }
            }
            "defaults" => job(value, out),
            _ => texts(value, out),
        }
    }
}

fn job(node: &Node, out: &mut Collector<'_>) {
    for (key, value) in known(node, JOB_KEYS.known) {
        match (key, &value.value) {
            ("if", _) => {}
            ("steps", Value::List(items)) => items.iter().for_each(|item| step(item, out)),
            _ => texts(value, out),
        }
    }
}

fn step(node: &Node, out: &mut Collector<'_>) {
    if let Value::Scalar { text, .. } = &node.value {
        return look(node, text, Spot::Script, out);
    }
    for (key, value) in known(node, STEP_KEYS.known) {
        match (key, &value.value) {
            ("if", _) => {}
            ("run", Value::Scalar { text, .. }) => look(value, text, Spot::Script, out),
            _ => texts(value, out),
        }
    }
}

fn texts(node: &Node, out: &mut Collector<'_>) {
    match &node.value {
        Value::Scalar { text, .. } => look(node, text, Spot::Text, out),
        Value::List(items) => items.iter().for_each(|item| texts(item, out)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| texts(value, out)),
    }
}

fn look(node: &Node, text: &str, spot: Spot, out: &mut Collector<'_>) {
    let Some(found) = expression(text, spot) else {
        return;
    };
    let place = out.part(node.place, text.lines().count(), found);
    let inner = &found[OPEN.len()..found.len() - CLOSE.len()];
    let hint = instead(inner.trim(), spot);
    let reason = format!("`{}` is not replaced here", shown(found));
    out.push(place, reason, Some(hint));
    out.settle(node.place);
}

/// The first expression of a text, with what encloses it.
fn expression(text: &str, spot: Spot) -> Option<&str> {
    let mut from = 0;
    while let Some(at) = text[from..].find(OPEN) {
        let start = from + at;
        from = start + OPEN.len();
        let meant = spot == Spot::Script && text[..start].ends_with('\\');
        let inner = text[from..].trim_start();
        let known = CONTEXTS.iter().any(|it| inner.starts_with(it));
        let end = text[from..].find(CLOSE);
        if let (false, true, Some(end)) = (meant, known, end) {
            return Some(&text[start..from + end + CLOSE.len()]);
        }
    }
    None
}

/// What to write in the place of an expression.
fn instead(inner: &str, spot: Spot) -> String {
    let script = spot == Spot::Script;
    let word = |rest: &str| -> String {
        let letters = rest.chars();
        let known = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        shown(&letters.take_while(known).collect::<String>())
    };
    let of = |prefix: &str| inner.strip_prefix(prefix).map(word);
    if let Some(axis) = of("matrix.") {
        let named = variable("MATRIX", &axis);
        return match script {
            true => format!("write \"${named}\": values of a matrix reach scripts as variables"),
            false => format!("Delta CI writes `{{matrix.{axis}}}`"),
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
        return match script {
            true => format!("write \"${name}\""),
            false => "write the value itself: variables are for the steps".to_owned(),
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
            let said = instead(inner, Spot::Script);
            assert!(said.contains(script), "{inner}: {said}");
            let said = instead(inner, Spot::Text);
            assert!(said.contains(text), "{inner}: {said}");
        }
    }
}
