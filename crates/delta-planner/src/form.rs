//! The form of what stands around a job's work: a list, a map or a text. What has another form is
//! answered once, with the same thing as it is to be written; what is in it is not judged then.

use crate::diagnostic::{Collector, shown};
use crate::foreign::NO_VALUES;
use crate::yaml::{Node, Value};

/// The paths of values, such as `caches[0]`, whose form was refused.
#[derive(Default)]
pub(crate) struct Refused(Vec<String>);

impl Refused {
    /// Whether the path is one of them, or inside one.
    pub fn covers(&self, path: &str) -> bool {
        let within = |refused: &String| match path.strip_prefix(refused.as_str()) {
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '[']),
            None => false,
        };
        self.0.iter().any(within)
    }

    /// Looks at the value of a key, and says what is wrong with its form. `path` is the key's, such
    /// as `container.services`. True when nothing in it is to be looked at.
    pub fn look(&mut self, path: &str, node: &Node, out: &mut Collector<'_>) -> bool {
        let said = match (path, &node.value) {
            ("caches", Value::Map(_)) => Some(listed("caches", node, "{key: …, paths: […]}")),
            ("caches", Value::Scalar { text, .. }) => Some(a_cache(node, text)),
            ("inputs", Value::Map(_)) => {
                let one = "{job: build, path_glob: \"dist/**\"}";
                Some(listed("inputs", node, one))
            }
            ("artifacts", Value::Map(_)) => {
                let mut said = listed("artifacts", node, "");
                said.hint = format!("write `artifacts: [{}]`", patterns(node).join(", "));
                Some(said)
            }
            ("results", Value::Scalar { text, .. }) => Some(a_report("`results`", node, text)),
            ("container", Value::Scalar { text, .. }) => Some(Said {
                reason: "`container` must be a map, this is text".to_owned(),
                hint: format!("write `image: {}`", shown(text)),
            }),
            ("image", Value::Map(_)) => Some(Said {
                reason: "`image` must be text, this is a map".to_owned(),
                hint: "write `image: NAME:TAG`, and `container: {entrypoint: […]}` beside it"
                    .to_owned(),
            }),
            ("environment", Value::Map(_)) => Some(Said {
                reason: "`environment` must be text, this is a map".to_owned(),
                hint: "it is one word, such as `production`; variables are `env: {NAME: value}`"
                    .to_owned(),
            }),
            ("container.services", Value::Map(pairs)) => Some(Said {
                reason: "`services` must be a list, this is a map".to_owned(),
                hint: format!(
                    "write `services: [{{name: {}, image: …}}]`",
                    first_key(pairs).unwrap_or_else(|| "db".to_owned())
                ),
            }),
            (path, Value::Scalar { text, .. }) if path.ends_with(".ready") => Some(Said {
                reason: format!("`ready` must be a map, this is {}", node.kind()),
                hint: match text.parse::<u16>() {
                    Ok(port) => format!("write `ready: {{port: {port}}}`"),
                    Err(_) => format!("write `ready: {{run: {}}}`", shown(text)),
                },
            }),
            ("secrets", Value::Map(pairs)) => Some(values_of_secrets(pairs, out)),
            ("secrets", Value::Scalar { text, .. }) if text.contains(['=', ':']) => {
                Some(value_of_a_secret(node, text, out))
            }
            ("secrets", Value::Scalar { text, .. }) if text == "inherit" => Some(Said {
                reason: "`secrets` is a list of names, and there is nothing to inherit".to_owned(),
                hint: NO_VALUES.to_owned(),
            }),
            (_, Value::List(items)) => {
                for (at, item) in items.iter().enumerate() {
                    self.item(path, at, item, out);
                }
                None
            }
            _ => None,
        };
        let refused = said.is_some();
        if let Some(said) = said {
            out.push(node.place, said.reason, Some(said.hint));
            self.0.push(path.to_owned());
        }
        refused
    }

    fn item(&mut self, path: &str, at: usize, item: &Node, out: &mut Collector<'_>) {
        let said = match (path, &item.value) {
            ("caches", Value::Scalar { text, .. }) => a_cache(item, text),
            ("artifacts", Value::Map(pairs)) if pairs.iter().any(|(key, _)| is_path(key)) => Said {
                reason: "an item of `artifacts` must be a pattern, this is a map".to_owned(),
                hint: format!("write `artifacts: [{}]`", patterns(item).join(", ")),
            },
            ("secrets", Value::Scalar { text, .. }) if text.contains(['=', ':']) => {
                value_of_a_secret(item, text, out)
            }
            ("results", Value::Scalar { text, .. }) => a_report("an item of `results`", item, text),
            ("container.services", Value::Scalar { text, .. }) => {
                let name = text.rsplit('/').next().unwrap_or_default();
                let name = name.split([':', '@']).next().unwrap_or_default();
                Said {
                    reason: "an item of `services` must be a map, this is text".to_owned(),
                    hint: format!(
                        "write `{{name: {}, image: \"{}\"}}`",
                        shown(name),
                        shown(text)
                    ),
                }
            }
            _ => return,
        };
        out.push(item.place, said.reason, Some(said.hint));
        self.0.push(format!("{path}[{at}]"));
    }
}

struct Said {
    reason: String,
    hint: String,
}

fn listed(key: &str, node: &Node, one: &str) -> Said {
    Said {
        reason: format!("`{key}` must be a list, this is {}", node.kind()),
        hint: format!("write `{key}: [{one}]`"),
    }
}

fn a_cache(node: &Node, path: &str) -> Said {
    let path = if node.is_absent() { "FOLDER" } else { path };
    Said {
        reason: format!("an item of `caches` must be a map, this is {}", node.kind()),
        hint: format!(
            "write `{{key: \"deps-{{lock_hash}}\", paths: [{}]}}`",
            shown(path)
        ),
    }
}

fn a_report(what: &str, node: &Node, path: &str) -> Said {
    let format = match path.rsplit('.').next() {
        Some("tap") => "tap",
        Some("json") => "json",
        _ => "junit",
    };
    Said {
        reason: format!("{what} must be a map, this is {}", node.kind()),
        hint: format!("write `{{format: {format}, path: {}}}`", shown(path)),
    }
}

/// The texts in a map that stands where patterns are wanted, as patterns.
fn patterns(node: &Node) -> Vec<String> {
    const SHOWN: usize = 4;
    let mut texts = Vec::new();
    let Value::Map(pairs) = &node.value else {
        return texts;
    };
    let glob = |key: &Node| matches!(&key.value, Value::Scalar { text, .. } if text == "path_glob");
    for (_, value) in pairs.iter().filter(|(key, _)| is_path(key) || glob(key)) {
        let all = match &value.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(value),
        };
        texts.extend(all.iter().take(SHOWN).filter_map(|item| match &item.value {
            Value::Scalar { text, .. } => Some(pattern(text)),
            _ => None,
        }));
    }
    if texts.is_empty() {
        texts.push("\"dist/**\"".to_owned());
    }
    texts
}

/// Words with which other systems name what is kept.
fn is_path(key: &Node) -> bool {
    match &key.value {
        Value::Scalar { text, .. } => matches!(text.as_str(), "path" | "paths" | "files"),
        _ => false,
    }
}

/// A folder by everything in it.
fn pattern(text: &str) -> String {
    let bare = text.trim_end_matches('/');
    let last = bare.rsplit('/').next().unwrap_or_default();
    let plain = !last.contains(['*', '.']);
    let text = if plain { bare } else { text };
    format!("\"{}{}\"", shown(text), if plain { "/**" } else { "" })
}

/// Somebody gives values where names are wanted. None of them is shown.
fn values_of_secrets(pairs: &[(Node, Node)], out: &mut Collector<'_>) -> Said {
    for (_, value) in pairs {
        out.hide(value.place);
    }
    let name = first_key(pairs).unwrap_or_else(|| "NAME".to_owned());
    Said {
        reason: "`secrets` is a list of names, and values do not belong into this file".to_owned(),
        hint: NO_VALUES.replace("NAME", &name),
    }
}

/// Somebody gives a value behind a name, as in a shell. It is not shown.
fn value_of_a_secret(node: &Node, text: &str, out: &mut Collector<'_>) -> Said {
    out.hide(node.place);
    let name = text.split(['=', ':']).next().unwrap_or_default().trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named = !name.is_empty() && name.chars().all(plain);
    Said {
        reason: "`secrets` is a list of names, and values do not belong into this file".to_owned(),
        hint: NO_VALUES.replace("NAME", if named { name } else { "NAME" }),
    }
}

fn first_key(pairs: &[(Node, Node)]) -> Option<String> {
    pairs.iter().find_map(|(key, _)| match &key.value {
        Value::Scalar { text, .. } => Some(shown(text)),
        _ => None,
    })
}
