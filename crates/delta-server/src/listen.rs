//! Sockets: TCP with or without TLS, and the admin socket.
//!
//! Owns accepting, and the rule that nothing beyond loopback is served in the clear by accident
//! (D14). A connection that does not finish its handshake or its headers in time is closed.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use crate::identity::Principal;
use crate::{StartError, Tls};

/// Open connections of one server: parked runners hold one each.
const MAX_CONNECTIONS: usize = 60_000;
/// How long a TLS handshake may take: a few round trips on a bad line.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a request's head may take, so that a slow sender holds nothing for long.
const HEADER_TIME: Duration = Duration::from_secs(15);
/// How long requests in flight have at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Pause after a failed accept: out of file descriptors is no reason to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a request's head that are buffered.
const HEAD_BYTES: usize = 64 * 1024;

/// A TCP listener, checked and bound.
pub struct Tcp {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    pub addr: SocketAddr,
}

/// Binds, and refuses what would send credentials in the clear over a network.
pub async fn tcp(
    addr: SocketAddr,
    tls: Option<&Tls>,
    behind_tls_proxy: bool,
) -> Result<Tcp, StartError> {
    if tls.is_none() && !addr.ip().is_loopback() && !behind_tls_proxy {
        return Err(StartError::InTheClear(addr));
    }
    let tls = tls.map(acceptor).transpose()?;
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|source| StartError::Bind { addr, source })?;
    let addr = listener
        .local_addr()
        .map_err(|source| StartError::Bind { addr, source })?;
    Ok(Tcp {
        listener,
        tls,
        addr,
    })
}

fn acceptor(tls: &Tls) -> Result<TlsAcceptor, StartError> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let bad = |path: &Path, why: String| StartError::Tls {
        path: path.to_owned(),
        why,
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&tls.cert)
        .map_err(|error| bad(&tls.cert, error.to_string()))?
        .collect();
    let certificates = certificates.map_err(|error| bad(&tls.cert, error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| bad(&tls.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&tls.cert, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| bad(&tls.cert, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The admin socket: whoever may open it is this server's own user, or root.
pub struct Admin {
    listener: UnixListener,
    pub path: PathBuf,
}

/// Binds the admin socket. The caller holds the folder's lock, so a socket that is there is left
/// over from a server that is gone.
pub fn admin(data: &Path) -> Result<Admin, StartError> {
    let path = data.join("admin.sock");
    let bad = |source: io::Error| StartError::Data {
        path: path.clone(),
        source,
    };
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(bad(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(bad)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(bad)?;
    Ok(Admin { listener, path })
}

/// What every accept loop serves with.
struct Serving {
    router: Router,
    stop: CancellationToken,
    room: Arc<Semaphore>,
    graceful: GracefulShutdown,
}

/// Serves until told to stop, then gives requests in flight their time.
pub async fn serve(router: Router, tcp: Option<Tcp>, admin: Admin, stop: CancellationToken) {
    let serving = Serving {
        router,
        stop,
        room: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        graceful: GracefulShutdown::new(),
    };
    let remote = async {
        if let Some(tcp) = tcp {
            accept_tcp(tcp, &serving).await;
        }
    };
    tokio::join!(remote, accept_admin(&admin, &serving));
    let _ = std::fs::remove_file(&admin.path);
    let _ = tokio::time::timeout(DRAIN_TIME, serving.graceful.shutdown()).await;
}

async fn accept_tcp(tcp: Tcp, serving: &Serving) {
    loop {
        let accepted = tokio::select! {
            accepted = tcp.listener.accept() => accepted,
            () = serving.stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Messages are small and answered at once: waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let Some(connection) = serving.connection(None) else {
            continue;
        };
        let tls = tcp.tls.clone();
        tokio::spawn(async move {
            let Some(tls) = tls else {
                return connection.serve(stream).await;
            };
            match tokio::time::timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                Ok(Ok(stream)) => connection.serve(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        });
    }
}

async fn accept_admin(admin: &Admin, serving: &Serving) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let accepted = tokio::select! {
            accepted = admin.listener.accept() => accepted,
            () = serving.stop.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let peer = stream.peer_cred().map(|peer| peer.uid());
        if !peer.is_ok_and(|uid| uid == own || uid == 0) {
            tracing::warn!("somebody else tried the admin socket");
            continue;
        }
        if let Some(connection) = serving.connection(Some(Principal::local_admin())) {
            tokio::spawn(connection.serve(stream));
        }
    }
}

/// One connection to be served, and who is at its other end if the socket itself says so.
struct Connection {
    router: Router,
    who: Option<Principal>,
    watcher: Watcher,
    _room: OwnedSemaphorePermit,
}

impl Serving {
    fn connection(&self, who: Option<Principal>) -> Option<Connection> {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::warn!("too many connections");
            return None;
        };
        Some(Connection {
            router: self.router.clone(),
            who,
            watcher: self.graceful.watcher(),
            _room: room,
        })
    }
}

impl Connection {
    async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, who) = (self.router, self.who);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            if let Some(who) = &who {
                request.extensions_mut().insert(who.clone());
            }
            router.clone().call(request)
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_buf_size(HEAD_BYTES);
        builder.http2().timer(TokioTimer::new());
        let served = builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = self.watcher.watch(served.into_owned()).await {
            tracing::debug!(error, "a connection ended early");
        }
    }
}
