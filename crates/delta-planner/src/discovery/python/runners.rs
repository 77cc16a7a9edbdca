//! tox and nox: which environments and sessions a project declares, and what each is for. Read off
//! the text of their files; a noxfile is never imported.

use std::collections::BTreeSet;

use delta_wire::job_spec::CountTests;

use super::super::counting::{self, Judge};
use super::super::manifest::{Table, deep, strings};
use super::commands;
use super::rewriting::only_rewrite;
use crate::tree::{Tree, join};

/// Environments or sessions of one project: beyond it nobody runs them all in one job.
const MAX_NAMED: usize = 40;

/// Lines of one file that are looked at.
const MAX_LINES: usize = 20_000;

/// Parts of names that tell of a check.
const LINTS: [&str; 19] = [
    "lint",
    "style",
    "typing",
    "mypy",
    "types",
    "typecheck",
    "type",
    "flake8",
    "ruff",
    "pyright",
    "pylint",
    "black",
    "isort",
    "format",
    "codestyle",
    "quality",
    "static",
    "pre-commit",
    "pre_commit",
];

/// Parts of names that tell of tests.
const TESTS: [&str; 4] = ["test", "unit", "pytest", "spec"];

/// What an environment or a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    Tests,
    Lint,
    /// Nobody knows.
    Other,
    /// The project declares it, and not among those that are run by themselves.
    Unlisted,
    /// It changes files instead of checking them.
    Rewriting,
    /// It has no commands: to run it is to do nothing, and to call that a success.
    Idle,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As its tool is told.
    pub name: String,
    pub is_for: For,
    /// What it runs says how many tests ran.
    pub counted: bool,
    /// It names versions of Python, which a machine may not have.
    pub versions: bool,
    /// It runs the hooks of pre-commit.
    pub hooks: bool,
}

/// What a project has set up.
#[derive(Default)]
pub struct Runners {
    pub tox: Option<Vec<Named>>,
    pub nox: Option<Vec<Named>>,
}

impl Runners {
    pub fn read(tree: &Tree, folder: &str, table: &Table) -> Runners {
        let text = |name: &str| tree.text(&join(folder, name)).ok();
        let ini = text("tox.ini").or_else(|| {
            let setup = text("setup.cfg")?;
            setup
                .contains("[tox:tox]")
                .then(|| setup.replace("[tox:tox]", "[tox]"))
        });
        let judge = Judge {
            scripts: None,
            verbosity: counting::verbosity(&commands::options(tree, folder, table)),
        };
        let own = deep(table, &["tool", "tox"]);
        let tox = match (ini, own) {
            (Some(text), _) => Some(tox_ini(&text, judge)),
            (None, Some(table)) => match table.get("legacy_tox_ini").and_then(|it| it.as_str()) {
                Some(text) => Some(tox_ini(text, judge)),
                None => Some(tox_table(table, judge)),
            },
            (None, None) => None,
        };
        Runners {
            tox,
            nox: text("noxfile.py").map(|text| noxfile(&text, judge)),
        }
    }
}

/// The environments of a `tox.ini`. One without a list has the one that every Python has.
fn tox_ini(text: &str, judge: Judge<'_>) -> Vec<Named> {
    let mut section = String::new();
    let mut listed: Vec<String> = Vec::new();
    let mut in_list = false;
    let mut bodies: Vec<(String, String)> = Vec::new();
    for line in text.lines().take(MAX_LINES) {
        let line = line.split(" #").next().unwrap_or(line).trim_end();
        let plain = line.trim();
        if plain.starts_with('#') || plain.is_empty() {
            continue;
        }
        if let Some(name) = plain.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            section = name.trim().to_owned();
            in_list = false;
            bodies.push((section.clone(), String::new()));
            continue;
        }
        if let Some((_, body)) = bodies.last_mut() {
            body.push_str(line);
            body.push('\n');
        }
        if section != "tox" {
            continue;
        }
        let continued = line.starts_with([' ', '\t']);
        let (key, value) = plain.split_once('=').unwrap_or(("", plain));
        if !continued {
            in_list = matches!(key.trim(), "envlist" | "env_list");
        }
        if in_list {
            let value = if continued { plain } else { value };
            listed.extend(words(value));
        }
    }
    let sections = bodies
        .iter()
        .filter_map(|(it, _)| it.strip_prefix("testenv:"));
    let sections: Vec<&str> = sections.collect();
    let base = commands::of_section(&body_of(&bodies, "testenv"), "");
    let base = base.unwrap_or_else(|| {
        if sections.iter().any(|it| is_pattern(it)) {
            commands::UNREAD.to_owned()
        } else {
            String::new()
        }
    });
    let mut named: Vec<String> = listed.iter().flat_map(|it| braces(it)).collect();
    if named.is_empty() && base.trim().is_empty() {
        named = declared(sections.iter().flat_map(|it| braces(it)));
    }
    let own = |name: &str| {
        let section = body_of(&bodies, &format!("testenv:{name}"));
        (!section.is_empty()).then(|| commands::of_section(&section, &base))
    };
    let mut all = environments(named, own, &base, judge);
    unlisted(sections.iter().flat_map(|it| braces(it)), &listed, &mut all);
    all
}

/// Whether a section could be that of several environments: by braces, or by a range in them.
fn is_pattern(section: &str) -> bool {
    section.contains(['{', '}'])
}

/// What stands for a list where there is none, and nothing that any environment would run: those
/// with sections of their own. tox itself would then run the Python that is here with no command,
/// and call that a success.
fn declared(sections: impl Iterator<Item = String>) -> Vec<String> {
    sections
        .filter(|it| !it.starts_with('.') && !it.is_empty())
        .collect()
}

fn body_of(bodies: &[(String, String)], section: &str) -> String {
    let own = bodies.iter().filter(|(name, _)| name == section);
    own.map(|(_, body)| body.as_str()).collect()
}

/// The environments of `[tool.tox]`.
fn tox_table(table: &Table, judge: Judge<'_>) -> Vec<Named> {
    let mut named = strings(table, "env_list");
    named.extend(strings(table, "envlist"));
    let base = deep(table, &["env_run_base"]).and_then(commands::of_table);
    let own = |name: &str| deep(table, &["env", name]).map(commands::of_table);
    if named.is_empty() && base.is_none() {
        let keys = deep(table, &["env"]).into_iter().flat_map(Table::keys);
        named = declared(keys.cloned());
    }
    let listed = named.clone();
    let mut all = environments(named, own, &base.unwrap_or_default(), judge);
    let declared = deep(table, &["env"]).into_iter().flat_map(Table::keys);
    unlisted(declared.cloned(), &listed, &mut all);
    all
}

/// Adds environments that have a section of their own, and that no list names.
fn unlisted(sections: impl Iterator<Item = String>, listed: &[String], all: &mut Vec<Named>) {
    let listed: BTreeSet<String> = listed.iter().flat_map(|it| braces(it)).collect();
    for name in sections.take(MAX_NAMED) {
        let known = listed.contains(&name) || all.iter().any(|it| it.name == name);
        if !known && !name.starts_with('.') && !name.is_empty() {
            all.push(Named {
                name,
                is_for: For::Unlisted,
                counted: false,
                versions: false,
                hooks: false,
            });
        }
    }
}

/// The environments of a list; `own` has the commands of one that has a section of its own, and
/// none where that has none. Environments for a version of Python become the one for the Python
/// that is here: another version may not be, and tox takes that for a success.
fn environments(
    listed: Vec<String>,
    own: impl Fn(&str) -> Option<Option<String>>,
    base: &str,
    judge: Judge<'_>,
) -> Vec<Named> {
    let listed = if listed.is_empty() {
        vec!["py".to_owned()]
    } else {
        listed
    };
    let mut all: Vec<Named> = Vec::new();
    for name in listed.iter().take(MAX_NAMED) {
        let section = own(name);
        let factors = name
            .split('-')
            .map(|it| if is_python(it) { "py" } else { it });
        let here: Vec<&str> = factors.collect();
        let versions = here.contains(&"py");
        // What it says of its own stands under the name that it has there.
        let name = if section.is_some() {
            name.clone()
        } else {
            here.join("-")
        };
        let commands = section.flatten().unwrap_or_else(|| base.to_owned());
        let one = Named {
            is_for: if commands.trim().is_empty() {
                For::Idle
            } else {
                is_for(&name, versions, &commands)
            },
            counted: is_counted(&commands, judge),
            versions,
            hooks: commands.contains("pre-commit"),
            name,
        };
        if !all.iter().any(|it| it.name == one.name) {
            all.push(one);
        }
    }
    all
}

/// `py39`, `py3.12`, `pypy3`, `3.13`, `py`.
fn is_python(factor: &str) -> bool {
    let rest = factor
        .strip_prefix("pypy")
        .or(factor.strip_prefix("python"));
    let rest = rest
        .or(factor.strip_prefix("py"))
        .or(factor.strip_prefix("cpython"));
    let version = |text: &str| {
        text.bytes()
            .all(|it| it.is_ascii_digit() || it == b'.' || it == b't')
    };
    match rest {
        Some(rest) => version(rest),
        None => factor.starts_with('3') && version(factor) && factor.contains('.'),
    }
}

/// The sessions of a noxfile: functions behind `@nox.session` or `@session`.
fn noxfile(text: &str, judge: Judge<'_>) -> Vec<Named> {
    let mut all: Vec<(Named, String)> = Vec::new();
    let mut decorator = String::new();
    let (mut open, mut depth) = (false, 0_i32);
    for line in text.lines().take(MAX_LINES) {
        let begins = ["@nox.session", "@session", "@nox_session"];
        if begins.iter().any(|it| line.starts_with(it)) {
            (open, depth) = (true, 0);
            decorator.clear();
        }
        if open {
            decorator.push_str(line);
            depth += count(line, '(') - count(line, ')');
            open = depth > 0;
            continue;
        }
        let function = line
            .strip_prefix("def ")
            .or(line.strip_prefix("async def "));
        if let Some(name) = function.filter(|_| !decorator.is_empty()) {
            let name = name.split('(').next().unwrap_or_default().trim();
            let given = argument(&decorator, "name").and_then(|it| quoted(it).into_iter().next());
            let named = Named {
                name: given.unwrap_or_else(|| name.to_owned()),
                is_for: For::Other,
                counted: false,
                hooks: false,
                versions: argument(&decorator, "python")
                    .is_some_and(|it| !it.starts_with("False") && !it.starts_with("None")),
            };
            all.push((named, String::new()));
            decorator.clear();
        } else if let Some((_, body)) = all.last_mut() {
            // Its body, up to the next function.
            if !line.starts_with([' ', '\t', ')', '#']) && !line.is_empty() {
                continue;
            }
            body.push_str(line);
            body.push('\n');
        }
    }
    all.truncate(MAX_NAMED);
    let judged = all.into_iter().map(|(it, body)| {
        let commands = commands::of_session(&body);
        // Words that come from elsewhere may be among them.
        let checks = ["--check", "--diff"].iter().any(|it| body.contains(it));
        let judged = if checks { "" } else { &commands };
        Named {
            is_for: is_for(&it.name, false, judged),
            counted: is_counted(&commands, judge),
            hooks: commands.contains("pre-commit"),
            ..it
        }
    });
    judged.collect()
}

fn count(line: &str, mark: char) -> i32 {
    i32::try_from(line.matches(mark).count()).unwrap_or(0)
}

/// What stands behind `name=` in a call.
fn argument<'t>(call: &'t str, name: &str) -> Option<&'t str> {
    let mut from = 0;
    while let Some(at) = call[from..].find(name) {
        let before = call[..from + at].chars().next_back();
        let rest = call[from + at + name.len()..].trim_start();
        let whole = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        if let Some(value) = rest.strip_prefix('=').filter(|_| whole) {
            return Some(value.trim_start());
        }
        from += at + name.len();
    }
    None
}

fn quoted(text: &str) -> Vec<String> {
    let mark = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let inner = mark.and_then(|mark| text[1..].split(mark).next());
    inner.map(str::to_owned).into_iter().collect()
}

fn is_counted(commands: &str, judge: Judge<'_>) -> bool {
    judge.count(commands.lines()) == CountTests::Output
}

fn is_for(name: &str, versions: bool, commands: &str) -> For {
    let parts: BTreeSet<&str> = name.split(['-', '_', ':', '.']).collect();
    let has = |words: &[&str]| {
        words.iter().any(|it| parts.contains(it) || name == *it)
            || words.iter().any(|it| it.len() > 4 && name.contains(it))
    };
    if has(&LINTS) && only_rewrite(commands) {
        For::Rewriting
    } else if has(&LINTS) {
        For::Lint
    } else if has(&TESTS) || parts.iter().any(|it| it.starts_with("test")) || versions {
        For::Tests
    } else {
        For::Other
    }
}

/// Names of a list, which commas, spaces or lines may divide; braces stay together.
fn words(text: &str) -> Vec<String> {
    let (mut all, mut word, mut depth) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' | ' ' | '\t' if depth <= 0 => {
                all.push(std::mem::take(&mut word));
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    all.push(word);
    all.retain(|it| !it.is_empty());
    all
}

/// `py{39,312}-x` is `py39-x` and `py312-x`.
fn braces(word: &str) -> Vec<String> {
    let mut all = vec![word.to_owned()];
    loop {
        let Some(at) = all.iter().position(|it| it.contains('{')) else {
            return all;
        };
        let word = all.remove(at);
        let parts = word.split_once('{').and_then(|(head, rest)| {
            let (list, tail) = rest.split_once('}')?;
            Some((head.to_owned(), list.to_owned(), tail.to_owned()))
        });
        let Some((head, list, tail)) = parts else {
            all.push(word.replace('{', ""));
            continue;
        };
        let list = list.split(',').map(str::trim);
        all.extend(list.map(|it| format!("{head}{it}{tail}")));
        if all.len() > MAX_NAMED * 10 {
            return Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tox_ini(text: &str) -> Vec<Named> {
        super::tox_ini(text, Judge::BARE)
    }

    fn noxfile(text: &str) -> Vec<Named> {
        super::noxfile(text, Judge::BARE)
    }

    fn shown(all: &[Named]) -> Vec<String> {
        let one = |it: &Named| {
            let counted = if it.counted { "" } else { "?" };
            format!("{} {:?}{counted}", it.name, it.is_for)
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn environments_for_versions_become_the_one_that_is_here() {
        let ini = "[tox]\nenvlist =\n    py{39,312}-django{4,5}  # all\n    lint, docs\n\n\
                   [testenv]\ndeps = pytest\ncommands = pytest {posargs}\n\
                   [testenv:lint]\ncommands = ruff check\n[testenv:docs]\ncommands = sphinx\n";
        assert_eq!(
            shown(&tox_ini(ini)),
            [
                "py-django4 Tests",
                "py-django5 Tests",
                "lint Lint?",
                "docs Other?"
            ]
        );
        let plain = "[tox]\nenvlist = py39, py312\n[testenv]\ncommands = pytest\n";
        assert_eq!(shown(&tox_ini(plain)), ["py Tests"]);
        assert_eq!(
            shown(&tox_ini("[testenv]\ncommands=stestr run\n")),
            ["py Tests?"]
        );
        let mixed = "[tox]\nenvlist = py312, test-build, test-fast, test-quiet\n[testenv]\n\
                     deps = pytest\ncommands =\n  coverage erase\n  coverage run -m pytest\n\
                     [testenv:test-build]\ndeps = pytest\ncommands = python -m build\n\
                     [testenv:test-fast]\ncommands = {[testenv]commands}\n\
                     [testenv:test-quiet]\ncommands = pytest -qq\n";
        assert_eq!(
            shown(&tox_ini(mixed)),
            [
                "py Tests",
                "test-build Tests?",
                "test-fast Tests",
                "test-quiet Tests?"
            ]
        );
        let own = "[tox]\nenv_list = unit\n[testenv:unit]\ncommands = python -m unittest\n";
        assert_eq!(shown(&tox_ini(own)), ["unit Tests"]);
    }

    /// Run as a lint it would be green whatever there is to say.
    #[test]
    fn what_changes_files_is_no_lint() {
        let ini = "[tox]\nenvlist = format, black, style, fix-lint, fix_style, lint-fix\n[testenv:format]\n\
                   commands = black .\n[testenv:black]\ncommands = black --check .\n\
                   [testenv:style]\ncommands =\n  black .\n  flake8\n[testenv:fix-lint]\n\
                   commands = ruff check --fix\n[testenv:fix_style]\ncommands = isort .\n\
                   [testenv:lint-fix]\ncommands = pre-commit run --all-files\n";
        assert_eq!(
            shown(&tox_ini(ini)),
            [
                "format Rewriting?",
                "black Lint?",
                "style Lint?",
                "fix-lint Lint?",
                "fix_style Rewriting?",
                "lint-fix Lint?"
            ]
        );
        let sessions = "@nox.session\ndef black(s):\n    s.run(\"black\", *where)\n\
                        @nox.session\ndef isort(s):\n    args = [\"--check\"]\n    \
                        s.run(\"isort\", *args)\n";
        assert_eq!(
            shown(&noxfile(sessions)),
            ["black Rewriting?", "isort Lint?"]
        );
    }

    /// tox runs an environment without commands, and calls that a success.
    #[test]
    fn without_a_list_and_commands_for_all_the_sections_are_what_there_is() {
        let sections = "[testenv:unit]\ncommands = pytest\n[testenv:lint]\ncommands = ruff check\n";
        for text in [
            sections.to_owned(),
            format!("[tox]\nisolated_build = true\n[testenv]\ndeps = pytest\n{sections}"),
        ] {
            assert_eq!(
                shown(&tox_ini(&text)),
                ["unit Tests", "lint Lint?"],
                "{text}"
            );
        }
        let idle = "[tox]\nenvlist = py312, unit\n[testenv:unit]\ncommands = pytest\n";
        assert_eq!(shown(&tox_ini(idle)), ["py Idle?", "unit Tests"]);
        assert_eq!(shown(&tox_ini("[tox]\n")), ["py Idle?"]);
        let unread = "[tox]\nenvlist = py311\n[testenv:py3{10-12}]\ncommands = pytest\n";
        assert_eq!(shown(&tox_ini(unread))[0], "py Tests?");
        let table = |text: &str| text.parse::<Table>().expect("a table");
        let named = table("[env.unit]\ncommands = [[\"pytest\"]]\n");
        assert_eq!(shown(&tox_table(&named, Judge::BARE)), ["unit Tests"]);
        let elsewhere =
            table("env_list = [\"unit\"]\n[env_run_base]\ncommands = [{replace = \"x\"}]\n");
        assert_eq!(shown(&tox_table(&elsewhere, Judge::BARE)), ["unit Tests?"]);
    }

    #[test]
    fn environments_that_no_list_names_are_known_as_such() {
        let ini = "[tox]\nenvlist = py312\n[testenv]\ncommands = pytest\n\
                   [testenv:py312]\nx = y\n[testenv:{a,b}]\ncommands = x\n[testenv:.pkg]\nx = y\n";
        assert_eq!(
            shown(&tox_ini(ini)),
            ["py312 Tests", "a Unlisted?", "b Unlisted?"]
        );
    }

    #[test]
    fn a_table_says_the_same_as_a_file() {
        let text = "env_list = [\"py3.13\", \"pypy3\", \"style\", \"typing\", \"docs\"]\n\
                    [env_run_base]\ncommands = [[\"pytest\", \"-v\"]]\n\
                    [env.style]\ncommands = [[\"pre-commit\", \"run\"]]\n\
                    [env.typing]\ncommands = [[\"mypy\"]]\n[env.docs]\ncommands = [[\"x\"]]\n";
        let table: Table = text.parse().expect("a table");
        assert_eq!(
            shown(&tox_table(&table, Judge::BARE)),
            ["py Tests", "style Lint?", "typing Lint?", "docs Other?"]
        );
    }

    #[test]
    fn sessions_are_found_by_their_decorators() {
        let text = "import nox\nnox.options.sessions = [\"lint\"]\n\n@nox.session\n\
                    def lint(session):\n    session.run(\"ruff\", \"check\")\n\n\
                    @nox.session(\n    python=[\"3.11\", \"3.13\"],\n    default=False,\n)\n\
                    def tests(session):\n    session.run(\"pytest\")\n\n\
                    @nox.session(name=\"type-check\", python=False)\ndef types(s): ...\n\
                    def helper(): ...\n@session\ndef docs(s): ...\n";
        let all = noxfile(text);
        assert_eq!(
            shown(&all),
            [
                "lint Lint?",
                "tests Tests",
                "type-check Lint?",
                "docs Other?"
            ]
        );
        assert!(all[1].versions && !all[0].versions && !all[2].versions);
    }

    #[test]
    fn hostile_lists_end() {
        let deep = "{a,b}".repeat(40);
        assert!(braces(&deep).is_empty());
        assert_eq!(braces("a{b"), ["ab"]);
        assert_eq!(tox_ini(&format!("[tox]\nenvlist = {deep}\n")).len(), 1);
        let many = "@nox.session\ndef a(s): ...\n".repeat(100);
        assert_eq!(noxfile(&many).len(), MAX_NAMED);
    }
}
