//! The agent's end of a shim's socket: orders go in, what happens comes out. A link that breaks is
//! made again as long as there is a shim; when there is none, its record is the answer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_core::time::Millis;
use delta_shim::order::{Command, Event, Order, Record, SPOOL_FILE, State, StepRecord};
use delta_shim::stop::StopAt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{asynchronous, dial, lost_shim, state_folder};
use crate::log::Sizes;

/// How long a shim may take to say where it stands. It does nothing that takes long; the machine
/// around it may.
const GREETING: Duration = Duration::from_secs(10);

/// Tries to reach a shim that lives but dropped us, and the pause between them: others may crowd at
/// its door, and an agent must not take it for lost because of them.
const MAX_RECONNECTS: u32 = 50;
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of the spool shown at once.
const SHOWN_BYTES: u64 = 64 * 1024;

/// What the agent wants of a running attempt.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Orders {
    pub until: Option<Millis>,
    pub stop: Option<StopAt>,
}

/// One thing that happened inside an attempt.
#[derive(Debug)]
pub enum Happened<'a> {
    StepBegan {
        index: usize,
    },
    /// Bytes of the job, without our marks.
    Output(&'a [u8]),
    StepEnded(&'a StepRecord),
}

/// Whoever is told. It must return at once.
pub trait Watcher: Send {
    fn happened(&mut self, what: Happened<'_>);
}

pub(super) struct ShimClient {
    pub folder: PathBuf,
    pub order: Order,
    pub orders: watch::Receiver<Orders>,
    pub sizes: Sizes,
    /// Bytes of the spool that the watcher has seen or is not to see.
    pub shown: u64,
    /// The step it was last told of.
    pub step: Option<usize>,
    pub watcher: Box<dyn Watcher>,
}

/// What came of a hello.
enum Greeted {
    Answered(State),
    /// It lives, and did not hear us out.
    HungUp,
    /// It did not answer in time.
    Silent,
}

/// Says hello to the shim of this folder; nothing when there is none that answers.
pub(super) async fn greet(folder: &Path, key: &str) -> Option<State> {
    for _ in 0..MAX_RECONNECTS {
        let greeted = match connect(folder).await {
            Ok(stream) => say_hello(stream, key).await,
            Err(problem) if lives(&problem) => Greeted::HungUp,
            Err(_) => return None,
        };
        match greeted {
            Greeted::Answered(state) => return Some(state),
            Greeted::Silent => return None,
            Greeted::HungUp if state_folder::read_record(folder).is_some() => return None,
            Greeted::HungUp => sleep(RECONNECT_PAUSE).await,
        }
    }
    None
}

async fn say_hello(stream: UnixStream, key: &str) -> Greeted {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader).lines();
    let greeting = async {
        say(&mut writer, &hello(key)).await.ok()?;
        loop {
            let line = reader.next_line().await.ok()??;
            if let Ok(Event::State(state)) = serde_json::from_str(&line) {
                return Some(state);
            }
        }
    };
    match timeout(GREETING, greeting).await {
        Ok(Some(state)) => Greeted::Answered(state),
        Ok(None) => Greeted::HungUp,
        Err(_) => Greeted::Silent,
    }
}

/// Connects without holding anybody up: a crowd at the door may make it wait.
async fn connect(folder: &Path) -> io::Result<UnixStream> {
    let folder = folder.to_owned();
    let dialling = tokio::task::spawn_blocking(move || dial(&folder));
    asynchronous(dialling.await.map_err(io::Error::other)??)
}

/// There is a shim, but so many wait at its door that there was no place in time.
fn lives(problem: &io::Error) -> bool {
    problem.kind() == io::ErrorKind::WouldBlock
}

fn hello(key: &str) -> Command {
    Command::Hello {
        key: key.to_owned(),
    }
}

/// A hello for a shim that is yet to come: it is what it hears first.
pub(super) fn hello_line(key: &str) -> io::Result<Vec<u8>> {
    line(&hello(key))
}

fn line(command: &Command) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(command)?;
    line.push(b'\n');
    Ok(line)
}

async fn say(writer: &mut OwnedWriteHalf, command: &Command) -> io::Result<()> {
    writer.write_all(&line(command)?).await
}

impl ShimClient {
    /// Stays with the shim to its end. `first` is a link on which hello was said already.
    pub async fn follow(mut self, first: Option<UnixStream>) -> Record {
        if let Some(stream) = first
            && let Err(problem) = self.talk(stream.into_split()).await
        {
            tracing::debug!(error = %problem, "a shim hung up");
        }
        for _ in 0..MAX_RECONNECTS {
            if let Some(record) = state_folder::read_record(&self.folder) {
                return self.ended(record);
            }
            let talked = match connect(&self.folder).await {
                Ok(stream) => self.reconnect(stream).await,
                Err(problem) if lives(&problem) => Err(problem),
                Err(_) => break,
            };
            if let Err(problem) = talked {
                tracing::debug!(error = %problem, "a shim hung up");
                sleep(RECONNECT_PAUSE).await;
            }
        }
        // The record is written before the socket goes, so one more look is enough.
        let record = match state_folder::read_record(&self.folder) {
            Some(record) => record,
            None => lost_shim::bury(&self.folder, &self.order, self.step).await,
        };
        self.ended(record)
    }

    fn ended(mut self, record: Record) -> Record {
        self.grew(record.log.bytes);
        record
    }

    async fn reconnect(&mut self, stream: UnixStream) -> io::Result<()> {
        let (reader, mut writer) = stream.into_split();
        say(&mut writer, &hello(&self.order.key)).await?;
        self.talk((reader, writer)).await
    }

    /// Until the shim has ended, or the link is broken.
    async fn talk(&mut self, stream: (OwnedReadHalf, OwnedWriteHalf)) -> io::Result<()> {
        let (reader, mut writer) = stream;
        let mut reader = BufReader::new(reader).lines();
        self.pass_orders(&mut writer).await?;
        loop {
            tokio::select! {
                event = next_event(&mut reader) => match event? {
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Some(Event::Ended) => {
                        // All that follows in the spool are marks.
                        self.shown = u64::MAX;
                        return Ok(());
                    }
                    Some(event) => self.hear(event),
                },
                Ok(()) = self.orders.changed() => self.pass_orders(&mut writer).await?,
            }
        }
    }

    async fn pass_orders(&mut self, writer: &mut OwnedWriteHalf) -> io::Result<()> {
        let orders = *self.orders.borrow_and_update();
        if let Some(until) = orders.until {
            say(writer, &Command::Extend { until: until.0 }).await?;
        }
        if let Some(stop) = orders.stop {
            say(writer, &Command::Stop(stop)).await?;
        }
        Ok(())
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::State(state) => {
                self.grew(state.bytes);
                if let Some(index) = state.step {
                    self.step_began(index);
                }
            }
            Event::Grew(bytes) => self.grew(bytes),
            Event::Mark(bytes) => {
                self.shown = self.shown.max(bytes);
                self.grew(bytes);
            }
            Event::StepBegan { index } => self.step_began(index),
            Event::StepEnded(record) => self.watcher.happened(Happened::StepEnded(&record)),
            Event::Ended | Event::Unknown(_) => {}
        }
    }

    fn step_began(&mut self, index: usize) {
        if self.step.replace(index) != Some(index) {
            self.watcher.happened(Happened::StepBegan { index });
        }
    }

    fn grew(&mut self, bytes: u64) {
        if let Err(problem) = self.show(bytes) {
            tracing::warn!(error = %problem, "the log cannot be shown");
        }
        self.sizes.send_if_modified(|known| {
            let more = bytes > *known;
            *known = bytes.max(*known);
            more
        });
    }

    /// Hands the watcher what it has not seen.
    fn show(&mut self, bytes: u64) -> io::Result<()> {
        if self.shown >= bytes {
            return Ok(());
        }
        let file = File::open(self.folder.join(SPOOL_FILE))?;
        let mut buffer = vec![0; usize::try_from(SHOWN_BYTES.min(bytes - self.shown)).unwrap_or(0)];
        while self.shown < bytes {
            let length = usize::try_from(bytes - self.shown).unwrap_or(usize::MAX);
            let part = &mut buffer[..length.min(SHOWN_BYTES as usize)];
            file.read_exact_at(part, self.shown)?;
            self.shown += part.len() as u64;
            self.watcher.happened(Happened::Output(part));
        }
        Ok(())
    }
}

async fn next_event(reader: &mut Lines<BufReader<OwnedReadHalf>>) -> io::Result<Option<Event>> {
    match reader.next_line().await? {
        Some(line) => Ok(Some(serde_json::from_str(&line)?)),
        None => Ok(None),
    }
}
