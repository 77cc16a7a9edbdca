//! JavaScript and TypeScript by `package.json`: its scripts `lint`, `build` and `test`, installed
//! by the manager whose lock file is there; workspaces with a job set per package, unless a script
//! of the root goes over them by a tool that knows their order: then that is what runs.
//!
//! Scripts are never run while planning; which of them can write a report is read off their text.

mod manager;
mod over;
mod root;
mod scripts;
mod unrun;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use delta_wire::job_spec::CountTests;
use serde_json::Value as Json;

use self::manager::Manager;
use self::root::{ByRoot, idle_starts, root_package};
use super::found::{Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Step};
use super::{ignored, manifest, versions};
use crate::glob::Glob;
use crate::tree::{Tree, file_name, folder_of, join, resolve};
use crate::yaml;

pub struct Node;

/// Where the root package's own files are when its folder is also the workspace's.
const OWN: &[&str] = &["src", "lib", "test", "tests", "__tests__"];

/// Files beside the workspace's manifest that concern all of it, beside lock files.
const SHARED: [&str; 12] = [
    "package.json",
    "pnpm-workspace.yaml",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".nvmrc",
    ".node-version",
    "tsconfig.json",
    "tsconfig.base.json",
    "turbo.json",
    "nx.json",
    "lerna.json",
];

/// Packages that are built before another's tests; beyond it all of them are.
const MAX_BUILT_BEFORE: usize = 50;

impl Ecosystem for Node {
    fn name(&self) -> &'static str {
        "Node"
    }

    fn own(&self) -> &'static [&'static str] {
        OWN
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["package.json"]
    }

    fn find(&self, tree: &Tree, found: &mut Found) {
        let all = read_all(tree, found);
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        for (folder, manifest) in &all {
            if manifest.workspaces.is_empty()
                || ignored(folder).is_some()
                || taken.contains(folder.as_str())
            {
                continue;
            }
            let members = members(folder, &manifest.workspaces, &all);
            taken.extend(members.iter().copied());
            taken.insert(folder);
            let project = workspace(tree, folder, &members, &all, found);
            found.projects.extend(project);
        }
        for (folder, manifest) in &all {
            if taken.contains(folder.as_str()) {
                continue;
            }
            match ignored(folder) {
                Some(why) => found.remark(join(folder, "package.json"), why),
                None => {
                    let project = alone(tree, folder, manifest, found);
                    found.projects.extend(project);
                }
            }
        }
        unrun::name_them(tree, &all, found);
    }
}

/// What is needed of a `package.json`.
#[derive(Clone, Default)]
struct Manifest {
    name: Option<String>,
    /// Patterns; those that begin with `!` leave out.
    workspaces: Vec<String>,
    scripts: HashMap<String, String>,
    /// Name, and what is asked of it.
    dependencies: BTreeMap<String, String>,
    engine: Option<String>,
    package_manager: Option<String>,
    broken: Option<String>,
}

fn read_all(tree: &Tree, found: &mut Found) -> BTreeMap<String, Manifest> {
    let mut all = BTreeMap::new();
    for path in tree.named("package.json") {
        if path.starts_with("node_modules/") || path.contains("/node_modules/") {
            continue;
        }
        if all.len() == MAX_PACKAGES {
            found.remark(path, format!("there are more than {MAX_PACKAGES} packages"));
            break;
        }
        let folder = folder_of(path);
        let mut manifest = match manifest::json(tree, path) {
            Ok(value) => read(&value),
            Err(why) => Manifest {
                broken: Some(why),
                ..Manifest::default()
            },
        };
        if let Ok(text) = tree.text(&join(folder, "pnpm-workspace.yaml")) {
            manifest.workspaces = pnpm_patterns(&text);
        }
        all.insert(folder.to_owned(), manifest);
    }
    all
}

fn read(value: &Json) -> Manifest {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    let workspaces = match &value["workspaces"] {
        Json::Object(map) => map.get("packages").cloned().unwrap_or_default(),
        other => other.clone(),
    };
    let patterns = workspaces.as_array().into_iter().flatten();
    let scripts = value["scripts"].as_object().into_iter().flatten();
    let mut dependencies = BTreeMap::new();
    for kind in [
        "dependencies",
        "devDependencies",
        "optionalDependencies",
        "peerDependencies",
    ] {
        for (name, wanted) in value[kind].as_object().into_iter().flatten() {
            let wanted = wanted.as_str().unwrap_or_default();
            dependencies.insert(name.clone(), wanted.to_owned());
        }
    }
    Manifest {
        name: text(&value["name"]),
        workspaces: patterns.filter_map(text).collect(),
        scripts: scripts
            .filter_map(|(name, script)| Some((name.clone(), text(script)?)))
            .collect(),
        dependencies,
        engine: text(&value["engines"]["node"]),
        package_manager: text(&value["packageManager"]),
        broken: None,
    }
}

/// The patterns of `pnpm-workspace.yaml`.
fn pnpm_patterns(text: &str) -> Vec<String> {
    let Ok(root) = yaml::read(text) else {
        return Vec::new();
    };
    let yaml::Value::Map(pairs) = root.value else {
        return Vec::new();
    };
    let is_packages = |key: &yaml::Node| match &key.value {
        yaml::Value::Scalar { text, .. } => text == "packages",
        _ => false,
    };
    let listed = pairs.into_iter().find(|(key, _)| is_packages(key));
    let Some((
        _,
        yaml::Node {
            value: yaml::Value::List(items),
            ..
        },
    )) = listed
    else {
        return Vec::new();
    };
    let texts = items.into_iter().filter_map(|item| match item.value {
        yaml::Value::Scalar { text, .. } => Some(text),
        _ => None,
    });
    texts.collect()
}

/// The folders of a workspace's packages, its root left out.
fn members<'a>(
    root: &str,
    patterns: &[String],
    all: &'a BTreeMap<String, Manifest>,
) -> Vec<&'a str> {
    let mut wanted: BTreeSet<&str> = BTreeSet::new();
    for pattern in patterns {
        let (out, pattern) = match pattern.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, pattern.as_str()),
        };
        let Some(Ok(glob)) = resolve(root, pattern).map(|it| Glob::parse(&it)) else {
            continue;
        };
        let named = all.keys().map(String::as_str).filter(|it| glob.matches(it));
        if out {
            let named: BTreeSet<&str> = named.collect();
            wanted.retain(|it| !named.contains(it));
        } else {
            wanted.extend(named.filter(|it| *it != root))
        }
    }
    wanted.into_iter().collect()
}

fn workspace(
    tree: &Tree,
    root: &str,
    members: &[&str],
    all: &BTreeMap<String, Manifest>,
    found: &mut Found,
) -> Option<Project> {
    let manifest = &all[root];
    let manager = Manager::of(tree, root, manifest);
    let by_name: HashMap<&str, &str> = members
        .iter()
        .filter_map(|folder| Some((all[*folder].name.as_deref()?, *folder)))
        .collect();
    let needs = |folder: &str| needs(folder, &all[folder], &by_name);
    // What they are called is not known: whoever needs a name that is nobody's could mean them.
    let broken = members.iter().filter(|it| all[**it].broken.is_some());
    let broken: Vec<&str> = broken.copied().collect();
    let by_root = ByRoot::of(manifest);
    let mut packages = Vec::new();
    for folder in members {
        let package = &all[*folder];
        let before = built_before(folder, &needs, all);
        let install = Install {
            manager: &manager,
            root,
            before: before.as_deref(),
            root_build: by_root.builds_alone,
        };
        let path = join(folder, "package.json");
        let mut jobs = install.jobs(tree, folder, package, manifest);
        if let Some(why) = ignored(folder) {
            jobs.clear();
            found.remark(path, why);
        } else if jobs.is_empty() {
            found.remark(path, nothing_to_run(package));
        } else {
            if let Some(rest) = by_root.leaves(package) {
                jobs = install.jobs(tree, folder, &rest, manifest);
            }
            jobs.retain(|job| !by_root.does(job.kind));
        }
        let mut depends_on = needs(folder);
        let mut asked = package.dependencies.keys();
        if package.broken.is_some() || asked.any(|it| !by_name.contains_key(it.as_str())) {
            let others = broken.iter().filter(|it| *it != folder);
            depends_on.extend(others.map(|it| (*it).to_owned()));
        }
        packages.push(Package {
            name: name_of(folder, package),
            folder: (*folder).to_owned(),
            depends_on,
            jobs,
            ..Package::default()
        });
    }
    let has = |name: &str| members.iter().any(|it| all[*it].scripts.contains_key(name));
    let path = join(root, "package.json");
    if let Some(words) = idle_starts(manifest, has).filter(|_| !members.is_empty()) {
        found.remark_part(&path, words);
    }
    let words = by_root.words().into_iter();
    words.for_each(|it| found.remark_jobs(&path, it));
    let built = members
        .iter()
        .any(|it| all[*it].scripts.contains_key("build"));
    let own = root_package(tree, root, members, manifest, &manager, built);
    packages.extend(own);
    let any = packages.iter().any(|it| !it.jobs.is_empty());
    any.then(|| project(root, &manager, packages))
}

/// Why a package has no job.
fn nothing_to_run(manifest: &Manifest) -> &'static str {
    match manifest
        .scripts
        .get("test")
        .map(|it| it.contains("no test specified"))
    {
        Some(true) => "its script test is the placeholder of npm, and it has no lint or build",
        Some(false) => "its script test tests nothing, and it has no lint or build",
        None => "has no script called lint, build or test",
    }
}

fn alone(tree: &Tree, folder: &str, manifest: &Manifest, found: &mut Found) -> Option<Project> {
    let manager = Manager::of(tree, folder, manifest);
    let install = Install {
        manager: &manager,
        root: folder,
        before: Some(&[]),
        root_build: false,
    };
    let jobs = install.jobs(tree, folder, manifest, manifest);
    if jobs.is_empty() {
        found.remark(join(folder, "package.json"), nothing_to_run(manifest));
        return None;
    }
    let package = Package {
        name: name_of(folder, manifest),
        folder: folder.to_owned(),
        jobs,
        ..Package::default()
    };
    Some(project(folder, &manager, vec![package]))
}

fn project(root: &str, manager: &Manager, packages: Vec<Package>) -> Project {
    let shared = SHARED
        .iter()
        .copied()
        .chain(manager::LOCKS.map(|(name, _)| name));
    Project {
        ecosystem: Node.name(),
        folder: root.to_owned(),
        shared: shared
            .map(|it| join(root, it))
            .chain(manager.patches(root))
            .collect(),
        packages,
        jobs: Vec::new(),
    }
}

fn name_of(folder: &str, manifest: &Manifest) -> String {
    let name = manifest.name.clone().filter(|name| !name.is_empty());
    name.unwrap_or_else(|| file_name(folder).to_owned())
}

/// The folders of packages of the workspace that one depends on, by name or by path.
fn needs(folder: &str, manifest: &Manifest, by_name: &HashMap<&str, &str>) -> BTreeSet<String> {
    let needed = manifest.dependencies.iter().filter_map(|(name, wanted)| {
        let path = ["file:", "link:", "portal:"]
            .iter()
            .find_map(|it| wanted.strip_prefix(it));
        match path {
            Some(path) => resolve(folder, path),
            None => by_name.get(name.as_str()).map(|it| (*it).to_owned()),
        }
    });
    needed.filter(|it| it != folder).collect()
}

/// What must be built before a package, in order; none when that is too much to list.
fn built_before(
    folder: &str,
    needs: &impl Fn(&str) -> BTreeSet<String>,
    all: &BTreeMap<String, Manifest>,
) -> Option<Vec<String>> {
    let mut order = Vec::new();
    let mut seen: BTreeSet<String> = BTreeSet::from([folder.to_owned()]);
    // Each entry is a package and whether what it needs is listed already.
    let mut open: Vec<(String, bool)> = needs(folder).into_iter().map(|it| (it, false)).collect();
    while let Some((package, ready)) = open.pop() {
        let Some(manifest) = all.get(&package) else {
            continue;
        };
        if ready {
            if manifest.scripts.contains_key("build") {
                order.push(package);
            }
            continue;
        }
        if !seen.insert(package.clone()) {
            continue;
        }
        if seen.len() > MAX_BUILT_BEFORE {
            return None;
        }
        let inner = needs(&package);
        open.push((package, true));
        open.extend(inner.into_iter().map(|it| (it, false)));
    }
    Some(order)
}

/// How a package's scripts are run: installed at `root` first, and after what it needs is built.
struct Install<'a> {
    manager: &'a Manager,
    root: &'a str,
    before: Option<&'a [String]>,
    /// The root itself is built before that.
    root_build: bool,
}

impl Install<'_> {
    /// What comes before a package's own scripts: installing, and building what it needs.
    fn before(&self, install: Option<&str>) -> Vec<Step> {
        let mut steps: Vec<Step> = install.into_iter().map(Step::of).collect();
        if self.root_build {
            steps.push(Step::of(
                self.manager.script(self.root, self.root, "build", ""),
            ));
        }
        match self.before {
            Some(before) => {
                let before = before.iter();
                let built = before.map(|it| self.manager.script(self.root, it, "build", ""));
                steps.extend(built.map(Step::of));
            }
            None => steps.push(Step::of(self.manager.build_all())),
        }
        steps
    }

    fn jobs(&self, tree: &Tree, folder: &str, package: &Manifest, root: &Manifest) -> Vec<Job> {
        let path = join(folder, "package.json");
        let base = Job {
            workdir: self.root.to_owned(),
            requires: vec![node_version(tree, folder, package, self.root, root)],
            caches: self.manager.cache(self.root).into_iter().collect(),
            ..Job::default()
        };
        if let Some(why) = &package.broken {
            return vec![Job {
                kind: "test",
                steps: vec![Step::of(self.manager.script(self.root, folder, "test", ""))],
                reason: format!("{path} cannot be read ({why}); its tool will say more"),
                ..base
            }];
        }
        let installs = !package.dependencies.is_empty() || !root.dependencies.is_empty();
        let install = self.manager.install(installs);
        let run = |script: &str| Step::of(self.manager.script(self.root, folder, script, ""));
        let mut jobs = Vec::new();
        let lints = scripts::lints(&package.scripts);
        if !lints.is_empty() {
            let steps = install.iter().map(Step::of);
            jobs.push(Job {
                kind: "lint",
                steps: steps.chain(lints.iter().map(|it| run(it))).collect(),
                reason: format!("{path}: {}", said(&lints)),
                ..base.clone()
            });
        }
        let test = scripts::test(&package.scripts);
        let build = package.scripts.contains_key("build");
        if test.is_none() && !build {
            return jobs;
        }
        let mut steps = self.before(install.as_deref());
        steps.extend(build.then(|| run("build")));
        let mut named: Vec<&str> = if build { vec!["build"] } else { Vec::new() };
        let (mut results, mut count) = (Vec::new(), None);
        if let Some(test) = test {
            named.push("test");
            let report = scripts::report(test, folder);
            count = Some(match &report {
                Some(_) => CountTests::Report,
                None => scripts::count(&package.scripts, "test"),
            });
            let more = report.as_ref().map_or("", |(more, _)| *more);
            let script = self.manager.script(self.root, folder, "test", more);
            steps.push(Step::of(script));
            results.extend(report.map(|(_, report)| report));
        }
        jobs.push(Job {
            kind: if test.is_some() { "test" } else { "build" },
            steps,
            results,
            count,
            reason: format!("{path}: {}", said(&named)),
            ..base
        });
        jobs
    }
}

fn said(scripts: &[&str]) -> String {
    match scripts {
        [one] => format!("script {one}"),
        several => format!("scripts {}", several.join(", ")),
    }
}

/// The version of Node.js: what the package says itself, or its workspace, or a file of versions.
fn node_version(
    tree: &Tree,
    folder: &str,
    package: &Manifest,
    root_folder: &str,
    root: &Manifest,
) -> String {
    if let Some(range) = package.engine.as_ref().or(root.engine.as_ref()) {
        return versions::requirement("node", range);
    }
    for folder in [folder, root_folder, ""] {
        for name in [".nvmrc", ".node-version"] {
            if let Ok(text) = tree.text(&join(folder, name)) {
                return versions::requirement("node", versions::of_file(&text));
            }
        }
    }
    "node".to_owned()
}
