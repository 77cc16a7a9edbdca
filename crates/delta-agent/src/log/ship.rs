//! Ships a log while it grows: bytes from the spool on disk to the server, by offset.
//!
//! The spool is the buffer, so nothing is lost when the server is away, and the server's word on
//! the offset is taken: it may ask for bytes again. What is not answered is sent again. A log that
//! cannot be shipped never fails the job.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use delta_wire::runner::LeaseToken;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::connection::{Connection, Cursors};

/// Pause after a small chunk, so that a job that prints line by line does not cost a message per
/// line; a person watching does not notice it.
const PAUSE: Duration = Duration::from_millis(100);

/// A chunk of this size is sent on without a pause.
const LARGE_CHUNK_BYTES: usize = 64 * 1024;

/// Pause before bytes are sent that the server has asked for again without having taken any: one
/// whose disk is full asks for as long as it is, and each time is a round trip. It doubles to the
/// longest; once there is room, nobody waits for more than that.
const SETBACK_PAUSE: Duration = Duration::from_millis(50);
const MAX_SETBACK_PAUSE: Duration = Duration::from_secs(2);

/// The longest wait for an answer: twice, and then once more, within the time that the end of a job
/// waits for its log.
const MAX_PATIENCE: Duration = Duration::from_secs(10);

/// Everything needed to ship one log.
pub(crate) struct Shipment {
    pub link: Connection,
    pub execution: String,
    pub lease: LeaseToken,
    pub path: PathBuf,
    /// The size of the spool as it grows; it ends when the log does.
    pub grows: watch::Receiver<u64>,
    /// How far the server is.
    pub cursors: watch::Receiver<Cursors>,
    /// The session, while there is one.
    pub line: watch::Receiver<Option<u64>>,
    /// Bytes the server has, for the heartbeat.
    pub shipped: Arc<AtomicU64>,
}

/// Why shipping ended before the log did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShipError {
    #[error("the server takes no more than {0} bytes of it")]
    Full(u64),
    #[error("the log cannot be read: {0}")]
    Disk(#[from] io::Error),
}

/// Where the shipping stands.
struct LogPosition {
    /// The first byte that was not sent on this session.
    next: u64,
    session: Option<u64>,
    resends: u64,
    /// Times that the server asked again since it last took something.
    setbacks: u32,
    /// The furthest the server has been.
    best: u64,
    /// Until when a small chunk waits for more, while more may come.
    not_before: Option<Instant>,
    /// Until when nothing is sent that the server asks for again and again.
    set_back_until: Option<Instant>,
    /// Since when bytes are on their way without a word from the server, and how long that may
    /// last before they are sent again.
    unanswered: Option<Instant>,
    patience: Duration,
}

/// Ships until the log has ended and the server has all of it.
pub(crate) async fn ship(mut shipment: Shipment) -> Result<(), ShipError> {
    let file = File::open(&shipment.path)?;
    let mut room = shipment.link.room();
    let usual_patience = shipment.link.answer_time(&shipment.execution);
    let mut place = LogPosition {
        next: 0,
        session: None,
        resends: shipment.cursors.borrow().resends,
        setbacks: 0,
        best: 0,
        not_before: None,
        set_back_until: None,
        unanswered: None,
        patience: usual_patience,
    };
    loop {
        // Asked for before the size is read, so that the last bytes are never missed.
        let ended = shipment.grows.has_changed().is_err();
        let size = *shipment.grows.borrow_and_update();
        let line = *shipment.line.borrow_and_update();
        let cursors = *shipment.cursors.borrow_and_update();
        if place.heed(line, &cursors)? {
            (place.unanswered, place.patience) = (None, usual_patience);
        }
        let overdue = place.wait_for_answers(&cursors);
        if overdue.is_some_and(|at| Instant::now() >= at) {
            shipment.link.log_lost(&shipment.execution);
            place.begin_again(&cursors);
            continue;
        }
        shipment.shipped.store(cursors.received, Ordering::Relaxed);
        if ended && cursors.received >= size {
            return Ok(());
        }
        let wait = place.set_back_until.or(place.not_before.filter(|_| !ended));
        let due = wait.is_none_or(|at| Instant::now() >= at);
        if place.session.is_some() && due && place.next < size {
            let wanted = usize::try_from(size - place.next).unwrap_or(usize::MAX);
            let length = shipment.link.log_room(wanted);
            if length > 0 {
                let chunk = read_chunk(&file, place.next, length)?;
                shipment
                    .link
                    .send_log(&shipment.execution, &shipment.lease, place.next, chunk);
                place.next += length as u64;
                let small = length < LARGE_CHUNK_BYTES;
                place.not_before = small.then(|| Instant::now() + PAUSE);
                place.set_back_until = None;
                continue;
            }
        }
        let again = wait.filter(|_| !due);
        tokio::select! {
            // Also when it ended without another byte.
            _ = shipment.grows.changed(), if !ended => {}
            Ok(()) = shipment.cursors.changed() => {}
            Ok(()) = shipment.line.changed() => {}
            Ok(()) = room.changed(), if due => {}
            () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
            () = sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => {}
        }
    }
}

impl LogPosition {
    /// Takes the server's word on where to go on; whether it is a new one.
    fn heed(&mut self, line: Option<u64>, cursors: &Cursors) -> Result<bool, ShipError> {
        let mut news = line != self.session || cursors.resends != self.resends;
        if cursors.full {
            return Err(ShipError::Full(cursors.received));
        }
        if line != self.session {
            self.session = line;
            // A lease of this very session was not there when it began: it goes on as it is.
            if line == Some(cursors.session) {
                self.next = cursors.received;
            }
        }
        if cursors.resends != self.resends {
            self.resends = cursors.resends;
            self.next = cursors.received;
            self.set_back_until = self.setback_pause().map(|pause| Instant::now() + pause);
            self.setbacks += 1;
        }
        if cursors.received > self.best {
            self.best = cursors.received;
            self.setbacks = 0;
            self.set_back_until = None;
            news = true;
        }
        Ok(news)
    }

    /// What was lost on the way is asked for once, and sent at once.
    fn setback_pause(&self) -> Option<Duration> {
        let doubled = self.setbacks.checked_sub(1)?.min(16);
        Some((SETBACK_PAUSE * 2_u32.pow(doubled)).min(MAX_SETBACK_PAUSE))
    }

    /// When what is on its way is to be sent again; nothing while nothing is.
    fn wait_for_answers(&mut self, cursors: &Cursors) -> Option<Instant> {
        if self.session.is_none() || self.next <= cursors.received {
            self.unanswered = None;
            return None;
        }
        let since = *self.unanswered.get_or_insert_with(Instant::now);
        Some(since + self.patience)
    }

    /// Nothing was heard: the bytes, or the answers, are lost.
    fn begin_again(&mut self, cursors: &Cursors) {
        self.next = cursors.received;
        self.unanswered = None;
        self.patience = (self.patience * 2).min(MAX_PATIENCE);
    }
}

/// The spool only grows and was this long already, so the bytes are there.
fn read_chunk(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut chunk = vec![0; length];
    file.read_exact_at(&mut chunk, offset)?;
    Ok(chunk.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    // D8: what a server cannot take now it may take later.
    #[test]
    fn a_server_that_asks_again_and_again_is_waited_for_and_never_given_up() {
        let mut place = LogPosition {
            next: 0,
            session: Some(1),
            resends: 0,
            setbacks: 0,
            best: 0,
            not_before: None,
            set_back_until: None,
            unanswered: None,
            patience: MAX_PATIENCE,
        };
        let mut cursors = Cursors {
            session: 1,
            ..Cursors::default()
        };
        let mut pauses = Vec::new();
        for resends in 1..=100 {
            pauses.push(place.setback_pause());
            cursors.resends = resends;
            place.next = 7;
            assert!(place.heed(Some(1), &cursors).is_ok(), "{resends}");
            assert_eq!(place.next, 0, "from where the server is");
            assert_eq!(place.set_back_until.is_some(), resends > 1, "{resends}");
        }
        let millis = |pause: &Option<Duration>| pause.map_or(0, |it| it.as_millis());
        let pauses: Vec<u128> = pauses.iter().map(millis).collect();
        assert_eq!(pauses[..8], [0, 50, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!(pauses[99], 2000);
        cursors.received = 5;
        assert!(place.heed(Some(1), &cursors).is_ok());
        assert_eq!(place.set_back_until, None, "it gets on");
        assert_eq!(place.setback_pause(), None);
    }
}
