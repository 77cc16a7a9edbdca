//! What jobs of `delta-ci run` work on: copies of the tree with a repository of their own, kept
//! from run to run, of which nothing but what git ignores outlives the job.

use std::fs;
use std::path::{Path, PathBuf};

use delta_testkit::process::Spawn;

use crate::support::{PATIENCE, Place, Ran, binary, git};

/// A checkout of one commit with these files, tagged `v1.0`.
fn checkout(files: &[(&str, &str)]) -> Place {
    let place = Place::new();
    for (name, text) in files {
        put(place.path(), name, text);
    }
    git(place.path(), &["init", "-q", "-b", "main"]);
    git(place.path(), &["add", "-A"]);
    git(place.path(), &["commit", "-q", "-m", "one"]);
    git(place.path(), &["tag", "-a", "v1.0", "-m", "one"]);
    place
}

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// What the jobs printed.
fn printed(ran: &Ran) -> Vec<&str> {
    let lines = ran.stdout.lines().filter_map(|line| line.split_once(" | "));
    lines.map(|(_, said)| said.trim()).collect()
}

fn files(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path)
            } else {
                found.push((path.clone(), fs::read(path).unwrap()))
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_step_that_asks_git_hears_what_its_person_would() {
    let place = checkout(&[
        (
            ".delta-ci.yaml",
            "jobs:\n  a:\n    steps:\n      - git describe --dirty\n      \
             - git status --porcelain\n      - git log --format=%s\n      \
             - git add -A; git commit -q -m mine; git tag mine; git gc -q\n    \
             env: {GIT_AUTHOR_NAME: a, GIT_AUTHOR_EMAIL: a, GIT_COMMITTER_NAME: a, \
             GIT_COMMITTER_EMAIL: a}\n",
        ),
        ("committed", "one\n"),
    ]);
    put(place.path(), "committed", "two\n");
    put(place.path(), "new", "x");
    git(
        place.path(),
        &["remote", "add", "origin", "https://me:canary@x.example/a"],
    );
    let own = place.path().join(".git");
    let before = files(&own);
    for _ in 0..2 {
        // As in a hook of git.
        let ran = place
            .command()
            .arg("run")
            .env("GIT_DIR", &own)
            .env("GIT_INDEX_FILE", own.join("index"))
            .output()
            .unwrap();
        let ran = Ran {
            exit: ran.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&ran.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&ran.stderr).into_owned(),
        };
        let ran = ran.expect(0);
        let said = printed(&ran);
        assert!(said.contains(&"v1.0-dirty"), "{said:?}");
        assert!(
            said.contains(&"M committed") && said.contains(&"?? new"),
            "{said:?}"
        );
        assert_eq!(
            said.iter().filter(|it| **it == "mine").count(),
            0,
            "{said:?}"
        );
        assert!(
            files(&own) == before,
            "the person's repository was written to"
        );
    }
    let kept = files(place.cache.path());
    let canary = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("canary");
    assert!(!kept.iter().any(|(_, bytes)| canary(bytes)));
}

const CARGO: &str = "\
jobs:
  build:
    env: {CARGO_TERM_COLOR: never}
    steps: [cargo build --offline]
";

// One changed line of one crate of two builds that crate, and nothing else.
#[test]
fn a_second_run_builds_what_cargo_itself_would() {
    let manifest = |name: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n")
    };
    let place = checkout(&[
        (".delta-ci.yaml", CARGO),
        (".gitignore", "target/\n"),
        (
            "Cargo.toml",
            "[workspace]\nresolver = \"2\"\nmembers = [\"one\", \"two\"]\n",
        ),
        ("one/Cargo.toml", &manifest("one")),
        ("one/src/lib.rs", "pub fn one() {}\n"),
        ("two/Cargo.toml", &manifest("two")),
        ("two/src/lib.rs", "pub fn two() {}\n"),
    ]);
    let built = |place: &Place, arguments: &str| {
        let ran = place.say(&format!("run {arguments}")).expect(0);
        let said = printed(&ran);
        let crates = said
            .iter()
            .filter_map(|line| line.strip_prefix("Compiling "));
        let mut crates: Vec<String> = crates
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        crates.sort();
        let kept = ran.stderr.contains("workspaces kept from");
        (crates, kept)
    };
    assert_eq!(built(&place, ""), (vec!["one".into(), "two".into()], false));
    assert_eq!(built(&place, ""), (vec![], true));
    put(place.path(), "two/src/lib.rs", "pub fn two() { }\n");
    assert_eq!(built(&place, ""), (vec!["two".into()], true));
    let all = vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(built(&place, "--fresh"), (all, false));
    assert_eq!(built(&place, ""), (vec![], true));
}

#[test]
fn what_npm_and_python_have_made_stays_where_git_ignores_it() {
    let place = checkout(&[
        (
            ".delta-ci.yaml",
            "jobs:\n  node:\n    steps: [npm install --offline --no-audit --no-fund]\n  \
             python:\n    steps:\n      - test -d .venv || { python3 -m venv --without-pip .venv; \
             echo made; }\n      - .venv/bin/python -m compileall app\n",
        ),
        (".gitignore", "node_modules/\n.venv/\n__pycache__/\n"),
        (
            "package.json",
            "{\"name\": \"a\", \"version\": \"1.0.0\", \"dependencies\": {\"b\": \"file:./b\"}}",
        ),
        (
            "b/package.json",
            "{\"name\": \"b\", \"version\": \"1.0.0\"}",
        ),
        ("app/one.py", "one = 1\n"),
        ("app/two.py", "two = 2\n"),
    ]);
    let first = place.say("run").expect(0);
    let said = printed(&first);
    assert!(
        said.iter().any(|it| it.starts_with("added 1 package")),
        "{said:?}"
    );
    assert!(
        said.contains(&"made") && said.contains(&"Compiling 'app/one.py'..."),
        "{said:?}"
    );
    put(place.path(), "app/two.py", "two = 3\n");
    let second = place.say("run").expect(0);
    let said = printed(&second);
    assert!(
        said.iter().any(|it| it.starts_with("up to date")),
        "{said:?}"
    );
    assert!(!said.contains(&"made"), "{said:?}");
    let compiled: Vec<&&str> = said
        .iter()
        .filter(|it| it.starts_with("Compiling"))
        .collect();
    assert_eq!(compiled, [&"Compiling 'app/two.py'..."]);
}

// A leftover must make no job pass, and none fail.
#[test]
fn of_what_a_job_leaves_only_what_is_ignored_is_there_the_next_time() {
    let place = checkout(&[
        (
            ".delta-ci.yaml",
            "jobs:\n  a:\n    steps:\n      - ls; cat tracked\n      - mkdir out empty\n      \
             - echo x > out/file; echo x > ignored.o; echo x > dist.o; echo changed > tracked\n    \
             artifacts: [dist.o]\n",
        ),
        (".gitignore", "*.o\n"),
        ("tracked", "as it was\n"),
    ]);
    place.say("run").expect(0);
    let ran = place.say("run").expect(0);
    let said = printed(&ran);
    assert!(
        said.contains(&"ignored.o") && said.contains(&"as it was"),
        "{said:?}"
    );
    // What it is to leave is of this attempt or not there.
    for gone in ["out", "empty", "dist.o"] {
        assert!(!said.contains(&gone), "{gone}: {said:?}");
    }
    // Another CI system gets a clean copy.
    let mut command = place.command();
    let ran = command.arg("run").env("CI", "true").output().unwrap();
    let stdout = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(0), "{stdout}");
    assert!(!stdout.contains("ignored.o"), "{stdout}");
}

// What a job does to the repository of its copy is its own affair, and reaches nothing else.
#[test]
fn a_link_among_the_objects_of_a_copy_leads_nobody_outside() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "precious", "kept\n");
    let step = format!(
        "ls .git/objects; cat .git/objects/info/alternates || true; rm -rf .git/objects/pack; \
         ln -s {outside} .git/objects/pack; ln -s {outside} .git/objects/zz; \
         mkdir -p .git/objects/info; echo {outside} > .git/objects/info/alternates",
        outside = outside.path().display(),
    );
    let text = format!("jobs:\n  a:\n    steps: ['{step}']\n");
    let place = checkout(&[(".delta-ci.yaml", text.as_str())]);
    place.say("run").expect(0);
    let ran = place.say("run").expect(0);
    let said = printed(&ran);
    assert!(!said.contains(&"zz"), "{said:?}");
    let shown = outside.path().display().to_string();
    assert!(!said.contains(&shown.as_str()), "{said:?}");
    let left = fs::read_to_string(outside.path().join("precious"));
    assert_eq!(left.unwrap(), "kept\n");
}

#[test]
fn a_folder_may_become_a_file_between_two_runs() {
    let pipeline = "jobs:\n  a:\n    steps: ['cat d || cat d/x']\n";
    let place = checkout(&[(".delta-ci.yaml", pipeline), ("d/x", "in a folder\n")]);
    assert!(printed(&place.say("run").expect(0)).contains(&"in a folder"));
    fs::remove_dir_all(place.path().join("d")).unwrap();
    put(place.path(), "d", "a file\n");
    for words in ["run", "run --fresh"] {
        let ran = place.say(words).expect(0);
        assert!(printed(&ran).contains(&"a file"), "{words}: {}", ran.stdout);
    }
    git(place.path(), &["add", "-A"]);
    git(place.path(), &["commit", "-q", "-m", "two"]);
    assert!(printed(&place.say("run").expect(0)).contains(&"a file"));
}

// Copied once for all jobs and all runs: a workspace has links to what the cache has.
#[test]
fn objects_are_copied_once_for_all_runs() {
    use std::os::unix::fs::MetadataExt;
    let pipeline = "jobs:\n  a:\n    steps: ['true']\n";
    let place = checkout(&[(".delta-ci.yaml", pipeline)]);
    let objects = || {
        let all = files(place.cache.path()).into_iter();
        let shared =
            all.filter(|(path, _)| path.components().any(|it| it.as_os_str() == "repository"));
        let found = shared.map(|(path, _)| (fs::metadata(&path).unwrap().ino(), path));
        found
            .filter(|(_, path)| !path.ends_with("busy"))
            .collect::<Vec<_>>()
    };
    place.say("run").expect(0);
    let before = objects();
    assert!(before.len() >= 3, "{before:?}");
    place.say("run").expect(0);
    assert_eq!(objects(), before);
}

#[test]
fn a_second_run_at_the_same_time_has_a_copy_of_its_own() {
    let place = checkout(&[
        (
            ".delta-ci.yaml",
            "jobs:\n  a:\n    steps: ['ls; touch left.o; echo begun', 'test -z \"$HOLD\" || cat \
             \"$HOLD\"']\n",
        ),
        (".gitignore", "*.o\n"),
    ]);
    place.say("run").expect(0);
    let (hold, pipe) = (place.cache.path().join("hold"), place.cache.path());
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &hold,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    );
    made.unwrap();
    let first = Spawn::new(binary())
        .arg("run")
        .env("XDG_CACHE_HOME", pipe)
        .env("CI", "")
        .env("HOLD", &hold)
        .current_dir(place.path())
        .spawn()
        .unwrap();
    first.wait_for_line("a | begun", PATIENCE).unwrap();
    assert!(first.stdout().contains("left.o"), "{}", first.stdout());
    let second = place.say("run").expect(0);
    let note = "another run works in the workspace of a";
    assert!(second.stderr.contains(note), "{}", second.stderr);
    assert!(!printed(&second).contains(&"left.o"), "{}", second.stdout);
    drop(fs::File::options().write(true).open(&hold).unwrap());
    let status = first.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", first.stderr());
    let third = place.say("run").expect(0);
    assert!(printed(&third).contains(&"left.o"), "{}", third.stdout);
}

// Whatever the folder is called, and whether git ignores it or not.
#[test]
fn a_data_folder_in_the_tree_is_in_no_workspace_and_in_no_plan() {
    let pipeline = "jobs:\n  a:\n    steps: ['ls -A; test ! -e d']\n";
    let place = checkout(&[(".delta-ci.yaml", pipeline), ("f", "x")]);
    let plain = Place::new();
    plain.write(".delta-ci.yaml", pipeline);
    for place in [&place, &plain] {
        for _ in 0..2 {
            place.say("run --data d").expect(0);
        }
        assert!(place.path().join("d/secret.key").exists());
    }
    // Not even one that somebody has taken out of git's sight again.
    let _ = fs::remove_file(place.path().join("d/.gitignore"));
    place.say("run --data d").expect(0);
    fs::write(place.path().join("f"), "y").unwrap();
    let ran = place.say("plan --base v1.0").expect(0);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("1 file changed"), "{said}");
}

#[test]
fn artifacts_of_a_run_are_somewhere_and_the_end_says_where() {
    let pipeline = "jobs:\n  unit:\n    matrix: {n: [1, 2]}\n    \
        steps: ['mkdir -p out; echo \"$MATRIX_N\" > out/n']\n    artifacts: ['out/**']\n";
    let place = checkout(&[(".delta-ci.yaml", pipeline)]);
    let ran = place.say("run").expect(0);
    let line = ran
        .stderr
        .lines()
        .find(|it| it.starts_with("2 artifacts, 4 B, in "));
    let line = line.unwrap_or_else(|| panic!("{}", ran.stderr));
    let (_, folder) = line.split_once(" in ").unwrap();
    let folder = Path::new(folder.split(" (").next().unwrap());
    let text = fs::read_to_string(folder.join("unit (n=2)/out/n")).unwrap();
    assert_eq!(text, "2\n");
    let ran = place.say("run --artifacts kept-here").expect(0);
    assert!(ran.stderr.contains("in kept-here"), "{}", ran.stderr);
    assert!(place.path().join("kept-here/unit (n=1)/out/n").exists());
    let ran = place.say("run --data d").expect(0);
    let next = "delta-ci artifacts latest --data d";
    assert!(ran.stderr.contains(next), "{}", ran.stderr);
    let plain = Place::new();
    plain.write(".delta-ci.yaml", pipeline);
    let ran = plain.say("run").expect(0);
    let said = "2 artifacts, 4 B, not kept: --artifacts DIR keeps them";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

/// The folder that the end of a run names for its artifacts.
fn artifacts_in(stderr: &str) -> PathBuf {
    let line = stderr.lines().find(|it| it.starts_with("1 artifact, "));
    let line = line.unwrap_or_else(|| panic!("{stderr}"));
    let (_, folder) = line.split_once(" in ").unwrap();
    PathBuf::from(folder.split(" (").next().unwrap())
}

// Each run says where its artifacts are, and there they are, whoever else runs meanwhile.
#[test]
fn two_runs_at_once_keep_the_artifacts_of_both() {
    let pipeline = "jobs:\n  a:\n    steps: ['echo \"$WHO\" > out; echo begun', \
        'test -z \"$HOLD\" || cat \"$HOLD\"']\n    artifacts: [out]\n";
    let place = checkout(&[(".delta-ci.yaml", pipeline)]);
    let run = |who: &str, more: &[&str]| {
        let ran = place
            .command()
            .arg("run")
            .args(more)
            .env("WHO", who)
            .output();
        let ran = ran.unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let begin = |who: &str, hold: &Path, more: &[&str]| {
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, hold, fifo, mode, 0).unwrap();
        let spawn = Spawn::new(binary()).arg("run").args(more);
        let spawn = spawn.env("XDG_CACHE_HOME", place.cache.path());
        let spawn = spawn.env("CI", "").env("WHO", who).env("HOLD", hold);
        let first = spawn.current_dir(place.path()).spawn().unwrap();
        first.wait_for_line("a | begun", PATIENCE).unwrap();
        first
    };
    let end = |first: delta_testkit::process::Process, hold: &Path| {
        drop(fs::File::options().write(true).open(hold).unwrap());
        let status = first.wait(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(0), "{}", first.stderr());
        artifacts_in(&first.stderr())
    };
    let out = |folder: &Path| fs::read_to_string(folder.join("a/out")).unwrap();
    let before = artifacts_in(&run("before", &[]).1);
    let hold = place.cache.path().join("hold");
    let first = begin("first", &hold, &[]);
    let second = artifacts_in(&run("second", &[]).1);
    let first = end(first, &hold);
    assert_eq!(
        (out(&first), out(&second)),
        ("first\n".into(), "second\n".into())
    );
    assert!(!before.exists(), "until the next run");
    let third = artifacts_in(&run("third", &[]).1);
    assert_eq!(out(&third), "third\n");
    assert!(!first.exists() && !second.exists());
    // A folder with a name is one run's at a time.
    let kept = ["--artifacts", "kept"];
    let hold = place.cache.path().join("hold-again");
    let first = begin("first", &hold, &kept);
    let (code, said) = run("second", &kept);
    assert_eq!(code, Some(8), "{said}");
    assert!(
        said.contains("another run puts its artifacts into kept"),
        "{said}"
    );
    assert!(
        said.contains("name another folder with --artifacts"),
        "{said}"
    );
    end(first, &hold);
    assert_eq!(out(&place.path().join("kept")), "first\n");
    assert_eq!(run("later", &kept).0, Some(0));
    assert_eq!(out(&place.path().join("kept")), "later\n");
}

/// A user without any right here.
const NOBODY: u32 = 65534;

// What git ignores may be anything, and without its word nobody knows what that is.
#[test]
fn a_repository_that_git_refuses_is_not_copied() {
    delta_testkit::root::required("a folder of another user").unwrap();
    let place = checkout(&[
        (
            ".delta-ci.yaml",
            "jobs:\n  a:\n    steps: ['ls -A; git status']\n",
        ),
        (".gitignore", "secret\n"),
        ("secret", "of the house"),
    ]);
    for path in [place.path().to_owned(), place.path().join(".git")] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let home = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let ran = place
            .command()
            .arg("run")
            .args(more)
            .env("HOME", home.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env_remove("GIT_CONFIG_GLOBAL")
            .env_remove("SUDO_UID")
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (ran.status.code(), text(ran.stdout), text(ran.stderr))
    };
    let (code, printed, said) = run(&[]);
    assert_eq!(code, Some(8), "{printed}{said}");
    assert!(!printed.contains("secret"), "{printed}");
    assert!(
        said.contains("detected dubious ownership in repository at"),
        "{said}"
    );
    let advice = "git config --global --add safe.directory ";
    let at = said.find(advice).unwrap_or_else(|| panic!("{said}"));
    let folder = said[at + advice.len()..].split(' ').next().unwrap();
    assert!(said.contains("--in-place"), "{said}");
    // The way out that git knows; the other one is asked for in a tree that git does not refuse.
    let config = format!("[safe]\n\tdirectory = {folder}\n");
    fs::write(home.path().join(".gitconfig"), config).unwrap();
    let (code, printed, said) = run(&[]);
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(!printed.contains("secret"), "{printed}");
}

// The same without anybody to ask.
#[test]
fn a_repository_is_not_copied_without_git() {
    let place = checkout(&[
        (".delta-ci.yaml", "jobs:\n  a:\n    steps: ['ls -A']\n"),
        (".gitignore", "secret\n"),
        ("secret", "of the house"),
    ]);
    let programs = tempfile::tempdir().unwrap();
    for name in ["sh", "ls"] {
        let file = Path::new("/bin").join(name);
        std::os::unix::fs::symlink(file, programs.path().join(name)).unwrap();
    }
    let run = |more: &[&str]| {
        let mut command = place.command();
        command.arg("run").args(more).env("PATH", programs.path());
        let ran = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (ran.status.code(), text(ran.stdout), text(ran.stderr))
    };
    let (code, printed, said) = run(&[]);
    assert_eq!(code, Some(8), "{printed}{said}");
    assert!(!printed.contains("secret"), "{printed}");
    assert!(said.contains("git cannot be started"), "{said}");
    assert!(said.contains("install git"), "{said}");
    let (code, printed, said) = run(&["--in-place"]);
    assert_eq!(code, Some(0), "{printed}{said}");
    // A tree that is no repository needs no git.
    fs::remove_dir_all(place.path().join(".git")).unwrap();
    let (code, printed, said) = run(&[]);
    assert_eq!(code, Some(0), "{printed}{said}");
}

// A file of a tool's name is not the tool: a wrapper may have nothing to wrap.
#[test]
fn a_tool_that_does_not_answer_is_not_here() {
    use std::os::unix::fs::PermissionsExt;
    let place = checkout(&[(
        ".delta-ci.yaml",
        "jobs:\n  a:\n    requires: [uv, shellcheck]\n    steps: ['true']\n",
    )]);
    let tools = tempfile::tempdir().unwrap();
    let run = |uv: &str, shellcheck: &str| {
        for (name, script) in [("uv", uv), ("shellcheck", shellcheck)] {
            let file = tools.path().join(name);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", tools.path().display());
        let ran = place.command().arg("run").env("PATH", path).output();
        let ran = ran.unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let asked = "test \"$*\" = --version || exit 2;";
    let (uv, shellcheck) = ("echo uv 0.5.1", "echo ShellCheck");
    let (uv, shellcheck) = (format!("{asked} {uv}"), format!("{asked} {shellcheck}"));
    let (code, said) = run(&uv, &shellcheck);
    assert_eq!(code, Some(0), "{said}");
    let broken = "echo 'version 1.2 is not installed' >&2; exit 127";
    for (uv, shellcheck, lacks) in [
        (
            broken,
            shellcheck.as_str(),
            "it requires uv, which is not here",
        ),
        (
            uv.as_str(),
            broken,
            "it requires shellcheck, which is not here",
        ),
    ] {
        let (code, said) = run(uv, shellcheck);
        assert_eq!(code, Some(8), "{said}");
        assert!(said.contains(lacks), "{said}");
    }
}
