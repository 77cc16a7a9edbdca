//! What may come into the dependency tree: licences, bans, sources and wildcards of `deny.toml`.
//!
//! Reads the tree from cargo itself, so that every run of the tests checks it and no tool has to
//! be installed. Known vulnerabilities are not in the tree's own data: those stay with
//! `cargo deny`, which reads the same file.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::steps::{cargo, no_findings};

/// The file with the rules.
const RULES: &str = "deny.toml";

/// What is built and shipped. Crates of other systems stand in the lock file and reach nobody.
pub const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

pub fn run() -> Result<()> {
    let text = std::fs::read_to_string(RULES).with_context(|| format!("read {RULES}"))?;
    let rules = Rules::read(&text)?;
    let mut findings = BTreeSet::new();
    for target in TARGETS {
        findings.extend(rules.findings(&packages(target)?));
    }
    no_findings(&findings.into_iter().collect::<Vec<_>>())
}

/// The part of the file that is judged here.
struct Rules {
    licences: BTreeSet<String>,
    /// Crate, and why nobody may bring it in.
    banned: BTreeMap<String, String>,
}

impl Rules {
    fn read(text: &str) -> Result<Rules> {
        let file: toml::Table = text.parse().with_context(|| format!("read {RULES}"))?;
        let list = |section: &str, key: &str| {
            let list = file.get(section).and_then(|section| section.get(key));
            list.and_then(toml::Value::as_array)
                .with_context(|| format!("{RULES} without {section}.{key}"))
        };
        let licences = list("licenses", "allow")?
            .iter()
            .filter_map(toml::Value::as_str);
        let banned = list("bans", "deny")?.iter().map(|ban| {
            let text = |key: &str| ban.get(key).and_then(toml::Value::as_str);
            let (name, reason) = (text("crate")?, text("reason").unwrap_or("banned"));
            Some((name.to_owned(), reason.to_owned()))
        });
        let rules = Rules {
            licences: licences.map(str::to_owned).collect(),
            banned: banned
                .collect::<Option<_>>()
                .with_context(|| format!("{RULES}: a ban without a crate"))?,
        };
        ensure!(!rules.licences.is_empty(), "{RULES} allows no licence");
        for (section, key) in [
            ("sources", "unknown-registry"),
            ("sources", "unknown-git"),
            ("bans", "wildcards"),
        ] {
            let value = file.get(section).and_then(|section| section.get(key));
            if value.and_then(toml::Value::as_str) != Some("deny") {
                bail!("{RULES}: {section}.{key} is no longer \"deny\", which is what is checked");
            }
        }
        Ok(rules)
    }

    fn findings(&self, packages: &[Package]) -> Vec<String> {
        let mut findings = Vec::new();
        let mut registries = BTreeSet::new();
        for package in packages {
            let name = &package.name;
            if let Some(reason) = self.banned.get(name) {
                findings.push(format!("{name} is banned: {reason}"));
            }
            findings.extend(package.wild.iter().map(|wild| {
                format!("{name} takes any version of {wild}: name the one it was written for")
            }));
            match &package.source {
                None => continue,
                Some(source) => match source.split_once('+') {
                    Some(("registry" | "sparse", registry)) => drop(registries.insert(registry)),
                    _ => findings.push(format!("{name} comes from {source}")),
                },
            }
            findings.extend(self.licence(package));
        }
        if registries.len() > 1 {
            findings.push(format!("crates of more than one registry: {registries:?}"));
        }
        findings
    }

    fn licence(&self, package: &Package) -> Option<String> {
        let Package { name, licence, .. } = package;
        let Some(licence) = licence else {
            return Some(format!("{name} names no licence"));
        };
        match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(expression) if expression.evaluate(|wanted| self.allows(wanted)) => None,
            Ok(_) => Some(format!(
                "{name} is under {licence}, which {RULES} does not allow"
            )),
            Err(error) => Some(format!("{name}: its licence cannot be read: {error}")),
        }
    }

    fn allows(&self, wanted: &LicenseReq) -> bool {
        self.licences.contains(&wanted.to_string())
    }
}

/// A crate of the tree.
struct Package {
    name: String,
    licence: Option<String>,
    /// Nothing for a crate of this workspace.
    source: Option<String>,
    /// What it takes in any version whatsoever, from a registry.
    wild: Vec<String>,
}

fn packages(target: &str) -> Result<Vec<Package>> {
    let what = ["metadata", "--format-version", "1", "--locked"];
    let metadata = output(&[&what[..], &["--filter-platform", target]].concat())?;
    let metadata: Value = serde_json::from_str(&metadata).context("read cargo metadata")?;
    // Metadata also lists what no chosen feature asks for; the printed tree does not.
    let edges = ["tree", "--workspace", "--edges", "normal,build,dev"];
    let form = [
        "--prefix", "none", "--format", "{p}", "--target", target, "--locked",
    ];
    let tree = output(&[&edges[..], &form[..]].concat())?;
    let built: BTreeSet<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
    let packages = metadata["packages"].as_array();
    let is_built = |package: &&Value| {
        let (name, version) = (package["name"].as_str(), package["version"].as_str());
        name.zip(version)
            .is_some_and(|named| built.contains(&named))
    };
    let packages: Vec<Package> = packages
        .context("cargo metadata without packages")?
        .iter()
        .filter(is_built)
        .map(package)
        .collect::<Result<_>>()?;
    ensure!(
        packages.len() >= built.len(),
        "cargo tree and cargo metadata disagree"
    );
    Ok(packages)
}

/// The two in a line such as `serde v1.0.229 (proc-macro)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

fn output(args: &[&str]) -> Result<String> {
    let output = cargo(args).output().context("start cargo")?;
    ensure!(
        output.status.success(),
        "cargo {} failed: {}",
        args[0],
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("read what cargo {} says", args[0]))
}

fn package(value: &Value) -> Result<Package> {
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    let dependencies = value["dependencies"]
        .as_array()
        .context("package without dependencies")?;
    let source = text("source");
    let is_wild = |dependency: &&Value| {
        source.is_none() && dependency["req"] == "*" && dependency["path"].is_null()
    };
    let wild = dependencies.iter().filter(is_wild);
    Ok(Package {
        name: text("name").context("package without a name")?,
        licence: text("license"),
        wild: wild
            .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
            .collect(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[licenses]
allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC"]
[bans]
wildcards = "deny"
deny = [{ crate = "ring", reason = "one library" }]
[sources]
unknown-registry = "deny"
unknown-git = "deny"
"#;

    fn crate_of(name: &str, licence: Option<&str>, source: Option<&str>) -> Package {
        Package {
            name: name.into(),
            licence: licence.map(str::to_owned),
            source: source.map(str::to_owned),
            wild: Vec::new(),
        }
    }

    fn findings(package: Package) -> usize {
        Rules::read(FILE).unwrap().findings(&[package]).len()
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_found_wherever_it_stands() {
        for (licence, expected) in [
            ("MIT", 0),
            ("MIT/Apache-2.0", 0),
            ("GPL-3.0-only OR MIT", 0),
            ("ISC AND (Apache-2.0 OR ISC)", 0),
            ("Apache-2.0 WITH LLVM-exception", 0),
            ("GPL-3.0-only", 1),
            ("MIT AND GPL-3.0-only", 1),
            ("Apache-2.0 WITH Classpath-exception-2.0", 1),
            ("do what you like", 1),
        ] {
            let found = findings(crate_of("a", Some(licence), Some("registry+r")));
            assert_eq!(found, expected, "{licence}");
        }
        assert_eq!(findings(crate_of("a", None, Some("registry+r"))), 1);
        assert_eq!(findings(crate_of("ours", None, None)), 0);
    }

    #[test]
    fn a_banned_crate_another_source_and_a_wildcard_are_found() {
        let from = |source| crate_of("a", Some("MIT"), Some(source));
        assert_eq!(
            findings(crate_of("ring", Some("MIT"), Some("registry+r"))),
            1
        );
        assert_eq!(findings(from("git+https://example.org/a#1")), 1);
        let rules = Rules::read(FILE).unwrap();
        let two = [from("registry+one"), from("sparse+two")];
        assert_eq!(rules.findings(&two).len(), 1);
        let wild = Package {
            wild: vec!["b".into()],
            ..crate_of("ours", None, None)
        };
        assert_eq!(findings(wild), 1);
    }

    #[test]
    fn a_file_that_asks_for_less_than_is_checked_is_refused() {
        for line in ["unknown-git", "unknown-registry", "wildcards"] {
            let weaker = FILE.replace(&format!("{line} = \"deny\""), &format!("{line} = \"warn\""));
            assert!(Rules::read(&weaker).is_err(), "{line}");
        }
        assert!(Rules::read(&FILE.replace("crate = ", "name = ")).is_err());
    }
}
