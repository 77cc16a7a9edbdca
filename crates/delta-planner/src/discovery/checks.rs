//! Names that tell of a check: scripts and targets that are called so and that no job runs are
//! named in the remarks.

/// Parts of names that tell of a check.
const CHECKS: [&str; 14] = [
    "test",
    "tests",
    "e2e",
    "unit",
    "integration",
    "spec",
    "lint",
    "check",
    "checks",
    "verify",
    "validate",
    "typecheck",
    "types",
    "knip",
];

/// Parts of names that tell of something else that is done with it.
const ASIDE: [&str; 10] = [
    "watch", "fix", "update", "write", "dev", "ui", "debug", "open", "headed", "serve",
];

/// Names that a remark lists.
const MAX_NAMED: usize = 8;

/// Whether a name tells of a check.
pub fn is_check(name: &str) -> bool {
    let mut parts = name.split([':', '-', '_', '.', '/']);
    let aside = parts.clone().any(|part| ASIDE.contains(&part));
    !aside && parts.any(|part| CHECKS.contains(&part))
}

/// Names as a remark lists them, and whether there are several; nothing where there are none.
pub fn listed(names: &[&str]) -> Option<(String, bool)> {
    if names.is_empty() {
        return None;
    }
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let some = names.iter().take(MAX_NAMED).copied();
    let some = some.collect::<Vec<_>>().join(", ");
    Some((format!("{some}{more}"), names.len() > 1))
}
