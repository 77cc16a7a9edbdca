//! The files of a project's tests, and who runs them: pytest where one of them is written for it,
//! else unittest, started in every folder in which it would find some.
//!
//! unittest goes down into packages only, and before Python 3.12 it takes no test at all for a
//! success. So it is started only where a file has tests of its kind; whatever else there is, or
//! cannot be read, is left to pytest, which runs both kinds and fails when there is nothing.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::super::ignored;
use super::super::shell::quoted;
use crate::tree::{Tree, file_name, folder_of};

/// Files of one project that are read: the first few tell how a project writes its tests.
const MAX_FILES: usize = 100;

/// Files of all projects that are read.
const MAX_ALL_FILES: usize = 5_000;

/// Folders of one project in which unittest is started. Beyond it nobody would list them.
const MAX_STARTS: usize = 20;

/// Tests of one project.
#[derive(Default)]
pub struct Tests<'t> {
    /// Paths from the root.
    pub files: Vec<&'t str>,
    /// Files that unittest takes by their names, and pytest does not: `tests.py`.
    others: Vec<&'t str>,
    pub conftest: bool,
}

/// Who runs tests.
#[derive(Debug, PartialEq, Eq)]
pub enum Runner {
    Pytest,
    /// By these commands, which begin with `python`.
    Unittest(Vec<String>),
}

/// How one file's tests are written.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Pytest,
    Unittest,
    /// It could have tests that stand elsewhere.
    Unsure,
    /// It has none that can be seen.
    Nothing,
}

/// Which projects have files of tests: each file counts for the nearest project above it.
pub fn of_projects<'t>(
    tree: &'t Tree,
    folders: &BTreeSet<&'t str>,
) -> BTreeMap<&'t str, Tests<'t>> {
    let mut tested: BTreeMap<&str, Tests<'_>> = BTreeMap::new();
    for path in tree.paths() {
        let name = file_name(path);
        let test =
            (name.starts_with("test_") && name.ends_with(".py")) || name.ends_with("_test.py");
        let other = !test && name.starts_with("test") && name.ends_with(".py");
        if !test && !other && name != "conftest.py" {
            continue;
        }
        let mut above = folder_of(path);
        while !above.is_empty() && !folders.contains(above) {
            above = folder_of(above);
        }
        let inner = path
            .strip_prefix(above)
            .unwrap_or(path)
            .trim_start_matches('/');
        let tests = tested.entry(above).or_default();
        let own = ignored(folder_of(inner)).is_none();
        tests.files.extend((test && own).then_some(path.as_str()));
        tests.others.extend((other && own).then_some(path.as_str()));
        tests.conftest |= name == "conftest.py";
    }
    tested
}

impl<'t> Tests<'t> {
    /// Files that only unittest takes for tests, and that are written for it alone.
    fn of_unittest(&self, tree: &Tree, read: &Cell<usize>) -> Vec<&'t str> {
        let is_own = |path: &&&str| {
            read.set(read.get() + 1);
            let text = if read.get() > MAX_ALL_FILES {
                String::new()
            } else {
                tree.text(path).unwrap_or_default()
            };
            // Django's have to be started by Django.
            let django = text.contains("django");
            is_module(file_name(path)) && !django && written(&text) == Written::Unittest
        };
        let some = self.others.iter().take(MAX_FILES);
        some.filter(is_own).copied().collect()
    }

    /// Whether there is something to run.
    pub fn any(&self, tree: &Tree, read: &Cell<usize>) -> bool {
        !self.files.is_empty() || !self.of_unittest(tree, read).is_empty()
    }

    /// Who runs the tests of the project in `folder`; `read` counts files of all projects.
    pub fn runner(&self, tree: &Tree, folder: &str, read: &Cell<usize>) -> Runner {
        let mut starts: BTreeSet<(String, bool)> = BTreeSet::new();
        let mut unsure = BTreeSet::new();
        if self.conftest || self.files.len() > MAX_FILES {
            return Runner::Pytest;
        }
        for path in &self.files {
            let inner = path.strip_prefix(folder).unwrap_or(path);
            let inner = inner.trim_start_matches('/');
            if ignored(folder_of(inner)).is_some() {
                continue;
            }
            read.set(read.get() + 1);
            let text = if read.get() > MAX_ALL_FILES {
                return Runner::Pytest;
            } else {
                tree.text(path)
            };
            let written = text.map_or(Written::Pytest, |text| written(&text));
            let by_end = !file_name(path).starts_with("test");
            match written {
                Written::Pytest => return Runner::Pytest,
                _ if !is_module(file_name(path)) => return Runner::Pytest,
                Written::Nothing => {}
                Written::Unittest => {
                    starts.insert((start(tree, folder, path), by_end));
                }
                Written::Unsure => {
                    unsure.insert((start(tree, folder, path), by_end));
                }
            }
        }
        let others = self.of_unittest(tree, read).into_iter();
        starts.extend(others.map(|path| (start(tree, folder, path), false)));
        match starts.len() {
            1..=MAX_STARTS if unsure.is_subset(&starts) => {
                Runner::Unittest(starts.iter().map(command).collect())
            }
            _ => Runner::Pytest,
        }
    }
}

fn command((start, by_end): &(String, bool)) -> String {
    let mut command = "python -m unittest discover".to_owned();
    if !start.is_empty() {
        command.push_str(&format!(" -s {}", quoted(start)));
    }
    if *by_end {
        command.push_str(" -p '*_test.py'");
    }
    command
}

/// Where unittest must start to find a file: the nearest folder above it that is no package, seen
/// from the project.
fn start(tree: &Tree, project: &str, path: &str) -> String {
    let mut folder = folder_of(path);
    while folder != project && tree.has(&format!("{folder}/__init__.py")) {
        folder = folder_of(folder);
    }
    let inner = folder.strip_prefix(project).unwrap_or(folder);
    let inner = inner.trim_start_matches('/');
    // It would be read as a flag.
    if inner.starts_with('-') {
        format!("./{inner}")
    } else {
        inner.to_owned()
    }
}

/// Whether a file has a name that unittest takes for a module's.
fn is_module(name: &str) -> bool {
    let name = name.strip_suffix(".py").unwrap_or(name);
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(letter) && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn written(text: &str) -> Written {
    let (mut tests, mut classes, mut loads) = (false, false, false);
    for line in text.lines() {
        let inner = line.trim_start();
        let plain = inner.strip_prefix("async ").unwrap_or(inner);
        let test = plain.starts_with("def test");
        let imports = ["import pytest", "from pytest"];
        if imports.iter().any(|it| inner.starts_with(it)) || is_class_without_base(line) {
            return Written::Pytest;
        }
        if test && inner.len() == line.len() {
            return Written::Pytest;
        }
        tests |= test;
        classes |= inner.starts_with("class ") && inner.contains('(');
        loads |= inner.starts_with("def load_tests");
    }
    match (tests, classes) {
        (true, true) => Written::Unittest,
        (false, false) if !loads => Written::Nothing,
        _ => Written::Unsure,
    }
}

/// `class TestSum:`, which only pytest takes for tests.
fn is_class_without_base(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("class Test") else {
        return false;
    };
    let name = |c: char| c.is_alphanumeric() || c == '_';
    let rest = rest.trim_start_matches(name).replace(' ', "");
    [":", "():", "(object):"]
        .iter()
        .any(|it| rest.starts_with(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\n";

    fn runner(folder: &str, files: &[(&str, &str)]) -> Runner {
        let files = files.iter();
        let tree = Tree::of(files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        let tested = of_projects(&tree, &BTreeSet::from([folder]));
        tested[folder].runner(&tree, folder, &Cell::new(0))
    }

    fn commands(folder: &str, files: &[(&str, &str)]) -> Vec<String> {
        match runner(folder, files) {
            Runner::Unittest(commands) => commands,
            Runner::Pytest => vec!["pytest".to_owned()],
        }
    }

    #[test]
    fn unittest_starts_where_it_finds_the_tests() {
        assert_eq!(
            commands("", &[("tests/test_a.py", CASE)]),
            ["python -m unittest discover -s tests"]
        );
        let package = [("a/tests/__init__.py", ""), ("a/tests/x/test_a.py", CASE)];
        assert_eq!(
            commands("a", &package),
            ["python -m unittest discover -s tests/x"]
        );
        let package = [("a/tests/__init__.py", ""), ("a/tests/test_a.py", CASE)];
        assert_eq!(commands("a", &package), ["python -m unittest discover"]);
        let several = [("one/a_test.py", CASE), ("two two/test_b.py", CASE)];
        assert_eq!(
            commands("", &several),
            [
                "python -m unittest discover -s one -p '*_test.py'",
                "python -m unittest discover -s 'two two'",
            ]
        );
    }

    /// Its own pattern is `test*.py`.
    #[test]
    fn unittest_finds_files_that_pytest_does_not() {
        let discover = "python -m unittest discover";
        assert_eq!(commands("", &[("test.py", CASE)]), [discover]);
        assert_eq!(
            commands("", &[("x/tests.py", CASE), ("test_a.py", CASE)]),
            [discover.to_owned(), format!("{discover} -s x")]
        );
        let django = format!("from django.test import TestCase\n{CASE}");
        for text in ["A = 1\n", "def test_a(): ...\n", &django] {
            let tree = Tree::of([("tests.py".to_owned(), text.to_owned())]);
            let tested = of_projects(&tree, &BTreeSet::from([""]));
            assert!(!tested[""].any(&tree, &Cell::new(0)), "{text}");
        }
    }

    /// What the commands are for: each folder's tests are found, and one that fails is seen.
    #[test]
    fn a_test_that_fails_fails() {
        let folder = tempfile::tempdir().expect("folder");
        let text = CASE.replace("pass", "self.fail()");
        let file = folder.path().join("tests/test_a.py");
        std::fs::create_dir(folder.path().join("tests")).expect("tests");
        std::fs::write(file, &text).expect("write");
        for command in commands("", &[("tests/test_a.py", &text)]) {
            let script = command.replacen("python", "python3", 1);
            let mut shell = std::process::Command::new("sh");
            let output = shell.args(["-c", &script]).current_dir(folder.path());
            let output = output.output().expect("sh");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && said.contains("Ran 1 test"),
                "{said}"
            );
        }
    }

    #[test]
    fn what_is_not_unittests_is_left_to_pytest() {
        for text in [
            "import pytest\n",
            "    from pytest import raises\n",
            "def test_a(): ...\n",
            "async def test_a(): ...\n",
            "class TestA:\n    def test_a(self): ...\n",
            "class TestA(object):\n    def test_a(self): ...\n",
            "",
            "import unittest\n",
        ] {
            let files = [("tests/test_a.py", text)];
            assert_eq!(runner("", &files), Runner::Pytest, "{text}");
        }
        let files = [("test_a.py", CASE), ("tests/test_b.py", "import pytest")];
        assert_eq!(runner("", &files), Runner::Pytest);
        assert_eq!(runner("", &[("test_a-b.py", CASE)]), Runner::Pytest);
        let long = format!("{CASE}#{}", "x".repeat(crate::tree::MAX_READ_BYTES));
        assert_eq!(runner("", &[("test_a.py", &long)]), Runner::Pytest);
        let helper = [("test_a.py", CASE), ("help/test_help.py", "A = 1")];
        assert_eq!(commands("", &helper), ["python -m unittest discover"]);
        // Its tests are in what it is derived from, or there are none.
        let derived = "from base import Base\nclass A(Base):\n    size = 2\n";
        let files = [("test_a.py", CASE), ("more/test_b.py", derived)];
        assert_eq!(runner("", &files), Runner::Pytest);
        let files = [("test_a.py", CASE), ("test_b.py", derived)];
        assert_eq!(commands("", &files), ["python -m unittest discover"]);
    }
}
