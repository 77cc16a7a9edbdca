//! The shim's end of its socket: agents come and go, the shim does not care. Nothing here waits for
//! a peer: one that does not read is dropped, and comes back to a fresh state.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tokio::net::{UnixListener, UnixStream};

use super::order::{Command, Event, MAX_LINE_BYTES};

/// Agents connected at a time: the one at work, one that takes over, and somebody looking.
const MAX_PEERS: usize = 4;

/// Bytes waiting for one peer: hundreds of events. Growth of the spool is told by its newest value
/// only, so it never piles up.
const MAX_WAITING_BYTES: usize = 64 * 1024;

/// What came in.
#[derive(Debug)]
pub(super) enum Heard {
    /// Somebody with the key; send it the state.
    Hello(usize),
    Command(Command),
    /// The last agent went away.
    Alone,
}

pub(super) struct Control {
    listener: UnixListener,
    key: String,
    peers: Vec<Peer>,
    next_id: usize,
}

struct Peer {
    id: usize,
    stream: UnixStream,
    knows_key: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The newest size not yet told.
    grew: Option<u64>,
    gone: bool,
}

impl Control {
    pub fn new(listener: std::os::unix::net::UnixListener, key: String) -> io::Result<Control> {
        listener.set_nonblocking(true)?;
        Ok(Control {
            listener: UnixListener::from_std(listener)?,
            key,
            peers: Vec::new(),
            next_id: 0,
        })
    }

    /// The next thing anybody says. May be dropped midway without losing anything.
    pub async fn hear(&mut self) -> Heard {
        poll_fn(|cx| self.poll(cx)).await
    }

    pub fn send(&mut self, event: &Event) {
        for peer in self.peers.iter_mut().filter(|peer| peer.knows_key) {
            peer.send(event);
        }
    }

    pub fn send_to(&mut self, id: usize, event: &Event) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == id) {
            peer.send(event);
        }
    }

    /// Tells how many bytes the spool has, to each peer as often as it can take it.
    pub fn grew(&mut self, bytes: u64) {
        for peer in self.peers.iter_mut().filter(|peer| peer.knows_key) {
            peer.grew = Some(bytes);
            peer.flush();
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        while let Poll::Ready(accepted) = self.listener.poll_accept(cx) {
            match accepted {
                Ok((stream, _)) if self.peers.len() < MAX_PEERS => {
                    self.next_id += 1;
                    self.peers.push(Peer::new(self.next_id, stream));
                }
                Ok(_) => {}
                // A want of descriptors passes; the loop comes back with the next event.
                Err(_) => break,
            }
        }
        for peer in &mut self.peers {
            peer.poll_write(cx);
            if let Some(heard) = peer.poll_line(cx, &self.key) {
                return Poll::Ready(heard);
            }
        }
        let were_there = self.peers.iter().any(|peer| peer.knows_key);
        self.peers.retain(|peer| !peer.gone);
        if were_there && !self.peers.iter().any(|peer| peer.knows_key) {
            return Poll::Ready(Heard::Alone);
        }
        Poll::Pending
    }
}

impl Peer {
    fn new(id: usize, stream: UnixStream) -> Peer {
        Peer {
            id,
            stream,
            knows_key: false,
            inbox: Vec::new(),
            outbox: Vec::new(),
            grew: None,
            gone: false,
        }
    }

    fn send(&mut self, event: &Event) {
        // In order: what the spool had before this event is told before it.
        self.take_growth();
        self.queue(event);
        self.flush();
    }

    fn queue(&mut self, event: &Event) {
        let Ok(line) = serde_json::to_vec(event) else {
            return;
        };
        self.outbox.extend_from_slice(&line);
        self.outbox.push(b'\n');
        if self.outbox.len() > MAX_WAITING_BYTES {
            self.gone = true;
        }
    }

    fn take_growth(&mut self) {
        if let Some(bytes) = self.grew.take() {
            self.queue(&Event::Grew(bytes));
        }
    }

    /// Writes what can be written now.
    fn flush(&mut self) {
        loop {
            if self.outbox.is_empty() {
                self.take_growth();
            }
            if self.outbox.is_empty() || self.gone {
                return;
            }
            match self.stream.try_write(&self.outbox) {
                Ok(count) => {
                    self.outbox.drain(..count);
                }
                Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.gone = true,
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) {
        while !self.outbox.is_empty() && !self.gone {
            match self.stream.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => self.flush(),
                Poll::Ready(Err(_)) => self.gone = true,
                Poll::Pending => return,
            }
        }
    }

    /// The next whole line as something heard.
    fn poll_line(&mut self, cx: &mut Context<'_>, key: &str) -> Option<Heard> {
        loop {
            if self.gone {
                return None;
            }
            if let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).collect();
                if let Some(heard) = self.understand(&line, key) {
                    return Some(heard);
                }
                continue;
            }
            if self.inbox.len() > MAX_LINE_BYTES {
                self.gone = true;
                return None;
            }
            match self.stream.poll_read_ready(cx) {
                Poll::Ready(Ok(())) => self.read(),
                Poll::Ready(Err(_)) => self.gone = true,
                Poll::Pending => return None,
            }
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        match self.stream.try_read(&mut buffer) {
            Ok(0) => self.gone = true,
            Ok(count) => self.inbox.extend_from_slice(&buffer[..count]),
            Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.gone = true,
        }
    }

    fn understand(&mut self, line: &[u8], key: &str) -> Option<Heard> {
        match serde_json::from_slice(line) {
            Ok(Command::Hello { key: said }) if said == key => {
                self.knows_key = true;
                Some(Heard::Hello(self.id))
            }
            Ok(Command::Unknown(_)) => None,
            Ok(command) if self.knows_key => Some(Heard::Command(command)),
            // Without the key nothing is answered, not even why.
            _ => {
                self.gone = true;
                None
            }
        }
    }
}
