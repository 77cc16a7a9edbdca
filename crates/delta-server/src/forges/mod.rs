//! Repositories at forges: what people registered, what a delivery makes of it, and what the forge
//! is told. Reading order: this file (a repository), `trigger` (a delivery becomes a run),
//! `planning` (a run gets its jobs), `supersede` (which run is the newest), `summary` and
//! `reporter` (what is said about it).

pub mod planning;
pub mod reporter;
pub mod summary;
pub mod supersede;
pub mod trigger;
mod worker;

use delta_core::{Millis, Text};
use delta_forge::{BadSite, Kind, Secret, Site};
use delta_store::forges::RepositoryRow;
use delta_store::read::Reader;
use delta_wire::api::{ForgeName, ForkPolicy, PutRepository};
use serde::{Deserialize, Serialize};

use crate::secrets::{self, Fetched, Keyring, SecretError, open_webhook, seal_webhook};

/// Repositories of one server: a list of them is one answer.
const MAX_REPOSITORIES: usize = 1_000;
/// How often a write is tried against others of the same repository.
const TRIES: usize = 5;

/// What is kept of a repository beside its name and its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    forge: ForgeName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
    forks: ForkPolicy,
    supersede: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    notify: Option<Notify>,
}

/// Who wants to know, and the name of the secret it is signed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notify {
    pub url: String,
    pub secret: String,
}

/// A registered repository, read.
#[derive(Clone, Debug)]
pub struct Registered {
    pub row: RepositoryRow,
    pub site: Site,
    /// Names of secrets: what statuses are written with, and what it is cloned with.
    pub token: Option<String>,
    pub credential: Option<String>,
    pub forks: ForkPolicy,
    pub supersede: bool,
    pub notify: Option<Notify>,
}

/// Why a repository was not registered.
#[derive(Debug, thiserror::Error)]
pub enum NotPut {
    #[error("{why}")]
    Wrong { field: &'static str, why: String },
    #[error("there are {MAX_REPOSITORIES} repositories, and no more are kept")]
    TooMany,
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl Registered {
    pub fn read(row: RepositoryRow) -> Result<Registered, String> {
        let about: About = serde_json::from_str(&row.about)
            .map_err(|_| format!("what is kept of the repository {} is damaged", row.name))?;
        let (api, project) = (about.api.as_deref(), about.project.as_deref());
        let site = Site::new(kind(about.forge), &row.clone_url, api, project);
        Ok(Registered {
            site: site.map_err(|why| format!("the repository {}: {why}", row.name))?,
            row,
            token: about.token,
            credential: about.credential,
            forks: about.forks,
            supersede: about.supersede,
            notify: about.notify,
        })
    }

    pub fn forge(&self) -> ForgeName {
        match self.site.kind {
            Kind::GitHub => ForgeName::Github,
            Kind::Gitea => ForgeName::Gitea,
            Kind::Forgejo => ForgeName::Forgejo,
        }
    }

    /// Whether anybody must be told about its runs.
    pub fn has_listeners(&self) -> bool {
        self.token.is_some() || self.notify.is_some()
    }

    pub fn webhook_secret(&self, keys: &Keyring) -> Result<Secret, SecretError> {
        open_webhook(keys, &self.row).map(Secret::new)
    }

    /// The value of a secret that it names; none when it is not set.
    pub fn secret(
        &self,
        reader: &dyn Reader,
        keys: &Keyring,
        name: &str,
    ) -> Result<Option<delta_wire::api::SecretValue>, SecretError> {
        let names: [Text; 1] = [name.into()];
        match secrets::fetch(reader, keys, &names, &self.row.clone_url, "")? {
            Fetched::All(mut values) => Ok(values.pop()),
            Fetched::Missing(_) => Ok(None),
        }
    }
}

fn kind(forge: ForgeName) -> Kind {
    match forge {
        ForgeName::Github => Kind::GitHub,
        ForgeName::Gitea => Kind::Gitea,
        ForgeName::Forgejo => Kind::Forgejo,
    }
}

/// The repository of this name, where it is one.
pub fn find(reader: &dyn Reader, name: &str) -> Result<Option<Registered>, SecretError> {
    let row = reader.repository(name)?;
    Ok(row.and_then(|row| {
        let read = Registered::read(row);
        read.inspect_err(|why| tracing::error!(why, "a repository cannot be used"))
            .ok()
    }))
}

/// Registers a repository, or writes it anew. One that is there keeps its webhook's secret when the
/// request has none.
pub fn put(
    reader: &dyn Reader,
    keys: &Keyring,
    request: &PutRepository,
    by: &Text,
    now: Millis,
) -> Result<Registered, NotPut> {
    let name: Text = request.name.as_str().into();
    for _ in 0..TRIES {
        let there = reader.repository(&name).map_err(SecretError::from)?;
        let count = reader.repositories().map_err(SecretError::from)?.len();
        if there.is_none() && count >= MAX_REPOSITORIES {
            return Err(NotPut::TooMany);
        }
        let before = there.as_ref().map(|row| row.version);
        let secret = match (&request.webhook_secret, &there) {
            (Some(secret), _) => secret.clone(),
            (None, Some(row)) => open_webhook(keys, row)?,
            (None, None) => {
                return Err(NotPut::Wrong {
                    field: "webhook_secret",
                    why: "is missing: nobody could tell the forge's deliveries from others".into(),
                });
            }
        };
        let clock = now.0.max(0).unsigned_abs();
        let version = before.map_or(clock, |before| clock.max(before + 1));
        let (key, sealed) = seal_webhook(keys, &name, version, &secret)?;
        let row = RepositoryRow {
            name: name.clone(),
            clone_url: request.clone_url.as_str().into(),
            about: about(request),
            version,
            key,
            sealed,
            created_at: there.map_or(now, |row| row.created_at),
            updated_at: now,
            updated_by: by.clone(),
        };
        let registered = check(row)?;
        let put = reader.put_repository(&registered.row, before);
        if put.map_err(SecretError::from)? {
            return Ok(registered);
        }
    }
    Err(SecretError::Busy.into())
}

fn about(request: &PutRepository) -> Text {
    let notify = request
        .notify_url
        .clone()
        .zip(request.notify_secret.clone());
    let about = About {
        forge: request.forge,
        api: request.api.clone(),
        project: request.project.clone(),
        token: request.token.clone(),
        credential: request.credential.clone(),
        forks: request.forks,
        supersede: request.supersede,
        notify: notify.map(|(url, secret)| Notify { url, secret }),
    };
    serde_json::to_string(&about).unwrap_or_default().into()
}

/// Whether it can be used as it is.
fn check(row: RepositoryRow) -> Result<Registered, NotPut> {
    let about: About = serde_json::from_str(&row.about).map_err(|error| NotPut::Wrong {
        field: "forge",
        why: error.to_string(),
    })?;
    let (api, project) = (about.api.as_deref(), about.project.as_deref());
    let site = Site::new(kind(about.forge), &row.clone_url, api, project);
    if let Err(why) = site {
        let field = match why {
            BadSite::Api | BadSite::InTheClear => "api",
            BadSite::Project => "project",
        };
        let why = why.to_string();
        return Err(NotPut::Wrong { field, why });
    }
    if let Some(notify) = &about.notify
        && reporter::notify_address(&notify.url).is_none()
    {
        return Err(NotPut::Wrong {
            field: "notify_url",
            why: "must be an https address, or http on this machine".into(),
        });
    }
    Registered::read(row).map_err(|why| NotPut::Wrong {
        field: "clone_url",
        why,
    })
}

#[cfg(test)]
mod tests;
