//! One connection through the proxy: two pumps, each moving the bytes of one direction through
//! its faults, in order. What was decided by chance depends on the seed, the connection's number
//! and the direction, not on how connections interleave.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::door::{End, close_on_drop, reset_on_drop};
use super::journal::Journal;
use super::lane::{Direction, Lane, Lanes};
use super::trap::{Fired, Sight, Then, Traps};
use crate::rng::Rng;

/// One piece of bytes: a delay or a chance is drawn for each, so not too large.
const PIECE: usize = 16 * 1024;

/// A throttled lane sends a tenth of a second's bytes at a time: smooth, and few wake-ups.
const THROTTLE_STEP: Duration = Duration::from_millis(100);

/// What all connections of a proxy share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) target: Mutex<SocketAddr>,
    pub(super) seed: u64,
    pub(super) lanes: watch::Sender<Lanes>,
    pub(super) traps: Traps,
    pub(super) journal: Journal,
    pub(super) passed: [AtomicU64; 2],
}

impl Shared {
    /// Where new connections lead.
    fn target(&self) -> SocketAddr {
        *self.target.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// What the two pumps of one connection share.
#[derive(Debug)]
struct Connection {
    number: u64,
    /// Set by a trap in one direction: the other one swallows up to these bytes, then resets.
    swallow: Mutex<Option<(Direction, Vec<u8>)>>,
}

pub(super) async fn serve(
    shared: Arc<Shared>,
    number: u64,
    mut client: TcpStream,
) -> (End, TcpStream) {
    reset_on_drop(&client);
    let target = shared.target();
    let Ok(mut server) = TcpStream::connect(target).await else {
        shared
            .journal
            .note("no target", format!("connection {number}"));
        return (End::Reset, client);
    };
    let _ = server.set_nodelay(true);
    reset_on_drop(&server);
    let connection = Arc::new(Connection {
        number,
        swallow: Mutex::default(),
    });
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = Pump::new(&shared, &connection, Direction::ToServer);
    let down = Pump::new(&shared, &connection, Direction::ToClient);
    let stop = both(
        up.run(from_client, to_server),
        down.run(from_server, to_client),
    )
    .await;
    // What was delivered to the server stays delivered: a reset could overtake it.
    if stop != Stop::Reset {
        close_on_drop(&server);
    }
    let end = if stop == Stop::Closed {
        End::Closed
    } else {
        End::Reset
    };
    (end, client)
}

/// How one pump stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Its source is done, and the other side has been told.
    Closed,
    /// Both sides are to be reset.
    Reset,
    /// The client is to be reset; the server sees an orderly end after what it was sent.
    Abandoned,
}

/// Runs both until both are closed or one says otherwise.
async fn both(up: impl Future<Output = Stop>, down: impl Future<Output = Stop>) -> Stop {
    tokio::pin!(up, down);
    let (first, up_is_left) = tokio::select! {
        stop = &mut up => (stop, false),
        stop = &mut down => (stop, true),
    };
    match (first, up_is_left) {
        (Stop::Closed, true) => up.await,
        (Stop::Closed, false) => down.await,
        (other, _) => other,
    }
}

struct Pump<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
    direction: Direction,
    lanes: watch::Receiver<Lanes>,
    rng: Rng,
    sight: Sight,
    /// Bytes of this stream vanished: it must never go on.
    has_hole: bool,
    /// Its reader was told that this was all.
    half_closed: bool,
}

impl<'a> Pump<'a> {
    fn new(shared: &'a Shared, connection: &'a Connection, direction: Direction) -> Self {
        let part = connection.number * 2 + direction.index() as u64;
        Self {
            shared,
            connection,
            direction,
            lanes: shared.lanes.subscribe(),
            rng: Rng::part(shared.seed, part),
            sight: Sight::default(),
            has_hole: false,
            half_closed: false,
        }
    }

    async fn run(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Stop {
        let mut buffer = vec![0; PIECE];
        loop {
            let size = tokio::select! {
                read = from.read(&mut buffer) => match read {
                    Ok(size) => size,
                    Err(_) => return Stop::Reset,
                },
                () = self.healed_over_a_hole() => {
                    self.note("healed over a hole", "its connection is reset".into());
                    return Stop::Reset;
                }
            };
            if size == 0 {
                self.until_released().await;
                // Told nothing in a black hole: the other side must not learn of the end either.
                if self.lane().blackhole {
                    self.healed().await;
                    return Stop::Reset;
                }
                return if self.half_closed || to.shutdown().await.is_ok() {
                    Stop::Closed
                } else {
                    Stop::Reset
                };
            }
            if let Err(stop) = self.pass(&buffer[..size], &mut to).await {
                return stop;
            }
        }
    }

    /// Takes one piece through all faults of this direction.
    async fn pass(&mut self, piece: &[u8], to: &mut WriteHalf<'_>) -> Result<(), Stop> {
        if self.half_closed || self.swallow(piece)? {
            return Ok(());
        }
        let lane = self.lane();
        if lane.blackhole {
            return self.lose(piece);
        }
        if self.rng.chance(lane.reset_chance) {
            self.note("reset by chance", format!("{} bytes lost", piece.len()));
            return Err(Stop::Reset);
        }
        if self.rng.chance(lane.half_close_chance) {
            self.note("half-close", format!("{} bytes lost", piece.len()));
            self.half_closed = true;
            return to.shutdown().await.map_err(|_| Stop::Reset);
        }
        let fired = self
            .shared
            .traps
            .look(self.direction, &self.sight, piece, &mut self.rng);
        let piece = match &fired {
            Some(fired) => self.spring(fired, piece)?,
            None => piece,
        };
        if let Some(range) = lane.delay {
            let pause = self.rng.duration(range);
            self.note("delay", format!("{} bytes by {pause:?}", piece.len()));
            tokio::time::sleep(pause).await;
        }
        self.until_released().await;
        if self.lane().blackhole {
            return self.lose(piece);
        }
        self.deliver(piece, to).await?;
        match fired {
            Some(Fired {
                then: Then::DeliverAndReset,
                ..
            }) => Err(Stop::Abandoned),
            _ => Ok(()),
        }
    }

    /// A trap fired: writes it down, and says which bytes still go.
    fn spring<'p>(&self, fired: &Fired, piece: &'p [u8]) -> Result<&'p [u8], Stop> {
        let Fired { then, deliver } = fired;
        match then {
            Then::DropAndReset => {
                self.note("drop and reset", format!("{} bytes lost", piece.len()));
                Err(Stop::Reset)
            }
            Then::DeliverAndReset => {
                self.note("deliver and reset", format!("{deliver} bytes go"));
                Ok(&piece[..*deliver])
            }
            Then::SwallowAnswer { until } => {
                self.note("swallow the answer", format!("{} bytes go", piece.len()));
                let mut swallow = lock(&self.connection.swallow);
                *swallow = Some((self.direction.opposite(), until.clone()));
                Ok(piece)
            }
        }
    }

    /// True when this piece was swallowed because of a trap in the other direction.
    fn swallow(&mut self, piece: &[u8]) -> Result<bool, Stop> {
        let until = match &*lock(&self.connection.swallow) {
            Some((direction, until)) if *direction == self.direction => until.clone(),
            _ => return Ok(false),
        };
        let complete = until.is_empty() || self.sight.has(&until, piece);
        self.sight.pass(piece);
        if complete {
            self.note("answer swallowed", "its connection is reset".into());
            return Err(Stop::Abandoned);
        }
        Ok(true)
    }

    fn lose(&mut self, piece: &[u8]) -> Result<(), Stop> {
        self.has_hole = true;
        self.note("blackhole", format!("{} bytes lost", piece.len()));
        Ok(())
    }

    async fn deliver(&mut self, piece: &[u8], to: &mut WriteHalf<'_>) -> Result<(), Stop> {
        let mut left = piece;
        while !left.is_empty() {
            let step = match self.lane().bytes_per_second {
                Some(rate) => {
                    tokio::time::sleep(THROTTLE_STEP).await;
                    let per_step = f64::from(rate) * THROTTLE_STEP.as_secs_f64();
                    (per_step as usize).clamp(1, left.len())
                }
                None => left.len(),
            };
            // Counted first: who has the bytes can rely on the count.
            let passed = &self.shared.passed[self.direction.index()];
            passed.fetch_add(step as u64, Ordering::SeqCst);
            to.write_all(&left[..step]).await.map_err(|_| Stop::Reset)?;
            left = &left[step..];
        }
        self.sight.pass(piece);
        Ok(())
    }

    fn lane(&self) -> Lane {
        self.lanes.borrow()[self.direction.index()].clone()
    }

    async fn until_released(&mut self) {
        let index = self.direction.index();
        if self.lane().held {
            self.note("hold", "until released".into());
        }
        // The sender lives as long as the proxy; when it goes, so does this connection.
        let _ = self.lanes.wait_for(|lanes| !lanes[index].held).await;
    }

    async fn healed(&mut self) {
        let index = self.direction.index();
        let _ = self.lanes.wait_for(|lanes| !lanes[index].blackhole).await;
    }

    /// Never, for a stream without a hole.
    async fn healed_over_a_hole(&mut self) {
        if !self.has_hole {
            std::future::pending::<()>().await;
        }
        self.healed().await;
    }

    fn note(&self, kind: &'static str, detail: String) {
        let (number, direction) = (self.connection.number, self.direction);
        self.shared
            .journal
            .note(kind, format!("connection {number} {direction:?}, {detail}"));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
