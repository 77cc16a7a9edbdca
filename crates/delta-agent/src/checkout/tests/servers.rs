//! git over HTTP with and without a token, and over SSH with a key.

use delta_core::Cause;
use delta_testkit::git::{Key, Sshd};

use super::*;

#[tokio::test]
async fn the_exact_commit_is_checked_out_shallow_and_shown() {
    let hub = Hub::start();
    let bench = Bench::new(&hub.url()).at(&hub.commits[1]);
    let out = bench.checkout().await.expect();
    assert_eq!(out.file("version.txt").as_deref(), Some("version 2\n"));
    assert_eq!(out.git(&["rev-parse", "HEAD"]), hub.commits[1]);
    assert_eq!(out.git(&["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(out.git(&["status", "--porcelain"]), "");
    assert_eq!(out.git(&["remote", "get-url", "origin"]), hub.url());
    assert_eq!(out.git(&["for-each-ref"]), "");
    let says = format!("--- checked out {} anew, in ", hub.commits[1]);
    assert!(out.log.contains(&says), "{}", out.log);
    assert!(out.log.contains("Receiving objects: 100%") || out.log.contains("remote: "));
}

#[tokio::test]
async fn depth_is_as_asked_and_all_history_comes_with_branches_and_tags() {
    let hub = Hub::start();
    hub.app.git(&["tag", "v1", "HEAD~1"]).expect("a tag");
    hub.app
        .git(&["push", "-q", "origin", "v1"])
        .expect("pushed");
    let mut bench = Bench::new(&hub.url()).at(&hub.commits[2]);
    for max_bytes in [1 << 30, 0] {
        bench.settings.cache.max_bytes = max_bytes;
        for (depth, count) in [(1, "1"), (2, "2"), (0, "3"), (50, "3")] {
            bench.options.depth = depth;
            let out = bench.checkout().await.expect();
            assert_eq!(out.git(&["rev-list", "--count", "HEAD"]), count);
            assert_eq!(out.git(&["fsck"]), "");
            let refs = out.git(&["for-each-ref", "--format=%(refname)"]);
            let all = "refs/remotes/origin/main\nrefs/tags/v1";
            assert_eq!(refs, if depth == 0 { all } else { "" });
        }
    }
}

#[tokio::test]
async fn a_ref_alone_is_resolved_and_the_commit_is_in_the_log() {
    let hub = Hub::start();
    let mut bench = Bench::new(&hub.url());
    for name in [Some("main"), Some("refs/heads/main"), None] {
        bench.origin.git_ref = name.map(str::to_owned);
        let out = bench.checkout().await.expect();
        assert_eq!(out.git(&["rev-parse", "HEAD"]), hub.commits[2]);
        assert!(out.log.contains(&format!("checked out {}", hub.commits[2])));
    }
    let newer = hub
        .app
        .commit("version.txt", "version 4\n")
        .expect("a commit");
    let out = bench.checkout().await.expect();
    assert_eq!(out.git(&["rev-parse", "HEAD"]), newer, "a ref moves");
}

#[tokio::test]
async fn a_server_that_gives_nothing_by_hash_is_asked_by_name() {
    let hub = Hub::start();
    hub.http.speak_old();
    let mut bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    for name in [Some("main"), None] {
        bench.origin.git_ref = name.map(str::to_owned);
        let out = bench.checkout().await.expect();
        assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
        assert_eq!(out.git(&["rev-list", "--count", "HEAD"]), "1");
    }
    let lost = bench.at(&"1".repeat(40));
    let out = lost.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone);
    assert!(out.failed().summary.contains("has no commit"), "{out:?}");
}

#[tokio::test]
async fn a_repository_with_long_hashes_is_checked_out_like_any_other() {
    let root = tempfile::tempdir().expect("a folder");
    let work = root.path().join("long");
    fs::create_dir(&work).expect("a folder");
    let git = |arguments: &[&str]| delta_testkit::git::git(&work, arguments).expect("git");
    git(&["init", "-q", "-b", "main", "--object-format=sha256"]);
    fs::write(work.join("file"), "long\n").expect("a file");
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "long"]);
    let commit = git(&["rev-parse", "HEAD"]);
    assert_eq!(commit.len(), 64);
    let http = GitHttp::start(root.path()).expect("a server");
    let bench = Bench::new(&http.url("long/.git")).at(&commit);
    let out = bench.checkout().await.expect();
    assert_eq!(out.file("file").as_deref(), Some("long\n"));
}

// EP-40
#[tokio::test]
async fn an_unknown_commit_or_ref_is_said_so() {
    let hub = Hub::start();
    let bench = Bench::new(&hub.url()).at(&"1".repeat(40));
    let mut no_ref = Bench::new(&hub.url());
    no_ref.origin.git_ref = Some("nowhere".to_owned());
    for bench in [bench, no_ref] {
        let out = bench.checkout().await;
        let failed = out.failed();
        assert_eq!(failed.cause, Cause::Clone);
        let known = ["no such commit or ref", "has no commit"];
        assert!(
            known.iter().any(|it| failed.summary.contains(it)),
            "{failed:?}"
        );
    }
}

// EP-19, T16
#[tokio::test]
async fn a_token_opens_a_private_repository_and_a_wrong_one_does_not() {
    let hub = Hub::start();
    hub.http.require("bot", CANARY);
    let bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone);
    assert!(
        out.failed().summary.contains("asks for a credential"),
        "{out:?}"
    );
    let bench = bench.with(&format!("bot\n{CANARY}"));
    let out = bench.checkout().await.expect();
    assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
    hub.http.require("bot", "another");
    let out = bench.checkout().await.expect();
    assert!(out.log.contains("from this agent's cache"), "{}", out.log);
    let bench = bench.at(&hub.commits[1]);
    let out = bench.checkout().await;
    assert!(
        out.failed().summary.contains("refuses the credential"),
        "{out:?}"
    );
}

#[tokio::test]
async fn a_token_without_a_name_goes_with_the_usual_one() {
    let hub = Hub::start();
    hub.http.require("x-access-token", CANARY);
    let bench = Bench::new(&hub.url()).at(&hub.commits[0]).with(CANARY);
    bench.checkout().await.expect();
}

// EP-19
#[tokio::test]
async fn a_key_opens_a_repository_over_ssh_where_the_host_is_known() {
    let hub = Hub::start();
    let key = Key::make().expect("a key");
    let sshd = Sshd::start(&key).expect("an sshd");
    let url = sshd.url(hub.app.path()).expect("an address");
    let bench = Bench::new(&url).at(&hub.commits[0]);
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::SpecError, "no key: {out:?}");
    let secret = format!("{}{}", key.private, sshd.known_hosts());
    let bench = bench.with(&secret);
    let out = bench.checkout().await.expect();
    assert_eq!(out.git(&["rev-parse", "HEAD"]), hub.commits[0]);
    assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
    let body = key.private.lines().nth(1).expect("a line of the key");
    hostile::assert_nowhere(bench.folder.path(), body);
}

#[tokio::test]
async fn an_unknown_host_key_and_an_unknown_key_are_refused() {
    let hub = Hub::start();
    let (key, other) = (Key::make().expect("a key"), Key::make().expect("a key"));
    let sshd = Sshd::start(&key).expect("an sshd");
    let url = sshd.url(hub.app.path()).expect("an address");
    let port = url.split(':').nth(2).and_then(|it| it.split('/').next());
    let liar = format!("[127.0.0.1]:{} {}", port.expect("a port"), other.public);
    for hosts in [liar.as_str(), "other.example ssh-ed25519 AAAA"] {
        let bench = Bench::new(&url)
            .at(&hub.commits[0])
            .with(&format!("{}{hosts}", key.private));
        let out = bench.checkout().await;
        assert_eq!(out.failed().cause, Cause::Clone);
        assert!(out.failed().summary.contains("the host key of"), "{out:?}");
    }
    let none = Bench::new(&url).at(&hub.commits[0]).with(&key.private);
    let out = none.checkout().await;
    assert_eq!(out.failed().cause, Cause::SpecError, "{out:?}");
    let stranger = format!("{}{}", other.private, sshd.known_hosts());
    let bench = Bench::new(&url).at(&hub.commits[0]).with(&stranger);
    let out = bench.checkout().await;
    assert!(
        out.failed().summary.contains("refuses the credential"),
        "{out:?}"
    );
    assert!(
        !sshd.said().contains("Accepted publickey"),
        "{}",
        sshd.said()
    );
}

#[tokio::test]
async fn a_credential_that_does_not_fit_the_address_is_a_mistake_of_the_job() {
    let hub = Hub::start();
    let key = Key::make().expect("a key");
    let secret = format!("{}host ssh-ed25519 AAAA", key.private);
    let keyed = Bench::new(&hub.url()).at(&hub.commits[0]).with(&secret);
    let token = Bench::new("git@host.example:app.git").with(CANARY);
    for bench in [keyed, token] {
        let out = bench.checkout().await;
        assert_eq!(out.failed().cause, Cause::SpecError, "{out:?}");
        assert!(!out.failed().summary.contains(CANARY));
    }
}
