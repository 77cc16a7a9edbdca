//! The one client: publishes a status, and looks whether it is there already.
//!
//! No redirect is followed, answers are bounded in size and time, the token is a header that
//! shows itself nowhere, and whatever goes wrong comes back as a [`Verdict`].

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, LINK, USER_AGENT};
use reqwest::{RequestBuilder, Response, Url};
use serde::Deserialize;

use crate::hosts::{Hosts, Never};
use crate::outgoing::Outgoing;
use crate::signature::Secret;
use crate::site::Site;
use crate::status::Status;
use crate::verdict::Verdict;

/// Bytes of an answer that are read: a page of a hundred statuses has a fifth of it.
const MAX_ANSWER: usize = 2 * 1024 * 1024;
/// Pages of statuses that are looked through: GitHub takes a thousand of one name.
const MAX_PAGES: usize = 10;
/// Characters of what a forge said that are worth repeating.
const MAX_SAID: usize = 200;

/// A client could not be made: the machine has no roots of trust.
#[derive(Debug, thiserror::Error)]
#[error("no client for forges: {0}")]
pub struct NoClient(#[from] reqwest::Error);

/// Talks to forges. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
}

/// One status as a forge lists it.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    context: String,
    /// GitHub says state, Gitea status.
    #[serde(alias = "status", default)]
    state: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    target_url: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    message: String,
}

impl Client {
    /// `timeout`: for one request with its answer. `never`: where no name may lead.
    pub fn new(timeout: Duration, never: Never) -> Result<Client, NoClient> {
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Hosts { never })
            .timeout(timeout)
            .build()?;
        Ok(Client { http })
    }

    /// Publishes a status. With `look_first` it asks whether the forge has it already: for whoever
    /// does not know what became of an earlier try. `now`: seconds since 1970.
    pub async fn publish(
        &self,
        site: &Site,
        token: &Secret,
        status: &Status,
        look_first: bool,
        now: i64,
    ) -> Verdict {
        if look_first {
            match self.is_there(site, token, status, now).await {
                Ok(true) => {
                    return Verdict::Done {
                        already: true,
                        rest: None,
                    };
                }
                Ok(false) => {}
                Err(verdict) => return verdict,
            }
        }
        let body = site.kind.dialect().body(status);
        let request = self.http.post(site.statuses(&status.commit)).json(&body);
        match self.call(site, token, request, now).await {
            Ok((headers, _)) => Verdict::done(&headers, now),
            Err(verdict) => verdict,
        }
    }

    /// Whether the newest status of this name is this one.
    async fn is_there(
        &self,
        site: &Site,
        token: &Secret,
        status: &Status,
        now: i64,
    ) -> Result<bool, Verdict> {
        for page in 1..=MAX_PAGES {
            let request = self.http.get(site.listed(&status.commit, page));
            let (headers, bytes) = self.call(site, token, request, now).await?;
            let listed: Vec<Listed> = serde_json::from_slice(&bytes)
                .map_err(|_| Verdict::again("the forge's list of statuses cannot be read"))?;
            if let Some(newest) = listed.iter().find(|it| it.context == status.context) {
                return Ok(self.is_same(site, newest, status));
            }
            // The next page is asked for by its number: a link could lead anywhere.
            if listed.is_empty() || !has_next(&headers) {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn is_same(&self, site: &Site, listed: &Listed, status: &Status) -> bool {
        let link = listed.target_url.as_deref().unwrap_or_default();
        listed.state == site.kind.dialect().state(status.state)
            && listed.description.as_deref().unwrap_or_default() == status.description
            && link == status.link.as_deref().unwrap_or_default()
    }

    async fn call(
        &self,
        site: &Site,
        token: &Secret,
        request: RequestBuilder,
        now: i64,
    ) -> Result<(HeaderMap, Vec<u8>), Verdict> {
        let Some(authorization) = site.kind.dialect().authorization(token) else {
            let why = "the token has characters that no token has".to_owned();
            return Err(Verdict::Refused { why });
        };
        let request = request
            .header(AUTHORIZATION, authorization)
            .header(USER_AGENT, "delta-ci")
            .header(ACCEPT, "application/json");
        let response = request.send().await.map_err(unreachable)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = bounded(response).await?;
        if status.is_success() {
            Ok((headers, bytes))
        } else {
            Err(Verdict::of(status, &headers, &said(&bytes), now))
        }
    }

    /// Delivers an outgoing webhook.
    pub async fn deliver(&self, url: &Url, secret: &Secret, outgoing: &Outgoing<'_>) -> Verdict {
        let mut request = self.http.post(url.clone());
        for (name, value) in outgoing.headers(secret) {
            request = request.header(name, value);
        }
        let response = match request.body(outgoing.body.to_vec()).send().await {
            Ok(response) => response,
            Err(error) => return unreachable(error),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        if status.is_success() {
            Verdict::done(&headers, outgoing.timestamp)
        } else {
            // What a receiver says is not repeated: it is not a forge, and anybody's page.
            Verdict::of(status, &headers, "", outgoing.timestamp)
        }
    }
}

/// An address is in no message: it may hold what is nobody's business.
fn unreachable(error: reqwest::Error) -> Verdict {
    let error = error.without_url();
    let what = if error.is_timeout() {
        "the forge did not answer in time"
    } else if error.is_connect() {
        "the forge cannot be reached"
    } else {
        "the connection to the forge broke"
    };
    Verdict::again(what)
}

async fn bounded(mut response: Response) -> Result<Vec<u8>, Verdict> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if bytes.len() + chunk.len() > MAX_ANSWER {
            return Err(Verdict::again("the forge's answer is too long"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Both forges explain themselves in `message`.
fn said(bytes: &[u8]) -> String {
    let said = serde_json::from_slice::<Said>(bytes).map(|value| value.message);
    let plain = |c: &char| !c.is_control();
    said.unwrap_or_default()
        .chars()
        .filter(plain)
        .take(MAX_SAID)
        .collect()
}

fn has_next(headers: &HeaderMap) -> bool {
    let links = headers.get_all(LINK).iter();
    links
        .filter_map(|link| link.to_str().ok())
        .any(|link| link.contains("rel=\"next\""))
}
