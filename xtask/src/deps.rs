//! Dependencies point one way.
//!
//! Owns the table of which crate of the workspace may import which, and fails on every other
//! edge. Only normal and build dependencies count: tests may use anything. The core imports
//! nothing at all, every crate takes the workspace's lints, and some must not reach a network by
//! whatever way ([`crate::reach`]). Walls inside a crate are those of `rooms.rs`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::reach;
use crate::rooms;
use crate::steps::{cargo, no_findings};

/// Crate, and the crates of this workspace it may import. A new crate adds its row here and in
/// ARCHITECTURE.md.
const MAY_IMPORT: [(&str, &[&str]); 20] = [
    ("delta-core", &[]),
    ("delta-wire", &["delta-core"]),
    ("delta-grpc", &["delta-wire"]),
    ("delta-yaml", &["delta-wire"]),
    ("delta-git", &["delta-wire"]),
    ("delta-store", &["delta-core"]),
    (
        "delta-server",
        &[
            "delta-core",
            "delta-wire",
            "delta-store",
            "delta-forge",
            "delta-git",
            "delta-grpc",
            "delta-planner",
            "delta-trace",
        ],
    ),
    ("delta-forge", &[]),
    (
        "delta-agent",
        &[
            "delta-core",
            "delta-wire",
            "delta-git",
            "delta-grpc",
            "delta-shim",
            "delta-results",
            "delta-runner-protocol",
            "delta-trace",
            "delta-yaml",
        ],
    ),
    ("delta-shim", &["delta-core", "delta-wire", "delta-results"]),
    ("delta-results", &[]),
    ("delta-runner-protocol", &[]),
    ("delta-runner", &["delta-runner-protocol"]),
    (
        "delta-planner",
        &["delta-core", "delta-wire", "delta-git", "delta-yaml"],
    ),
    ("delta-sim", &["delta-core", "delta-store"]),
    (
        "delta-cli",
        &[
            "delta-core",
            "delta-wire",
            "delta-store",
            "delta-server",
            "delta-agent",
            "delta-shim",
            "delta-planner",
            "delta-forge",
            "delta-grpc",
            "delta-sim",
            "delta-trace",
        ],
    ),
    ("delta-trace", &[]),
    ("delta-testkit", &[]),
    ("delta-e2e", &[]),
    ("xtask", &[]),
];

/// The crate that has no dependencies of any origin.
const PURE: &str = "delta-core";

pub fn run() -> Result<()> {
    let mut findings = rooms::findings()?;
    for package in packages()? {
        findings.extend(wrong_edges(&package));
        let manifest = std::fs::read_to_string(&package.manifest)
            .with_context(|| format!("read {}", package.manifest))?;
        if !manifest
            .replace(' ', "")
            .contains("[lints]\nworkspace=true")
        {
            findings.push(format!(
                "{}: does not take the workspace's lints",
                package.name
            ));
        }
    }
    findings.extend(reach::findings()?);
    no_findings(&findings)
}

struct Package {
    name: String,
    manifest: String,
    /// Normal and build dependencies.
    imports: Vec<String>,
}

fn wrong_edges(package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(known, _)| known == name) else {
        return vec![format!("{name}: not in the table of xtask/src/deps.rs")];
    };
    let ours = |import: &str| MAY_IMPORT.iter().any(|(known, _)| *known == import);
    let mut findings = Vec::new();
    for import in &package.imports {
        if name == PURE {
            findings.push(format!("{name} imports {import}; it imports nothing"));
        } else if ours(import) && !allowed.contains(&import.as_str()) {
            findings.push(format!(
                "{name} imports {import}; it may import {allowed:?} only"
            ));
        }
    }
    findings
}

fn packages() -> Result<Vec<Package>> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata without packages")?;
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let text = |field: &str| {
        value[field]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("package without {field}"))
    };
    let dependencies = value["dependencies"]
        .as_array()
        .context("package without dependencies")?;
    Ok(Package {
        name: text("name")?,
        manifest: text("manifest_path")?,
        imports: dependencies
            .iter()
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, imports: &[&str]) -> Package {
        let imports = imports.iter().map(|import| import.to_string()).collect();
        Package {
            name: name.into(),
            manifest: String::new(),
            imports,
        }
    }

    #[test]
    fn an_edge_against_the_direction_is_found() {
        assert!(wrong_edges(&package("delta-server", &["delta-store", "axum"])).is_empty());
        assert_eq!(
            wrong_edges(&package("delta-store", &["delta-server"])).len(),
            1
        );
        assert_eq!(
            wrong_edges(&package("delta-agent", &["delta-testkit"])).len(),
            1
        );
    }

    #[test]
    fn the_core_imports_nothing_and_a_new_crate_must_be_listed() {
        assert_eq!(wrong_edges(&package("delta-core", &["serde"])).len(), 1);
        assert_eq!(wrong_edges(&package("delta-new", &[])).len(), 1);
    }
}
