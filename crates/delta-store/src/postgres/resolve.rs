//! A commit whose answer was lost: was it done?
//!
//! The server knows by the transaction's id, which every batch reads with its BEGIN. While that
//! transaction is still open, which a session cut off in the middle may be, nothing may be
//! concluded: it could commit after we looked. So the first step is to see it ended, and to end it
//! where it lingers. Then, where the batch wrote events, the last of them decides, by its hash:
//! this also holds after a failover to a server that counts transactions differently. A batch
//! without events holds renewals only. For it the transaction's own status decides, and where
//! there is none "no" is safe: heartbeats that are decided again renew the same leases, by the
//! same stamps, to the same moments.

use std::time::{Duration, Instant};

use delta_core::{Digest, RunId};

use super::connect::{ANSWER_DEADLINE, Session};
use super::error::Trouble;
use super::sql::Sql;
use super::store::PgStore;
use super::value::uuid;
use crate::StoreError;
use crate::codec::column;

/// A session that is told to end is gone in milliseconds.
const PAUSE: Duration = Duration::from_millis(20);

/// A commit that was sent: its transaction, and the last row of its events if it has any, by run,
/// first version and hash.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) xid: String,
    pub(super) last: Option<(RunId, u64, Digest)>,
}

impl PgStore {
    pub(super) fn resolve_sent(&mut self) -> Result<bool, StoreError> {
        let Some(sent) = self.sent.clone() else {
            return Ok(false);
        };
        let committed = self.ended(&sent.xid)?;
        match sent.last {
            Some((run, first, hash)) if committed != Some(false) => {
                self.has_events(run, first, hash)
            }
            _ => Ok(committed == Some(true)),
        }
    }

    /// Whether a transaction was committed, once it is over; `None` when the server does not know
    /// it.
    pub(super) fn ended(&mut self, xid: &str) -> Result<Option<bool>, StoreError> {
        let until = Instant::now() + ANSWER_DEADLINE;
        loop {
            let status = self.status(xid)?;
            match status.as_deref() {
                Some("committed") => return Ok(Some(true)),
                Some("aborted") => return Ok(Some(false)),
                Some("in progress") if Instant::now() < until => {
                    self.again_if_lost(async |session: &Session| {
                        session.rows(Sql::EndXact, &[&xid]).await
                    })?;
                    self.sleep(PAUSE);
                }
                Some("in progress") => {
                    let text = "the lost transaction is still open on the server";
                    return Err(StoreError::Unavailable(text.into()));
                }
                _ => return Ok(None),
            }
        }
    }

    fn status(&mut self, xid: &str) -> Result<Option<String>, StoreError> {
        let asked = self
            .again_if_lost(async |session: &Session| session.rows(Sql::XactStatus, &[&xid]).await);
        match asked {
            Ok(rows) => Ok(rows.first().and_then(|row| row.get(0))),
            // "in the future": not a transaction of this server's history.
            Err(Trouble::Wrong(_)) => Ok(None),
            Err(trouble) => Err(trouble.into()),
        }
    }

    fn has_events(&mut self, run: RunId, first: u64, hash: Digest) -> Result<bool, StoreError> {
        let (run, first, hash) = (uuid(run), column::signed(first), hash.as_slice());
        let rows = self.again_if_lost(async |session: &Session| {
            session
                .rows(Sql::EventIsThere, &[&run, &first, &hash])
                .await
        })?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}

#[cfg(test)]
mod tests {
    use delta_core::{RunId, Want, World};
    use delta_testkit::postgres::fresh_database;

    use super::*;
    use crate::Store;

    #[test]
    fn a_transaction_that_lingers_is_ended_before_it_is_judged() {
        // F19: cut off from its server, but not yet missed by it.
        let database = fresh_database().expect("a database");
        let (mut lingering, _, _) = crate::postgres::open(&database.url).expect("opens");
        let (mut store, _, _) = crate::postgres::open(&database.url).expect("opens");
        lingering.begin().expect("begins");
        let xid = lingering.batch.as_ref().expect("a batch").xid.clone();
        store.sent = Some(Sent { xid, last: None });
        assert!(!store.resolve_sent().expect("resolved"));
        let wants = [Want::Run(RunId(1))].into();
        assert!(lingering.load(&wants, &mut World::default()).is_err());
        lingering.rollback();
        assert!(lingering.begin().is_ok(), "it starts anew");
    }
}
