//! The jobs of a run as a graph: unique names, needs that exist, no job that waits for itself.

use std::collections::HashMap;

use super::create_run::CreateJob;
use crate::invalid::{Invalid, Problems};
use crate::nearest::nearest;

/// Notes everything wrong with names and needs.
pub fn check(jobs: &[CreateJob], problems: &mut Problems) {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (index, job) in jobs.iter().enumerate() {
        if let Some(first) = by_name.get(job.name.as_str()) {
            let message = format!("`{}` is also the name of jobs[{first}]", job.name);
            problems.push(Invalid::field(format!("jobs[{index}].name"), message));
        } else {
            by_name.insert(&job.name, index);
        }
    }
    let needs: Vec<Vec<usize>> = (0..jobs.len())
        .map(|index| resolve(index, jobs, &by_name, problems))
        .collect();
    if let Some(cycle) = find_cycle(&needs) {
        let mut names: Vec<&str> = cycle.iter().map(|it| jobs[*it].name.as_str()).collect();
        names.extend(names.first().copied());
        let message = format!("these jobs wait for each other: {}", names.join(" -> "));
        problems.push(Invalid::field(format!("jobs[{}].needs", cycle[0]), message));
    }
}

/// The indices of a job's needs; what cannot be resolved is noted and left out.
fn resolve(
    index: usize,
    jobs: &[CreateJob],
    by_name: &HashMap<&str, usize>,
    problems: &mut Problems,
) -> Vec<usize> {
    let job = &jobs[index];
    let others = || {
        jobs.iter()
            .map(|it| it.name.as_str())
            .filter(|name| *name != job.name)
    };
    let mut found = Vec::with_capacity(job.needs.len());
    for (position, need) in job.needs.iter().enumerate() {
        let message = match by_name.get(need.as_str()) {
            Some(_) if *need == job.name => "a job cannot need itself".to_owned(),
            Some(other) if found.contains(other) => format!("`{need}` is listed twice"),
            Some(other) => {
                found.push(*other);
                continue;
            }
            None => match nearest(need, others()) {
                Some(known) => format!("no job is named `{need}`; did you mean `{known}`?"),
                None => format!("no job is named `{need}`"),
            },
        };
        problems.push(Invalid::field(
            format!("jobs[{index}].needs[{position}]"),
            message,
        ));
    }
    found
}

/// One cycle, in the order the jobs need each other. Jobs are taken away as long as one needs
/// nothing that is left (Kahn); what remains needs something that remains, so walking along needs
/// must come back to a job already seen.
fn find_cycle(needs: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut waiting: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut dependents = vec![Vec::new(); needs.len()];
    for (job, needed) in needs.iter().enumerate() {
        for need in needed {
            dependents[*need].push(job);
        }
    }
    let mut ready: Vec<usize> = (0..needs.len()).filter(|job| waiting[*job] == 0).collect();
    while let Some(job) = ready.pop() {
        for dependent in &dependents[job] {
            waiting[*dependent] -= 1;
            if waiting[*dependent] == 0 {
                ready.push(*dependent);
            }
        }
    }
    let mut path: Vec<usize> = Vec::new();
    let mut job = (0..needs.len()).find(|job| waiting[*job] > 0)?;
    loop {
        if let Some(start) = path.iter().position(|seen| *seen == job) {
            return Some(path.split_off(start));
        }
        path.push(job);
        job = needs[job].iter().copied().find(|need| waiting[*need] > 0)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_in_its_own_order() {
        // 0 needs 1, 1 needs 2, 2 needs 1; 3 stands apart.
        assert_eq!(
            find_cycle(&[vec![1], vec![2], vec![1], vec![]]),
            Some(vec![1, 2])
        );
    }

    #[test]
    fn a_diamond_is_no_cycle() {
        assert_eq!(find_cycle(&[vec![], vec![0], vec![0], vec![1, 2]]), None);
    }

    #[test]
    fn a_long_chain_is_walked_without_recursion() {
        let mut chain: Vec<Vec<usize>> = (0..1000).map(|job| vec![(job + 1) % 1000]).collect();
        assert_eq!(find_cycle(&chain).map(|cycle| cycle.len()), Some(1000));
        chain[999].clear();
        assert_eq!(find_cycle(&chain), None);
    }
}
