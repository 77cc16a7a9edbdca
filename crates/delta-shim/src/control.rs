//! The shim's end of its socket: agents come and go, the shim does not care. Nothing here waits for
//! a peer: one that does not read is dropped, and comes back to a fresh state.
//!
//! Strangers come too: a job of the agent's own user can reach the socket. They cannot keep an
//! agent out: whoever does not show the key in time is dropped, and the oldest of them when there
//! are too many. Nor can they keep the shim busy: it lets them in a few at a time.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::order::{Command, Event, MAX_LINE_BYTES};

/// Agents connected at a time: the one at work, one that takes over, and somebody looking. The
/// newest is let in: an old one that hangs must not keep its successor out.
const MAX_AGENTS: usize = 4;

/// Connections at a time that have not shown the key. An agent shows it at once, so that it needs
/// no more than a moment among them.
const MAX_STRANGERS: usize = 64;

/// How long one may take to show the key: an agent does it in the same breath, on a machine that
/// may be busy.
const INTRODUCTION: Duration = Duration::from_secs(1);

/// Connections that are let in before there is a pause, and the pause: thousands in a second still
/// get their turn, and take a tenth of a processor at the most.
const MAX_AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);

/// Bytes waiting for one peer: hundreds of events. Growth of the spool is told by its newest value
/// only, so it never piles up.
const MAX_WAITING_BYTES: usize = 64 * 1024;

/// What came in.
#[derive(Debug)]
pub(crate) enum PeerMessage {
    /// Somebody with the key; send it the state.
    Hello(usize),
    Command(Command),
    /// The last agent went away.
    Alone,
}

pub(crate) struct Control {
    listener: UnixListener,
    key: String,
    /// In the order in which they came.
    peers: Vec<Peer>,
    next_id: usize,
    /// When the next stranger's time is over.
    introduction: Pin<Box<Sleep>>,
    /// Connections since the last pause, and the pause while it lasts.
    let_in: usize,
    pause: Option<Pin<Box<Sleep>>>,
}

struct Peer {
    id: usize,
    stream: UnixStream,
    knows_key: bool,
    came: Instant,
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
            introduction: Box::pin(sleep(INTRODUCTION)),
            let_in: 0,
            pause: None,
        })
    }

    /// The next thing anybody says. May be dropped midway without losing anything.
    pub async fn hear(&mut self) -> PeerMessage {
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

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<PeerMessage> {
        loop {
            // Those who are here are heard first: a key that lies in a socket is never thrown away
            // to make room.
            if let Some(heard) = self.poll_peers(cx) {
                return Poll::Ready(heard);
            }
            if !self.poll_accept(cx) {
                return Poll::Pending;
            }
        }
    }

    fn poll_peers(&mut self, cx: &mut Context<'_>) -> Option<PeerMessage> {
        let were_there = self.peers.iter().any(|peer| peer.knows_key);
        let mut heard = None;
        for peer in &mut self.peers {
            peer.poll_write(cx);
            heard = peer.poll_line(cx, &self.key);
            if heard.is_some() {
                break;
            }
        }
        if let Some(PeerMessage::Hello(_)) = heard {
            self.make_room(MAX_AGENTS, |peer| peer.knows_key);
        }
        if heard.is_some() {
            return heard;
        }
        self.poll_introductions(cx);
        self.peers.retain(|peer| !peer.gone);
        let alone = were_there && !self.peers.iter().any(|peer| peer.knows_key);
        alone.then_some(PeerMessage::Alone)
    }

    /// Drops whoever had time enough, and comes back when the next one's is over.
    fn poll_introductions(&mut self, cx: &mut Context<'_>) {
        loop {
            let now = Instant::now();
            let strangers = self.peers.iter_mut().filter(|peer| !peer.knows_key);
            let mut next: Option<Instant> = None;
            for peer in strangers.filter(|peer| !peer.gone) {
                let until = peer.came + INTRODUCTION;
                peer.gone = now >= until;
                if !peer.gone {
                    next = Some(next.map_or(until, |it| it.min(until)));
                }
            }
            let Some(next) = next else { return };
            self.introduction.as_mut().reset(next);
            if self.introduction.as_mut().poll(cx).is_pending() {
                return;
            }
        }
    }

    /// Lets in who waits outside. True when somebody is new here.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(cx).is_pending() {
                return false;
            }
            (self.pause, self.let_in) = (None, 0);
        }
        let before = self.let_in;
        while self.let_in < MAX_AT_ONCE {
            match self.listener.poll_accept(cx) {
                Poll::Pending => return self.let_in > before,
                Poll::Ready(Ok((stream, _))) => {
                    self.let_in += 1;
                    self.make_room(MAX_STRANGERS - 1, |peer| !peer.knows_key);
                    self.next_id += 1;
                    self.peers.push(Peer::new(self.next_id, stream));
                }
                // A want of descriptors passes.
                Poll::Ready(Err(_)) => break,
            }
        }
        self.pause = Some(Box::pin(sleep_until(Instant::now() + PAUSE)));
        // So that somebody wakes us when it is over, and those who are new are heard before.
        self.let_in > before || self.poll_accept(cx)
    }

    /// Drops the oldest of these until there are no more than that many.
    fn make_room(&mut self, most: usize, these: impl Fn(&Peer) -> bool) {
        let count = self.peers.iter().filter(|peer| these(peer)).count();
        let oldest = self.peers.iter_mut().filter(|peer| these(peer));
        for peer in oldest.take(count.saturating_sub(most)) {
            peer.gone = true;
        }
        self.peers.retain(|peer| !peer.gone);
    }
}

impl Peer {
    fn new(id: usize, stream: UnixStream) -> Peer {
        Peer {
            id,
            stream,
            knows_key: false,
            came: Instant::now(),
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
    fn poll_line(&mut self, cx: &mut Context<'_>, key: &str) -> Option<PeerMessage> {
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

    fn understand(&mut self, line: &[u8], key: &str) -> Option<PeerMessage> {
        match serde_json::from_slice(line) {
            Ok(Command::Hello { key: said }) if said == key => {
                self.knows_key = true;
                Some(PeerMessage::Hello(self.id))
            }
            Ok(Command::Unknown(_)) if self.knows_key => None,
            Ok(command) if self.knows_key => Some(PeerMessage::Command(command)),
            // Without the key nothing is answered, not even why.
            _ => {
                self.gone = true;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const KEY: &str = "the key";
    const PATIENCE: Duration = Duration::from_secs(60);

    /// The oldest stranger makes room, not the one who has just come and may be an agent: it comes
    /// once, and is let in however many were there before.
    #[tokio::test]
    async fn an_agent_that_comes_last_is_let_in_at_its_first_try() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        let listener = UnixListener::bind(&path).expect("a socket");
        let mut control = Control::new(listener, KEY.to_owned()).expect("a control");
        let come = || UnixStream::connect(&path).expect("a connection");
        for _ in 0..3 {
            let crowd: Vec<UnixStream> = (0..MAX_STRANGERS).map(|_| come()).collect();
            let mut agent = come();
            let hello = serde_json::json!({"hello": {"key": KEY}});
            writeln!(agent, "{hello}").expect("a line");
            let heard = tokio::time::timeout(PATIENCE, control.hear()).await;
            assert!(matches!(heard, Ok(PeerMessage::Hello(_))), "{heard:?}");
            drop((crowd, agent));
            let heard = tokio::time::timeout(PATIENCE, control.hear()).await;
            assert!(matches!(heard, Ok(PeerMessage::Alone)), "{heard:?}");
        }
    }
}
