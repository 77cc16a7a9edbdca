//! What a runner prints: to the agent's log line by line (RQ-17), and the last line as a hint when
//! it ends.
//!
//! What it says on its standard error is shown to whoever runs the agent without being asked for,
//! so much at a time; its standard output with `-v`. The values of its pool's `env`, where
//! passwords are, are masked in both: logs and hints are read by more people than that file.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delta_shim::mask::{Masker, Patterns};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::settings::{PoolSettings, RunnerSource};
use crate::log::progress::Lines;

/// The target of what runners say on their standard error.
pub const TARGET: &str = "runner";
/// Bytes read at once.
const PIECE: usize = 8 * 1024;
/// Characters of the last line that are shown with the reason of its end.
const MAX_HINT: usize = 300;
/// Characters of a line in the log.
const MAX_SHOWN: usize = 2000;
/// Lines of one process that are shown at once, and how often there is room for one more: a
/// traceback of a few hundred lines is, a loop that prints is not.
const AT_ONCE: u32 = 400;
const ONE_MORE: Duration = Duration::from_millis(100);

pub(super) type LastLine = Arc<Mutex<String>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// What one process prints.
#[derive(Clone)]
pub(super) struct Printed {
    pool: String,
    masked: Option<Arc<Patterns>>,
    pub last: LastLine,
}

impl Printed {
    pub fn of(pool: &PoolSettings) -> Printed {
        let env = match &pool.source {
            RunnerSource::Command { env, .. } => env.as_slice(),
            RunnerSource::Address(_) => &[],
        };
        let values = env.iter().map(|(_, value)| value.as_str());
        Printed {
            pool: pool.name.clone(),
            masked: Patterns::of(values).map(Arc::new),
            last: LastLine::default(),
        }
    }

    /// Passes it on until its end.
    pub fn pass_on(self, stream: Stream, output: Option<impl AsyncRead + Unpin + Send + 'static>) {
        let Some(mut output) = output else { return };
        tokio::spawn(async move {
            let (mut lines, mut piece) = (Lines::default(), vec![0; PIECE]);
            let mut room = Room::new(Instant::now());
            let mut line = |line: &[u8]| self.line(stream, line, &mut room);
            while let Ok(length @ 1..) = output.read(&mut piece).await {
                lines.push(&piece[..length], &mut line);
            }
            lines.finish(&mut line);
            self.say_left_out(room.left_out);
        });
    }

    fn line(&self, stream: Stream, line: &[u8], room: &mut Room) {
        let text = self.shown(line);
        if stream == Stream::Out {
            tracing::info!(runner = self.pool, "{text}");
        } else if let Some(left_out) = room.take(Instant::now()) {
            self.say_left_out(left_out);
            tracing::info!(target: TARGET, runner = self.pool, "{text}");
        }
        if !text.trim().is_empty() {
            let hint = text.chars().take(MAX_HINT).collect();
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = hint;
        }
    }

    fn shown(&self, line: &[u8]) -> String {
        let text = String::from_utf8_lossy(line);
        let text = match &self.masked {
            Some(masked) => Masker::text(masked, &text),
            None => text.into_owned(),
        };
        let printable = text.chars().filter(|c| !c.is_control());
        printable.take(MAX_SHOWN).collect()
    }

    fn say_left_out(&self, lines: u64) {
        if lines > 0 {
            tracing::info!(target: TARGET, runner = self.pool, lines, "lines were left out");
        }
    }
}

/// How much may be shown now.
struct Room {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl Room {
    fn new(now: Instant) -> Room {
        Room {
            lines: AT_ONCE,
            since: now,
            left_out: 0,
        }
    }

    /// Whether one more is shown, and then how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = now.duration_since(self.since).as_millis() / ONE_MORE.as_millis();
        let more = u32::try_from(passed).unwrap_or(u32::MAX);
        if more > 0 {
            self.lines = self.lines.saturating_add(more).min(AT_ONCE);
            self.since = now;
        }
        if self.lines == 0 {
            self.left_out += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::settings::RunnerSettings;
    use super::*;

    #[test]
    fn the_values_of_its_env_are_masked_also_in_the_hint() {
        let file = "pools: {h: {command: [x], env: {URL: 'postgres://ann:hunter22@db'}}}";
        let settings = RunnerSettings::parse("runners.yaml", file, Path::new("/")).expect("pools");
        let printed = Printed::of(&settings.pools[0]);
        let mut room = Room::new(Instant::now());
        let line = b"cannot connect to postgres://ann:hunter22@db\x07: refused";
        printed.line(Stream::Err, line, &mut room);
        let hint = printed.last.lock().unwrap().clone();
        assert_eq!(hint, "cannot connect to ***: refused");
        printed.line(Stream::Err, b"  ", &mut room);
        assert_eq!(
            *printed.last.lock().unwrap(),
            hint,
            "the last that says something"
        );
    }

    #[test]
    fn a_loop_that_prints_is_cut_and_says_so() {
        let now = Instant::now();
        let mut room = Room::new(now);
        let shown = (0..1000).filter(|_| room.take(now).is_some()).count();
        assert_eq!(shown, 400);
        assert_eq!(room.take(now + ONE_MORE), Some(600), "room for one more");
        assert_eq!(room.take(now + ONE_MORE), None);
        let later = now + ONE_MORE * 100_000;
        let shown = (0..1000).filter(|_| room.take(later).is_some()).count();
        assert_eq!(shown, 400, "no more than at first");
    }
}
