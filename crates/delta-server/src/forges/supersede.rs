//! Which runs of a pull request are older than another (A43): ordered by the request's head as the
//! forge states it when a run is planned; where that does not tell, by when they came. A rerun is
//! nobody's newer: a person asked for it. What is newer than it came after it.
//!
//! Runs of a branch end each other where the pipeline file says so, in the order they came, which
//! the core keeps. One that came late, behind the head's own, is left out of it.
//!
//! Whoever asks lists the runs first and then looks at the head: a run that is listed was pushed
//! before, so the head is at least as new as everything on the list, and nobody ends a newer one.

use delta_core::RunId;

/// A run of the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub id: RunId,
    pub commit: String,
    pub live: bool,
    /// Somebody asked for it, after another had ended.
    pub rerun: bool,
}

/// What follows for a run and for those beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// A newer one is there already.
    pub is_old: bool,
    /// Those that it takes the place of.
    pub ends: Vec<RunId>,
}

/// Ids rise with the moment a run was made.
pub fn judge(id: RunId, commit: &str, head: &str, others: &[Other]) -> Outcome {
    let rank = |id: RunId, commit: &str| (commit == head, id);
    let own = rank(id, commit);
    let others = others.iter().filter(|other| other.id != id);
    let (reruns, others): (Vec<_>, Vec<_>) = others.partition(|other| other.rerun);
    let mut outcome = Outcome::default();
    for other in others {
        match rank(other.id, &other.commit) > own {
            true => outcome.is_old = true,
            false if other.live => outcome.ends.push(other.id),
            false => {}
        }
    }
    // Whoever asked for one after this came knew what it is.
    let earlier = |other: &&Other| other.live && other.id < id;
    let older = |other: &&Other| rank(other.id, &other.commit) < own;
    if !outcome.is_old {
        let ended = reruns.into_iter().filter(earlier).filter(older);
        outcome.ends.extend(ended.map(|other| other.id));
    }
    outcome
}

/// Whether a run is not of the head, and one of the head is there, over or not.
pub fn is_behind(commit: &str, head: &str, others: &[Other]) -> bool {
    let of_head = |other: &Other| !other.rerun && other.commit == head;
    commit != head && others.iter().any(of_head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(id: u128, commit: &str) -> Other {
        Other {
            id: RunId(id),
            commit: commit.into(),
            live: true,
            rerun: false,
        }
    }

    fn judged(id: u128, commit: &str, head: &str, others: &[Other]) -> (bool, Vec<u128>) {
        let outcome = judge(RunId(id), commit, head, others);
        (outcome.is_old, outcome.ends.iter().map(|id| id.0).collect())
    }

    #[test]
    fn the_head_is_the_newest_whenever_it_came() {
        // A43: deliveries in any order.
        let all = [other(1, "c5"), other(2, "c3"), other(3, "c4")];
        assert_eq!(judged(1, "c5", "c5", &all), (false, vec![2, 3]));
        assert_eq!(judged(2, "c3", "c5", &all), (true, vec![]));
        assert_eq!(judged(3, "c4", "c5", &all), (true, vec![2]));
    }

    #[test]
    fn among_equals_the_later_one_counts() {
        // Back to a commit that ran before, or a head whose delivery is still on its way.
        let back = [other(1, "a"), other(2, "b"), other(3, "a")];
        assert_eq!(judged(3, "a", "a", &back), (false, vec![1, 2]));
        assert_eq!(judged(1, "a", "a", &back), (true, vec![2]));
        assert_eq!(judged(2, "b", "a", &back), (true, vec![]));
        let waiting = [other(1, "a"), other(2, "b")];
        assert_eq!(judged(2, "b", "z", &waiting), (false, vec![1]));
    }

    #[test]
    fn no_two_runs_end_each_other_and_one_is_left() {
        let all: Vec<Other> = (1..=6).map(|n| other(n, &format!("c{}", n % 4))).collect();
        for head in ["c0", "c1", "c2", "c3", "c9"] {
            let verdicts: Vec<_> = all
                .iter()
                .map(|it| (it.id.0, judge(it.id, &it.commit, head, &all)))
                .collect();
            let left = verdicts.iter().filter(|(_, it)| !it.is_old).count();
            assert_eq!(left, 1, "{head}");
            for (id, verdict) in &verdicts {
                for ended in &verdict.ends {
                    let back = &verdicts.iter().find(|(it, _)| *it == ended.0).unwrap().1;
                    assert!(!back.ends.contains(&RunId(*id)), "{head}");
                }
            }
        }
    }

    #[test]
    fn what_has_ended_is_not_ended_again_but_counts() {
        let mut over = other(2, "c5");
        over.live = false;
        assert_eq!(judged(3, "c3", "c5", &[over.clone()]), (true, vec![]));
        assert_eq!(judged(3, "c5", "c5", &[over]), (false, vec![]));
    }

    #[test]
    fn a_rerun_ends_for_a_newer_head_and_is_nobodys_newer() {
        let again = |id, commit| Other {
            rerun: true,
            ..other(id, commit)
        };
        let all = [other(1, "c1"), again(2, "c1"), other(3, "c2")];
        assert_eq!(judged(3, "c2", "c2", &all), (false, vec![1, 2]));
        // Asked for when the newer one was there.
        let all = [other(1, "c1"), other(2, "c2"), again(3, "c1")];
        assert_eq!(judged(2, "c2", "c2", &all), (false, vec![1]));
        // And what comes late does not end it, being old itself.
        let all = [other(1, "c3"), again(2, "c1"), other(3, "c2")];
        assert_eq!(judged(3, "c2", "c3", &all), (true, vec![]));
        // The same head again: the rerun does not keep it from running.
        let all = [other(1, "c1"), other(2, "c1"), again(3, "c1")];
        assert_eq!(judged(2, "c1", "c1", &all), (false, vec![1]));
    }

    #[test]
    fn who_is_behind_knows_a_run_of_the_head() {
        let all = [other(1, "c2"), other(2, "c1")];
        assert!(is_behind("c1", "c2", &all));
        assert!(!is_behind("c2", "c2", &all));
        assert!(
            !is_behind("c1", "c3", &all),
            "nobody else would run in its place"
        );
    }
}
