//! What is kept between attempts, and from whom.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::SystemTime;

use super::super::CacheBounds;
use super::*;

#[tokio::test]
async fn the_second_checkout_of_a_commit_asks_nobody_and_the_next_one_only_for_what_is_new() {
    let hub = Hub::start();
    let bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    bench.checkout().await.expect();
    hub.http.forget_requests();
    let out = bench.checkout().await.expect();
    assert_eq!(hub.http.requests(), Vec::<String>::new());
    assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
    assert!(out.log.contains("from this agent's cache"), "{}", out.log);
    let bench = bench.at(&hub.commits[1]);
    let out = bench.checkout().await.expect();
    assert!(!hub.http.requests().is_empty());
    assert_eq!(out.file("version.txt").as_deref(), Some("version 2\n"));
    assert_eq!(bench.kept("trusted").len(), 1);
    assert_eq!(bench.kept("untrusted").len(), 0);
}

/// Files below, with whatever would show that one of them is another's.
fn files(root: &Path) -> Vec<(u64, u64, PathBuf)> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("a file");
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            found.push((meta.ino(), meta.nlink(), path));
        }
    }
    found
}

// T28
#[tokio::test]
async fn a_workspace_shares_nothing_with_what_is_kept() {
    let hub = Hub::start();
    let bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    let out = bench.checkout().await.expect();
    let kept = files(&bench.folder.path().join("state"));
    for (inode, links, path) in files(&out.workspace) {
        assert_eq!(links, 1, "{path:?} has another name");
        assert!(kept.iter().all(|(other, ..)| *other != inode), "{path:?}");
    }
    assert!(!out.workspace.join(".git/objects/info/alternates").exists());
    let state = bench.folder.path().join("state");
    hostile::assert_nowhere(&out.workspace, &state.display().to_string());
    let mode = fs::metadata(state.join("repositories"))
        .expect("a folder")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    // A job that destroys everything it has destroys nothing of the next one.
    for (_, _, path) in files(&out.workspace) {
        fs::write(path, "gone").expect("a file");
    }
    hub.http.forget_requests();
    let out = bench.checkout().await.expect();
    assert_eq!(out.git(&["fsck"]), "");
    assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
    assert_eq!(hub.http.requests(), Vec::<String>::new());
}

// T7
#[tokio::test]
async fn trust_and_credentials_keep_repositories_apart() {
    let hub = Hub::start();
    let mut bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    bench.trusted = false;
    bench.checkout().await.expect();
    // Whatever an untrusted run could do to what was kept for it:
    for (_, _, path) in files(&bench.kept("untrusted")[0].join("git")) {
        fs::write(path, "poison").expect("a file");
    }
    bench.trusted = true;
    let out = bench.checkout().await.expect();
    assert!(out.log.contains(" anew, in "), "{}", out.log);
    hub.http.require("bot", CANARY);
    let bench = bench.with(&format!("bot\n{CANARY}"));
    bench.checkout().await.expect();
    assert_eq!(bench.kept("trusted").len(), 2);
    // What a credential opened does not open for who has none.
    let private = bench.at(&hub.commits[1]);
    private.checkout().await.expect();
    let mut without = private;
    without.credential = None;
    without.options.credential = None;
    let out = without.checkout().await;
    assert!(
        out.failed().summary.contains("asks for a credential"),
        "{out:?}"
    );
}

// T28
#[tokio::test]
async fn a_cache_that_somebody_has_broken_or_rewritten_is_given_up() {
    let hub = Hub::start();
    let bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    bench.checkout().await.expect();
    let newer = Bench::new(&hub.url()).at(&hub.commits[1]);
    newer.checkout().await.expect();
    // The name of one commit on the content of another, as whoever wants it taken would do.
    let (theirs, ours) = (&newer.kept("trusted")[0], &bench.kept("trusted")[0]);
    fs::remove_dir_all(ours.join("git")).expect("removed");
    fs::rename(theirs.join("git"), ours.join("git")).expect("moved");
    let names = ours.join("git/refs/delta/commits");
    fs::write(names.join(&hub.commits[0]), &hub.commits[1]).expect("a name");
    let out = bench.checkout().await.expect();
    assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
    assert!(out.log.contains("is of no use"), "{}", out.log);
    for (_, _, path) in files(&ours.join("git")) {
        // git's own files are not to be written to.
        fs::remove_file(&path).expect("removed");
        fs::write(path, "poison").expect("a file");
    }
    let out = bench.checkout().await.expect();
    assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
    assert!(out.log.contains(" anew, in "), "{}", out.log);
}

#[tokio::test]
async fn what_is_too_old_or_too_much_is_removed_and_the_oldest_first() {
    let hub = Hub::start();
    let other = Repository::make(hub.root.path(), "other.git").expect("a repository");
    other.commit("a", "a").expect("a commit");
    let mut bench = Bench::new(&hub.url());
    bench.checkout().await.expect();
    let first = bench.kept("trusted");
    // Time does not pass by itself here.
    let used = fs::File::options()
        .write(true)
        .open(first[0].join("used"))
        .expect("a file");
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    used.set_modified(hour_ago).expect("a time");
    bench.origin.repository = Some(hub.http.url("other.git"));
    bench.checkout().await.expect();
    assert_eq!(bench.kept("trusted").len(), 2);
    let bounds = |max_bytes, minutes: u64| CacheBounds {
        max_bytes,
        max_age: Duration::from_secs(60 * minutes),
    };
    let kept = bench.kept("trusted");
    let sizes = kept.iter().flat_map(|it| files(it));
    let total: u64 = sizes
        .map(|(_, _, path)| fs::metadata(path).expect("a file").len())
        .sum();
    let now = SystemTime::now();
    bench.repositories.trim(bounds(total, 120), now);
    assert_eq!(bench.kept("trusted").len(), 2);
    bench.repositories.trim(bounds(total - 1, 120), now);
    assert_eq!(bench.kept("trusted").len(), 1);
    assert!(!first[0].exists(), "the oldest goes first");
    bench
        .repositories
        .trim(bounds(total, 0), now + Duration::from_secs(60));
    assert_eq!(bench.kept("trusted").len(), 0);
}

#[tokio::test]
async fn nothing_is_kept_where_nothing_is_to_be_kept() {
    let hub = Hub::start();
    let mut bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    bench.settings.cache.max_bytes = 0;
    let out = bench.checkout().await.expect();
    assert_eq!(out.git(&["rev-parse", "HEAD"]), hub.commits[0]);
    assert_eq!(out.git(&["for-each-ref"]), "");
    assert!(!bench.folder.path().join("state/repositories").exists());
}

#[tokio::test]
async fn what_an_agent_that_died_was_using_is_removed_at_the_next_start() {
    let hub = Hub::start();
    let bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    bench.checkout().await.expect();
    let kept = bench.kept("trusted");
    fs::write(kept[0].join("open"), "").expect("a mark");
    let _ = Repositories::of_state(&bench.folder.path().join("state"));
    assert_eq!(bench.kept("trusted"), Vec::<PathBuf>::new());
    let out = bench.checkout().await.expect();
    assert!(out.log.contains(" anew, in "), "{}", out.log);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkouts_of_one_repository_at_the_same_time_do_not_disturb_each_other() {
    let hub = Hub::start();
    let bench = Arc::new(Bench::new(&hub.url()).at(&hub.commits[0]));
    let many = (0..6).map(|_| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.checkout().await })
    });
    let many: Vec<_> = many.collect();
    let mut cached = 0;
    for one in many {
        let out = one.await.expect("no panic").expect();
        assert_eq!(out.file("version.txt").as_deref(), Some("version 1\n"));
        cached += u32::from(out.log.contains("from this agent's cache"));
    }
    assert_eq!(cached, 5, "one of them fetched for all the others");
}
