//! Make: the targets `lint`, `build`, `test` and `check` of a makefile.
//!
//! Where another tool of the same folder has a job of the same kind, the target takes its place if
//! its recipe brings along what it needs (`go test`, `cargo …`, `uv run …`): it is what maintainers
//! run, and does at least as much. A target `test` must call the tests of that tool. One that takes
//! tools for granted that the other job installs is left to that. Tools that a recipe calls are
//! requirements of the job. Targets that check something and that no job makes are named.

mod includes;
mod recipes;
mod testing;
mod unrun;

use std::collections::BTreeSet;

use self::includes::Whole;
use self::recipes::Makefile;
use super::checks::listed;
use super::counting::Judge;
use super::found::{Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Step};
use super::shell::calls;
use super::{go, ignored, tools, versions};
use crate::tree::{Tree, file_name, folder_of, join};

pub struct Make;

/// In the order in which GNU make looks for them.
const NAMES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];

const TARGETS: [&str; 4] = ["lint", "build", "test", "check"];

/// First words of commands that bring along what they need.
const WHOLE: [&str; 12] = [
    "go test",
    "go vet",
    "go build",
    "golangci-lint",
    "gotestsum",
    "cargo",
    "uv run",
    "uvx",
    "poetry run",
    "hatch",
    "tox",
    "nox",
];

/// Whether a command begins with these words.
fn begins_with(line: &str, words: &str) -> bool {
    let mut line = line.split_whitespace();
    words.split(' ').all(|word| line.next() == Some(word))
}

impl Ecosystem for Make {
    fn name(&self) -> &'static str {
        "Make"
    }

    fn own(&self) -> &'static [&'static str] {
        &[]
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["Makefile", "GNUmakefile"]
    }

    fn find(&self, tree: &Tree, found: &mut Found) {
        let mut folders: BTreeSet<&str> = BTreeSet::new();
        for path in tree.paths() {
            if NAMES.contains(&file_name(path)) && folders.len() < MAX_PACKAGES {
                folders.insert(folder_of(path));
            }
        }
        for folder in folders {
            let name = NAMES.iter().find(|it| tree.has(&join(folder, it)));
            let path = join(folder, name.unwrap_or(&"Makefile"));
            // One below another makefile is usually started by it.
            let root = folder.is_empty() || !beneath(tree, folder);
            if let Some(why) = ignored(folder) {
                found.remark(path, why);
            } else if !root {
                found.remark(path, "lies below another makefile");
            } else {
                one(tree, folder, &path, found);
            }
        }
    }
}

fn beneath(tree: &Tree, folder: &str) -> bool {
    let mut above = folder;
    while !above.is_empty() {
        above = folder_of(above);
        if NAMES.iter().any(|name| tree.has(&join(above, name))) {
            return true;
        }
    }
    false
}

fn one(tree: &Tree, folder: &str, path: &str, found: &mut Found) {
    let text = match tree.text(path) {
        Ok(text) => text,
        Err(why) => return found.remark(path, why.to_string()),
    };
    let whole = includes::whole(tree, folder, &text);
    let makefile = Makefile::read(&whole.text);
    if let Some(words) = unrun::words(&makefile) {
        found.remark_part(path, words);
    }
    let mut jobs = Vec::new();
    for target in TARGETS.into_iter().filter(|it| makefile.has(it)) {
        let mut job = job(folder, path, target, &makefile);
        in_their_versions(&mut job, found);
        let nothing = only_says(target, &makefile).then(|| ONLY_SAYS.to_owned());
        if let Some(why) = nothing.or_else(|| tests_nothing(target, &makefile, found, folder)) {
            found.remark(format!("make {target}"), why);
            continue;
        }
        // `check` is the word for tests where there is no `test`.
        let kinds: &[&str] = match target {
            "lint" => &["lint", "clippy"],
            "check" => &["test", "check"],
            other => &[other],
        };
        if let Some(other) = kinds.iter().find_map(|kind| found.has_job(folder, kind)) {
            let name = other.ecosystem;
            if takes_place(target, &makefile, found, folder) {
                take_place(found, folder, kinds, job);
            } else {
                let reason = format!("{name} has jobs for it in the same folder");
                found.remark(format!("make {target}"), reason);
            }
            continue;
        }
        // Both are words for tests; one that needs the other does it, too.
        let same = match target {
            "test" => Some("check"),
            "check" => Some("test"),
            _ => None,
        };
        let wider = same.filter(|it| makefile.needs(it, target));
        if let Some(wider) = wider.filter(|it| *it == "test" || !makefile.needs(target, it)) {
            let reason = format!("make {wider} needs it, and does it");
            found.remark(format!("make {target}"), reason);
            continue;
        }
        jobs.push(job);
    }
    let none = !TARGETS.iter().any(|it| makefile.has(it));
    name_unread(path, &whole, none, found);
    if jobs.is_empty() {
        return;
    }
    found.projects.push(Project {
        ecosystem: Make.name(),
        folder: folder.to_owned(),
        shared: Vec::new(),
        packages: vec![Package {
            name: file_name(folder).to_owned(),
            folder: folder.to_owned(),
            jobs,
            anything: true,
            ..Package::default()
        }],
        jobs: Vec::new(),
    });
}

/// Names what a makefile includes that is not read, and says where there is no target for a job.
fn name_unread(path: &str, whole: &Whole, none: bool, found: &mut Found) {
    let mut unread = whole.unread.clone();
    if none {
        unread.extend(whole.perhaps.iter().cloned());
    }
    let unread: Vec<&str> = unread.iter().map(String::as_str).collect();
    let unread = listed(&unread).map(|(names, several)| {
        let are = if several { "are" } else { "is" };
        format!("includes {names}, which {are} not read")
    });
    let none = none.then(|| "has no target called lint, build, test or check".to_owned());
    match (none, unread) {
        (None, None) => {}
        (Some(none), Some(unread)) => found.remark(path, format!("{none}, and {unread}")),
        (Some(none), None) => found.remark(path, none),
        (None, Some(unread)) => found.remark_part(path, unread),
    }
}

fn job(folder: &str, path: &str, target: &'static str, makefile: &Makefile<'_>) -> Job {
    let commands = makefile.commands(target);
    let mut requires = vec!["make".to_owned()];
    let tools = tools::of_scripts(&commands).into_iter();
    // Where programs are is for such a makefile to say.
    let brought = |name: &str| makefile.sets("PATH") && tools::bringer(name).is_some();
    let tools = tools.filter(|it| *it != "make" && !brought(it));
    requires.extend(tools.map(str::to_owned));
    let tests = matches!(target, "test" | "check");
    Job {
        kind: target,
        steps: vec![Step::of(format!("make {target}"))],
        workdir: folder.to_owned(),
        requires,
        count: tests.then(|| Judge::BARE.count(&commands)),
        reason: format!("{path}: target {target}"),
        ..Job::default()
    }
}

/// A tool is asked for in the version in which other jobs of the folder ask for it.
fn in_their_versions(job: &mut Job, found: &Found) {
    let projects = found.projects.iter();
    let packages = projects.flat_map(|it| &it.packages);
    let packages = packages.filter(|it| it.folder == job.workdir);
    let theirs = packages.flat_map(|it| &it.jobs).flat_map(|it| &it.requires);
    let theirs = versions::strictest(&theirs.cloned().collect::<Vec<_>>());
    for own in &mut job.requires {
        if let Some(same) = theirs.iter().find(|it| versions::tool_of(it) == own) {
            own.clone_from(same);
        }
    }
}

const ONLY_SAYS: &str = "only says something, and tests nothing";

/// Whether all that a target for tests does is to say something. One that needs others is believed:
/// what makes them may stand in another file.
fn only_says(target: &str, makefile: &Makefile<'_>) -> bool {
    let commands = makefile.commands(target);
    let of_tests = matches!(target, "test" | "check") && !makefile.needs_any(target);
    let starts = |it: &String| it.contains(['`', '|', '>']) || it.contains("$(");
    if !of_tests || commands.iter().any(starts) {
        return false;
    }
    let calls: Vec<_> = commands.iter().flat_map(|it| calls(it)).collect();
    let first = |it: &[String]| it.first().cloned().unwrap_or_default();
    let mut says = calls.iter().map(|it| first(&it.words));
    says.clone()
        .any(|it| matches!(it.as_str(), "echo" | "printf"))
        && says.all(|it| matches!(it.as_str(), "echo" | "printf" | "exit" | "true" | ":"))
}

/// Why a target that only has Go test, vet or build something would find nothing to do it to.
fn tests_nothing(
    target: &str,
    makefile: &Makefile<'_>,
    found: &Found,
    folder: &str,
) -> Option<String> {
    let why = go::untested(found, folder)?;
    let commands = makefile.commands(target);
    let calls: Vec<_> = commands.iter().flat_map(|it| calls(it)).collect();
    let tests = |words: &[String]| words.get(..2).is_some_and(|it| it == ["go", "test"]);
    // Nobody sets tags that are not there.
    let tagged = |words: &[String]| {
        words
            .iter()
            .any(|it| it.trim_start_matches('-').starts_with("tags"))
    };
    if why.contains("build tags") && calls.iter().any(|it| tagged(&it.words)) {
        return None;
    }
    let is_go = |words: &[String]| {
        let command = words.get(..2).map(|it| [it[0].as_str(), it[1].as_str()]);
        matches!(command, Some(["go", "test" | "vet" | "build" | "fmt"]))
    };
    let mut all = calls.iter().map(|it| it.words.as_slice());
    let of_tests = matches!(target, "test" | "check");
    let nothing = if why.contains("without packages") {
        !calls.is_empty() && all.clone().all(is_go)
    } else {
        of_tests && all.clone().any(tests) && all.all(is_go)
    };
    nothing.then(|| format!("runs nothing but Go's own commands, and {why}"))
}

/// Whether a target does what jobs of other tools do in its folder, and brings along what it needs.
fn takes_place(target: &str, makefile: &Makefile<'_>, found: &Found, folder: &str) -> bool {
    let commands = makefile.commands(target);
    let begins = |line: &&String| WHOLE.iter().any(|it| begins_with(line, it));
    let whole: Vec<&String> = commands.iter().filter(begins).collect();
    match target {
        "check" => false,
        // A tool whose tests the target does not run keeps its job.
        "test" => {
            let tested = |of: &str| whole.iter().any(|it| testing::tests(it, of));
            ecosystems(found, folder, target).into_iter().all(tested)
        }
        _ => !whole.is_empty(),
    }
}

/// The ecosystems that have jobs of a kind for this very folder.
fn ecosystems(found: &Found, folder: &str, kind: &str) -> BTreeSet<&'static str> {
    let has = |jobs: &[Job]| jobs.iter().any(|it| it.kind == kind);
    let of = found.projects.iter().filter(|project| {
        let mut packages = project.packages.iter().filter(|it| it.folder == folder);
        (project.folder == folder && has(&project.jobs)) || packages.any(|it| has(&it.jobs))
    });
    of.map(|it| it.ecosystem).collect()
}

/// Puts a target where another tool has jobs of these kinds: it keeps what those ask for.
fn take_place(found: &mut Found, folder: &str, kinds: &[&str], job: Job) {
    let replace = |jobs: &mut Vec<Job>| {
        let Some(at) = jobs.iter().position(|it| kinds.contains(&it.kind)) else {
            return;
        };
        let mut new = Job {
            caches: jobs[at].caches.clone(),
            ..job.clone()
        };
        new.requires.extend(jobs[at].requires.iter().cloned());
        new.requires = versions::strictest(&new.requires);
        jobs[at] = new;
        let mut seen = 0;
        jobs.retain(|it| {
            seen += usize::from(kinds.contains(&it.kind));
            !kinds.contains(&it.kind) || seen == 1
        });
    };
    for project in &mut found.projects {
        if project.folder == folder {
            replace(&mut project.jobs);
        }
        for package in project.packages.iter_mut().filter(|it| it.folder == folder) {
            replace(&mut package.jobs);
        }
    }
}

#[cfg(test)]
mod tests {
    use delta_wire::job_spec::CountTests;

    use super::*;

    fn found(files: &[(&str, &str)]) -> Found {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        let tree = Tree::of(files);
        let mut found = Found::default();
        super::super::go::Go.find(&tree, &mut found);
        Make.find(&tree, &mut found);
        found
    }

    fn jobs(text: &str) -> Vec<Job> {
        let found = found(&[("Makefile", text)]);
        let jobs = found
            .projects
            .into_iter()
            .flat_map(|it| it.packages)
            .flat_map(|it| it.jobs);
        jobs.collect()
    }

    fn kinds(text: &str) -> Vec<&'static str> {
        jobs(text).iter().map(|it| it.kind).collect()
    }

    #[test]
    fn a_target_that_only_says_something_is_no_test() {
        for recipe in [
            "; @echo no tests",
            "\n\t@echo none; exit 1",
            "\n\t@printf 'a\\n' && true",
        ] {
            let text = format!("test:{recipe}\n");
            assert!(kinds(&text).is_empty(), "{text}");
            let found = found(&[("Makefile", text.as_str())]);
            assert!(found.remarks.iter().any(|it| it.reason == ONLY_SAYS));
        }
        for recipe in [
            " unit\n\t@echo done",
            "\n\t@echo go\n\t./run-tests",
            "\n\techo x | sh",
            "\n\techo $$(./run-tests)",
            "\n\techo `./run-tests`",
            "",
        ] {
            assert_eq!(kinds(&format!("test:{recipe}\n")), ["test"], "{recipe}");
        }
    }

    /// What another file says is part of the makefile, or said not to be read.
    #[test]
    fn targets_of_included_files_are_targets() {
        let main = ("Makefile", "include rules.mk\n-include $(DEPS)\n");
        let rules = ("rules.mk", "test:\n\tgo test ./...\ntests:\n\t./all\n");
        let read = found(&[main, rules]);
        let packages = read.projects.iter().flat_map(|it| &it.packages);
        let jobs: Vec<&Job> = packages.flat_map(|it| &it.jobs).collect();
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].requires, ["make", "go"]);
        let said = |found: &Found| {
            let said = found.remarks.iter().map(|it| it.reason.clone());
            said.collect::<Vec<_>>()
        };
        let why = "lint, build, test and check, and what these need, are";
        assert_eq!(said(&read), [format!("its target tests is not run: {why}")]);
        let unread = "has no target called lint, build, test or check, and includes rules.mk, \
                      $(DEPS), which are not read";
        assert_eq!(said(&found(&[main])), [unread]);
    }

    #[test]
    fn a_target_that_another_needs_is_made_once() {
        assert_eq!(kinds("test: check\ncheck:\n\ttrue\n"), ["test"]);
        assert_eq!(
            kinds("check: lint \\\n  unit\nunit: test\nlint test:\n"),
            ["lint", "check"]
        );
        assert_eq!(kinds("test: check\ncheck: test\n"), ["test"]);
        assert_eq!(
            kinds("test: a # check\ncheck: b ; test\n"),
            ["test", "check"]
        );
        assert_eq!(kinds("build:\ntest: build\n"), ["build", "test"]);
    }

    #[test]
    fn tools_of_a_recipe_are_asked_for() {
        let text = "TIDY ?= clang-tidy\nlint: style\n\t@$(TIDY) jsmn.h -- -std=c99\nstyle:\n\
                    \t-${MAKE} x\n\tclang-format --dry-run a.c\ntest:\n\t./run\n";
        let jobs = jobs(text);
        assert_eq!(jobs[0].requires, ["make", "clang-tidy", "clang-format"]);
        assert_eq!(jobs[0].count, None);
        assert_eq!(jobs[1].requires, ["make"]);
        assert_eq!(jobs[1].count, Some(CountTests::None));
    }

    /// A runtime is asked for as any other tool is, on whichever line the recipe stands.
    #[test]
    fn runtimes_of_a_recipe_are_asked_for() {
        for (text, wanted) in [
            ("test:\n\tgo test ./...\n", "make go"),
            ("lint: ; golangci-lint run\n", "make golangci-lint"),
            ("deps:\ntest: deps ; cargo test\n", "make rust"),
            ("GO ?= go\ntest:\n\t@$(GO) test ./...\n", "make go"),
            (
                "PYTHON := python3\ntest:\n\t${PYTHON} -m pytest\n",
                "make python",
            ),
            ("test:\n\t$(GO) test ./...\n", "make"),
            ("test:\n\tnode --test\n\t$(MAKE) x\n", "make node"),
            ("test:\n\tdocker compose run app pytest\n", "make docker"),
            ("lint:\n\truff check .\n", "make ruff"),
            (
                "export PATH := node_modules/.bin:$(PATH)\nlint:\n\teslint .\n",
                "make",
            ),
            (
                "lint: node_modules\n\teslint .\nnode_modules:\n\tnpm ci\n",
                "make npm",
            ),
            (
                "test:\n\tcommand -v go >/dev/null && go vet ./... ; ./run\n",
                "make",
            ),
        ] {
            assert_eq!(jobs(text)[0].requires.join(" "), wanted, "{text}");
        }
    }

    /// A target that runs something else, or the tests of another tool alone, replaces none.
    #[test]
    fn tests_that_a_target_does_not_run_stay() {
        let cargo = [
            (
                "Cargo.toml",
                "[package]\nname = \"a\"\nversion = \"0.1.0\"\n",
            ),
            ("src/lib.rs", "#[test]\nfn a() {}\n"),
        ];
        let go = [
            ("go.mod", "module a\ngo 1.22\n"),
            ("a.go", "package a\n"),
            ("a_test.go", "package a\n"),
        ];
        for (makefile, both, wanted) in [
            (
                "test: build\n\t./e2e.sh\nbuild:\n\tcargo build\n",
                false,
                "cargo",
            ),
            ("test:\n\tcargo clippy --tests\n", false, "cargo"),
            ("test:\n\tcargo test --all\n", false, "make"),
            ("test:\n\tcargo test\n", true, "cargo go"),
            ("test:\n\tcargo test\n\tgo test ./...\n", true, "make make"),
        ] {
            let more: &[_] = if both { &go } else { &[] };
            let own = [("Makefile", makefile)];
            let files = cargo.iter().chain(more).chain(&own);
            let files = files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
            let tree = Tree::of(files);
            let mut found = Found::default();
            super::super::cargo::Cargo.find(&tree, &mut found);
            super::super::go::Go.find(&tree, &mut found);
            Make.find(&tree, &mut found);
            let own = found.projects.iter().flat_map(|it| &it.jobs);
            let packages = found.projects.iter().flat_map(|it| &it.packages);
            let jobs = own.chain(packages.flat_map(|it| &it.jobs));
            let tests = jobs.filter(|it| it.kind == "test");
            let firsts = tests.map(|it| it.steps[0].head.split(' ').next().unwrap_or_default());
            assert_eq!(firsts.collect::<Vec<_>>().join(" "), wanted, "{makefile}");
        }
    }

    /// In the version that the module asks for, where there is one.
    #[test]
    fn a_target_beside_a_module_asks_for_its_go() {
        let found = found(&[
            ("go.mod", "module a\ngo 1.22\n"),
            ("a_test.go", "package a\n"),
            ("Makefile", "lint:\n\tgo vet ./...\n"),
        ]);
        let packages = found.projects.iter().flat_map(|it| &it.packages);
        let mut jobs = packages.flat_map(|it| &it.jobs);
        let lint = jobs.find(|it| it.kind == "lint").expect("a job");
        assert_eq!(lint.requires, ["make", "go>=1.22"]);
    }

    #[test]
    fn a_target_that_would_test_nothing_is_named() {
        let of = |files: &[(&str, &str)]| {
            let found = found(files);
            let packages = found.projects.iter().flat_map(|it| &it.packages);
            let jobs = packages.flat_map(|it| &it.jobs).map(|it| it.kind).collect();
            let mut remarks = found.remarks.iter().filter(|it| it.what == "make test");
            let said = remarks.next().map(|it| it.reason.clone());
            (jobs, said.unwrap_or_default())
        };
        let module = ("go.mod", "module a\ngo 1.22\n");
        let makefile = ("Makefile", "test:\n\tgo vet ./...\n\tgo test ./...\n");
        let (jobs, said): (Vec<&str>, String) = of(&[module, makefile]);
        assert!(jobs.is_empty(), "{jobs:?}");
        assert!(
            said.ends_with("go.mod is of a module without packages"),
            "{said}"
        );
        let (jobs, said) = of(&[module, makefile, ("a.go", "package a\n")]);
        assert_eq!(jobs, ["build"]);
        assert!(said.ends_with("the module has no tests"), "{said}");
        let more = ("Makefile", "test:\n\tgo test ./...\n\t./run-tests\n");
        assert_eq!(of(&[module, more]).0, ["test"]);
        let behind = ("a_test.go", "//go:build e2e\n\npackage a\n");
        let (jobs, said) = of(&[module, makefile, ("a.go", "package a\n"), behind]);
        assert_eq!(jobs, ["build"]);
        assert!(said.ends_with("tests are behind build tags"), "{said}");
        let tagged = ("Makefile", "test:\n\tgo test -tags=e2e ./...\n");
        let (jobs, said) = of(&[module, tagged, ("a.go", "package a\n"), behind]);
        assert!(jobs.contains(&"test"), "{jobs:?} {said}");
    }

    /// A name in a comment, a message or another word is no tool, and a line goes on behind a
    /// backslash.
    #[test]
    fn a_recipe_is_counted_by_its_commands() {
        for (recipe, wanted) in [
            ("go test ./...", CountTests::Output),
            ("@prove -r t", CountTests::Output),
            ("./unittests", CountTests::None),
            ("./improve", CountTests::None),
            ("# pytest does it\n\t./run", CountTests::None),
            ("@echo pytest\n\t./run", CountTests::None),
            ("go test ./... \\\n\t  | tee out", CountTests::None),
            ("go test ./... \\\n    | tee out", CountTests::None),
            ("go test \\\n\t  -race ./...", CountTests::Output),
            (
                "for d in a b; do \\\n\t  go test $$d; \\\n\tdone",
                CountTests::None,
            ),
        ] {
            let jobs = jobs(&format!("test:\n\t{recipe}\n"));
            assert_eq!(jobs[0].count, Some(wanted), "{recipe}");
        }
    }

    /// What maintainers run is at least what a plan of ours would.
    #[test]
    fn a_target_that_does_the_same_takes_the_place_of_ours() {
        let module = [("go.mod", "module a\ngo 1.22\n"), ("a.go", "package a\n")];
        let of = |makefile: &str| {
            let files = [
                module[0],
                module[1],
                ("a_test.go", ""),
                ("Makefile", makefile),
            ];
            let found = found(&files);
            let jobs = found
                .projects
                .iter()
                .flat_map(|it| &it.packages)
                .flat_map(|it| &it.jobs);
            let steps = jobs.map(|it| (it.steps[0].head.clone(), it.requires.join(" ")));
            steps.collect::<Vec<_>>()
        };
        let whole = of("test: vet\n\tgo test -race ./...\nvet:\n\tgo vet ./...\n");
        assert_eq!(
            whole,
            [("make test".to_owned(), "go>=1.22 make".to_owned())]
        );
        for not_tested in [
            "test:\n\tgo vet ./...\n",
            "test: build\n\t./e2e.sh\nbuild:\n\tgo build ./...\n",
            "test:\n\tgo test -c ./...\n",
            "test:\n\tcargo test\n",
            "test:\n\tgo vet ./... # go test\n",
        ] {
            let ours = of(not_tested);
            assert!(ours[0].0.starts_with("go test"), "{not_tested}: {ours:?}");
        }
        for tested in [
            "test: unit\nunit:\n\tgo test ./...\n",
            "test:\n\tgo vet ./... && go test ./...\n",
            "test:\n\tgotestsum -- ./...\n",
            "test:\n\tgo test -json ./...\n",
        ] {
            assert_eq!(of(tested)[0].0, "make test", "{tested}");
        }
        let other = of("test:\n\ttoxic run test\n");
        assert!(other[0].0.starts_with("go test"), "{other:?}");
        let other = of("test:\n\tdocker compose run test\n");
        assert!(other[0].0.starts_with("go test"), "{other:?}");
    }
}
