//! Caches: what an agent asks for under its lease, and what people see of them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Millis;

/// Characters of a key, resolved.
pub const MAX_CACHE_KEY: usize = 512;
/// Prefixes of one question.
pub const MAX_CACHE_PREFIXES: usize = 16;

/// Which cache an agent looks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindCache {
    pub key: String,
    /// Beginnings of keys to fall back on, in this order.
    #[serde(default)]
    pub restore_keys: Vec<String>,
    /// Only to see whether it has to be saved; that is neither a hit nor a miss.
    #[serde(default)]
    pub saving: bool,
}

impl FindCache {
    /// The field that is wrong, and what it must be.
    pub fn wrong(&self) -> Option<(&'static str, String)> {
        let bad = |key: &String| !cache_key(key);
        let words = format!("is 1 to {MAX_CACHE_KEY} characters without control characters");
        if bad(&self.key) {
            return Some(("key", words));
        }
        if self.restore_keys.len() > MAX_CACHE_PREFIXES {
            let most = format!("has more than {MAX_CACHE_PREFIXES} entries");
            return Some(("restore_keys", most));
        }
        let wrong = self.restore_keys.iter().any(bad);
        wrong.then_some(("restore_keys", words))
    }
}

/// Whether this can be a key.
pub fn cache_key(key: &str) -> bool {
    let length = key.chars().count();
    (1..=MAX_CACHE_KEY).contains(&length) && !key.contains(char::is_control)
}

/// What was found for an agent, if anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheFound {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheView>,
}

/// What became of a save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheSaved {
    /// False: the key was taken, and stays as it is.
    pub saved: bool,
}

/// What became of a cache that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheChecked {
    /// True: its bytes were not those that were saved, and its key is free again.
    pub removed: bool,
}

/// A cache that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    pub id: String,
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Whose runs without a repository read it; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Absent: the default branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Whether trusted runs read it.
    pub trusted: bool,
    pub size: u64,
    pub sha256: String,
    pub saved_at: Millis,
    pub used_at: Millis,
    /// The run that saved it, and its job.
    pub run_id: String,
    pub job: String,
    /// How long the steps took of the attempt that saved it: the most that a hit can save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_millis: Option<u64>,
}

/// Every cache that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheList {
    pub caches: Vec<CacheView>,
}
