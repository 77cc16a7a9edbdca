//! Which scripts of a workspace's root start those of its packages. Judged by the words of each
//! call: only a package manager that is told so goes over packages, whatever another program's
//! options are called, and a script is left to the packages only if it does nothing else.

use std::collections::HashMap;

use super::super::shell;

/// How much of the packages' scripts of its own name a script of the root starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// None of them.
    Nothing,
    /// Some of them, and something else.
    Some,
    /// All of them, and something else.
    All,
    /// Nothing else is done.
    Only,
}

/// Scripts of the root that one is followed through; beyond it the script is more than a start.
const MAX_FOLLOWED: usize = 16;

/// What a script of the root starts, with its hooks and the scripts of the root that it goes
/// through.
pub fn over(scripts: &HashMap<String, String>, name: &str) -> Over {
    let mut names = vec![name.to_owned()];
    let (mut some, mut all, mut more) = (false, false, false);
    // Jobs of packages are only dropped where the root's fails with what it starts.
    let mut heard = true;
    let mut at = 0;
    while at < names.len() {
        let hooked = ["pre", "post"].map(|hook| format!("{hook}{}", names[at]));
        let texts = std::iter::once(&names[at]).chain(&hooked);
        let texts: Vec<&String> = texts.filter_map(|script| scripts.get(script)).collect();
        let calls: Vec<shell::Call> = texts.iter().flat_map(|text| shell::calls(text)).collect();
        heard &= texts.iter().all(|text| is_heard(text));
        at += 1;
        for call in &calls {
            let words: Vec<&str> = call.words.iter().map(String::as_str).collect();
            match started(&words) {
                Start::Nothing => {}
                Start::Packages { script, every } if script == name => {
                    some = true;
                    all |= every;
                }
                // Jobs of packages build before they test.
                Start::Packages { script, .. } if name == "test" && script == "build" => {}
                Start::Own(script) if scripts.contains_key(script) => {
                    let new = !names.iter().any(|other| other == script);
                    if new && names.len() < MAX_FOLLOWED {
                        names.push(script.to_owned());
                    } else {
                        more |= new;
                    }
                }
                Start::Packages { .. } | Start::Own(_) | Start::Else => more = true,
            }
        }
    }
    match (some, more, all && heard) {
        (false, ..) => Over::Nothing,
        (true, false, _) => Over::Only,
        (true, true, true) => Over::All,
        (true, true, false) => Over::Some,
    }
}

/// Whether a script fails with each script that it starts: none of its commands has another
/// outcome, stands in a pipe or in the dark, or is followed by one that runs whatever came before.
fn is_heard(text: &str) -> bool {
    let calls = shell::calls(text);
    let divided = text.contains([';', '\n']);
    let (before, plain) = (
        calls.len().saturating_sub(1),
        calls.iter().all(|it| it.plain),
    );
    let starts = |call: &shell::Call| {
        let words: Vec<&str> = call.words.iter().map(String::as_str).collect();
        matches!(started(&words), Start::Packages { .. } | Start::Own(_))
    };
    plain && !(divided && calls[..before].iter().any(starts))
}

/// What one command starts.
enum Start<'w> {
    /// It only says something.
    Nothing,
    /// A script of packages: of every one, or of those that are named.
    Packages {
        script: &'w str,
        every: bool,
    },
    /// A script of the root.
    Own(&'w str),
    Else,
}

/// Options of package managers that take a value and say nothing of where a script is.
const VALUED: [&str; 6] = [
    "--workspace-concurrency",
    "--reporter",
    "--loglevel",
    "-j",
    "--jobs",
    "--script-shell",
];

/// Options that name packages, with their value.
const NAMING: [&str; 9] = [
    "--workspace",
    "-w",
    "--filter",
    "-F",
    "--filter-prod",
    "--include",
    "--exclude",
    "--from",
    "--since",
];

/// Options by which yarn leaves out packages that it does not name: those for `workspaces foreach`,
/// short ones also together, as `-Rpt`.
fn is_narrowing(flag: &str) -> bool {
    let short = flag.starts_with('-') && !flag.starts_with("--") && flag.contains('R');
    short || matches!(flag, "--no-private" | "--public" | "--recursive")
}

/// Options with which the script is that of another folder.
const ELSEWHERE: [&str; 5] = ["--prefix", "-C", "--dir", "--cwd", "--top-level"];

fn started<'w>(words: &[&'w str]) -> Start<'w> {
    let is_before = |it: &&str| *it == "cross-env" || is_assigned(it);
    let start = words.iter().position(|word| !is_before(word));
    let words = &words[start.unwrap_or(words.len())..];
    let Some((manager, rest)) = words.split_first() else {
        return Start::Nothing;
    };
    match *manager {
        "echo" | "printf" | "true" | ":" => Start::Nothing,
        "npm" | "pnpm" | "yarn" | "bun" => by_manager(manager, rest),
        _ => Start::Else,
    }
}

/// `NAME=value`
fn is_assigned(word: &str) -> bool {
    let name = word.split_once('=').map(|parts| parts.0);
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

fn by_manager<'w>(manager: &str, words: &[&'w str]) -> Start<'w> {
    let (mut goes_over, mut named, mut run) = (false, false, false);
    let mut script = None;
    let mut words = words.iter().copied().peekable();
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if word.starts_with('-') => (flag, Some(value)),
            _ => (word, None),
        };
        match flag {
            "--" => break,
            // To pnpm it is the root.
            "-w" if manager == "pnpm" => {}
            // Some are left out by what they are, or by what needs what.
            it if manager == "yarn" && is_narrowing(it) => (goes_over, named) = (true, true),
            "--workspaces" | "-ws" | "-r" | "--recursive" => goes_over = true,
            it if NAMING.contains(&it) => {
                let value = value.or_else(|| words.next());
                goes_over = true;
                named |= !matches!(value, Some("*" | "**"));
            }
            it if ELSEWHERE.contains(&it) => return Start::Else,
            it if VALUED.contains(&it) && value.is_none() => drop(words.next()),
            it if it.starts_with('-') => {}
            "run" | "run-script" if !run && script.is_none() => run = true,
            "workspaces" if manager == "yarn" && !goes_over && !run => {
                goes_over = true;
                words.next_if(|next| *next == "foreach");
            }
            "workspace" if manager == "yarn" && !goes_over && !run => {
                (goes_over, named) = (true, true);
                words.next();
            }
            _ if script.is_none() => {
                script = Some(word);
                // What stands behind it is for the script, but to npm.
                if manager != "npm" {
                    break;
                }
            }
            _ => {}
        }
    }
    let script = match script {
        Some("t" | "tst") if manager == "npm" && !run => Some("test"),
        // Without `run` these know words of their own.
        Some(it) if manager == "npm" && !run && it != "test" => None,
        Some(_) if manager == "bun" && !run && !goes_over => None,
        other => other,
    };
    match script {
        None => Start::Else,
        Some(script) if goes_over => Start::Packages {
            script,
            every: !named,
        },
        Some(script) => Start::Own(script),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the script of this name is, among scripts that others start.
    fn of(name: &str, text: &str) -> Over {
        let scripts = [
            (name, text),
            ("test:types", "tsc --noEmit"),
            ("test:packages", "pnpm -r run test"),
            ("round", "npm run round"),
        ];
        let scripts = scripts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        over(&scripts.into(), name)
    }

    #[test]
    fn a_script_is_left_to_packages_only_if_each_call_starts_theirs() {
        for text in [
            "npm run test --workspaces --if-present",
            "npm test -ws -- --coverage",
            "npm t --workspace=a -w b",
            "pnpm -r test",
            "pnpm --recursive --if-present run test",
            "pnpm --workspace-concurrency 1 -r run test",
            "pnpm --filter a test",
            "pnpm -r build && pnpm -r test",
            "yarn workspaces run test",
            "yarn workspaces foreach --all -pt run test",
            "yarn workspace a test && yarn workspace b run test",
            "bun run --filter '*' test",
            "bun --filter './packages/*' test",
            "CI=1 cross-env A=b pnpm run test:packages && echo done",
        ] {
            assert_eq!(of("test", text), Over::Only, "{text}");
        }
    }

    #[test]
    fn a_script_that_does_something_else_too_stays_with_the_root() {
        for (text, wanted) in [
            (
                "node --test a.test.js && npm run test --workspaces",
                Over::All,
            ),
            ("npm run test --workspaces && npm run test:types", Over::All),
            ("jest; yarn workspaces run test", Over::All),
            ("vitest run && bun run --filter '*' test", Over::All),
            ("pnpm --filter a test && pnpm test:types", Over::Some),
            ("pnpm -r --filter a test | tee log", Over::Some),
            (
                "jest && yarn workspaces foreach --all --no-private run test",
                Over::Some,
            ),
            (
                "jest && yarn workspaces foreach -Rpt --from a run test",
                Over::Some,
            ),
            ("jest && yarn workspaces foreach -R run test", Over::Some),
            ("jest && npm test -ws || true", Over::Some),
            ("npm test -ws && jest || true", Over::Some),
            ("npm test -ws & jest", Over::Some),
            ("npm test -ws; jest", Over::Some),
            ("jest && pnpm run test:packages || echo failed", Over::Some),
            ("pnpm run test:packages; jest", Over::Some),
            ("vitest run --workspace=vitest.workspace.ts", Over::Nothing),
            ("mocha --filter a -r esm", Over::Nothing),
            ("pnpm -r exec tsc", Over::Nothing),
            ("pnpm -r run test:unit", Over::Nothing),
            ("npm run types --workspaces", Over::Nothing),
            ("npm --prefix a run test", Over::Nothing),
            ("pnpm -w run test:types", Over::Nothing),
            ("pnpm run test:types -r", Over::Nothing),
            ("npm ci --workspaces", Over::Nothing),
            ("bun test --filter a", Over::Nothing),
            ("npm run round", Over::Nothing),
            ("npm test", Over::Nothing),
            ("", Over::Nothing),
        ] {
            assert_eq!(of("test", text), wanted, "{text}");
        }
        assert_eq!(of("lint", "eslint . && npm run lint -ws"), Over::All);
        assert_eq!(of("lint", "pnpm -r build && pnpm -r lint"), Over::All);
    }

    #[test]
    fn a_hook_belongs_to_its_script() {
        let scripts = [("test", "pnpm -r test"), ("posttest", "eslint .")];
        let scripts = scripts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(over(&scripts.into(), "test"), Over::All);
    }
}
