//! Caches: archives that runs save and later ones restore, as files in the folder of objects, which
//! several servers may share.
//!
//! `caches/<scope>/<key>.json` says what there is, `caches/<scope>/<key>-<n>.data` are its bytes.
//! The first is written last, once, and by a link that fails where another was first: what is
//! listed is whole, and a key never changes its meaning. When it was last used is the time of that
//! file. Who may write and read is checked before this is asked.

mod quota;
mod scope;

use std::fs::{File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

pub use quota::{CacheLimits, NoRoom};
pub use scope::Scope;

use crate::objects::Objects;
use crate::runner_commands::hex;

/// Bytes of one cache: a large `target` folder, compressed.
pub const MAX_CACHE_BYTES: u64 = 5 * 1024 * 1024 * 1024;
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
    /// How long the work took that made it, as its agent says: for information.
    #[serde(default)]
    pub work_millis: Option<u64>,
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
    pub work_millis: Option<u64>,
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
            work_millis: saving.work_millis,
            data: data.clone(),
        };
        let written = self.objects.write_once(&entry, &serde_json::to_vec(&meta)?);
        if !matches!(written, Ok(true)) {
            let _ = std::fs::remove_file(folder.join(&data));
        }
        if written? {
            self.objects.sync(&folder)?;
            Ok(Saved::Done)
        } else {
            Ok(Saved::There)
        }
    }

    /// Reads all of its bytes, and removes it where they are not those that were saved, so that
    /// its key can be saved again. Says whether it did: nobody else's word counts.
    pub fn check(&self, cache: &Cache) -> io::Result<bool> {
        let mut hash = Hash(Context::new(&SHA256));
        let same = match File::open(self.bytes_of(cache)) {
            // Lost, or it was removed just now: its key is free in the end.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            file => {
                let size = io::copy(&mut file?, &mut hash)?;
                size == cache.meta.size && hex(hash.0.finish().as_ref()) == cache.meta.sha256
            }
        };
        if same {
            return Ok(false);
        }
        if let Some((scope, key)) = cache.id.split_once('-')
            && self
                .read(scope, key)?
                .is_some_and(|it| it.meta == cache.meta)
        {
            self.delete(cache)?;
        }
        Ok(true)
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

/// Hashes what is written to it.
struct Hash(Context);

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
mod tests;
