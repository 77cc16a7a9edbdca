//! The order of jobs by `needs`: unknown names and cycles. Pure; knows names and places only.

use std::collections::HashMap;

use crate::yaml::Place;

/// One job and the names it needs, each with the place where it is written.
pub(crate) struct Needs {
    pub name: String,
    pub needs: Vec<(String, Place)>,
}

/// A cycle as the names walked, first and last the same, and the place of the need that closes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    pub path: Vec<String>,
    pub place: Place,
}

/// Finds at most `limit` cycles, without recursion: a file may chain ten thousand jobs. Unknown
/// names are skipped; the caller has reported them.
pub(crate) fn cycles(jobs: &[Needs], limit: usize) -> Vec<Cycle> {
    let index: HashMap<&str, usize> = jobs
        .iter()
        .enumerate()
        .map(|(at, job)| (job.name.as_str(), at))
        .collect();
    let mut state = vec![Mark::New; jobs.len()];
    let mut found = Vec::new();
    for start in 0..jobs.len() {
        if state[start] != Mark::New {
            continue;
        }
        // Each entry is a job on the current path and the next of its needs to look at.
        let mut path = vec![(start, 0)];
        state[start] = Mark::OnPath;
        while let Some((job, next)) = path.last_mut() {
            let Some((name, place)) = jobs[*job].needs.get(*next) else {
                state[*job] = Mark::Done;
                path.pop();
                continue;
            };
            *next += 1;
            if found.len() == limit {
                return found;
            }
            let Some(&target) = index.get(name.as_str()) else {
                continue;
            };
            match state[target] {
                Mark::New => {
                    state[target] = Mark::OnPath;
                    path.push((target, 0));
                }
                Mark::OnPath => found.push(Cycle {
                    path: names(jobs, &path, target),
                    place: *place,
                }),
                Mark::Done => {}
            }
        }
    }
    found
}

/// Each behind those it needs, without recursion. What is in a circle is left out.
pub(crate) fn in_order(jobs: &[Needs]) -> Vec<usize> {
    let named = jobs.iter().enumerate();
    let index: HashMap<&str, usize> = named.map(|(at, job)| (job.name.as_str(), at)).collect();
    let (mut open, mut dependents) = (vec![0_usize; jobs.len()], vec![Vec::new(); jobs.len()]);
    for (at, job) in jobs.iter().enumerate() {
        for (need, _) in &job.needs {
            if let Some(&need) = index.get(need.as_str()) {
                open[at] += 1;
                dependents[need].push(at);
            }
        }
    }
    let mut order: Vec<usize> = (0..jobs.len()).filter(|at| open[*at] == 0).collect();
    let mut next = 0;
    while let Some(&done) = order.get(next) {
        next += 1;
        for &at in &dependents[done] {
            open[at] -= 1;
            if open[at] == 0 {
                order.push(at);
            }
        }
    }
    order
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    OnPath,
    Done,
}

fn names(jobs: &[Needs], path: &[(usize, usize)], target: usize) -> Vec<String> {
    let from = path.iter().position(|(job, _)| *job == target).unwrap_or(0);
    let walked = path[from..].iter().map(|(job, _)| *job);
    walked
        .chain([target])
        .map(|job| jobs[job].name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, needs: &[&str]) -> Needs {
        let place = Place {
            line: 1,
            column: 1,
            width: 1,
        };
        let needs = needs
            .iter()
            .map(|need| ((*need).to_owned(), place))
            .collect();
        Needs {
            name: name.to_owned(),
            needs,
        }
    }

    #[test]
    fn a_diamond_is_no_cycle() {
        let jobs = [
            job("a", &[]),
            job("b", &["a"]),
            job("c", &["a"]),
            job("d", &["b", "c"]),
        ];
        assert!(cycles(&jobs, 10).is_empty());
    }

    #[test]
    fn a_cycle_is_the_path_walked() {
        let jobs = [
            job("x", &["a"]),
            job("a", &["b"]),
            job("b", &["c"]),
            job("c", &["a"]),
        ];
        let found = cycles(&jobs, 10);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, ["a", "b", "c", "a"]);
    }

    #[test]
    fn a_job_that_needs_itself_is_a_cycle_and_a_long_chain_is_none() {
        assert_eq!(cycles(&[job("a", &["a"])], 10)[0].path, ["a", "a"]);
        let mut jobs = vec![job("0", &[])];
        for n in 1..20_000_u32 {
            let before = (n - 1).to_string();
            jobs.push(job(&n.to_string(), &[before.as_str()]));
        }
        assert!(cycles(&jobs, 10).is_empty());
    }
}
