//! Submodules and large files.

use delta_core::Cause;

use super::*;

/// A repository with a submodule in a submodule, named relative to it and in full.
fn nested(hub: &Hub) -> String {
    let make = |name| Repository::make(hub.root.path(), name).expect("a repository");
    let (inner, outer) = (make("inner.git"), make("outer.git"));
    let deep = inner.commit("deep.txt", "deep\n").expect("a commit");
    let deep = outer.link("inner", &hub.http.url("inner.git"), &deep);
    let deep = deep.expect("a commit");
    hub.app
        .link("parts/outer", "../outer.git", &deep)
        .expect("a commit")
}

#[tokio::test]
async fn submodules_come_when_asked_for_and_only_then() {
    let hub = Hub::start();
    let commit = nested(&hub);
    hub.http.require("bot", CANARY);
    let mut bench = Bench::new(&hub.url())
        .at(&commit)
        .with(&format!("bot\n{CANARY}"));
    let out = bench.checkout().await.expect();
    assert_eq!(out.file("parts/outer/inner/deep.txt"), None);
    bench.options.submodules = true;
    let out = bench.checkout().await.expect();
    let deep = out.file("parts/outer/inner/deep.txt");
    assert_eq!(deep.as_deref(), Some("deep\n"), "{}", out.log);
    assert_eq!(out.git(&["status", "--porcelain"]), "");
    assert_eq!(
        out.git(&["-C", "parts/outer", "rev-list", "--count", "HEAD"]),
        "1"
    );
    hostile::assert_nowhere(bench.folder.path(), CANARY);
}

// T14
#[tokio::test]
async fn the_addresses_of_submodules_are_checked_like_any_other() {
    let proof = tempfile::tempdir().expect("a folder");
    let tripped = proof.path().join("tripped");
    let program = format!("ext::touch {}", tripped.display());
    for url in [
        program.as_str(),
        "file:///etc",
        "/etc",
        "http://169.254.169.254/x.git",
        "ssh://git@host.example/x.git",
        "https://user:token@host.example/x.git",
    ] {
        let hub = Hub::start();
        let commit = hub.app.link("x", url, &hub.commits[0]).expect("a commit");
        let mut bench = Bench::new(&hub.url()).at(&commit);
        bench.options.submodules = true;
        let out = bench.checkout().await;
        assert_eq!(out.failed().cause, Cause::SpecError, "{url}: {out:?}");
        assert!(out.failed().summary.contains("submodule"), "{out:?}");
    }
    assert!(!tripped.exists());
}

#[tokio::test]
async fn submodules_that_never_end_are_refused() {
    let hub = Hub::start();
    // Each one holds the one before it: a tower as high as it was built.
    let mut commit = hub.commits[0].clone();
    for _ in 0..10 {
        commit = hub
            .app
            .link("again", &hub.url(), &commit)
            .expect("a commit");
    }
    let mut bench = Bench::new(&hub.url()).at(&commit);
    bench.options.submodules = true;
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::SpecError);
    assert!(out.failed().summary.contains("nested"), "{out:?}");
}

/// Commits the pointer of a large file, which the server has.
fn large_file(hub: &Hub) -> String {
    use aws_lc_rs::digest;
    let text = "a large file\n";
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    let hash: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
    let folder = hub.root.path().join("lfs");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(&hash), text).expect("a file");
    let size = text.len();
    let pointer =
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{hash}\nsize {size}\n");
    let attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n";
    hub.app
        .commit("data/.gitattributes", attributes)
        .expect("a commit");
    hub.app
        .commit("data/large.bin", &pointer)
        .expect("a commit")
}

#[tokio::test]
async fn large_files_come_from_the_repositorys_own_server() {
    let (hub, thief) = (Hub::start(), Hub::start());
    large_file(&hub);
    let lure = format!("[lfs]\n\turl = {}/info/lfs\n", thief.url());
    let commit = hub.app.commit(".lfsconfig", &lure).expect("a commit");
    hub.http.require("bot", CANARY);
    let mut bench = Bench::new(&hub.url())
        .at(&commit)
        .with(&format!("bot\n{CANARY}"));
    let out = bench.checkout().await.expect();
    assert_eq!(
        out.file("data/large.bin").as_deref(),
        Some("a large file\n")
    );
    assert_eq!(thief.http.requests(), Vec::<String>::new());
    hostile::assert_nowhere(bench.folder.path(), CANARY);
    bench.options.lfs = false;
    let out = bench.checkout().await.expect();
    let pointer = out.file("data/large.bin").expect("a file");
    assert!(pointer.starts_with("version https://git-lfs"), "{pointer}");
}

#[tokio::test]
async fn a_machine_without_git_lfs_says_so_and_leaves_the_pointers() {
    use std::os::unix::fs::PermissionsExt;
    let hub = Hub::start();
    let commit = large_file(&hub);
    let mut bench = Bench::new(&hub.url()).at(&commit);
    // git as it is where nobody installed the other.
    let program = bench.folder.path().join("git");
    let text = "#!/bin/sh\nfor word; do [ \"$word\" != lfs ] || exit 1; done\nexec git \"$@\"\n";
    fs::write(&program, text).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    bench.settings.git = program;
    let out = bench.checkout().await.expect();
    assert!(
        out.log.contains("git-lfs is not installed here"),
        "{}",
        out.log
    );
    let pointer = out.file("data/large.bin").expect("a file");
    assert!(pointer.starts_with("version https://git-lfs"), "{pointer}");
}
