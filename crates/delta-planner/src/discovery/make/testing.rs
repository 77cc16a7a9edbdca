//! Whether a command of a recipe runs the tests of an ecosystem, told by the words of its programs.
//! One that builds, lists or checks them runs none.

use super::super::counting::programs;

/// How calls begin that run tests, by ecosystem.
const TESTS: [(&str, &[&str]); 18] = [
    ("Cargo", &["cargo", "test"]),
    ("Cargo", &["cargo", "t"]),
    ("Cargo", &["cargo", "nextest", "run"]),
    ("Cargo", &["cargo", "nextest", "r"]),
    ("Cargo", &["cargo", "llvm-cov"]),
    ("Cargo", &["cargo", "tarpaulin"]),
    ("Cargo", &["cargo", "hack", "test"]),
    ("Go", &["go", "test"]),
    ("Go", &["gotestsum"]),
    ("Python", &["tox"]),
    ("Python", &["nox"]),
    ("Python", &["hatch", "test"]),
    ("Python", &["pytest"]),
    ("Python", &["py.test"]),
    ("Python", &["unittest"]),
    ("Python", &["nose2"]),
    ("Python", &["trial"]),
    ("Python", &["manage.py", "test"]),
];

/// Words with which these run nothing.
const IDLE: [&str; 14] = [
    "--no-run",
    "--list",
    "-list",
    "-l",
    "-c",
    "-n",
    "--help",
    "-h",
    "--version",
    "--collect-only",
    "--co",
    "--notest",
    "--showconfig",
    "list",
];

/// The words of [`IDLE`] that mean something else to tools which are not of Go.
const OF_GO: [&str; 3] = ["-c", "-n", "-list"];

/// Whether a command runs tests of an ecosystem.
pub fn tests(command: &str, ecosystem: &str) -> bool {
    programs(command).iter().any(|words| {
        // Which toolchain, and what is told before the subcommand: `cargo +nightly --locked test`.
        let told = |it: &&String| words[0] != "cargo" || !it.starts_with(['+', '-']);
        let shown: Vec<&str> = words.iter().filter(told).map(String::as_str).collect();
        let of = TESTS.iter().filter(|(of, _)| *of == ecosystem);
        let idle = |it: &String| {
            IDLE.contains(&it.as_str()) && (ecosystem == "Go" || !OF_GO.contains(&it.as_str()))
        };
        of.map(|it| it.1).any(|it| shown.starts_with(it)) && !words[1..].iter().any(idle)
    })
}

#[cfg(test)]
mod tests {
    use super::tests;

    #[test]
    fn only_calls_that_run_tests_are_tests() {
        for (command, ecosystem, wanted) in [
            ("cargo test --all", "Cargo", true),
            ("cargo +nightly --locked t", "Cargo", true),
            ("cargo nextest run", "Cargo", true),
            ("cargo fmt && cargo test", "Cargo", true),
            ("cargo build", "Cargo", false),
            ("cargo clippy --tests", "Cargo", false),
            ("cargo test --no-run", "Cargo", false),
            ("cargo nextest list", "Cargo", false),
            ("cargo test", "Go", false),
            ("go test -race ./...", "Go", true),
            ("go test -c ./...", "Go", false),
            ("go vet ./...", "Go", false),
            ("gotestsum -- ./...", "Go", true),
            ("tox -e py", "Python", true),
            ("tox -l", "Python", false),
            ("nox", "Python", true),
            ("uvx tox", "Python", true),
            ("uv run pytest -n auto -c a.ini", "Python", true),
            ("uv run --locked python -m pytest", "Python", true),
            ("uv run coverage run -m pytest", "Python", true),
            ("uv run ruff check", "Python", false),
            ("poetry run pytest --collect-only", "Python", false),
            ("poetry run mypy tests", "Python", false),
            ("hatch run test", "Python", false),
            ("hatch run lint", "Python", false),
            ("hatch test", "Python", true),
            ("uv run ruff check && test -f a", "Python", false),
            ("echo cargo test", "Cargo", false),
            ("# cargo test", "Cargo", false),
        ] {
            assert_eq!(tests(command, ecosystem), wanted, "{command}: {ecosystem}");
        }
    }
}
