//! Reading typed values out of located nodes. Each reader either returns the value or reports why
//! not and what to write instead; none of them stops the others.

use std::collections::HashMap;
use std::time::Duration;

use delta_wire::duration;
use delta_wire::nearest::nearest;

use crate::diagnostic::{Collector, sentence, shown};
use crate::yaml::{Node, Place, Value};

/// A map whose keys come from a closed list.
pub struct Fields<'n> {
    values: HashMap<&'static str, &'n Node>,
    /// What keys that are not known were probably meant as.
    meant: Vec<&'static str>,
    /// It has a merge key: everything may be meant to be in it.
    merged: bool,
}

impl<'n> Fields<'n> {
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        self.values.get(key).copied()
    }

    /// Whether it is there under a wrong name: that it is missing is said already, then.
    pub fn is_misspelt(&self, key: &str) -> bool {
        self.merged || self.meant.contains(&key)
    }
}

/// What may stand in a map: the keys read today, and those of formats to come, which get a better
/// answer than "unknown".
pub struct Keys {
    pub known: &'static [&'static str],
    pub not_yet: &'static [&'static str],
    /// Names that people bring from elsewhere.
    pub foreign: &'static [Foreign],
    /// What to write for a key with such a value, where that says more than its name.
    pub look: fn(&str, &Node) -> Option<&'static str>,
}

/// A name that people bring from elsewhere.
pub struct Foreign {
    pub word: &'static str,
    /// The key it stands for; that this one is missing is then no fault of its own. May be another
    /// such word, beside which nothing is said of this one. Empty where it stands for none.
    pub means: &'static str,
    /// What to write instead.
    pub advice: &'static str,
    /// It changes nothing: it is passed over with a warning.
    pub idle: bool,
}

/// For maps whose keys say enough.
pub fn by_name_alone(_: &str, _: &Node) -> Option<&'static str> {
    None
}

/// What to write in a pipeline file for a merge key.
pub const TEMPLATES: &str = "write what jobs share as a template, `templates: {NAME: {…}}`, and \
                             `extends: NAME` in each of them";

/// Reads a map with known keys. `what` names the map in sentences, such as ``job `unit` ``.
pub fn fields<'n>(
    node: &'n Node,
    keys: &Keys,
    what: &str,
    out: &mut Collector<'_>,
) -> Option<Fields<'n>> {
    let pairs = all_pairs(node, what, keys.known, out)?;
    let mut read = Fields {
        values: HashMap::new(),
        meant: Vec::new(),
        merged: false,
    };
    for (name, key, value) in &pairs {
        if let Some(&known) = keys.known.iter().find(|known| *known == name) {
            read.values.insert(known, value);
            continue;
        }
        let foreign = keys.foreign.iter().find(|foreign| foreign.word == *name);
        let beside = |foreign: &Foreign| {
            foreign.means != foreign.word && !keys.known.contains(&foreign.means)
        };
        let said = foreign.is_some_and(|foreign| {
            beside(foreign) && pairs.iter().any(|(name, ..)| *name == foreign.means)
        });
        match foreign {
            Some(it) if it.idle => {
                let reason = format!("`{name}` of {what} means nothing here");
                out.warn(key.place, reason, Some(it.advice.to_owned()));
            }
            // What is said of the other one is said of both.
            Some(_) if said => {}
            _ => unknown(name, key, value, keys, what, &mut read, out),
        }
    }
    Some(read)
}

/// A key that is not known, and what to write in its place.
fn unknown(
    name: &str,
    key: &Node,
    value: &Node,
    keys: &Keys,
    what: &str,
    read: &mut Fields<'_>,
    out: &mut Collector<'_>,
) {
    let (bare, name) = (name, shown(name));
    if bare == "<<" {
        read.merged = true;
        let own = keys.foreign.iter().find(|foreign| foreign.word == bare);
        return merge_key(key, what, own.map_or(TEMPLATES, |own| own.advice), out);
    }
    let reason = if keys.not_yet.contains(&bare) {
        format!("key `{name}` in {what} is not supported by this version yet")
    } else {
        format!("unknown key `{name}` in {what}")
    };
    let foreign = keys.foreign.iter().find(|foreign| foreign.word == bare);
    let near = nearest(bare, keys.known.iter().copied());
    let seen = (keys.look)(bare, value);
    let hint = match (seen, foreign) {
        (Some(advice), _) => advice.to_owned(),
        (None, Some(foreign)) => foreign.advice.to_owned(),
        (None, None) => did_you_mean(bare, keys.known),
    };
    read.meant.extend(match foreign {
        Some(foreign) => Some(foreign.means),
        // What looks like something of its own is what the first key names: the file's jobs.
        None if seen.is_some() => keys.known.first().copied(),
        None => near,
    });
    out.push(key.place, reason, Some(hint));
}

fn merge_key(key: &Node, what: &str, advice: &str, out: &mut Collector<'_>) {
    let reason = format!("merge keys (`<<`) are not supported in {what}");
    out.push(key.place, reason, Some(advice.to_owned()));
}

/// The pairs of a map with free keys; a key that is no text or repeats is reported and left out,
/// and so is a merge key, with what to write instead.
pub fn pairs<'n>(
    node: &'n Node,
    what: &str,
    examples: &[&str],
    merge: &str,
    out: &mut Collector<'_>,
) -> Option<Vec<(&'n str, &'n Node, &'n Node)>> {
    let mut read = all_pairs(node, what, examples, out)?;
    read.retain(|(name, key, _)| {
        let merges = *name == "<<";
        if merges {
            merge_key(key, what, merge, out);
        }
        !merges
    });
    Some(read)
}

fn all_pairs<'n>(
    node: &'n Node,
    what: &str,
    examples: &[&str],
    out: &mut Collector<'_>,
) -> Option<Vec<(&'n str, &'n Node, &'n Node)>> {
    let Value::Map(pairs) = &node.value else {
        let reason = format!("{what} must be a map, this is {}", node.kind());
        let suggestion = examples
            .first()
            .map(|key| format!("write `{key}: …` on a line below"));
        out.push(node.place, reason, suggestion);
        return None;
    };
    let mut seen: HashMap<&str, Place> = HashMap::new();
    let mut read = Vec::new();
    for (key, value) in pairs {
        let Value::Scalar { text, .. } = &key.value else {
            out.push(key.place, format!("a key of {what} must be text"), None);
            continue;
        };
        if let Some(first) = seen.get(text.as_str()) {
            let reason = format!("key `{}` appears twice in {what}", shown(text));
            let suggestion = format!("it stands on line {} already; keep one of them", first.line);
            out.push(key.place, reason, Some(suggestion));
            continue;
        }
        seen.insert(text, key.place);
        read.push((text.as_str(), key, value));
    }
    Some(read)
}

/// Any scalar as its text. Nothing at all is refused: an empty text is written `""`.
pub fn text<'n>(node: &'n Node, what: &str, out: &mut Collector<'_>) -> Option<&'n str> {
    match &node.value {
        Value::Scalar { text, .. } if text.contains('\0') => {
            out.push(node.place, format!("{what} contains a NUL character"), None);
            None
        }
        Value::Scalar { text, .. } if !node.is_absent() => Some(text),
        _ => {
            let reason = format!("{what} must be text, this is {}", node.kind());
            let suggestion = match &node.value {
                Value::Map(_) => Some("text that contains `: ` needs quotes around it".to_owned()),
                _ => None,
            };
            out.push(node.place, reason, suggestion);
            None
        }
    }
}

/// A list of at most `most` items; what is none is reported and empty.
pub fn list<'n>(node: &'n Node, what: &str, most: usize, out: &mut Collector<'_>) -> &'n [Node] {
    let Value::List(items) = &node.value else {
        let reason = format!("{what} must be a list, this is {}", node.kind());
        let suggestion = match &node.value {
            Value::Scalar { text, .. } if !node.is_absent() && !text.contains('\n') => {
                Some(format!("write `[{}]`", shown(text)))
            }
            _ => Some("write one item per line, each after `- `".to_owned()),
        };
        out.push(node.place, reason, suggestion);
        return &[];
    };
    if items.len() > most {
        let reason = format!(
            "{what} has {} items, at most {most} are allowed",
            items.len()
        );
        out.push(node.place, reason, None);
        return &[];
    }
    items
}

/// A list of at most `most` texts, each with its place. A text alone is a list of one.
pub fn texts(
    node: &Node,
    what: &str,
    most: usize,
    out: &mut Collector<'_>,
) -> Vec<(String, Place)> {
    if matches!(&node.value, Value::Scalar { .. }) && !node.is_absent() {
        let one = text(node, what, out).map(|text| (text.to_owned(), node.place));
        return one.into_iter().collect();
    }
    let item_name = format!("each item of {what}");
    list(node, what, most, out)
        .iter()
        .filter_map(|item| Some((text(item, &item_name, out)?.to_owned(), item.place)))
        .collect()
}

pub fn boolean(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<bool> {
    match &node.value {
        Value::Scalar {
            text,
            quoted: false,
        } if text == "true" => Some(true),
        Value::Scalar {
            text,
            quoted: false,
        } if text == "false" => Some(false),
        _ => {
            let reason = format!("{what} must be `true` or `false`");
            out.push(node.place, reason, None);
            None
        }
    }
}

pub fn integer(
    node: &Node,
    what: &str,
    range: std::ops::RangeInclusive<i64>,
    out: &mut Collector<'_>,
) -> Option<i64> {
    let number = match &node.value {
        Value::Scalar {
            text,
            quoted: false,
        } => text.parse::<i64>().ok(),
        _ => None,
    };
    if let Some(number) = number.filter(|number| range.contains(number)) {
        return Some(number);
    }
    let (from, to) = (range.start(), range.end());
    out.push(
        node.place,
        format!("{what} must be a whole number from {from} to {to}"),
        None,
    );
    None
}

/// What a duration looks like.
const DURATION_EXAMPLES: &str = "write a duration such as `500ms`, `90s`, `10m` or `1h30m`";

/// A duration within `range`.
pub fn duration(
    node: &Node,
    what: &str,
    range: std::ops::RangeInclusive<Duration>,
    out: &mut Collector<'_>,
) -> Option<Duration> {
    let text = text(node, what, out)?;
    let reason = match duration::parse(text) {
        Ok(value) if range.contains(&value) => return Some(value),
        Ok(_) => {
            let (from, to) = (
                duration::format(*range.start()),
                duration::format(*range.end()),
            );
            format!("it must be from {from} to {to}")
        }
        Err(problem) => problem.to_string(),
    };
    let reason = sentence(&format!("{what} `{}` is not usable: {reason}", shown(text)));
    out.push(node.place, reason, Some(DURATION_EXAMPLES.to_owned()));
    None
}

/// The suggestion for a mistyped name out of a closed list.
pub fn did_you_mean(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known: {}", known.join(", ")),
    }
}
