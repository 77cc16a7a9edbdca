//! Who is asking: bearer tokens with roles, and the local administrator of the admin socket (D14).
//!
//! Owns tokens from their making to their revocation. The token itself is shown once and never
//! stored; a request is answered 401 without saying whether the token is unknown, expired or
//! revoked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use delta_core::{Digest, Millis, Text};
use delta_store::StoreError;
use delta_store::read::{Credential, Reader, Role};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::writer::{LONGEST_WAIT, random, sha256};

/// How long a looked-up credential is believed: short, so that a revocation bites within seconds,
/// long enough that a heartbeat costs no read.
const BELIEVED_FOR: Duration = Duration::from_secs(2);

/// Remembered credentials: one per runner and person; beyond it the memory starts anew.
const MAX_REMEMBERED: usize = 10_000;

/// Bytes of the secret part, and its characters in base64url.
const SECRET_BYTES: usize = 32;
const SECRET_CHARS: usize = 43;

/// Look-ups at a time, and apart from them those of tokens that were good a moment ago: a flood of
/// invented tokens must not keep runners from renewing their leases. A store answers thousands a
/// second with a handful of connections.
const LOOK_UPS: usize = 4;

/// Strangers that may wait for their look-up: all runners of a large installation that come back
/// together are through in a second or two; more than this is a flood, answered with 503.
const MAX_STRANGERS: usize = 2_048;

/// Name of whoever comes through the admin socket.
pub const LOCAL_ADMIN: &str = "local-admin";

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The credential's public id: what leases are bound to and records name.
    pub id: Text,
    pub role: Role,
}

impl Principal {
    pub fn local_admin() -> Principal {
        Principal {
            id: LOCAL_ADMIN.into(),
            role: Role::Admin,
        }
    }

    /// What was granted with the credential.
    pub fn scope(&self) -> delta_store::credential::Scope {
        delta_store::credential::Scope::any_label()
    }

    /// The one agent that may use it.
    pub fn bound_agent(&self) -> Option<Text> {
        None
    }

    /// Runners speak the Runner Protocol and nothing else, people everything else; administrators
    /// are people with keys.
    pub fn may(&self, needed: Role) -> bool {
        match needed {
            Role::Runner => self.role == Role::Runner,
            Role::User => matches!(self.role, Role::User | Role::Admin),
            Role::Admin => self.role == Role::Admin,
        }
    }
}

/// A new token: the secret, shown once, and the row that stays.
pub struct NewToken {
    pub secret: String,
    pub credential: Credential,
}

pub fn new_token(role: Role, name: Text, now: Millis, expires_at: Option<Millis>) -> NewToken {
    let secret = URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>());
    let secret = format!("delta_{}_{secret}", role.name());
    let id = format!("tok_{:016x}", u64::from_be_bytes(random()));
    NewToken {
        credential: Credential {
            id: id.into(),
            name,
            role,
            hash: sha256(secret.as_bytes()),
            created_at: now,
            expires_at,
            revoked_at: None,
        },
        secret,
    }
}

/// Looks credentials up, and remembers the good ones for a moment.
pub struct Identity {
    reader: Arc<dyn Reader>,
    known: Mutex<HashMap<Digest, (Credential, Option<Instant>)>>,
    /// Turns of tokens nobody has shown lately.
    strangers: Semaphore,
    waiting: AtomicUsize,
    /// Turns of tokens that were good a moment ago.
    regulars: Semaphore,
}

/// Why nobody knows whose token it is.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    #[error("too many tokens are being looked up")]
    Flood,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What is remembered of a token.
enum Memory {
    Good(Credential),
    /// It was good, too long ago to be believed.
    Faded,
    None,
}

impl Identity {
    pub fn new(reader: Arc<dyn Reader>) -> Identity {
        Identity {
            reader,
            known: Mutex::default(),
            strangers: Semaphore::new(LOOK_UPS),
            waiting: AtomicUsize::new(0),
            regulars: Semaphore::new(LOOK_UPS),
        }
    }

    /// Whose token this is; nobody's when it is unknown, expired or revoked.
    pub async fn whose(&self, token: &str, now: Millis) -> Result<Option<Principal>, Unknown> {
        if !looks_like_a_token(token) {
            return Ok(None);
        }
        let hash = sha256(token.as_bytes());
        let credential = match self.remembered(&hash) {
            Memory::Good(credential) => Some(credential),
            Memory::Faded => {
                let _turn = turn(&self.regulars).await?;
                // Many share one token: whoever was first has looked for all.
                match self.remembered(&hash) {
                    Memory::Good(credential) => Some(credential),
                    _ => self.look_up(hash).await?,
                }
            }
            Memory::None => self.look_up_stranger(hash).await?,
        };
        Ok(credential
            .filter(|credential| is_good(credential, now))
            .map(|credential| Principal {
                id: credential.id,
                role: credential.role,
            }))
    }

    fn remembered(&self, hash: &Digest) -> Memory {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        match known.get(hash) {
            Some((credential, since)) if is_fresh(*since) => Memory::Good(credential.clone()),
            Some(_) => Memory::Faded,
            None => Memory::None,
        }
    }

    async fn look_up_stranger(&self, hash: Digest) -> Result<Option<Credential>, Unknown> {
        let _waiting = Waiting::among(&self.waiting).ok_or(Unknown::Flood)?;
        let _turn = turn(&self.strangers).await?;
        Ok(self.look_up(hash).await?)
    }

    async fn look_up(&self, hash: Digest) -> Result<Option<Credential>, StoreError> {
        let reader = self.reader.clone();
        let found = tokio::task::spawn_blocking(move || reader.credential(&hash)).await;
        let found = found.map_err(|error| StoreError::Unavailable(error.to_string()))??;
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, (_, since)| is_fresh(*since));
        }
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        match &found {
            // One that was revoked is a stranger's from now on.
            Some(credential) if credential.revoked_at.is_none() => {
                known.insert(hash, (credential.clone(), Some(Instant::now())));
            }
            _ => {
                known.remove(&hash);
            }
        }
        drop(known);
        Ok(found)
    }

    /// A credential of this server changed: believe nothing remembered. Who was known is still
    /// looked up before strangers.
    pub fn forget(&self) {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        for (_, since) in known.values_mut() {
            *since = None;
        }
    }
}

/// Looked up so lately that it is believed.
fn is_fresh(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() < BELIEVED_FOR)
}

/// A turn to look up, for as long as a message may wait at all.
async fn turn(turns: &Semaphore) -> Result<SemaphorePermit<'_>, Unknown> {
    match tokio::time::timeout(LONGEST_WAIT, turns.acquire()).await {
        Ok(Ok(turn)) => Ok(turn),
        Ok(Err(_)) | Err(_) => Err(Unknown::Flood),
    }
}

fn is_good(credential: &Credential, now: Millis) -> bool {
    credential.revoked_at.is_none() && credential.expires_at.is_none_or(|at| now < at)
}

/// A place among those who wait, given up when it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(count: &'a AtomicUsize) -> Option<Waiting<'a>> {
        let more = |n: usize| (n < MAX_STRANGERS).then_some(n + 1);
        let entered = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        entered.ok().map(|_| Waiting(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Spares the store a look for what cannot be one.
pub fn looks_like_a_token(text: &str) -> bool {
    let Some((role, secret)) = text
        .strip_prefix("delta_")
        .and_then(|rest| rest.split_once('_'))
    else {
        return false;
    };
    let mut bytes = [0; SECRET_BYTES];
    Role::from_name(role).is_some()
        && secret.len() == SECRET_CHARS
        && URL_SAFE_NO_PAD.decode_slice(secret, &mut bytes) == Ok(SECRET_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_role_and_hides_the_rest_in_its_hash() {
        let token = new_token(Role::Runner, "r".into(), Millis(0), None);
        assert!(token.secret.starts_with("delta_runner_"));
        assert_eq!(token.secret.len(), "delta_runner_".len() + SECRET_CHARS);
        assert!(looks_like_a_token(&token.secret));
        assert_eq!(token.credential.hash, sha256(token.secret.as_bytes()));
        let again = new_token(Role::Runner, "r".into(), Millis(0), None);
        assert_ne!(token.secret, again.secret);
    }

    #[test]
    fn other_texts_are_not_looked_up() {
        let secret = "x".repeat(43);
        for text in [
            "",
            "Bearer",
            "delta_runner_short",
            &format!("delta_root_{secret}"),
            &format!("delta_user_{secret}y"),
            &format!("delta_user_{}", "é".repeat(43)),
        ] {
            assert!(!looks_like_a_token(text), "{text}");
        }
    }

    #[test]
    fn roles_reach_as_far_as_they_should() {
        let who = |role| Principal {
            id: "x".into(),
            role,
        };
        use Role::{Admin, Runner, User};
        let table: Vec<bool> = [Runner, User, Admin]
            .iter()
            .flat_map(|has| [Runner, User, Admin].map(|needs| who(*has).may(needs)))
            .collect();
        let expected = [
            true, false, false, // a runner
            false, true, false, // a user
            false, true, true, // an admin
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn an_expired_or_revoked_credential_is_nobodys() {
        let mut credential =
            new_token(Role::User, "u".into(), Millis(0), Some(Millis(10))).credential;
        assert!(is_good(&credential, Millis(9)));
        assert!(!is_good(&credential, Millis(10)));
        credential.expires_at = None;
        credential.revoked_at = Some(Millis(5));
        assert!(!is_good(&credential, Millis(6)));
    }

    fn invented(n: u8) -> String {
        format!("delta_user_{}", URL_SAFE_NO_PAD.encode([n; SECRET_BYTES]))
    }

    #[tokio::test]
    async fn a_flood_of_invented_tokens_is_refused_and_regulars_are_served() {
        let store = delta_store::memory::MemoryStore::new();
        let reader = Arc::new(store.reader());
        let token = new_token(Role::Runner, "r".into(), Millis(0), None);
        reader.put_credential(&token.credential).unwrap();
        let identity = Identity::new(reader);
        let runner = identity.whose(&token.secret, Millis(1)).await.unwrap();
        assert!(runner.is_some());
        assert_eq!(identity.whose(&invented(1), Millis(1)).await.unwrap(), None);
        // All turns of strangers are taken, and the room where they wait is full.
        let turns = identity.strangers.acquire_many(LOOK_UPS as u32).await;
        identity.waiting.store(MAX_STRANGERS, Ordering::Relaxed);
        let refused = identity.whose(&invented(2), Millis(1)).await;
        assert!(matches!(refused, Err(Unknown::Flood)), "{refused:?}");
        // Another token was revoked: the regular's is looked up again, but not as a stranger's.
        identity.forget();
        assert_eq!(
            identity.whose(&token.secret, Millis(1)).await.unwrap(),
            runner
        );
        identity.waiting.store(MAX_STRANGERS - 1, Ordering::Relaxed);
        drop(turns);
        assert_eq!(identity.whose(&invented(2), Millis(1)).await.unwrap(), None);
        assert_eq!(identity.waiting.load(Ordering::Relaxed), MAX_STRANGERS - 1);
    }
}
