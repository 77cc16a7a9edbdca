//! Whether what a script runs tells how many tests ran: one judge for the recipes of a makefile,
//! the scripts of a package, environments of tox and sessions of nox.
//!
//! Judged are the words of each command: the program behind assignments and wrappers, its
//! subcommand, and the options that change what it prints. A name in a comment, in a message or in
//! the middle of another word is none. What is in doubt is not counted: a job that fails for a
//! count that nobody printed would be red on a clean tree.

mod tools;
mod wrappers;

use std::collections::HashMap;

use delta_wire::job_spec::CountTests;

use self::wrappers::Meant;
pub use self::wrappers::behind_system;
use super::shell;

/// Scripts that one starts in turn; beyond it nobody follows.
const MAX_DEPTH: usize = 8;

/// Commands, and names of scripts, that one judgement looks at; beyond it is doubt. Scripts that
/// start each other many times over would multiply without it.
const MAX_CALLS: usize = 1_000;

/// Bytes of a script that count as one command more.
const BYTES_A_CALL: usize = 1024;

/// What is known beside a script's own text.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    /// Scripts of the same package, by their names.
    pub scripts: Option<&'a HashMap<String, String>>,
    /// How much pytest is told to say, or not to say, by its own file.
    pub verbosity: i32,
}

/// What is heard of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    Nothing,
    /// How many ran.
    Count,
    /// Tests run, and nobody knows what is printed of them.
    Doubt,
}

impl Judge<'_> {
    /// A judge who knows nothing but the text.
    pub const BARE: Judge<'static> = Judge {
        scripts: None,
        verbosity: 0,
    };

    /// Where it is told how many tests these scripts run, one after the other.
    pub fn count<S: AsRef<str>>(&self, scripts: impl IntoIterator<Item = S>) -> CountTests {
        match Walk::of(*self).scripts(scripts) {
            Heard::Count => CountTests::Output,
            Heard::Nothing | Heard::Doubt => CountTests::None,
        }
    }
}

/// The words of the programs that a script starts, behind what only starts them.
pub fn programs(script: &str) -> Vec<Vec<String>> {
    let calls = shell::calls(script).into_iter();
    let meant = calls.map(|call| {
        let words: Vec<&str> = call.words.iter().map(String::as_str).collect();
        wrappers::meant(&words, &|_| false)
    });
    let words = meant.filter_map(|it| match it {
        Meant::Program { words, .. } => Some(words),
        Meant::Scripts { .. } | Meant::Nothing => None,
    });
    words.collect()
}

/// One judgement on its way through scripts that start each other.
struct Walk<'a> {
    judge: Judge<'a>,
    /// Names of the scripts that are being read, each started by the one before it.
    way: Vec<&'a str>,
    /// What may still be looked at.
    left: usize,
}

impl<'a> Walk<'a> {
    fn of(judge: Judge<'a>) -> Walk<'a> {
        Walk {
            judge,
            way: Vec::new(),
            left: MAX_CALLS,
        }
    }

    fn scripts<S: AsRef<str>>(&mut self, scripts: impl IntoIterator<Item = S>) -> Heard {
        let mut heard = Heard::Nothing;
        for script in scripts {
            heard = heard.max(self.script(script.as_ref()));
            // Nothing that comes later takes a doubt away.
            if heard == Heard::Doubt {
                break;
            }
        }
        heard
    }

    /// Takes one more thing to look at from what is left; false where nothing is.
    fn may_look(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    fn script(&mut self, text: &str) -> Heard {
        // A long text is as much to read as many short ones.
        self.left = self.left.saturating_sub(text.len() / BYTES_A_CALL);
        if self.left == 0 {
            return Heard::Doubt;
        }
        let mut heard = Heard::Nothing;
        for call in shell::calls(text) {
            if !self.may_look() {
                return Heard::Doubt;
            }
            let words: Vec<&str> = call.words.iter().map(String::as_str).collect();
            let of_call = match self.command(&words) {
                Heard::Count if !call.plain => Heard::Doubt,
                heard => heard,
            };
            heard = heard.max(of_call);
            if heard == Heard::Doubt {
                break;
            }
        }
        heard
    }

    fn command(&mut self, words: &[&str]) -> Heard {
        let scripts = self.judge.scripts;
        let named = |name: &str| scripts.is_some_and(|it| it.contains_key(name));
        match wrappers::meant(words, &named) {
            Meant::Nothing => Heard::Nothing,
            Meant::Program { words, changed } => match tools::heard(&words, self.judge.verbosity) {
                Heard::Count if changed => Heard::Doubt,
                heard => heard,
            },
            Meant::Scripts { names, more } => {
                let mut heard = Heard::Nothing;
                for name in &names {
                    heard = heard.max(self.named(name, &more));
                    if heard == Heard::Doubt {
                        break;
                    }
                }
                heard
            }
        }
    }

    /// What is heard of the scripts of one name, or of a beginning of names: `test:*`.
    fn named(&mut self, name: &str, more: &str) -> Heard {
        if !self.may_look() {
            return Heard::Doubt;
        }
        let Some(all) = self.judge.scripts else {
            return Heard::Nothing;
        };
        let found: Vec<(&str, &str)> = match name.strip_suffix('*') {
            Some(start) => {
                let like = all.iter().filter(|(it, _)| it.starts_with(start));
                like.map(|(name, text)| (name.as_str(), text.as_str()))
                    .collect()
            }
            None => {
                let one = all.get_key_value(name).into_iter();
                one.map(|(name, text)| (name.as_str(), text.as_str()))
                    .collect()
            }
        };
        let mut heard = Heard::Nothing;
        for (name, text) in found {
            let again = self.way.contains(&name) || self.way.len() >= MAX_DEPTH;
            if again || !self.may_look() {
                return Heard::Doubt;
            }
            self.way.push(name);
            heard = heard.max(self.script(&format!("{text} {more}")));
            self.way.pop();
        }
        heard
    }
}

/// How much pytest is told to say by the options of its own file.
pub fn verbosity(options: &str) -> i32 {
    let words: Vec<&str> = options.split_whitespace().collect();
    tools::told_verbosity(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command, whether it is counted, and why.
    const TABLE: &[(&str, bool, &str)] = &[
        ("cargo test", true, "ends with `test result:`"),
        (
            "cargo test -q",
            true,
            "is quiet about each test, and not about the result",
        ),
        (
            "cargo +nightly --locked t --all",
            true,
            "the subcommand stands behind options",
        ),
        ("cargo test --no-run", false, "only builds"),
        ("cargo test -- --list", false, "only lists"),
        (
            "cargo test -- --format json",
            false,
            "prints something else",
        ),
        (
            "cargo nextest run --profile ci",
            true,
            "ends with a summary",
        ),
        ("cargo nextest list", false, "only lists"),
        ("cargo build", false, "tests nothing"),
        ("cargo xtask test", false, "is a program of the project"),
        ("go test ./...", true, "names each package"),
        (
            "go test -race -count=1 $(PKGS)",
            true,
            "a variable holds packages",
        ),
        ("go test -json ./...", false, "prints events"),
        ("go test -c ./a", false, "only builds"),
        ("go vet ./...", false, "tests nothing"),
        ("gotestsum -- ./...", true, "ends with DONE"),
        ("gotestsum tool slowest", false, "runs nothing"),
        ("./scripts/go test", false, "is a file of the repository"),
        ("pytest", true, "ends with how many passed"),
        (
            "pytest -q tests",
            true,
            "once quiet it still says how many passed",
        ),
        ("pytest -qq", false, "twice quiet it says nothing"),
        ("pytest -q -q", false, "twice quiet it says nothing"),
        ("pytest -qqv", true, "one of them is taken back"),
        ("pytest --collect-only", false, "only lists"),
        ("pytest --co -q", false, "only lists"),
        ("pytest -p no:terminal", false, "prints nothing"),
        (
            "PYTEST_ADDOPTS=-qq pytest",
            false,
            "the environment changes what it prints",
        ),
        ("python -m pytest -x", true, "a module is its program"),
        (
            "python3.12 -W error -m unittest discover",
            true,
            "ends with Ran",
        ),
        ("python -c 'import pytest'", false, "runs a text"),
        ("python tests/pytest", false, "is a file of the repository"),
        (
            "python manage.py test",
            true,
            "Django's runner is unittest's",
        ),
        (
            "./manage.py test app",
            true,
            "Django's runner is unittest's",
        ),
        ("python manage.py migrate", false, "tests nothing"),
        (".venv/bin/pytest", true, "is installed there"),
        (
            "uv run --locked --extra test pytest",
            true,
            "uv only starts it",
        ),
        ("uv run -m pytest", true, "uv only starts it"),
        ("poetry run pytest", true, "poetry only starts it"),
        (
            "coverage run --source a -m pytest",
            true,
            "coverage only starts it",
        ),
        (
            "poetry run coverage run -m unittest",
            true,
            "one starts another",
        ),
        (
            "time env A=b xvfb-run -a pytest",
            true,
            "all of them only start it",
        ),
        (
            "timeout -k 5 60 pytest",
            true,
            "how long it may take comes first",
        ),
        ("pip install pytest", false, "installs it"),
        ("./unittests", false, "a name that has another in it"),
        ("improve --all", false, "a name that has another in it"),
        ("echo run pytest", false, "only says so"),
        ("# pytest", false, "is a comment"),
        ("make # pytest", false, "is a comment"),
        (
            "docker run image pytest",
            false,
            "another machine's words are not judged",
        ),
        (
            "ctest --output-on-failure",
            true,
            "ends with how many passed",
        ),
        ("ctest -N", false, "only lists"),
        ("ctest -Q", false, "prints nothing"),
        ("prove -lr t", true, "ends with Tests="),
        ("prove -Q t", true, "prints the result alone"),
        (
            "prove --formatter TAP::Formatter::JUnit",
            false,
            "prints something else",
        ),
        ("prove -D", false, "only lists"),
        ("jest", true, "ends with Tests:"),
        (
            "jest --silent --coverage",
            true,
            "only what tests print is left out",
        ),
        (
            "jest --reporters=jest-silent-reporter",
            false,
            "prints something else",
        ),
        (
            "jest --reporters=default --reporters=jest-junit",
            true,
            "one of them is its own",
        ),
        ("jest --listTests", false, "only lists"),
        ("NODE_ENV=test npx --yes jest", true, "npx only starts it"),
        ("cross-env CI=1 jest", true, "cross-env only starts it"),
        (
            "node --experimental-vm-modules node_modules/jest/bin/jest.js",
            true,
            "node starts it",
        ),
        ("node_modules/.bin/mocha", true, "is installed there"),
        ("tools/mocha", false, "is a file of the repository"),
        ("vitest run", true, "ends with Tests"),
        (
            "vitest run --reporter=dot",
            true,
            "which ends with the same lines",
        ),
        ("vitest run --reporter json", false, "prints something else"),
        ("vitest list", false, "only lists"),
        ("mocha", true, "ends with passing"),
        (
            "mocha --reporter dot",
            true,
            "which ends with the same lines",
        ),
        ("mocha -R json", false, "prints something else"),
        ("mocha -Rjson", false, "prints something else"),
        (
            "mocha --reporter=mochawesome",
            false,
            "prints something else",
        ),
        (
            "mocha --dry-run",
            false,
            "counts tests that it does not run",
        ),
        ("mocha | pino-pretty", false, "another program prints it"),
        ("tape test | tap-spec", false, "another program prints it"),
        ("tape test", true, "ends with tests"),
        ("c8 --reporter lcov mocha", true, "c8 only starts it"),
        ("nyc mocha", true, "nyc only starts it"),
        ("ava", true, "ends with tests passed"),
        ("node --test", true, "ends with tests"),
        (
            "node --test --test-reporter=spec test/*.js",
            true,
            "which is its own",
        ),
        ("node --test --test-reporter=dot", false, "prints dots"),
        (
            "node --test --test-reporter tap --test-reporter-destination=x",
            false,
            "into a file",
        ),
        ("node test.js", false, "prints what it likes"),
        ("bun test", true, "ends with pass"),
        ("deno test -A", true, "ends with passed"),
        ("playwright test", true, "ends with passed"),
        (
            "playwright test --reporter=html",
            false,
            "prints something else",
        ),
        ("playwright install", false, "tests nothing"),
        (
            "tsc && jest",
            true,
            "one after another, and the last is counted",
        ),
        ("jest && ./e2e.sh", true, "what is counted is counted"),
        ("jest && mocha -R json", false, "one of both is in doubt"),
        ("jest || true", false, "another outcome"),
        ("jest > out.txt", false, "is printed elsewhere"),
        ("jest 2>&1", true, "both reach the log"),
        ("jest &", false, "nobody waits for it"),
        (
            "for d in a b; do (cd $d && go test); done",
            false,
            "nobody knows how often",
        ),
        ("sh -c 'pytest'", false, "a script in a script is not read"),
        (
            "turbo run test",
            false,
            "goes over packages and prints what it likes",
        ),
        ("", false, "is nothing"),
    ];

    #[test]
    fn counted_is_what_is_known_to_say_how_many() {
        for (command, counted, why) in TABLE {
            let wanted = if *counted {
                CountTests::Output
            } else {
                CountTests::None
            };
            assert_eq!(Judge::BARE.count([command]), wanted, "{command}: {why}");
        }
    }

    #[test]
    fn scripts_of_the_package_are_followed() {
        let scripts: HashMap<String, String> = [
            ("unit", "mocha"),
            ("quiet", "mocha -R json"),
            ("test:a", "jest"),
            ("test:b", "tape x"),
            ("loop", "npm run loop"),
            ("build", "tsc"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
        let judge = Judge {
            scripts: Some(&scripts),
            verbosity: 0,
        };
        for (command, counted) in [
            ("npm run unit", true),
            ("npm run build && npm run unit", true),
            ("npm run unit -- --grep x", true),
            ("npm run unit -- --reporter json", false),
            ("npm run unit | tap-spec", false),
            ("npm run unit || true", false),
            ("npm run quiet", false),
            ("npm run build", false),
            ("npm run unit --workspace=a", false),
            ("npm run nothing", false),
            ("yarn unit", true),
            ("yarn jest", true),
            ("pnpm run unit", true),
            ("pnpm -r run unit", false),
            ("pnpm vitest run", true),
            ("bun run unit", true),
            ("run-s build test:*", true),
            ("run-p -l test:*", false),
            ("npm run loop", false),
        ] {
            let said = judge.count([command]) == CountTests::Output;
            assert_eq!(said, counted, "{command}");
        }
    }

    /// Neither scripts that start themselves nor many that start many take longer than any other.
    #[test]
    fn scripts_that_start_each_other_are_looked_at_so_often() {
        let chain = |from: &str, to: &str| (from.to_owned(), vec![format!("npm run {to}"); 20]);
        let of = |rows: Vec<(String, Vec<String>)>| -> HashMap<String, String> {
            let rows = rows.into_iter();
            rows.map(|(name, calls)| (name, calls.join(" && ")))
                .collect()
        };
        let one = |name: &str, text: String| (name.to_owned(), vec![text]);
        for (scripts, wanted, looks) in [
            (of(vec![chain("a", "a")]), Heard::Doubt, 10),
            (of(vec![chain("a", "b"), chain("b", "a")]), Heard::Doubt, 10),
            (
                of(vec![
                    chain("a", "b"),
                    chain("b", "c"),
                    chain("c", "d"),
                    chain("d", "e"),
                    one("e", "true".to_owned()),
                ]),
                Heard::Doubt,
                MAX_CALLS,
            ),
            (
                of(vec![
                    chain("a", "b"),
                    one("b", format!("true {}", "x".repeat(100 * BYTES_A_CALL))),
                ]),
                Heard::Doubt,
                MAX_CALLS,
            ),
            (
                of(vec![one("a", format!("run-s {}", "b ".repeat(5_000)))]),
                Heard::Doubt,
                MAX_CALLS,
            ),
            (
                of(vec![chain("a", "b"), one("b", "jest".to_owned())]),
                Heard::Count,
                100,
            ),
        ] {
            let judge = Judge {
                scripts: Some(&scripts),
                verbosity: 0,
            };
            let mut walk = Walk::of(judge);
            let heard = walk.scripts(["npm run a"]);
            let looked = MAX_CALLS - walk.left;
            assert_eq!(heard, wanted, "{scripts:?}");
            assert!(looked <= looks, "{looked} of {looks}: {scripts:?}");
        }
    }

    /// Nobody says how much a number in a repository's file is.
    #[test]
    fn numbers_of_any_size_are_added_up() {
        for (command, counted) in [
            ("pytest --verbosity=2147483647 -v --verbose -vv", true),
            ("pytest --verbosity=-2147483648 -q --quiet", false),
            ("pytest --verbosity=99999999999", true),
        ] {
            for file in [i32::MIN, 0, i32::MAX] {
                let judge = Judge {
                    scripts: None,
                    verbosity: file,
                };
                let said = judge.count([command]) == CountTests::Output;
                assert!(file != 0 || said == counted, "{command}");
            }
        }
    }

    /// pytest adds up what its file and its command say.
    #[test]
    fn pytests_own_file_may_have_made_it_quiet() {
        let judge = |options: &str| Judge {
            scripts: None,
            verbosity: verbosity(options),
        };
        for (options, command, counted) in [
            ("-ra", "pytest", true),
            ("-q", "pytest", true),
            ("-q --strict-markers", "pytest -q", false),
            ("-qq", "pytest", false),
            ("-qq", "pytest -v", true),
            ("-qq", "python -m unittest", true),
        ] {
            let said = judge(options).count([command]) == CountTests::Output;
            assert_eq!(said, counted, "{options}: {command}");
        }
    }
}
