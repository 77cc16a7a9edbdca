//! Credentials as rows: who may come in, as what, and for which part of the work.
//!
//! Owns their fields and how a scope is spelled in a column. It holds the hash of a secret, never
//! the secret.

use std::collections::BTreeSet;

use delta_core::Text;

/// The pool of whoever was given no other.
pub const DEFAULT_POOL: &str = "default";

/// Among labels: any.
const ANY: &str = "*";

/// Which labels an agent may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Labels {
    Any,
    Only(BTreeSet<Text>),
}

/// What whoever made a credential grants to an agent. What the agent says only narrows it (T27).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub pool: Text,
    pub zones: BTreeSet<Text>,
    pub labels: Labels,
}

impl Scope {
    /// The default pool, no zone, no label: for those who were granted nothing.
    pub fn least() -> Scope {
        Scope {
            pool: DEFAULT_POOL.into(),
            zones: BTreeSet::new(),
            labels: Labels::Only(BTreeSet::new()),
        }
    }

    /// The default pool, no zone, any label: a runner token of which nothing else was said.
    pub fn any_label() -> Scope {
        Scope {
            labels: Labels::Any,
            ..Scope::least()
        }
    }

    pub(crate) fn zones_column(&self) -> String {
        join(&self.zones)
    }

    pub(crate) fn labels_column(&self) -> String {
        match &self.labels {
            Labels::Any => ANY.into(),
            Labels::Only(labels) => join(labels),
        }
    }

    pub(crate) fn from_columns(pool: Text, zones: &str, labels: &str) -> Scope {
        Scope {
            pool,
            zones: split(zones),
            labels: match labels {
                ANY => Labels::Any,
                labels => Labels::Only(split(labels)),
            },
        }
    }
}

fn join(words: &BTreeSet<Text>) -> String {
    let words: Vec<&str> = words.iter().map(|word| &**word).collect();
    words.join(" ")
}

fn split(words: &str) -> BTreeSet<Text> {
    words.split_ascii_whitespace().map(Text::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_survives_its_columns() {
        let set = |words: &[&str]| words.iter().map(|word| Text::from(*word)).collect();
        let scopes = [
            Scope::least(),
            Scope::any_label(),
            Scope {
                pool: "gpu".into(),
                zones: set(&["eu", "us"]),
                labels: Labels::Only(set(&["gpu", "team=a"])),
            },
        ];
        for scope in scopes {
            let (zones, labels) = (scope.zones_column(), scope.labels_column());
            let read = Scope::from_columns(scope.pool.clone(), &zones, &labels);
            assert_eq!(read, scope);
        }
    }
}
