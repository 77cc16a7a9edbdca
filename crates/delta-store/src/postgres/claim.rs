//! Picking from the queue without ever waiting for another writer, and remembering when there is
//! nothing to pick.

use std::collections::{BTreeMap, BTreeSet};

use delta_core::{AttemptId, Text, Want, World};

use super::connect::Session;
use super::sql::Sql;
use super::store::PgStore;
use super::value::{Fields, escape};
use crate::{Claim, StoreError, world_lets_grant};

/// Of each key, so many more than asked for are looked at when there are several: those at the
/// front may be held by another writer, which claims about as many as we do.
const AHEAD: usize = 16;

/// What the last looks at the queue found, so that an idle batch costs no query. Trusted while
/// notifications arrive, and only until the next one, the next attempt queued here, or the next
/// sweep: a lost notification costs a second, not a job (D2).
#[derive(Default)]
pub(super) struct QueueMemory {
    /// Keys with nothing to claim, as of this count of notifications.
    empty: BTreeMap<Text, u64>,
    keys: Option<(u64, Vec<Text>)>,
}

impl QueueMemory {
    pub(super) fn forget(&mut self) {
        self.empty.clear();
        self.keys = None;
    }
}

impl PgStore {
    pub(super) fn claim_queued(
        &mut self,
        claim: &Claim,
        world: &mut World,
    ) -> Result<Vec<AttemptId>, StoreError> {
        // Read before the queue is: a notification that comes in between counts as new.
        let heard = self.listener.heard();
        let known_empty =
            |key: &Text| heard.is_some() && self.memory.empty.get(key) == heard.as_ref();
        let keys: BTreeSet<&Text> = claim.keys.iter().filter(|key| !known_empty(key)).collect();
        let keys: Vec<Text> = keys.into_iter().cloned().collect();
        if keys.is_empty() || claim.limit == 0 {
            return Ok(Vec::new());
        }
        let mut most = claim.limit + claim.skip.len();
        loop {
            let picked = self.pick(&keys, most)?;
            if picked.is_empty() {
                if let Some(heard) = heard {
                    self.memory
                        .empty
                        .extend(keys.into_iter().map(|key| (key, heard)));
                }
                return Ok(Vec::new());
            }
            let all = picked.len() < most;
            let fit = |id: &AttemptId| !claim.skip.contains(id) && world_lets_grant(world, *id);
            let fresh: Vec<AttemptId> = picked.into_iter().filter(fit).take(claim.limit).collect();
            let wants: BTreeSet<Want> = fresh.iter().map(|id| Want::Attempt(*id)).collect();
            self.load_wants(&wants, world)?;
            // What left the queue after the look at it is seen now, under the run's lock.
            let queued = |id: &AttemptId| world_lets_grant(world, *id);
            let queued: Vec<AttemptId> = fresh.into_iter().filter(queued).collect();
            if !queued.is_empty() || all {
                return Ok(queued);
            }
            // This batch moved all of those at the front: look further back.
            most *= 4;
        }
    }

    fn pick(&mut self, keys: &[Text], limit: usize) -> Result<Vec<AttemptId>, StoreError> {
        let (most, each) = (limit as i64, (limit * 2 + AHEAD) as i64);
        let keys: Vec<_> = keys.iter().map(|key| escape(key)).collect();
        let rows = self.in_batch(async |session: &Session| match keys.as_slice() {
            [key] => session.rows(Sql::ClaimOne, &[key, &most]).await,
            keys => session.rows(Sql::ClaimSome, &[&keys, &most, &each]).await,
        })?;
        rows.iter().map(|row| Fields::of(row).attempt()).collect()
    }

    pub(super) fn queued_keys(&mut self) -> Result<Vec<Text>, StoreError> {
        let heard = self.listener.heard();
        if let (Some(heard), Some((then, keys))) = (heard, &self.memory.keys)
            && heard == *then
        {
            return Ok(keys.clone());
        }
        let rows =
            self.anywhere(async |session: &Session| session.rows(Sql::MatchKeys, &[]).await)?;
        let keys: Vec<Text> = rows
            .iter()
            .map(|row| Fields::of(row).text())
            .collect::<Result<_, _>>()?;
        self.memory.keys = heard.map(|heard| (heard, keys.clone()));
        Ok(keys)
    }
}
