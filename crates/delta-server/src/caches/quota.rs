//! How much is kept of caches, and what goes when it is too much.
//!
//! What untrusted runs save goes first, always: however much they write, no entry of a trusted run
//! goes for it (T7). What is on its way counts before it is there, or many at once could fill the
//! disk. It counts by the names of the files it is received in, so for all servers that share them.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use super::{Cache, CachePart, Caches, Scope, names, scope};
use crate::objects::SILENT;

/// Bytes without an entry are left alone for so long: their server may be about to write it.
const ORPHAN: Duration = Duration::from_secs(3600);
/// How the files are called that caches are received in.
const PART: &str = "cache-";

/// How much is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes of one project; beyond it the least recently used go.
    pub project_bytes: u64,
    /// Entries of one project: each is read to find the least recently used.
    pub project_entries: usize,
    /// Entries of one scope: whoever makes a key of the time of day does not push out the others.
    pub scope_entries: usize,
    /// Not used for so long, it goes.
    pub unused: Duration,
}

impl CacheLimits {
    /// A few projects of a few branches, for as long as a branch usually lives.
    pub const USUAL: CacheLimits = CacheLimits {
        project_bytes: 20 * 1024 * 1024 * 1024,
        project_entries: 10_000,
        scope_entries: 500,
        unused: Duration::from_secs(30 * 24 * 3600),
    };
}

/// Why a cache is not even received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    #[error("it is larger than all caches of its project may be")]
    TooLarge,
    #[error("others are on their way, and there is no room for this one as well")]
    OnTheWay,
    #[error("the caches of trusted runs leave no room for it")]
    Taken,
}

/// Bytes and entries of one project, of trusted runs and of others.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    trusted: Sum,
    untrusted: Sum,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: u64,
    entries: usize,
}

impl Held {
    fn of(&mut self, trusted: bool) -> &mut Sum {
        if trusted {
            &mut self.trusted
        } else {
            &mut self.untrusted
        }
    }

    /// Whether one of this trust must go: a trusted one never for what others hold.
    fn too_much(&self, trusted: bool, limits: CacheLimits) -> bool {
        let (mut bytes, mut entries) = (self.trusted.bytes, self.trusted.entries);
        if !trusted {
            bytes = bytes.saturating_add(self.untrusted.bytes);
            entries += self.untrusted.entries;
        }
        bytes > limits.project_bytes || entries > limits.project_entries
    }
}

/// What is on its way to a project.
struct Coming {
    project: String,
    trusted: bool,
    /// As it was announced, and as it has come.
    announced: u64,
    came: u64,
}

impl Caches<'_> {
    /// A file to receive so many bytes into, where there will be room for them.
    pub fn part(
        &self,
        scope: &Scope,
        size: u64,
        limits: CacheLimits,
    ) -> io::Result<Result<CachePart, NoRoom>> {
        if size > limits.project_bytes {
            return Ok(Err(NoRoom::TooLarge));
        }
        let (project, trust) = (scope::short(&scope.project), letter(scope.trusted));
        let (file, path) = self
            .objects
            .fresh_part(&format!("{PART}{project}-{trust}-{size}"))?;
        let part = CachePart { file, path };
        // With its own among them: of two that come at once, both see the other.
        let coming = self.coming()?.into_iter();
        let coming = coming.filter(|it| it.project == project && it.trusted == scope.trusted);
        let coming = coming.fold(0_u64, |sum, it| sum.saturating_add(it.announced));
        if coming > limits.project_bytes {
            return Ok(Err(NoRoom::OnTheWay));
        }
        if !scope.trusted {
            let all = self.all()?.into_iter();
            let kept = all.filter(|it| it.meta.scope.trusted);
            let kept = kept.filter(|it| it.meta.scope.project == scope.project);
            let kept: u64 = kept.map(|it| it.meta.size).sum();
            if kept.saturating_add(coming) > limits.project_bytes {
                return Ok(Err(NoRoom::Taken));
            }
        }
        Ok(Ok(part))
    }

    fn coming(&self) -> io::Result<Vec<Coming>> {
        let folder = self.objects.folder_of("parts");
        let mut coming = Vec::new();
        for name in names(&folder)? {
            let Some((project, trusted, announced)) = read_name(&name) else {
                continue;
            };
            // Gone meanwhile: it is on its way no more.
            let Ok(found) = folder.join(&name).metadata() else {
                continue;
            };
            // Nor is what a server left that died: it cannot say so.
            let silent = found.modified()?.elapsed().unwrap_or_default();
            if silent < SILENT {
                coming.push(Coming {
                    project: project.to_owned(),
                    trusted,
                    announced,
                    came: found.len(),
                });
            }
        }
        Ok(coming)
    }

    /// Removes what was not used for long, what is beyond the limits of its scope and its project,
    /// and bytes that nobody knows. Returns how many, and their bytes.
    pub fn evict(&self, limits: CacheLimits, now: SystemTime) -> io::Result<(usize, u64)> {
        let mut all = self.all()?;
        // Untrusted ones first, and of those the least recently used.
        all.sort_by_key(|it| (it.meta.scope.trusted, it.used_at));
        let (mut held, mut scopes) = self.held(&all)?;
        let (mut count, mut bytes) = (0, 0);
        for cache in &all {
            let (of, size) = (&cache.meta.scope, cache.meta.size);
            let held = held.entry(scope::short(&of.project)).or_default();
            let in_scope = scopes.entry(of.name()).or_default();
            let unused = now.duration_since(cache.used_at).unwrap_or_default();
            let goes = unused > limits.unused
                || *in_scope > limits.scope_entries
                || held.too_much(of.trusted, limits);
            if goes {
                self.delete(cache)?;
                let sum = held.of(of.trusted);
                sum.bytes -= size;
                sum.entries -= 1;
                *in_scope -= 1;
                count += 1;
                bytes += size;
            }
        }
        self.delete_orphans(now)?;
        Ok((count, bytes))
    }

    /// What each project holds, by the hash of its name, and how many entries each scope.
    #[allow(clippy::type_complexity)]
    fn held(&self, all: &[Cache]) -> io::Result<(BTreeMap<String, Held>, BTreeMap<String, usize>)> {
        let (mut held, mut scopes) = (BTreeMap::<String, Held>::new(), BTreeMap::new());
        for cache in all {
            let of = &cache.meta.scope;
            let sum = held.entry(scope::short(&of.project)).or_default();
            let sum = sum.of(of.trusted);
            sum.bytes += cache.meta.size;
            sum.entries += 1;
            *scopes.entry(of.name()).or_default() += 1;
        }
        for part in self.coming()? {
            // What has come, not what was announced: nothing goes for a promise.
            let sum = held.entry(part.project).or_default();
            sum.of(part.trusted).bytes += part.came;
        }
        Ok((held, scopes))
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
}

fn letter(trusted: bool) -> char {
    if trusted { 't' } else { 'u' }
}

/// The project, the trust and the bytes that the name of a part says.
fn read_name(name: &str) -> Option<(&str, bool, u64)> {
    let mut parts = name.strip_prefix(PART)?.split('.').next()?.split('-');
    let (project, trust, size) = (parts.next()?, parts.next()?, parts.next()?);
    Some((project, trust == "t", size.parse().ok()?))
}
