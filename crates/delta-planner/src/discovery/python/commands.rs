//! What environments of tox and sessions of nox run, as commands that can be judged, and what the
//! project's own file tells pytest. Read off the text; nothing is expanded but what stands for the
//! Python of an environment.

use toml::Value;

use super::super::manifest::{Table, deep};
use crate::tree::{Tree, join};

/// Lines of one file that are looked at.
const MAX_LINES: usize = 20_000;

/// What stands for commands that are there and were not read: no tool is called so.
pub const UNREAD: &str = "{unread}";

/// The value of a key of an ini section, with the lines that go on with it.
fn value_of(section: &str, key: &str) -> Option<String> {
    let mut value: Option<String> = None;
    for line in section.lines().take(MAX_LINES) {
        if line.starts_with([' ', '\t']) {
            if let Some(value) = &mut value {
                value.push('\n');
                value.push_str(line.trim());
            }
            continue;
        }
        if value.is_some() {
            break;
        }
        let (name, rest) = line.split_once('=').unwrap_or((line, ""));
        value = (name.trim() == key).then(|| rest.trim().to_owned());
    }
    value
}

/// The commands of a section of `tox.ini`, one in a line; `base` are those of `[testenv]`.
pub fn of_section(section: &str, base: &str) -> Option<String> {
    let value = value_of(section, "commands")?;
    let value = value
        .replace("\\\n", " ")
        .replace("{[testenv]commands}", base);
    Some(value.lines().map(of_tox).collect::<Vec<_>>().join("\n"))
}

/// A command of tox without the marks and the condition before it.
fn of_tox(line: &str) -> String {
    let mut line = line.trim();
    // `py312,lint: pytest`
    if let Some((factors, rest)) = line.split_once(": ")
        && !factors.contains([' ', '{'])
    {
        line = rest.trim();
    }
    let line = line.trim_start_matches(['-', '!', ' ']);
    line.replace("{envpython}", "python")
        .replace("{envbindir}/", "bin/")
}

/// The commands of a table of tox: each is a list of words.
pub fn of_table(table: &Table) -> Option<String> {
    let commands = table.get("commands")?.as_array()?;
    let line = |command: &Value| {
        // A table stands for commands that are written elsewhere.
        let Some(words) = command.as_array() else {
            return UNREAD.to_owned();
        };
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        of_tox(&words.join(" "))
    };
    Some(commands.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// The commands of a session of nox: what `session.run(…)` is given, as far as it is text.
pub fn of_session(body: &str) -> String {
    let mut commands = Vec::new();
    for call in body.split(".run(").skip(1) {
        let mut depth = 1;
        let mut words: Vec<String> = Vec::new();
        let mut quote: Option<(char, String)> = None;
        let mut bare = String::new();
        for c in call.chars() {
            match (&mut quote, c) {
                (Some((mark, _)), c) if c == *mark => {
                    words.extend(quote.take().map(|(_, word)| word));
                }
                (Some((_, word)), c) => word.push(c),
                (None, '"' | '\'') => quote = Some((c, String::new())),
                (None, '(') => depth += 1,
                (None, ')') => depth -= 1,
                (None, c) => bare.push(c),
            }
            if depth == 0 {
                break;
            }
        }
        // What it prints then is not seen.
        let bare: String = bare.split_whitespace().collect();
        if bare.contains("silent=True") || bare.contains("stdout=") {
            commands.push(format!("{} > elsewhere", words.join(" ")))
        } else {
            commands.push(words.join(" "))
        }
    }
    commands.join("\n")
}

/// What the project's own file tells pytest.
pub fn options(tree: &Tree, folder: &str, table: &Table) -> String {
    let own = deep(table, &["tool", "pytest", "ini_options"]).or(deep(table, &["tool", "pytest"]));
    let mut options = match own.and_then(|it| it.get("addopts")) {
        Some(Value::Array(words)) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            words.join(" ")
        }
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    for name in ["pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg"] {
        let text = tree.text(&join(folder, name)).unwrap_or_default();
        let text: String = value_of(&text, "addopts").unwrap_or_default();
        options.push(' ');
        options.push_str(&text);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_tox_are_read_without_what_stands_around_them() {
        let section = "deps =\n  pytest\ncommands =\n  - {envpython} -m pytest {posargs}\n  \
                       py312: mypy\n  {[testenv]commands}\n  {envbindir}/a \\\n    b\nskip = 1\n";
        assert_eq!(
            of_section(section, "base").as_deref(),
            Some("\npython -m pytest {posargs}\nmypy\nbase\nbin/a  b")
        );
        assert_eq!(of_section("deps = pytest\ncommands_pre = a\n", ""), None);
        let one = of_section("commands=pytest -q\n", "");
        assert_eq!(one.as_deref(), Some("pytest -q"));
    }

    #[test]
    fn calls_of_a_session_are_read_over_lines() {
        let body = "    session.install(\"pytest\")\n    session.run(\n        \"pytest\",\n        \
                    '-q', *session.posargs, env={\"A\": \"b\"},\n    )\n    s.run('a', silent=True)\n";
        assert_eq!(of_session(body), "pytest -q A b\na > elsewhere");
        assert_eq!(of_session("session.run(\"a"), "");
        assert_eq!(of_session(""), "");
    }
}
