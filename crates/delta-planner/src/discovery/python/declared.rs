//! What a Python project declares: its name, what it is built with, which tools it has set up.
//! Read from `pyproject.toml`, requirements and the tools' own files; nothing is imported.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use super::super::checks::listed;
use super::super::manifest::{self, Table, deep, strings, sub, text};
use super::install::Install;
use super::requirements;
use super::runners::Runners;
use crate::glob::Glob;
use crate::tree::{Tree, file_name, join, resolve};

/// Lines of one file of requirements that are looked at.
const MAX_LINES: usize = 5_000;

#[derive(Default)]
pub struct Declared {
    pub name: Option<String>,
    /// The file that says most about it.
    pub manifest: &'static str,
    pub requires_python: Option<String>,
    /// The version of uv that it asks for.
    pub requires_uv: Option<String>,
    /// Names of packages it asks for, in whatever group.
    pub asks: BTreeSet<String>,
    /// Those of them that only poetry or uv would install, not pip.
    not_by_pip: BTreeSet<String>,
    /// The project itself is to be installed: it has dependencies, or lies below `src`.
    pub installs: bool,
    /// The extra with what tests need.
    pub extra: Option<String>,
    /// The group with what tests need.
    pub group: Option<String>,
    /// The group with what tests need that poetry installs only when it is named.
    pub optional: Option<String>,
    /// Groups that uv installs unasked, where the project says which.
    defaults: Option<Vec<String>>,
    /// Files of requirements, in its folder.
    pub requirements: Vec<String>,
    /// Names of files of requirements of which nobody says which are for tests, and that nothing
    /// else brings.
    unread: Vec<String>,
    /// Tests are written for pytest.
    pub pytest: bool,
    /// pytest is set up, not only asked for.
    pub configured: bool,
    /// Where tests are is not what pytest takes by itself.
    pub unusual: bool,
    pub runners: Runners,
    /// Linters that are set up.
    pub linters: Vec<&'static str>,
    /// Groups that ask for a package, by its name.
    asked_by: BTreeMap<String, String>,
    /// Paths of what it is built with, relative to it.
    paths: Vec<String>,
    /// Names of what comes from the same uv workspace.
    siblings: Vec<String>,
    members: Vec<String>,
}

/// Linters, and the table of `pyproject.toml` or the files that set them up. How they are run, and
/// over what, is for the project to say: here they are only named.
const LINTERS: [(&str, &[&str]); 6] = [
    ("ruff", &["ruff.toml", ".ruff.toml"]),
    ("black", &[]),
    ("flake8", &[".flake8"]),
    ("mypy", &["mypy.ini", ".mypy.ini"]),
    ("pyright", &["pyrightconfig.json"]),
    ("pylint", &[".pylintrc", "pylintrc"]),
];

/// Extras and groups that hold what tests need, best first.
const TEST_GROUPS: [&str; 4] = ["test", "tests", "testing", "dev"];

/// Files of requirements that are installed for tests.
const REQUIREMENTS: [&str; 6] = [
    "requirements.txt",
    "requirements-test.txt",
    "requirements-tests.txt",
    "requirements-dev.txt",
    "dev-requirements.txt",
    "test-requirements.txt",
];

/// Files of a folder of requirements that are installed for tests: the first that is there.
const FOLDER: [&str; 4] = [
    "requirements/test.txt",
    "requirements/tests.txt",
    "requirements/testing.txt",
    "requirements/dev.txt",
];

impl Declared {
    pub fn read(tree: &Tree, folder: &str) -> Declared {
        let there = |name: &str| tree.has(&join(folder, name));
        let mut declared = Declared {
            configured: there("pytest.ini") || there(".pytest.ini"),
            ..Declared::default()
        };
        let known = super::MANIFESTS.iter().find(|name| there(name));
        declared.manifest = known.copied().unwrap_or("pyproject.toml");
        let table = match manifest::toml(tree, &join(folder, "pyproject.toml")) {
            Ok(table) => table,
            // What is written there is not known; pytest reads it, and says what is wrong.
            Err(_) if there("pyproject.toml") => {
                declared.configured = true;
                Table::new()
            }
            Err(_) => Table::new(),
        };
        declared.runners = Runners::read(tree, folder, &table);
        declared.project(&table);
        declared.tools(&table);
        // A group of the standard could be called optional elsewhere; to name it does no harm.
        declared.optional = declared.optional.take().or(declared.group.clone());
        if let Ok(text) = tree.text(&join(folder, "setup.cfg")) {
            declared.configured |= text.contains("[tool:pytest]");
            declared.unusual |= is_unusual(&text);
        }
        for name in ["pyproject.toml", "pytest.ini", ".pytest.ini", "tox.ini"] {
            let text = tree.text(&join(folder, name)).unwrap_or_default();
            declared.unusual |= is_unusual(&text);
        }
        declared.installs |= there("setup.py");
        for name in ["setup.py", "setup.cfg"] {
            let text = tree.text(&join(folder, name)).unwrap_or_default();
            declared.extra = declared.extra.take().or_else(|| extra_of_setup(&text));
        }
        let in_folder = FOLDER.into_iter().find(|name| there(name));
        declared.unread = match in_folder {
            Some(_) => Vec::new(),
            None => requirements::unnamed(tree, folder, &REQUIREMENTS),
        };
        for name in REQUIREMENTS.into_iter().chain(in_folder) {
            if let Ok(text) = tree.text(&join(folder, name)) {
                declared.requirements(&text);
                declared.requirements.push(name.to_owned());
            }
        }
        declared.pytest = declared.configured || declared.asks.contains("pytest");
        let src = join(folder, "src");
        let path = deep(&table, &["tool", "pytest", "ini_options"]);
        let told = path.is_some_and(|it| it.contains_key("pythonpath"));
        declared.installs |= !told && is_built(&table, tree, &src);
        let set_up = |(tool, files): &&(&str, &[&str])| {
            files.iter().any(|name| there(name)) || deep(&table, &["tool", tool]).is_some()
        };
        declared.linters = LINTERS.iter().filter(set_up).map(|it| it.0).collect();
        declared
    }

    fn project(&mut self, table: &Table) {
        let Some(project) = sub(table, "project") else {
            return;
        };
        self.name = text(project, "name").map(str::to_owned);
        self.requires_python = text(project, "requires-python").map(str::to_owned);
        let dependencies = strings(project, "dependencies");
        self.installs |= !dependencies.is_empty();
        self.ask(&dependencies);
        let extras = sub(project, "optional-dependencies");
        self.extra = self.groups(extras);
        self.installs |= self.extra.is_some();
        let groups = sub(table, "dependency-groups");
        for (name, asked) in groups
            .into_iter()
            .flat_map(|it| it.keys().map(|k| (k, strings(it, k))))
        {
            for tool in asked.iter().map(|it| normal(it)) {
                let kept = self.asked_by.entry(tool).or_insert_with(|| name.clone());
                // Of several groups that have it, one that is taken anyway.
                if name == "dev" {
                    name.clone_into(kept);
                }
            }
        }
        self.group = self.groups(groups);
    }

    /// Notes what groups ask for; the one with what tests need.
    fn groups(&mut self, groups: Option<&Table>) -> Option<String> {
        let groups = groups?;
        let mut with_pytest = BTreeSet::new();
        for name in groups.keys() {
            let asked = strings(groups, name);
            if asked.iter().any(|it| normal(it) == "pytest") {
                with_pytest.insert(name.as_str());
            }
            self.ask(&asked);
        }
        for_tests(groups, &with_pytest)
    }

    /// The group that uv must be told of so that a tool is there.
    pub fn uv_group_of(&self, tool: &str) -> Option<&str> {
        let group = self.asked_by.get(tool).map(String::as_str);
        group.filter(|it| !self.uv_takes(it))
    }

    /// Whether uv installs a group unasked.
    pub fn uv_takes(&self, group: &str) -> bool {
        match &self.defaults {
            Some(defaults) => defaults.iter().any(|it| it == group),
            None => group == "dev",
        }
    }

    fn tools(&mut self, table: &Table) {
        let Some(tools) = sub(table, "tool") else {
            return;
        };
        self.configured |= sub(tools, "pytest").is_some();
        if let Some(workspace) = deep(tools, &["uv", "workspace"]) {
            self.members = strings(workspace, "members");
        }
        let uv = deep(tools, &["uv"]).and_then(|it| text(it, "required-version"));
        self.requires_uv = uv.map(str::to_owned);
        let defaults = deep(tools, &["uv"]).filter(|it| it.contains_key("default-groups"));
        self.defaults = defaults.map(|it| match it["default-groups"].as_str() {
            Some("all") => sub(table, "dependency-groups")
                .map_or(Vec::new(), |it| it.keys().cloned().collect()),
            _ => strings(it, "default-groups"),
        });
        for asked in deep(tools, &["uv"]).map_or(Vec::new(), |it| strings(it, "dev-dependencies")) {
            self.ask_without_pip(normal(&asked));
        }
        for (name, source) in deep(tools, &["uv", "sources"]).into_iter().flatten() {
            let Some(source) = source.as_table() else {
                continue;
            };
            if let Some(path) = text(source, "path") {
                self.paths.push(path.to_owned());
            } else if source.get("workspace").and_then(Value::as_bool) == Some(true) {
                self.siblings.push(normal(name));
            }
        }
        let Some(poetry) = sub(tools, "poetry") else {
            return;
        };
        let named = text(poetry, "name").map(str::to_owned);
        self.name = self.name.take().or(named);
        self.poetry_groups(poetry);
        let groups = sub(poetry, "group").into_iter().flat_map(Table::values);
        let groups = groups.filter_map(|it| sub(it.as_table()?, "dependencies"));
        let more = ["dependencies", "dev-dependencies"];
        let more = more.iter().filter_map(|key| sub(poetry, key));
        for (name, value) in groups.chain(more).flatten() {
            self.ask_without_pip(normal(name));
            if name == "python" {
                let version = value.as_str().map(str::to_owned);
                self.requires_python = self.requires_python.take().or(version);
            }
            let path = value.as_table().and_then(|it| text(it, "path"));
            self.paths.extend(path.map(str::to_owned));
        }
    }

    /// Which group, and which extra, poetry has to be told of.
    fn poetry_groups(&mut self, poetry: &Table) {
        let mut optional = Table::new();
        let mut with_pytest = BTreeSet::new();
        for (name, group) in sub(poetry, "group").into_iter().flatten() {
            let Some(group) = group.as_table() else {
                continue;
            };
            if group.get("optional").and_then(Value::as_bool) == Some(true) {
                optional.insert(name.clone(), Value::Boolean(true));
                let asks = sub(group, "dependencies").is_some_and(|it| it.contains_key("pytest"));
                with_pytest.extend(asks.then_some(name.as_str()));
            }
        }
        self.optional = for_tests(&optional, &with_pytest);
        let extras = sub(poetry, "extras");
        self.extra = self.extra.take().or_else(|| self.groups(extras));
    }

    fn ask(&mut self, requirements: &[String]) {
        for requirement in requirements {
            let name = normal(requirement);
            self.not_by_pip.remove(&name);
            self.asks.insert(name);
            if let Some((_, path)) = requirement.split_once("@ file:") {
                self.paths.push(path.trim().to_owned());
            }
        }
    }

    /// Notes a package that is asked for in a table which pip does not read.
    fn ask_without_pip(&mut self, name: String) {
        if self.asks.insert(name.clone()) {
            self.not_by_pip.insert(name);
        }
    }

    /// Whether pip brings a package with what it is told to install here.
    pub fn pip_brings(&self, name: &str) -> bool {
        self.asks.contains(name) && !self.not_by_pip.contains(name)
    }

    fn requirements(&mut self, text: &str) {
        for line in text.lines().take(MAX_LINES).map(str::trim) {
            let editable = line
                .strip_prefix("-e ")
                .or(line.strip_prefix("--editable "));
            let path = editable.unwrap_or(line).trim();
            if path.starts_with('.') {
                self.paths
                    .push(path.split('[').next().unwrap_or(path).to_owned());
            } else if !line.is_empty() && !line.starts_with(['#', '-']) {
                self.ask(&[line.to_owned()]);
            }
        }
    }

    /// What is said of files of requirements that are not installed, where pip installs.
    pub fn unread_requirements(&self, install: &Install) -> Option<String> {
        let names: Vec<&str> = self.unread.iter().map(String::as_str).collect();
        let (names, several) = listed(&names).filter(|_| !install.is_locked())?;
        let are = if several { "are" } else { "is" };
        Some(format!("{names} in requirements {are} not installed"))
    }

    /// The patterns of a uv workspace's members.
    pub fn members(&self, root: &str) -> impl Iterator<Item = Glob> {
        let patterns = self.members.iter().filter_map(|it| resolve(root, it));
        let globs: Vec<Glob> = patterns.filter_map(|it| Glob::parse(&it).ok()).collect();
        globs.into_iter()
    }

    /// The folders of the packages it is built with.
    pub fn needs(&self, folder: &str, all: &BTreeMap<&str, Declared>) -> BTreeSet<String> {
        let paths = self.paths.iter().filter_map(|path| resolve(folder, path));
        let mut needed: BTreeSet<String> = paths.collect();
        if !self.siblings.is_empty() {
            let siblings = all.iter().filter(|(folder, declared)| {
                let name = declared.name.as_deref().unwrap_or(file_name(folder));
                self.siblings.contains(&normal(name))
            });
            needed.extend(siblings.map(|(folder, _)| (*folder).to_owned()));
        }
        needed.remove(folder);
        needed
    }
}

/// The extra with what tests need that a `setup.py` or a `setup.cfg` declares, as far as it stands
/// there as text. pip only warns of one that is not there.
fn extra_of_setup(text: &str) -> Option<String> {
    let at = text.find("extras_require")?;
    let rest = &text[at..];
    let ends = |rest: &str, mark: char| rest.trim_start().starts_with(mark);
    let quoted = |part: &str, name: &str| {
        let inner = part.trim_start().strip_prefix(['"', '\'']);
        let rest = inner.and_then(|it| it.strip_prefix(name)?.strip_prefix(['"', '\'']));
        rest.is_some_and(|it| ends(it, ':'))
    };
    let declares = |name: &&str| {
        rest.lines().take(MAX_LINES).any(|line| {
            let plain = line.strip_prefix(name).is_some_and(|it| ends(it, '='));
            plain || line.split(['{', ',']).any(|part| quoted(part, name))
        })
    };
    let name = TEST_GROUPS.into_iter().find(declares);
    name.map(str::to_owned)
}

/// Whether pip builds a package from what lies below `src`, so that tests can import it. Where no
/// tool for that is named it takes setuptools, which asks for a name and a version.
fn is_built(table: &Table, tree: &Tree, src: &str) -> bool {
    let Some(project) = sub(table, "project") else {
        return false;
    };
    let below = tree.below(src);
    if table.contains_key("build-system") {
        return !below.is_empty();
    }
    let dynamic = strings(project, "dynamic");
    let versioned = project.contains_key("version") || dynamic.iter().any(|it| it == "version");
    // With this file `src` is itself what tests import, and found without being installed.
    let itself = tree.has(&join(src, "__init__.py"));
    let python = below.iter().any(|it| it.ends_with(".py"));
    project.contains_key("name") && versioned && python && !itself
}

/// pytest is told of files that it would not take for tests by itself.
fn is_unusual(text: &str) -> bool {
    [
        "python_files",
        "doctest-modules",
        "doctest-glob",
        "doctest_glob",
    ]
    .iter()
    .any(|it| text.contains(it))
}

/// The group with what tests need: it asks for pytest, or is called so.
fn for_tests(groups: &Table, with_pytest: &BTreeSet<&str>) -> Option<String> {
    let called = TEST_GROUPS.iter().copied();
    let called = called.filter(|name| groups.contains_key(*name));
    let best = called.clone().find(|name| with_pytest.contains(name));
    let best = best.or_else(|| with_pytest.first().copied());
    best.or_else(|| called.clone().next()).map(str::to_owned)
}

/// The name in a requirement, as Python compares names.
fn normal(requirement: &str) -> String {
    let end = requirement.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    let name = &requirement[..end.unwrap_or(requirement.len())];
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_for_tests_is_read_from_an_old_setup() {
        for (text, wanted) in [
            (
                "setup(extras_require={\"test\": [\"pytest\"]})",
                Some("test"),
            ),
            (
                "setup(\n  extras_require={\n    'docs': ['x'],\n    'dev': ['y'],\n  },\n)",
                Some("dev"),
            ),
            (
                "[options.extras_require]\ntesting =\n  pytest\n",
                Some("testing"),
            ),
            ("setup(extras_require=EXTRAS, tests=1)", None),
            ("setup(extras_require={'docs': ['test']})", None),
            ("{'test': 1}", None),
        ] {
            assert_eq!(extra_of_setup(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn requirements_for_tests_may_stand_in_a_folder() {
        let of = |names: &[&str]| {
            let files = names
                .iter()
                .map(|it| ((*it).to_owned(), "pytest\n".to_owned()));
            let declared = Declared::read(&Tree::of(files), "");
            (
                declared.requirements.join(" "),
                declared.unread_requirements(&Install::None),
            )
        };
        let (taken, said) = of(&["requirements/test.txt", "requirements/dev.txt"]);
        assert_eq!((taken.as_str(), said), ("requirements/test.txt", None));
        let (taken, said) = of(&["requirements/ci.txt", "requirements/base.txt"]);
        let words = "base.txt, ci.txt in requirements are not installed";
        assert_eq!((taken.as_str(), said.as_deref()), ("", Some(words)));
    }
}
