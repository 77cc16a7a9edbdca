//! Which log is meant, and what is known of its completeness: never silently less (D8, A22).

use delta_core::{Attempt, Lease, LeaseKey, LeaseState};
use delta_store::read::JobRows;
use delta_wire::api::{LogState, LogView};

use super::artifacts;
use super::views::Left;
use crate::app::App;
use crate::objects::{LogExtent, Objects};

/// A log somebody can be shown.
pub struct Shown<'a> {
    pub attempt: &'a Attempt,
    pub lease: &'a Lease,
    pub extent: LogExtent,
}

impl Shown<'_> {
    pub fn key(&self) -> LeaseKey {
        self.attempt.id.lease(self.lease.epoch)
    }
}

/// All leases of a job, in the order in which they were given.
pub fn leases(rows: &JobRows) -> Vec<(&Attempt, &Lease)> {
    let mut all: Vec<(&Attempt, &Lease)> =
        rows.attempts.iter().flat_map(|it| of(rows, it)).collect();
    all.sort_by_key(|(attempt, lease)| (attempt.id.index, lease.epoch));
    all
}

fn of<'a>(
    rows: &'a JobRows,
    attempt: &'a Attempt,
) -> impl Iterator<Item = (&'a Attempt, &'a Lease)> {
    let past = rows.past_leases.iter().filter(|(id, _)| *id == attempt.id);
    let leases = past.map(|(_, lease)| lease).chain(&attempt.lease);
    leases.map(move |lease| (attempt, lease))
}

/// The log of the latest attempt that has one, or of the attempt named.
pub fn find<'a>(objects: &Objects, rows: &'a JobRows, only: Option<u32>) -> Option<Shown<'a>> {
    let attempts = rows.attempts.iter().rev();
    let mut wanted = attempts.filter(|it| only.is_none_or(|only| it.id.index == only));
    wanted.find_map(|attempt| shown(objects, rows, attempt).filter(|it| it.extent.readable > 0))
}

/// How many bytes of a log were stored once, of a job that has none to show now.
pub fn lost(rows: &JobRows, only: Option<u32>) -> Option<u64> {
    let attempts = rows.attempts.iter();
    let asked = attempts.filter(|it| only.is_none_or(|only| it.id.index == only));
    let stored = asked.filter_map(|it| {
        let declared = it.report.as_ref().and_then(|report| report.log);
        let handed_over = it.progress.log_bytes;
        declared.map(|(length, _)| length).or(handed_over)
    });
    stored.max().filter(|length| *length > 0)
}

/// The log of an attempt: that of the lease which ended it, or of the latest with bytes; `None`
/// when nobody ever took the attempt up.
fn shown<'a>(objects: &Objects, rows: &'a JobRows, attempt: &'a Attempt) -> Option<Shown<'a>> {
    let all = of(rows, attempt).map(|(attempt, lease)| Shown {
        attempt,
        lease,
        extent: objects
            .log_extent(attempt.id.lease(lease.epoch))
            .unwrap_or_default(),
    });
    let reported = attempt.report.is_some();
    let own = |it: &Shown<'_>| reported && it.is_latest();
    all.filter(|it| it.extent.bytes > 0 || it.lease.acknowledged_at.is_some())
        .max_by_key(|it| (own(it), it.extent.bytes > 0, it.lease.epoch))
}

impl Shown<'_> {
    /// It is the attempt's latest lease: what the attempt's row says is about it.
    fn is_latest(&self) -> bool {
        let latest = self.attempt.lease.as_ref();
        latest.is_some_and(|latest| latest.epoch == self.lease.epoch)
    }

    /// What is known of the log. May read all of it, once, to compare its hash.
    pub fn view(&self, objects: &Objects) -> LogView {
        let length = self.extent.bytes;
        let latest = Some(self.attempt).filter(|_| self.is_latest());
        let report = latest.and_then(|attempt| attempt.report.as_ref());
        let declared = report.and_then(|report| report.log);
        let handed_over = latest.and_then(|attempt| attempt.progress.log_bytes);
        let said = declared.map_or(handed_over.unwrap_or(0), |(length, _)| length);
        // I25: what the holder has left out cannot be missing here, and all is not there.
        let left_out = report.and_then(|report| report.log_dropped);
        let cut = self.extent.cut || left_out.is_some();
        let whole = match declared {
            _ if left_out.is_some() => false,
            Some((said, hash)) => {
                length == said && (said == 0 || objects.log_has_hash(self.key(), said, &hash))
            }
            // Without a word about it, what heartbeats said was handed over must be there.
            None => self.lease.state == LeaseState::Completed && length >= said && !self.extent.cut,
        };
        let state = match whole {
            _ if self.lease.state.is_live() => LogState::Open,
            true => LogState::Complete,
            false => LogState::Incomplete,
        };
        let missing = (said > length).then(|| said - length);
        LogView {
            length,
            state,
            complete: state == LogState::Complete,
            missing: missing.filter(|_| !self.extent.cut),
            cut,
            dropped: left_out.or(missing.filter(|_| self.extent.cut)),
        }
    }
}

/// Whether some of a log may come though its lease is over (I25, A42).
pub fn may_still_grow(attempt: &Attempt, lease: &Lease, app: &App) -> bool {
    let latest = attempt.lease.as_ref();
    let latest = latest.is_some_and(|latest| latest.epoch == lease.epoch);
    let late = attempt.late_log(&app.writer.shared().settings);
    late.is_some_and(|late| latest && app.writer.now() < late.until)
}

/// What is shown of the bytes an attempt left.
pub fn left(objects: &Objects, rows: &JobRows, attempt: &Attempt) -> Left {
    let log = shown(objects, rows, attempt);
    Left {
        log: log.map(|log| log.view(objects)),
        artifacts: artifacts::views(objects, attempt),
    }
}
