//! Checks that a package has and no job runs: scripts beside `lint`, `build` and `test` that none
//! of these starts, and linters that are set up and that no script which runs calls. They are
//! named, so that nobody takes a plan for all that the project has.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::checks::{is_check, listed};
use super::super::found::{Found, Remark};
use super::super::ignored;
use super::Manifest;
use super::scripts;
use crate::tree::{Tree, join};

/// Linters, and the files that set them up.
const LINTERS: [(&str, &[&str]); 5] = [
    ("biome", &["biome.json", "biome.jsonc"]),
    (
        "eslint",
        &[
            "eslint.config.js",
            "eslint.config.mjs",
            "eslint.config.cjs",
            "eslint.config.ts",
            ".eslintrc",
            ".eslintrc.js",
            ".eslintrc.cjs",
            ".eslintrc.json",
            ".eslintrc.yml",
            ".eslintrc.yaml",
        ],
    ),
    ("knip", &["knip.json", "knip.jsonc", "knip.ts", "knip.js"]),
    ("oxlint", &[".oxlintrc.json"]),
    (
        "stylelint",
        &[".stylelintrc", ".stylelintrc.json", "stylelint.config.js"],
    ),
];

/// Scripts of one package that are looked at; generated ones have thousands.
const MAX_SCRIPTS: usize = 1_000;

/// Names what packages have and no job runs.
pub fn name_them(tree: &Tree, all: &BTreeMap<String, Manifest>, found: &mut Found) {
    // Which scripts of the packages below such a root are run is for its tool to say.
    let over = all.iter().filter(|(_, it)| goes_over_packages(it));
    let over: Vec<&str> = over.map(|(folder, _)| folder.as_str()).collect();
    for (folder, manifest) in all {
        let below = over.iter().any(|it| folder != it && is_below(folder, it));
        if below || ignored(folder).is_some() || manifest.broken.is_some() {
            continue;
        }
        let path = join(folder, "package.json");
        name_idle_test(&path, manifest, found);
        let run = run(&manifest.scripts);
        let unrun = unrun(&manifest.scripts, &run);
        if let Some((names, several)) = listed(&unrun) {
            let (scripts, are) = if several {
                ("scripts", "are")
            } else {
                ("script", "is")
            };
            let why = "lint, build and test, and what these start, are";
            found.remark_part(&path, format!("its {scripts} {names} {are} not run: {why}"));
        }
        for (tool, files) in LINTERS {
            let set_up = files.iter().find(|it| tree.has(&join(folder, it)));
            let called = |name: &&str| {
                let text = manifest.scripts.get(*name).map_or("", String::as_str);
                text.split(|c: char| !(c.is_alphanumeric() || c == '-'))
                    .any(|it| it == tool)
            };
            if let Some(file) = set_up.filter(|_| !run.iter().any(called)) {
                let why = format!("sets up {tool}, and no script that is run calls it");
                found.remark(join(folder, file), why);
            }
        }
    }
}

/// Says of a script `test` that tests nothing why there is no job for it.
fn name_idle_test(path: &str, manifest: &Manifest, found: &mut Found) {
    let script = manifest.scripts.get("test");
    let Some(script) = script.filter(|_| scripts::test(&manifest.scripts).is_none()) else {
        return;
    };
    let known = |it: &Remark| it.what == path && it.reason.starts_with("its script test ");
    if found.remarks.iter().any(known) {
        return;
    }
    let why = if script.contains("no test specified") {
        "its script test is the placeholder of npm: there is no job test"
    } else {
        "its script test runs nothing that tests: there is no job test"
    };
    found.remark_part(path, why);
}

fn goes_over_packages(manifest: &Manifest) -> bool {
    let mut names = ["lint", "build", "test"].into_iter();
    names.any(|it| scripts::is_by_task_runner(&scripts::followed(&manifest.scripts, it)))
}

fn is_below(folder: &str, above: &str) -> bool {
    let rest = folder.strip_prefix(above);
    above.is_empty() || rest.is_some_and(|it| it.starts_with('/'))
}

/// The names that are looked at, in order.
fn looked_at(scripts: &HashMap<String, String>) -> BTreeSet<&str> {
    let names: BTreeSet<&str> = scripts.keys().map(String::as_str).collect();
    names.into_iter().take(MAX_SCRIPTS).collect()
}

/// The scripts that jobs run, with those that these start.
fn run(scripts: &HashMap<String, String>) -> BTreeSet<&str> {
    let names = looked_at(scripts);
    let begun = ["build", "test"].into_iter().chain(scripts::lints(scripts));
    let mut open: Vec<&str> = begun.filter(|it| scripts.contains_key(*it)).collect();
    let mut run: BTreeSet<&str> = open.iter().copied().collect();
    // Beginnings of names that were looked up.
    let mut starts: BTreeSet<&str> = BTreeSet::new();
    while let Some(name) = open.pop() {
        let hooks = ["pre", "post"].map(|it| format!("{it}{name}"));
        let hooks = hooks.iter().filter_map(|it| names.get(it.as_str()));
        let mut found: Vec<&str> = hooks.copied().collect();
        for word in scripts[name].split([' ', '"', '\'', '&', ';', '|']) {
            match word.strip_suffix('*') {
                Some("") => {}
                Some(start) if starts.insert(start) => {
                    let like = names.range(start..);
                    found.extend(like.take_while(|it| it.starts_with(start)));
                }
                Some(_) => {}
                None => found.extend(names.get(word)),
            }
        }
        open.extend(found.into_iter().filter(|it| run.insert(it)));
    }
    run
}

/// Scripts that check something, by their names, and are not run.
fn unrun<'s>(scripts: &'s HashMap<String, String>, run: &BTreeSet<&str>) -> Vec<&'s str> {
    let names = looked_at(scripts).into_iter().filter(|it| is_check(it));
    names.filter(|it| !run.contains(it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::found::Ecosystem;

    /// Whether the package has other jobs or none.
    #[test]
    fn a_script_test_that_tests_nothing_is_named_once() {
        for (test, more, wanted) in [
            ("echo ok", "", "its script test tests nothing"),
            ("echo ok", "tsc", "its script test runs nothing that tests"),
            (
                "echo \"Error: no test specified\" && exit 1",
                "",
                "its script test is the placeholder",
            ),
            (
                "echo \"Error: no test specified\" && exit 1",
                "tsc",
                "its script test is the placeholder",
            ),
            ("jest", "tsc", ""),
        ] {
            let mut scripts = serde_json::json!({"test": test});
            if !more.is_empty() {
                scripts["build"] = more.into();
            }
            let text = serde_json::json!({"scripts": scripts}).to_string();
            let tree = Tree::of([("package.json".to_owned(), text)]);
            let mut found = Found::default();
            super::super::Node.find(&tree, &mut found);
            let jobs = found.projects.iter().flat_map(|it| &it.packages);
            let mut jobs = jobs.flat_map(|it| &it.jobs);
            assert_eq!(
                jobs.any(|it| it.kind == "test"),
                wanted.is_empty(),
                "{test}"
            );
            let said: Vec<&str> = found.remarks.iter().map(|it| it.reason.as_str()).collect();
            match wanted {
                "" => assert!(said.is_empty(), "{said:?}"),
                wanted => {
                    assert_eq!(said.len(), 1, "{test} {more}: {said:?}");
                    assert!(said[0].starts_with(wanted), "{said:?}");
                }
            }
        }
    }

    /// Of thousands of scripts the first ones are looked at, and the others are not named either.
    #[test]
    fn so_many_scripts_are_looked_at() {
        let many = |mark: &'static str| {
            (0..6_000).map(move |at| (format!("a:{mark}{at}"), "a*".to_owned()))
        };
        for (mark, test, most) in [("", "jest a*", MAX_SCRIPTS + 1), ("test:", "jest", 1)] {
            let mut scripts: HashMap<String, String> = many(mark).collect();
            scripts.insert("test".to_owned(), test.to_owned());
            let run = run(&scripts);
            assert!(run.len() <= most, "{}", run.len());
            assert!(unrun(&scripts, &run).len() <= MAX_SCRIPTS);
        }
    }

    #[test]
    fn what_is_not_run_is_told_from_what_is() {
        let scripts: HashMap<String, String> = [
            ("test", "npm run test:unit && run-s check:*"),
            ("test:unit", "vitest"),
            ("check:a", "x"),
            ("pretest", "npm run verify"),
            ("verify", "x"),
            ("lint", "eslint ."),
            ("lint:fix", "eslint --fix ."),
            ("test:watch", "vitest"),
            ("test:e2e", "playwright test"),
            ("knip", "knip"),
            ("start", "x"),
            ("latest", "x"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
        assert_eq!(unrun(&scripts, &run(&scripts)), ["knip", "test:e2e"]);
    }
}
