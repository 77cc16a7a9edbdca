//! Making a connection to the server: an address, a socket, TLS where the address says so.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::Uri;

use crate::tls::{TlsError, TlsFiles};

/// How long a connection may take to be made, TLS included (EP-47).
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    uri: Uri,
    host: String,
    port: u16,
    tls: bool,
}

/// Why a text is not an address of a server.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("`{0}` is not the address of a server; write http://HOST:PORT or https://HOST")]
    Unreadable(String),
    #[error(
        "http://{0} would carry the credential in the clear; write https://, or use a server on \
         this machine"
    )]
    InTheClear(String),
}

impl Address {
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let bad = || AddressError::Unreadable(text.chars().take(200).collect());
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad());
        }
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(bad());
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Address {
            host,
            port,
            tls,
            uri,
        })
    }

    /// Refuses what would send a credential over a network in the clear (EP-2).
    pub fn checked(self) -> Result<Address, AddressError> {
        if self.tls || self.is_loopback() {
            Ok(self)
        } else {
            Err(AddressError::InTheClear(self.host))
        }
    }

    pub fn uri(&self) -> Uri {
        self.uri.clone()
    }

    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("no connection to {host}:{port}: {source}")]
    Connect {
        host: String,
        port: u16,
        source: io::Error,
    },
    #[error("no TLS with {host}: {source}; check --ca-cert and the server's certificate")]
    Handshake { host: String, source: io::Error },
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] TlsError),
    #[error("`{0}` is no name that a certificate can have")]
    Name(String),
    #[error("no connection to {host}:{port} within {} s", CONNECT_TIME.as_secs())]
    TooSlow { host: String, port: u16 },
}

impl DialError {
    /// Somebody has to look at certificates (EP-34).
    pub fn is_tls(&self) -> bool {
        use DialError::{Connect, Handshake, Name, Tls, TooSlow};
        match self {
            Handshake { .. } | Tls(_) | Name(_) => true,
            Connect { .. } | TooSlow { .. } => false,
        }
    }
}

pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

pub type DialledStream = Pin<Box<dyn ByteStream>>;

/// One try at a connection.
pub async fn dial(address: &Address, tls: &TlsFiles) -> Result<DialledStream, DialError> {
    let dialed = tokio::time::timeout(CONNECT_TIME, connect(address, tls)).await;
    dialed.unwrap_or_else(|_| {
        Err(DialError::TooSlow {
            host: address.host.clone(),
            port: address.port,
        })
    })
}

async fn connect(address: &Address, tls: &TlsFiles) -> Result<DialledStream, DialError> {
    let (host, port) = (address.host.as_str(), address.port);
    let stream = TcpStream::connect((host, port)).await;
    let stream = stream.map_err(|source| DialError::Connect {
        host: host.to_owned(),
        port,
        source,
    })?;
    // Messages are small and waited for.
    let _ = stream.set_nodelay(true);
    if !address.tls {
        return Ok(Box::pin(stream));
    }
    let config = tls.config(&[b"h2"])?;
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| DialError::Name(host.to_owned()))?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await;
    let stream = stream.map_err(|source| DialError::Handshake {
        host: host.to_owned(),
        source,
    })?;
    Ok(Box::pin(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_ten_seconds_to_be_made() {
        // EP-47
        assert_eq!(CONNECT_TIME, Duration::from_secs(10));
    }

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_path() {
        for (good, host, port) in [
            ("http://127.0.0.1:7878", "127.0.0.1", 7878),
            ("https://ci.example/delta/", "ci.example", 443),
            ("http://[::1]:1/", "::1", 1),
        ] {
            let address = Address::parse(good).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port));
        }
        for bad in [
            "ci.example",
            "ftp://x",
            "http://user:secret@x",
            "http://x/?token=y",
            "",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_credential_never_crosses_a_network_in_the_clear() {
        // EP-2
        for (text, good) in [
            ("http://127.0.0.1:1", true),
            ("http://localhost:1", true),
            ("https://ci.example", true),
            ("http://ci.example", false),
            ("http://10.0.0.1:80", false),
        ] {
            assert_eq!(
                Address::parse(text).unwrap().checked().is_ok(),
                good,
                "{text}"
            );
        }
    }
}
