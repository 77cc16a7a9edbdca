//! A client of the people's API: over TCP with a token, or over the admin socket of a data folder.
//!
//! It reads, asks and explains refusals. It never decides what a state means.

pub mod connect;
pub mod find;
mod refusal;
pub mod sse;

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use connect::{Target, reading, with};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Longer than any answer of the API takes; streams and logs are read piece by piece.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// An open way to one server.
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    /// For messages: the URL or the folder the user named.
    place: String,
    /// The folder, where no server runs on it: what is asked for there is kept, and waits.
    alone: Option<String>,
}

impl Client {
    /// Says of work that was just made that nobody executes it, and what to type.
    pub fn say_who_executes(&self, terminal: &Terminal) {
        if let Some(folder) = &self.alone {
            let next = format!("delta-ci up --data {folder}");
            let line = format!("no server runs on {folder}, so nobody executes it; next: {next}");
            terminal.say(&line);
        }
    }

    /// The text of an answer, as the server wrote it.
    pub async fn get_text(&self, path: &str) -> Result<String, Failure> {
        let request = self.request(Method::GET, path).timeout(CALL_TIMEOUT);
        self.text(request).await
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read(&self.get_text(path).await?)
    }

    pub async fn post_text(&self, path: &str, body: &impl Serialize) -> Result<String, Failure> {
        let request = self.request(Method::POST, path).timeout(CALL_TIMEOUT);
        self.text(request.json(body)).await
    }

    pub async fn put_text(&self, path: &str, body: &impl Serialize) -> Result<String, Failure> {
        let request = self.request(Method::PUT, path).timeout(CALL_TIMEOUT);
        self.text(request.json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<String, Failure> {
        let request = self.request(Method::DELETE, path).timeout(CALL_TIMEOUT);
        self.text(request).await
    }

    /// A successful answer whose body is still to be read.
    pub async fn open(&self, path: &str, headers: &[(&str, String)]) -> Result<Response, Failure> {
        let mut request = self.request(Method::GET, path);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        self.send(request).await
    }

    pub fn away(&self, error: &reqwest::Error) -> Failure {
        refusal::unreachable(&self.place, error)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn text(&self, request: RequestBuilder) -> Result<String, Failure> {
        let response = self.send(request).await?;
        response.text().await.map_err(|error| self.away(&error))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.away(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let path = response.url().path().to_owned();
        let body = response.bytes().await.unwrap_or_default();
        Err(refusal::explain(
            status.as_u16(),
            &path,
            &body,
            self.token.is_some(),
        ))
    }
}

/// Reads an answer. One that cannot be read is a newer or a foreign server.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    understood(serde_json::from_str(text))
}

/// An answer that was read in another way; one that cannot be is a newer or a foreign server.
pub fn understood<T>(read: Result<T, serde_json::Error>) -> Result<T, Failure> {
    read.map_err(|error| {
        Failure::new(Exit::Internal, "the server's answer cannot be understood")
            .because(error)
            .next("compare `delta-ci --version` here and on the server")
    })
}

/// A value of a query.
pub fn query_value(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
