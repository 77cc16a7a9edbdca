//! Concurrency groups: of the members of one group, at most one is at work.
//!
//! A member is a run or a job. It enters the line when nothing else keeps it, takes its turn when
//! nobody has it and nobody older waits, and leaves when it is over. Older means: of a run that was
//! made earlier (A43). Owns who is whose turn; the rows say who is a member.

use std::collections::BTreeMap;

use crate::id::JobId;
use crate::time::Millis;
use crate::{Digest, Text};

/// Members that may wait in one group. Whoever waits behind a hundred others waits for something
/// that nobody wants any more.
pub const MAX_LINE: usize = 100;

/// The group of a run or of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// As people call it.
    pub group: Text,
    /// SHA-256 of it with whatever it is kept apart by: who is not meant to meet shares none.
    pub key: Digest,
    /// Whoever comes ends the older ones instead of waiting for them to be done.
    pub cancel_older: bool,
}

/// A place in the line of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub since: Millis,
    /// Since when it is this one's turn.
    pub taken_at: Option<Millis>,
}

impl Place {
    pub fn waits(&self) -> bool {
        self.taken_at.is_none()
    }
}

/// A member as the others of its group see it. Number 0 of a run is the run itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub id: JobId,
    pub taken: bool,
    pub cancel_older: bool,
}

/// The members of one group, the oldest first.
pub type Members = BTreeMap<JobId, Member>;

/// What is to be done about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is its turn.
    Take,
    /// A newer one ends it.
    Superseded,
    /// Too many wait before it.
    Full,
    Wait,
}

pub fn turn(id: JobId, members: &Members) -> Turn {
    if members
        .values()
        .any(|member| member.cancel_older && member.id.run > id.run)
    {
        return Turn::Superseded;
    }
    let Some(own) = members.get(&id).filter(|own| !own.taken) else {
        return Turn::Wait;
    };
    let mut before = members.range(..own.id).filter(|(_, it)| !it.taken);
    let held = members.values().any(|member| member.taken);
    match before.by_ref().take(MAX_LINE).count() {
        0 if !held => Turn::Take,
        MAX_LINE => Turn::Full,
        _ => Turn::Wait,
    }
}

/// Members about which something is to be done: at most `limit` of them.
pub fn due(members: &Members, limit: usize) -> Vec<JobId> {
    let ids = members.keys().copied();
    let due = ids.filter(|id| turn(*id, members) != Turn::Wait);
    due.take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;

    fn members(list: &[(u128, bool, bool)]) -> Members {
        let member = |(run, taken, cancel_older): &(u128, bool, bool)| Member {
            id: RunId(*run).job(0),
            taken: *taken,
            cancel_older: *cancel_older,
        };
        list.iter()
            .map(member)
            .map(|member| (member.id, member))
            .collect()
    }

    fn turns(list: &[(u128, bool, bool)]) -> Vec<Turn> {
        let members = members(list);
        members.keys().map(|id| turn(*id, &members)).collect()
    }

    #[test]
    fn one_at_a_time_and_the_oldest_first() {
        let (held, waits) = (true, false);
        assert_eq!(
            turns(&[(1, waits, false), (2, waits, false)]),
            [Turn::Take, Turn::Wait]
        );
        assert_eq!(
            turns(&[(1, waits, false), (2, held, false), (3, waits, false)]),
            [Turn::Wait, Turn::Wait, Turn::Wait],
            "an older one that comes late waits like everybody"
        );
    }

    #[test]
    fn a_newer_one_that_cancels_ends_every_older_one_and_waits_for_them() {
        assert_eq!(
            turns(&[(1, true, false), (2, false, true), (3, false, true)]),
            [Turn::Superseded, Turn::Superseded, Turn::Wait]
        );
        assert_eq!(
            turns(&[(1, false, true), (2, true, false)]),
            [Turn::Wait, Turn::Wait],
            "an older one ends nobody"
        );
    }

    #[test]
    fn jobs_of_one_run_never_end_each_other() {
        let run = RunId(1);
        let member = |n, taken| Member {
            id: run.job(n),
            taken,
            cancel_older: true,
        };
        let cells: Members = [member(1, true), member(2, false)]
            .into_iter()
            .map(|it| (it.id, it))
            .collect();
        assert_eq!(due(&cells, 9), []);
    }

    #[test]
    fn a_line_has_an_end() {
        let mut list: Vec<_> = (1..=MAX_LINE as u128 + 1)
            .map(|n| (n, n == 1, false))
            .collect();
        assert!(turns(&list).iter().all(|turn| *turn == Turn::Wait));
        list.push((1000, false, false));
        assert_eq!(turns(&list).last(), Some(&Turn::Full));
        assert_eq!(due(&members(&list), 9), [RunId(1000).job(0)]);
    }
}
