//! Which fault meets which request. Decides only; `http_connection.rs` carries out.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::gate::Gate;
use crate::rng::Rng;

/// Faults by chance, drawn for each request whose path fits.
#[derive(Debug, Clone)]
pub struct HttpChances {
    /// The path they are for; `*` is all, `/api/*` a beginning.
    pub path: String,
    pub drop_request: f64,
    pub drop_response: f64,
    pub duplicate: f64,
    pub delay: f64,
    /// How long a delayed request waits.
    pub delay_range: Range<Duration>,
}

impl HttpChances {
    /// No fault at all: the start for `HttpChances { duplicate: 0.1, ..HttpChances::none() }`.
    pub fn none() -> Self {
        Self {
            path: "*".into(),
            drop_request: 0.0,
            drop_response: 0.0,
            duplicate: 0.0,
            delay: 0.0,
            delay_range: Duration::ZERO..Duration::ZERO,
        }
    }
}

/// One fault for one request.
#[derive(Debug)]
pub(super) enum Fault {
    DropRequest,
    DropResponse,
    Repeat(u32),
    HoldRequest(Arc<Gate>),
    HoldResponse(Arc<Gate>),
}

/// What is to be done with one request.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) delay: Option<Duration>,
    pub(super) hold_request: Option<Arc<Gate>>,
    pub(super) drop_request: bool,
    pub(super) repeat: u32,
    pub(super) hold_response: Option<Arc<Gate>>,
    pub(super) drop_response: bool,
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    waiting: Vec<(String, Fault)>,
    chances: Option<HttpChances>,
}

impl Rules {
    pub(super) fn add(&self, path: &str, fault: Fault) {
        self.lock().waiting.push((path.to_owned(), fault));
    }

    pub(super) fn set_chances(&self, chances: HttpChances) {
        self.lock().chances = Some(chances);
    }

    pub(super) fn clear(&self) {
        *self.lock() = Book::default();
    }

    pub(super) fn waiting(&self) -> Vec<String> {
        let name = |fault: &Fault| match fault {
            Fault::DropRequest => "drop the request",
            Fault::DropResponse => "drop the response",
            Fault::Repeat(_) => "repeat the request",
            Fault::HoldRequest(_) => "hold the request",
            Fault::HoldResponse(_) => "hold the response",
        };
        let book = self.lock();
        book.waiting
            .iter()
            .map(|(path, fault)| format!("{} {path}", name(fault)))
            .collect()
    }

    /// Takes at most one waiting fault of each kind, so that a second hold on the same path is
    /// for the next request; then draws the chances, always the same number of draws.
    pub(super) fn plan(&self, path: &str, rng: &mut Rng) -> Plan {
        let mut book = self.lock();
        let mut plan = Plan::default();
        let waiting = std::mem::take(&mut book.waiting);
        for (pattern, fault) in waiting {
            if !(matches(&pattern, path) && plan.has_room_for(&fault)) {
                book.waiting.push((pattern, fault));
                continue;
            }
            match fault {
                Fault::DropRequest => plan.drop_request = true,
                Fault::DropResponse => plan.drop_response = true,
                Fault::Repeat(more) => plan.repeat = more,
                Fault::HoldRequest(gate) => plan.hold_request = Some(gate),
                Fault::HoldResponse(gate) => plan.hold_response = Some(gate),
            }
        }
        if let Some(chances) = book.chances.as_ref().filter(|one| matches(&one.path, path)) {
            plan.draw(chances, rng);
        }
        plan
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Plan {
    /// Whether the server learns at once that the client has gone. Not where the point is that it
    /// does its work for a client that has: closing the connection might stop it.
    pub(super) fn follows_client(&self) -> bool {
        self.hold_request.is_none() && self.hold_response.is_none() && !self.drop_response
    }

    fn has_room_for(&self, fault: &Fault) -> bool {
        match fault {
            Fault::DropRequest => !self.drop_request,
            Fault::DropResponse => !self.drop_response,
            Fault::Repeat(_) => self.repeat == 0,
            Fault::HoldRequest(_) => self.hold_request.is_none(),
            Fault::HoldResponse(_) => self.hold_response.is_none(),
        }
    }

    fn draw(&mut self, chances: &HttpChances, rng: &mut Rng) {
        self.drop_request |= rng.chance(chances.drop_request);
        self.drop_response |= rng.chance(chances.drop_response);
        if rng.chance(chances.duplicate) {
            self.repeat = self.repeat.max(1);
        }
        let pause = rng.duration(chances.delay_range.clone());
        self.delay = rng.chance(chances.delay).then_some(pause);
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => path == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_meets_the_first_request_that_fits_and_no_other() {
        let rules = Rules::default();
        rules.add("/a", Fault::DropResponse);
        rules.add("/b/*", Fault::Repeat(3));
        let mut rng = Rng::new(0);
        let mut plan = |path: &str| rules.plan(path, &mut rng);
        assert!(!plan("/ab").drop_response);
        assert!(plan("/a").drop_response);
        assert!(!plan("/a").drop_response);
        assert_eq!(rules.waiting(), ["repeat the request /b/*"]);
        assert_eq!(plan("/b/c").repeat, 3);
        assert!(rules.waiting().is_empty());
    }

    #[test]
    fn two_faults_of_a_kind_are_for_two_requests() {
        let rules = Rules::default();
        rules.add("*", Fault::DropRequest);
        rules.add("*", Fault::DropRequest);
        let drops = || rules.plan("/x", &mut Rng::new(0)).drop_request;
        assert!(drops() && drops() && !drops());
    }
}
