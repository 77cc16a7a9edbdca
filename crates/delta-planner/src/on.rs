//! Reading `on`: which events start a run, for which branches, tags and paths, and what a person
//! may give along.

use crate::diagnostic::{Collector, shown};
use crate::facts::Event;
use crate::fields::{self, Keys, did_you_mean};
use crate::foreign;
use crate::glob::Glob;
use crate::trigger::{Input, InputKind, On, Triggers};
use crate::yaml::{Node, Value};

/// Patterns of one list.
const MAX_PATTERNS: usize = 100;
/// Inputs of one file.
const MAX_INPUTS: usize = 50;
/// Options of one choice.
const MAX_OPTIONS: usize = 100;

pub(crate) const ON_KEYS: Keys = Keys {
    known: &["push", "pull_request", "tag", "manual"],
    not_yet: &["schedule"],
    foreign: foreign::ON,
    look: fields::by_name_alone,
};

pub(crate) const BRANCH_KEYS: Keys = Keys {
    known: &["branches", "paths"],
    not_yet: &[],
    foreign: foreign::BRANCHES,
    look: fields::by_name_alone,
};

pub(crate) const TAG_KEYS: Keys = Keys {
    known: &["tags"],
    not_yet: &[],
    foreign: &[],
    look: fields::by_name_alone,
};

pub(crate) const MANUAL_KEYS: Keys = Keys {
    known: &["inputs"],
    not_yet: &[],
    foreign: &[],
    look: fields::by_name_alone,
};

pub(crate) const INPUT_KEYS: Keys = Keys {
    known: &["type", "required", "default", "description", "options"],
    not_yet: &[],
    foreign: &[],
    look: fields::by_name_alone,
};

/// Words of `type`.
pub(crate) const INPUT_TYPES: [&str; 4] = ["text", "boolean", "number", "choice"];

/// What `on` says. Without a map, the events that are named start a run and the others do not.
pub(crate) fn read(node: &Node, out: &mut Collector<'_>) -> Triggers {
    let mut triggers = Triggers {
        push: On::Never,
        pull_request: On::Never,
        tag: On::Never,
        inputs: Vec::new(),
    };
    if let Value::Map(_) = &node.value {
        let Some(map) = fields::fields(node, &ON_KEYS, "`on`", out) else {
            return triggers;
        };
        let branches = |key: &str, out: &mut Collector<'_>| {
            let node = map.get(key)?;
            Some(refs(node, key, &BRANCH_KEYS, "branches", out))
        };
        triggers.push = branches("push", out).unwrap_or(On::Never);
        triggers.pull_request = branches("pull_request", out).unwrap_or(On::Never);
        let tag = map.get("tag");
        let tag = tag.map(|node| refs(node, "tag", &TAG_KEYS, "tags", out));
        triggers.tag = tag.unwrap_or(On::Never);
        triggers.inputs = map
            .get("manual")
            .map(|it| manual(it, out))
            .unwrap_or_default();
        return triggers;
    }
    for (name, place) in fields::texts(node, "`on`", ON_KEYS.known.len(), out) {
        match Event::from_name(&name) {
            Some(Event::Push) => triggers.push = On::default(),
            Some(Event::PullRequest) => triggers.pull_request = On::default(),
            Some(Event::Tag) => triggers.tag = On::default(),
            Some(Event::Manual) => {}
            None => {
                let reason = format!("`{}` is no event", shown(&name));
                let foreign = foreign::ON.iter().find(|it| it.word == name);
                let hint = match foreign {
                    Some(foreign) => foreign.advice.to_owned(),
                    None => did_you_mean(&name, ON_KEYS.known),
                };
                out.push(place, reason, Some(hint));
            }
        }
    }
    triggers
}

fn refs(node: &Node, key: &str, keys: &Keys, names: &str, out: &mut Collector<'_>) -> On {
    if node.is_absent() {
        return On::default();
    }
    if let Value::Scalar { text, .. } = &node.value {
        match text.as_str() {
            "true" => return On::default(),
            "false" => return On::Never,
            _ => {}
        }
    }
    let Some(map) = fields::fields(node, keys, &format!("`on.{key}`"), out) else {
        return On::Never;
    };
    let patterns = |key: &str, out: &mut Collector<'_>| match map.get(key) {
        Some(node) => globs(node, key, out),
        None => Vec::new(),
    };
    On::When {
        names: patterns(names, out),
        paths: patterns("paths", out),
    }
}

fn globs(node: &Node, key: &str, out: &mut Collector<'_>) -> Vec<Glob> {
    let what = format!("`{key}`");
    let mut globs = Vec::new();
    for (text, place) in fields::texts(node, &what, MAX_PATTERNS, out) {
        match Glob::parse(&text) {
            Ok(glob) => globs.push(glob),
            Err(why) => {
                let reason = format!("the pattern `{}` {why}", shown(&text));
                out.push(place, reason, Some("such as `main` or `release/*`".into()));
            }
        }
    }
    if matches!(&node.value, Value::List(items) if items.is_empty()) {
        let rule = "leave the key out to mean all of them";
        out.push(node.place, format!("{what} is empty"), Some(rule.into()));
    }
    globs
}

fn manual(node: &Node, out: &mut Collector<'_>) -> Vec<Input> {
    let plain = matches!(&node.value, Value::Scalar { text, .. } if text == "true");
    if node.is_absent() || plain {
        return Vec::new();
    }
    let Some(map) = fields::fields(node, &MANUAL_KEYS, "`on.manual`", out) else {
        return Vec::new();
    };
    let Some(inputs) = map.get("inputs").filter(|node| !node.is_absent()) else {
        return Vec::new();
    };
    let pairs = fields::pairs(inputs, "`inputs`", &["version"], out).unwrap_or_default();
    if pairs.len() > MAX_INPUTS {
        let reason = format!("{} inputs, at most {MAX_INPUTS}", pairs.len());
        out.push(inputs.place, reason, None);
        return Vec::new();
    }
    let mut read: Vec<Input> = Vec::new();
    for (name, key, node) in pairs {
        let mut letters = name.chars();
        let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic());
        let rest = letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if !first || !rest || name.len() > 60 {
            let reason = format!("`{}` is no name of an input", shown(name));
            let rule = "use letters, digits, `_` and `-`, at most 60, and begin with a letter";
            out.push(key.place, reason, Some(rule.into()));
        }
        let variable = crate::plan::variable("INPUT", name);
        let same = |it: &&Input| crate::plan::variable("INPUT", &it.name) == variable;
        if let Some(other) = read.iter().find(same) {
            let reason = format!("`{}` and `{}` are one variable", shown(name), other.name);
            let rule = format!("both would be ${variable}; rename one of them");
            out.push(key.place, reason, Some(rule));
        }
        read.extend(input(name, node, out));
    }
    read
}

fn input(name: &str, node: &Node, out: &mut Collector<'_>) -> Option<Input> {
    let what = format!("input `{}`", shown(name));
    let mut input = Input {
        name: name.to_owned(),
        kind: InputKind::Text,
        required: false,
        default: None,
        description: None,
    };
    if node.is_absent() {
        return Some(input);
    }
    let map = fields::fields(node, &INPUT_KEYS, &what, out)?;
    let options = map.get("options");
    let listed = options.map(|it| fields::texts(it, "`options`", MAX_OPTIONS, out));
    let listed = listed.unwrap_or_default().into_iter().map(|(text, _)| text);
    let listed: Vec<String> = listed.collect();
    let kind = map
        .get("type")
        .and_then(|it| fields::text(it, "`type`", out));
    input.kind = match kind.unwrap_or(if options.is_some() { "choice" } else { "text" }) {
        "text" => InputKind::Text,
        "boolean" => InputKind::Truth,
        "number" => InputKind::Number,
        "choice" => InputKind::Choice(listed),
        other => {
            let place = map.get("type").unwrap_or(node).place;
            let reason = format!("`{}` is no type of an input", shown(other));
            out.push(place, reason, Some(did_you_mean(other, &INPUT_TYPES)));
            InputKind::Text
        }
    };
    match (&input.kind, options) {
        (InputKind::Choice(listed), _) if listed.is_empty() => {
            let rule = "write `{type: choice, options: [staging, production]}`";
            out.push(
                node.place,
                format!("{what} has no `options`"),
                Some(rule.into()),
            );
        }
        (InputKind::Choice(_), _) | (_, None) => {}
        (kind, Some(options)) => {
            let reason = format!("{what} is a {} and has `options`", kind.name());
            out.push(options.place, reason, Some("write `type: choice`".into()));
        }
    }
    let required = map.get("required");
    input.required = required
        .and_then(|it| fields::boolean(it, "`required`", out))
        .unwrap_or(false);
    if let Some(node) = map.get("default") {
        input.default = fields::text(node, "`default`", out).map(str::to_owned);
        if let Some(Err(why)) = input.default.as_deref().map(|it| input.kind.check(it)) {
            out.push(node.place, format!("the default of {what} {why}"), None);
        }
    }
    let description = map.get("description");
    input.description = description
        .and_then(|it| fields::text(it, "`description`", out))
        .map(|text| text.chars().take(200).collect());
    Some(input)
}
