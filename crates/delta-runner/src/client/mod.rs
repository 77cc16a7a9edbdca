//! Calling functions from a program: enqueue, wait, cancel, result, over the server's HTTP API.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use delta_runner::client::{Client, ClientError, NewCall};
//!
//! #[derive(serde::Deserialize)]
//! struct Sent {
//!     sent_to: String,
//! }
//!
//! # async fn example() -> Result<(), ClientError> {
//! let client = Client::from_environment()?;
//! let mail = serde_json::json!({"to": "ann@example.org"});
//! let call = NewCall::new("python#send_email").params(mail).queue("mail");
//! let call = client.enqueue(call).await?;
//! match client.result::<Sent>(&call.id, Some(Duration::from_secs(60))).await {
//!     Ok(sent) => println!("sent to {}", sent.sent_to),
//!     Err(ClientError::Failed(failed)) => println!("{failed}, attempt {}", failed.call.attempts),
//!     Err(other) => return Err(other),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Asks again where that is safe: every enqueue carries an idempotency key, so that a lost answer
//! makes no second call. Refuses to guess: what the server refuses is given back in its words.

mod call;
mod error;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use call::{Call, CallError, NewCall};
pub use error::{ClientError, FunctionFailed};

/// Tries of one request, and the pause before the second, doubled each time: a server that restarts
/// is back by then.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause that a server may ask for in between.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long one question for the end waits at the server; longer waits are several questions.
const EACH_WAIT: Duration = Duration::from_secs(20);
/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(40);

/// A server's address and a token of role `user`. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

/// Says where, and never with what.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.base.as_str()).finish()
    }
}

impl Client {
    /// A server by its address, such as `https://ci.example:7878`, without a token.
    pub fn new(server: &str) -> Result<Client, ClientError> {
        let wrong = || ClientError::Address(server.to_owned());
        let mut base = Url::parse(server).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong());
        }
        base.set_query(None);
        base.set_fragment(None);
        // A token is for the server that was named, and for nobody it points to.
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(ClientError::Http)?;
        Ok(Client {
            http,
            base,
            token: None,
        })
    }

    /// The server that `DELTA_SERVER` names, with the token in `DELTA_TOKEN`, or in the file that
    /// `DELTA_TOKEN_FILE` names.
    pub fn from_environment() -> Result<Client, ClientError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let client = Client::new(&variable("DELTA_SERVER").ok_or(ClientError::NoServer)?)?;
        match (variable("DELTA_TOKEN"), variable("DELTA_TOKEN_FILE")) {
            (Some(token), _) => Ok(client.token(&token)),
            (None, Some(path)) => client.token_file(path),
            (None, None) => Ok(client),
        }
    }

    #[must_use]
    pub fn token(mut self, token: &str) -> Client {
        self.token = Some(token.trim().to_owned()).filter(|it| !it.is_empty());
        self
    }

    /// The token in this file.
    pub fn token_file(self, path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let path = path.as_ref();
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|error| ClientError::TokenFile(path.to_owned(), error))?;
        Ok(self.token(&text))
    }

    /// Calls a function in the background. Answered once it is on the server's disk.
    pub async fn enqueue(&self, call: impl Into<NewCall>) -> Result<Call, ClientError> {
        self.enqueue_once(&fresh_key(), call).await
    }

    /// Calls a function in the background under a key of the caller's own: however often it is
    /// said, it is one call. Another call under that key is refused.
    pub async fn enqueue_once(
        &self,
        key: &str,
        call: impl Into<NewCall>,
    ) -> Result<Call, ClientError> {
        let body = call.into().body()?;
        let text = self.post(&["functions"], &body, Some(key)).await?;
        read(&text)
    }

    /// Up to a thousand calls in one commit; the calls in the same order.
    pub async fn enqueue_many(
        &self,
        calls: impl IntoIterator<Item = NewCall>,
    ) -> Result<Vec<Call>, ClientError> {
        self.enqueue_many_once(&fresh_key(), calls).await
    }

    /// Up to a thousand calls in one commit, under a key of the caller's own: however often it is
    /// said, they are made once.
    pub async fn enqueue_many_once(
        &self,
        key: &str,
        calls: impl IntoIterator<Item = NewCall>,
    ) -> Result<Vec<Call>, ClientError> {
        #[derive(Serialize)]
        struct Several {
            functions: Vec<Box<RawValue>>,
        }
        #[derive(Deserialize)]
        struct Made {
            functions: Vec<Call>,
        }
        let functions = calls
            .into_iter()
            .map(NewCall::body)
            .collect::<Result<_, ClientError>>()?;
        let body = Several { functions };
        let text = self.post(&["functions"], &body, Some(key)).await?;
        Ok(read::<Made>(&text)?.functions)
    }

    /// A call as it stands now.
    pub async fn get(&self, id: &str) -> Result<Call, ClientError> {
        let url = self.url(&["functions", id])?;
        read(&self.ask(Method::GET, url, None, None).await?)
    }

    /// The call once it has ended, however it did; [`ClientError::NotEnded`] when it has not by
    /// then.
    pub async fn wait(&self, id: &str, timeout: Option<Duration>) -> Result<Call, ClientError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map_or(EACH_WAIT, |left| left.min(EACH_WAIT));
            let mut url = self.url(&["functions", id])?;
            url.set_query(Some(&format!("wait={:.3}", left.as_secs_f64())));
            let call: Call = read(&self.ask(Method::GET, url, None, None).await?)?;
            if call.has_ended() {
                return Ok(call);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(ClientError::NotEnded(Box::new(call)));
            }
        }
    }

    /// What the handler returned; [`ClientError::Failed`] when it ended otherwise.
    pub async fn result<T: DeserializeOwned>(
        &self,
        id: &str,
        timeout: Option<Duration>,
    ) -> Result<T, ClientError> {
        self.wait(id, timeout).await?.into_result()
    }

    /// Asks it to stop. One that has ended stays as it is.
    pub async fn cancel(&self, id: &str, reason: Option<&str>) -> Result<(), ClientError> {
        #[derive(Serialize)]
        struct Cancel<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            reason: Option<&'a str>,
        }
        let path = ["runs", id, "cancel"];
        self.post(&path, &Cancel { reason }, None).await.map(drop)
    }

    fn url(&self, path: &[&str]) -> Result<Url, ClientError> {
        let mut url = self.base.clone();
        let wrong = || ClientError::Address(self.base.to_string());
        let mut segments = url.path_segments_mut().map_err(|()| wrong())?;
        segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        drop(segments);
        Ok(url)
    }

    async fn post(
        &self,
        path: &[&str],
        body: &impl Serialize,
        key: Option<&str>,
    ) -> Result<String, ClientError> {
        let body = serde_json::to_string(body).map_err(ClientError::Params)?;
        self.ask(Method::POST, self.url(path)?, Some(body), key)
            .await
    }

    /// Asks until somebody answers, or the tries are over.
    async fn ask(
        &self,
        method: Method,
        url: Url,
        body: Option<String>,
        key: Option<&str>,
    ) -> Result<String, ClientError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut request = self.http.request(method.clone(), url.clone());
            request = request.header("Content-Type", "application/json");
            if let Some(token) = &self.token {
                request = request.bearer_auth(token);
            }
            if let Some(key) = key {
                request = request.header("Idempotency-Key", key);
            }
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            let (error, asked) = match once(request).await {
                Ok(text) => return Ok(text),
                Err((error, _)) if tries == TRIES || !error.may_pass() => return Err(error),
                Err(again) => again,
            };
            drop(error);
            let pause = PAUSE * 2_u32.pow(tries - 1);
            tokio::time::sleep(pause.max(asked).min(LONGEST_PAUSE)).await;
        }
    }
}

/// One try; with an error, how long the server asks to wait.
async fn once(request: reqwest::RequestBuilder) -> Result<String, (ClientError, Duration)> {
    let away = |error: reqwest::Error| (ClientError::Unreachable(error), Duration::ZERO);
    let response = request.send().await.map_err(away)?;
    let status = response.status();
    if status.is_success() {
        return response.text().await.map_err(away);
    }
    let asked = asked_pause(&response);
    let text = response.text().await.unwrap_or_default();
    Err((refused(status, &text), asked))
}

fn asked_pause(response: &Response) -> Duration {
    let asked = response.headers().get("Retry-After");
    let seconds = asked.and_then(|asked| asked.to_str().ok()?.trim().parse().ok());
    seconds.map_or(Duration::ZERO, Duration::from_secs)
}

fn refused(status: StatusCode, text: &str) -> ClientError {
    #[derive(Deserialize)]
    struct Said {
        message: String,
        code: Option<String>,
        field: Option<String>,
    }
    let said: Option<Said> = serde_json::from_str(text).ok();
    let said = said.unwrap_or_else(|| Said {
        message: format!("the server answered {}", status.as_u16()),
        code: None,
        field: None,
    });
    ClientError::Refused {
        status: status.as_u16(),
        message: said.message,
        code: said.code,
        field: said.field,
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, ClientError> {
    serde_json::from_str(text).map_err(ClientError::Answer)
}

fn fresh_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_part_of_an_address_whatever_it_holds() {
        let client = Client::new("http://127.0.0.1:1/base/").expect("an address");
        let url = client
            .url(&["functions", "../tokens?x#y"])
            .expect("an address");
        let expected = "http://127.0.0.1:1/base/api/v1/functions/..%2Ftokens%3Fx%23y";
        assert_eq!(url.as_str(), expected);
    }

    #[test]
    fn an_address_that_is_none_is_refused_by_name() {
        for bad in ["", "ci.example", "ftp://ci.example", "mailto:a@b"] {
            let error = Client::new(bad).expect_err("no address").to_string();
            assert!(error.contains(bad), "{error}");
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let client = Client::new("http://127.0.0.1:1")
            .expect("an address")
            .token(" hidden\n");
        assert_eq!(client.token.as_deref(), Some("hidden"));
        assert!(!format!("{client:?}").contains("hidden"), "{client:?}");
    }
}
