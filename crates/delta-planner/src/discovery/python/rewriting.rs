//! Commands that change what they look at instead of checking it: run as a lint they are green
//! whatever there is to say.

use super::super::counting::programs;

/// Formatters that write unless they are told to check, and the options that tell them so.
const WRITERS: [(&[&str], &[&str]); 5] = [
    (&["black"], &["--check", "--diff"]),
    (&["isort"], &["--check", "--diff", "-c"]),
    (&["ruff", "format"], &["--check", "--diff"]),
    (&["pyupgrade"], &[]),
    (&["add-trailing-comma"], &[]),
];

/// Tools that write where they are told to, and the options that tell them so. Linters that mend
/// what they can are none of them: they fail on what they cannot.
const TOLD: [(&[&str], &[&str]); 6] = [
    (&["autopep8"], &["-i", "--in-place"]),
    (&["autoflake"], &["-i", "--in-place"]),
    (&["docformatter"], &["-i", "--in-place"]),
    (&["yapf"], &["-i", "--in-place"]),
    (&["prettier"], &["-w", "--write"]),
    (&["codespell"], &["-w", "--write-changes"]),
];

/// Commands that say something, and neither check nor change anything.
const IDLE: [&str; 4] = ["echo", "printf", "true", ":"];

/// Whether these commands, one in a line, change files and check nothing.
pub fn only_rewrite(commands: &str) -> bool {
    let all: Vec<Vec<String>> = commands.lines().flat_map(programs).collect();
    let idle = |words: &&Vec<String>| !IDLE.contains(&words[0].as_str());
    let mut doing = all.iter().filter(idle).peekable();
    doing.peek().is_some() && doing.all(|words| rewrites(words))
}

fn rewrites(words: &[String]) -> bool {
    let begins = |start: &[&str]| {
        let shown = words.iter().map(String::as_str);
        start.len() <= words.len() && shown.zip(start).all(|(word, it)| word == *it)
    };
    // A word may stand in what tox has in its place: `{posargs:--check .}`.
    let has = |options: &[&str]| {
        let long = |word: &String, it: &str| it.starts_with("--") && word.contains(it);
        let mut options = options.iter();
        options.any(|option| {
            words
                .iter()
                .any(|word| word == option || long(word, option))
        })
    };
    let writer = WRITERS.iter().find(|(start, _)| begins(start));
    if let Some((_, checks)) = writer {
        return !has(checks);
    }
    let mut told = TOLD.iter();
    told.any(|(start, writes)| begins(start) && has(writes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_writes_is_told_from_what_checks() {
        for (commands, wanted) in [
            ("black .", true),
            ("black {posargs:.}\nisort .", true),
            ("python -m black src\necho done", true),
            ("ruff format", true),
            ("isort .\nruff format .", true),
            ("autoflake -i -r src", true),
            ("black --check .", false),
            ("black {posargs:--check .}", false),
            ("isort -c .", false),
            ("ruff format --diff .", false),
            ("ruff check .", false),
            ("ruff check --fix .\nruff format .", false),
            ("eslint --fix src", false),
            ("ruff check --fix --exit-non-zero-on-fix", false),
            ("black .\nflake8 src", false),
            ("pre-commit run --all-files", false),
            ("{unread}", false),
            ("echo a", false),
            ("", false),
        ] {
            assert_eq!(only_rewrite(commands), wanted, "{commands}");
        }
    }
}
