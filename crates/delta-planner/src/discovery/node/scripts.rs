//! What the scripts of a `package.json` are: which of them check, and which can write a report.
//! Decided by their text alone, and only where it is one plain command.

use std::collections::HashMap;

use delta_wire::job_spec::CountTests;

use super::super::counting::Judge;
use super::super::found::Report;

/// Scripts that only look at the source, by the names they usually have.
const LINTS: [&str; 6] = [
    "lint",
    "format:check",
    "check:format",
    "typecheck",
    "type-check",
    "check-types",
];

/// The names of all scripts that jobs run.
pub fn run_by_jobs() -> impl Iterator<Item = &'static str> {
    LINTS.into_iter().chain(["build", "test"])
}

pub fn lints(scripts: &HashMap<String, String>) -> Vec<&'static str> {
    let there = LINTS.into_iter().filter(|name| scripts.contains_key(*name));
    there.collect()
}

/// The script `test`, unless it tests nothing: the one that `npm init` writes, or a mere `echo`.
pub fn test(scripts: &HashMap<String, String>) -> Option<&str> {
    let script = scripts.get("test")?;
    let says = |part: &str| {
        let first = part.split_whitespace().next().unwrap_or_default();
        matches!(first, "" | "echo" | "exit" | "true" | ":" | "printf")
    };
    let nothing = script.contains("no test specified") || script.split(['&', ';']).all(says);
    (!nothing).then_some(script)
}

/// Names of scripts that one starts in turn; beyond it nobody follows.
const MAX_STARTED: usize = 8;

/// The text of a script, and of the scripts of the same package that it starts.
pub fn followed(scripts: &HashMap<String, String>, name: &str) -> String {
    let mut names = vec![name.to_owned()];
    let mut text = String::new();
    let mut at = 0;
    while let Some(script) = names.get(at).and_then(|it| scripts.get(it)) {
        at += 1;
        text.push_str(script);
        text.push('\n');
        let words: Vec<&str> = script.split_whitespace().collect();
        for pair in words.windows(2) {
            let runs = matches!(pair[0], "run" | "npm" | "pnpm" | "yarn" | "bun");
            let new = scripts.contains_key(pair[1]) && !names.iter().any(|it| it == pair[1]);
            if runs && new && names.len() < MAX_STARTED {
                names.push(pair[1].to_owned());
            }
        }
    }
    text
}

/// Tools that know which packages need which, and build what comes before.
const TASK_RUNNERS: [&str; 4] = ["nx", "turbo", "lerna", "wireit"];

/// Whether a script is carried out by a tool that goes over all packages in order.
pub fn is_by_task_runner(text: &str) -> bool {
    let words = text.split(|c: char| c.is_whitespace() || "&|;\"'".contains(c));
    let mut words = words.map(|it| it.rsplit('/').next().unwrap_or(it));
    words.any(|it| TASK_RUNNERS.contains(&it))
}

/// Where it is told how many tests a script of these ran that writes no report.
pub fn count(scripts: &HashMap<String, String>, name: &str) -> CountTests {
    let judge = Judge {
        scripts: Some(scripts),
        verbosity: 0,
    };
    if is_by_task_runner(&followed(scripts, name)) {
        CountTests::None
    } else {
        judge.count(scripts.get(name))
    }
}

/// Options with which Jest runs nothing, does not end, or writes a report already.
const JEST_OTHER: [&str; 8] = [
    "--json",
    "--outputFile",
    "--watch",
    "--listTests",
    "--showConfig",
    "--init",
    "--help",
    "--version",
];

/// What Vitest does instead of running tests once.
const VITEST_OTHER: [&str; 5] = ["dev", "watch", "list", "bench", "init"];

/// What a test script must be told so that it writes a report, and where that is.
pub fn report(script: &str, folder: &str) -> Option<(&'static str, Report)> {
    if script.contains(['&', '|', ';', '>', '<', '`', '$', '\n']) {
        return None;
    }
    let mut words = script.split_whitespace().peekable();
    // `NODE_ENV=test jest`, `cross-env CI=1 jest`
    while words
        .peek()
        .is_some_and(|it| it.contains('=') || matches!(*it, "cross-env" | "npx"))
    {
        words.next();
    }
    let tool = words.next()?;
    let rest: Vec<&str> = words.collect();
    let told = |flag: &str| rest.iter().any(|it| it.starts_with(flag));
    match (tool, rest.first()) {
        ("jest", _) if !JEST_OTHER.iter().any(|it| told(it)) => Some((
            "--json --outputFile=test-results.json",
            Report::in_folder(folder, "jest", "test-results.json")?,
        )),
        ("vitest", first)
            if !told("--reporter")
                && !told("--watch")
                && !first.is_some_and(|it| VITEST_OTHER.contains(it)) =>
        {
            Some((
                "--run --reporter=default --reporter=json --outputFile=test-results.json",
                Report::in_folder(folder, "jest", "test-results.json")?,
            ))
        }
        // Flags behind the names of files would be the files' own.
        ("node", Some(&"--test")) if rest.iter().all(|it| it.starts_with("--")) => {
            if told("--test-reporter") {
                return None;
            }
            Some((
                "--test-reporter=spec --test-reporter-destination=stdout \
                 --test-reporter=tap --test-reporter-destination=test-results.tap",
                Report::in_folder(folder, "tap", "test-results.tap")?,
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(script: &str) -> Option<&'static str> {
        report(script, "").map(|(_, report)| report.format)
    }

    fn scripts(all: &[(&str, &str)]) -> HashMap<String, String> {
        let all = all
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        all.collect()
    }

    #[test]
    fn what_tests_nothing_is_no_test() {
        for text in [
            "echo \"no test specified\" && exit 1",
            "echo later",
            "exit 0",
            "true",
            "",
        ] {
            assert_eq!(test(&scripts(&[("test", text)])), None, "{text}");
        }
        assert!(test(&scripts(&[("test", "echo go && mocha")])).is_some());
    }

    #[test]
    fn a_script_is_followed_to_what_it_starts() {
        let all = scripts(&[
            ("test", "pnpm run test:ci"),
            ("test:ci", "nx run-many --targets=test"),
            ("a", "npm run b"),
            ("b", "yarn a"),
        ]);
        assert!(is_by_task_runner(&followed(&all, "test")));
        assert_eq!(followed(&all, "a"), "npm run b\nyarn a\n");
        assert!(!is_by_task_runner("mocha next/*.js"));
    }

    #[test]
    fn counted_is_what_ends_with_a_line_that_is_known() {
        for (text, wanted) in [
            ("npm run build && jest", CountTests::Output),
            ("node_modules/.bin/mocha", CountTests::Output),
            ("node --test test/*.js", CountTests::Output),
            ("npm run unit", CountTests::Output),
            ("npm run unit | tap-spec", CountTests::None),
            ("mocha -R json", CountTests::None),
            ("turbo run test", CountTests::None),
            ("npm run packages", CountTests::None),
            ("tap", CountTests::None),
            ("node test.js", CountTests::None),
        ] {
            let all = scripts(&[
                ("test", text),
                ("unit", "tape test"),
                ("build", "tsc"),
                ("packages", "nx run-many && jest"),
            ]);
            assert_eq!(count(&all, "test"), wanted, "{text}");
        }
    }

    #[test]
    fn only_one_plain_command_is_told_to_write_a_report() {
        assert_eq!(format("jest"), Some("jest"));
        assert_eq!(format("NODE_ENV=test npx jest --coverage"), Some("jest"));
        assert_eq!(format("vitest run"), Some("jest"));
        assert_eq!(format("node --test"), Some("tap"));
        for script in [
            "npm run build && jest",
            "jest --json",
            "jest --listTests",
            "vitest list",
            "vitest --reporter=junit",
            "node --test test/*.js",
            "node --test --test-reporter=dot",
            "mocha",
            "echo $(jest)",
            "",
        ] {
            assert_eq!(format(script), None, "{script}");
        }
    }
}
