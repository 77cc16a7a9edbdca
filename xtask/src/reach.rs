//! What a crate must not reach, however far away.
//!
//! Owns the list of crates that know no network, and the names of the third-party crates that are
//! one. The table of [`crate::deps`] is about single edges of ours; a wall holds only when nothing
//! behind them leads out either.

use anyhow::{Context, Result, ensure};

use crate::steps::cargo;
use crate::third_party::TARGETS;

/// Crates of this workspace that must not reach a network, and why.
const WITHOUT_NETWORK: [(&str, &str); 7] = [
    ("delta-core", "it decides, and reaches nothing at all"),
    ("delta-wire", "messages are needed by those who send none"),
    (
        "delta-shim",
        "it owns a job's processes, and knows no server",
    ),
    ("delta-results", "it reads what a stranger's job wrote"),
    ("delta-yaml", "it reads a stranger's files"),
    (
        "delta-git",
        "git itself goes there, by ways that were checked",
    ),
    ("delta-planner", "it reads a stranger's files"),
];

/// Crates that speak to other machines, and those that secure it.
const NETWORK: [&str; 19] = [
    "axum",
    "curl",
    "h2",
    "hickory-resolver",
    "hyper",
    "hyper-util",
    "native-tls",
    "openssl",
    "opentelemetry-otlp",
    "postgres",
    "quinn",
    "reqwest",
    "rustls",
    "tokio-postgres",
    "tokio-rustls",
    "tokio-tungstenite",
    "tonic",
    "tungstenite",
    "ureq",
];

/// Each way from a crate to one that it must not reach, by the first of the targets that has it.
pub fn findings() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (package, why) in WITHOUT_NETWORK {
        for target in TARGETS {
            let found = forbidden(&tree(package, target)?);
            let found = found.map(|way| format!("{}; {why}", way.join(" -> ")));
            if let Some(finding) = found {
                findings.push(finding);
                break;
            }
        }
    }
    Ok(findings)
}

/// What is built for this crate, each line behind its depth.
fn tree(package: &str, target: &str) -> Result<String> {
    let args = [
        "tree",
        "--package",
        package,
        "--edges",
        "normal,build",
        "--prefix",
        "depth",
        "--format",
        " {p}",
        "--target",
        target,
    ];
    let output = cargo(&args).output().context("run cargo tree")?;
    ensure!(
        output.status.success(),
        "cargo tree failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).context("read cargo tree")
}

/// The first way in a tree to a crate of the network, from the root on.
fn forbidden(tree: &str) -> Option<Vec<String>> {
    let mut way: Vec<String> = Vec::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        way.truncate(depth.parse().ok()?);
        way.push(name.to_owned());
        if NETWORK.contains(&name) {
            return Some(way);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_to_the_network_is_found_however_long_it_is() {
        let tree = "0 delta-shim v0.1.0 (/x)\n1 serde v1.0.0\n2 serde_core v1.0.0\n\
                    1 delta-wire v0.1.0 (/y)\n2 helper v1.0.0\n3 hyper v1.0.0\n";
        let way = forbidden(tree).expect("a way");
        assert_eq!(way, ["delta-shim", "delta-wire", "helper", "hyper"]);
        let within = tree.replace("hyper", "hyperbola");
        assert_eq!(forbidden(&within), None);
    }

    /// The list means something: who does have a network is seen to have one.
    #[test]
    fn the_network_of_a_crate_that_has_one_is_seen() {
        for package in ["delta-grpc", "delta-forge", "delta-store"] {
            let tree = tree(package, TARGETS[0]).expect("a tree");
            assert!(forbidden(&tree).is_some(), "{package}");
        }
    }
}
