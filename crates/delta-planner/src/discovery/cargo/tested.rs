//! Whether a crate has tests, which of them its default features compile out, and which are in
//! doubt. Told by the text of its sources, from the roots of its targets through their modules,
//! within bounds. What cannot be told is never "no tests": it is said to be unsure.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::manifest::{Table, strings, sub};
use super::cfg::Wanted;
use super::source::{Source, is_rust};
use super::targets::{Root, Targets};
use crate::tree::{Tree, folder_of, join, resolve};

/// Files of one crate that are read: tests are in the first few of a crate that has any.
const MAX_FILES: usize = 400;

/// Files of all crates that are read.
const MAX_ALL_FILES: usize = 10_000;

/// Features that a stable compiler, or a machine without more, does not build.
const RISKY: [&str; 5] = ["nightly", "unstable", "simd", "experimental", "cuda"];

/// What a manifest says about features and targets.
#[derive(Default)]
pub struct Features {
    /// What each brings with it.
    all: BTreeMap<String, Vec<String>>,
    targets: Targets,
    /// Its documentation is built with all features: they go together.
    pub go_together: bool,
}

impl Features {
    pub fn read(table: &Table) -> Features {
        let mut features = Features {
            targets: Targets::read(table),
            ..Features::default()
        };
        for name in sub(table, "features").into_iter().flat_map(Table::keys) {
            let brings = sub(table, "features").map_or(Vec::new(), |it| strings(it, name));
            features.all.insert(name.clone(), brings);
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tested {
    /// Tests that run with default features, for sure.
    pub by_default: usize,
    /// Tests that they compile out, and by which features they would be there.
    pub behind: usize,
    pub features: BTreeSet<String>,
    /// There is something that could be a test, or not everything was read.
    pub unsure: bool,
    /// It has a library whose documentation is run.
    pub doctested: bool,
}

impl Tested {
    pub fn any(&self) -> bool {
        self.by_default > 0 || self.behind > 0 || self.unsure
    }

    /// Most of its tests would not be compiled.
    pub fn mostly_behind(&self) -> bool {
        self.behind > self.by_default
    }

    pub fn add(&mut self, other: &Tested) {
        self.by_default += other.by_default;
        self.behind += other.behind;
        self.features.extend(other.features.iter().cloned());
        self.unsure |= other.unsure;
        self.doctested |= other.doctested;
    }

    /// Looks at the crate in `folder`; `inner` are crates below it. `read` counts files of all.
    pub fn look(
        tree: &Tree,
        folder: &str,
        features: &Features,
        inner: &BTreeSet<&str>,
        read: &Cell<usize>,
    ) -> Tested {
        let mut walk = Walk {
            tree,
            on: features.by_default(),
            read,
            own: 0,
            seen: BTreeSet::new(),
            open: VecDeque::new(),
            tested: Tested::default(),
        };
        for root in features.targets.roots(tree, folder) {
            walk.root(&root);
        }
        // A file that no module names could still be one, by a macro or an attribute.
        if walk.tested.by_default == 0 {
            for path in sources(tree, folder, inner) {
                walk.stray(path);
            }
        }
        walk.tested
    }
}

/// A file that is still to be read.
struct File {
    path: String,
    wanted: Wanted,
    /// Where its modules are.
    modules: String,
    unit: bool,
    doctests: bool,
}

/// The way through a crate's files.
struct Walk<'a> {
    tree: &'a Tree,
    on: BTreeSet<&'a str>,
    /// Files of all crates that were read.
    read: &'a Cell<usize>,
    own: usize,
    seen: BTreeSet<String>,
    open: VecDeque<File>,
    tested: Tested,
}

impl Walk<'_> {
    /// Reads a target, with its modules.
    fn root(&mut self, root: &Root) {
        self.tested.doctested |= root.doctests;
        let before = (self.tested.by_default, self.tested.behind);
        match &root.path {
            // It is said to be there; what is in it is not known.
            None => self.tested.unsure = true,
            Some(path) => self.open.push_back(File {
                path: path.clone(),
                wanted: Wanted::features(&root.required),
                modules: folder_of(path).to_owned(),
                unit: root.unit,
                doctests: root.doctests,
            }),
        }
        while let Some(file) = self.open.pop_front() {
            self.file(&file);
        }
        let seen = before != (self.tested.by_default, self.tested.behind);
        self.tested.unsure |= root.is_test && !seen;
    }

    fn text(&mut self, path: &str) -> Option<String> {
        if !self.seen.insert(path.to_owned()) {
            return None;
        }
        self.own += 1;
        self.read.set(self.read.get() + 1);
        let text = if self.own > MAX_FILES || self.read.get() > MAX_ALL_FILES {
            None
        } else {
            self.tree.text(path).ok()
        };
        self.tested.unsure |= text.is_none();
        text
    }

    fn file(&mut self, file: &File) {
        let Some(text) = self.text(&file.path) else {
            return;
        };
        let source = Source::read(&text, file.wanted.clone(), &self.on);
        for test in &source.tests {
            match test.documentation {
                true if file.doctests => self.count(&test.wanted),
                true => {}
                // Written, and not run by Cargo: somebody else may.
                false if !file.unit => self.tested.unsure = true,
                false => self.count(&test.wanted),
            }
        }
        for (path, wanted) in source.documents.iter().filter(|_| file.doctests) {
            let path = path
                .as_ref()
                .and_then(|it| resolve(folder_of(&file.path), it));
            let text = path.and_then(|it| self.tree.text(&it).ok());
            match text.map(|it| examples(&it)) {
                None => self.tested.unsure = true,
                Some(0) => {}
                Some(_) => self.count(wanted),
            }
        }
        for module in source.modules {
            let (path, modules) = match &module.path {
                Some(path) => {
                    let path = resolve(folder_of(&file.path), path);
                    let folder = path
                        .as_deref()
                        .map(folder_of)
                        .unwrap_or_default()
                        .to_owned();
                    (path, folder)
                }
                None => {
                    let folder = join(&file.modules, &module.name);
                    let own = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
                    (own.into_iter().find(|it| self.tree.has(it)), folder)
                }
            };
            match path.filter(|it| self.tree.has(it)) {
                // Generated, or in a block of another module.
                None => self.tested.unsure |= module.path.is_some(),
                Some(path) => self.open.push_back(File {
                    path,
                    wanted: module.wanted,
                    modules,
                    unit: file.unit,
                    doctests: file.doctests,
                }),
            }
        }
    }

    fn count(&mut self, wanted: &Wanted) {
        if wanted.doubt {
            self.tested.unsure = true;
            return;
        }
        let off = wanted
            .features
            .iter()
            .filter(|it| !self.on.contains(it.as_str()));
        let off: Vec<String> = off.cloned().collect();
        if off.is_empty() {
            self.tested.by_default += 1
        } else {
            self.tested.behind += 1;
            self.tested.features.extend(off);
        }
    }

    /// A file that is of no target, as far as can be seen.
    fn stray(&mut self, path: &str) {
        if let Some(text) = self.text(path) {
            let source = Source::read(&text, Wanted::default(), &self.on);
            self.tested.unsure |= source.tests.iter().any(|it| !it.documentation);
        }
    }
}

/// Examples in a document that is run as documentation.
fn examples(text: &str) -> usize {
    let mut open = false;
    let fences = text
        .lines()
        .map(str::trim)
        .filter_map(|it| it.strip_prefix("```"));
    let begins = fences.filter(|info| {
        open = !open;
        open && is_rust(info)
    });
    begins.count()
}

/// The crate's sources and tests.
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
    own.collect()
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

    /// A manifest, files, and what there is.
    type Case<'t> = (&'t str, &'t [(&'t str, &'t str)], &'t str);

    /// In a word: tests for sure, behind features, perhaps, or none.
    fn said(manifest: &str, files: &[(&str, &str)]) -> &'static str {
        let it = look(manifest, files);
        match (it.by_default, it.behind, it.unsure) {
            (1.., _, _) => "sure",
            (0, 1.., _) => "behind",
            (0, 0, true) => "perhaps",
            (0, 0, false) => "none",
        }
    }

    #[test]
    fn tests_are_seen_in_whatever_words_they_are_written() {
        for text in [
            "#[test]\nfn a() {}",
            "mod tests {\n    #[tokio::test(flavor = \"x\")]\n    async fn a() {}\n}",
            "#[sqlx::test]\nasync fn a() {}",
            "#[rstest]\nfn a() {}",
            "#[test_case(1)]\nfn a() {}",
            "#[test_case(\n    1,\n    \"]\"\n)]\nfn a() {}",
            "#[cfg(test)] #[test] fn a() {}",
            "proptest! {}",
            "proptest::proptest!{}",
            "quickcheck! {\n}",
            "/// ```\n/// assert!(true);\n/// ```\npub fn a() {}",
            "//! ```rust,no_run\n//! a();\n//! ```",
            "#[cfg(not(windows))]\n#[test]\nfn a() {}",
        ] {
            assert_eq!(look("", &[("src/lib.rs", text)]).by_default, 1, "{text}");
        }
        for text in [
            "#[cfg(test)]\nmod tests;",
            "/// ```text\n/// a\n/// ```",
            "/// ```ignore\n/// a\n/// ```",
            "fn main() {}",
            "// #[test]",
            "/*\n#[test]\nfn a() {}\n*/",
            "const A: &str = r#\"\n#[test]\nfn a() {}\n\"#;",
            "#[derive(Debug)]\nstruct Testing;",
            "#[cfg_attr(test, derive(Debug))]\nstruct A;",
            "println!(\"a\");",
        ] {
            assert_eq!(said("", &[("src/lib.rs", text)]), "none", "{text}");
        }
        let elsewhere = [("examples/a.rs", "#[test]"), ("fuzz/src/a.rs", "#[test]")];
        assert!(!look("", &elsewhere).any());
    }

    /// A test for sure is one that runs on every machine; where something could be one, there is
    /// never "none".
    #[test]
    fn what_cannot_be_told_is_unsure() {
        for text in [
            "#[cfg(windows)]\n#[test]\nfn a() {}",
            "#[test]\n#[cfg(windows)]\nfn a() {}",
            "#![cfg(target_os = \"macos\")]\n#[test]\nfn a() {}",
            "#[cfg(windows)]\nmod tests {\n    #[test]\n    fn a() {}\n}",
            "#[wasm_bindgen_test]\nfn a() {}",
            "#[cfg_attr(not(wasm), tokio::test)]\nasync fn a() {}",
            "macro_rules! make {\n    () => {\n        #[test]\n        fn a() {}\n    };\n}",
            "macro_rules! make { ($a:ident) => { #[test] fn $a() {} } }",
            "make_tests!(a, b);",
            "include!(concat!(env!(\"OUT_DIR\"), \"/tests.rs\"));",
            "#[cfg_attr(x, path = \"y.rs\")]\n#[path = \"z.rs\"]\nmod a;",
            "/// An example:\n///\n///     assert!(true);\npub fn a() {}",
            "/**\n * ```\n * a();\n * ```\n */\npub fn a() {}",
            "#![doc = include_str!(concat!(\"a\", \"b\"))]",
        ] {
            assert_eq!(said("", &[("src/lib.rs", text)]), "perhaps", "{text}");
        }
    }

    /// What only looks like the beginning of a text hides no test.
    #[test]
    fn text_ends_where_it_ends() {
        const TESTS: &str = "\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}\n";
        for text in [
            "fn a(b: &str) -> &str { b.strip_prefix(\"r#\").unwrap_or(b) }",
            "fn a() {} // opened by r#\"",
            "fn a() {} // opened by /* or \"",
            "const A: char = '\"';",
            "const A: char = '\\'';\nconst B: u8 = b'\"';",
            "fn a<'a>(b: &'a str, c: &'a [u8; 2]) {}",
            "const A: &str = \"a \\\" /* {\";",
            "const A: &str = r##\"a \"# {\"##;",
            "/* /* */ { */",
            "const A: &str = \"{\"; /* { */",
            "#[doc = \"]\"] // ]\nfn r#mod() {}",
            "#!/usr/bin/env run {\n",
        ] {
            let whole = format!("{text}{TESTS}");
            assert_eq!(said("", &[("src/lib.rs", &whole)]), "sure", "{text}");
        }
        for end in [
            "\"",
            "r##\"\"#",
            "/* /* */",
            "fn a() {",
            "}",
            "#[doc(",
            "const A: [(];",
        ] {
            let whole = format!("{TESTS}{end}");
            assert_eq!(said("", &[("src/lib.rs", &whole)]), "perhaps", "{end}");
            assert_eq!(said("", &[("src/lib.rs", end)]), "perhaps", "{end}");
        }
    }

    /// What a file wants is kept per test and per bracket: both are bounded.
    #[test]
    fn a_file_without_measure_is_in_doubt() {
        let deep = "mod a { ".repeat(20_000) + "#[test] fn a() {}" + &"}".repeat(20_000);
        let names: Vec<String> = (0..5_000)
            .map(|it| format!("feature = \"f{it}\""))
            .collect();
        let tests = "#[test]\nfn a() {}\n".repeat(5_000);
        let wide = format!("#![cfg(all({}))]\n{tests}", names.join(", "));
        for text in [deep, wide] {
            assert_eq!(said("", &[("src/lib.rs", &text)]), "perhaps");
        }
    }

    /// The condition of a module is that of what is in it, and of nothing behind it.
    #[test]
    fn a_condition_ends_with_its_module() {
        let text = "#[cfg(feature = \"nightly\")]\nmod ser {\n    fn a() { '{'; \"{\"; }\n}\n\
                    #[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}\n";
        let seen = look("[features]\nnightly = []", &[("src/lib.rs", text)]);
        assert_eq!((seen.by_default, seen.behind), (1, 0));
        let inner = "mod a {\n    #![cfg(feature = \"x\")]\n    mod b {\n        #[test]\n        \
                     fn c() {}\n    }\n}\n#[test]\nfn d() {}\n";
        let seen = look("[features]\nx = []", &[("src/lib.rs", inner)]);
        assert_eq!((seen.by_default, seen.behind), (1, 1));
    }

    /// An example is compiled as the item is that it documents, and never with `cfg(test)`.
    #[test]
    fn examples_are_under_the_conditions_of_their_items() {
        const EXAMPLE: &str = "/// ```\n/// a();\n/// ```\n";
        for (before, item, wanted) in [
            ("", "#[cfg(feature = \"x\")]\npub fn a() {}", "behind"),
            ("#[cfg(feature = \"x\")]\n", "pub fn a() {}", "behind"),
            ("", "#[cfg(windows)]\npub fn a() {}", "perhaps"),
            ("", "#[cfg(test)]\nfn a() {}", "perhaps"),
            ("#[cfg(test)]\nmod tests {\n", "fn a() {}\n}", "perhaps"),
            ("make! {\n", "fn a() {}\n}", "perhaps"),
            ("impl A {\n", "pub fn a<A, B>() {}\n}", "sure"),
            ("pub enum A {\n    B,\n", "C { a: u8 },\n}", "sure"),
            (
                "pub struct A {\n",
                "#[cfg(feature = \"x\")]\na: u8,\n}",
                "behind",
            ),
        ] {
            let text = format!("{before}{EXAMPLE}{item}");
            let manifest = "[features]\nx = []";
            assert_eq!(said(manifest, &[("src/lib.rs", &text)]), wanted, "{text}");
        }
        let inner = "//! ```\n//! a();\n//! ```\n#![cfg(feature = \"x\")]\npub fn a() {}";
        let seen = said("[features]\nx = []", &[("src/lib.rs", inner)]);
        assert_eq!(seen, "behind");
    }

    /// What a macro is given or makes, and what is not run by default, is no test for sure; what
    /// is in a text is none at all.
    #[test]
    fn what_a_macro_is_given_is_in_doubt() {
        for (text, wanted) in [
            (
                "fn a() {\n    quote! {\n        #[test]\n        fn b() {}\n    }\n}",
                "perhaps",
            ),
            ("quote! { #(#a)* #[test] fn #name() {} }", "perhaps"),
            ("my_suite! { a, b }", "perhaps"),
            ("fn a() {}\ninstantiate!(a);", "perhaps"),
            (
                "#[cfg(test)]\nmod tests {\n    other::make!(a);\n}",
                "perhaps",
            ),
            ("macro_rules! a { () => { other! {} } }\na!();", "perhaps"),
            (
                "cfg_if! { if #[cfg(a)] { #[test] fn a() {} } else {} }",
                "perhaps",
            ),
            ("macro_rules! a { () => { struct A; } }\na!();", "none"),
            (
                "thread_local! { static A: u8 = 1; }\nlazy_static! { static ref B: u8 = 1; }",
                "none",
            ),
            ("fn main() { run!(a); let b = !c; if a != b {} }", "none"),
            ("const A: &str = \"\n#[test]\nfn a() {}\n\";", "none"),
            (
                "const A: &str = r##\"\n\"#\n#[test]\nfn a() {}\n\"##;",
                "none",
            ),
            ("fn a() {} /*\n#[test]\nfn b() {}\n*/", "none"),
            ("/* /* */\n#[test]\nfn b() {}\n*/", "none"),
            // It does not run by itself, and a plan that counts it would always be red.
            ("#[test]\n#[ignore]\nfn a() {}", "perhaps"),
            ("#[ignore = \"slow\"]\n#[test]\nfn a() {}", "perhaps"),
            ("#[test]\n#[ignore]\nfn a() {}\n#[test]\nfn b() {}", "sure"),
            (
                "proptest! {\n    #[test]\n    fn a(b in 0..1) {}\n}",
                "sure",
            ),
        ] {
            assert_eq!(said("", &[("src/lib.rs", text)]), wanted, "{text}");
        }
    }

    /// Trees of a crate, and what there is in each.
    #[test]
    fn tests_are_looked_for_where_cargo_would() {
        const TEST: &str = "#[test]\nfn a() {}\n";
        const DOC: &str = "/// ```\n/// a();\n/// ```\npub fn a() {}\n";
        let cases: &[Case] = &[
            ("[lib]\npath = \"lib.rs\"", &[("lib.rs", TEST)], "sure"),
            (
                "[[bin]]\nname = \"x\"\npath = \"x/go.rs\"",
                &[("x/go.rs", TEST)],
                "sure",
            ),
            (
                "[[test]]\nname = \"x\"\npath = \"checks/x.rs\"",
                &[("checks/x.rs", TEST)],
                "sure",
            ),
            ("[[test]]\nname = \"x\"\npath = \"../x.rs\"", &[], "perhaps"),
            (
                "[[example]]\nname = \"x\"\ntest = true",
                &[("examples/x.rs", TEST)],
                "sure",
            ),
            (
                "[[example]]\nname = \"x\"",
                &[("examples/x.rs", TEST)],
                "none",
            ),
            (
                "[[bench]]\nname = \"x\"\ntest = true",
                &[("benches/x.rs", TEST)],
                "sure",
            ),
            (
                "",
                &[
                    ("src/lib.rs", "#[path = \"../more/a.rs\"]\nmod a;\n"),
                    ("more/a.rs", TEST),
                ],
                "sure",
            ),
            (
                "",
                &[("src/lib.rs", "mod a;\n"), ("src/a/mod.rs", TEST)],
                "sure",
            ),
            (
                "",
                &[
                    ("tests/it.rs", "mod more;\n"),
                    ("tests/more.rs", "mod b;"),
                    ("tests/more/b.rs", TEST),
                ],
                "sure",
            ),
            ("", &[("src/lib.rs", ""), ("src/left.rs", TEST)], "perhaps"),
            ("", &[("tests/it.rs", "all!();\n")], "perhaps"),
            ("[lib]\ntest = false", &[("src/lib.rs", TEST)], "perhaps"),
            ("[lib]\ntest = false", &[("src/lib.rs", DOC)], "sure"),
            ("[lib]\ndoctest = false", &[("src/lib.rs", DOC)], "none"),
            (
                "[lib]\ncrate-type = [\"cdylib\"]",
                &[("src/lib.rs", DOC)],
                "none",
            ),
            ("", &[("src/main.rs", DOC)], "none"),
            (
                "[[test]]\nname = \"x\"\nharness = false",
                &[("tests/x.rs", "fn main() {}")],
                "perhaps",
            ),
            (
                "",
                &[
                    ("src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n"),
                    ("README.md", "# A\n\n```rust\na();\n```\n"),
                ],
                "sure",
            ),
            (
                "",
                &[
                    ("src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n"),
                    ("README.md", "# A\n\n```toml\na = 1\n```\n"),
                ],
                "none",
            ),
            (
                "",
                &[
                    ("src/lib.rs", ""),
                    ("tests/a.rs", "#![cfg(windows)]\n#[test]\nfn a() {}\n"),
                ],
                "perhaps",
            ),
            (
                "",
                &[
                    ("src/lib.rs", "#[cfg(windows)]\nmod a;\n"),
                    ("src/a.rs", TEST),
                ],
                "perhaps",
            ),
        ];
        for (manifest, files, wanted) in cases {
            assert_eq!(said(manifest, files), *wanted, "{manifest} {files:?}");
        }
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
