//! Caches as files: written once, found in order, and evicted so that a fork costs only forks.

use std::io::Write;
use std::time::Duration;

use super::*;

fn pair() -> (tempfile::TempDir, Objects, Objects) {
    let folder = tempfile::tempdir().unwrap();
    let open = || Objects::open(folder.path().join("objects")).unwrap();
    let (one, two) = (open(), open());
    (folder, one, two)
}

fn scope(git_ref: &str) -> Scope {
    Scope {
        project: "default".into(),
        repository: "r".into(),
        created_by: String::new(),
        trusted: true,
        git_ref: git_ref.into(),
    }
}

fn fork(git_ref: &str) -> Scope {
    Scope {
        trusted: false,
        ..scope(git_ref)
    }
}

fn limits(project_bytes: u64) -> CacheLimits {
    CacheLimits {
        project_bytes,
        ..CacheLimits::USUAL
    }
}

fn save(objects: &Objects, key: &str, scope: Scope, at: i64, bytes: &str) -> Saved {
    let size = bytes.len() as u64;
    let part = objects.caches().part(&scope, size, CacheLimits::USUAL);
    let mut part = part.unwrap().unwrap();
    part.file.write_all(bytes.as_bytes()).unwrap();
    let saving = Saving {
        key: key.into(),
        scope,
        size,
        sha256: "hash".into(),
        saved_at: at,
        run_id: "run".into(),
        job: "job".into(),
        work_millis: None,
    };
    objects.caches().save(part, saving).unwrap()
}

fn found(objects: &Objects, scopes: &[Scope], key: &str, prefixes: &[&str]) -> Option<String> {
    let prefixes: Vec<String> = prefixes.iter().map(|it| it.to_string()).collect();
    let caches = objects.caches();
    let found = caches.find(scopes, key, &prefixes).unwrap()?;
    Some(std::fs::read_to_string(caches.bytes_of(&found)).unwrap())
}

#[test]
fn a_key_is_written_once_and_seen_by_every_server() {
    let (_folder, one, two) = pair();
    assert_eq!(save(&one, "k", scope(""), 1, "first"), Saved::Done);
    assert_eq!(save(&two, "k", scope(""), 2, "second"), Saved::There);
    assert_eq!(
        found(&two, &[scope("")], "k", &[]).as_deref(),
        Some("first")
    );
    let parts = names(&one.folder_of("parts")).unwrap();
    assert_eq!(parts, [""; 0], "nothing is left of the second");
    let kept = names(&one.folder_of("caches").join(scope("").name())).unwrap();
    assert_eq!(kept.len(), 2, "{kept:?}");
}

#[test]
fn the_exact_key_comes_first_then_the_newest_of_the_first_prefix() {
    let (_folder, one, _two) = pair();
    save(&one, "deps-a-1", scope(""), 1, "parent a1");
    save(&one, "deps-a-2", scope(""), 2, "parent a2");
    save(&one, "deps-b-1", scope("f"), 3, "own b1");
    let both = [scope("f"), scope("")];
    let find = |key, prefixes: &[&str]| found(&one, &both, key, prefixes);
    assert_eq!(find("deps-a-1", &["deps-"]).as_deref(), Some("parent a1"));
    assert_eq!(
        find("x", &["deps-a-", "deps-"]).as_deref(),
        Some("parent a2")
    );
    assert_eq!(find("x", &["deps-"]).as_deref(), Some("own b1"));
    assert_eq!(find("x", &["none"]), None);
    assert_eq!(found(&one, &[scope("")], "deps-b-1", &[]), None);
    let all = one.caches().all().unwrap();
    let own = all.iter().find(|it| it.meta.key == "deps-b-1").unwrap();
    assert!(one.caches().get(&[scope("f")], &own.id).unwrap().is_some());
    assert!(one.caches().get(&[scope("")], &own.id).unwrap().is_none());
    assert!(one.caches().get(&both, "../../x").unwrap().is_none());
}

#[test]
fn what_is_old_or_too_much_goes_and_the_least_used_first() {
    let (_folder, one, _two) = pair();
    for (n, key) in ["a", "b", "c"].into_iter().enumerate() {
        save(&one, key, scope(""), n as i64, "12345");
        let cache = one.caches().find(&[scope("")], key, &[]).unwrap().unwrap();
        let at = SystemTime::now() - Duration::from_secs(100 - n as u64);
        let file = File::open(&cache.path).unwrap();
        file.set_times(FileTimes::new().set_modified(at)).unwrap();
    }
    let caches = one.caches();
    caches.used(&caches.find(&[scope("")], "a", &[]).unwrap().unwrap());
    let limits = CacheLimits {
        unused: Duration::from_secs(1000),
        ..limits(10)
    };
    let now = SystemTime::now();
    assert_eq!(caches.evict(limits, now).unwrap(), (1, 5));
    assert_eq!(found(&one, &[scope("")], "b", &[]), None);
    assert!(found(&one, &[scope("")], "a", &[]).is_some());
    let later = now + Duration::from_secs(2000);
    assert_eq!(caches.evict(limits, later).unwrap(), (2, 10));
    let left = names(&one.folder_of("caches").join(scope("").name())).unwrap();
    assert_eq!(left, [""; 0], "and their bytes, too");
}

/// The keys of what is kept, in their order.
fn kept(objects: &Objects) -> Vec<String> {
    let mut keys: Vec<String> = objects
        .caches()
        .all()
        .unwrap()
        .into_iter()
        .map(key)
        .collect();
    keys.sort();
    keys
}

fn key(cache: Cache) -> String {
    cache.meta.key
}

/// A part of which so many bytes have come.
fn coming(objects: &Objects, scope: &Scope, size: u64, came: &str) -> Result<CachePart, NoRoom> {
    let part = objects.caches().part(scope, size, limits(10)).unwrap();
    part.inspect(|part| (&part.file).write_all(came.as_bytes()).unwrap())
}

// T7
#[test]
fn whatever_a_fork_writes_no_trusted_entry_goes_for_it() {
    let (_folder, one, two) = pair();
    let (now, usual) = (SystemTime::now(), limits(10));
    save(&one, "main", scope(""), 1, "1234");
    save(&one, "topic", scope("topic"), 2, "5678");
    // Used long before anything that the forks write.
    for cache in one.caches().all().unwrap() {
        let file = File::open(&cache.path).unwrap();
        let long_ago = FileTimes::new().set_modified(now - Duration::from_secs(86_400));
        file.set_times(long_ago).unwrap();
    }
    for n in 0..5 {
        save(&two, &format!("fork-{n}"), fork(&format!("f{n}")), 3, "123");
        one.caches().evict(usual, now).unwrap();
        assert_eq!(kept(&one), ["main", "topic"]);
    }
    save(&two, "small", fork("f"), 3, "12");
    one.caches().evict(usual, now).unwrap();
    assert_eq!(kept(&one), ["main", "small", "topic"], "what fits stays");
    // What a fork is sending right now does not push them out either.
    let sending = coming(&two, &fork("f"), 2, "12").unwrap();
    one.caches().evict(usual, now).unwrap();
    assert_eq!(kept(&one), ["main", "topic"]);
    drop(sending);
    save(&one, "more", scope(""), 4, "123");
    assert_eq!(one.caches().evict(usual, now).unwrap().0, 1);
    assert_eq!(
        kept(&one).len(),
        2,
        "among trusted ones the least used goes"
    );
}

// T7, D15
#[test]
fn what_a_dead_server_was_receiving_is_in_nobodys_way() {
    let (_folder, one, two) = pair();
    let main = scope("");
    let dead = coming(&one, &main, 10, "123").unwrap();
    let refused = coming(&two, &main, 5, "").err();
    assert_eq!(refused, Some(NoRoom::OnTheWay));
    let silent = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(130));
    dead.file.set_times(silent).unwrap();
    assert!(coming(&two, &main, 10, "").is_ok());
    // What speaks again counts again.
    (&dead.file).write_all(b"4").unwrap();
    let refused = coming(&two, &main, 5, "").err();
    assert_eq!(refused, Some(NoRoom::OnTheWay));
}

// T7, D15
#[test]
fn what_is_on_its_way_counts_for_every_server() {
    let (_folder, one, two) = pair();
    let refused = |part: Result<CachePart, NoRoom>| part.err();
    let main = scope("");
    assert_eq!(refused(coming(&one, &main, 11, "")), Some(NoRoom::TooLarge));
    let first = coming(&one, &fork("a"), 6, "123").unwrap();
    assert_eq!(
        refused(coming(&two, &fork("b"), 5, "")),
        Some(NoRoom::OnTheWay)
    );
    assert!(
        coming(&two, &main, 10, "").is_ok(),
        "forks are in nobody's way"
    );
    drop(coming(&two, &fork("b"), 4, "").unwrap());
    drop(first);
    save(&one, "main", main, 1, "1234567");
    assert_eq!(
        refused(coming(&two, &fork("b"), 4, "")),
        Some(NoRoom::Taken)
    );
    assert!(coming(&two, &fork("b"), 3, "").is_ok());
    let parts = names(&one.folder_of("parts")).unwrap();
    assert_eq!(parts, [""; 0], "nothing is left of those");
}

// T7, D15
#[test]
fn a_scope_and_a_project_have_so_many_entries_and_no_more() {
    let (_folder, one, _two) = pair();
    save(&one, "main", scope(""), 0, "");
    for n in 0..6 {
        save(&one, &format!("a{n}"), fork("a"), n, "");
        save(&one, &format!("b{n}"), fork(&format!("b{n}")), n, "");
    }
    let few = CacheLimits {
        scope_entries: 2,
        project_entries: 5,
        ..CacheLimits::USUAL
    };
    one.caches().evict(few, SystemTime::now()).unwrap();
    let left = kept(&one);
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.contains(&"main".to_owned()), "{left:?}");
    let of_one = left.iter().filter(|it| it.starts_with('a')).count();
    assert!(of_one <= 2, "{left:?}");
}
