//! Repositories at forges: what people registered, what a delivery makes of it, and what the forge
//! is told. Reading order: this file (a repository), `trigger` (a delivery becomes a run),
//! `planning` (a run gets its jobs), `kept` (their reasons), `fetching` and `mirrors` (its commit),
//! `base` (what it is compared with), `supersede`, `older` and `gated` (which run is the newest),
//! `standing` (which of several has the word about a commit), `summary`, `report_limits` and
//! `reporter` (what is said about it).

mod base;
mod commit_status;
pub mod fetching;
pub mod mirrors;
mod plan_summary;
pub mod plan_worker;
pub mod planning;
mod report_limits;
pub mod reporter;
pub mod summary;
pub mod supersede;
mod supersede_gated;
mod supersede_runs;
pub mod trigger;
mod worker;

use delta_core::{Millis, Text};
use delta_forge::{BadSite, Kind, Secret, Site};
use delta_store::forges::RepositoryRow;
use delta_store::read::Reader;
use delta_store::secrets::SecretPlace;
use delta_wire::api::{ForgeName, ForkPolicy, PutRepository};
use delta_wire::places::is_never_a_host;
use serde::{Deserialize, Serialize};

use crate::secrets::{self, Fetched, Keyring, SecretError, open_webhook, seal_webhook};
use crate::store_sides::StoreSides;

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
    #[cfg(test)]
    fn in_tests(clone_url: &str, about: &str) -> Registered {
        let row = RepositoryRow {
            name: "app".into(),
            clone_url: clone_url.into(),
            about: about.into(),
            version: 1,
            key: "k".into(),
            sealed: Vec::new(),
            created_at: delta_core::Millis(0),
            updated_at: delta_core::Millis(0),
            updated_by: "ann".into(),
        };
        Registered::read(row).expect("a good row")
    }

    pub fn read(row: RepositoryRow) -> Result<Registered, String> {
        let about: About = serde_json::from_str(&row.about)
            .map_err(|_| format!("what is kept of the repository {} is damaged", row.name))?;
        let (api, project) = (about.api.as_deref(), about.project.as_deref());
        let site = Site::new(kind(about.forge), &row.clone_url, api, project);
        let site = site.map_err(|why| format!("the repository {}: {why}", row.name))?;
        if let Some((field, why)) = misplaced(&row.clone_url, &site, about.notify.as_ref()) {
            return Err(format!("{field} of the repository {} {why}", row.name));
        }
        Ok(Registered {
            site,
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

    /// What it names and cannot be had, as sentences.
    pub fn unset(&self, reader: &dyn Reader, keys: &Keyring) -> Result<Vec<String>, SecretError> {
        let named = [
            (self.token.as_ref(), "no status is published"),
            (self.credential.as_ref(), "nothing is cloned"),
            (
                self.notify.as_ref().map(|it| &it.secret),
                "nobody is notified",
            ),
        ];
        let mut said = Vec::new();
        for (name, what) in named {
            let Some(name) = name else { continue };
            if self.secret(reader, keys, name)?.is_none() {
                said.push(format!("the secret {name} is not set: {what} until it is"));
            }
        }
        Ok(said)
    }

    /// The value of a secret that it names; none when it is not set.
    pub fn secret(
        &self,
        reader: &dyn Reader,
        keys: &Keyring,
        name: &str,
    ) -> Result<Option<delta_wire::api::SecretValue>, SecretError> {
        let names: [Text; 1] = [name.into()];
        let place = SecretPlace {
            repository: &self.row.clone_url,
            ..SecretPlace::default()
        };
        match secrets::fetch(reader, keys, &names, place)? {
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

/// Registers a repository, or changes it. One that is there keeps what the request does not name.
pub fn put(
    sides: &StoreSides,
    keys: &Keyring,
    request: &PutRepository,
    by: &Text,
    now: Millis,
) -> Result<Registered, NotPut> {
    let name: Text = request.name.as_str().into();
    for _ in 0..TRIES {
        let there = sides.reader.repository(&name).map_err(SecretError::from)?;
        let count = sides
            .reader
            .repositories()
            .map_err(SecretError::from)?
            .len();
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
            about: about(request, there.as_ref()),
            version,
            key,
            sealed,
            created_at: there.map_or(now, |row| row.created_at),
            updated_at: now,
            updated_by: by.clone(),
        };
        let registered = check(row)?;
        let put = sides.tables.put_repository(&registered.row, before);
        if put.map_err(SecretError::from)? {
            return Ok(registered);
        }
    }
    Err(SecretError::Busy.into())
}

fn about(request: &PutRepository, there: Option<&RepositoryRow>) -> Text {
    let old: Option<About> = there.and_then(|row| serde_json::from_str(&row.about).ok());
    let old = old.as_ref();
    // Another place has another API, and another name there.
    let moved = old.is_some_and(|it| it.forge != request.forge)
        || there.is_some_and(|row| *row.clone_url != *request.clone_url);
    let same_place = old.filter(|_| !moved);
    let notify = request
        .notify_url
        .clone()
        .zip(request.notify_secret.clone());
    let notify = notify.map(|(url, secret)| Notify { url, secret });
    let kept = |new: &Option<String>, old: Option<&Option<String>>| {
        new.clone().or_else(|| old.cloned().flatten())
    };
    let about = About {
        forge: request.forge,
        api: kept(&request.api, same_place.map(|it| &it.api)),
        project: kept(&request.project, same_place.map(|it| &it.project)),
        token: kept(&request.token, old.map(|it| &it.token)),
        credential: kept(&request.credential, old.map(|it| &it.credential)),
        forks: (request.forks.or(old.map(|it| it.forks))).unwrap_or(ForkPolicy::Approve),
        supersede: (request.supersede.or(old.map(|it| it.supersede))).unwrap_or(true),
        notify: notify.or_else(|| old.and_then(|it| it.notify.clone())),
    };
    serde_json::to_string(&about).unwrap_or_default().into()
}

/// What is at an address where nothing of ours goes (T17), and why: looked at when it is registered
/// and whenever it is used.
fn misplaced(
    clone_url: &str,
    site: &Site,
    notify: Option<&Notify>,
) -> Option<(&'static str, &'static str)> {
    let known = match clone_url.split_once("://") {
        Some((scheme, _)) => matches!(scheme, "https" | "http" | "ssh"),
        None => !clone_url.contains("::") && !clone_url.starts_with('-'),
    };
    if !known {
        return Some(("clone_url", "must be an address of https or ssh"));
    }
    let notify = notify.map(|it| delta_forge::host_of(&it.url));
    let hosts = [
        ("clone_url", Some(delta_forge::host_of(clone_url))),
        ("api", Some(site.api_host())),
        ("notify_url", notify),
    ];
    let never = |(_, host): &(&str, Option<String>)| {
        let name = host.as_deref().map(without_port);
        name.is_some_and(is_never_a_host)
    };
    let (field, _) = hosts.into_iter().find(never)?;
    Some((field, "names a host that is never a server"))
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Whether it can be used as it is.
fn check(row: RepositoryRow) -> Result<Registered, NotPut> {
    let about: About = serde_json::from_str(&row.about).map_err(|error| NotPut::Wrong {
        field: "forge",
        why: error.to_string(),
    })?;
    let (api, project) = (about.api.as_deref(), about.project.as_deref());
    let site = Site::new(kind(about.forge), &row.clone_url, api, project);
    let site = site.map_err(|why| NotPut::Wrong {
        field: match why {
            BadSite::Api | BadSite::InTheClear => "api",
            BadSite::Project => "project",
        },
        why: why.to_string(),
    })?;
    if let Some((field, why)) = misplaced(&row.clone_url, &site, about.notify.as_ref()) {
        let why = why.to_owned();
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
