//! Sockets: TCP with or without TLS, and the admin socket.
//!
//! Owns accepting, and the rule that nothing beyond loopback is served in the clear by accident
//! (D14). A connection that does not finish its handshake or its headers in time is closed, and so
//! is one that says nothing at all.

mod opening;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
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
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use self::opening::Opened;
use self::tls::Terminator;
use crate::identity::Principal;
use crate::identity::peer::{ClientTrust, Peer};
use crate::{Config, StartError};

/// Open connections of one server: parked runners hold one each.
const MAX_CONNECTIONS: usize = 60_000;
/// File descriptors that no connection gets: the store, logs and artifacts need some, and without
/// them nothing that comes over a connection could be done.
const OWN_FILES: u64 = 256;
/// How long a TLS handshake may take: a few round trips on a bad line.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long requests in flight have at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Pause after a failed accept: out of file descriptors is no reason to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that wait to be accepted: all agents of a large installation that come back in the
/// same moment (F49). The system may allow fewer.
const BACKLOG: u32 = 16_384;
/// Bytes of a request's head that are buffered.
const HEAD_BYTES: usize = 64 * 1024;

/// Requests at a time over one HTTP/2 connection: the parked slots of a large agent.
const MAX_STREAMS: u32 = 256;
/// Bytes of a request's headers over HTTP/2: a token and a handful of others, many times over.
const HEAD_LIST_BYTES: u32 = 16 * 1024;
/// Streams that a peer may take back before they were looked at: honest ones do not, and who does
/// floods us with work (T22, rapid reset).
const MAX_RESETS: usize = 32;
/// Streams that we end because of a peer's mistake, over the life of its connection: a proxy may
/// carry many peers for long.
const MAX_REFUSED: usize = 1024;
/// Bytes on their way to us: enough for a log over a long line, and for one connection not more
/// than a few such streams, however many it opens.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;
/// Bytes of one frame of HTTP/2: a heartbeat behind one on the same connection is not late.
const MAX_HTTP2_FRAME: u32 = 64 * 1024;
/// Bytes kept for a peer that does not read.
const SEND_BUFFER: usize = 256 * 1024;

/// How long the other end of a connection may be silent.
#[derive(Clone, Copy)]
struct Patience {
    /// A request's head may take this long, so that a slow sender holds nothing for long.
    head: Duration,
    /// How often the other end of an HTTP/2 connection is asked whether it is there, and how long
    /// it has to answer: a peer that vanished holds its place for less than a minute.
    ping_every: Duration,
    ping: Duration,
}

const PATIENCE: Patience = Patience {
    head: Duration::from_secs(15),
    ping_every: Duration::from_secs(20),
    ping: Duration::from_secs(20),
};

/// A TCP listener, checked and bound.
pub struct Tcp {
    listener: TcpListener,
    tls: Option<Arc<Terminator>>,
    pub addr: SocketAddr,
}

/// Binds, and refuses what would send credentials in the clear over a network.
pub async fn tcp(
    addr: SocketAddr,
    config: &Config,
    trust: &Arc<ClientTrust>,
) -> Result<Tcp, StartError> {
    if config.tls.is_none() && !addr.ip().is_loopback() && !config.behind_tls_proxy {
        return Err(StartError::InTheClear(addr));
    }
    let tls = config.tls.as_ref();
    let tls = tls.map(|files| Terminator::open(files, trust.clone()));
    let listener = bind(addr).map_err(|source| StartError::Bind { addr, source })?;
    let addr = listener
        .local_addr()
        .map_err(|source| StartError::Bind { addr, source })?;
    Ok(Tcp {
        tls: tls.transpose()?.map(Arc::new),
        listener,
        addr,
    })
}

/// As [`TcpListener::bind`], with room for more who come at once.
fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// The admin socket: whoever may open it is this server's own user, or root.
pub struct Admin {
    listener: UnixListener,
    pub path: PathBuf,
    /// What whoever comes through it is called.
    name: &'static str,
}

/// Binds the admin socket. The caller holds the folder's lock, so a socket that is there is left
/// over from a server that is gone.
pub fn admin(data: &Path, name: &'static str) -> Result<Admin, StartError> {
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
    Ok(Admin {
        listener,
        path,
        name,
    })
}

/// Lifts the limit on open files of this process as far as it may; many systems begin low.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

/// How many connections fit a limit on open files; `None` is no limit.
fn connections(open_files: Option<u64>) -> usize {
    let Some(limit) = open_files else {
        return MAX_CONNECTIONS;
    };
    // Where the limit is very low both must make do with half.
    let left = limit.saturating_sub(OWN_FILES).max(limit / 2);
    usize::try_from(left).map_or(MAX_CONNECTIONS, |left| left.min(MAX_CONNECTIONS))
}

/// What every accept loop serves with.
struct Serving {
    router: Router,
    stop: CancellationToken,
    room: Arc<Semaphore>,
    graceful: GracefulShutdown,
    patience: Patience,
}

/// Serves until told to stop, then gives requests in flight their time.
pub async fn serve(router: Router, tcp: Option<Tcp>, admin: Admin, stop: CancellationToken) {
    let most = connections(getrlimit(Resource::Nofile).current);
    if most < MAX_CONNECTIONS {
        tracing::info!(
            most,
            "the limit on open files bounds how many connections are served"
        );
    }
    let serving = Serving {
        router,
        stop,
        room: Arc::new(Semaphore::new(most)),
        graceful: GracefulShutdown::new(),
        patience: PATIENCE,
    };
    let remote = async {
        if let Some(tcp) = tcp {
            if let Some(tls) = tcp.tls.clone() {
                tokio::spawn(tls.keep_fresh(serving.stop.clone()));
            }
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
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Messages are small and answered at once: waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let Some(mut connection) = serving.connection(None) else {
            continue;
        };
        connection.address = Some(PeerAddress(address.ip()));
        match tcp.tls.as_ref().map(|tls| tls.acceptor()) {
            Some(tls) => drop(tokio::spawn(connection.serve_tls(tls, stream))),
            None => drop(tokio::spawn(connection.serve(stream))),
        }
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
        let who = Principal::of_socket(admin.name);
        if let Some(connection) = serving.connection(Some(who)) {
            tokio::spawn(connection.serve(stream));
        }
    }
}

/// Where a connection comes from: the machine at its other end, or a proxy before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// One connection to be served, and who is at its other end if the socket itself says so.
struct Connection {
    router: Router,
    who: Option<Principal>,
    /// Whom a certificate names.
    peer: Option<Arc<Peer>>,
    address: Option<PeerAddress>,
    watcher: Watcher,
    stop: CancellationToken,
    patience: Patience,
    room: Option<OwnedSemaphorePermit>,
}

impl Serving {
    fn connection(&self, who: Option<Principal>) -> Option<Connection> {
        // The administrator gets in when the network has taken every place.
        let room = match who {
            Some(_) => None,
            None => Some(self.room.clone().try_acquire_owned()),
        };
        let Ok(room) = room.transpose() else {
            tracing::warn!("too many connections");
            return None;
        };
        Some(Connection {
            router: self.router.clone(),
            who,
            peer: None,
            address: None,
            watcher: self.graceful.watcher(),
            stop: self.stop.clone(),
            patience: self.patience,
            room,
        })
    }
}

impl Connection {
    /// Waits for something no request depends on yet; `None` when the server stops first.
    async fn unless_stopped<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = waiting => Some(done),
            () = self.stop.cancelled() => None,
        }
    }

    async fn serve_tls(mut self, tls: TlsAcceptor, stream: TcpStream) {
        // Boxed, as all that is there for the beginning of a connection only: an idle one is
        // held for hours, and there are thousands.
        let handshake = Box::pin(tokio::time::timeout(HANDSHAKE_TIME, tls.accept(stream)));
        match self.unless_stopped(handshake).await {
            Some(Ok(Ok(stream))) => {
                let shown = stream.get_ref().1.peer_certificates();
                // The handshake has refused what cannot be read.
                self.peer = shown.and_then(|chain| Peer::of(chain).ok()).map(Arc::new);
                Box::pin(self.serve(stream)).await;
            }
            Some(Ok(Err(error))) => tracing::debug!(%error, "a TLS handshake failed"),
            Some(Err(_)) => tracing::debug!("a TLS handshake took too long"),
            None => {}
        }
    }

    async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // What tells HTTP/1 from HTTP/2 has no timer of its own.
        let opened = tokio::time::timeout(self.patience.head, opening::read(stream));
        let opened = Box::pin(opened);
        let stream = match self.unless_stopped(opened).await {
            Some(Ok(Ok(stream))) => stream,
            Some(Ok(Err(error))) => return tracing::debug!(%error, "a connection said nothing"),
            Some(Err(_)) => return tracing::debug!("a connection said nothing for too long"),
            None => return,
        };
        self.speak(stream).await;
    }

    /// Speaks HTTP to the end. Boxed, and made outside of any async function, so that a connection
    /// takes the memory of what it is now and of nothing that it was before.
    fn speak<S>(self, stream: Opened<S>) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, who, peer, address) = (self.router, self.who, self.peer, self.address);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            if let Some(who) = &who {
                request.extensions_mut().insert(who.clone());
            }
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
            }
            if let Some(address) = address {
                request.extensions_mut().insert(address);
            }
            router.clone().call(request)
        });
        let builder = protocols(self.patience);
        let served = builder.serve_connection(TokioIo::new(stream), service);
        let served = Box::pin(self.watcher.watch(served.into_owned()));
        let room = self.room;
        async move {
            if let Err(error) = served.await {
                tracing::debug!(error, "a connection ended early");
            }
            drop(room);
        }
    }
}

/// HTTP/1 and HTTP/2, with their limits.
fn protocols(patience: Patience) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(patience.ping_every)
        .keep_alive_timeout(patience.ping)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(HEAD_LIST_BYTES)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_REFUSED)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_HTTP2_FRAME)
        .max_send_buf_size(SEND_BUFFER);
    builder
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// Little enough to wait for, and more than a loaded machine needs to go on.
    const SHORT: Patience = Patience {
        head: Duration::from_millis(700),
        ping_every: Duration::from_millis(700),
        ping: Duration::from_millis(700),
    };
    /// What would never end.
    const LONG: Duration = Duration::from_secs(20);

    /// The other end of a connection, and what serves it.
    fn connect(patience: Patience) -> (DuplexStream, Serving, tokio::task::JoinHandle<()>) {
        let serving = Serving {
            router: Router::new(),
            stop: CancellationToken::new(),
            room: Arc::new(Semaphore::new(1)),
            graceful: GracefulShutdown::new(),
            patience,
        };
        let (client, server) = tokio::io::duplex(64 * 1024);
        let served = tokio::spawn(serving.connection(None).unwrap().serve(server));
        (client, serving, served)
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_closed() {
        // The last is an HTTP/2 client that is gone: it answers no ping.
        for said in [
            "",
            "G",
            "PRI * HTTP/2",
            "GET / HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        ] {
            let (mut client, _serving, _) = connect(SHORT);
            client.write_all(said.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let closed = tokio::time::timeout(LONG, client.read_to_end(&mut answer));
            assert!(closed.await.is_ok(), "{said:?}");
        }
    }

    #[tokio::test]
    async fn a_request_that_comes_in_bits_is_answered() {
        for (bits, begins) in [
            (
                ["P", "U", "T / HTTP/1.1\r\nhost: x\r\n\r\n"],
                "HTTP/1.1 404",
            ),
            (
                [
                    "PRI * HT",
                    "TP/2.0\r\n\r\nSM\r\n\r\n\0",
                    "\0\0\x04\0\0\0\0\0",
                ],
                // SETTINGS, whatever they are.
                "\0\0",
            ),
        ] {
            let (mut client, _serving, _) = connect(PATIENCE);
            for bit in bits {
                client.write_all(bit.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut answer = vec![0; begins.len()];
            let read = tokio::time::timeout(LONG, client.read_exact(&mut answer));
            read.await.unwrap().unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), begins);
        }
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_connection_that_says_nothing() {
        let endless = Patience {
            head: LONG * 2,
            ..PATIENCE
        };
        let (_client, serving, served) = connect(endless);
        serving.stop.cancel();
        tokio::time::timeout(LONG, served).await.unwrap().unwrap();
    }

    #[test]
    fn connections_leave_some_files_to_the_server_itself() {
        for (open_files, most) in [
            (None, MAX_CONNECTIONS),
            (Some(1_048_576), MAX_CONNECTIONS),
            (Some(1024), 768),
            (Some(64), 32),
        ] {
            assert_eq!(connections(open_files), most, "{open_files:?}");
        }
    }

    #[test]
    fn the_limit_on_open_files_is_lifted() {
        raise_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
