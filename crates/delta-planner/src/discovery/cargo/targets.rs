//! What Cargo builds of a crate and runs its tests in: the library, programs, tests, and examples
//! and benches that say so. Read off the manifest and by Cargo's own names of files.

use std::collections::BTreeSet;

use super::super::manifest::{Table, strings, sub, text};
use crate::tree::{Tree, folder_of, join, resolve};

/// The root of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// From the root of the repository. Not known where it lies outside of it or is not there.
    pub path: Option<String>,
    /// Its tests are run, with the harness that counts them.
    pub unit: bool,
    /// Its documentation is run.
    pub doctests: bool,
    /// It is there for its tests alone.
    pub is_test: bool,
    pub required: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Library,
    Program,
    Test,
    /// Examples and benches, which are tested only where they say so.
    Other(&'static str),
}

/// What a manifest says of one target.
#[derive(Debug)]
struct Declared {
    kind: Kind,
    name: String,
    path: Option<String>,
    test: Option<bool>,
    doctest: bool,
    harness: bool,
    required: Vec<String>,
}

/// What a manifest says of all of them.
#[derive(Debug, Default)]
pub struct Targets {
    declared: Vec<Declared>,
    package: String,
    autobins: bool,
    autotests: bool,
}

impl Targets {
    pub fn read(table: &Table) -> Targets {
        let package = sub(table, "package");
        let flag = |table: Option<&Table>, key: &str| {
            let value = table.and_then(|it| it.get(key));
            value.and_then(toml::Value::as_bool)
        };
        let mut targets = Targets {
            declared: Vec::new(),
            package: package
                .and_then(|it| text(it, "name"))
                .unwrap_or_default()
                .to_owned(),
            autobins: flag(package, "autobins") != Some(false),
            autotests: flag(package, "autotests") != Some(false),
        };
        let mut add = |kind: Kind, table: &Table| {
            targets.declared.push(Declared {
                kind,
                name: text(table, "name").unwrap_or_default().to_owned(),
                path: text(table, "path").map(str::to_owned),
                test: flag(Some(table), "test"),
                doctest: flag(Some(table), "doctest") != Some(false) && is_doctested(table),
                harness: flag(Some(table), "harness") != Some(false),
                required: strings(table, "required-features"),
            });
        };
        if let Some(library) = sub(table, "lib") {
            add(Kind::Library, library);
        }
        for (key, kind) in [
            ("bin", Kind::Program),
            ("test", Kind::Test),
            ("example", Kind::Other("examples")),
            ("bench", Kind::Other("benches")),
        ] {
            let all = table.get(key).and_then(|it| it.as_array());
            let all = all.into_iter().flatten().filter_map(|it| it.as_table());
            all.for_each(|it| add(kind, it));
        }
        targets
    }

    /// The roots of the crate in `folder`, the library first.
    pub fn roots(&self, tree: &Tree, folder: &str) -> Vec<Root> {
        let mut roots: Vec<Root> = Vec::new();
        for it in &self.declared {
            let path = self.path_of(it, tree, folder);
            let tested = it.test.unwrap_or(!matches!(it.kind, Kind::Other(_)));
            // Those are only built, as Cargo does it by itself.
            if matches!(it.kind, Kind::Other(_)) && !tested {
                continue;
            }
            roots.push(Root {
                path,
                unit: tested && it.harness,
                doctests: it.kind == Kind::Library && it.doctest,
                is_test: it.kind == Kind::Test && tested,
                required: it.required.clone(),
            });
        }
        let named: BTreeSet<String> = roots.iter().filter_map(|it| it.path.clone()).collect();
        for (path, kind) in self.found(tree, folder) {
            if !named.contains(&path) {
                roots.push(Root {
                    path: Some(path),
                    unit: true,
                    doctests: kind == Kind::Library,
                    is_test: kind == Kind::Test,
                    required: Vec::new(),
                });
            }
        }
        roots.sort_by_key(|it| !it.doctests);
        roots
    }

    fn path_of(&self, it: &Declared, tree: &Tree, folder: &str) -> Option<String> {
        let there = |path: String| tree.has(&path).then_some(path);
        if let Some(path) = &it.path {
            return resolve(folder, path).and_then(there);
        }
        let in_folder = |inner: &str| {
            let own = [
                format!("{inner}/{}.rs", it.name),
                format!("{inner}/{}/main.rs", it.name),
            ];
            own.iter().find_map(|path| there(join(folder, path)))
        };
        match it.kind {
            Kind::Library => there(join(folder, "src/lib.rs")),
            Kind::Program if it.name == self.package => {
                there(join(folder, "src/main.rs")).or_else(|| in_folder("src/bin"))
            }
            Kind::Program => in_folder("src/bin"),
            Kind::Test => in_folder("tests"),
            Kind::Other(inner) => in_folder(inner),
        }
    }

    /// Targets that Cargo finds by itself.
    fn found(&self, tree: &Tree, folder: &str) -> Vec<(String, Kind)> {
        let mut found = Vec::new();
        if !self.declared.iter().any(|it| it.kind == Kind::Library) {
            found.push((join(folder, "src/lib.rs"), Kind::Library));
        }
        if self.autobins {
            found.push((join(folder, "src/main.rs"), Kind::Program));
        }
        let places = [
            ("src/bin", Kind::Program, self.autobins),
            ("tests", Kind::Test, self.autotests),
        ];
        for (inner, kind, auto) in places {
            let inner = join(folder, inner);
            for path in tree.below(&inner).iter().filter(|_| auto) {
                let direct = folder_of(path) == inner && path.ends_with(".rs");
                let main = path.ends_with("/main.rs") && folder_of(folder_of(path)) == inner;
                if direct || main {
                    found.push((path.clone(), kind));
                }
            }
        }
        found.retain(|(path, _)| tree.has(path));
        found
    }
}

/// Whether documentation of a library of these kinds is ever run.
fn is_doctested(table: &Table) -> bool {
    let mut kinds = strings(table, "crate-type");
    kinds.extend(strings(table, "crate_type"));
    kinds.is_empty()
        || kinds
            .iter()
            .any(|it| matches!(it.as_str(), "lib" | "rlib" | "proc-macro"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(manifest: &str, paths: &[&str]) -> Vec<String> {
        let files = paths.iter().map(|it| ((*it).to_owned(), String::new()));
        let tree = Tree::of(files);
        let targets = Targets::read(&manifest.parse().expect("a manifest"));
        let shown = |it: &Root| {
            let path = it.path.clone().unwrap_or_else(|| "?".to_owned());
            let unit = if it.unit { "" } else { " -unit" };
            let documentation = if it.doctests { " +doc" } else { "" };
            format!("{path}{unit}{documentation}")
        };
        targets.roots(&tree, "").iter().map(shown).collect()
    }

    #[test]
    fn targets_are_those_of_cargo() {
        let usual = [
            "src/lib.rs",
            "src/main.rs",
            "src/a.rs",
            "src/bin/b.rs",
            "src/bin/c/main.rs",
            "src/bin/c/d.rs",
            "tests/e.rs",
            "tests/f/main.rs",
            "tests/f/g.rs",
            "examples/h.rs",
            "benches/i.rs",
        ];
        assert_eq!(
            roots("", &usual),
            [
                "src/lib.rs +doc",
                "src/main.rs",
                "src/bin/b.rs",
                "src/bin/c/main.rs",
                "tests/e.rs",
                "tests/f/main.rs"
            ]
        );
        let off = "[package]\nname = \"a\"\nautobins = false\nautotests = false\n\
                   [lib]\ntest = false\ndoctest = false\n[[test]]\nname = \"f\"\nharness = false\n\
                   [[example]]\nname = \"h\"\ntest = true\n[[bench]]\nname = \"i\"\n";
        assert_eq!(
            roots(off, &usual),
            ["src/lib.rs -unit", "tests/f/main.rs -unit", "examples/h.rs"]
        );
        let elsewhere = "[lib]\npath = \"lib/a.rs\"\ncrate-type = [\"cdylib\"]\n\
                         [[bin]]\nname = \"x\"\npath = \"x.rs\"\n[[test]]\nname = \"y\"\n";
        assert_eq!(
            roots(elsewhere, &["lib/a.rs", "x.rs"]),
            ["lib/a.rs", "x.rs", "?"]
        );
    }
}
