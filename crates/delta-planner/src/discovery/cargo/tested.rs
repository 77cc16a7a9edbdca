//! Whether a crate has tests, and which of them its default features compile out. Told by the text
//! of its sources, within bounds; nothing is expanded, so what a macro of another crate makes is
//! not seen.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::super::manifest::{Table, strings, sub, text};
use crate::tree::{Tree, folder_of, join};

/// Files of one crate that are read: tests are in the first few of a crate that has any.
const MAX_FILES: usize = 400;

/// Files of all crates that are read.
const MAX_ALL_FILES: usize = 10_000;

/// Features that a stable compiler, or a machine without more, does not build.
const RISKY: [&str; 5] = ["nightly", "unstable", "simd", "experimental", "cuda"];

/// What a manifest says about features and tests.
#[derive(Default)]
pub struct Features {
    /// What each brings with it.
    all: BTreeMap<String, Vec<String>>,
    /// Files of tests that want features: name or path, and which.
    required: Vec<(String, Vec<String>)>,
    /// A test of its own has no harness, and prints what it likes.
    pub no_harness: bool,
    /// Its documentation is built with all features: they go together.
    pub go_together: bool,
}

impl Features {
    pub fn read(table: &Table) -> Features {
        let mut features = Features::default();
        for name in sub(table, "features").into_iter().flat_map(Table::keys) {
            let brings = sub(table, "features").map_or(Vec::new(), |it| strings(it, name));
            features.all.insert(name.clone(), brings);
        }
        let tests = table.get("test").and_then(|it| it.as_array());
        for test in tests.into_iter().flatten().filter_map(|it| it.as_table()) {
            let harness = test.get("harness").and_then(toml::Value::as_bool);
            features.no_harness |= harness == Some(false);
            let name = text(test, "name").unwrap_or_default();
            let path = text(test, "path").map(str::to_owned);
            let path = path.unwrap_or_else(|| format!("tests/{name}.rs"));
            let wanted = strings(test, "required-features");
            if !wanted.is_empty() {
                features.required.push((path, wanted));
            }
        }
        let package = sub(table, "package").and_then(|it| sub(it, "metadata"));
        let docs = package
            .and_then(|it| sub(it, "docs"))
            .and_then(|it| sub(it, "rs"));
        let all = docs.and_then(|it| it.get("all-features"));
        features.go_together = all.and_then(toml::Value::as_bool) == Some(true);
        features
    }

    /// What is on by default.
    fn by_default(&self) -> BTreeSet<&str> {
        let mut on = BTreeSet::new();
        let mut open = vec!["default"];
        while let Some(name) = open.pop() {
            if on.insert(name) {
                let brings = self.all.get(name).into_iter().flatten();
                open.extend(brings.map(String::as_str));
            }
        }
        on
    }

    /// Some of them may not be switched on without knowing more.
    pub fn are_risky(&self) -> bool {
        let risky = |name: &String| RISKY.iter().any(|it| name.contains(it));
        !self.go_together && self.all.keys().any(risky)
    }
}

/// What was seen of a crate's tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tested {
    /// Tests that default features compile.
    pub by_default: usize,
    /// Tests that they compile out, and by which features they would be there.
    pub behind: usize,
    pub features: BTreeSet<String>,
    /// Not everything was read.
    pub unsure: bool,
}

impl Tested {
    pub fn any(&self) -> bool {
        self.by_default > 0 || self.behind > 0 || self.unsure
    }

    /// Most of its tests would not be compiled.
    pub fn mostly_behind(&self) -> bool {
        self.behind > self.by_default
    }

    /// Looks at the crate in `folder`; `inner` are crates below it. `read` counts files of all.
    pub fn look(
        tree: &Tree,
        folder: &str,
        features: &Features,
        inner: &BTreeSet<&str>,
        read: &Cell<usize>,
    ) -> Tested {
        let mut tested = Tested::default();
        let on = features.by_default();
        let library = tree.has(&join(folder, "src/lib.rs"));
        let mut gates: Vec<(String, BTreeSet<String>)> = Vec::new();
        for (path, wanted) in &features.required {
            let stem = path.strip_suffix(".rs").unwrap_or(path);
            gates.push((join(folder, stem), wanted.iter().cloned().collect()));
        }
        let files = sources(tree, folder, inner);
        tested.unsure = files.len() > MAX_FILES;
        for path in files.into_iter().take(MAX_FILES) {
            read.set(read.get() + 1);
            if read.get() > MAX_ALL_FILES {
                tested.unsure = true;
                break;
            }
            let Ok(text) = tree.text(path) else {
                tested.unsure = true;
                continue;
            };
            let stem = path.strip_suffix(".rs").unwrap_or(path);
            let of_file = |gate: &&(String, BTreeSet<String>)| {
                stem == gate.0
                    || stem
                        .strip_prefix(&gate.0)
                        .is_some_and(|it| it.starts_with('/'))
            };
            let above = gates
                .iter()
                .filter(of_file)
                .flat_map(|it| it.1.iter().cloned());
            let mut reader = Reader {
                on: &on,
                whole: above.collect(),
                group: BTreeSet::new(),
                doctests: library && !path.starts_with(&join(folder, "tests/")),
                in_block: false,
                modules: Vec::new(),
                tested: &mut tested,
            };
            text.lines().for_each(|line| reader.line(line));
            let here = match stem.rsplit('/').next() {
                Some("lib" | "main" | "mod") => folder_of(path).to_owned(),
                _ => stem.to_owned(),
            };
            let modules = reader.modules.into_iter();
            gates.extend(modules.map(|(name, wanted)| (join(&here, &name), wanted)));
        }
        tested
    }
}

/// The crate's sources and tests, roots of modules first.
fn sources<'t>(tree: &'t Tree, folder: &str, inner: &BTreeSet<&str>) -> Vec<&'t str> {
    let below = tree.below(folder).iter().map(String::as_str);
    let own = below.filter(|path| path.ends_with(".rs")).filter(|path| {
        let rest = path
            .strip_prefix(folder)
            .unwrap_or(path)
            .trim_start_matches('/');
        let mut above = folder_of(path);
        while above.len() > folder.len() && !inner.contains(above) {
            above = folder_of(above);
        }
        let of_another = above.len() > folder.len();
        !of_another && (rest.starts_with("src/") || rest.starts_with("tests/"))
    });
    let mut own: Vec<&str> = own.collect();
    own.sort_by_key(|path| path.matches('/').count());
    own
}

/// Reads one file, line by line.
struct Reader<'a> {
    on: &'a BTreeSet<&'a str>,
    /// Features that the whole file wants.
    whole: BTreeSet<String>,
    /// Features that the attributes before the next item want.
    group: BTreeSet<String>,
    doctests: bool,
    /// Inside a block of documentation that is no test, or is one already counted.
    in_block: bool,
    /// Modules in files of their own that want features.
    modules: Vec<(String, BTreeSet<String>)>,
    tested: &'a mut Tested,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///").or(line.strip_prefix("//!")) {
            return self.documentation(text.trim());
        }
        self.in_block = false;
        if line.is_empty() || line.starts_with("//") {
            return;
        }
        if let Some(attribute) = line.strip_prefix("#![") {
            if attribute.starts_with("cfg(") {
                self.whole.extend(wanted(attribute));
            }
            // `#![doc = include_str!("../README.md")]`
            if self.doctests && attribute.starts_with("doc") && attribute.contains("include_str") {
                self.count();
            }
            return;
        }
        if let Some(attribute) = line.strip_prefix("#[") {
            if attribute.starts_with("cfg(") {
                self.group.extend(wanted(attribute));
            }
            if is_test(attribute) {
                self.count();
            }
            return;
        }
        if line.contains("proptest! {") || line.contains("quickcheck! {") {
            self.count();
        }
        let module = line.strip_prefix("pub ").unwrap_or(line);
        let module = module.strip_prefix("pub(crate) ").unwrap_or(module);
        if let Some(name) = module.strip_prefix("mod ")
            && !self.group.is_empty()
        {
            match name.strip_suffix(';') {
                Some(name) => self
                    .modules
                    .push((name.trim().to_owned(), self.group.clone())),
                // `#[cfg(all(test, feature = "x"))] mod tests {`: what follows is in it.
                None => self.whole.extend(self.group.iter().cloned()),
            }
        }
        self.group.clear();
    }

    fn documentation(&mut self, text: &str) {
        let Some(info) = text.strip_prefix("```") else {
            return;
        };
        self.in_block = !self.in_block;
        let words = info
            .split([',', ' '])
            .map(str::trim)
            .filter(|it| !it.is_empty());
        let rust = ["rust", "no_run", "should_panic", "compile_fail"];
        let is_rust = |it: &str| rust.contains(&it) || it.starts_with("edition");
        let mut words = words.map(is_rust);
        if self.doctests && self.in_block && words.all(|it| it) {
            self.count();
        }
    }

    fn count(&mut self) {
        let wanted = self.whole.iter().chain(&self.group);
        let off: Vec<&String> = wanted.filter(|it| !self.on.contains(it.as_str())).collect();
        match off.is_empty() {
            true => self.tested.by_default += 1,
            false => {
                self.tested.behind += 1;
                self.tested.features.extend(off.into_iter().cloned());
            }
        }
    }
}

/// `test]`, `tokio::test(…)]`, `rstest]`, `test_case(…)]`, but not `cfg(test)]`.
fn is_test(attribute: &str) -> bool {
    let end = attribute.find(['(', ']', '=', ' ']);
    let path = &attribute[..end.unwrap_or(attribute.len())];
    let name = path.rsplit("::").next().unwrap_or(path);
    !path.starts_with("cfg") && (name.contains("test") || name == "quickcheck")
}

/// Features that must be on for `cfg(…)` to hold. Of `any` and `not` nothing is known.
fn wanted(attribute: &str) -> BTreeSet<String> {
    if attribute.contains("any(") || attribute.contains("not(") {
        return BTreeSet::new();
    }
    let parts = attribute.split("feature").skip(1);
    let names = parts.filter_map(|it| {
        let rest = it.trim_start().strip_prefix('=')?;
        rest.split('"').nth(1)
    });
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(manifest: &str, files: &[(&str, &str)]) -> Tested {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        let tree = Tree::of(files);
        let features = Features::read(&manifest.parse().expect("a manifest"));
        Tested::look(
            &tree,
            "",
            &features,
            &BTreeSet::from(["fuzz"]),
            &Cell::new(0),
        )
    }

    #[test]
    fn tests_are_seen_in_whatever_words_they_are_written() {
        for text in [
            "#[test]\nfn a() {}",
            "mod tests {\n    #[tokio::test(flavor = \"x\")]\n    async fn a() {}\n}",
            "#[rstest]\nfn a() {}",
            "#[test_case(1)]\nfn a() {}",
            "proptest! {",
            "/// ```\n/// assert!(true);\n/// ```\npub fn a() {}",
            "//! ```rust,no_run\n//! a();\n//! ```",
            "#![doc = include_str!(\"../README.md\")]",
        ] {
            assert_eq!(look("", &[("src/lib.rs", text)]).by_default, 1, "{text}");
        }
        for text in [
            "#[cfg(test)]\nmod tests;",
            "/// ```text\n/// a\n/// ```",
            "/// ```ignore\n/// a\n/// ```",
            "fn main() {}",
            "// #[test]",
            "#[derive(Debug)]\nstruct Testing;",
        ] {
            assert!(!look("", &[("src/lib.rs", text)]).any(), "{text}");
        }
        let elsewhere = [("examples/a.rs", "#[test]"), ("fuzz/src/a.rs", "#[test]")];
        assert!(!look("", &elsewhere).any());
    }

    #[test]
    fn tests_behind_features_are_told_from_those_that_run() {
        let manifest = "[features]\ndefault = [\"std\"]\nstd = [\"alloc\"]\nalloc = []\nx = []\n";
        let files = [
            (
                "src/lib.rs",
                "#[cfg(feature = \"x\")]\npub mod extra;\n#[test]\nfn a() {}",
            ),
            ("src/extra/mod.rs", "mod deep;\n"),
            ("src/extra/deep.rs", "#[test]\nfn b() {}"),
            (
                "tests/on.rs",
                "#![cfg(feature = \"alloc\")]\n#[test]\nfn c() {}",
            ),
            (
                "tests/off.rs",
                "#![cfg(feature = \"x\")]\n#[test]\nfn d() {}\n#[test]\nfn e() {}",
            ),
        ];
        let seen = look(manifest, &files);
        assert_eq!((seen.by_default, seen.behind), (2, 3));
        assert!(seen.mostly_behind());
        assert_eq!(seen.features, BTreeSet::from(["x".to_owned()]));
        let required = "[features]\nx = []\n[[test]]\nname = \"off\"\nrequired-features = [\"x\"]";
        let seen = look(required, &[("tests/off.rs", "#[test]\nfn a() {}")]);
        assert_eq!((seen.by_default, seen.behind), (0, 1));
        let one = "#[cfg(feature = \"x\")]\n#[test]\nfn a() {}\n#[test]\nfn b() {}\n\
                   #[cfg(all(test, feature = \"x\"))]\nmod tests {\n    #[test]\n    fn c() {}\n}";
        let seen = look("[features]\nx = []", &[("src/lib.rs", one)]);
        assert_eq!((seen.by_default, seen.behind), (1, 2));
    }
}
