//! What is in a copy, what is not, and what stays of one that is brought up to date.

use std::os::unix::fs::{MetadataExt, symlink};
use std::time::SystemTime;

use delta_testkit::git::git;
use tempfile::TempDir;

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
    fs::write(path, text).expect("a file");
}

fn read(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(name)).expect("a text")
}

fn call(root: &Path, arguments: &[&str]) -> String {
    git(root, arguments).expect("git")
}

fn sample() -> TempDir {
    let tree = tempfile::tempdir().expect("a tree");
    write(tree.path(), "src/main.rs", "fn main() {}");
    write(tree.path(), "target/huge.o", "x");
    write(tree.path(), ".delta-ci/data", "x");
    write(tree.path(), "d/lock", "12\n");
    write(tree.path(), "d/delta-ci.db", "x");
    write(tree.path(), "d/secret.key", "canary");
    write(tree.path(), "run.sh", "true");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(tree.path().join("run.sh"), mode).expect("a mode");
    symlink("src/main.rs", tree.path().join("link")).expect("a link");
    symlink("/nowhere", tree.path().join("broken")).expect("a link");
    tree
}

/// The project as a checkout of one commit.
fn checkout() -> TempDir {
    let tree = sample();
    write(tree.path(), ".gitignore", "target/\n*.o\n");
    write(tree.path(), "gone", "x");
    call(tree.path(), &["init", "-q", "-b", "main"]);
    call(tree.path(), &["add", "-A", ":!d", ":!.delta-ci"]);
    call(tree.path(), &["commit", "-q", "-m", "one"]);
    call(tree.path(), &["tag", "-a", "v1.0", "-m", "one"]);
    tree
}

/// A copy that is kept.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a folder"))
    }

    fn bring(&self, tree: &Path) -> PathBuf {
        let folder = self.0.path().join("tree");
        fs::create_dir_all(&folder).expect("a folder");
        let (objects, record) = (self.0.path().join("objects"), self.0.path().join("files"));
        bring(tree, &folder, Some(&objects), Some(&record)).expect("a copy")
    }
}

fn copied(tree: &Path) -> TempDir {
    let target = tempfile::tempdir().expect("a target");
    bring(tree, target.path(), None, None).expect("a copy");
    let mode = fs::metadata(target.path().join("run.sh")).expect("run.sh");
    assert_eq!(mode.permissions().mode() & 0o777, 0o755);
    let aim = fs::read_link(target.path().join("link")).expect("a link");
    assert_eq!(aim, Path::new("src/main.rs"));
    assert!(fs::symlink_metadata(target.path().join("broken")).is_ok());
    // Our own data, whatever its folder is called.
    assert!(!target.path().join(".delta-ci").exists());
    assert!(!target.path().join("d").exists());
    target
}

#[test]
fn a_plain_tree_is_copied_whole() {
    let tree = sample();
    let target = copied(tree.path());
    assert!(target.path().join("target/huge.o").exists());
    assert!(!target.path().join(".git").exists());
}

#[test]
fn a_checkout_is_copied_without_what_git_ignores() {
    let tree = checkout();
    write(tree.path(), "new/untracked.txt", "x");
    fs::remove_file(tree.path().join("gone")).expect("removed");
    let target = copied(tree.path());
    assert!(!target.path().join("target").exists());
    assert!(target.path().join("new/untracked.txt").exists());
    assert!(!target.path().join("gone").exists());
}

#[test]
fn a_copy_into_the_tree_itself_ends() {
    let tree = sample();
    let target = tree.path().join("work/here");
    fs::create_dir_all(&target).expect("a folder");
    bring(tree.path(), &target, None, None).expect("a copy");
    assert!(target.join("run.sh").exists());
    assert!(!target.join("work/here").exists());
}

#[test]
fn a_folder_of_ours_is_known_by_what_is_in_it() {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("d/lock", "12\n"),
        ("d/delta-ci.db", "x"),
        ("agent/lock", ""),
        ("agent/attempts/1/workspace/f", "x"),
        ("kept/CACHEDIR.TAG", own_folder::CACHE_TAG_TEXT),
        ("kept/app/file", "x"),
        ("target/CACHEDIR.TAG", "Signature: of another tool"),
        ("src/lock", "12\n"),
        ("fixtures/delta-ci.db", "x"),
        (".delta-ci/anything", "x"),
    ] {
        write(root.path(), name, text);
    }
    let mut known = own_folder::Known::default();
    let mut holds = |path: &str| known.holds(root.path(), Path::new(path));
    for ours in [
        "d/lock",
        "agent/attempts/1/workspace/f",
        "kept/app/file",
        ".delta-ci/anything",
        "deep/.delta-ci/x",
    ] {
        assert!(holds(ours), "{ours}");
    }
    for theirs in ["target/x", "src/lock", "fixtures/delta-ci.db", "lock", "f"] {
        assert!(!holds(theirs), "{theirs}");
    }
}

#[test]
fn what_is_as_it_was_keeps_its_time_and_what_is_not_is_put_there_anew() {
    let tree = checkout();
    let place = Place::new();
    let copy = place.bring(tree.path());
    let old = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in ["src/main.rs", "run.sh", "gone"] {
        let file = File::options().write(true).open(copy.join(name));
        file.expect("a file").set_modified(old).expect("a time");
    }
    // A job changes a file that git tracks, and leaves files of all kinds.
    write(&copy, "run.sh", "false");
    write(&copy, "target/debug/kept", "built");
    write(&copy, "src/kept.o", "built");
    write(&copy, "left/behind/file", "x");
    fs::create_dir_all(copy.join("src/made/empty")).expect("a folder");
    call(&copy, &["config", "alias.x", "!false"]);
    write(&copy, ".git/hooks/post-checkout", "false");
    write(&copy, ".git/index.lock", "");
    call(tree.path(), &["rm", "-q", "--cached", "gone"]);
    write(tree.path(), ".gitignore", "target/\n*.o\ngone\n");
    write(tree.path(), "src/main.rs", "fn main() { }");
    assert_eq!(place.bring(tree.path()), copy);
    let time = |name: &str| fs::metadata(copy.join(name)).and_then(|it| it.modified());
    assert!(time("src/main.rs").expect("a time") > old);
    assert_eq!(read(&copy, "run.sh"), "true");
    assert_eq!(read(&copy, "target/debug/kept"), "built");
    assert!(copy.join("src/kept.o").exists());
    // Neither what is not ignored, nor what was copied once and is ignored now.
    for gone in ["left", "src/made", "gone", ".git/hooks", ".git/index.lock"] {
        assert!(!copy.join(gone).exists(), "{gone}");
    }
    assert!(!read(&copy, ".git/config").contains("alias"));
    let link = File::options().write(true).open(copy.join("src/main.rs"));
    link.expect("a file").set_modified(old).expect("a time");
    place.bring(tree.path());
    assert_eq!(time("src/main.rs").expect("a time"), old);
}

#[test]
fn what_is_put_there_anew_is_of_another_second() {
    let tree = checkout();
    let place = Place::new();
    let copy = place.bring(tree.path());
    let second = || {
        let meta = fs::metadata(copy.join("src/main.rs")).expect("a file");
        meta.mtime()
    };
    for text in ["fn main() { }", "fn main() {  }"] {
        let before = second();
        write(tree.path(), "src/main.rs", text);
        place.bring(tree.path());
        assert!(second() > before, "{before} and {}", second());
    }
}

#[test]
fn nothing_is_written_or_removed_through_a_link_that_a_job_left() {
    let tree = checkout();
    write(tree.path(), "src/other.rs", "x");
    call(tree.path(), &["add", "-A", "src"]);
    let place = Place::new();
    let copy = place.bring(tree.path());
    let elsewhere = tempfile::tempdir().expect("a folder");
    write(elsewhere.path(), "other.rs", "theirs");
    write(elsewhere.path(), "hard", "theirs");
    // A folder that became a link, a file that became another name of a file elsewhere.
    fs::remove_dir_all(copy.join("src")).expect("removed");
    symlink(elsewhere.path(), copy.join("src")).expect("a link");
    fs::remove_file(copy.join("run.sh")).expect("removed");
    fs::hard_link(elsewhere.path().join("hard"), copy.join("run.sh")).expect("a link");
    fs::remove_file(tree.path().join("src/other.rs")).expect("removed");
    place.bring(tree.path());
    assert_eq!(read(elsewhere.path(), "other.rs"), "theirs");
    assert_eq!(read(elsewhere.path(), "hard"), "theirs");
    assert!(!elsewhere.path().join("main.rs").exists());
    assert_eq!(read(&copy, "run.sh"), "true");
    assert_eq!(read(&copy, "src/main.rs"), "fn main() {}");
}

/// All files below a folder, with what is in them and when they changed.
fn everything(root: &Path) -> Vec<(PathBuf, Vec<u8>, i64, u32)> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("a file");
            let bytes = if meta.is_dir() {
                Vec::new()
            } else {
                fs::read(&path).expect("bytes")
            };
            found.push((path.clone(), bytes, meta.mtime_nsec(), meta.mode()));
            if meta.is_dir() {
                open.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_copy_says_of_each_change_what_the_persons_own_repository_says() {
    let tree = checkout();
    let top = tree.path();
    call(top, &["checkout", "-q", "-b", "topic"]);
    call(
        top,
        &[
            "remote",
            "add",
            "origin",
            "https://me:canary@x.example/a.git",
        ],
    );
    call(
        top,
        &["config", "http.extraheader", "Authorization: canary"],
    );
    write(top, ".git/hooks/post-checkout", "canary");
    write(top, "staged", "x");
    call(top, &["add", "staged"]);
    write(top, "run.sh", "changed");
    write(top, "untracked", "x");
    fs::remove_file(top.join("gone")).expect("removed");
    call(top, &["pack-refs", "--all"]);
    let (before, place) = (everything(&top.join(".git")), Place::new());
    let copy = place.bring(top);
    assert_eq!(everything(&top.join(".git")), before);
    let status = [
        "status",
        "--porcelain=v1",
        "--branch",
        "--untracked-files=all",
    ];
    let status = [&status[..], &["--", ":!d", ":!.delta-ci"]].concat();
    for question in [
        &status[..],
        &["describe", "--always", "--dirty", "--long"],
        &["rev-parse", "HEAD", "v1.0", "main"],
        &["log", "--format=%H %D"],
        &["diff-index", "--name-status", "HEAD"],
        &["ls-files", "-s"],
    ] {
        assert_eq!(call(&copy, question), call(top, question), "{question:?}");
    }
    call(&copy, &["fsck", "--strict"]);
    assert_eq!(
        call(&copy, &["remote", "get-url", "origin"]).trim(),
        "https://x.example/a.git"
    );
    for (path, bytes, ..) in everything(&copy.join(".git")) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("canary"), "{}", path.display());
    }
    // What a job does to it reaches neither theirs nor its successor.
    let before = everything(&top.join(".git"));
    call(&copy, &["add", "-A"]);
    call(&copy, &["commit", "-q", "-m", "two"]);
    for (path, ..) in everything(&copy.join(".git/objects")) {
        if path.is_file() {
            let open = fs::Permissions::from_mode(0o666);
            fs::set_permissions(&path, open).expect("a mode");
            fs::write(path, "spoilt").expect("written");
        }
    }
    place.bring(top);
    call(&copy, &["fsck", "--strict"]);
    let question = ["rev-parse", "HEAD"];
    assert_eq!(call(&copy, &question), call(top, &question));
    assert_eq!(everything(&top.join(".git")), before);
}

#[test]
fn every_kind_of_checkout_gives_a_copy_that_git_can_work_with() {
    let origin = checkout();
    write(origin.path(), "src/two.rs", "x");
    call(origin.path(), &["add", "src"]);
    call(origin.path(), &["commit", "-q", "-m", "two"]);
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let from = format!("file://{}", origin.path().display());
    call(here, &["clone", "-q", "--depth=1", &from, "shallow"]);
    call(here, &["clone", "-q", "--shared", &from[7..], "borrowing"]);
    call(here, &["clone", "-q", "--bare", &from, "bare.git"]);
    call(
        &here.join("bare.git"),
        &["worktree", "add", "-q", "../worktree", "-b", "other"],
    );
    call(here, &["init", "-q", "--object-format=sha256", "long"]);
    write(&here.join("long"), "f", "x");
    call(&here.join("long"), &["add", "f"]);
    call(&here.join("long"), &["commit", "-q", "-m", "one"]);
    call(here, &["init", "-q", "-b", "unborn", "young"]);
    write(&here.join("young"), "f", "x");
    call(here, &["clone", "-q", &from, "outer"]);
    let submodule = [
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        &from,
        "sub",
    ];
    call(&here.join("outer"), &submodule);
    for name in ["shallow", "borrowing", "worktree", "long", "young", "outer"] {
        let (tree, place) = (here.join(name), Place::new());
        let copy = place.bring(&tree);
        for question in [
            &["status", "--porcelain=v1", "--branch"][..],
            &["symbolic-ref", "HEAD"],
            &["rev-list", "--all", "--count"],
        ] {
            let (said, known) = (call(&copy, question), call(&tree, question));
            assert_eq!(said, known, "{name}: {question:?}");
        }
        call(&copy, &["fsck", "--strict"]);
        assert!(
            !copy.join(".git/objects/info/alternates").exists(),
            "{name}"
        );
        place.bring(&tree);
    }
    let place = Place::new();
    let copy = place.bring(&here.join("outer"));
    assert_eq!(call(&copy.join("sub"), &["log", "--format=%s"]), "two\none");
    assert!(copy.join("sub/.git/HEAD").exists());
}

#[test]
fn a_part_of_a_repository_finds_the_rest_of_it_above() {
    let tree = checkout();
    let place = Place::new();
    let inside = place.bring(&tree.path().join("src"));
    assert!(inside.ends_with("tree/src") && inside.join("main.rs").exists());
    assert!(!place.0.path().join("tree/run.sh").exists());
    assert_eq!(call(&inside, &["status", "--porcelain"]), "");
    assert_eq!(call(&inside, &["describe"]).trim(), "v1.0");
}
