//! The listening side of a proxy: takes connections, refuses them, cuts them.
//!
//! Owns the thread and the runtime of a proxy. Knows nothing of what is done on a connection.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::port::free_port;
use crate::wait::eventually;

/// The proxy's own thread does these things at once; more means that it is stuck.
const OBEY_DEADLINE: Duration = Duration::from_secs(10);

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Both sides were done.
    Closed,
    /// Cut on purpose, or broken: both sides get a reset.
    Reset,
}

/// What the owner wants of the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Open,
    Shut,
    Gone,
}

#[derive(Debug)]
pub(super) struct Door {
    addr: SocketAddr,
    wanted: watch::Sender<Wanted>,
    cuts: watch::Sender<u64>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    listening: watch::Sender<bool>,
    live: Mutex<BTreeSet<u64>>,
}

impl Door {
    /// Listens, and calls `serve` with a number from 1 and the client's stream for each
    /// connection. What it returns decides how the client's side is closed.
    pub(super) fn open<S, F>(serve: S) -> Result<Self>
    where
        S: Fn(u64, TcpStream) -> F + Send + Sync + 'static,
        F: Future<Output = (End, TcpStream)> + Send + 'static,
    {
        // A port of our own: it is given up and taken again when connections are refused.
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = bind(addr)?;
        let (wanted, wishes) = watch::channel(Wanted::Open);
        let (cuts, cut) = watch::channel(0);
        let listening = watch::Sender::new(true);
        let state = Arc::new(State {
            listening,
            live: Mutex::default(),
        });
        let keeper = Keeper {
            addr,
            wishes,
            cut,
            state: state.clone(),
            serve: Arc::new(serve),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name("fault-proxy".into())
            .spawn(move || runtime.block_on(keeper.keep(listener)))?;
        Ok(Self {
            addr,
            wanted,
            cuts,
            state,
            thread: Some(thread),
        })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// New connections are refused by the kernel once this has returned.
    pub(super) fn shut(&self) {
        self.wanted.send_replace(Wanted::Shut);
        self.until_listening_is(false);
    }

    pub(super) fn open_again(&self) {
        self.wanted.send_replace(Wanted::Open);
        self.until_listening_is(true);
    }

    /// Resets every connection there is; they are gone once this has returned.
    pub(super) fn cut_all(&self) -> usize {
        let before = self.state.live();
        self.cuts.send_modify(|cuts| *cuts += 1);
        eventually(OBEY_DEADLINE, "cut connections are gone", || {
            let left = self.state.live().intersection(&before).count();
            if left == 0 { Ok(()) } else { Err(left) }
        });
        before.len()
    }

    pub(super) fn live(&self) -> usize {
        self.state.live().len()
    }

    fn until_listening_is(&self, wanted: bool) {
        eventually(OBEY_DEADLINE, "the proxy follows", || {
            let listening = *self.state.listening.borrow();
            if listening == wanted {
                Ok(())
            } else {
                Err(listening)
            }
        });
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.wanted.send_replace(Wanted::Gone);
        if let Some(thread) = self.thread.take() {
            // A panic on that thread has been printed there; a drop adds no second one.
            let _ = thread.join();
        }
    }
}

impl State {
    fn live(&self) -> BTreeSet<u64> {
        self.live
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }

    fn enter(&self, number: u64) {
        self.live
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .insert(number);
    }

    fn leave(&self, number: u64) {
        self.live
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .remove(&number);
    }
}

/// The loop on the proxy's thread.
struct Keeper<S> {
    addr: SocketAddr,
    wishes: watch::Receiver<Wanted>,
    cut: watch::Receiver<u64>,
    state: Arc<State>,
    serve: Arc<S>,
}

impl<S, F> Keeper<S>
where
    S: Fn(u64, TcpStream) -> F + Send + Sync + 'static,
    F: Future<Output = (End, TcpStream)> + Send + 'static,
{
    async fn keep(mut self, listener: StdListener) {
        let mut listener = Some(into_tokio(listener));
        let mut number = 0;
        loop {
            let wanted = *self.wishes.borrow_and_update();
            match wanted {
                Wanted::Gone => return,
                Wanted::Shut => drop(listener.take()),
                Wanted::Open if listener.is_none() => {
                    let again = bind(self.addr).expect("the port is kept for this proxy");
                    listener = Some(into_tokio(again));
                }
                Wanted::Open => {}
            }
            self.state.listening.send_replace(listener.is_some());
            tokio::select! {
                _ = self.wishes.changed() => {}
                client = accept(&listener) => {
                    number += 1;
                    self.welcome(number, client);
                }
            }
        }
    }

    fn welcome(&self, number: u64, client: TcpStream) {
        // Small messages must not wait for each other: added delay is a fault we ask for.
        let _ = client.set_nodelay(true);
        let (state, serve, mut cut) = (self.state.clone(), self.serve.clone(), self.cut.clone());
        // In this order: a cut that counts this connection must also reach it.
        cut.mark_unchanged();
        self.state.enter(number);
        tokio::spawn(async move {
            // A cut drops the serving future, and with it both streams, which it has set to reset
            // on drop until they end well.
            tokio::select! {
                (end, client) = serve(number, client) => finish(end, client),
                _ = cut.changed() => {}
            }
            state.leave(number);
        });
    }
}

/// A stream that is dropped before this is reset, see [`reset_on_drop`].
fn finish(end: End, client: TcpStream) {
    if end == End::Closed {
        close_on_drop(&client);
    }
}

/// From now on, dropping the stream sends a reset and throws away what was not sent.
pub(super) fn reset_on_drop(stream: &TcpStream) {
    // Fails only on a socket that is gone already.
    let _ = stream.set_zero_linger();
}

pub(super) fn close_on_drop(stream: &TcpStream) {
    let socket = rustix::fd::AsFd::as_fd(stream);
    // Fails only on a socket that is gone already.
    let _ = rustix::net::sockopt::set_socket_linger(socket, None);
}

async fn accept(listener: &Option<TcpListener>) -> TcpStream {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        // An error is about one connection that went away before it was taken.
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

fn bind(addr: SocketAddr) -> Result<StdListener> {
    let listener = StdListener::bind(addr).with_context(|| format!("listening on {addr}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn into_tokio(listener: StdListener) -> TcpListener {
    TcpListener::from_std(listener).expect("called on the runtime, with a non-blocking socket")
}
