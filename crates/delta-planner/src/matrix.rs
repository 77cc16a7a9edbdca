//! A matrix: one job for each combination of values, less what is excluded, plus what is included.
//!
//! Only names and values; what they are put into is for [`crate::substitute`]. The product is
//! counted before it is made: nine axes of ten values are a billion cells.

use std::collections::HashSet;

use delta_wire::api::create_run::MAX_NAME;
use delta_wire::nearest::nearest;

use crate::diagnostic::{Collector, shown};
use crate::fields;
use crate::yaml::{Node, Place, Value};

/// Cells of one matrix: what a person still looks through.
pub const MAX_CELLS: usize = 256;
/// Combinations before any is excluded: a matrix is made in full first.
const MAX_PRODUCT: usize = 4096;
/// Names of values in one matrix.
const MAX_AXES: usize = 10;
/// Bytes of one value: a version, a name, a path.
const MAX_VALUE_BYTES: usize = 256;

/// The values of one cell, in file order.
pub(crate) type Values = Vec<(String, String)>;

struct Axis {
    name: String,
    values: Vec<String>,
}

/// The cells of a matrix. Empty when something is wrong with it, which has been said.
pub(crate) fn read(node: &Node, what: &str, out: &mut Collector<'_>) -> Vec<Values> {
    let of = format!("`matrix` of {what}");
    let faults = out.pushed();
    let Some(pairs) = fields::pairs(node, &of, &["version"], out) else {
        return Vec::new();
    };
    let mut axes = Vec::new();
    let (mut include, mut exclude) = (None, None);
    for (name, key, value) in pairs {
        match name {
            "include" => include = Some(value),
            "exclude" => exclude = Some(value),
            _ => {
                check_axis_name(name, key.place, out);
                let values = axis(value, name, out);
                let name = name.to_owned();
                axes.push(Axis { name, values });
            }
        }
    }
    if axes.len() > MAX_AXES {
        let reason = format!("{of} has {} names, at most {MAX_AXES}", axes.len());
        out.push(node.place, reason, None);
        return Vec::new();
    }
    let Some(mut cells) = product(&axes, node.place, &of, out) else {
        return Vec::new();
    };
    if let Some(node) = exclude {
        // A value that is wrong is in no cell, and perhaps that is the one which is meant.
        let whole = out.pushed() == faults;
        leave_out(&mut cells, node, &axes, whole, out);
    }
    if let Some(node) = include {
        for item in fields::list(node, "`include`", MAX_CELLS, out) {
            cells.extend(entry(item, "an item of `include`", out));
        }
    }
    if cells.is_empty() && out.pushed() == faults {
        let rule = "give it values: `matrix: {version: [1, 2]}`";
        out.push(node.place, format!("{of} has no cell"), Some(rule.into()));
    }
    check_cells(&cells, node.place, &of, out);
    cells
}

/// What the job of one cell is called.
pub(crate) fn cell_name(job: &str, at: usize, values: &Values) -> String {
    let safe = |text: &str| -> String {
        let keep = |c: char| c.is_ascii_alphanumeric() || "._-/:+@".contains(c);
        text.chars()
            .map(|c| if keep(c) { c } else { '_' })
            .collect()
    };
    let values = values.iter();
    let values = values.map(|(name, value)| format!("{name}={}", safe(value)));
    let name = format!("{job} ({})", values.collect::<Vec<_>>().join(", "));
    if name.len() > MAX_NAME {
        format!("{job} (cell {})", at + 1)
    } else {
        name
    }
}

fn check_axis_name(name: &str, place: Place, out: &mut Collector<'_>) {
    let mut letters = name.chars();
    let first = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let rest = letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if !first || !rest || name.len() > 40 {
        let reason = format!("`{}` is no name for values of a matrix", shown(name));
        let rule = "use letters, digits, `_` and `-`, at most 40, and begin with a letter";
        out.push(place, reason, Some(rule.into()));
    }
}

fn axis(node: &Node, name: &str, out: &mut Collector<'_>) -> Vec<String> {
    let what = format!("`{}` of the matrix", shown(name));
    let mut seen = HashSet::new();
    let mut values = Vec::new();
    for item in fields::list(node, &what, MAX_CELLS, out) {
        let Some(value) = value(item, &what, out) else {
            continue;
        };
        if !seen.insert(value.clone()) {
            let reason = format!("{what} has `{}` twice", shown(&value));
            out.push(item.place, reason, Some("keep one of them".into()));
            continue;
        }
        values.push(value);
    }
    if matches!(&node.value, Value::List(items) if items.is_empty()) {
        out.push(
            node.place,
            format!("{what} is empty"),
            Some("give it a value".into()),
        );
    }
    values
}

fn value(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<String> {
    let text = fields::text(node, &format!("a value of {what}"), out)?;
    if text.len() > MAX_VALUE_BYTES || text.contains(char::is_control) {
        let reason = format!("a value of {what} is no word");
        let rule = format!("a value is one line of at most {MAX_VALUE_BYTES} bytes");
        out.push(node.place, reason, Some(rule));
        return None;
    }
    Some(text.to_owned())
}

/// Every combination, the last name turning fastest. No names at all make no cell.
fn product(axes: &[Axis], place: Place, of: &str, out: &mut Collector<'_>) -> Option<Vec<Values>> {
    if axes.is_empty() {
        return Some(Vec::new());
    }
    // One without values, which has been said, would hide how many the others make.
    if axes.iter().any(|axis| axis.values.is_empty()) {
        return None;
    }
    let counts = axes.iter().map(|axis| axis.values.len());
    let count = counts.fold(1, usize::saturating_mul);
    if count > MAX_PRODUCT {
        let reason = format!("{of} has {count} combinations, at most {MAX_PRODUCT}");
        let rule = "list the cells that matter under `include`";
        out.push(place, reason, Some(rule.into()));
        return None;
    }
    let mut cells: Vec<Values> = vec![Vec::new()];
    for axis in axes {
        let longer = cells.iter().flat_map(|cell| {
            axis.values.iter().map(|value| {
                let mut cell = cell.clone();
                cell.push((axis.name.clone(), value.clone()));
                cell
            })
        });
        cells = longer.collect();
    }
    Some(cells)
}

fn leave_out(
    cells: &mut Vec<Values>,
    node: &Node,
    axes: &[Axis],
    whole: bool,
    out: &mut Collector<'_>,
) {
    for item in fields::list(node, "`exclude`", MAX_CELLS, out) {
        let Some(values) = entry(item, "an item of `exclude`", out) else {
            continue;
        };
        let strange = values
            .iter()
            .find(|(name, _)| !axes.iter().any(|axis| axis.name == *name));
        if let Some((name, _)) = strange {
            let reason = format!("the matrix has no `{}`", shown(name));
            let near = nearest(name, axes.iter().map(|axis| axis.name.as_str()));
            out.push(
                item.place,
                reason,
                near.map(|it| format!("did you mean `{it}`?")),
            );
            continue;
        }
        let before = cells.len();
        cells.retain(|cell| !values.iter().all(|pair| cell.contains(pair)));
        if cells.len() == before && whole {
            let rule = "name values that the matrix has, or remove it";
            out.push(item.place, "this excludes nothing", Some(rule.into()));
        }
    }
}

/// An item of `include` or `exclude`.
fn entry(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<Values> {
    let mut values = Values::new();
    for (name, key, node) in fields::pairs(node, what, &["version"], out)? {
        check_axis_name(name, key.place, out);
        values.push((name.to_owned(), value(node, what, out)?));
    }
    if values.is_empty() || values.len() > MAX_AXES {
        let reason = format!("{what} has 1 to {MAX_AXES} values");
        out.push(node.place, reason, None);
        return None;
    }
    Some(values)
}

fn check_cells(cells: &[Values], place: Place, of: &str, out: &mut Collector<'_>) {
    if cells.len() > MAX_CELLS {
        let reason = format!("{of} has {} cells, at most {MAX_CELLS}", cells.len());
        out.push(place, reason, Some("exclude some, or split the job".into()));
        return;
    }
    let mut names = HashSet::new();
    for (at, cell) in cells.iter().enumerate() {
        let name = cell_name("", at, cell);
        if !names.insert(name.clone()) {
            let reason = format!("{of} has two cells{}", shown(&name));
            out.push(place, reason, Some("remove one of them".into()));
        }
    }
}
