//! Trees from a folder and from a commit: the same files, nothing behind a link, and what changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use delta_planner::{Changed, Commit, Folder, Unread, changed_since, default_base};
use tempfile::TempDir;

fn git(folder: &Path, arguments: &[&str]) {
    delta_testkit::git::git(folder, arguments).expect("git");
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    fs::write(path, text).expect("write");
}

/// A repository with one commit on `main`.
fn repository() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    git(root, &["init", "-q", "-b", "main"]);
    write(root, ".gitignore", "ignored/\n");
    write(root, "Cargo.toml", "[package]\nname = \"a\"\n");
    write(root, "src/lib.rs", "");
    write(root, "a b/$(id)", "x");
    write(root, "ignored/big", "x");
    write(root, "large", &"x".repeat(2 * 1024 * 1024));
    symlink("/etc/passwd", root.join("link")).expect("link");
    symlink("src", root.join("folder-link")).expect("link");
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "one"]);
    folder
}

#[test]
fn a_folder_and_its_commit_have_the_same_files() {
    let folder = repository();
    let disk = Folder::tree(folder.path()).expect("a tree");
    let commit = Commit::tree(folder.path(), "main").expect("a tree");
    let plain = [
        ".gitignore",
        "Cargo.toml",
        "a b/$(id)",
        "large",
        "src/lib.rs",
    ];
    assert_eq!(commit.paths(), plain);
    for tree in [&disk, &commit] {
        assert_eq!(
            tree.text("Cargo.toml").as_deref(),
            Ok("[package]\nname = \"a\"\n")
        );
        assert_eq!(tree.text("a b/$(id)").as_deref(), Ok("x"));
        assert_eq!(tree.text("large"), Err(Unread::TooLarge));
        assert_eq!(tree.text("src/lib.rs").as_deref(), Ok(""));
        // Links are listed by git, and never followed.
        assert_eq!(tree.text("link"), Err(Unread::Missing));
        assert_eq!(tree.text("folder-link"), Err(Unread::Missing));
        assert_eq!(tree.text("folder-link/lib.rs"), Err(Unread::Missing));
        assert!(!tree.has("ignored/big"));
    }
    assert!(Commit::tree(folder.path(), "--help").is_err());
    assert!(Commit::tree(folder.path(), "nowhere").is_err());
}

#[test]
fn a_folder_without_git_is_walked_without_links() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "a/b", "x");
    write(folder.path(), "node_modules/c/package.json", "{}");
    symlink("/", folder.path().join("everything")).expect("link");
    let tree = Folder::tree(folder.path()).expect("a tree");
    assert_eq!(tree.paths(), ["a/b"]);
}

#[test]
fn what_changed_is_counted_from_the_merge_base() {
    let folder = repository();
    let root = folder.path();
    assert_eq!(default_base(root).as_deref(), Some("main"));
    assert_eq!(changed_since(root, "main", None), Changed::files([]));
    git(root, &["checkout", "-q", "-b", "topic"]);
    write(root, "src/new.rs", "");
    git(root, &["mv", "a b", "c"]);
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "two"]);
    // What happens on main meanwhile is not ours.
    git(root, &["checkout", "-q", "main"]);
    write(root, "src/theirs.rs", "");
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "three"]);
    git(root, &["checkout", "-q", "topic"]);
    write(root, "src/lib.rs", "changed");
    write(root, "untracked", "x");
    let committed = ["a b/$(id)", "c/$(id)", "src/new.rs"];
    let dirty = ["src/lib.rs", "untracked"];
    let files = |names: &[&str]| Changed::files(names.iter().map(|it| (*it).to_owned()));
    assert_eq!(
        changed_since(root, "main", Some("topic")),
        files(&committed)
    );
    assert_eq!(
        changed_since(root, "main", None),
        files(&[&committed[..], &dirty[..]].concat())
    );
}

#[test]
fn what_git_cannot_say_is_unknown() {
    let folder = repository();
    let root = folder.path();
    for base in ["nowhere", "--output=x", "-h", "main..topic", "$(id)"] {
        let changed = changed_since(root, base, None);
        assert!(
            matches!(changed, Changed::Unknown(_)),
            "{base}: {changed:?}"
        );
    }
    git(root, &["checkout", "-q", "--orphan", "apart"]);
    git(root, &["commit", "-q", "-m", "apart"]);
    let changed = changed_since(root, "main", None);
    assert!(matches!(changed, Changed::Unknown(_)), "{changed:?}");
    let empty = tempfile::tempdir().expect("a folder");
    assert!(matches!(
        changed_since(empty.path(), "main", None),
        Changed::Unknown(_)
    ));
    assert!(!root.join("x").exists());
}

#[test]
fn what_was_deleted_and_not_committed_is_not_there() {
    let folder = repository();
    let root = folder.path();
    fs::remove_file(root.join("Cargo.toml")).expect("deleted");
    fs::remove_dir_all(root.join("a b")).expect("deleted");
    write(root, "new.rs", "");
    let disk = Folder::tree(root).expect("a tree");
    assert!(!disk.has("Cargo.toml") && !disk.has("a b/$(id)"));
    assert!(disk.has("src/lib.rs") && disk.has("new.rs"));
}

// Its files change while it runs, and its key is nobody's source.
#[test]
fn our_own_data_is_neither_seen_nor_changed_whatever_its_folder_is_called() {
    let folder = repository();
    let root = folder.path();
    for name in ["d/lock", "d/delta-ci.db", "d/objects/x/package.json"] {
        write(root, name, "");
    }
    write(root, "e/lock", "");
    let seen = |root: &Path| {
        let tree = Folder::tree(root).expect("a tree");
        let ours = tree.paths().iter().any(|path| path.starts_with("d/"));
        (ours, tree.has("e/lock"))
    };
    assert_eq!(seen(root), (false, true));
    assert_eq!(
        changed_since(root, "main", None),
        Changed::files(["e/lock".to_owned()])
    );
    fs::remove_dir_all(root.join(".git")).expect("removed");
    assert_eq!(seen(root), (false, true));
}
