//! Reading typed values out of located nodes: what every file has, and conditions.

use delta_yaml::diagnostic::sentence;

use crate::condition::{self, Condition, Scope};
use crate::diagnostic::Collector;
use crate::yaml::{Node, Place};

pub(crate) use delta_yaml::fields::{
    Fields, Foreign, Keys, boolean, by_name_alone, did_you_mean, duration, fields, integer, list,
    text, texts,
};

/// The pairs of a map with free keys.
pub(crate) fn pairs<'n>(
    node: &'n Node,
    what: &str,
    examples: &[&str],
    out: &mut Collector<'_>,
) -> Option<Vec<(&'n str, &'n Node, &'n Node)>> {
    delta_yaml::fields::pairs(node, what, examples, delta_yaml::fields::TEMPLATES, out)
}

/// A condition. What is wrong in it is pointed at where it stands on the same line.
pub(crate) fn condition(
    node: &Node,
    scope: Scope<'_>,
    out: &mut Collector<'_>,
) -> Option<Condition> {
    let text = text(node, "`if`", out)?;
    match condition::parse(text, scope) {
        Ok(condition) => Some(condition),
        Err(fault) => {
            // Between the quotes, if there are any; a text over several lines is only begun.
            let before = node.place.width.checked_sub(text.chars().count());
            let place = match before {
                Some(marks @ (0 | 2)) => Place {
                    column: node.place.column + marks / 2 + fault.at,
                    width: fault.width,
                    ..node.place
                },
                _ => node.place,
            };
            out.push(place, sentence(&fault.reason), fault.hint);
            None
        }
    }
}
