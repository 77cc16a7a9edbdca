//! Variables of a job or a step: names that every shell takes, values as they are written.

use delta_wire::job_spec::MAX_ENV_VALUE_BYTES;

use crate::diagnostic::{Collector, shown};
use crate::fields;
use crate::yaml::{Node, Value};

/// The variables of `env`, in file order; `what` is whose they are.
pub(crate) fn read(
    node: &Node,
    what: &str,
    most: usize,
    out: &mut Collector<'_>,
) -> Vec<(String, String)> {
    let what = format!("`env` of {what}");
    let mut env = Vec::new();
    for (name, key, value) in fields::pairs(node, &what, &["NAME"], out).unwrap_or_default() {
        let mut letters = name.chars();
        let first = letters
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let reason = format!("`{}` is not a name of a variable", shown(name));
            let rule = "use letters, digits and `_`, and begin with no digit";
            out.push(key.place, reason, Some(rule.into()));
        } else if name.starts_with("DELTA_") {
            let reason = format!("`{}` is reserved", shown(name));
            let rule = "names that begin with `DELTA_` are set by the agent; choose another";
            out.push(key.place, reason, Some(rule.into()));
        }
        // `KEY:` with nothing behind it is an empty value, as in a shell.
        let text = match &value.value {
            Value::Scalar {
                text,
                quoted: false,
            } if text.is_empty() => Some(""),
            Value::Scalar { text, .. } if !text.contains('\0') => Some(text.as_str()),
            _ => fields::text(value, &format!("the value of `{}`", shown(name)), out),
        };
        if text.is_some_and(|text| text.len() > MAX_ENV_VALUE_BYTES) {
            let reason = format!("the value of `{}` is too long", shown(name));
            let rule = format!("a value has at most {MAX_ENV_VALUE_BYTES} bytes");
            out.push(value.place, reason, Some(rule));
        }
        env.push((name.to_owned(), text.unwrap_or_default().to_owned()));
    }
    if env.len() > most {
        let reason = format!("{what} has more than {most} entries");
        out.push(node.place, reason, None);
    }
    env
}
