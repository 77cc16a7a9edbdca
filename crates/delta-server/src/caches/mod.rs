//! Caches: archives that runs save and later ones restore, as files in the folder of objects, which
//! several servers may share.
//!
//! `caches/<scope>/<key>.json` says what there is, `caches/<scope>/<key>-<n>.data` are its bytes.
//! The first is written last, once, and by a link that fails where another was first: what is
//! listed is whole, and a key never changes its meaning. When it was last used is the time of that
//! file. Who may write and read is checked before this is asked.

mod scope;

use std::fs::{File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

pub use scope::Scope;

use crate::objects::Objects;

/// Bytes of one cache: a large `target` folder, compressed.
pub const MAX_CACHE_BYTES: u64 = 5 * 1024 * 1024 * 1024;
/// Bytes without an entry are left alone for so long: their server may be about to write it.
const ORPHAN: Duration = Duration::from_secs(3600);

/// How much is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes of one project; beyond it the least recently used go.
    pub project_bytes: u64,
    /// Not used for so long, it goes.
    pub unused: Duration,
}

impl CacheLimits {
    /// A few projects of a few branches, for as long as a branch usually lives.
    pub const USUAL: CacheLimits = CacheLimits {
        project_bytes: 20 * 1024 * 1024 * 1024,
        unused: Duration::from_secs(30 * 24 * 3600),
    };
}

/// What is known of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMeta {
    pub key: String,
    pub scope: Scope,
    pub size: u64,
    pub sha256: String,
    /// Milliseconds since 1970.
    pub saved_at: i64,
    pub run_id: String,
    pub job: String,
    /// The file of its bytes, beside this one.
    data: String,
}

/// A cache that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// `<scope>-<key>`
    pub id: String,
    pub meta: CacheMeta,
    pub used_at: SystemTime,
    path: PathBuf,
}

/// What is being saved.
pub struct Saving {
    pub key: String,
    pub scope: Scope,
    pub size: u64,
    pub sha256: String,
    pub saved_at: i64,
    pub run_id: String,
    pub job: String,
}

/// What became of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    Done,
    /// The key was taken. It stays as it is.
    There,
}

/// A file that receives bytes. Gone when it is dropped before it was saved.
pub struct CachePart {
    pub file: File,
    path: PathBuf,
}

impl Drop for CachePart {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub struct Caches<'a> {
    objects: &'a Objects,
    root: PathBuf,
}

impl Objects {
    pub fn caches(&self) -> Caches<'_> {
        Caches {
            root: self.folder_of("caches"),
            objects: self,
        }
    }
}

impl Caches<'_> {
    /// The cache of exactly this key; else the newest whose key begins with one of the prefixes,
    /// the first prefix first; each time in the order of the scopes.
    pub fn find(
        &self,
        scopes: &[Scope],
        key: &str,
        prefixes: &[String],
    ) -> io::Result<Option<Cache>> {
        for scope in scopes {
            if let Some(found) = self.read(&scope.name(), &scope::short(key))? {
                return Ok(Some(found));
            }
        }
        for prefix in prefixes {
            for scope in scopes {
                let found = self.of_scope(&scope.name())?.into_iter();
                let found = found.filter(|it| it.meta.key.starts_with(prefix.as_str()));
                let newest = found.max_by_key(|it| (it.meta.saved_at, it.meta.key.clone()));
                if newest.is_some() {
                    return Ok(newest);
                }
            }
        }
        Ok(None)
    }

    /// One by its id, if it is in one of these scopes.
    pub fn get(&self, scopes: &[Scope], id: &str) -> io::Result<Option<Cache>> {
        for name in scopes.iter().map(Scope::name) {
            if let Some(key) = id.strip_prefix(&format!("{name}-")) {
                return self.read(&name, key);
            }
        }
        Ok(None)
    }

    pub fn bytes_of(&self, cache: &Cache) -> PathBuf {
        cache.path.with_file_name(&cache.meta.data)
    }

    /// Notes that it was used now.
    pub fn used(&self, cache: &Cache) {
        let touched = File::open(&cache.path)
            .and_then(|file| file.set_times(FileTimes::new().set_modified(SystemTime::now())));
        if let Err(error) = touched {
            tracing::debug!(%error, "the use of a cache was not noted");
        }
    }

    /// A file to receive bytes into.
    pub fn part(&self) -> io::Result<CachePart> {
        let (file, path) = self.objects.fresh_part("cache")?;
        Ok(CachePart { file, path })
    }

    /// The part is whole and right: make it the cache, unless the key is taken. When this returns
    /// it is on disk.
    pub fn save(&self, part: CachePart, saving: Saving) -> io::Result<Saved> {
        let (folder, key) = (
            self.root.join(saving.scope.name()),
            scope::short(&saving.key),
        );
        let entry = folder.join(format!("{key}.json"));
        if entry.exists() {
            return Ok(Saved::There);
        }
        self.objects.make_folder(&folder)?;
        part.file.sync_all()?;
        let data = format!("{key}-{}.data", crate::objects::fresh());
        std::fs::rename(&part.path, folder.join(&data))?;
        let meta = CacheMeta {
            key: saving.key,
            scope: saving.scope,
            size: saving.size,
            sha256: saving.sha256,
            saved_at: saving.saved_at,
            run_id: saving.run_id,
            job: saving.job,
            data: data.clone(),
        };
        let written = self.objects.write_once(&entry, &serde_json::to_vec(&meta)?);
        if !matches!(written, Ok(true)) {
            let _ = std::fs::remove_file(folder.join(&data));
        }
        match written? {
            true => {
                self.objects.sync(&folder)?;
                Ok(Saved::Done)
            }
            false => Ok(Saved::There),
        }
    }

    /// Everything there is.
    pub fn all(&self) -> io::Result<Vec<Cache>> {
        let mut all = Vec::new();
        for scope in names(&self.root)? {
            all.extend(self.of_scope(&scope)?);
        }
        Ok(all)
    }

    /// Removes one; false where there is none.
    pub fn remove(&self, id: &str) -> io::Result<bool> {
        let found = self.all()?.into_iter().find(|it| it.id == id);
        match found {
            Some(cache) => self.delete(&cache).map(|()| true),
            None => Ok(false),
        }
    }

    /// Removes what was not used for long, what is beyond the limit of its project, and bytes that
    /// nobody knows. Returns how many, and their bytes.
    pub fn evict(&self, limits: CacheLimits, now: SystemTime) -> io::Result<(usize, u64)> {
        let mut all = self.all()?;
        // The least recently used first.
        all.sort_by_key(|it| it.used_at);
        let mut totals = std::collections::BTreeMap::<String, u64>::new();
        for cache in &all {
            *totals.entry(cache.meta.scope.project.clone()).or_default() += cache.meta.size;
        }
        let (mut count, mut bytes) = (0, 0);
        for cache in &all {
            let total = totals.entry(cache.meta.scope.project.clone()).or_default();
            let unused = now.duration_since(cache.used_at).unwrap_or_default();
            if *total > limits.project_bytes || unused > limits.unused {
                self.delete(cache)?;
                *total -= cache.meta.size;
                count += 1;
                bytes += cache.meta.size;
            }
        }
        self.delete_orphans(now)?;
        Ok((count, bytes))
    }

    fn delete_orphans(&self, now: SystemTime) -> io::Result<()> {
        for scope in names(&self.root)? {
            let folder = self.root.join(&scope);
            let known = self.of_scope(&scope)?;
            for name in names(&folder)?
                .into_iter()
                .filter(|it| it.ends_with(".data"))
            {
                let path = folder.join(&name);
                let written = path.metadata().and_then(|it| it.modified());
                let old =
                    written.is_ok_and(|it| now.duration_since(it).unwrap_or_default() > ORPHAN);
                if old && !known.iter().any(|it| it.meta.data == name) {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
        Ok(())
    }

    /// The entry first: what is listed is there.
    fn delete(&self, cache: &Cache) -> io::Result<()> {
        for path in [cache.path.clone(), self.bytes_of(cache)] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn of_scope(&self, scope: &str) -> io::Result<Vec<Cache>> {
        let mut found = Vec::new();
        for name in names(&self.root.join(scope))? {
            if let Some(key) = name.strip_suffix(".json") {
                found.extend(self.read(scope, key)?);
            }
        }
        Ok(found)
    }

    fn read(&self, scope: &str, key: &str) -> io::Result<Option<Cache>> {
        let plain = |text: &str| text.len() == 32 && text.bytes().all(|it| it.is_ascii_hexdigit());
        if !plain(scope) || !plain(key) {
            return Ok(None);
        }
        let path = self.root.join(scope).join(format!("{key}.json"));
        let (text, found) = match std::fs::read(&path).and_then(|it| Ok((it, path.metadata()?))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let Ok(meta) = serde_json::from_slice::<CacheMeta>(&text) else {
            tracing::warn!(path = %path.display(), "an entry of a cache cannot be read");
            return Ok(None);
        };
        Ok(Some(Cache {
            id: format!("{scope}-{key}"),
            meta,
            used_at: found.modified()?,
            path,
        }))
    }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

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
            trusted: true,
            git_ref: git_ref.into(),
        }
    }

    fn save(objects: &Objects, key: &str, scope: Scope, at: i64, bytes: &str) -> Saved {
        let mut part = objects.caches().part().unwrap();
        part.file.write_all(bytes.as_bytes()).unwrap();
        let saving = Saving {
            key: key.into(),
            scope,
            size: bytes.len() as u64,
            sha256: "hash".into(),
            saved_at: at,
            run_id: "run".into(),
            job: "job".into(),
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
            project_bytes: 10,
            unused: Duration::from_secs(1000),
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
}
