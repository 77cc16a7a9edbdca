//! Bytes to and from the server, over HTTP beside the stream: what is too large for a message, or
//! is answered to the one who asks. Every request carries the agent's credential, the lease it is
//! made under and which agent's process makes it, all in headers; a redirect is never followed, for
//! it would carry them away.

use std::io;
use std::time::Duration;

use delta_wire::agent::process_header::AGENT_HEADER;
use delta_wire::runner::LeaseToken;
use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder};

use crate::agent::ServerSettings;
use crate::connection::Process;
use crate::tls::{TlsError, TlsFiles};
use crate::token_source::TokenSource;

/// How long a connection may take to be made.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// How long a transfer may stand still: bytes may take as long as they need, silence may not.
const SILENCE: Duration = Duration::from_secs(60);

/// The header that proves the right to an attempt's things.
const LEASE_HEADER: &str = "delta-lease";

/// Why a request could not even be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerHttpError {
    #[error("the credential cannot be read: {0}")]
    Token(#[from] io::Error),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] TlsError),
    #[error("there is no way to speak HTTP: {0}")]
    Client(String),
}

/// Makes requests to one server.
#[derive(Clone, Debug)]
pub(crate) struct ServerHttp {
    base: String,
    loopback: bool,
    token: Option<TokenSource>,
    tls: TlsFiles,
    process: Process,
}

impl ServerHttp {
    pub fn new(server: &ServerSettings, process: Process) -> ServerHttp {
        ServerHttp {
            base: server
                .address
                .uri()
                .to_string()
                .trim_end_matches('/')
                .to_owned(),
            loopback: server.address.is_loopback(),
            token: server.token.clone(),
            tls: server.tls.clone(),
            process,
        }
    }

    /// A client with the certificates of this moment; one per part of the work is right.
    pub fn client(&self) -> Result<Requests, ServerHttpError> {
        self.build(Some(SILENCE))
    }

    /// A client for what takes long to send. The answer may be silent all that time; whoever sends
    /// sees whether its bytes move.
    pub fn sender(&self) -> Result<Requests, ServerHttpError> {
        self.build(None)
    }

    fn build(&self, silence: Option<Duration>) -> Result<Requests, ServerHttpError> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIME);
        if let Some(silence) = silence {
            builder = builder.read_timeout(silence);
        }
        if self.loopback {
            builder = builder.no_proxy();
        }
        if self.base.starts_with("https:") {
            builder = builder.tls_backend_preconfigured(self.tls.config(&[b"http/1.1"])?);
        }
        let client = builder.build();
        let client =
            client.map_err(|error| ServerHttpError::Client(error.without_url().to_string()))?;
        Ok(Requests {
            courier: self.clone(),
            client,
        })
    }
}

/// Requests over connections that are kept.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    courier: ServerHttp,
    client: reqwest::Client,
}

impl Requests {
    /// A request under a lease. `path` begins with a slash and holds no secret.
    pub fn make(
        &self,
        method: Method,
        path: &str,
        lease: &LeaseToken,
    ) -> Result<RequestBuilder, ServerHttpError> {
        let url = format!("{}{path}", self.courier.base);
        let mut request = self.client.request(method, url);
        if let Some(token) = &self.courier.token {
            request = request.bearer_auth(token.read()?.expose());
        }
        let shown = self.courier.process.shown().expose();
        if let Ok(mut shown) = HeaderValue::from_str(&shown) {
            shown.set_sensitive(true);
            request = request.header(AGENT_HEADER, shown);
        }
        Ok(request.header(LEASE_HEADER, lease.expose()))
    }
}
