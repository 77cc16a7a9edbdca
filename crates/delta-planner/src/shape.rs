//! Which keys the maps around a job's work have, so that one that is not among them is pointed at
//! itself, with the nearest name. What the values may be is not known here.

use std::collections::HashSet;

use delta_wire::nearest::nearest;

use crate::diagnostic::Collector;
use crate::fields::{self, Foreign, Keys};
use crate::foreign;
use crate::form::Refused;
use crate::yaml::{Node, Value};

/// A map, or a list of such maps, or something that is no map at all.
struct Shape {
    key: &'static str,
    /// In sentences.
    what: &'static str,
    known: &'static [&'static str],
    foreign: &'static [Foreign],
    inner: &'static [Shape],
}

const fn plain(
    key: &'static str,
    what: &'static str,
    known: &'static [&'static str],
    foreign: &'static [Foreign],
) -> Shape {
    Shape {
        key,
        what,
        known,
        foreign,
        inner: &[],
    }
}

static SHAPES: [Shape; 7] = [
    plain(
        "artifacts",
        "an item of `artifacts`",
        &["path_glob", "type"],
        foreign::ARTIFACT,
    ),
    plain(
        "caches",
        "an item of `caches`",
        &["key", "paths", "restore_keys", "type"],
        foreign::CACHE,
    ),
    plain(
        "checkout",
        "`checkout`",
        &["depth", "submodules", "lfs", "credential"],
        &[],
    ),
    Shape {
        key: "container",
        what: "`container`",
        known: &[
            "entrypoint",
            "network",
            "memory_mb",
            "cpus",
            "pids",
            "user",
            "mounts",
            "services",
        ],
        foreign: foreign::CONTAINER,
        inner: &[
            plain(
                "mounts",
                "an item of `mounts`",
                &["source", "target", "read_only"],
                &[],
            ),
            Shape {
                key: "services",
                what: "an item of `services`",
                known: &["name", "image", "env", "command", "ready"],
                foreign: foreign::SERVICE,
                inner: &[plain(
                    "ready",
                    "`ready` of a service",
                    &["run", "port", "timeout", "every"],
                    foreign::READY,
                )],
            },
        ],
    },
    plain(
        "inputs",
        "an item of `inputs`",
        &["job", "path_glob", "into"],
        foreign::INPUT,
    ),
    plain(
        "results",
        "`results`",
        &["format", "path"],
        foreign::RESULTS,
    ),
    plain(
        "secrets",
        "an item of `secrets`",
        &["name", "env"],
        foreign::SECRET,
    ),
];

/// Keys whose list may be written as its only item, a text.
const LISTS: [&str; 5] = ["artifacts", "inputs", "secrets", "paths", "restore_keys"];

/// What was found out while keys were looked at.
#[derive(Default)]
pub(crate) struct Known {
    /// Paths such as `caches[0].key` whose key stands under a wrong name.
    misspelt: HashSet<String>,
    /// Paths of maps with a key that stands for nothing of theirs.
    strange: HashSet<String>,
    refused: Refused,
}

impl Known {
    /// The value of a key of a job without what is reported of it: its form, and the keys in it
    /// that nobody knows. Nothing where no more is to be said of it.
    pub fn keys(&mut self, key: &str, node: &Node, out: &mut Collector<'_>) -> Option<Node> {
        if self.refused.look(key, node, out) {
            return None;
        }
        let shape = SHAPES.iter().find(|it| it.key == key);
        let node = match shape {
            Some(shape) => self.value(shape, key, node, out),
            None => node.clone(),
        };
        Some(listed(key, node))
    }

    /// Whether what the rules say of a path follows from something that was said already.
    pub fn is_said(&self, path: &str, words: &str) -> bool {
        let above = path.rsplit_once('.').map_or("", |(above, _)| above);
        let missing =
            words == MISSING && (self.misspelt.contains(path) || self.strange.contains(above));
        let of_image = self.misspelt.contains("container.image") || self.refused.covers("image");
        missing || (path == "container" && of_image) || self.refused.covers(path)
    }

    fn value(&mut self, shape: &Shape, path: &str, node: &Node, out: &mut Collector<'_>) -> Node {
        let value = match &node.value {
            _ if self.refused.covers(path) => return node.clone(),
            Value::Scalar { .. } => return node.clone(),
            Value::List(items) => {
                let items = items.iter().enumerate();
                let one = |(at, item)| self.value(shape, &format!("{path}[{at}]"), item, out);
                Value::List(items.map(one).collect())
            }
            Value::Map(pairs) => Value::Map(self.map(shape, path, node, pairs, out)),
        };
        Node {
            place: node.place,
            value,
        }
    }

    fn map(
        &mut self,
        shape: &Shape,
        path: &str,
        node: &Node,
        pairs: &[(Node, Node)],
        out: &mut Collector<'_>,
    ) -> Vec<(Node, Node)> {
        let keys = Keys {
            known: shape.known,
            not_yet: &[],
            foreign: shape.foreign,
            look: match shape.key {
                "secrets" => foreign::of_secret,
                _ => fields::by_name_alone,
            },
        };
        // Reports what is unknown, and what is there twice.
        fields::fields(node, &keys, shape.what, out);
        let mut kept = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar { text, .. } = &key.value else {
                continue;
            };
            if !shape.known.contains(&text.as_str()) {
                self.unknown(shape, path, text);
                // Perhaps the value of a secret, by the name that it was given.
                if shape.key == "secrets" {
                    out.hide(value.place);
                }
                continue;
            }
            let given = matches!(&value.value, Value::Scalar { text, .. } if text.contains('='));
            if shape.key == "secrets" && given {
                out.hide(value.place);
            }
            let inner = shape.inner.iter().find(|it| it.key == text);
            let value = match inner {
                Some(inner) => {
                    let path = format!("{path}.{text}");
                    if self.refused.look(&path, value, out) {
                        continue;
                    } else {
                        self.value(inner, &path, value, out)
                    }
                }
                None => listed(text, value.clone()),
            };
            kept.push((key.clone(), value));
        }
        kept
    }

    /// What a key that is not known was meant as.
    fn unknown(&mut self, shape: &Shape, path: &str, key: &str) {
        let foreign = shape.foreign.iter().find(|it| it.word == key);
        let meant = match foreign {
            Some(foreign) => Some(foreign.means).filter(|it| !it.is_empty()),
            None => nearest(key, shape.known.iter().copied()),
        };
        match meant {
            Some(meant) => self.misspelt.insert(format!("{path}.{meant}")),
            None => self.strange.insert(path.to_owned()),
        };
    }
}

/// The value of a key, as a list where one is meant and its only item is written.
fn listed(key: &str, node: Node) -> Node {
    let alone = matches!(node.value, Value::Scalar { .. }) && !node.is_absent();
    if alone && LISTS.contains(&key) {
        Node {
            place: node.place,
            value: Value::List(vec![node]),
        }
    } else {
        node
    }
}

/// What the rules say of a key that is not there.
pub(crate) const MISSING: &str = "is missing";

#[cfg(test)]
mod tests {
    use delta_wire::job_spec::check_around;
    use serde_json::{Value as Json, json};

    use super::*;

    /// A whole one of each, with every key.
    fn whole(key: &str) -> Json {
        match key {
            "artifacts" => json!({"path_glob": "a", "type": "file"}),
            "caches" => json!({"key": "k", "paths": ["p"], "restore_keys": ["k"], "type": "f"}),
            "checkout" => {
                json!({"depth": 1, "submodules": true, "lfs": true, "credential": "GIT"})
            }
            "container" => json!({"entrypoint": ["x"], "network": "none", "memory_mb": 64,
                "cpus": 1, "pids": 9, "user": "u", "mounts": [whole("mounts")],
                "services": [whole("services")]}),
            "mounts" => json!({"source": "a", "target": "/a", "read_only": true}),
            "services" => json!({"name": "db", "image": "x", "env": {"A": "b"}, "command": ["y"],
                "ready": {"port": 1}}),
            "inputs" => json!({"job": "a", "path_glob": "a", "into": "b"}),
            "results" => json!({"format": "junit", "path": "x"}),
            "secrets" => json!({"name": "A", "env": "B"}),
            other => panic!("{other}"),
        }
    }

    /// What the rules know of a map of this shape, by what they say of a key that nobody knows.
    fn known(path: &[&str]) -> Vec<String> {
        let mut all = json!({"image": "x", path[0]: whole(path[0])});
        if !matches!(path[0], "checkout" | "container" | "results") {
            all[path[0]] = json!([whole(path[0])]);
        }
        assert_eq!(check_around(&all).map(drop), Ok(()), "{path:?}");
        let mut place = &mut all;
        for part in path {
            place = &mut place[*part];
            if place.is_array() {
                place = &mut place[0];
            }
        }
        place["zzzzzzzzzzzz"] = json!(1);
        let problems = check_around(&all).unwrap_err().to_string();
        let (_, list) = problems.split_once("known here: ").unwrap();
        let mut known: Vec<String> = list.split(", ").map(str::to_owned).collect();
        known.sort();
        known
    }

    fn same(shape: &Shape, path: &[&str]) {
        let mut keys = shape.known.to_vec();
        keys.sort_unstable();
        assert_eq!(known(path), keys, "{path:?}");
    }

    #[test]
    fn the_keys_are_those_that_the_rules_know() {
        for shape in &SHAPES {
            same(shape, &[shape.key]);
            for inner in shape.inner {
                same(inner, &[shape.key, inner.key]);
            }
        }
    }
}
