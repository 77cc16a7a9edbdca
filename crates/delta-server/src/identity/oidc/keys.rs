//! The keys of one issuer: found through its discovery document, kept, and fetched again when a
//! token names one that is not known.
//!
//! Fetches are bounded in number, size and time, and follow no redirect. Who invents key names
//! causes no more than one fetch in a while, and an outage of the issuer leaves what is known.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::config::{Issuer, is_safe};
use crate::identity::Unknown;
use crate::identity::look_up::Waiting;

/// Bytes of a document: the largest sets of keys in use have a tenth of this.
const MAX_BYTES: usize = 256 * 1024;
/// Keys of one issuer.
const MAX_KEYS: usize = 64;
/// How long one document may take.
const FETCH_TIME: Duration = Duration::from_secs(5);

/// Callers that may wait for a fetch: all agents of an issuer that come with its new key at once.
/// They have a room of their own, so that a silent issuer costs nobody else a place.
const MAX_WAITING: usize = 1024;

/// How often and how long; tests have shorter ones.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Keys older than this are fetched again when one is used: a withdrawn key dies with it.
    pub refresh_after: Duration,
    /// Keys that could not be fetched again are still believed for this long.
    pub kept_for: Duration,
    /// Between two fetches, whatever tokens come.
    pub pause: Duration,
}

impl Times {
    pub const USUAL: Times = Times {
        refresh_after: Duration::from_secs(10 * 60),
        kept_for: Duration::from_secs(24 * 60 * 60),
        pause: Duration::from_secs(10),
    };
}

/// A key that may verify.
struct Key {
    id: Option<String>,
    /// What the set says it is for; any of its family when it says nothing.
    algorithm: Option<String>,
    key: DecodingKey,
}

struct Keys {
    list: Vec<Key>,
    since: Instant,
}

pub struct KeyCache {
    issuer: Issuer,
    http: reqwest::Client,
    times: Times,
    current: ArcSwapOption<Keys>,
    /// Held by the one who fetches; when the last fetch began.
    fetching: Mutex<Option<Instant>>,
    waiting: AtomicUsize,
}

/// The part of the discovery document that is used.
#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

impl KeyCache {
    pub fn new(issuer: Issuer, times: Times) -> Result<KeyCache, String> {
        let mut builder = reqwest::Client::builder()
            // A redirect could lead to a place whose words nobody protects.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(FETCH_TIME);
        if let Some(file) = &issuer.ca_cert {
            let named = |why: String| format!("{}: {why}", file.display());
            let pem = std::fs::read(file).map_err(|error| named(error.to_string()))?;
            let found = reqwest::Certificate::from_pem_bundle(&pem)
                .map_err(|error| named(error.to_string()))?;
            if found.is_empty() {
                return Err(named("there is no certificate in it".into()));
            }
            builder = builder.tls_certs_only(found);
        }
        if issuer.issuer.starts_with("http://") {
            builder = builder.tls_certs_only([]).no_proxy();
        }
        Ok(KeyCache {
            http: builder.build().map_err(|error| error.to_string())?,
            issuer,
            times,
            current: ArcSwapOption::empty(),
            fetching: Mutex::new(None),
            waiting: AtomicUsize::new(0),
        })
    }

    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// The key that a token says it was signed with; none when the issuer has no such key.
    pub async fn find(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Option<DecodingKey>, Unknown> {
        let known = self.known();
        let found = known.as_ref().and_then(|keys| keys.find(id, algorithm));
        if let (Some(key), Some(keys)) = (found, known) {
            if keys.since.elapsed() > self.times.refresh_after {
                let this = self.clone();
                tokio::spawn(async move { this.refresh(None).await });
            }
            return Ok(Some(key));
        }
        let _waiting = Waiting::among(&self.waiting, MAX_WAITING).ok_or(Unknown::Flood)?;
        self.refresh(Some((id, algorithm))).await;
        match self.known() {
            Some(keys) => Ok(keys.find(id, algorithm)),
            None => Err(Unknown::Issuer(self.issuer.name.clone())),
        }
    }

    /// What is believed now.
    fn known(&self) -> Option<Arc<Keys>> {
        let keys = self.current.load_full()?;
        (keys.since.elapsed() < self.times.kept_for).then_some(keys)
    }

    /// Fetches, unless that was done a moment ago; for nothing, when the key that is missed has
    /// come meanwhile.
    async fn refresh(&self, missed: Option<(Option<&str>, Algorithm)>) {
        let mut last = self.fetching.lock().await;
        let came = missed.is_some_and(|(id, algorithm)| {
            let keys = self.known();
            keys.is_some_and(|keys| keys.find(id, algorithm).is_some())
        });
        if came || last.is_some_and(|last| last.elapsed() < self.times.pause) {
            return;
        }
        *last = Some(Instant::now());
        match self.fetch().await {
            Ok(list) => {
                let since = Instant::now();
                self.current.store(Some(Arc::new(Keys { list, since })));
            }
            Err(why) => {
                let issuer = &self.issuer.name;
                tracing::warn!(%issuer, why, "the keys of an OIDC issuer could not be fetched");
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<Key>, String> {
        let base = self.issuer.issuer.trim_end_matches('/');
        let url = format!("{base}/.well-known/openid-configuration");
        let found: Discovered = self.document(&url).await?;
        if found.issuer != self.issuer.issuer {
            return Err("its discovery document is of another issuer".into());
        }
        let set: KeySet = self.document(&found.jwks_uri).await?;
        let keys: Vec<Key> = set
            .keys
            .into_iter()
            .take(MAX_KEYS)
            .filter_map(key)
            .collect();
        if keys.is_empty() {
            Err("there is no usable key in its set".into())
        } else {
            Ok(keys)
        }
    }

    async fn document<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let url = Url::parse(url).map_err(|_| "an address cannot be read".to_owned())?;
        if !is_safe(&url) {
            return Err("an address is not https".into());
        }
        let words = |error: reqwest::Error| error.without_url().to_string();
        let mut response = self.http.get(url).send().await.map_err(words)?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(format!("it answered {}", response.status()));
        }
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(words)? {
            if body.len() + piece.len() > MAX_BYTES {
                return Err(format!("a document has more than {MAX_BYTES} bytes"));
            }
            body.extend_from_slice(&piece);
        }
        serde_json::from_slice(&body).map_err(|_| "a document is not what it should be".into())
    }
}

impl Keys {
    /// A token that names no key can only mean the only one.
    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let fits = |key: &&Key| {
            let said = key.algorithm.as_deref();
            key.key.family() == algorithm.family()
                && said.is_none_or(|said| said == format!("{algorithm:?}"))
        };
        let mut keys = self.list.iter().filter(fits);
        let found = match id {
            Some(id) => keys.find(|key| key.id.as_deref() == Some(id)),
            None => keys.next().filter(|_| self.list.len() == 1),
        };
        found.map(|key| key.key.clone())
    }
}

/// A key for signatures of a kind we know; anything else in a set is passed over.
fn key(value: serde_json::Value) -> Option<Key> {
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    if text("use").is_some_and(|used| used != "sig") {
        return None;
    }
    let (id, algorithm) = (text("kid"), text("alg"));
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    let private = key.family() == AlgorithmFamily::Hmac;
    (!private).then_some(Key { id, algorithm, key })
}
