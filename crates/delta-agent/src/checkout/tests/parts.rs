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

// T17
#[tokio::test]
async fn the_server_of_large_files_sends_us_to_nowhere_that_a_run_may_not_name() {
    let hub = Hub::start();
    let commit = large_file(&hub);
    let bench = Bench::new(&hub.url()).at(&commit);
    for (elsewhere, host) in [
        ("http://169.254.169.254/latest", "169.254.169.254"),
        ("https://2852039166/latest", "169.254.169.254"),
        ("http://store.example", "store.example"),
        ("ftp://store.example", "store.example"),
    ] {
        hub.http.keep_large_files_at(elsewhere);
        let out = bench.checkout().await;
        let failed = out.failed();
        assert_eq!(failed.cause, Cause::SpecError, "{elsewhere}: {failed:?}");
        let words = format!("sends us to `{host}`, and that is refused");
        assert!(failed.summary.contains(&words), "{failed:?}");
    }
}

// T17
#[tokio::test]
async fn large_files_come_from_another_host_without_the_credential() {
    let (hub, store) = (Hub::start(), Hub::start());
    let commit = large_file(&hub);
    fs::rename(hub.root.path().join("lfs"), store.root.path().join("lfs")).expect("moved");
    let elsewhere = format!("http://{}", store.http.addr());
    hub.http.keep_large_files_at(&elsewhere);
    hub.http.require("bot", CANARY);
    let bench = Bench::new(&hub.url())
        .at(&commit)
        .with(&format!("bot\n{CANARY}"));
    let out = bench.checkout().await.expect();
    let large = out.file("data/large.bin");
    assert_eq!(large.as_deref(), Some("a large file\n"), "{}", out.log);
    assert_eq!(
        store.http.requests().len(),
        1,
        "{:?}",
        store.http.requests()
    );
    assert_eq!(store.http.logins(), [""], "the token stays at its server");
    assert_eq!(out.git(&["status", "--porcelain"]), "");
    // Who is sent on is checked again.
    store.http.redirect_to("http://169.254.169.254");
    let out = bench.checkout().await;
    let failed = out.failed();
    assert!(failed.summary.contains("link-local"), "{failed:?}");
    // What comes is what its pointer says, or nothing.
    let other = Hub::start();
    fs::create_dir(other.root.path().join("lfs")).expect("a folder");
    for entry in fs::read_dir(store.root.path().join("lfs")).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        fs::write(other.root.path().join("lfs").join(name), "a trojan one\n").expect("a file");
    }
    let elsewhere = format!("http://{}", other.http.addr());
    hub.http.keep_large_files_at(&elsewhere);
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone, "{out:?}");
    assert!(out.failed().summary.contains("what came is not"), "{out:?}");
}

/// What a server of git has beside it for large files over ssh.
fn granting(folder: &Path, href: &str, login: &str) {
    use std::os::unix::fs::PermissionsExt;
    let answer = serde_json::json!({ "href": href, "header": { "Authorization": login } });
    let text = format!(
        "#!/bin/sh\necho \"$@\" > {}\necho '{answer}'\n",
        folder.join("asked").display()
    );
    let program = folder.join("git-lfs-authenticate");
    fs::write(&program, text).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
}

// T17
#[tokio::test]
async fn over_ssh_the_server_says_where_large_files_are_and_that_is_checked_too() {
    use base64::Engine;
    use delta_testkit::git::{Key, Sshd};
    let (hub, programs) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let commit = large_file(&hub);
    let key = Key::make().expect("a key");
    let sshd = Sshd::start_with(&key, Some(programs.path())).expect("an sshd");
    let url = sshd.url(hub.app.path()).expect("an address");
    let bench = Bench::new(&url).at(&commit);
    let bench = bench.with(&format!("{}{}", key.private, sshd.known_hosts()));
    hub.http.require("bot", CANARY);
    let login = base64::engine::general_purpose::STANDARD.encode(format!("bot:{CANARY}"));
    let login = format!("Basic {login}");
    granting(programs.path(), &format!("{}/info/lfs", hub.url()), &login);
    let out = bench.checkout().await.expect();
    let large = out.file("data/large.bin");
    assert_eq!(large.as_deref(), Some("a large file\n"), "{}", out.log);
    let asked = fs::read_to_string(programs.path().join("asked")).expect("a question");
    assert_eq!(asked, format!("{} download\n", hub.app.path().display()));
    hostile::assert_nowhere(bench.folder.path(), &login);
    granting(programs.path(), "http://169.254.169.254/lfs", &login);
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::SpecError, "{out:?}");
    assert!(
        out.failed()
            .summary
            .contains("sends us to `169.254.169.254`")
    );
}

/// A git that does something else first, with each of its words as `$word`.
fn other_git(bench: &mut Bench, first: &str) {
    use std::os::unix::fs::PermissionsExt;
    let program = bench.folder.path().join("git");
    let text = format!("#!/bin/sh\nfor word; do {first}; done\nexec git \"$@\"\n");
    fs::write(&program, text).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    bench.settings.git = program;
}

#[tokio::test]
async fn a_machine_without_git_lfs_says_so_and_leaves_the_pointers() {
    let hub = Hub::start();
    let commit = large_file(&hub);
    let mut bench = Bench::new(&hub.url()).at(&commit);
    // git as it is where nobody installed the other.
    let words = "git: 'lfs' is not a git command. See 'git --help'.";
    let missing = format!("[ \"$word\" != lfs ] || {{ echo \"{words}\" >&2; exit 1; }}");
    other_git(&mut bench, &missing);
    let out = bench.checkout().await.expect();
    assert!(
        out.log.contains("git-lfs is not installed here"),
        "{}",
        out.log
    );
    let pointer = out.file("data/large.bin").expect("a file");
    assert!(pointer.starts_with("version https://git-lfs"), "{pointer}");
    // Any other failure says nothing of what is installed.
    for failed in ["kill -9 $$", "exit 1", "exit 2"] {
        other_git(&mut bench, &format!("[ \"$word\" != lfs ] || {failed}"));
        let out = bench.checkout().await;
        assert_eq!(out.failed().cause, Cause::Clone, "{failed}: {out:?}");
    }
}

// T14, T17
#[tokio::test]
async fn a_search_for_submodules_that_failed_does_not_mean_that_there_are_none() {
    let hub = Hub::start();
    let commit = nested(&hub);
    let mut bench = Bench::new(&hub.url()).at(&commit);
    bench.options.submodules = true;
    for search in ["ls-tree", "--get-regexp", "--blob", "ls-files"] {
        for failed in ["kill -9 $$", "exit 128"] {
            other_git(
                &mut bench,
                &format!("[ \"$word\" != {search} ] || {failed}"),
            );
            let out = bench.checkout().await;
            assert_eq!(out.failed().cause, Cause::Clone, "{search}: {out:?}");
        }
    }
    // With nothing in the way they come, whatever else is named beside them.
    let more = "[submodule \"a\"]\npath = ../x\n[submodule \"b\"]\npath = gone\n";
    let named = fs::read_to_string(hub.app.work().join(".gitmodules")).expect("a file");
    let commit = hub
        .app
        .commit(".gitmodules", &format!("{named}\n{more}"))
        .expect("a commit");
    bench.origin.commit = Some(commit);
    other_git(&mut bench, ":");
    let out = bench.checkout().await.expect();
    assert!(out.file("parts/outer/inner/deep.txt").is_some());
}

// T14, T17
#[tokio::test]
async fn more_submodules_than_can_be_looked_at_are_refused_before_git_goes_there() {
    let hub = Hub::start();
    let commit = nested(&hub);
    let mut bench = Bench::new(&hub.url()).at(&commit);
    bench.options.submodules = true;
    let tripped = bench.folder.path().join("tripped");
    let goes = format!("[ \"$word\" != update ] || touch {}", tripped.display());
    for printed in [
        // Longer than what is kept of it, in one address and in many.
        "head -c 5000000 /dev/zero | tr '\\0' x",
        "seq -f 'submodule.%.0f.url=https://host.example/x' 1001 | tr '=\\n' '\\n\\0'",
    ] {
        let prints = format!("[ \"$word\" != --get-regexp ] || {{ {printed}; exit 0; }}");
        other_git(&mut bench, &format!("{goes}; {prints}"));
        let out = bench.checkout().await;
        assert_eq!(out.failed().cause, Cause::SpecError, "{out:?}");
        assert!(
            out.failed().summary.contains("more than 1000 submodules"),
            "{out:?}"
        );
    }
    assert!(!tripped.exists());
}
