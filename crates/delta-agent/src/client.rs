//! The Runner Protocol's client over HTTP: one method per message, one try per call.
//!
//! It knows how answers are spelled, not what they mean for the work: who calls it decides when to
//! try again. The bearer token is read again for every request, so that a renewed one is used at
//! once; neither it nor a lease ever enters a URL, an error or a log line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use delta_wire::api::{AgentEnrolled, EnrolAgent};
use delta_wire::runner::{
    AckLease, AckLeaseAck, CancelAck, CancelAckAck, Complete, CompleteAck, CreateUpload, Heartbeat,
    HeartbeatAck, JobSpecRef, Lease, LeaseGranted, LeaseToken, UploadCreated,
};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;

use crate::answer::{Answer, read_body, retry_after, unreachable};
pub use crate::answer::{CallError, Fenced, PutAnswer};
use crate::secret::{Secret, TokenSource};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an answer may take beyond what the request itself asks the server to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How a client reaches its server.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Such as `https://ci.example.com`.
    pub server: String,
    pub token: TokenSource,
    /// A PEM file of authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{server}` is not the address of a server; write http://HOST:PORT or https://HOST")]
    Address { server: String },
    #[error("the file of authorities {path} cannot be used")]
    Authorities {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the HTTP client cannot be made")]
    Http(#[source] reqwest::Error),
}

/// A connection pool to one server.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: TokenSource,
}

impl Client {
    pub fn new(settings: &ClientSettings) -> Result<Client, ClientError> {
        let base = base_url(&settings.server).ok_or_else(|| ClientError::Address {
            server: settings.server.clone(),
        })?;
        // A redirect would carry the token to a place nobody chose.
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("delta-ci-agent/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        if let Some(path) = &settings.ca_file {
            let unusable = |source| ClientError::Authorities {
                path: path.clone(),
                source,
            };
            let pem = std::fs::read(path).map_err(unusable)?;
            let found = reqwest::Certificate::from_pem_bundle(&pem)
                .map_err(|problem| unusable(std::io::Error::other(problem)))?;
            if found.is_empty() {
                return Err(unusable(std::io::Error::other("it holds no certificate")));
            }
            builder = builder.tls_certs_only(found);
        }
        let http = builder.build().map_err(ClientError::Http)?;
        Ok(Client {
            http,
            base,
            token: settings.token.clone(),
        })
    }

    /// Asks for work; nothing when the server has none.
    pub async fn lease(&self, message: &Lease) -> Result<Option<LeaseGranted>, CallError> {
        let wait = message.wait_seconds.as_duration();
        let answer = self.post("lease", message, wait).await?;
        match answer.status {
            StatusCode::NO_CONTENT => Ok(None),
            StatusCode::OK => answer.read().map(Some),
            _ => Err(answer.refusal()),
        }
    }

    pub async fn ack_lease(&self, message: &AckLease) -> Result<Fenced<AckLeaseAck>, CallError> {
        self.post("ack-lease", message, Duration::ZERO)
            .await?
            .fenced()
    }

    pub async fn heartbeat(&self, message: &Heartbeat) -> Result<HeartbeatAck, CallError> {
        let wait = message
            .wait_seconds
            .map(|seconds| seconds.as_duration())
            .unwrap_or_default();
        let answer = self.post("heartbeat", message, wait).await?;
        match answer.status {
            StatusCode::OK => answer.read(),
            _ => Err(answer.refusal()),
        }
    }

    pub async fn complete(&self, message: &Complete) -> Result<Fenced<CompleteAck>, CallError> {
        self.post("complete", message, Duration::ZERO)
            .await?
            .fenced()
    }

    pub async fn cancel_ack(&self, message: &CancelAck) -> Result<Fenced<CancelAckAck>, CallError> {
        self.post("cancel-ack", message, Duration::ZERO)
            .await?
            .fenced()
    }

    pub async fn create_upload(
        &self,
        message: &CreateUpload,
    ) -> Result<Fenced<UploadCreated>, CallError> {
        self.post("uploads", message, Duration::ZERO)
            .await?
            .fenced()
    }

    /// Exchanges an enrolment token for the agent's own credential.
    pub(crate) async fn enrol(&self, message: &EnrolAgent) -> Result<AgentEnrolled, CallError> {
        let garbled = |problem: String| CallError::Garbled(problem);
        let url = self.own("/api/v1/agents/enroll")?;
        let body = serde_json::to_vec(message).map_err(|it| garbled(it.to_string()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self
            .send(Method::POST, url, headers, body.into(), Duration::ZERO)
            .await?;
        match answer.status {
            // What is wrong with it is not repeated: it may hold the secret.
            StatusCode::CREATED => serde_json::from_slice(&answer.body)
                .map_err(|_| garbled("it is not what an enrolment is answered with".into())),
            _ => Err(answer.refusal()),
        }
    }

    /// Sends bytes that begin at `offset` to where [`Client::create_upload`] said.
    pub async fn put_log(
        &self,
        url: &str,
        lease: &LeaseToken,
        offset: u64,
        bytes: Bytes,
    ) -> Result<Fenced<PutAnswer>, CallError> {
        let url = self.own(url)?;
        let mut headers = HeaderMap::new();
        headers.insert("delta-lease", secret_header(lease.expose())?);
        headers.insert("upload-offset", HeaderValue::from(offset));
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        );
        let answer = self
            .send(Method::PUT, url, headers, bytes, Duration::ZERO)
            .await?;
        answer.put()
    }

    /// Fetches a job spec that was too large for its grant, and checks that it is the one meant.
    pub async fn job_spec(
        &self,
        reference: &JobSpecRef,
        lease: &LeaseToken,
    ) -> Result<Bytes, CallError> {
        let url = self.own(&reference.uri)?;
        let mut headers = HeaderMap::new();
        headers.insert("delta-lease", secret_header(lease.expose())?);
        let answer = self
            .send(Method::GET, url, headers, Bytes::new(), Duration::ZERO)
            .await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refusal());
        }
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &answer.body);
        let found: String = digest
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if !found.eq_ignore_ascii_case(&reference.sha256) {
            return Err(CallError::Garbled(
                "the job spec has another hash than promised".into(),
            ));
        }
        Ok(answer.body)
    }

    /// Credentials and leases go to our own server only. A path is below the address that the
    /// agent was given, so that a server behind a prefix is reached.
    fn own(&self, url: &str) -> Result<Url, CallError> {
        let garbled = || CallError::Garbled("an address that is not on the server".to_owned());
        let below = url.strip_prefix('/').filter(|rest| !rest.starts_with('/'));
        let url = self
            .base
            .join(below.unwrap_or(url))
            .map_err(|_| garbled())?;
        if url.origin() == self.base.origin() {
            Ok(url)
        } else {
            Err(garbled())
        }
    }

    async fn post<M: Serialize>(
        &self,
        action: &str,
        message: &M,
        wait: Duration,
    ) -> Result<Answer, CallError> {
        let url = self
            .base
            .join(&format!("api/v1/runner/{action}"))
            .map_err(|problem| CallError::Garbled(problem.to_string()))?;
        let body = serde_json::to_vec(message)
            .map_err(|problem| CallError::Garbled(problem.to_string()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(Method::POST, url, headers, body.into(), wait)
            .await
    }

    /// A refused token is read anew: it may have been renewed between two looks.
    async fn send(
        &self,
        method: Method,
        url: Url,
        headers: HeaderMap,
        body: Bytes,
        wait: Duration,
    ) -> Result<Answer, CallError> {
        let unreadable = |problem: std::io::Error| CallError::Credential(problem.to_string());
        let token = self.token.read().map_err(unreadable)?;
        let (again, at, said) = (method.clone(), url.clone(), headers.clone());
        let answer = self
            .send_as(&token, method, url, headers, body.clone(), wait)
            .await;
        if !matches!(answer, Err(CallError::Unauthorized { status: 401, .. })) {
            return answer;
        }
        match self.token.read_anew(&token).map_err(unreadable)? {
            Some(fresh) => self.send_as(&fresh, again, at, said, body, wait).await,
            None => answer,
        }
    }

    async fn send_as(
        &self,
        token: &Secret,
        method: Method,
        url: Url,
        mut headers: HeaderMap,
        body: Bytes,
        wait: Duration,
    ) -> Result<Answer, CallError> {
        headers.insert(AUTHORIZATION, bearer(token)?);
        let request = self.http.request(method, url).headers(headers).body(body);
        let response = request
            .timeout(wait + ANSWER_TIMEOUT)
            .send()
            .await
            .map_err(unreachable)?;
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let body = read_body(response).await?;
        let answer = Answer { status, body };
        match status.as_u16() {
            401 | 403 => {
                let message = answer.message();
                Err(CallError::Unauthorized {
                    status: status.as_u16(),
                    message,
                })
            }
            429 | 500..=599 => Err(CallError::Busy {
                status: status.as_u16(),
                retry_after,
            }),
            _ => Ok(answer),
        }
    }
}

fn bearer(token: &Secret) -> Result<HeaderValue, CallError> {
    secret_header(&format!("Bearer {}", token.expose()))
}

fn secret_header(text: &str) -> Result<HeaderValue, CallError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| CallError::Credential("it holds a character no header may hold".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The address with a path that ends in `/`, so that joining appends to it.
fn base_url(server: &str) -> Option<Url> {
    let mut url = Url::parse(server).ok()?;
    let usable = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !usable {
        return None;
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Some(url)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_path() {
        for good in [
            "http://127.0.0.1:7878",
            "https://ci.example/delta",
            "http://[::1]:1/",
        ] {
            assert!(
                base_url(good).is_some_and(|url| url.path().ends_with('/')),
                "{good}"
            );
        }
        for bad in [
            "ci.example",
            "ftp://x",
            "http://user:secret@x",
            "http://x/?token=y",
            "",
        ] {
            assert!(base_url(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_lease_never_leaves_for_another_host() {
        let settings = ClientSettings {
            server: "http://127.0.0.1:1/ci".into(),
            token: TokenSource::Memory(Secret::new("t")),
            ca_file: None,
        };
        let client = Client::new(&settings).expect("a client");
        let url = client.own("/api/v1/x").expect("an address");
        assert_eq!(url.path(), "/ci/api/v1/x");
        assert!(client.own("http://127.0.0.1:1/x").is_ok());
        for bad in [
            "http://evil.example/x",
            "//evil.example/x",
            "http://127.0.0.1:2/x",
        ] {
            assert!(client.own(bad).is_err(), "{bad}");
        }
    }
}
