//! What the scripts of a `package.json` are: which of them check, and which can write a report.
//! Decided by their text alone, and only where it is one plain command.

use std::collections::HashMap;

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

pub fn lints(scripts: &HashMap<String, String>) -> Vec<&'static str> {
    let there = LINTS.into_iter().filter(|name| scripts.contains_key(*name));
    there.collect()
}

/// The script `test`, unless it is the one that `npm init` writes.
pub fn test(scripts: &HashMap<String, String>) -> Option<&str> {
    let script = scripts.get("test")?;
    (!script.contains("no test specified")).then_some(script)
}

/// Whether a script of a workspace's root only starts those of its packages.
pub fn is_over_packages(script: &str) -> bool {
    let over = [
        "--workspaces",
        "--workspace",
        " -ws",
        "pnpm -r",
        "pnpm --recursive",
        "yarn workspaces",
        "turbo ",
        "nx ",
        "lerna ",
        "--filter",
    ];
    over.iter().any(|it| script.contains(it))
}

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
        ("jest", _) if !told("--json") && !told("--outputFile") && !told("--watch") => Some((
            "--json --outputFile=test-results.json",
            Report::in_folder(folder, "jest", "test-results.json")?,
        )),
        ("vitest", first) if !told("--reporter") && !told("--watch") && first != Some(&"dev") => {
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

    #[test]
    fn only_one_plain_command_is_told_to_write_a_report() {
        assert_eq!(format("jest"), Some("jest"));
        assert_eq!(format("NODE_ENV=test npx jest --coverage"), Some("jest"));
        assert_eq!(format("vitest run"), Some("jest"));
        assert_eq!(format("node --test"), Some("tap"));
        for script in [
            "npm run build && jest",
            "jest --json",
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
