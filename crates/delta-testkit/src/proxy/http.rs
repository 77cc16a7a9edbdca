//! The proxy that knows HTTP/1.1 requests and answers: the handle a test holds.
//!
//! A path is matched without its query; one that ends in `*` matches by its beginning. What is
//! asked for here happens once per call, to the first request that fits; what is left to chance
//! is drawn from the seed, see [`HttpChances`]. Plain HTTP only; an upgrade is not followed.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;

use super::door::Door;
use super::gate::Held;
use super::http_connection::{self, Shared};
use super::http_rules::{Fault, HttpChances, Rules};
use super::journal::Journal;

/// An HTTP proxy with faults.
#[derive(Debug)]
pub struct HttpProxy {
    door: Door,
    shared: Arc<Shared>,
}

impl HttpProxy {
    /// Listens on a loopback port and forwards to `target`, which need not be there yet.
    pub fn start(target: SocketAddr, seed: u64) -> Result<Self> {
        let rules = Rules::default();
        let shared = Arc::new(Shared {
            target,
            seed,
            rules,
            journal: Journal::new(seed),
        });
        let of_connections = shared.clone();
        let door = Door::open(move |number, client| {
            http_connection::serve(of_connections.clone(), number, client)
        })?;
        Ok(Self { door, shared })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.door.addr()
    }

    /// The beginning of every URL through this proxy.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// The request never reaches the server; its connection is reset.
    pub fn drop_request_once(&self, path: &str) {
        self.shared.rules.add(path, Fault::DropRequest);
    }

    /// The server answers the request; the answer is lost and the connection reset.
    pub fn drop_response_once(&self, path: &str) {
        self.shared.rules.add(path, Fault::DropResponse);
    }

    /// The request reaches the server twice at once; one answer is returned.
    pub fn duplicate_request(&self, path: &str) {
        self.repeat_request(path, 1);
    }

    /// The request reaches the server so many times more, all at once and each on a connection of
    /// its own. The original's answer is returned, after all have been answered.
    pub fn repeat_request(&self, path: &str, more: u32) {
        self.shared.rules.add(path, Fault::Repeat(more));
    }

    /// The request waits before the server until it is released, and is delivered then even when
    /// its client has given up: this is how a message comes late, or overtakes another.
    pub fn hold_request(&self, path: &str) -> Held {
        let (held, gate) = Held::new(format!("a request to {path} arrives"));
        self.shared.rules.add(path, Fault::HoldRequest(gate));
        held
    }

    /// The server has answered, the answer waits until it is released.
    pub fn hold_response(&self, path: &str) -> Held {
        let (held, gate) = Held::new(format!("the answer to {path} arrives"));
        self.shared.rules.add(path, Fault::HoldResponse(gate));
        held
    }

    /// Faults by chance from now on; `HttpChances::none()` ends them.
    pub fn chances(&self, chances: HttpChances) {
        self.shared.rules.set_chances(chances);
    }

    /// New connections are refused, as by a server that is down; those that exist stay.
    pub fn refuse_connections(&self) {
        self.door.shut();
        self.shared
            .journal
            .note("refuse", "new connections, from now on".into());
    }

    pub fn accept_connections(&self) {
        self.door.open_again();
    }

    /// Resets every connection now; returns how many there were.
    pub fn cut_all(&self) -> usize {
        let cut = self.door.cut_all();
        self.shared
            .journal
            .note("cut all", format!("{cut} connections"));
        cut
    }

    /// Ends all faults, but for messages that are held now; accepts connections again.
    pub fn heal(&self) {
        self.shared.rules.clear();
        self.door.open_again();
    }

    /// Connections there are now.
    pub fn connections(&self) -> usize {
        self.door.live()
    }

    /// What was asked for and has not met its request yet.
    pub fn waiting(&self) -> Vec<String> {
        self.shared.rules.waiting()
    }

    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.shared.journal.print_if_panicking("HTTP fault proxy");
    }
}
