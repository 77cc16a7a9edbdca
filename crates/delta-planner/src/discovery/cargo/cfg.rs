//! Under which features something is compiled, and whether that can be told at all: conditions as
//! they stand in `#[cfg(…)]`. What depends on a machine or on a flag of the compiler is in doubt,
//! unless no machine that runs jobs has it.

use std::collections::BTreeSet;

/// Features that something wants; nobody wrote more by hand.
const MAX_FEATURES: usize = 100;

/// What must be so that something is compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub features: BTreeSet<String>,
    /// More than features, and nobody knows whether it holds.
    pub doubt: bool,
    /// `cfg(test)` is asked for somewhere, which documentation is not built with.
    pub only_tests: bool,
}

impl Wanted {
    pub fn features(names: &[String]) -> Wanted {
        Wanted {
            features: names.iter().cloned().collect(),
            ..Wanted::default()
        }
    }

    pub fn doubtful() -> Wanted {
        Wanted {
            doubt: true,
            ..Wanted::default()
        }
    }

    pub fn extend(&mut self, other: &Wanted) {
        self.features.extend(other.features.iter().cloned());
        self.doubt |= other.doubt;
        self.only_tests |= other.only_tests;
        self.bound();
    }

    /// Of `cfg(…)`, where these features are on.
    pub fn of(attribute: &str, on: &BTreeSet<&str>) -> Wanted {
        let inner = attribute.trim().strip_prefix("cfg");
        let inner = inner.and_then(|it| it.trim_start().strip_prefix('('));
        let Some(inner) = inner.and_then(|it| it.trim_end().strip_suffix(')')) else {
            return Wanted::doubtful();
        };
        let (features, doubt) = match Holds::of(inner, on, 0) {
            Holds::Yes => (BTreeSet::new(), false),
            Holds::With(features) => (features, false),
            Holds::No | Holds::Unknown => (BTreeSet::new(), true),
        };
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let mut wanted = Wanted {
            features,
            doubt,
            only_tests: inner.split(|c| !word(c)).any(|it| it == "test"),
        };
        wanted.bound();
        wanted
    }

    /// Each test keeps what it wants: with too many features it is in doubt instead.
    fn bound(&mut self) {
        if self.features.len() > MAX_FEATURES {
            self.features.clear();
            self.doubt = true;
        }
    }
}

/// Conditions in one another; beyond it nobody wrote them by hand.
const MAX_DEPTH: usize = 16;

/// Whether a condition holds where jobs run.
enum Holds {
    Yes,
    No,
    /// With these features, some of which are not on by default.
    With(BTreeSet<String>),
    Unknown,
}

impl Holds {
    fn of(text: &str, on: &BTreeSet<&str>, depth: usize) -> Holds {
        let text = text.trim();
        if depth > MAX_DEPTH {
            return Holds::Unknown;
        }
        let parts = |name: &str| {
            let rest = text.strip_prefix(name)?.trim_start();
            let inner = rest.strip_prefix('(')?.strip_suffix(')')?;
            let parts = split(inner).into_iter();
            Some(
                parts
                    .map(|it| Holds::of(it, on, depth + 1))
                    .collect::<Vec<_>>(),
            )
        };
        if let Some(parts) = parts("all") {
            return Holds::all(parts);
        }
        if let Some(parts) = parts("any") {
            return Holds::any(parts);
        }
        if let Some(mut parts) = parts("not") {
            return match parts.pop() {
                Some(Holds::Yes) => Holds::No,
                // Which features are on besides the default ones is decided later.
                Some(Holds::No | Holds::With(_)) => Holds::Yes,
                _ => Holds::Unknown,
            };
        }
        match text.split_once('=') {
            Some((key, value)) => Holds::value(key.trim(), value.trim().trim_matches('"'), on),
            None => Holds::word(text),
        }
    }

    fn word(word: &str) -> Holds {
        match word {
            "test" | "unix" | "debug_assertions" | "" => Holds::Yes,
            "windows" | "miri" | "loom" | "doc" | "doctest" | "docsrs" | "fuzzing" | "kani" => {
                Holds::No
            }
            _ => Holds::Unknown,
        }
    }

    fn value(key: &str, value: &str, on: &BTreeSet<&str>) -> Holds {
        match (key, value) {
            ("feature", name) if on.contains(name) => Holds::Yes,
            ("feature", name) => Holds::With(BTreeSet::from([name.to_owned()])),
            ("target_family", "unix") | ("target_pointer_width", "64") => Holds::Yes,
            ("target_os", "linux" | "macos") => Holds::Unknown,
            ("target_os" | "target_family", _) | ("target_arch", "wasm32" | "wasm64") => Holds::No,
            ("target_pointer_width", _) => Holds::No,
            _ => Holds::Unknown,
        }
    }

    fn all(parts: Vec<Holds>) -> Holds {
        let mut with = BTreeSet::new();
        let mut unknown = false;
        for part in parts {
            match part {
                Holds::Yes => {}
                Holds::No => return Holds::No,
                Holds::With(features) => with.extend(features),
                Holds::Unknown => unknown = true,
            }
        }
        match (unknown, with.is_empty()) {
            (true, _) => Holds::Unknown,
            (false, true) => Holds::Yes,
            (false, false) => Holds::With(with),
        }
    }

    fn any(parts: Vec<Holds>) -> Holds {
        let mut best = Holds::No;
        for part in parts {
            best = match (best, part) {
                (_, Holds::Yes) => return Holds::Yes,
                (Holds::With(features), _) | (_, Holds::With(features)) => Holds::With(features),
                (Holds::Unknown, _) | (_, Holds::Unknown) => Holds::Unknown,
                (Holds::No | Holds::Yes, Holds::No) => Holds::No,
            };
        }
        best
    }
}

/// What commas divide, but not those within parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.retain(|it| !it.trim().is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_want_features_or_are_in_doubt() {
        let on = BTreeSet::from(["std"]);
        for (condition, wanted) in [
            ("test", ""),
            ("feature = \"std\"", ""),
            ("feature = \"x\"", "x"),
            ("all(test, feature = \"x\", feature = \"y\")", "x y"),
            ("any(test, feature = \"x\")", ""),
            ("any(feature = \"x\", feature = \"y\")", "x"),
            ("all(test, not(miri))", ""),
            ("not(any(windows, target_arch = \"wasm32\"))", ""),
            ("not(feature = \"x\")", ""),
            ("not(feature = \"std\")", "?"),
            ("unix", ""),
            ("windows", "?"),
            ("target_os = \"windows\"", "?"),
            ("target_os = \"linux\"", "?"),
            ("all(unix, feature = \"x\")", "x"),
            ("all(windows, feature = \"x\")", "?"),
            ("some_flag", "?"),
            ("not(some_flag)", "?"),
            ("all(test", "?"),
        ] {
            let it = Wanted::of(&format!("cfg({condition})"), &on);
            let names: Vec<&str> = it.features.iter().map(String::as_str).collect();
            let said = if it.doubt {
                "?".to_owned()
            } else {
                names.join(" ")
            };
            assert_eq!(said, wanted, "{condition}");
        }
        let deep = format!("cfg({}test{})", "not(".repeat(9_000), ")".repeat(9_000));
        assert!(Wanted::of(&deep, &on).doubt);
    }
}
