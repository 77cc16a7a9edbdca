//! Which tools scripts call, as requirements: a plan that needs `uv` or `go` says so, and an agent
//! without it never gets the job. Told by the program of each command, behind assignments and what
//! every system has to start another one; a word that is no known tool asks for nothing.
//!
//! What a script asks for first and calls only if it is there, and what it installs itself, is no
//! requirement; nor is a tool that its project may bring, where the script installs what that asks
//! for or says itself where programs are.

use std::collections::BTreeSet;

use delta_core::tool;

use super::counting::behind_system;
use super::shell::{self, Call};

/// Programs that come with something of another name.
const WITH: [(&str, &str); 22] = [
    ("uvx", "uv"),
    ("npx", "npm"),
    ("pnpx", "pnpm"),
    ("bunx", "bun"),
    ("go", "go"),
    ("gofmt", "go"),
    ("cargo", "rust"),
    ("rustc", "rust"),
    ("rustfmt", "rust"),
    ("python", "python"),
    ("python3", "python"),
    ("pip", "python"),
    ("pip3", "python"),
    ("ctest", "cmake"),
    ("node", "node"),
    ("nodejs", "node"),
    ("java", "java"),
    ("javac", "java"),
    ("ruby", "ruby"),
    ("dotnet", "dotnet"),
    ("docker", "docker"),
    ("docker-compose", "docker"),
];

/// Subcommands of cargo that are programs of their own.
const CARGO: [(&str, &str); 2] = [("nextest", "cargo-nextest"), ("deny", "cargo-deny")];

/// Folders in which a program is the one that everybody has.
const FOLDERS: [&str; 3] = ["/bin", "/usr/bin", "/usr/local/bin"];

/// The tools of a script, each once, in the order of their first call.
pub fn of_script(script: &str) -> Vec<&'static str> {
    of_scripts([script])
}

/// The tools of scripts that belong together, such as the lines of a recipe.
pub fn of_scripts<S: AsRef<str>>(scripts: impl IntoIterator<Item = S>) -> Vec<&'static str> {
    let (mut tools, mut spared) = (Vec::new(), BTreeSet::new());
    let mut bringers = BTreeSet::new();
    for script in scripts {
        let calls = shell::calls(script.as_ref());
        let fails = calls.len() == 1 || calls.iter().any(is_failure);
        for call in &calls {
            let words = words(call);
            match asked_for(&words) {
                // Where it is not there, the script ends, or says so and fails.
                Some(_) if fails => {}
                Some(program) => spared.extend(known(program)),
                None => tools.extend(of_command(&words)),
            }
            spared.extend(installed(&words));
            bringers.extend(brought_by(&words));
        }
    }
    let mut said = BTreeSet::new();
    let brought = |name: &str| bringer(name).is_some_and(|it| bringers.contains(it));
    tools.retain(|it| !spared.contains(it) && !brought(it) && said.insert(*it));
    tools
}

/// The package manager by which a project may bring a tool for itself.
pub fn bringer(name: &str) -> Option<&'static str> {
    tool::named(name).and_then(tool::Tool::brought_by)
}

/// All of them.
const BRINGERS: [&str; 3] = ["gem", "npm", "pip"];

/// The package managers of which a command installs what a project asks for: `npm ci`, `pip
/// install -r x`, `. venv/bin/activate`. Where the search path is another one, any may have.
fn brought_by(words: &[&str]) -> Vec<&'static str> {
    let is_path = |word: &&str| word.starts_with("PATH=");
    let mut before = words
        .iter()
        .take_while(|it| it.contains('=') || **it == "export");
    if before.any(is_path) {
        return BRINGERS.to_vec();
    }
    let words = behind_system(words);
    let mut words = words.iter().map(|it| it.rsplit('/').next().unwrap_or(it));
    let program = words.next().unwrap_or_default();
    let installs = |it: &str| matches!(it, "install" | "i" | "ci" | "sync" | "add");
    let installs = words.clone().any(installs);
    match program {
        "npm" | "pnpm" | "bun" if installs => vec!["npm"],
        // Alone it installs.
        "yarn" if installs || words.next().is_none() => vec!["npm"],
        "pip" | "pip3" | "poetry" | "pipenv" | "pdm" | "uv" if installs => vec!["pip"],
        it if it.starts_with("python") && installs => vec!["pip"],
        "." | "source" if words.next() == Some("activate") => vec!["pip"],
        "bundle" if installs => vec!["gem"],
        _ => Vec::new(),
    }
}

/// The words of a command, without those that make it a part of something larger.
fn words(call: &Call) -> Vec<&str> {
    let words = call.words.iter().map(String::as_str);
    let mut words = words.skip_while(|it| shell::is_structure(it)).peekable();
    // `@make`, `-make`: how a recipe says what is printed and what may fail.
    let first = words
        .next()
        .map(|it| it.trim_start_matches(['@', '-', '+']));
    first.into_iter().chain(words).collect()
}

/// The program whether which is there a command asks: `command -v x`, `which x`.
fn asked_for<'w>(words: &[&'w str]) -> Option<&'w str> {
    match words {
        ["command", "-v" | "-V", program, ..] => Some(program),
        ["which" | "type" | "hash", rest @ ..] => {
            rest.iter().copied().find(|it| !it.starts_with('-'))
        }
        _ => None,
    }
}

/// `exit 1`, `false`
fn is_failure(call: &Call) -> bool {
    match words(call).as_slice() {
        ["exit", code, ..] => *code != "0",
        ["false"] => true,
        _ => false,
    }
}

/// What a command puts on the machine: `pip install tox`, `go install example.org/x@latest`.
fn installed(words: &[&str]) -> Vec<&'static str> {
    let at = words.iter().position(|it| matches!(*it, "install" | "i"));
    let names = words.iter().skip(at.map_or(words.len(), |at| at + 1));
    let names = names.filter_map(|word| {
        let name = word.rsplit('/').next()?;
        let name = name.split(['@', '=', '<', '>', '~', '[']).next()?;
        tool::named(name).map(|it| it.name)
    });
    names.collect()
}

fn of_command(words: &[&str]) -> Vec<&'static str> {
    let words = behind_system(words);
    let Some(program) = words.first().and_then(|it| known(it)) else {
        return Vec::new();
    };
    let mut rest = words[1..].iter().filter(|it| !it.starts_with(['+', '-']));
    let inner = rest.next().filter(|_| words[0].ends_with("cargo"));
    let inner = inner.and_then(|inner| CARGO.iter().find(|(word, _)| word == inner));
    std::iter::once(program)
        .chain(inner.map(|it| it.1))
        .collect()
}

/// What a program is asked for by, if it is known.
fn known(word: &str) -> Option<&'static str> {
    let name = match word.rsplit_once('/') {
        Some((folder, name)) if FOLDERS.contains(&folder) => name,
        Some(_) => return None,
        None => word,
    };
    // `python3.12`
    let name = match name.split_once('.') {
        Some(("python3", minor)) if minor.parse::<u32>().is_ok() => "python3",
        _ => name,
    };
    let with = WITH.iter().find(|(program, _)| *program == name);
    match with {
        Some((_, tool)) => Some(tool),
        None => tool::named(name).map(|it| it.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_each_command_is_what_it_calls() {
        for (script, wanted) in [
            ("uv run --locked pytest", &["uv"][..]),
            ("uvx tox run", &["uv"]),
            ("cargo test", &["rust"]),
            ("cargo nextest run", &["rust", "cargo-nextest"]),
            ("cargo +nightly nextest run", &["rust", "cargo-nextest"]),
            ("CI=1 make test && pnpm install", &["make", "pnpm"]),
            ("cd x\ngo test -json || { code=$?; cat x; }", &["go"]),
            ("echo uv make", &[]),
            (".venv/bin/python -m tox run", &[]),
            ("@clang-tidy a.c | cat", &["clang-tidy"]),
            ("/usr/bin/python3.12 -m venv x", &["python"]),
            ("timeout -k 5 60 go test ./...", &["go"]),
            ("env A=b time nice -n 5 node a.js", &["node"]),
            ("for d in a b; do (cd $d && go vet); done", &["go"]),
            ("docker run image go test", &["docker"]),
            ("echo x > make 2> uv", &[]),
            ("npx jest", &["npm"]),
            ("", &[]),
        ] {
            assert_eq!(of_script(script), wanted, "{script}");
        }
    }

    #[test]
    fn linters_and_runners_are_asked_for_unless_the_project_brings_them() {
        for (lines, wanted) in [
            (&["ruff check ."][..], &["ruff"][..]),
            (&["CI=1 eslint . && tsc --noEmit"], &["eslint", "tsc"]),
            (&["mvn -B verify; gradle check"], &["mvn", "gradle"]),
            (&["bundle exec rake"], &["bundle"]),
            (&["terraform fmt -check", "buf lint"], &["terraform", "buf"]),
            (&["uv run ruff check ."], &["uv"]),
            (&["npx eslint ."], &["npm"]),
            (&["node_modules/.bin/eslint .", ".venv/bin/mypy"], &[]),
            (&["npm ci", "eslint ."], &["npm"]),
            (&["yarn && eslint . && ruff check"], &["yarn", "ruff"]),
            (&["pip install -r requirements.txt", "mypy ."], &["python"]),
            (&["venv/bin/python -m pip install -e .", "mypy ."], &[]),
            (&[". venv/bin/activate && mypy ."], &[]),
            (&["PATH=node_modules/.bin:$$PATH eslint ."], &[]),
            (
                &["export PATH=$$PWD/bin:$$PATH; black . && make x"],
                &["make"],
            ),
            (&["bundle install && rubocop"], &["bundle"]),
            (&["command -v ruff && ruff check ."], &[]),
            (&["ctest --test-dir build"], &["cmake"]),
        ] {
            assert_eq!(of_scripts(lines), wanted, "{lines:?}");
        }
    }

    #[test]
    fn what_is_called_only_if_it_is_there_is_not_asked_for() {
        for (lines, wanted) in [
            (&["command -v uv >/dev/null 2>&1 && uv sync"][..], &[][..]),
            (&["if which tox; then tox; else go vet; fi"], &["go"]),
            (&["which tox || pip install tox", "tox"], &["python"]),
            (
                &["go install x.org/golangci-lint@v2", "golangci-lint run"],
                &["go"],
            ),
            (&["which go", "go test"], &["go"]),
            (
                &["command -v go || { echo missing; exit 1; }", "go vet"],
                &["go"],
            ),
            (&["command -v go || (echo no; exit 0)", "go vet"], &[]),
            (&["hash uv && uv sync", "make x"], &["make"]),
        ] {
            assert_eq!(of_scripts(lines), wanted, "{lines:?}");
        }
    }
}
