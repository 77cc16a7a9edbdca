//! A live tail of a job's logs (SSE): attempt after attempt, lease after lease, every byte once.
//!
//! Bytes come from the files, in base64, since they are untrusted and need not be text. The id of
//! an event is the place to go on from. A tail is woken by appends and by commits, and polls
//! nothing; what another server appended is found with the sweep, which wakes all. A slow reader
//! holds up its own tail and nobody else.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use delta_core::{Attempt, JobId, Lease, LeaseKey};
use delta_store::read::JobRows;
use delta_wire::api::{LogBegin, LogEnd, LogPlace, LogState, LogView};
use delta_wire::{ErrorCode, Invalid};
use serde::Serialize;
use tokio::time::Instant;

use super::error::ApiError;
use super::log::{Asked, read_piece};
use super::log_view::{Shown, find, leases};
use super::recheck::Vigil;
use super::{log_view, pieces};
use crate::app::App;
use crate::identity::Principal;
use crate::objects::{LogReader, LogWatch};
use crate::watch::Watch;

/// Bytes of one event: 64 KiB in base64.
const EVENT_BYTES: usize = 48 * 1024;
/// A word between events now and then, below the idle limit of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The rows of a job are read again no sooner than this after they were: a busy run commits often.
const PACE: Duration = Duration::from_millis(100);
/// How long the rest of a log that may still come is waited for once nothing comes.
const LINGER: Duration = Duration::from_secs(3);

/// Answers with a tail from where the caller was, or from the beginning of the latest log.
pub fn answer(
    app: App,
    who: Principal,
    rows: JobRows,
    asked: Asked,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let id = rows.job.id;
    let start = start(&rows, asked, headers)?;
    let watch = app.writer.shared().watchers.watch(id.run);
    let watch = watch
        .ok_or_else(|| ApiError::new(ErrorCode::Overloaded, "too many event streams are open"))?;
    let (sender, body) = pieces::body(None);
    let tail = Tail {
        app,
        vigil: Vigil::new(who),
        id,
        only: asked.attempt,
        start,
        sender,
        here: None,
        before: None,
    };
    tokio::spawn(async move {
        // An error is a reader that has gone, or a store or a disk that is away: it comes again.
        if let Err(why) = tail.run(rows, watch).await {
            tracing::debug!(job = %id, why, "a tail ended early");
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, body).into_response())
}

/// Where a tail begins.
#[derive(Clone, Copy)]
enum Start {
    /// In the log of this lease.
    At(LeaseKey, u64),
    /// In the latest log there is then, at this offset.
    Latest(u64),
}

/// What the browser remembers wins over what the address says. A bare number is an offset.
fn start(rows: &JobRows, asked: Asked, headers: &HeaderMap) -> Result<Start, ApiError> {
    let Some(last) = headers.get("last-event-id") else {
        return Ok(Start::Latest(asked.offset.unwrap_or(0)));
    };
    let text = last.to_str().unwrap_or_default();
    if let Ok(offset) = text.parse() {
        return Ok(Start::Latest(offset));
    }
    let place: Option<LogPlace> = text.parse().ok();
    let place = place.filter(|place| asked.attempt.is_none_or(|only| only == place.attempt));
    let known = place.and_then(|place| {
        let mut all = leases(rows).into_iter();
        all.find(|(attempt, lease)| (attempt.id.index, lease.epoch) == (place.attempt, place.epoch))
            .map(|(attempt, lease)| Start::At(attempt.id.lease(lease.epoch), place.offset))
    });
    let wrong = || Invalid::field("Last-Event-ID", "is no place in the logs of this job");
    Ok(known.ok_or_else(wrong)?)
}

struct Tail {
    app: App,
    vigil: Vigil,
    id: JobId,
    only: Option<u32>,
    start: Start,
    sender: pieces::Sender,
    here: Option<Here>,
    /// The log that was told to its end.
    before: Option<LeaseKey>,
}

/// The log that is being told.
struct Here {
    lease: LeaseKey,
    /// Absent only while it is being read from.
    log: Option<LogReader>,
    watch: LogWatch,
    last_byte: Instant,
}

/// What to do next.
enum Next {
    Go,
    Wait,
    /// Look again at this moment, whatever happens.
    WaitUntil(Instant),
    Done,
}

impl Tail {
    async fn run(mut self, mut rows: JobRows, mut watch: Watch) -> Result<(), String> {
        // What was read before the watch began may be old.
        let (mut look_at, mut news) = (Instant::now(), true);
        loop {
            if self.vigil.is_over(&self.app).await {
                return Ok(());
            }
            if news && Instant::now() >= look_at {
                (look_at, news) = (Instant::now() + PACE, false);
                let id = self.id;
                let found = self.app.read(move |reader| reader.job(id)).await;
                match found.map_err(|error| error.to_string())? {
                    Some(found) => rows = found,
                    None => return Ok(()),
                }
            }
            let until = match self.step(&rows).await? {
                Next::Go => continue,
                Next::Done => return Ok(()),
                Next::Wait => Instant::now() + KEEP_ALIVE,
                Next::WaitUntil(moment) => moment,
            };
            let (sender, vigil) = (self.sender.clone(), self.vigil.next());
            let appended = appended(self.here.as_mut());
            tokio::select! {
                () = appended => {}
                () = watch.changed() => news = true,
                () = tokio::time::sleep_until(look_at), if news => {}
                () = tokio::time::sleep_until(vigil) => {}
                () = tokio::time::sleep_until(until) => self.send(": still here\n\n".into()).await?,
                () = sender.closed() => return Ok(()),
                () = self.app.stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Tells what there is, by rows that are not newer than the bytes.
    async fn step(&mut self, rows: &JobRows) -> Result<Next, String> {
        let Some(here) = &mut self.here else {
            return self.begin(rows).await;
        };
        // Before the bytes are read, so that none that come meanwhile are slept over.
        here.watch.cursors();
        let Some(log) = here.log.take() else {
            return Err("a log could not be read".into());
        };
        let (log, bytes) = read_piece(log, EVENT_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        let place = place(here.lease, log.at());
        here.log = Some(log);
        if !bytes.is_empty() {
            here.last_byte = Instant::now();
            self.send(bytes_event(place, &bytes)).await?;
            return Ok(Next::Go);
        }
        self.end(rows, place).await
    }

    /// Goes to the first log to tell, or to the one after the last.
    async fn begin(&mut self, rows: &JobRows) -> Result<Next, String> {
        let all = leases(rows);
        let mut wanted = all.iter().filter(|(attempt, _)| {
            let index = attempt.id.index;
            self.only.is_none_or(|only| only == index)
        });
        let keyed = |(attempt, lease): &(&Attempt, &Lease)| {
            let key = attempt.id.lease(lease.epoch);
            (key, u64::from(lease.number))
        };
        let found = match (self.before, self.start) {
            (Some(before), _) => {
                let later = |key: &LeaseKey| order(*key) > order(before);
                wanted
                    .map(keyed)
                    .find(|(key, _)| later(key))
                    .map(|it| (it, 0))
            }
            (None, Start::At(lease, offset)) => wanted
                .map(keyed)
                .find(|(key, _)| *key == lease)
                .map(|it| (it, offset)),
            (None, Start::Latest(offset)) => {
                let (objects, only) = (&self.app.objects, self.only);
                let latest = find(objects, rows, only).map(|shown| shown.key());
                let latest = latest.and_then(|latest| {
                    let mut all = wanted.clone().map(keyed);
                    all.find(|(key, _)| *key == latest)
                });
                let latest = latest.or_else(|| wanted.next_back().map(keyed));
                latest.map(|it| (it, offset))
            }
        };
        match found {
            Some(((lease, number), offset)) => self.tell(lease, number, offset).await,
            None if self.is_over(rows) && self.before.is_none() => {
                let end = LogEnd {
                    attempt: None,
                    epoch: None,
                    log: None,
                    last: true,
                };
                self.send(event("end", None, &end)).await?;
                Ok(Next::Done)
            }
            None if self.is_over(rows) => Ok(Next::Done),
            None => Ok(Next::Wait),
        }
    }

    async fn tell(&mut self, lease: LeaseKey, number: u64, offset: u64) -> Result<Next, String> {
        let begin = LogBegin {
            attempt: lease.attempt.index,
            lease: number,
            epoch: lease.epoch,
            offset,
        };
        self.here = Some(Here {
            lease,
            log: Some(self.app.objects.read_log(lease, offset)),
            watch: self.app.objects.watch_log(lease),
            last_byte: Instant::now(),
        });
        let at = place(lease, offset);
        self.send(event("log", Some(at), &begin)).await?;
        Ok(Next::Go)
    }

    /// All bytes there are were told: whether more can come.
    async fn end(&mut self, rows: &JobRows, place: LogPlace) -> Result<Next, String> {
        let Some(here) = &self.here else {
            return Ok(Next::Go);
        };
        let (lease, last_byte) = (here.lease, here.last_byte);
        let own = |(attempt, it): &(&Attempt, &Lease)| attempt.id.lease(it.epoch) == lease;
        let Some((attempt, row)) = leases(rows).into_iter().find(own) else {
            return Ok(Next::Done);
        };
        if row.state.is_live() {
            return Ok(Next::Wait);
        }
        let log = self.known(attempt, row).await?;
        let late = log_view::may_still_grow(attempt, row, &self.app);
        let until = last_byte + LINGER;
        if late && log.state == LogState::Incomplete && Instant::now() < until {
            return Ok(Next::WaitUntil(until));
        }
        let all = leases(rows);
        let followed = all.iter().any(|(attempt, lease_after)| {
            let after = order(attempt.id.lease(lease_after.epoch)) > order(lease);
            after && self.only.is_none_or(|only| only == attempt.id.index)
        });
        let end = LogEnd {
            attempt: Some(place.attempt),
            epoch: Some(place.epoch),
            log: Some(log),
            last: !followed && self.is_over(rows),
        };
        let last = end.last;
        self.send(event("end", Some(place), &end)).await?;
        (self.here, self.before) = (None, Some(lease));
        Ok(if last { Next::Done } else { Next::Go })
    }

    /// What is known of a lease's log.
    async fn known(&self, attempt: &Attempt, lease: &Lease) -> Result<LogView, String> {
        let (attempt, lease) = (attempt.clone(), lease.clone());
        let view = self.app.files(move |objects| {
            let shown = Shown {
                extent: objects
                    .log_extent(attempt.id.lease(lease.epoch))
                    .unwrap_or_default(),
                attempt: &attempt,
                lease: &lease,
            };
            Ok(shown.view(objects))
        });
        view.await.map_err(|error| error.to_string())
    }

    /// Nothing more will be run of what was asked for.
    fn is_over(&self, rows: &JobRows) -> bool {
        match self.only {
            None => rows.job.resolution.is_some(),
            Some(only) => {
                let mut attempts = rows.attempts.iter();
                let attempt = attempts.find(|attempt| attempt.id.index == only);
                match attempt {
                    Some(attempt) => attempt.state.is_final(),
                    None => rows.job.resolution.is_some(),
                }
            }
        }
    }

    async fn send(&self, text: String) -> Result<(), String> {
        let sent = self.sender.send(Ok(Bytes::from(text))).await;
        sent.map_err(|_| "nobody listens any more".to_owned())
    }
}

async fn appended(here: Option<&mut Here>) {
    match here {
        Some(here) => here.watch.changed().await,
        None => std::future::pending().await,
    }
}

fn order(lease: LeaseKey) -> (u32, u64) {
    (lease.attempt.index, lease.epoch)
}

fn place(lease: LeaseKey, offset: u64) -> LogPlace {
    LogPlace {
        attempt: lease.attempt.index,
        epoch: lease.epoch,
        offset,
    }
}

fn bytes_event(place: LogPlace, bytes: &[u8]) -> String {
    let data = STANDARD.encode(bytes);
    format!("id: {place}\nevent: bytes\ndata: {data}\n\n")
}

fn event(name: &str, id: Option<LogPlace>, data: &impl Serialize) -> String {
    let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("{id}event: {name}\ndata: {data}\n\n")
}
