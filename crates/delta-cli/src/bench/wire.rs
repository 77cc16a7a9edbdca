//! One HTTP/1.1 connection that is kept open, with as little between the measurement and the socket
//! as possible: bodies are texts, answers are bytes.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A connection of one slot or one submitter.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    credential: HeaderValue,
}

/// A status and what came with it.
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Connection {
    pub async fn open(server: SocketAddr, token: &str) -> Result<Connection> {
        let stream = TcpStream::connect(server)
            .await
            .context("connecting to the server")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends when the sender is dropped; an error shows at the next request.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut credential = HeaderValue::from_str(&format!("Bearer {token}"))?;
        credential.set_sensitive(true);
        Ok(Connection {
            sender,
            host: HeaderValue::from_str(&server.to_string())?,
            credential,
        })
    }

    pub async fn post(&mut self, path: &'static str, body: String) -> Result<Answer> {
        self.send(Method::POST, Uri::from_static(path), body).await
    }

    pub async fn get(&mut self, path: &'static str) -> Result<Answer> {
        self.send(Method::GET, Uri::from_static(path), String::new())
            .await
    }

    async fn send(&mut self, method: Method, uri: Uri, body: String) -> Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, &self.host)
            .header(AUTHORIZATION, &self.credential)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, body })
    }
}

impl Answer {
    /// Fails with what the server said, unless the status is the expected one.
    pub fn expect(self, status: u16, doing: &str) -> Result<Bytes> {
        if self.status != status {
            let said = crate::clean::text(&String::from_utf8_lossy(&self.body));
            bail!(
                "{doing}: status {} instead of {status}: {said}",
                self.status
            );
        }
        Ok(self.body)
    }
}
