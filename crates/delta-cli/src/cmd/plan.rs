//! `delta-ci plan`: what would run here, as a graph, with the reason for each job and each
//! omission, and what each job is planned with. Executes nothing.

mod about;

use std::collections::HashMap;
use std::path::PathBuf;

use delta_planner::{Included, Plan};
use delta_wire::nearest::nearest;
use serde_json::json;

use crate::clean;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::given;
use crate::planning::{self, Asked, Planned};
use crate::terminal::{Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci plan                        what `delta-ci run` would run here, and why
  delta-ci plan --job unit             everything about one job
  delta-ci plan --full                 everything about all of them
  delta-ci plan --all                  whatever changed
  delta-ci plan --base origin/main     what changed since the merge base with it
  delta-ci plan --event push --branch main
  delta-ci plan --tag v1.2 --input level=production
  delta-ci plan --json path/to/checkout
  delta-ci plan --schema > v1.schema.json

Without .delta-ci.yaml the repository is looked at: Cargo, npm, pnpm, yarn, Python, Go, Make.
Nothing of it is executed. What changed is everything since the merge base with the main branch,
and what is not committed; what is uncertain runs.";

/// Steps of a job that are shown; the rest is counted.
const SHOWN_STEPS: usize = 6;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A folder, or a pipeline file
    #[arg(value_name = "PATH", default_value = ".")]
    path: PathBuf,
    /// Only this job, or the cells of this matrix, and everything about it; repeatable
    #[arg(long, value_name = "NAME")]
    job: Vec<String>,
    /// Everything about each job: whole scripts, variables, keys of caches and so on
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    asked: Asked,
    /// The JSON Schema of the pipeline file, for editors, and nothing else
    #[arg(long)]
    schema: bool,
}

pub fn run(args: Args, terminal: &Terminal) -> Done {
    if args.schema {
        terminal.value(&delta_planner::schema());
        return Ok(Exit::Ok);
    }
    let planned = planning::plan(&args.path, &args.asked)?;
    planning::say_warnings(&planned, terminal);
    if terminal.json {
        terminal.value(&as_json(&planned));
    } else if args.job.is_empty() {
        show(&planned, args.full, terminal);
    } else {
        show_jobs(&planned, &args.job, terminal)?;
    }
    Ok(Exit::Ok)
}

fn as_json(planned: &Planned) -> serde_json::Value {
    let reasons = planned
        .plan
        .jobs
        .iter()
        .map(|it| (it.job.name.clone(), json!(it.reason)));
    let omitted = planned.plan.omitted.iter();
    let left_out = planned.remarks.iter();
    let cells = planned.plan.jobs.iter().filter_map(|it| {
        let cell = it.job.cell.as_ref()?;
        let values = cell
            .values
            .iter()
            .cloned()
            .map(|(name, it)| (name, json!(it)));
        let values: serde_json::Map<_, _> = values.collect();
        Some((
            it.job.name.clone(),
            json!({"job": cell.job, "values": values}),
        ))
    });
    let warnings = planned.plan.warnings().iter().map(|it| {
        json!({
            "file": it.file,
            "line": it.line,
            "column": it.column,
            "message": it.reason,
            "suggestion": it.suggestion,
        })
    });
    json!({
        "from": match &planned.file {
            Some(file) => json!(given::shown(file)),
            None => json!("discovery"),
        },
        "changed": planned.changed,
        "warnings": warnings.collect::<Vec<_>>(),
        "cells": cells.collect::<serde_json::Map<_, _>>(),
        "run": planned.plan.to_request(),
        "reasons": reasons.collect::<serde_json::Map<_, _>>(),
        "omitted": omitted
            .map(|it| json!({"name": it.name, "reason": it.reason}))
            .collect::<Vec<_>>(),
        "left_out": left_out
            .map(|it| json!({"what": it.what, "reason": it.reason}))
            .collect::<Vec<_>>(),
    })
}

fn show(planned: &Planned, full: bool, terminal: &Terminal) {
    let from = match &planned.file {
        Some(file) => format!("planned by {}", clean::text(&given::shown(file))),
        None => format!(
            "found by looking; {} would decide",
            delta_planner::FILE_NAME
        ),
    };
    terminal.say(&format!("{from}; {}", clean::text(&planned.changed)));
    let look = Look {
        full,
        shared: shared_reason(&planned.plan),
        width: width(terminal),
    };
    // What was taken as changed is in the line above.
    let why = planned.changed.split(": ").next().unwrap_or_default();
    if !look.shared.is_empty() && !look.shared.contains(why) {
        terminal.say(&format!("every job: {}", clean::text(look.shared)));
    }
    for line in graph(&planned.plan, &look, terminal) {
        terminal.data(&line);
    }
    let quiet = |text: &str| terminal.paint_out(Tone::Quiet, text);
    for omitted in &planned.plan.omitted {
        let (name, reason) = (clean::text(&omitted.name), clean::text(&omitted.reason));
        terminal.data(&format!("- {name}  {}", quiet(&reason)));
    }
    for remark in &planned.remarks {
        let (what, reason) = (clean::text(&remark.what), clean::text(&remark.reason));
        terminal.data(&quiet(&format!("? {what}  {reason}")));
    }
    if planned.plan.jobs.is_empty() {
        terminal.data("nothing to run; --all runs everything");
    }
}

/// Some jobs alone, with everything about them.
fn show_jobs(planned: &Planned, names: &[String], terminal: &Terminal) -> Result<(), Failure> {
    for name in names {
        let of = |it: &&Included| {
            let matrix = it.job.cell.as_ref().is_some_and(|cell| cell.job == *name);
            it.job.name == *name || matrix
        };
        let found: Vec<&Included> = planned.plan.jobs.iter().filter(of).collect();
        if found.is_empty() {
            return Err(no_job(&planned.plan, name));
        }
        let look = Look {
            full: true,
            shared: "",
            width: width(terminal),
        };
        for included in found {
            let mut lines = Vec::new();
            job_lines(included, 0, &look, terminal, &mut lines);
            lines.iter().for_each(|line| terminal.data(line));
        }
    }
    Ok(())
}

fn no_job(plan: &Plan, name: &str) -> Failure {
    let omitted = plan.omitted.iter().find(|it| it.name == name);
    if let Some(omitted) = omitted {
        let what = format!("job `{}` is left out", clean::text(name));
        return Failure::new(Exit::NotFound, what)
            .because(clean::text(&omitted.reason))
            .next("--all plans everything");
    }
    let names = plan.jobs.iter().map(|it| it.job.name.as_str());
    let next = match nearest(name, names) {
        Some(near) => format!("did you mean `{}`?", clean::text(near)),
        None => "delta-ci plan lists them".to_owned(),
    };
    let what = format!("there is no job `{}` in the plan", clean::text(name));
    Failure::new(Exit::NotFound, what).next(next)
}

/// How jobs are shown.
struct Look<'a> {
    /// With everything that is known of them.
    full: bool,
    /// How the reason of each of them ends; empty where they differ to the end.
    shared: &'a str,
    width: usize,
}

/// What stands between the parts of a reason.
const PART: &str = "; ";

/// The parts with which the reason of every job ends, where there is more than one job.
fn shared_reason(plan: &Plan) -> &str {
    let Some(first) = plan.jobs.first().filter(|_| plan.jobs.len() > 1) else {
        return "";
    };
    let begins = first.reason.match_indices(PART);
    let tails = begins.map(|(at, _)| &first.reason[at + PART.len()..]);
    let mut tails = std::iter::once(first.reason.as_str()).chain(tails);
    let is_tail = |reason: &str, tail: &str| match reason.strip_suffix(tail) {
        Some(before) => before.is_empty() || before.ends_with(PART),
        None => false,
    };
    let shared = tails.find(|tail| plan.jobs.iter().all(|it| is_tail(&it.reason, tail)));
    shared.unwrap_or_default()
}

/// Columns there are; a program that reads gets whole lines.
fn width(terminal: &Terminal) -> usize {
    match terminal.out_is_terminal() {
        true => usize::from(crate::terminal::size().1),
        false => usize::MAX,
    }
}

/// Each job below the one it waits for longest, indented by how many must end before it.
fn graph(plan: &Plan, look: &Look<'_>, terminal: &Terminal) -> Vec<String> {
    let index: HashMap<&str, usize> = plan
        .jobs
        .iter()
        .enumerate()
        .map(|(at, it)| (it.job.name.as_str(), at))
        .collect();
    let depths = depths(plan, &index);
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); plan.jobs.len()];
    let mut roots = Vec::new();
    for (at, included) in plan.jobs.iter().enumerate() {
        let needs = included
            .job
            .needs
            .iter()
            .filter_map(|it| index.get(it.as_str()));
        match needs.max_by_key(|need| depths[**need]) {
            Some(need) => children[*need].push(at),
            None => roots.push(at),
        }
    }
    let mut lines = Vec::new();
    let mut open: Vec<usize> = roots.into_iter().rev().collect();
    while let Some(at) = open.pop() {
        job_lines(&plan.jobs[at], depths[at], look, terminal, &mut lines);
        open.extend(children[at].iter().rev());
    }
    lines
}

/// How many jobs in a row must end before each. A plan has no circles.
fn depths(plan: &Plan, index: &HashMap<&str, usize>) -> Vec<usize> {
    let mut depths: Vec<Option<usize>> = vec![None; plan.jobs.len()];
    for start in 0..plan.jobs.len() {
        let mut open = vec![start];
        while let Some(&at) = open.last() {
            let needs = plan.jobs[at].job.needs.iter();
            let needs: Vec<usize> = needs
                .filter_map(|it| index.get(it.as_str()).copied())
                .collect();
            match needs
                .iter()
                .find(|it| depths[**it].is_none() && !open.contains(it))
            {
                Some(next) => open.push(*next),
                None => {
                    let deepest = needs.iter().filter_map(|it| depths[*it]).max();
                    depths[at] = Some(deepest.map_or(0, |it| it + 1));
                    open.pop();
                }
            }
        }
    }
    depths.into_iter().map(Option::unwrap_or_default).collect()
}

fn job_lines(
    included: &Included,
    depth: usize,
    look: &Look<'_>,
    terminal: &Terminal,
    lines: &mut Vec<String>,
) {
    let job = &included.job;
    let indent = "   ".repeat(depth);
    let mark = if depth == 0 { "● " } else { "└─ " };
    let name = terminal.paint_out(Tone::Strong, &clean::text(&job.name));
    let needs = match job.needs.len() {
        0 | 1 => String::new(),
        _ => format!("  (needs {})", clean::text(&job.needs.join(", "))),
    };
    let own = included.reason.strip_suffix(look.shared);
    let own = own.unwrap_or(&included.reason);
    let reason = match own.strip_suffix(PART).unwrap_or(own) {
        "" => String::new(),
        own => format!("  {}", clean::text(own)),
    };
    lines.push(format!("{indent}{mark}{name}{needs}{reason}"));
    let within = format!("{indent}{}", if depth == 0 { "│   " } else { "     " });
    let quiet = |text: &str| terminal.paint_out(Tone::Quiet, &format!("{within}{text}"));
    if look.full {
        let steps = job.steps.iter().flat_map(about::step_in_full);
        lines.extend(steps.chain(about::in_full(job)).map(|line| quiet(&line)));
        return;
    }
    for step in job.steps.iter().take(SHOWN_STEPS) {
        let first = step.spec.label();
        lines.push(quiet(&format!("$ {}", clean::text(&first))));
    }
    if job.steps.len() > SHOWN_STEPS {
        let more = job.steps.len() - SHOWN_STEPS;
        lines.push(quiet(&format!("$ … {more} more steps")));
    }
    let room = look.width.saturating_sub(within.chars().count());
    let about = about::wrapped(&about::in_short(job), room);
    lines.extend(about.iter().map(|line| quiet(line)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::When;

    #[test]
    fn a_job_stands_below_what_it_waits_for() {
        let text = b"jobs:\n  a: {steps: [x]}\n  d: {needs: [a, c], steps: [x]}\n  \
                     b: {steps: [y]}\n  c: {needs: [a], steps: [z]}\n";
        let pipeline = delta_planner::parse("f", text).unwrap();
        let plan = delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap();
        let terminal = Terminal::new(false, When::Never);
        let look = Look {
            full: false,
            shared: shared_reason(&plan),
            width: 80,
        };
        assert_eq!(look.shared, "it has no condition");
        let lines = graph(&plan, &look, &terminal);
        let jobs: Vec<&str> = lines
            .iter()
            .filter(|it| it.contains('●') || it.contains('└'))
            .map(String::as_str)
            .collect();
        assert_eq!(jobs, ["● a", "   └─ c", "      └─ d  (needs a, c)", "● b"]);
    }

    #[test]
    fn what_all_reasons_end_with_is_said_once() {
        let planned = |text: &str| {
            let pipeline = delta_planner::parse("f", text.as_bytes()).unwrap();
            delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap()
        };
        let alone = planned("jobs: {a: {steps: [x]}}");
        assert_eq!(shared_reason(&alone), "");
        let mixed = planned("jobs: {a: {steps: [x]}, b: {steps: [x], if: 'true'}}");
        assert_eq!(shared_reason(&mixed), "");
        let mut both = planned("jobs: {a: {steps: [x]}, b: {steps: [x]}}");
        both.jobs[0].reason = "Cargo.toml: tests; found; everything runs".to_owned();
        both.jobs[1].reason = "Makefile: tests; found; everything runs".to_owned();
        assert_eq!(shared_reason(&both), "found; everything runs");
        let look = Look {
            full: false,
            shared: shared_reason(&both),
            width: 80,
        };
        let terminal = Terminal::new(false, When::Never);
        let lines = graph(&both, &look, &terminal);
        assert_eq!(lines[0], "● a  Cargo.toml: tests");
        both.jobs[1].reason = "not everything runs".to_owned();
        assert_eq!(shared_reason(&both), "", "only whole parts");
    }
}
