//! Cargo: workspaces with their members, and crates that stand alone.
//!
//! Members of a workspace share one lock file and one build, so they get one job of each kind,
//! narrowed by `-p` to what changed: a job per crate would build the same dependencies again in
//! each. Formatting and clippy are checked where the repository has set them up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::found::{Cache, Ecosystem, Found, Job, Package, Project, Report, Select, Step};
use super::found::{MAX_PACKAGES, first_there};
use super::manifest::{self, Table, strings, sub, text};
use super::{ignored, versions};
use crate::glob::Glob;
use crate::tree::{Tree, folder_of, join, resolve};

pub struct Cargo;

/// Where a crate's own files are when its folder is also the workspace's.
const OWN: &[&str] = &["src", "tests", "benches", "examples", "build.rs"];

/// Files and folders beside the workspace's manifest that concern all of it.
const SHARED: [&str; 11] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "rust-toolchain",
    ".cargo",
    ".config/nextest.toml",
    "rustfmt.toml",
    ".rustfmt.toml",
    "clippy.toml",
    ".clippy.toml",
    "deny.toml",
];

impl Ecosystem for Cargo {
    fn name(&self) -> &'static str {
        "Cargo"
    }

    fn own(&self) -> &'static [&'static str] {
        OWN
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["Cargo.toml"]
    }

    fn find(&self, tree: &Tree, found: &mut Found) {
        let crates = read_all(tree, found);
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        for (folder, manifest) in &crates {
            if manifest.workspace.is_some() && ignored(folder).is_none() {
                let members = members(folder, manifest, &crates);
                taken.extend(members.iter().copied());
                taken.insert(folder);
                if members.is_empty() {
                    found.remark(join(folder, "Cargo.toml"), "is a workspace without members");
                    continue;
                }
                found
                    .projects
                    .push(project(tree, folder, &members, &crates));
            }
        }
        for (folder, manifest) in &crates {
            if taken.contains(folder.as_str()) {
                continue;
            }
            let path = join(folder, "Cargo.toml");
            if let Some(why) = ignored(folder) {
                found.remark(path, why);
            } else if let Some(root) = claimed(folder, &crates) {
                let root = join(root, "Cargo.toml");
                found.remark(path, format!("is no member of the workspace of {root}"));
            } else if manifest.name.is_some() || manifest.broken.is_some() {
                let alone = [folder.as_str()];
                found.projects.push(project(tree, folder, &alone, &crates));
            } else {
                found.remark(path, "names no package and no workspace");
            }
        }
    }
}

/// What is needed of a `Cargo.toml`.
#[derive(Default)]
struct Manifest {
    name: Option<String>,
    workspace: Option<Workspace>,
    /// Relative paths of dependencies.
    paths: Vec<String>,
    /// Dependencies that say `workspace = true`.
    inherited: Vec<String>,
    rust_version: Option<String>,
    clippy: bool,
    /// Why it cannot be read.
    broken: Option<String>,
}

#[derive(Default)]
struct Workspace {
    members: Vec<String>,
    exclude: Vec<String>,
    /// Path of each of the workspace's dependencies that has one.
    dependencies: HashMap<String, String>,
}

fn read_all(tree: &Tree, found: &mut Found) -> BTreeMap<String, Manifest> {
    let mut crates = BTreeMap::new();
    for path in tree.named("Cargo.toml") {
        if crates.len() == MAX_PACKAGES {
            found.remark(path, format!("there are more than {MAX_PACKAGES} crates"));
            break;
        }
        let manifest = match manifest::toml(tree, path) {
            Ok(table) => read(&table),
            Err(why) => Manifest {
                broken: Some(why),
                ..Manifest::default()
            },
        };
        crates.insert(folder_of(path).to_owned(), manifest);
    }
    crates
}

fn read(table: &Table) -> Manifest {
    let mut manifest = Manifest::default();
    if let Some(package) = sub(table, "package") {
        manifest.name = text(package, "name").map(str::to_owned);
        manifest.rust_version = text(package, "rust-version").map(str::to_owned);
    }
    let lints = |table: &Table| sub(table, "lints").is_some_and(|it| it.contains_key("clippy"));
    manifest.clippy = lints(table);
    dependencies(table, &mut manifest);
    for target in sub(table, "target").into_iter().flat_map(Table::values) {
        if let Some(target) = target.as_table() {
            dependencies(target, &mut manifest);
        }
    }
    if let Some(workspace) = sub(table, "workspace") {
        manifest.clippy |= lints(workspace);
        let package = sub(workspace, "package");
        let version = package.and_then(|it| text(it, "rust-version"));
        manifest.rust_version = version.map(str::to_owned).or(manifest.rust_version);
        let dependencies = sub(workspace, "dependencies").into_iter().flatten();
        let paths = dependencies.filter_map(|(name, it)| {
            let path = text(it.as_table()?, "path")?;
            Some((name.clone(), path.to_owned()))
        });
        manifest.workspace = Some(Workspace {
            members: strings(workspace, "members"),
            exclude: strings(workspace, "exclude"),
            dependencies: paths.collect(),
        });
    }
    manifest
}

fn dependencies(table: &Table, into: &mut Manifest) {
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (name, value) in sub(table, kind).into_iter().flatten() {
            let Some(value) = value.as_table() else {
                continue;
            };
            if let Some(path) = text(value, "path") {
                into.paths.push(path.to_owned());
            } else if value.get("workspace").and_then(toml::Value::as_bool) == Some(true) {
                into.inherited.push(name.clone());
            }
        }
    }
}

/// The folders of a workspace's members: what its patterns name, and the crates inside it that
/// members depend on by path, as Cargo counts them.
fn members<'c>(
    root: &'c str,
    manifest: &Manifest,
    crates: &'c BTreeMap<String, Manifest>,
) -> Vec<&'c str> {
    let Some(workspace) = &manifest.workspace else {
        return Vec::new();
    };
    let exclude: Vec<String> = workspace
        .exclude
        .iter()
        .filter_map(|it| resolve(root, it))
        .collect();
    let excluded = |folder: &str| {
        let mut exclude = exclude.iter();
        exclude.any(|it| folder == it || folder.starts_with(&format!("{it}/")))
    };
    let mut wanted: BTreeSet<&str> = BTreeSet::new();
    for pattern in &workspace.members {
        let Some(pattern) = resolve(root, pattern) else {
            continue;
        };
        if let Some((folder, _)) = crates.get_key_value(&pattern) {
            wanted.insert(folder);
        } else if let Ok(glob) = Glob::parse(&pattern) {
            let named = crates.keys().filter(|folder| glob.matches(folder));
            wanted.extend(named.map(String::as_str).filter(|it| !excluded(it)));
        }
    }
    if manifest.name.is_some() {
        wanted.insert(root);
    }
    let inside = |folder: &str| root.is_empty() || folder.starts_with(&format!("{root}/"));
    let mut open: Vec<&str> = wanted.iter().copied().collect();
    while let Some(folder) = open.pop() {
        for needed in needs(folder, Some((root, workspace)), crates) {
            let known = crates.get_key_value(&needed).map(|(it, _)| it.as_str());
            let Some(needed) = known.filter(|it| inside(it) && !excluded(it)) else {
                continue;
            };
            if wanted.insert(needed) {
                open.push(needed);
            }
        }
    }
    wanted.into_iter().collect()
}

/// The folders of what a crate depends on by path.
fn needs(
    folder: &str,
    workspace: Option<(&str, &Workspace)>,
    crates: &BTreeMap<String, Manifest>,
) -> BTreeSet<String> {
    let Some(manifest) = crates.get(folder) else {
        return BTreeSet::new();
    };
    let own = manifest
        .paths
        .iter()
        .filter_map(|path| resolve(folder, path));
    let inherited = workspace.into_iter().flat_map(|(root, workspace)| {
        let names = manifest.inherited.iter();
        let paths = names.filter_map(|name| workspace.dependencies.get(name));
        paths.filter_map(move |path| resolve(root, path))
    });
    own.chain(inherited).filter(|it| it != folder).collect()
}

/// The workspace above a crate that does not have it as a member, unless it is excluded there.
fn claimed<'c>(folder: &str, crates: &'c BTreeMap<String, Manifest>) -> Option<&'c str> {
    let mut above = folder;
    while !above.is_empty() {
        above = folder_of(above);
        let Some((root, manifest)) = crates.get_key_value(above) else {
            continue;
        };
        if let Some(workspace) = &manifest.workspace {
            let mut exclude = workspace.exclude.iter().filter_map(|it| resolve(root, it));
            let out = exclude.any(|it| folder == it || folder.starts_with(&format!("{it}/")));
            return (!out).then_some(root.as_str());
        }
    }
    None
}

fn project(
    tree: &Tree,
    root: &str,
    members: &[&str],
    crates: &BTreeMap<String, Manifest>,
) -> Project {
    let manifest = &crates[root];
    let workspace = manifest.workspace.as_ref().map(|it| (root, it));
    let packages: Vec<Package> = members
        .iter()
        .map(|folder| Package {
            name: name_of(folder, crates),
            folder: (*folder).to_owned(),
            depends_on: needs(folder, workspace, crates),
            ..Package::default()
        })
        .collect();
    let clippy = members.iter().any(|it| crates[*it].clippy) || manifest.clippy;
    Project {
        ecosystem: Cargo.name(),
        folder: root.to_owned(),
        shared: SHARED.iter().map(|it| join(root, it)).collect(),
        jobs: jobs(tree, root, manifest, packages.len() > 1, clippy),
        packages,
    }
}

fn name_of(folder: &str, crates: &BTreeMap<String, Manifest>) -> String {
    let name = crates.get(folder).and_then(|it| it.name.clone());
    // Cargo takes no other names; it says so itself.
    let word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    let name = name.filter(|it| !it.is_empty() && it.chars().all(word));
    name.unwrap_or_else(|| crate::tree::file_name(folder).to_owned())
}

fn jobs(tree: &Tree, root: &str, manifest: &Manifest, several: bool, clippy: bool) -> Vec<Job> {
    let toolchain = toolchain(tree, root);
    let component = |name: &str| toolchain.as_ref().is_some_and(|it| it.components(name));
    let locked = match tree.has(&join(root, "Cargo.lock")) {
        true => " --locked",
        false => "",
    };
    let base = Job {
        workdir: root.to_owned(),
        requires: vec![match (&toolchain, &manifest.rust_version) {
            // rustup brings the toolchain that the file names.
            (None, Some(version)) => versions::requirement("rust", version),
            _ => "rust".to_owned(),
        }],
        ..Job::default()
    };
    let cached = Job {
        caches: (!locked.is_empty())
            .then(|| Cache::locked("cargo", &join(root, "Cargo.lock"), &REGISTRY))
            .flatten()
            .into_iter()
            .collect(),
        ..base.clone()
    };
    let step = |head: String, tail: &str| Step {
        head,
        select: several.then_some(Select {
            all: " --workspace",
            one: " -p ",
        }),
        tail: tail.to_owned(),
    };
    let mut jobs = Vec::new();
    let format = first_there(tree, root, &["rustfmt.toml", ".rustfmt.toml"]);
    if let Some(why) = format.or(component("rustfmt").then_some("the toolchain's rustfmt")) {
        jobs.push(Job {
            kind: "fmt",
            steps: vec![Step::of("cargo fmt --all --check")],
            reason: format!("{why}: formatting is checked"),
            ..base.clone()
        });
    }
    let lints = first_there(tree, root, &["clippy.toml", ".clippy.toml"]);
    let lints = lints.or(clippy.then_some("[lints.clippy]"));
    if let Some(why) = lints.or(component("clippy").then_some("the toolchain's clippy")) {
        let head = format!("cargo clippy{locked}");
        jobs.push(Job {
            kind: "clippy",
            steps: vec![step(head, " --all-targets -- -D warnings")],
            reason: format!("{why}: lints are checked"),
            ..cached.clone()
        });
    }
    jobs.push(test_job(tree, root, manifest, locked, cached, step));
    jobs
}

/// What Cargo fetches from elsewhere.
const REGISTRY: [&str; 2] = ["~/.cargo/registry", "~/.cargo/git"];

fn test_job(
    tree: &Tree,
    root: &str,
    manifest: &Manifest,
    locked: &str,
    base: Job,
    step: impl Fn(String, &str) -> Step,
) -> Job {
    let path = join(root, "Cargo.toml");
    let nextest = join(root, ".config/nextest.toml");
    if let Some(why) = &manifest.broken {
        return Job {
            kind: "test",
            steps: vec![Step::of("cargo test")],
            reason: format!("{path} cannot be read ({why}); cargo will say more"),
            ..base
        };
    }
    if !tree.has(&nextest) {
        return Job {
            kind: "test",
            steps: vec![step(format!("cargo test{locked}"), "")],
            reason: format!("{path}: tests"),
            ..base
        };
    }
    let profile = manifest::toml(tree, &nextest).ok().as_ref().and_then(junit);
    let head = match &profile {
        Some((name, _)) => format!(
            "cargo nextest run{locked} --profile {}",
            super::shell::quoted(name)
        ),
        None => format!("cargo nextest run{locked}"),
    };
    let mut steps = vec![step(head, " --no-tests=pass")];
    let libraries = tree.below(root).iter().any(|it| it.ends_with("src/lib.rs"));
    if libraries {
        // nextest leaves the examples in documentation out.
        steps.push(step(format!("cargo test{locked} --doc"), ""));
    }
    let report = profile.and_then(|(profile, file)| {
        let file = format!("target/nextest/{profile}/{file}");
        Report::in_folder(root, "junit", &file)
    });
    Job {
        kind: "test",
        steps,
        results: report.into_iter().collect(),
        reason: format!("{nextest}: tests by nextest"),
        ..base
    }
}

/// The profile that writes a report, the one for CI before others: its name, and the report's.
fn junit(table: &Table) -> Option<(String, String)> {
    let profiles = sub(table, "profile")?;
    let path = |name: &str| {
        let junit = sub(sub(profiles, name)?, "junit")?;
        let path = text(junit, "path")?;
        Some((name.to_owned(), path.to_owned()))
    };
    path("ci").or_else(|| profiles.keys().find_map(|name| path(name)))
}

struct Toolchain(Vec<String>);

impl Toolchain {
    fn components(&self, name: &str) -> bool {
        self.0.iter().any(|it| it == name)
    }
}

fn toolchain(tree: &Tree, root: &str) -> Option<Toolchain> {
    let name = first_there(tree, root, &["rust-toolchain.toml", "rust-toolchain"])?;
    let table = manifest::toml(tree, &join(root, name)).unwrap_or_default();
    let components = sub(&table, "toolchain").map(|it| strings(it, "components"));
    Some(Toolchain(components.unwrap_or_default()))
}
