//! Which keys the maps around a job's work have, so that one that is not among them is pointed at
//! itself, with the nearest name. What the values may be is not known here.

use std::collections::HashSet;

use delta_wire::nearest::nearest;

use crate::diagnostic::Collector;
use crate::fields::{self, Keys};
use crate::yaml::{Node, Value};

/// A map, or a list of such maps, or something that is no map at all.
struct Shape {
    key: &'static str,
    /// In sentences.
    what: &'static str,
    known: &'static [&'static str],
    inner: &'static [Shape],
}

const fn plain(key: &'static str, what: &'static str, known: &'static [&'static str]) -> Shape {
    Shape {
        key,
        what,
        known,
        inner: &[],
    }
}

static SHAPES: [Shape; 7] = [
    plain(
        "artifacts",
        "an item of `artifacts`",
        &["path_glob", "type"],
    ),
    plain(
        "caches",
        "an item of `caches`",
        &["key", "paths", "restore_keys", "type"],
    ),
    plain(
        "checkout",
        "`checkout`",
        &["depth", "submodules", "lfs", "credential"],
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
        inner: &[
            plain(
                "mounts",
                "an item of `mounts`",
                &["source", "target", "read_only"],
            ),
            plain(
                "services",
                "an item of `services`",
                &["name", "image", "env", "command"],
            ),
        ],
    },
    plain(
        "inputs",
        "an item of `inputs`",
        &["job", "path_glob", "into"],
    ),
    plain("results", "`results`", &["format", "path"]),
    plain("secrets", "an item of `secrets`", &["name", "env"]),
];

/// What was found out while keys were looked at.
#[derive(Default)]
pub(crate) struct Known {
    /// Paths such as `caches[0].key` whose key stands under a wrong name.
    misspelt: HashSet<String>,
}

impl Known {
    /// The value of a key of a job without the keys in it that nobody knows, which are reported.
    pub fn keys(&mut self, key: &str, node: &Node, out: &mut Collector<'_>) -> Node {
        match SHAPES.iter().find(|it| it.key == key) {
            Some(shape) => self.value(shape, key, node, out),
            None => node.clone(),
        }
    }

    pub fn is_misspelt(&self, path: &str) -> bool {
        self.misspelt.contains(path)
    }

    fn value(&mut self, shape: &Shape, path: &str, node: &Node, out: &mut Collector<'_>) -> Node {
        let value = match &node.value {
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
            advice: &[],
        };
        // Reports what is unknown, and what is there twice.
        fields::fields(node, &keys, shape.what, out);
        let mut kept = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar { text, .. } = &key.value else {
                continue;
            };
            if !shape.known.contains(&text.as_str()) {
                let meant = nearest(text, shape.known.iter().copied());
                self.misspelt.extend(meant.map(|it| format!("{path}.{it}")));
                continue;
            }
            let inner = shape.inner.iter().find(|it| it.key == text);
            let value = match inner {
                Some(inner) => self.value(inner, &format!("{path}.{text}"), value, out),
                None => value.clone(),
            };
            kept.push((key.clone(), value));
        }
        kept
    }
}

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
            "services" => json!({"name": "db", "image": "x", "env": {"A": "b"}, "command": ["y"]}),
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
