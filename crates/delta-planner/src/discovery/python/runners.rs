//! tox and nox: which environments and sessions a project declares, and what each is for. Read off
//! the text of their files; a noxfile is never imported.

use std::collections::BTreeSet;

use super::super::manifest::{Table, deep, strings};
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
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As its tool is told.
    pub name: String,
    pub is_for: For,
    /// It runs pytest or unittest, which say how many tests ran.
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
        let own = deep(table, &["tool", "tox"]);
        let tox = match (ini, own) {
            (Some(text), _) => Some(tox_ini(&text)),
            (None, Some(table)) => match table.get("legacy_tox_ini").and_then(|it| it.as_str()) {
                Some(text) => Some(tox_ini(text)),
                None => Some(tox_table(table)),
            },
            (None, None) => None,
        };
        Runners {
            tox,
            nox: text("noxfile.py").map(|text| noxfile(&text)),
        }
    }
}

/// The environments of a `tox.ini`. One without a list has the one that every Python has.
fn tox_ini(text: &str) -> Vec<Named> {
    let mut section = String::new();
    let mut listed: Vec<String> = Vec::new();
    let mut in_list = false;
    let mut bodies: Vec<(String, String)> = Vec::new();
    for line in text.lines().take(MAX_LINES) {
        let plain = line.split(" #").next().unwrap_or(line).trim();
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
            body.push_str(plain);
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
    let named = listed.iter().flat_map(|it| braces(it)).collect();
    let base = body_of(&bodies, "testenv");
    environments(
        named,
        |name| {
            let own = body_of(&bodies, &format!("testenv:{name}"));
            (!own.is_empty()).then_some(own)
        },
        &base,
    )
}

fn body_of(bodies: &[(String, String)], section: &str) -> String {
    let own = bodies.iter().filter(|(name, _)| name == section);
    own.map(|(_, body)| body.as_str()).collect()
}

/// The environments of `[tool.tox]`.
fn tox_table(table: &Table) -> Vec<Named> {
    let mut named = strings(table, "env_list");
    named.extend(strings(table, "envlist"));
    // Only words are looked for in it.
    let said = |table: &Table| format!("{table:?}");
    let base = deep(table, &["env_run_base"]).map_or(String::new(), said);
    environments(named, |name| deep(table, &["env", name]).map(said), &base)
}

/// Environments for a version of Python become the one for the Python that is here: another
/// version may not be, and tox takes that for a success.
fn environments(
    listed: Vec<String>,
    own: impl Fn(&str) -> Option<String>,
    base: &str,
) -> Vec<Named> {
    let listed = match listed.is_empty() {
        true => vec!["py".to_owned()],
        false => listed,
    };
    let mut all: Vec<Named> = Vec::new();
    for name in listed.iter().take(MAX_NAMED) {
        let body = own(name);
        let factors = name.split('-').map(|it| match is_python(it) {
            true => "py",
            false => it,
        });
        let here: Vec<&str> = factors.collect();
        let versions = here.contains(&"py");
        // What it says of its own stands under the name that it has there.
        let name = match body.is_some() {
            true => name.clone(),
            false => here.join("-"),
        };
        let text = body.as_deref().unwrap_or(base);
        let commands = if text.contains("commands") {
            text
        } else {
            base
        };
        let one = Named {
            is_for: is_for(&name, versions),
            counted: is_counted(commands),
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
fn noxfile(text: &str) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
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
            all.push(Named {
                name: given.unwrap_or_else(|| name.to_owned()),
                is_for: For::Other,
                counted: false,
                hooks: false,
                versions: argument(&decorator, "python")
                    .is_some_and(|it| !it.starts_with("False") && !it.starts_with("None")),
            });
            decorator.clear();
        } else if let Some(last) = all.last_mut() {
            // Its body, up to the next function.
            if !line.starts_with([' ', '\t', ')', '#']) && !line.is_empty() {
                continue;
            }
            last.counted |= is_counted(line);
            last.hooks |= line.contains("pre-commit");
        }
    }
    for it in &mut all {
        it.is_for = is_for(&it.name, false);
    }
    all.truncate(MAX_NAMED);
    all
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

fn is_counted(commands: &str) -> bool {
    let known = ["pytest", "py.test", "unittest", "trial "];
    // More than one `q` takes the line away that is counted.
    known.iter().any(|it| commands.contains(it)) && !commands.contains("-qq")
}

fn is_for(name: &str, versions: bool) -> For {
    let parts: BTreeSet<&str> = name.split(['-', '_', ':', '.']).collect();
    let has = |words: &[&str]| {
        words.iter().any(|it| parts.contains(it) || name == *it)
            || words.iter().any(|it| it.len() > 4 && name.contains(it))
    };
    if has(&LINTS) {
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
        let own = "[tox]\nenv_list = unit\n[testenv:unit]\ncommands = python -m unittest\n";
        assert_eq!(shown(&tox_ini(own)), ["unit Tests"]);
    }

    #[test]
    fn a_table_says_the_same_as_a_file() {
        let text = "env_list = [\"py3.13\", \"pypy3\", \"style\", \"typing\", \"docs\"]\n\
                    [env_run_base]\ncommands = [[\"pytest\", \"-v\"]]\n\
                    [env.style]\ncommands = [[\"pre-commit\", \"run\"]]\n\
                    [env.typing]\ncommands = [[\"mypy\"]]\n[env.docs]\ncommands = [[\"x\"]]\n";
        let table: Table = text.parse().expect("a table");
        assert_eq!(
            shown(&tox_table(&table)),
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
