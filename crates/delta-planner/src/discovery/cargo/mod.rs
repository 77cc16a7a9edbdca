//! Cargo: workspaces with their members, and crates that stand alone.
//!
//! Members of a workspace share one lock file and one build, so they get one job of each kind,
//! narrowed by `-p` to what changed: a job per crate would build the same dependencies again in
//! each. Formatting and clippy are checked where a file sets them up, as strictly as that says.
//! A crate without tests is built; one of a fuzzer, or outside its workspace, is left alone.

mod cfg;
mod lexer;
mod source;
mod targets;
mod tested;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use delta_wire::job_spec::CountTests;

use self::tested::{Features, Tested};
use super::found::{Cache, Ecosystem, Found, Job, Package, Project, Report, Select, Step};
use super::found::{MAX_PACKAGES, first_there};
use super::manifest::{self, Table, strings, sub, text};
use super::{ignored, shell, versions};
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
        let look = Look {
            tree,
            crates: &crates,
            read: Cell::new(0),
        };
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
                let project = look.project(folder, &members, found);
                found.projects.extend(project);
            }
        }
        for (folder, manifest) in &crates {
            if taken.contains(folder.as_str()) {
                continue;
            }
            let path = join(folder, "Cargo.toml");
            if let Some(why) = ignored(folder) {
                found.remark(path, why);
            } else if let Some((root, excluded)) = claimed(folder, &crates) {
                let root = join(root, "Cargo.toml");
                let why = if excluded {
                    format!("is excluded from the workspace of {root}")
                } else {
                    format!("is no member of the workspace of {root}")
                };
                found.remark(path, why);
            } else if manifest.fuzz {
                found.remark(path, "is for a fuzzer, which runs until it is stopped");
            } else if manifest.name.is_some() || manifest.broken.is_some() {
                let project = look.project(folder, &[folder.as_str()], found);
                found.projects.extend(project);
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
    features: Features,
    /// It is a crate of cargo-fuzz or another fuzzer.
    fuzz: bool,
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
    manifest.features = Features::read(table);
    manifest.fuzz = is_fuzz(table);
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

/// Whether a crate says that it is cargo-fuzz's, or is linked to a fuzzer.
fn is_fuzz(table: &Table) -> bool {
    let metadata = sub(table, "package").and_then(|it| sub(it, "metadata"));
    let said = metadata.and_then(|it| it.get("cargo-fuzz"));
    let needed = sub(table, "dependencies");
    let fuzzers = ["libfuzzer-sys", "honggfuzz", "afl"];
    said.and_then(toml::Value::as_bool) == Some(true)
        || needed.is_some_and(|it| fuzzers.iter().any(|name| it.contains_key(*name)))
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

/// The workspace above a crate that does not have it as a member, and whether it says so itself.
fn claimed<'c>(folder: &str, crates: &'c BTreeMap<String, Manifest>) -> Option<(&'c str, bool)> {
    let mut above = folder;
    while !above.is_empty() {
        above = folder_of(above);
        let Some((root, manifest)) = crates.get_key_value(above) else {
            continue;
        };
        if let Some(workspace) = &manifest.workspace {
            let mut exclude = workspace.exclude.iter().filter_map(|it| resolve(root, it));
            let out = exclude.any(|it| folder == it || folder.starts_with(&format!("{it}/")));
            return Some((root.as_str(), out));
        }
    }
    None
}

/// What is looked at for all projects.
struct Look<'a> {
    tree: &'a Tree,
    crates: &'a BTreeMap<String, Manifest>,
    /// Sources that were read.
    read: Cell<usize>,
}

impl Look<'_> {
    /// A workspace, or a crate alone. None when there is nothing in it but fuzzers.
    fn project(&self, root: &str, members: &[&str], found: &mut Found) -> Option<Project> {
        let manifest = &self.crates[root];
        let workspace = manifest.workspace.as_ref().map(|it| (root, it));
        let inner: BTreeSet<&str> = self.crates.keys().map(String::as_str).collect();
        let (fuzzers, members): (Vec<&str>, Vec<&str>) = members
            .iter()
            .copied()
            .partition(|it| self.crates[*it].fuzz);
        let mut suite = Suite::default();
        let mut packages = Vec::new();
        let mut seen = Vec::new();
        for folder in members {
            let features = &self.crates[folder].features;
            let tested = Tested::look(self.tree, folder, features, &inner, &self.read);
            packages.push(Package {
                name: name_of(folder, self.crates),
                folder: folder.to_owned(),
                depends_on: needs(folder, workspace, self.crates),
                tested: tested.any(),
                ..Package::default()
            });
            suite.add(&tested, features);
            seen.push(tested);
        }
        let switched_on = !suite.features(packages.len() > 1).is_empty();
        for (package, tested) in packages.iter_mut().zip(&seen) {
            package.counted = tested.by_default > 0 || (tested.behind > 0 && switched_on);
        }
        for folder in &fuzzers {
            let why = "is for a fuzzer, which runs until it is stopped";
            found.remark(join(folder, "Cargo.toml"), why);
        }
        if packages.is_empty() {
            return None;
        }
        let mut crates = packages.iter().map(|it| &self.crates[&it.folder]);
        let shape = Shape {
            clippy: manifest.clippy || crates.any(|it| it.clippy),
            several: packages.len() > 1,
            without: fuzzers.iter().map(|it| name_of(it, self.crates)).collect(),
            suite,
        };
        let path = join(root, "Cargo.toml");
        if let Some(words) = shape.suite.left_behind(shape.several) {
            found.remark_part(&path, words);
        }
        Some(Project {
            ecosystem: Cargo.name(),
            folder: root.to_owned(),
            shared: SHARED.iter().map(|it| join(root, it)).collect(),
            jobs: jobs(self.tree, root, manifest, &shape),
            packages,
        })
    }
}

/// What decides how the crates of a project are built and tested.
struct Shape {
    clippy: bool,
    several: bool,
    /// Names of members that are left out.
    without: Vec<String>,
    suite: Suite,
}

/// The tests of all crates of a project.
#[derive(Default)]
struct Suite {
    tested: Tested,
    risky: bool,
    go_together: bool,
}

impl Suite {
    fn add(&mut self, tested: &Tested, features: &Features) {
        self.tested.add(tested);
        self.risky |= features.are_risky();
        self.go_together |= features.go_together;
    }

    /// What switches on the tests that default features compile out, where those are most of them.
    fn features(&self, several: bool) -> String {
        let names: Vec<&str> = self.tested.features.iter().map(String::as_str).collect();
        match (self.tested.mostly_behind(), several) {
            (false, _) => String::new(),
            (true, _) if self.risky => String::new(),
            (true, false) if !self.go_together => {
                format!(" --features {}", super::shell::quoted(&names.join(",")))
            }
            (true, _) => " --all-features".to_owned(),
        }
    }

    /// What is to be said of tests that do not run.
    fn left_behind(&self, several: bool) -> Option<String> {
        let (count, names) = (self.tested.behind, &self.tested.features);
        if count == 0 || !self.features(several).is_empty() {
            return None;
        }
        let names: Vec<&str> = names.iter().map(String::as_str).take(MAX_NAMED).collect();
        Some(format!(
            "{count} of its tests do not run: they are behind features that are not on by default, \
             such as {}",
            names.join(", ")
        ))
    }

    /// Counted where a test runs for sure: of those that may be there, none may run.
    fn count(&self, several: bool) -> CountTests {
        let behind = self.tested.behind > 0 && !self.features(several).is_empty();
        if self.tested.by_default > 0 || behind {
            CountTests::Output
        } else {
            CountTests::None
        }
    }

    /// Whether any test was seen, wherever it is.
    fn is_seen(&self) -> bool {
        self.tested.by_default > 0 || self.tested.behind > 0
    }
}

/// Features that a remark names.
const MAX_NAMED: usize = 5;

fn name_of(folder: &str, crates: &BTreeMap<String, Manifest>) -> String {
    let name = crates.get(folder).and_then(|it| it.name.clone());
    // Cargo takes no other names; it says so itself.
    let word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    let name = name.filter(|it| !it.is_empty() && it.chars().all(word));
    name.unwrap_or_else(|| crate::tree::file_name(folder).to_owned())
}

fn jobs(tree: &Tree, root: &str, manifest: &Manifest, shape: &Shape) -> Vec<Job> {
    let locked = if tree.has(&join(root, "Cargo.lock")) {
        " --locked"
    } else {
        ""
    };
    let pinned = first_there(tree, root, &["rust-toolchain.toml", "rust-toolchain"]);
    let base = Job {
        workdir: root.to_owned(),
        requires: vec![match (pinned, &manifest.rust_version) {
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
    let mut jobs = Vec::new();
    if let Some(why) = first_there(tree, root, &["rustfmt.toml", ".rustfmt.toml"]) {
        jobs.push(Job {
            kind: "fmt",
            steps: vec![Step::of("cargo fmt --all --check")],
            reason: format!("{why}: formatting is checked"),
            ..base.clone()
        });
    }
    let lints = first_there(tree, root, &["clippy.toml", ".clippy.toml"]);
    if let Some(why) = lints.or(shape.clippy.then_some("[lints.clippy]")) {
        let head = format!("cargo clippy{locked}");
        jobs.push(Job {
            kind: "clippy",
            steps: vec![shape.step(head, " --all-targets")],
            reason: format!("{why}: lints are checked"),
            ..cached.clone()
        });
    }
    jobs.push(test_job(tree, root, manifest, locked, cached, shape));
    jobs
}

impl Shape {
    fn step(&self, head: String, tail: &str) -> Step {
        let without = self
            .without
            .iter()
            .map(|it| format!(" --exclude {}", shell::quoted(it)));
        Step {
            head,
            select: (self.several || !self.without.is_empty()).then(|| Select {
                all: format!(" --workspace{}", without.collect::<String>()),
                one: " -p ",
            }),
            tail: tail.to_owned(),
        }
    }
}

/// What Cargo fetches from elsewhere.
const REGISTRY: [&str; 2] = ["~/.cargo/registry", "~/.cargo/git"];

fn test_job(
    tree: &Tree,
    root: &str,
    manifest: &Manifest,
    locked: &str,
    base: Job,
    shape: &Shape,
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
    if !shape.suite.tested.any() {
        return Job {
            kind: "build",
            steps: vec![shape.step(format!("cargo build{locked}"), " --all-targets")],
            reason: format!("{path}: there are no tests; it is built"),
            ..base
        };
    }
    let features = shape.suite.features(shape.several);
    if !tree.has(&nextest) {
        let why = match features.is_empty() {
            true if shape.suite.is_seen() => format!("{path}: tests"),
            true => format!("{path}: whether there are tests cannot be told"),
            false => format!("{path}: tests, most of them behind features"),
        };
        return Job {
            kind: "test",
            steps: vec![shape.step(format!("cargo test{locked}"), &features)],
            count: Some(shape.suite.count(shape.several)),
            reason: why,
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
    let mut steps = vec![shape.step(head, &format!("{features} --no-tests=pass"))];
    if shape.suite.tested.doctested {
        // nextest leaves the examples in documentation out.
        steps.push(shape.step(format!("cargo test{locked} --doc"), &features));
    }
    let report = profile.and_then(|(profile, file)| {
        let file = format!("target/nextest/{profile}/{file}");
        Report::in_folder(root, "junit", &file)
    });
    Job {
        kind: "test",
        steps,
        results: report.into_iter().collect(),
        // Both steps count, and only one of them writes a report.
        count: Some(shape.suite.count(shape.several)),
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
