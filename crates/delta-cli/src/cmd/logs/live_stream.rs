//! Following a job's logs: a live stream that is taken up where it broke off, so that every byte
//! is shown once.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use delta_wire::api::{LogBegin, LogEnd, LogPlace};
use tokio::time::timeout;

use super::Log;
use super::printer::Printer;
use crate::client::sse::{Event, Events};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::terminal::{Terminal, Tone};

/// Waits between tries while the server is away; doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// How long a server may be away: longer than a restart with an upgrade takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// A stream that says nothing for so long is opened anew: its server may be gone without a word.
const SILENCE: Duration = Duration::from_secs(60);

/// Returns when the job, or the attempt asked for, is over and everything was shown.
pub async fn follow(
    log: &Log<'_>,
    from: Option<LogPlace>,
    printer: &mut Printer<'_>,
    terminal: &Terminal,
) -> Done {
    let mut told = Told {
        place: from,
        ended: None,
        printer,
        terminal,
    };
    let (mut away, mut pause, mut first) = (Away::default(), FIRST_PAUSE, true);
    loop {
        match open(log, told.place).await {
            Ok(mut events) => {
                away.is_back();
                while let Ok(Ok(Some(event))) = timeout(SILENCE, events.next()).await {
                    pause = FIRST_PAUSE;
                    if told.event(&event)? {
                        return Ok(Exit::Ok);
                    }
                }
            }
            Err(failure) => {
                let unreachable = failure.exit == Exit::Unreachable;
                if first || !unreachable || away.too_long(Instant::now()) {
                    return Err(failure);
                }
            }
        }
        first = false;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Since when the server cannot be reached. A job that prints nothing says nothing about that.
#[derive(Default)]
struct Away(Option<Instant>);

impl Away {
    fn is_back(&mut self) {
        self.0 = None;
    }

    /// Notes that it was not reached, and whether that is enough.
    fn too_long(&mut self, now: Instant) -> bool {
        let since = *self.0.get_or_insert(now);
        now.saturating_duration_since(since) > PATIENCE
    }
}

async fn open(log: &Log<'_>, place: Option<LogPlace>) -> Result<Events, Failure> {
    let mut headers = vec![("accept", "text/event-stream".to_owned())];
    headers.extend(place.map(|place| ("last-event-id", place.to_string())));
    Ok(Events::new(log.open(&headers).await?))
}

/// What was shown so far.
struct Told<'a, 'b> {
    /// Where the next byte is.
    place: Option<LogPlace>,
    /// The lease whose end was told: a stream that is taken up there tells it again.
    ended: Option<u64>,
    printer: &'a mut Printer<'b>,
    terminal: &'a Terminal,
}

impl Told<'_, '_> {
    /// Shows what came; true when it was the last.
    fn event(&mut self, event: &Event) -> Result<bool, Failure> {
        match event.name.as_deref() {
            Some("log") => self.begin(&crate::client::read(&event.data)?),
            Some("bytes") => self.bytes(event).ok_or_else(garbled)?,
            Some("end") => {
                let end: LogEnd = crate::client::read(&event.data)?;
                self.end(&end);
                return Ok(end.last);
            }
            // What a newer server says beside it.
            _ => {}
        }
        Ok(false)
    }

    fn begin(&mut self, begin: &LogBegin) {
        let place = LogPlace {
            attempt: begin.attempt,
            epoch: begin.epoch,
            offset: begin.offset,
        };
        let same = |at: LogPlace| (at.attempt, at.epoch) == (place.attempt, place.epoch);
        if !self.place.is_some_and(same) {
            self.printer.begin(begin.attempt);
            let line = format!("attempt {}, lease {}", begin.attempt, begin.lease);
            self.terminal
                .say(&self.terminal.paint_err(Tone::Quiet, &line));
            self.place = Some(place);
        }
    }

    /// `None` when it is not what a server says.
    fn bytes(&mut self, event: &Event) -> Option<()> {
        let next: LogPlace = event.id.as_ref()?.parse().ok()?;
        let bytes = STANDARD.decode(&event.data).ok()?;
        let begins = next.offset.checked_sub(bytes.len() as u64)?;
        // What was shown already is not shown again.
        let shown = self
            .place
            .map_or(0, |place| place.offset.saturating_sub(begins));
        let fresh = usize::try_from(shown)
            .ok()
            .and_then(|shown| bytes.get(shown..));
        self.printer.push(fresh.unwrap_or_default());
        self.place = Some(next);
        Some(())
    }

    fn end(&mut self, end: &LogEnd) {
        if end.epoch.is_some() && self.ended == end.epoch {
            return;
        }
        self.ended = end.epoch;
        match (end.attempt, &end.log) {
            (Some(attempt), Some(log)) => self.printer.end(attempt, &log.to_string()),
            _ => self.terminal.say("nobody ran this job: there is no log"),
        }
    }
}

fn garbled() -> Failure {
    Failure::new(Exit::Internal, "the server's answer cannot be understood")
        .next("compare `delta-ci --version` here and on the server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_begins_when_the_server_is_lost_and_not_with_the_last_word() {
        let mut away = Away::default();
        let lost = Instant::now() + 10 * PATIENCE;
        assert!(!away.too_long(lost), "however quiet the job was before");
        assert!(!away.too_long(lost + PATIENCE));
        away.is_back();
        let again = lost + 2 * PATIENCE;
        assert!(!away.too_long(again), "another outage");
        assert!(away.too_long(again + PATIENCE + FIRST_PAUSE));
    }
}
