//! Hostile addresses, repositories and servers; and where a token must not be.

use std::os::unix::fs::PermissionsExt;

use delta_core::Cause;
use delta_testkit::proxy::HttpProxy;

use delta_testkit::git::hostile::{HOSTILE_REFS, HOSTILE_URLS};

use super::*;

/// Nothing below the folder contains the text, in a file or in a name.
#[track_caller]
pub(super) fn assert_nowhere(root: &Path, text: &str) {
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        assert!(!path.to_string_lossy().contains(text), "{path:?}");
        let meta = fs::symlink_metadata(&path).expect("a file");
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if meta.is_file() {
            assert!(!holds(&fs::read(&path).expect("a file"), text), "{path:?}");
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|it| it == text.as_bytes())
}

/// A program that notes that it was started.
fn tripwire(folder: &Path) -> (PathBuf, PathBuf) {
    let (program, tripped) = (folder.join("program"), folder.join("tripped"));
    let text = format!("#!/bin/sh\ntouch '{}'\n", tripped.display());
    fs::write(&program, text).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    (program, tripped)
}

// EP-19, T14
#[tokio::test]
async fn no_process_is_started_for_a_hostile_address_or_ref() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, tripped) = tripwire(folder.path());
    let refused = async |url: &str, name: Option<&str>, commit: Option<&str>| {
        let mut bench = Bench::new(url);
        bench.settings.git.clone_from(&program);
        bench.origin.git_ref = name.map(str::to_owned);
        bench.origin.commit = commit.map(str::to_owned);
        let out = bench.checkout().await;
        assert_eq!(
            out.failed().cause,
            Cause::SpecError,
            "{url} {name:?}: {out:?}"
        );
        assert!(!tripped.exists(), "{url} {name:?}");
        assert_eq!(bench.kept("trusted").len(), 0);
    };
    for url in HOSTILE_URLS {
        refused(url, None, None).await;
    }
    for name in HOSTILE_REFS {
        refused("https://host.example/a.git", Some(name), None).await;
    }
    for commit in ["", "HEAD", "--all", "0123"] {
        refused("https://host.example/a.git", None, Some(commit)).await;
    }
    // The wire is live: an address that passes starts it.
    let mut bench = Bench::new("https://host.example/a.git");
    bench.settings.git.clone_from(&program);
    let out = bench.checkout().await;
    assert!(out.done.is_err() && tripped.exists());
}

// T14
#[tokio::test]
async fn a_name_that_looks_like_shell_is_only_a_name() {
    let hub = Hub::start();
    let folder = tempfile::Builder::new().prefix("proof-").tempdir();
    let proof = folder.expect("a folder").path().with_extension("x");
    let name = format!("$(touch${{IFS}}{})", proof.display());
    hub.app
        .git(&["push", "-q", "origin", &format!("HEAD:refs/heads/{name}")])
        .expect("pushed");
    let mut bench = Bench::new(&hub.url());
    bench.origin.git_ref = Some(name);
    let out = bench.checkout().await.expect();
    assert_eq!(out.git(&["rev-parse", "HEAD"]), hub.commits[2]);
    assert!(!proof.exists());
}

// T14, T28
#[tokio::test]
async fn nothing_in_a_repository_or_of_the_machine_makes_git_start_a_program() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().expect("a folder");
    let (program, tripped) = tripwire(folder.path());
    let program = program.display().to_string();
    // A configuration and hooks lie in the tree, as if somebody used them.
    let config = format!(
        "[core]\n\tfsmonitor = {program}\n\thooksPath = .\n\tsshCommand = {program}\n\
         [filter \"evil\"]\n\tsmudge = {program}\n\tclean = {program}\n\trequired = true\n\
         [diff]\n\texternal = {program}\n[credential]\n\thelper = !{program}\n"
    );
    for (file, text) in [
        (".gitconfig", config.as_str()),
        ("config", &config),
        (".gitattributes", "* filter=evil diff=evil\n"),
        ("post-checkout", &format!("#!/bin/sh\n{program}\n")),
        (
            ".lfsconfig",
            &format!("[lfs]\n\turl = http://127.0.0.1:1/\n\tx = {program}\n"),
        ),
    ] {
        fs::write(hub.app.work().join(file), text).expect("a file");
    }
    let hook = hub.app.work().join("post-checkout");
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("a mode");
    let commit = hub.app.publish("evil").expect("a commit");
    let bench = Bench::new(&hub.url()).at(&commit);
    let out = bench.checkout().await.expect();
    assert!(out.file("post-checkout").is_some());
    assert!(!tripped.exists());
    let config = out.file(".git/config").expect("a config");
    assert!(
        !config.contains("evil") && !config.contains(&program),
        "{config}"
    );
    assert!(!out.workspace.join(".git/hooks").exists());
}

// T17
#[tokio::test]
async fn a_server_that_sends_git_elsewhere_is_not_followed() {
    let (hub, elsewhere) = (Hub::start(), Hub::start());
    hub.http.require("bot", CANARY);
    hub.http
        .redirect_to(&format!("http://{}", elsewhere.http.addr()));
    let bench = Bench::new(&hub.url())
        .at(&elsewhere.commits[0])
        .with(&format!("bot\n{CANARY}"));
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone);
    assert!(out.failed().summary.contains("is not followed"), "{out:?}");
    assert_eq!(elsewhere.http.requests(), Vec::<String>::new());
}

/// What every process of this machine shows of itself.
fn shown_by_processes() -> Vec<(String, Vec<u8>)> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let numbers = processes.filter(|it| {
        let name = it.file_name();
        name.to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit())
    });
    let shown = numbers.flat_map(|it| {
        ["cmdline", "environ"].map(|name| {
            let file = it.path().join(name);
            // A process may be gone by now.
            (
                file.display().to_string(),
                fs::read(file).unwrap_or_default(),
            )
        })
    });
    shown.collect()
}

// T16
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_in_no_file_no_argument_and_no_environment() {
    let hub = Hub::start();
    hub.http.require("bot", CANARY);
    let proxy = HttpProxy::start(hub.http.addr(), 1).expect("a proxy");
    let url = format!("{}/app.git", proxy.url());
    let bench = Bench::new(&url)
        .at(&hub.commits[0])
        .with(&format!("bot\n{CANARY}"));
    let held = proxy.hold_response("/app.git/git-upload-pack");
    let checkout = bench.checkout();
    let look = async {
        held.arrived(PATIENCE).await;
        let shown = shown_by_processes();
        let helpers = shown
            .iter()
            .filter(|(_, text)| holds(text, "git-remote-http"));
        assert!(helpers.count() > 0, "git is at work while we look");
        for (file, text) in &shown {
            assert!(!holds(text, CANARY), "{file}");
        }
        assert_nowhere(bench.folder.path(), CANARY);
        held.release();
    };
    let (out, ()) = tokio::join!(checkout, look);
    let out = out.expect();
    assert_nowhere(bench.folder.path(), CANARY);
    assert!(!out.log.contains(CANARY));
}

// T16
#[tokio::test]
async fn a_token_goes_to_the_server_of_the_repository_only() {
    let (hub, thief) = (Hub::start(), Hub::start());
    for server in [&hub, &thief] {
        server.http.require("bot", CANARY);
    }
    let commit = hub.app.link("x", &thief.url(), &thief.commits[0]);
    let commit = commit.expect("a commit");
    let mut bench = Bench::new(&hub.url())
        .at(&commit)
        .with(&format!("bot\n{CANARY}"));
    bench.options.submodules = true;
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone, "{out:?}");
    let requests = thief.http.requests();
    assert!(
        !requests.is_empty() && requests.iter().all(|it| it.ends_with(" 401")),
        "{requests:?}"
    );
}
