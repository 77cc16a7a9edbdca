//! Whatever a repository looks like: what is written down reads back, a narrower plan is part of
//! the whole one, and nothing is planned that a run would refuse.

use std::collections::BTreeSet;

use delta_planner::{Changed, Extent, Facts, Plan, Tree, discover, parse, plan};
use proptest::prelude::*;

use crate::repositories::same_when_read_back;

/// Names of folders, some of them such as nobody should have.
fn folder() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-c]{1,2}",
        Just("$(id)".to_owned()),
        Just("a b".to_owned()),
        Just("it's".to_owned()),
        Just("-x".to_owned()),
        Just("ü*".to_owned()),
        Just("#y: {z}".to_owned()),
    ];
    prop::collection::vec(part, 0..3).prop_map(|parts| parts.join("/"))
}

/// A file that an ecosystem looks at, or one that none does.
fn file() -> impl Strategy<Value = (&'static str, String)> {
    let name = "[a-d@$'\" ]{1,3}";
    prop_oneof![
        (name, "[a-c]{0,2}").prop_map(|(name, other)| {
            let name = name.replace(['"', '\\'], "");
            let text = format!(
                "[package]\nname = \"{name}\"\n[dependencies]\nx = {{ path = \"../{other}\" }}\n"
            );
            ("Cargo.toml", text)
        }),
        Just((
            "Cargo.toml",
            "[workspace]\nmembers = [\"*\", \"a/**\"]\n".to_owned()
        )),
        Just(("Cargo.toml", "[package".to_owned())),
        (name, name).prop_map(|(name, other)| {
            let scripts = serde_json::json!({"test": "node --test", "build": "x", "lint": "y"});
            let text = serde_json::json!({
                "name": name, "scripts": scripts, "dependencies": {other: "workspace:*"},
            });
            ("package.json", text.to_string())
        }),
        Just((
            "package.json",
            "{\"workspaces\": [\"*\", \"**\"], \"scripts\": {\"test\": \"x\"}}".to_owned()
        )),
        Just(("package-lock.json", "{}".to_owned())),
        Just(("pyproject.toml", "[tool.pytest]\n[tool.ruff]\n".to_owned())),
        Just(("requirements.txt", "-e ../a\npytest\n".to_owned())),
        Just((
            "go.mod",
            "module a\ngo 1.22\nreplace b => ../b\n".to_owned()
        )),
        Just(("Makefile", "test:\nlint: test\n".to_owned())),
        Just(("a_test.go", "package a\n".to_owned())),
        Just(("test_a.py", "def test_a(): ...\n".to_owned())),
        Just(("noxfile.py", "@nox.session\ndef tests(s): ...\n".to_owned())),
        Just(("tox.ini", "[tox]\nenvlist = py39, $(id), lint\n".to_owned())),
        Just(("pom.xml", "<project/>".to_owned())),
        Just(("README.md", "# x".to_owned())),
        Just(("src/lib.rs", String::new())),
        Just(("src/main.rs", "#[test]\nfn a() {}\n".to_owned())),
    ]
}

fn repository() -> impl Strategy<Value = Vec<(String, String)>> {
    let one = (folder(), file()).prop_map(|(folder, (name, text))| match folder.as_str() {
        "" => (name.to_owned(), text),
        folder => (format!("{folder}/{name}"), text),
    });
    prop::collection::vec(one, 0..14)
}

fn names(plan: &Plan) -> BTreeSet<String> {
    plan.jobs.iter().map(|it| it.job.name.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_found_is_a_plan(
        files in repository(), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let tree = Tree::of(files);
        let Ok(discovery) = discover(&tree) else {
            return Ok(());
        };
        let whole = discovery.plan(&Changed::All);
        prop_assert!(!whole.jobs.is_empty() && whole.omitted.is_empty());
        prop_assert_eq!(names(&whole).len(), whole.jobs.len(), "each name once");
        let text = delta_planner::written(&discovery).expect("short");
        same_when_read_back(&text, &discovery.pipeline());
        let unknown = discovery.plan(&Changed::Unknown("nobody knows".to_owned()));
        prop_assert_eq!(names(&unknown), names(&whole), "what is unknown runs");
        let changed: Vec<String> = picks.iter().map(|it| it.get(tree.paths()).clone()).collect();
        let some = discovery.plan(&Changed::files(changed.clone()));
        let omitted = some.omitted.iter().map(|it| it.name.clone());
        let both: BTreeSet<String> = names(&some).into_iter().chain(omitted).collect();
        prop_assert_eq!(both, names(&whole), "each job runs or is left out");
        prop_assert!(some.jobs.iter().all(|it| !it.reason.is_empty()));
        prop_assert!(some.omitted.iter().all(|it| !it.reason.is_empty()));
        let read = parse("written", text.as_bytes()).expect("it reads back");
        let facts = Facts::push("main", Changed::files(changed.clone()));
        let by_file = plan(&read, &facts).expect("no inputs");
        prop_assert!(
            names(&some).is_subset(&names(&by_file)),
            "the written file leaves out {:?} after {:?}:\n{}", names(&some), changed, text
        );
        let documents = changed.iter().all(|it| it.ends_with("README.md"));
        prop_assert!(documents || !some.jobs.is_empty(), "a change of {:?} runs nothing", changed);
    }
}

/// What runs after one file of a repository changed, or is gone.
fn after(files: &[(&str, &str)], changed: &str) -> Vec<String> {
    let files = files.iter();
    let tree = Tree::of(files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
    let discovery = discover(&tree).expect("something is found");
    let plan = discovery.plan(&Changed::files([changed.to_owned()]));
    names(&plan).into_iter().collect()
}

#[test]
fn a_document_that_something_reads_is_no_documentation() {
    let crates = [
        ("Cargo.toml", "[package]\nname = \"a\"\n"),
        ("src/lib.rs", "mod help;\n"),
        (
            "src/help.rs",
            "const A: &str = include_str!(\"../docs/help.md\");\n",
        ),
        ("docs/help.md", "# Help\n"),
        ("README.md", "# Read me\n"),
    ];
    assert_eq!(after(&crates, "docs/help.md"), ["build"]);
    assert_eq!(after(&crates[..3], "docs/help.md"), ["build"], "it is gone");
    assert!(after(&crates, "README.md").is_empty());
    let python = [
        (
            "pyproject.toml",
            "[project]\nname = \"a\"\nreadme = \"README.md\"\n",
        ),
        ("test_a.py", "def test_a(): ...\n"),
        ("README.md", "# Read me\n"),
    ];
    assert_eq!(after(&python[..2], "README.md"), ["test"], "it is gone");
    assert!(after(&python, "README.md").is_empty());
    let go = [
        ("go.mod", "module a\n\ngo 1.22\n"),
        (
            "a.go",
            "package a\n\n//go:embed README.md\nvar text string\n",
        ),
        ("README.md", "# Read me\n"),
    ];
    assert_eq!(after(&go, "README.md"), ["build"]);
}

/// A job that is narrowed to packages whose tests may not run here is not red for that.
#[test]
fn a_job_counts_only_where_a_test_runs_for_sure() {
    let files = [
        (
            "Cargo.toml",
            "[workspace]\nmembers = [\"a\", \"b\", \"c\"]\n",
        ),
        ("a/Cargo.toml", "[package]\nname = \"a\"\n"),
        ("a/src/lib.rs", "#[test]\nfn a() {}\n"),
        ("b/Cargo.toml", "[package]\nname = \"b\"\n"),
        ("b/src/lib.rs", "#[cfg(windows)]\n#[test]\nfn b() {}\n"),
        ("c/Cargo.toml", "[package]\nname = \"c\"\n"),
        ("c/src/lib.rs", "pub fn c() {}\n"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let tree = Tree::of(files);
    let discovery = discover(&tree).expect("something is found");
    let planned = |changed: &str| {
        let plan = discovery.plan(&Changed::files([changed.to_owned()]));
        let job = &plan.jobs[0].job;
        let count = job.around["count_tests"].as_str().unwrap_or_default();
        format!("{}: {count}", job.steps[0].spec.run)
    };
    assert_eq!(planned("a/src/lib.rs"), "cargo test -p a: output");
    assert_eq!(planned("b/src/lib.rs"), "cargo test -p b: none");
    assert_eq!(planned("c/src/lib.rs"), "cargo test --workspace: output");
}

/// A plan is not all that a project has: what checks something and is not run is named.
#[test]
fn checks_that_nothing_runs_are_named() {
    let scripts = serde_json::json!({"scripts": {
        "test": "vitest", "check": "biome check", "test:e2e": "playwright test", "knip": "knip",
    }});
    let files = [
        ("package.json", scripts.to_string()),
        ("biome.json", "{}".to_owned()),
        ("staticcheck.conf", String::new()),
        (
            "py/tox.ini",
            "[tox]\nenvlist = py312\n[testenv]\ncommands = pytest\n[testenv:manual]\nx = y\n"
                .to_owned(),
        ),
    ];
    let tree = Tree::of(files.map(|(path, text)| (path.to_owned(), text)));
    let discovery = discover(&tree).expect("something is found");
    let said = discovery.remarks().iter();
    let said: Vec<String> = said
        .map(|it| format!("{}: {}", it.what, it.reason))
        .collect();
    for wanted in [
        "package.json: its scripts check, knip, test:e2e are not run: ",
        "biome.json: sets up biome, and no script that is run calls it",
        "tox -e manual: is not run: the list of environments does not name it",
        "staticcheck.conf: is of staticcheck, which is not understood: write a job with",
    ] {
        assert!(
            said.iter().any(|it| it.starts_with(wanted)),
            "{wanted}: {said:#?}"
        );
    }
}

/// It is not known what its targets look at.
/// A file whose jobs run is not left out with what it has that no job runs.
#[test]
fn what_is_left_out_is_told_from_what_is_said_of_jobs() {
    let files = [
        (
            "package.json",
            r#"{"workspaces": ["a"], "scripts": {"test": "node --test && npm test -ws"}}"#,
        ),
        (
            "a/package.json",
            r#"{"scripts": {"test": "jest", "e2e": "x"}}"#,
        ),
        ("b/go.mod", "module b\n"),
        ("b/b.go", "package b\n"),
        ("b/b_test.go", "//go:build slow\npackage b\n"),
        ("c/Makefile", "test: t\n\t./run\nt:\nlint-go:\n"),
        ("d/Makefile", "all:\n"),
    ];
    let tree = Tree::of(files.map(|(path, text)| (path.to_owned(), text.to_owned())));
    let discovery = discover(&tree).expect("jobs");
    let remarks = discovery.remarks().iter();
    let mut extents: Vec<_> = remarks.map(|it| (it.what.as_str(), it.left_out)).collect();
    extents.sort_by_key(|(what, _)| *what);
    let wanted = [
        ("a/package.json", Extent::Part),
        ("b/go.mod", Extent::Part),
        ("c/Makefile", Extent::Part),
        ("d/Makefile", Extent::Whole),
        ("package.json", Extent::Nothing),
    ];
    assert_eq!(extents, wanted, "{:?}", discovery.remarks());
}

#[test]
fn any_document_beside_a_makefile_concerns_it() {
    let sphinx = [
        ("Makefile", "test:\n\tsphinx-build -W docs out\n"),
        ("docs/index.rst", "Index\n"),
    ];
    assert_eq!(after(&sphinx, "docs/index.rst"), ["test"]);
    let grep = [
        ("Makefile", "test:\n\tgrep -q 1.2 CHANGELOG\n"),
        ("CHANGELOG", "1.2\n"),
    ];
    assert_eq!(after(&grep, "CHANGELOG"), ["test"]);
    let several = [
        ("Makefile", "test:\n\tsh check.sh\n"),
        ("README.md", "# Read me\n"),
        ("web/package.json", "{\"scripts\": {\"test\": \"jest\"}}"),
    ];
    assert_eq!(after(&several, "README.md"), ["test"]);
}

/// What a package is called that cannot be read is not known, and so not who needs it.
#[test]
fn a_broken_package_concerns_whoever_could_need_it() {
    let files = [
        ("web/package.json", "{\"workspaces\": [\"packages/*\"]}"),
        ("web/packages/ui/package.json", "{\"name\": \"@web/ui\","),
        (
            "web/packages/app/package.json",
            "{\"scripts\": {\"test\": \"jest\"}, \"dependencies\": {\"@web/ui\": \"*\"}}",
        ),
        (
            "web/packages/log/package.json",
            "{\"scripts\": {\"test\": \"jest\"}}",
        ),
    ];
    let changed = "web/packages/ui/package.json";
    assert_eq!(after(&files, changed), ["test-app", "test-ui"]);
}

#[test]
fn the_placeholder_of_npm_is_called_so() {
    let script = "{\"scripts\": {\"test\": \"echo \\\"Error: no test specified\\\" && exit 1\"}}";
    let tree = Tree::of([("package.json".to_owned(), script.to_owned())]);
    let Err(empty) = discover(&tree) else {
        panic!("there is nothing to run");
    };
    let reason = &empty.remarks[0].reason;
    assert!(reason.contains("the placeholder of npm"), "{reason}");
}

/// Packages of every kind, one after another built with the one before.
fn many(packages: usize, files: usize) -> Vec<(String, String)> {
    let mut all = vec![
        (
            "package.json".to_owned(),
            "{\"workspaces\": [\"web/*\"]}".to_owned(),
        ),
        ("package-lock.json".to_owned(), "{}".to_owned()),
        (
            "rust/Cargo.toml".to_owned(),
            "[workspace]\nmembers = [\"*\"]\n".to_owned(),
        ),
    ];
    for n in 0..packages {
        let before = n.saturating_sub(4);
        let (folder, name, text) = match n % 4 {
            0 => {
                let text = format!(
                    "[package]\nname = \"p{n}\"\n[dependencies]\np = {{ path = \"../p{before}\" }}\n"
                );
                (format!("rust/p{n}"), "Cargo.toml", text)
            }
            1 => {
                let text = format!(
                    "{{\"name\": \"p{n}\", \"scripts\": {{\"test\": \"jest\", \"lint\": \"x\"}}, \
                     \"dependencies\": {{\"p{before}\": \"workspace:*\"}}}}"
                );
                (format!("web/p{n}"), "package.json", text)
            }
            2 => {
                let text = "[tool.pytest.ini_options]\n".to_owned();
                (format!("python/p{n}"), "pyproject.toml", text)
            }
            _ => {
                let text = format!("module example.org/p{n}\nreplace b => ../p{before}\n");
                (format!("go/p{n}"), "go.mod", text)
            }
        };
        let source = match n % 4 {
            0 => Some(("src/lib.rs", "#[test]\nfn a() {}\n")),
            2 => Some(("test_a.py", "def test_a(): ...\n")),
            3 => Some(("a_test.go", "package p\n")),
            _ => None,
        };
        let source = source.map(|(name, text)| (format!("{folder}/{name}"), text.to_owned()));
        all.extend(source);
        for file in 0..files / packages {
            all.push((format!("{folder}/src/f{file}.x"), String::new()));
        }
        all.push((format!("{folder}/{name}"), text));
    }
    all
}

/// A tenth of what `delta-ci bench plan` measures.
#[test]
fn a_large_monorepo_stays_within_what_a_run_may_have() {
    let tree = Tree::of(many(200, 5_000));
    let discovery = discover(&tree).expect("found");
    assert_eq!(discovery.packages(), 200);
    let whole = discovery.plan(&Changed::All);
    // One of Cargo for all of its crates; of the others one or two each.
    assert_eq!(whole.jobs.len(), 1 + 2 * 50 + 50 + 50);
    let changed = Changed::files(["web/p197/src/f0.x".to_owned(), "go/p3/src/f1.x".to_owned()]);
    let some = discovery.plan(&changed);
    // The last of the web packages, and every module: each is built with the one before.
    let wanted = 2 + 50;
    assert_eq!(some.jobs.len(), wanted);
    assert_eq!(some.omitted.len(), whole.jobs.len() - wanted);
}

#[test]
fn packages_share_jobs_where_there_are_too_many() {
    let tree = Tree::of(many(4_000, 4_000));
    let discovery = discover(&tree).expect("found");
    let whole = discovery.plan(&Changed::All);
    assert!(whole.jobs.len() <= 310, "{}", whole.jobs.len());
    let steps: String = whole
        .jobs
        .iter()
        .flat_map(|it| &it.job.steps)
        .fold(String::new(), |all, step| all + &step.spec.run + "\n");
    for n in (1..4_000).step_by(4) {
        let command = format!("npm run test --workspace=web/p{n} ");
        assert_eq!(steps.matches(&command).count(), 1, "{command}");
    }
    for n in (3..4_000).step_by(4) {
        let folder = format!("cd go/p{n}\ngo test");
        assert_eq!(steps.matches(&folder).count(), 1, "{folder}");
    }
    let installs = steps.matches("npm ci").count();
    assert!(installs < 310, "installed once for each group: {installs}");
    let request = whole.to_request().to_string();
    assert!(request.len() < 8 * 1024 * 1024, "{} bytes", request.len());
}

#[test]
fn a_file_of_almost_the_right_name_is_remarked() {
    let file = |path: &str| (path.to_owned(), "test:\n\ttrue\n".to_owned());
    let tree = Tree::of([file(".delta-ci.yml"), file("Makefile")]);
    let discovery = delta_planner::discover(&tree).expect("a makefile");
    let remark = &discovery.remarks()[0];
    assert_eq!(remark.what, ".delta-ci.yml");
    assert!(remark.reason.contains("did you mean .delta-ci.yaml?"));
    let empty = Tree::of([file(".delta-ci.yml")]);
    let empty = delta_planner::discover(&empty).err().expect("nothing");
    assert!(
        empty.to_string().contains("did you mean .delta-ci.yaml?"),
        "{empty}"
    );
}

/// The steps of the job `test` of a repository.
fn test_steps(files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter();
    let tree = Tree::of(files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
    let found = discover(&tree).expect("a plan").pipeline();
    let job = found.jobs.iter().find(|it| it.name == "test");
    let steps = &job.expect("a job `test`").steps;
    steps.iter().map(|it| it.spec.run.clone()).collect()
}

const PIP: &str = ".venv/bin/python -m pip install";

#[test]
fn pytest_is_installed_wherever_nothing_else_brings_it() {
    let test = ("tests/test_a.py", "def test_a():\n    pass\n");
    let of_poetry = "[tool.poetry.group.dev.dependencies]\npytest = \"*\"\n";
    for (path, text) in [
        ("pyproject.toml", "[tool.pytest.ini_options]\n"),
        ("pytest.ini", "[pytest]\n"),
        ("setup.cfg", "[tool:pytest]\n"),
        ("pyproject.toml", of_poetry),
    ] {
        let wanted = [
            "python3 -m venv .venv".to_owned(),
            format!("{PIP} pytest"),
            ".venv/bin/python -m pytest --junitxml=test-results.xml".to_owned(),
        ];
        assert_eq!(test_steps(&[(path, text), test]), wanted, "{path}: {text}");
    }
}

#[test]
fn a_package_below_src_is_installed_without_a_named_backend() {
    let test = ("tests/test_a.py", "import pk\n\ndef test_a():\n    pass\n");
    let project = "[project]\nname = \"pk\"\nversion = \"1\"\n";
    let told = "[project]\nname = \"pk\"\nversion = \"1\"\n\
                [tool.pytest.ini_options]\npythonpath = [\"src\"]\n";
    for (manifest, file, wanted) in [
        (project, "src/pk/__init__.py", format!("{PIP} -e . pytest")),
        ("[project]\n", "src/pk/__init__.py", format!("{PIP} pytest")),
        (told, "src/pk/__init__.py", format!("{PIP} pytest")),
        (project, "src/__init__.py", format!("{PIP} pytest")),
        (project, "src/pk.c", format!("{PIP} pytest")),
        (project, "pk/__init__.py", format!("{PIP} pytest")),
    ] {
        let steps = test_steps(&[("pyproject.toml", manifest), (file, ""), test]);
        assert_eq!(steps[1], wanted, "{manifest}{file}");
    }
}
