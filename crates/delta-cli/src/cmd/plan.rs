//! `delta-ci plan`: what would run here, as a graph, with the reason for each job and each
//! omission, and what each job is planned with. Executes nothing.

mod job_details;

use std::collections::HashMap;
use std::path::PathBuf;

use delta_planner::{Included, Plan};
use delta_wire::nearest::nearest;
use serde_json::json;

use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::planning::{self, Asked, Planned};
use crate::sanitize;
use crate::secret_input;
use crate::terminal::{Terminal, Tone};
use crate::wrap;

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
    let asked = args.asked.naming(!args.job.is_empty());
    let planned = planning::plan(&args.path, &asked)?;
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
            Some(file) => json!(secret_input::shown(file)),
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
        "left_out": planning::left_out(&planned.remarks),
    })
}

fn show(planned: &Planned, full: bool, terminal: &Terminal) {
    let from = match &planned.file {
        Some(file) => format!("planned by {}", sanitize::text(&secret_input::shown(file))),
        None => format!(
            "found by looking; {} would decide",
            delta_planner::FILE_NAME
        ),
    };
    terminal.say(&format!("{from}; {}", sanitize::text(&planned.changed)));
    let look = Look {
        full,
        shared: shared_reason(&planned.plan, reason_of(&planned.changed)),
        width: width(terminal),
    };
    // What was taken as changed is in the line above.
    let why = reason_of(&planned.changed);
    if !look.shared.is_empty() && !look.shared.contains(why) {
        terminal.say(&format!("every job: {}", sanitize::text(look.shared)));
    }
    for line in graph(&planned.plan, &look, terminal) {
        terminal.data(&line);
    }
    let quiet = |text: &str| terminal.paint_out(Tone::Quiet, text);
    for omitted in &planned.plan.omitted {
        let (name, reason) = (
            sanitize::text(&omitted.name),
            sanitize::text(&omitted.reason),
        );
        terminal.sentence(&format!("- {name}  {}", quiet(&reason)));
    }
    for remark in &planned.remarks {
        let (what, reason) = (sanitize::text(&remark.what), sanitize::text(&remark.reason));
        terminal.sentence(&quiet(&format!("? {what}  {reason}")));
    }
    if planned.plan.jobs.is_empty() {
        terminal.sentence("nothing to run; --all runs everything");
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
        let what = format!("job `{}` is left out", sanitize::text(name));
        return Failure::new(Exit::NotFound, what)
            .because(sanitize::text(&omitted.reason))
            .next("--all plans everything");
    }
    let names = plan.jobs.iter().map(|it| it.job.name.as_str());
    let next = match nearest(name, names) {
        Some(near) => format!("did you mean `{}`?", sanitize::text(near)),
        None => "delta-ci plan lists them".to_owned(),
    };
    let what = format!("there is no job `{}` in the plan", sanitize::text(name));
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

/// What was taken as changed, without what follows from it.
fn reason_of(changed: &str) -> &str {
    changed.split(": ").next().unwrap_or_default()
}

/// The parts with which the reason of every job ends; of one job alone, those that were `said`.
fn shared_reason<'a>(plan: &'a Plan, said: &str) -> &'a str {
    let Some(first) = plan.jobs.first() else {
        return "";
    };
    if plan.jobs.len() == 1 {
        let last = first.reason.rsplit(PART).next().unwrap_or_default();
        return if !said.is_empty() && last.contains(said) {
            last
        } else {
            ""
        };
    }
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
    terminal.out_width().unwrap_or(usize::MAX)
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
    let name = terminal.paint_out(Tone::Strong, &sanitize::text(&job.name));
    let needs = match job.needs.len() {
        0 | 1 => String::new(),
        _ => format!("  (needs {})", sanitize::text(&job.needs.join(", "))),
    };
    let own = included.reason.strip_suffix(look.shared);
    let own = own.unwrap_or(&included.reason);
    let own = own.strip_suffix(PART).unwrap_or(own);
    let reason = match own {
        "" => String::new(),
        own => format!("  {}", sanitize::text(own)),
    };
    let within = format!("{indent}{}", if depth == 0 { "│   " } else { "     " });
    let room = look.width.saturating_sub(within.chars().count());
    let heading = format!("{mark}{name}{needs}{reason}");
    let heading = wrap::within(&heading, look.width.saturating_sub(indent.len()), 0);
    for (at, line) in heading.iter().enumerate() {
        let before = if at == 0 { &indent } else { &within };
        lines.push(format!("{before}{line}"));
    }
    let mut quiet = |text: &str, hang: usize| {
        for line in wrap::within(text, room, hang) {
            lines.push(terminal.paint_out(Tone::Quiet, &format!("{within}{line}")));
        }
    };
    if look.full {
        let steps = job.steps.iter().flat_map(job_details::step_in_full);
        steps
            .chain(job_details::in_full(job))
            .for_each(|it| quiet(&it, 4));
        return;
    }
    for step in job.steps.iter().take(SHOWN_STEPS) {
        quiet(&format!("$ {}", sanitize::text(&step.spec.label())), 4);
    }
    if job.steps.len() > SHOWN_STEPS {
        let more = job.steps.len() - SHOWN_STEPS;
        quiet(&format!("$ … {more} more steps"), 4);
    }
    let about = job_details::wrapped(&job_details::in_short(job), room);
    about.iter().for_each(|line| quiet(line, 2));
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
            shared: shared_reason(&plan, ""),
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

    /// Nothing is broken by the terminal itself, in the middle of a word and of the tree.
    #[test]
    fn a_narrow_terminal_shows_whole_words() {
        let text = b"jobs:\n  everything-there-is-to-lint:\n    image: rust:1\n    steps:\n      \
                     - cargo clippy --workspace --all-targets --all-features\n      \
                     - \"set -e\\nfor one in a b; do\\n  go vet $one\\ndone\"\n  \
                     unit:\n    needs: [everything-there-is-to-lint, other]\n    \
                     requires: [linux, docker, a-label-of-mine]\n    steps: [x]\n  \
                     other: {steps: [y]}\n";
        let pipeline = delta_planner::parse("f", text).unwrap();
        let plan = delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap();
        let terminal = Terminal::new(false, When::Never);
        let look = Look {
            full: false,
            shared: "",
            width: 40,
        };
        let lines = graph(&plan, &look, &terminal);
        assert_eq!(
            lines,
            [
                "● everything-there-is-to-lint  it has no",
                "│   condition",
                "│   $ cargo clippy --workspace",
                "│       --all-targets --all-features",
                "│   $ for one in a b; do …",
                "│   image rust:1",
                "● other  it has no condition",
                "│   $ y",
                "   └─ unit  (needs",
                "        everything-there-is-to-lint, other)",
                "        it has no condition",
                "        $ x",
                "        requires linux, docker,",
                "          a-label-of-mine",
            ]
        );
        let wide = Look {
            width: usize::MAX,
            ..look
        };
        let lines = graph(&plan, &wide, &terminal);
        assert!(lines[1].ends_with("--all-features"), "{lines:?}");
    }

    #[test]
    fn what_all_reasons_end_with_is_said_once() {
        let planned = |text: &str| {
            let pipeline = delta_planner::parse("f", text.as_bytes()).unwrap();
            delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap()
        };
        let alone = planned("jobs: {a: {steps: [x]}}");
        assert_eq!(shared_reason(&alone, ""), "");
        let mut said = alone;
        said.jobs[0].reason = "found; everything runs, as nothing differs from main".into();
        let shared = shared_reason(&said, "nothing differs from main");
        assert_eq!(shared, "everything runs, as nothing differs from main");
        let mixed = planned("jobs: {a: {steps: [x]}, b: {steps: [x], if: 'true'}}");
        assert_eq!(shared_reason(&mixed, ""), "");
        let mut both = planned("jobs: {a: {steps: [x]}, b: {steps: [x]}}");
        both.jobs[0].reason = "Cargo.toml: tests; found; everything runs".to_owned();
        both.jobs[1].reason = "Makefile: tests; found; everything runs".to_owned();
        assert_eq!(shared_reason(&both, ""), "found; everything runs");
        let look = Look {
            full: false,
            shared: shared_reason(&both, ""),
            width: 80,
        };
        let terminal = Terminal::new(false, When::Never);
        let lines = graph(&both, &look, &terminal);
        assert_eq!(lines[0], "● a  Cargo.toml: tests");
        both.jobs[1].reason = "not everything runs".to_owned();
        assert_eq!(shared_reason(&both, ""), "", "only whole parts");
    }
}
